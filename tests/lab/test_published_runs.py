"""Published runs as they were run: serving, training and open loop; every row is read or left out with its reason."""

import csv
import gzip
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import bill, catalog
from commtax.catalog.foreign_names import model_key
from commtax.cost.train_kernels import forward_flops
from commtax.spec.stream import Lengths
from commtax.statement import Refusal
from commtax_lab.published import lengths, open_loop, step_rows, training
from commtax_lab.published.rows import mix, publisher
from commtax_lab.published.scoring import ADDED, check
from commtax_lab.published.scoring.excluded_rows import FASTER, TOLD, UNFIT
from commtax_lab.published.scoring.open_loop import ScoringJob, overload_question, question_of, score, score_runs
from commtax_lab.published.scoring.statistics import share_unpriced, verdicts
from commtax_lab.published.serving_rows import distinct_rows, drafting_rule, planning_rule, question
from commtax_lab.published.tables import folder_tables, shipped_tables
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)

APART = DATA["apart"]
STEP = DATA["step"]
ROW = DATA["row"]
GPUS = {"GB300": "gb300", "H100-SXM": "h100-sxm", "A100-80GB-SXM": "a100-80-sxm", "B200": "b200-sxm"}
BLACKWELL = st.sampled_from(["8xb200-sxm", "2x4xgb200", "2x4xgb300", "8xb300-sxm"])
OPEN_LOOP = SHARED / "open_loop"
here = pytest.mark.skipif(not OPEN_LOOP.is_dir(), reason="the shared table of open-loop runs is not here")
VLLM = DATA["vllm"]
MLPERF = {**VLLM, **DATA["mlperf"]}


def run(**columns):
    return {**DATA["run"], **columns}


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


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 9)), min_size=1, max_size=5, unique_by=lambda part: part[0]))
def test_a_mix_has_the_mean_of_its_parts(parts):
    text = f"mix({','.join(f'{length}:{share}' for length, share in parts)})"
    mean = sum(length * share for length, share in parts) / sum(share for _, share in parts)
    assert sum(length * share for length, share in mix(text)) == pytest.approx(mean)
    asked = question(run(isl=text))
    assert (asked["input_len"], asked["spread"] == 0) == (pytest.approx(mean, abs=0.51), len(parts) == 1)
    assert asked["spread"] <= 1
    drawn = lengths.lengths_of_row({"input_dist": text, "input_mean_tokens": "1", "output_mean_tokens": "100"}, None)[0]
    assert set(drawn.quantiles) <= {float(length) for length, _ in parts}, "none that is not told"
    assert drawn.mean == pytest.approx(mean)


@settings(max_examples=30)
@given(st.text("mix()0123456789:.,-x ", min_size=1, max_size=24).filter(lambda text: not text.strip().isdigit()))
def test_lengths_that_cannot_be_read_are_refused(text):
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


def test_workers_have_their_gpus_and_the_engines_version():
    asked = question(run(**APART))
    assert (asked["prefill_tp"], asked["prefill_dp"], asked["prefill_workers"], asked["decode_workers"]) == (1, 8, 2, 1)
    assert (asked["tp"], asked["dp"], asked["ep"], asked["concurrency"]) == (1, 32, 32, 2048)
    assert asked["cluster"].num_gpus == 48
    cut = question(run(**{**APART, "decode_moe_ep_size": "1", "decode_moe_tp_size": "32"}))
    assert cut["ep"] == 32, "ranks with requests of their own hold no whole experts each"
    with pytest.raises(ValueError, match="how many workers"):
        question(run(**{**APART, "prefill_num_workers": ""}))
    image = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2"
    source = f"db-dump/2026-04-27; silicon_concurrency=2048; measured=2026-02-05; {image}"
    asked = question(run(**{**APART, "backend_version": "0.8.1.post2", "silicon_data_source": source}))
    assert asked["engine"].version.startswith("1.2")
    with pytest.raises(ValueError, match="base7"):
        question(run(moe_quant_mode="base7"))
    assert question(run(kv_cache_dtype="fp8_e4m3"))["kv_dtype"] == "fp8"
    assert question(run(backend="trtllm", model_path="Qwen/Qwen3-32B", gemm_quant_mode="fp8"))["kv_dtype"] == "fp8"


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
    write(tmp_path / "serving_runs.csv", [big, plain, {**plain, "silicon_tpot_ms": "2", "id": "fast"}])
    report = check(tmp_path)
    assert (dict(report.apart), report.files["serving_runs.csv"]) == ({UNFIT: 1, FASTER: 1}, (3, 1))
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


