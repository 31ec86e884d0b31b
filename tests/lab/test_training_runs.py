"""Published training runs: how tables spell them, what Megatron does in them, and how far prices are off."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.foreign_names import model_key
from commtax.cost.train_kernels import forward_flops
from commtax.statement import Refusal
from commtax_lab.published import training
from commtax_lab.published.tables import shipped_tables
from each import each
from tables import tables

DATA = tables(__file__)

ROW = dict(
    zip(
        ("source", "model", "seq", "gpus", "gpu_type", "precision", "step_time_s", "note"),
        ("Megatron-Bridge docs 26.02 NeMo Container", "LLAMA3_70B", "8192", "64", "GB200", "MXFP8", "9.07", "FSDP=0"),
        strict=True,
    )
)
ROW |= {"tp": "2", "pp": "4", "dp": "8", "cp": "1", "interleave": "5", "microbatch": "1", "global_batch": "256"}


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


GPUS = {"GB300": "gb300", "H100-SXM": "h100-sxm", "A100-80GB-SXM": "a100-80-sxm", "B200": "b200-sxm"}


@pytest.mark.parametrize(("gpu", "chip"), GPUS.items())
def test_gpus_are_known_by_any_spelling(gpu, chip):
    assert training.cluster_of({**ROW, "gpu_type": gpu}).chip.key == chip


def test_a_row_says_what_was_run():
    asked = training.row_questions([ROW])[0]
    run = asked.question
    assert (run["engine"], run["dtype"], run["zero"], run["chunks"]) == ("megatron-bridge@26.04", "mxfp8", 1, 5)
    assert asked.entries[0].measured == 9.07


def test_cells_that_say_nothing_and_models_of_the_row_above():
    bare = {**ROW, "dp": "n/a", "interleave": "N/A", "model": "DeepSeekV3", "tp": "1", "ep": "64", "seq": "4096"}
    rows = training.whole_rows([bare, {**bare, "model": "tokendrop"}])
    assert [row["model"] for row in rows] == ["DeepSeekV3", "DeepSeekV3"]
    assert training.sizes_of(rows[0])["dp"] == 16


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step_time_s": "1"}, "more than the 5,000"),
        ({"step_time_s": "", "tflops_per_gpu": "6000"}, "more than the 5,000"),
        ({"step_time_s": ""}, "neither a step's time"),
        ({"gpu_type": "TPU"}, "GPU 'TPU'"),
        ({"model": "Grok-9"}, "leaves out layers, hidden, heads, vocab"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(change, says):
    asked = training.row_questions([{**ROW, **change}])[0]
    assert asked.question is None
    assert says in asked.entries[0].skipped


def test_flops_as_megatron_bridge_counts_them():
    """DeepSeek-V3: 1,199 TFLOP/s at 4,612 tokens/s with the layer that guesses a further token, 961 at 3,848 without."""
    for name, flops in (("DeepSeekV3", 1199e12 / 4612), ("DeepSeekV3 (w/o MTP)", 961e12 / 3848)):
        model = training.model_of({**ROW, "model": name, "seq": "4096"})
        layers, head = forward_flops(model, 4096, causal=True)
        assert 3 * (layers + head) == pytest.approx(flops, rel=0.01)


BLACKWELL = st.sampled_from(["8xb200-sxm", "2x4xgb200", "2x4xgb300", "8xb300-sxm"])


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


def test_experts_on_neighbouring_ranks_are_whole():
    """Megatron-Bridge cuts no expert: over tp 2 they lie on twice as many ranks, and compute as much."""
    asked = {"pp": 1, "dp": 4, "tp": 2, "batch": 4, "context": 4096, "dtype": "bf16", "sequence_parallel": True}
    both = [
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", engine=engine, ep=ep, **asked)
        for engine, ep in (("megatron", 4), ("megatron-bridge", 8))
    ]
    flops = [sum(float(x.flops * x.item.count) for x in b.lines if x.item.part == "experts" and x.kind == "compute") for b in both]
    assert flops[0] == pytest.approx(flops[1])


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


def test_an_unknown_way_to_experts_is_refused():
    with pytest.raises(ValueError, match="all_to_all"):
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", dp=8, ep=8, batch=1, engine="torchtitan", ep_backend="deepep")


def test_up_projections_are_recomputed():
    """HAI-LLM keeps latents and makes queries, keys and values again."""
    asked = {"pp": 4, "dp": 8, "ep": 8, "batch": 8, "context": 4096, "dtype": "fp8", "engine": "deepseek"}
    model = replace(catalog.model("deepseek-v3"), max_len=4096)
    plain, again = (commtax.train_bill(model, "4x8xh800-sxm", recompute=kind, **asked) for kind in ("none", "selective"))
    assert float(again.step_s) > float(plain.step_s)
    assert float(again.hfu) > float(again.mfu)
