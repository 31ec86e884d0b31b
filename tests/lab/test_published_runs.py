"""Rows of published runs as they were run: number formats, lengths, workers, publishers; which are no test, and why."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import bill
from commtax_lab.published import lengths, step_rows
from commtax_lab.published.rows import mix, publisher
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.excluded_rows import FASTER, TOLD, UNFIT
from commtax_lab.published.serving_rows import distinct_rows, drafting_rule, planning_rule, question
from each import each
from tables import tables

DATA = tables(__file__)

RUN = DATA["run"]
APART = DATA["apart"]
STEP = DATA["step"]


def run(**columns):
    return {**RUN, **columns}


def write(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, names, restval="")
        lines.writeheader()
        lines.writerows(rows)


@each(
    ("columns", "stored", "block", "dtype"),
    [
        ({}, "int4", None, ""),
        ({"gemm_quant_mode": "int4_wo", "moe_quant_mode": "int4_wo"}, "int4", None, ""),
        ({"gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4"}, "nvfp4", (1, 16), ""),
        ({"gemm_quant_mode": "nvfp4", "model_path": "openai/gpt-oss-120b"}, "mxfp4", None, ""),
        ({"gemm_quant_mode": "bfloat16", "moe_quant_mode": "w4a16_mxfp4", "model_path": "openai/gpt-oss-120b"}, "mxfp4", None, ""),
        ({"gemm_quant_mode": "fp8", "moe_quant_mode": "fp8_block", "model_path": "Qwen/Qwen3.5-397B-A17B"}, "fp8", (128, 128), ""),
        ({"gemm_quant_mode": "fp8", "model_path": "Qwen/Qwen3-32B"}, "fp8", (0, 0), ""),
        ({"model_path": "Qwen/Qwen3-235B-A22B-FP8"}, "fp8", (128, 128), ""),
        ({"gemm_quant_mode": "nvfp4", "model_path": "deepseek-ai/DeepSeek-R1"}, "nvfp4", (1, 16), ""),
    ],
)
def test_a_rows_own_columns_go_before_the_checkpoint(columns, stored, block, dtype):
    asked = question(run(**columns))
    quant = asked["model"].quant
    assert (quant.dtype if quant else None, asked["dtype"]) == (stored, dtype)
    assert block is None or quant.block == block


def test_what_is_not_known_is_refused_and_a_cache_is_as_the_row_says():
    with pytest.raises(ValueError, match="base7"):
        question(run(moe_quant_mode="base7"))
    assert question(run(kv_cache_dtype="fp8_e4m3"))["kv_dtype"] == "fp8"
    assert question(run(backend="trtllm", model_path="Qwen/Qwen3-32B", gemm_quant_mode="fp8"))["kv_dtype"] == "fp8"


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 9)), min_size=1, max_size=5, unique_by=lambda part: part[0]))
def test_a_mix_has_the_mean_of_its_parts(parts):
    text = f"mix({','.join(f'{length}:{share}' for length, share in parts)})"
    mean = sum(length * share for length, share in parts) / sum(share for _, share in parts)
    assert sum(length * share for length, share in mix(text)) == pytest.approx(mean)
    asked = question(run(isl=text))
    assert asked["input_len"] == pytest.approx(mean, abs=0.51)
    assert (asked["spread"] == 0) == (len(parts) == 1)
    assert asked["spread"] <= 1
    drawn = lengths.lengths_of_row({"input_dist": text, "input_mean_tokens": "1", "output_mean_tokens": "100"}, None)[0]
    assert set(drawn.quantiles) <= {float(length) for length, _ in parts}, "none that is not told"
    assert drawn.mean == pytest.approx(mean)


@settings(max_examples=30)
@given(st.text("mix()0123456789:.,-x ", min_size=1, max_size=24).filter(lambda text: not text.strip().isdigit()))
def test_lengths_that_cannot_be_read_are_refused(text):
    """Never stripped to their digits."""
    try:
        parts = mix(text)
        asked = question(run(isl=text))
    except ValueError:
        return
    assert parts or abs(asked["input_len"] - float(text)) < 1


@given(
    st.sampled_from(["b200_sxm", "b300_sxm", "h200_sxm", "gb200"]),
    st.sampled_from(["sglang", "trtllm"]),
    st.sampled_from([4, 64, 256]),
)
def test_v3_is_launched_as_r1(system, engine, clients):
    said = {"silicon_data_source": f"source_file=2026-04-06.csv; silicon_concurrency={clients}; measured=2026-03-25"}
    said |= {"system": system, "backend": engine, "tp_size": "8", "gemm_quant_mode": "fp8"}
    one, other = (question(run(model_path=f"deepseek-ai/DeepSeek-{name}", **said)) for name in ("R1", "V3"))
    assert {k: v for k, v in one.items() if k != "model"} == {k: v for k, v in other.items() if k != "model"}
    assert system != "b300_sxm" or one["kv_dtype"] == "fp8", "B300's scripts are B200's"


def test_workers_have_their_gpus():
    asked = question(run(**APART))
    assert (asked["prefill_tp"], asked["prefill_dp"], asked["prefill_workers"], asked["decode_workers"]) == (1, 8, 2, 1)
    assert (asked["tp"], asked["dp"], asked["ep"], asked["concurrency"]) == (1, 32, 32, 2048)
    assert asked["cluster"].num_gpus == 48
    cut = question(run(**{**APART, "decode_moe_ep_size": "1", "decode_moe_tp_size": "32"}))
    assert cut["ep"] == 32, "ranks with requests of their own hold no whole experts each"
    with pytest.raises(ValueError, match="how many workers"):
        question(run(**{**APART, "prefill_num_workers": ""}))


def test_a_runtimes_version_is_not_the_engines():
    image = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2"
    source = f"db-dump/2026-04-27; silicon_concurrency=2048; measured=2026-02-05; {image}"
    asked = question(run(**{**APART, "backend_version": "0.8.1.post2", "silicon_data_source": source}))
    assert asked["engine"].version.startswith("1.2")


@pytest.mark.parametrize(("columns", "says"), DATA["runs_that_may_have_drafted_are_told_by_rule"])
def test_runs_that_may_have_drafted_are_told_by_rule(columns, says):
    found = drafting_rule(run(model_path="deepseek-ai/DeepSeek-R1", backend="trtllm", gemm_quant_mode="nvfp4", **columns))
    assert (says in found) if says else not found


def test_who_measured():
    files = "source_file=/home/x/aic-auto-gap-analysis/data/h100/x.csv"
    assert publisher({"silicon_data_source": "source_file=2026-04-06.csv; measured=2026-02-05"}) == "InferenceMAX"
    assert publisher({"silicon_data_source": files}) == "aiconfigurator"
    assert publisher({"silicon_data_source": "source_file=kimi-k2.5-gap-analysis.csv; x"}) == "kimi-k2.5 gap analysis"
    assert publisher(STEP) == "ML.ENERGY"
    assert publisher({"source": "https://github.com/vllm-project/vllm/pull/2192"}) == "vllm-project/vllm"
    assert publisher({}) == ""
    assert planning_rule({"silicon_data_source": f"{files}; gtl_job_id=1"})
    assert not planning_rule({"silicon_data_source": files})


def test_a_measurement_is_counted_once(tmp_path):
    source = "source_file=2026-04-06.csv; silicon_concurrency=8; measured=2026-03-01"
    one = run(
        model_path="deepseek-ai/DeepSeek-R1", system="h200_sxm", tp_size="8", gemm_quant_mode="fp8", silicon_data_source=source
    )
    other = {**one, "model_path": "deepseek-ai/DeepSeek-V3", "silicon_data_source": "db-dump/2026-04-27; silicon_concurrency=8"}
    slower = {**other, "silicon_tpot_ms": "17.5"}
    assert distinct_rows([other, other | {"id": "2", "silicon_ttft_ms": "169.9004"}, slower]) == [other, slower]
    write(tmp_path / "serving_runs.csv", [one])
    write(tmp_path / "serving_runs_more.csv", [other, {**other, "id": "again"}, slower])
    report = check(tmp_path)
    assert report.files == {"serving_runs.csv": (1, 0), "serving_runs_more.csv": (3, 2)}
    assert dict(report.apart)[TOLD] == 1, "the first, which may have drafted, does not stand for the second"


def test_rows_that_cannot_be_are_apart_by_rule(tmp_path):
    big = run(model_path="Qwen/Qwen3-235B-A22B-FP8", system="h200_sxm", tp_size="1", gemm_quant_mode="fp8")
    plain = run(model_path="meta-llama/Llama-3.1-8B-Instruct", system="h100_sxm", tp_size="1")
    fast = {**plain, "silicon_tpot_ms": "2", "id": "fast"}
    write(tmp_path / "serving_runs.csv", [big, plain, fast])
    report = check(tmp_path)
    assert dict(report.apart) == {UNFIT: 1, FASTER: 1}
    assert report.files["serving_runs.csv"] == (3, 1)
    bound = next(b for b in report.bounds if "set apart" in b.name)
    assert bound.value == pytest.approx(2 / 3)
    assert bound.ok is False


def test_a_decode_step_at_a_mean_batch(tmp_path):
    asked = step_rows.question(STEP)
    assert (asked.batch, asked.context, asked.engine) == (32, 1100, "vllm@0.11")
    spread = step_rows.question({**STEP, "model_path": "Qwen/Qwen3-235B-A22B-Thinking-2507", "gpus": "8", "ep": "8"})
    assert (spread.tp, spread.ep, spread.dp) == (8, 8, 1)
    with pytest.raises(ValueError, match="image-chat"):
        step_rows.question({**STEP, "task": "image-chat"})
    write(tmp_path / "energy.csv", [STEP])
    records = check(tmp_path).records
    priced = bill("llama-3.1-8b", "8xh100-sxm", batch=32, context=1100, engine="vllm@0.11", sampling="top-p")
    assert records.predicted[0] == pytest.approx(float(priced.step_s))
    assert (records.kind[0], records.publisher[0], records.where[0]) == ("itl", "ML.ENERGY", "dense")