@pytest.fixture(scope="module")
def off():
    """Predicted over measured, less 1, of every row of Megatron and its kin that ships, by source; mixtures apart."""
    rows = next(t for t in shipped_tables("training_runs") if "megatron" in t.name).dicts()
    found = {}
    for row, asked in zip(rows, training.row_questions(rows), strict=True):
        if asked.question is None or "dropless" in row["note"]:
            continue
        try:
            step_s = float(commtax.train_bill(**asked.question).step_s)
        except Refusal:
            continue
        kind = "mixture" if asked.question["model"].experts else "dense"
        found.setdefault((training.engine_of(row), row["source"].partition("arXiv:")[2][:10], kind), []).append(
            step_s / asked.entries[0].measured - 1
        )
    return found


@each(("engine", "paper", "kind", "bar", "least"), DATA["mean_errors_of_published_runs"])
def test_mean_errors_of_published_runs(off, engine, paper, kind, bar, least):
    found = off[engine, paper, kind]
    assert len(found) >= least
    assert np.mean(np.abs(found)) <= bar


@each(("spelled", "key"), DATA["models_are_known_by_any_spelling"])
def test_models_are_known_by_any_spelling(spelled, key):
    assert model_key(spelled.lower()) == key


@pytest.mark.parametrize(("gpu", "chip"), GPUS.items())
def test_gpus_are_known_by_any_spelling(gpu, chip):
    assert training.cluster_of({**ROW, "gpu_type": gpu}).chip.key == chip


def test_a_row_says_what_was_run_and_models_stand_in_the_row_above():
    asked = training.row_questions([ROW])[0]
    run = asked.question
    assert (run["engine"], run["dtype"], run["zero"], run["chunks"]) == ("megatron-bridge@26.04", "mxfp8", 1, 5)
    assert asked.entries[0].measured == 9.07
    bare = {**ROW, "dp": "n/a", "interleave": "N/A", "model": "DeepSeekV3", "tp": "1", "ep": "64", "seq": "4096"}
    rows = training.whole_rows([bare, {**bare, "model": "tokendrop"}])
    assert ([row["model"] for row in rows], training.sizes_of(rows[0])["dp"]) == (["DeepSeekV3", "DeepSeekV3"], 16)


def test_overlap_in_notes_and_recipes():
    def beside(note, dtype="fp8"):
        return training.async_of({**ROW, "note": note}, dtype)

    assert beside("FSDP=0") is None
    assert "tp" not in beside("tp_comm_overlap=False")
    assert "ep" in beside("overlap_moe_expert_parallel_comm")
    assert "tp" not in beside("", "nvfp4")
    assert "tp" in training.async_of({**ROW, "source": "Megatron-Core README", "note": "--tp-comm-overlap"}, "")


def test_a_step_may_be_told_as_tokens_flops_or_utilisation():
    """70B at 8192 tokens: 1,623 TFLOP/s are 3,613 tokens/s per GPU (26.02 on GB200), causal pairs counted."""
    by_time = training.row_questions([ROW])[0].entries[0].measured
    rest = {**ROW, "step_time_s": ""}
    told = ({"note": "tokens/s/GPU=3613"}, {"tflops_per_gpu": "1623"}, {"mfu": str(1623 / 5000)}, {"mfu": str(100 * 1623 / 5000)})
    for change in told:
        assert training.row_questions([{**rest, **change}])[0].entries[0].measured == pytest.approx(by_time, rel=0.005)


@pytest.mark.parametrize(("change", "says"), DATA["rows_that_cannot_be_scored_say_why"])
def test_rows_that_cannot_be_scored_say_why(change, says):
    asked = training.row_questions([{**ROW, **change}])[0]
    assert asked.question is None
    assert says in asked.entries[0].skipped


def test_flops_as_megatron_bridge_counts_them():
    """DeepSeek-V3: 1,199 TFLOP/s at 4,612 tokens/s with the layer that guesses a further token, 961 at 3,848 without."""
    for name, flops in (("DeepSeekV3", 1199e12 / 4612), ("DeepSeekV3 (w/o MTP)", 961e12 / 3848)):
        layers, head = forward_flops(training.model_of({**ROW, "model": name, "seq": "4096"}), 4096, causal=True)
        assert 3 * (layers + head) == pytest.approx(flops, rel=0.01)


def step_s(place, dtype="bf16", **more):
    given = {"tp": 2, "dp": 4, "batch": 4, "micro_batch": 2, "context": 8192, "engine": "megatron-bridge", **more}
    return float(commtax.train_bill("llama-3.1-70b", place, dtype=dtype, **given).step_s)


@settings(max_examples=8)
@given(BLACKWELL)
def test_narrower_numbers_are_never_slower_where_products_are_large(place):
    times = [step_s(place, dtype) for dtype in ("bf16", "mxfp8", "fp8", "nvfp4")]
    assert times == sorted(times, reverse=True)


@settings(max_examples=12)
@given(BLACKWELL, st.permutations(["dp", "tp", "pp", "ep", "cp"]), st.sampled_from(["llama-3.1-70b", "qwen3-235b-a22b"]))
def test_more_overlap_is_never_slower(place, order, model):
    more = {"tp": 2, "pp": 2, "dp": 2, "ep": 2 if "qwen" in model else 1, "schedule": "interleaved", "chunks": 2}
    asked = {"batch": 8, "context": 4096, "dtype": "fp8", "engine": "megatron-bridge", **more}
    times = [float(commtax.train_bill(model, place, async_axes=tuple(order[:n]), **asked).step_s) for n in range(6)]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(times))


def test_experts_on_neighbouring_ranks_are_whole_and_other_ways_to_them_are_refused():
    """Megatron-Bridge cuts no expert: over tp 2 they lie on twice as many ranks, and compute as much."""
    asked = {"pp": 1, "dp": 4, "tp": 2, "batch": 4, "context": 4096, "dtype": "bf16", "sequence_parallel": True}
    both = [
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", engine=engine, ep=ep, **asked)
        for engine, ep in (("megatron", 4), ("megatron-bridge", 8))
    ]
    flops = [sum(float(x.flops * x.item.count) for x in b.lines if x.item.part == "experts" and x.kind == "compute") for b in both]
    assert flops[0] == pytest.approx(flops[1])
    with pytest.raises(ValueError, match="all_to_all"):
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", dp=8, ep=8, batch=1, engine="torchtitan", ep_backend="deepep")


def test_a_token_goes_once_to_a_rank_and_a_host():
    asked = {"dp": 16, "ep": 16, "batch": 1, "context": 4096, "engine": "megatron", "phase": "train"}

    def dispatched(backend):
        lines = commtax.traffic("qwen3-30b-a3b", "2x8xh100-sxm", ep_backend=backend, **asked).lines
        return next(x.item for x in lines if x.item.axis == "ep")

    assert dispatched("deepep").nbytes < dispatched("all_to_all").nbytes
    assert dispatched("all_to_all").nbytes == 4096 * 8 * 2048 * 2


def test_hosts_wait_for_many_experts_and_few_tokens():
    def waits(micro, version="26.04"):
        asked = {"dp": 8, "ep": 8, "batch": 8, "micro_batch": micro, "context": 4096, "dtype": "mxfp8"}
        asked["engine"] = f"megatron-bridge@{version}"
        lines = commtax.train_bill("qwen3-30b-a3b", "8xb200-sxm", **asked).lines
        return sum(float(x.total_s) for x in lines if x.kind == "host")

    assert waits(1) > waits(4) > waits(8) > waits(1, "26.06") == 0


def test_up_projections_are_recomputed():
    """HAI-LLM keeps latents and makes queries, keys and values again."""
    asked = {"pp": 4, "dp": 8, "ep": 8, "batch": 8, "context": 4096, "dtype": "fp8", "engine": "deepseek"}
    model = replace(catalog.model("deepseek-v3"), max_len=4096)
    plain, again = (commtax.train_bill(model, "4x8xh800-sxm", recompute=kind, **asked) for kind in ("none", "selective"))
    assert float(again.step_s) > float(plain.step_s)
    assert float(again.hfu) > float(again.mfu)


def run_of(row):
    (asked,) = open_loop.read([row], Path("a folder without lengths"))
    assert asked.question, asked.entries[0].skipped
    return asked.question


@here
@pytest.mark.parametrize(("name", "least"), [("open_loop_runs.csv", 0.75), ("open_loop_runs_v6.csv", 0.64)])
def test_every_row_of_the_larger_tables_is_read(name, least):
    table = next((table for table in folder_tables(OPEN_LOOP) if table.name == name), None)
    if table is None:
        pytest.skip("this table is not here")
    asked = open_loop.read(table.dicts(), table.folder)
    assert len(asked) == len(table.rows)
    told = [one for one in asked if one.question]
    assert len(told) >= least * len(asked)
    for one in asked:
        kinds = [entry.kind for entry in one.entries]
        assert len(kinds) == len(set(kinds))
        assert one.question or all(entry.skipped for entry in one.entries)
    for server in {one.question.server for one in told}:
        assert catalog.cluster(server.cluster).num_gpus == server.tp * server.pp * server.dp
        assert catalog.engine(server.engine).key == server.engine.partition("@")[0]
        assert catalog.model(server.model).key == server.model
    assert f"open_loop/{name}" in {table.name for table in folder_tables(OPEN_LOOP.parent, "open_loop_runs")}


def test_a_row_of_one_or_of_several_replicas_says_its_server():
    run = run_of(VLLM)
    assert run.server == open_loop.ReplicaSettings("qwen3-14b", "1xh100-sxm", "vllm@0.23.0", max_num_seqs=256)
    assert (run.replicas, run.load.request_rate, run.load.burstiness, run.load.in_flight) == (1, 4.0, 1.0, 256.0)
    assert (run.load.num_requests, run.load.warmup, run.load.unique_prompts) == (200, 0, 0)
    assert (run.load.outputs.kind, run.load.outputs.mean) == ("constant", 128.0)
    run = run_of(MLPERF)
    assert (run.server.cluster, run.server.engine, run.server.kv_dtype) == ("2xh100-sxm", "trtllm-mlperf@5.1", "fp8")
    assert run.server.in_process
    assert run.server.gpu_memory_utilization == 0.9
    assert (run.replicas, run.load.request_rate, run.load.burstiness) == (4, 10.0, 4.0)
    assert (run.load.num_requests, run.load.warmup) == (open_loop.MOST_REQUESTS, 1200)
    assert ((run.slo_ttft_s, run.slo_tpot_s), overload_question(run).load.request_rate) == ((2.0, 0.2), 15.0)
    assert "one of 4 replicas, 12,000 requests after 1,200" in open_loop.run_in_words(run)


@pytest.mark.parametrize(("version", "entered", "engine"), DATA["a_submission_may_run_the_software_of_an_older_round"])
def test_a_submission_may_run_the_software_of_an_older_round(version, entered, engine):
    row = {**MLPERF, "source_group": f"mlperf-{entered}", "engine_version": version}
    assert run_of(row).server.engine == engine


def test_workers_of_contexts_and_spread_experts_are_known_by_their_settings():
    note = "config (name+qps match): closed/NVIDIA/configs/GB300-NVL72_GB300-288GB_aarch64x72/Server/llama2-70b.py"
    (asked,) = open_loop.read([{**MLPERF, "note": note}], None)
    assert asked.question is None
    assert "disaggregated" in asked.entries[0].skipped
    server = run_of({**MLPERF, "model": "deepseek-ai/DeepSeek-R1", "weights_dtype": "fp4", "tp": "8", "dp": "", "ep": "8"}).server
    assert (server.tp, server.dp, server.ep, server.cluster, server.dtype) == (1, 8, 8, "8xh100-sxm", "nvfp4")
    assert run_of({**VLLM, "chip": "gh200"}).server.cluster == "1xgh200-96"
    assert run_of({**VLLM, "chip": "gh200", "experiment": "lab/GH200-144GB_aarch64x1"}).server.cluster == "1xgh200-144"


def test_prompts_that_repeat_are_cached_from_the_second_stage_on():
    repeated = {**VLLM, "source_group": "training", "shared_prefix_tokens": "100"}
    first, second = run_of(repeated).load, run_of({**repeated, "id": "lab-s1"}).load
    assert (first.unique_prompts, first.shared_prefix, first.warmup, second.warmup) == (100, 100, 0, 100)
    off = run_of({**repeated, "prefix_caching": "false"}).load
    assert (off.unique_prompts, off.shared_prefix) == (0, 0)


@each(("changed", "reason"), DATA["what_is_left_out_says_why"])
def test_what_is_left_out_says_why(changed, reason):
    (asked,) = open_loop.read([{**VLLM, **changed}], None)
    assert asked.question is None
    assert [entry.kind for entry in asked.entries] == ["ttft_mean", "tpot_mean", "e2e_p99", "overloaded"]
    assert all(reason in entry.skipped and not entry.sound for entry in asked.entries)


def test_figures_are_seconds_and_survivors_tell_none():
    (asked,) = open_loop.read([{**MLPERF, "ttft_p99_ms": "2500", "itl_p50_ms": "0", "queue_p99_ms": "1e400"}], None)
    measured = {entry.kind: entry.measured for entry in asked.entries if not entry.skipped}
    times = {"ttft_mean": 0.0725, "tpot_mean": 0.0136, "e2e_p99": 2.092, "ttft_p99": 2.5}
    assert measured == times | {"overloaded": 1.0, "holds_slo": 0.0, "holds_slo_at_1.5x": 0.0}
    assert {entry.kind for entry in asked.entries if entry.skipped} == {"itl_p50", "queue_p99"}
    (asked,) = open_loop.read([{**VLLM, "num_failed": "40"}], None)
    assert {entry.kind for entry in asked.entries if not entry.skipped} == {"overloaded"}
    assert asked.question


@pytest.mark.parametrize(("changed", "piled_up"), DATA["who_is_overloaded"])
def test_who_is_overloaded(changed, piled_up):
    assert open_loop.is_overloaded({**VLLM, **changed}) is piled_up


def test_fitted_runs_are_told_apart():
    assert open_loop.is_fitted(VLLM)
    assert not open_loop.is_fitted({**VLLM, "request_rate_rps": "8"})
    for row in ({**VLLM, "source_group": "training"}, MLPERF, {**MLPERF, "engine": "vllm", "chip": "mi325x"}):
        halves = [open_loop.is_fitted({**row, "experiment": f"lab/{n}"}) for n in range(200)]
        assert 0.3 < np.mean(halves) < 0.7
    assert not any(open_loop.is_fitted({**MLPERF, "engine": "vllm", "experiment": f"lab/{n}"}) for n in range(20))


@pytest.mark.parametrize(("name", "key"), DATA["models_by_the_names_that_runs_use"])
def test_models_by_the_names_that_runs_use(name, key):
    assert run_of({**VLLM, "model": name}).server.model == key


@given(st.lists(st.floats(20, 5000), min_size=2, max_size=60), st.floats(0.5, 2))
def test_a_stretched_data_set_has_the_runs_mean_and_keeps_its_end(values, factor):
    levels = np.sort(values)
    mean = float(np.mean((levels[1:] + levels[:-1]) / 2))
    wanted = min(mean * factor, float(levels[-1]) * 0.9)
    points = np.array(lengths.scale_to_mean(Lengths("quantiles", mean, quantiles=tuple(levels.tolist())), wanted).quantiles)
    assert np.all(np.diff(points) >= 0)
    assert points[-1] <= max(levels[-1], wanted) + 1e-3
    assert np.mean((points[1:] + points[:-1]) / 2) == pytest.approx(wanted, rel=1e-3)


def test_lengths_come_from_the_folder_else_from_the_catalogue_else_from_figures(tmp_path):
    place = tmp_path / "mlperf_lengths"
    place.mkdir()
    with gzip.open(place / "lab.csv.gz", "wt") as file:
        file.write("input_tokens\n" + "\n".join(str(n) for n in range(100, 301)))
    row = {**MLPERF, "input_dist": "mlperf_lengths/lab", "input_mean_tokens": "200", "output_dist": "mlperf_lengths/lab"}
    inputs, outputs = lengths.lengths_of_row(row, tmp_path)
    assert (inputs.quantiles[0], inputs.quantiles[-1]) == pytest.approx((100, 300), abs=0.1)
    assert (outputs.kind, outputs.mean, outputs.sigma) == ("lognormal", 290.0, lengths.ANSWER_SIGMA)
    inputs, outputs = lengths.lengths_of_row(MLPERF, tmp_path)
    assert (inputs.source, outputs.source) == ("mlperf-llama2-70b", "mlperf-llama2-70b")
    inputs, outputs = lengths.lengths_of_row({**VLLM, "input_dist": "sharegpt (min 256)", "input_p50_tokens": "800"}, None)
    assert (inputs.kind, inputs.low, outputs.kind) == ("lognormal", 256.0, "constant")
    assert inputs.sigma > 0


def test_one_output_row_for_each_row_and_figure(tmp_path):
    (tmp_path / "open_loop").mkdir()
    small = {**MLPERF, "num_requests": "400", "request_rate_rps": "8"}
    rows = [VLLM, {**VLLM, "tp": ""}, small, {**small, "id": "again", "tpot_mean_ms": ""}]
    write(tmp_path / "open_loop" / "open_loop_runs.csv", rows)
    report = check(tmp_path, only="open_loop_runs", rows_to=tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        out = list(csv.DictReader(file))
    assert list(out[0]) == ["file", *{**VLLM, **MLPERF}, *ADDED]
    assert [len([r for r in out if r["id"] == name and r["tp"]]) for name in ("lab-s0", "mlperf-v5.1-lab", "again")] == [4, 6, 5]
    for row in out:
        assert bool(row["skipped"]) is (row["predicted"] == "") is (row["tp"] == "")
        assert row["skipped"] or 0 <= float(row["low"]) <= float(row["predicted"]) <= float(row["high"])
    first, again = ({r["kind"]: r["predicted"] for r in out if r["id"] == name} for name in ("mlperf-v5.1-lab", "again"))
    assert again.items() <= first.items()
    assert report.files == {"open_loop/open_loop_runs.csv": (4, 3)}
    assert {v.kind: v.yes + v.no for v in verdicts(report.records)} == {"overloaded": 3, "holds_slo": 2, "holds_slo_at_1.5x": 2}
    assert share_unpriced(report.records) == (0.0, 4)


def test_a_run_that_cannot_be_gives_its_reason_and_processes_give_what_one_gives():
    runs = [run_of({**VLLM, "request_rate_rps": str(rate), "num_requests": "60"}) for rate in range(1, 7)]
    jobs = [ScoringJob(run, ("ttft_p99", "tpot_mean", "overloaded")) for run in runs]
    assert score_runs(jobs) == [score(job) for job in jobs]
    run = run_of(VLLM)
    wrong = replace(run, server=replace(run.server, tp=3, cluster="3xh100-sxm"))
    assert "tp=3" in score(ScoringJob(wrong, ("ttft_mean",)))
    served, called = (
        question_of(run_of(VLLM)).engine.host,
        question_of(run_of({**VLLM, "source_group": "llmservingsim"})).engine.host,
    )
    assert served.request_s > 0
    assert (called.request_s, called.frontend_request_s, called.frontend_token_s) == (0, 0, 0)


def test_the_shipped_runs_are_scored():
    (table,) = shipped_tables("open_loop_runs")
    assert all(dict(zip(table.header, row, strict=True))["source"] for row in table.rows)
    asked = open_loop.read(table.dicts(), None)
    assert all(one.question for one in asked)
    assert {one.entries[0].source for one in asked} >= {"training", "sim-to-real", "residency-vllm", "llmservingsim", "mlperf-v5.1"}
    for one in asked[::12]:
        result = score(ScoringJob(one.question, tuple(entry.kind for entry in one.entries)))
        assert all(math.isfinite(predicted.predicted) for predicted in result.values())
