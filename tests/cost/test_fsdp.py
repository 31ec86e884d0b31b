"""Training with torch's FSDP and with ZeRO: what it recomputes, gathers and casts, clocks under a power limit, published runs."""

import csv
import statistics
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.kernels import power_clock
from commtax_lab.published import training
from commtax_lab.published.rows import read
from commtax_lab.published.scoring.predicting import predict_training
from commtax_lab.published.tables import shipped_tables
from paths import ROOT

RUNS = ROOT.parent / "shared" / "data" / "training_runs.csv"
LAYERS = ROOT / "benchmarks" / "h200" / "layers.csv"
HOST = "8xh100-sxm"
CONSTANTS = catalog.kernel_constants(catalog.engine("torchtitan"), catalog.chip("h100-sxm"))
OURS = ("torchtitan", "pytorch/ao", "2104.04473 Table 2")
ENDS = ("head", "loss", "update", "embedding")


def titan(model="llama-3.1-8b", cluster=HOST, **words):
    return commtax.train_bill(model, cluster, **{"engine": "torchtitan", "context": 8192, **words})


def mean_errors(rows):
    """Mean absolute error of rows that can be priced, by source."""
    errors = defaultdict(list)
    for row, asked in zip(rows, read(rows, training.describe, training.ask), strict=True):
        if asked.question is not None:
            predicted = predict_training(asked.question, asked.entries)[0].predicted
            errors[row["source"].partition(" ")[0], asked.question["engine"]].append(predicted / asked.entries[0].measured - 1)
    return {key: statistics.mean(map(abs, found)) for key, found in errors.items()}, {k: len(v) for k, v in errors.items()}


def test_shipped_runs():
    """Nothing was fitted on torchtitan's rows; ZeRO-3's are fitted on one model of two."""
    rows = [row for table in shipped_tables() if table.kind == "training_runs" for row in table.dicts()]
    errors, counts = mean_errors([r for r in rows if any(name in r["source"] for name in OURS)])
    assert counts["torchtitan", "torchtitan"] == 32
    assert errors["torchtitan", "torchtitan"] <= 0.10
    assert errors["pytorch/ao", "torchtitan"] <= 0.05
    assert counts["Narayanan2021", "deepspeed-2021"] == 6
    assert errors["Narayanan2021", "deepspeed-2021"] <= 0.12


@pytest.mark.skipif(not RUNS.exists(), reason="the published tables lie beside the project, not in it")
def test_every_published_run_of_llm_foundry():
    with RUNS.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if "llm-foundry" in r["source"]]
    errors, counts = mean_errors(rows)
    assert counts["mosaicml/llm-foundry", "llm-foundry"] == 216
    assert errors["mosaicml/llm-foundry", "llm-foundry"] <= 0.05


def layer_s(recompute, eager=False):
    b = titan(cluster="8xh200-sxm", batch=2, micro_batch=2, recompute=recompute, eager=eager)
    return sum(float(x.total_s) for x in b.items if x.kind == "compute" and x.item.part not in ENDS)


def test_recomputation_and_eager_kernels_cost_what_a_layer_took():
    """A layer as torchtitan writes it, on an H200: what each mode adds over the plain compiled one."""
    with LAYERS.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["what"].startswith("layer of Llama")]
    took = {(r["recompute"], r["compiled"]): float(r["ms"]) for r in rows}
    assert len(took) == 6
    plain = layer_s("none")
    for (recompute, compiled), ms in took.items():
        ratio = layer_s(recompute, compiled == "0") / plain
        assert ratio == pytest.approx(ms / took["none", "1"], rel=0.04), (recompute, compiled)


@given(st.sampled_from(("llama-3.2-1b", "llama-3.1-8b", "qwen3-32b")), st.sampled_from((1, 2, 8)), st.sampled_from(("", "fp8")))
def test_more_is_recomputed_the_slower(model, tp, dtype):
    words = {"tp": tp, "dp": 8 // tp, "batch": 2, "dtype": dtype}
    steps = [titan(model, recompute=r, **words) for r in ("none", "selective", "full")]
    assert [float(b.step_s) for b in steps] == sorted(float(b.step_s) for b in steps)
    assert [float(b.hfu) / float(b.mfu) for b in steps] == sorted(float(b.hfu) / float(b.mfu) for b in steps)
    assert float(titan(model, eager=True, **words).step_s) >= float(titan(model, **words).step_s)


def sent(b, op, part="layers"):
    return sum(float(x.item.count) for x in b.items if x.kind == "comm" and x.item.op == op and x.item.part == part)


def test_selective_recomputation_gathers_again_and_sums_once():
    none, selective, full = (titan(tp=8, recompute=r) for r in ("none", "selective", "full"))
    layers = 32 * none.question.plan.microbatches
    assert [sent(b, "all-gather") / layers for b in (none, selective, full)] == [4, 6, 6]
    assert [sent(b, "reduce-scatter") / layers for b in (none, selective, full)] == [4, 4, 5], "its end is not summed again"


def test_repeated_keys_travel_for_every_query_head():
    titans, plain = (commtax.train_bill("llama-3.1-8b", HOST, engine=e, cp=4, context=32768) for e in ("torchtitan", "fsdp"))
    keys = [next(float(x.item.nbytes) for x in b.items if x.item.axis == "cp") for b in (titans, plain)]
    assert keys[0] == 4 * keys[1], "32 query heads share 8 keys"


@given(st.floats(50, 2000), st.floats(0.05, 4))
def test_the_clock_follows_watts_a_flop(watts, share):
    chip, table = catalog.chip("h100-sxm"), CONSTANTS.tables["train.bf16"]
    limited = replace(chip, tdp_w=watts)
    assert 0 < power_clock(limited, table) <= 1
    assert power_clock(limited, table) <= power_clock(replace(chip, tdp_w=watts * 1.1), table)
    smaller = replace(limited, tdp_w=watts * share, flops_per_s={k: v * share for k, v in chip.flops_per_s.items()})
    assert power_clock(smaller, table) == pytest.approx(power_clock(limited, table))
    for engine in ("fsdp", "megatron"):
        own = catalog.kernel_constants(catalog.engine(engine), catalog.chip("h20"))
        assert power_clock(catalog.chip("h20"), own.tables["train.bf16"]) == 1, "few multipliers, watts enough"


@given(st.sampled_from(("llama-3.1-8b", "llama-3.1-70b")), st.sampled_from((1, 8)))
def test_a_scale_a_row_costs_more_than_one_a_tensor(model, tp):
    words = {"tp": tp, "dp": 64 // tp, "batch": 2, "recompute": "full", "cluster": "8x8xh100-sxm"}
    rows, tensor = (titan(model, dtype=d, **words) for d in ("fp8-rowwise", "fp8"))
    assert float(rows.step_s) > float(tensor.step_s)
    assert float(rows.peak_flops_per_s) == float(tensor.peak_flops_per_s)
    assert float(rows.memory_bytes_per_rank) == pytest.approx(float(tensor.memory_bytes_per_rank), rel=0.01)


def test_a_scale_a_row_is_no_way_to_serve():
    with pytest.raises(ValueError, match="recipe of training"):
        commtax.bill("llama-3.1-8b", HOST, dtype="fp8-rowwise")
    with pytest.raises(ValueError, match="no fp8 arithmetic"):
        commtax.train_bill("llama-3.1-8b", "8xa100-80-sxm", engine="torchtitan", dtype="fp8-rowwise")


def test_gathers_of_2021_leave_a_ninth_of_the_network():
    words = {"model": "llama-3.1-70b", "cluster": "16x8xa100-80-sxm", "dp": 128, "recompute": "full", "context": 2048}
    old, new = (commtax.train_bill(**words, engine=e) for e in ("deepspeed-2021", "deepspeed"))
    share = [next(float(x.total_s) for x in b.items if x.item.axis == "shard" and x.item.op == "all-gather") for b in (old, new)]
    assert 7 < share[0] / share[1] < 1 / 0.108


def row(**cells):
    usual = {"source": "torchtitan report", "model": "Llama-3.1-405B", "gpus": "512", "gpu_type": "H100-SXM", "tp": "8", "pp": "8"}
    usual |= {"dp": "8", "microbatch": "32", "global_batch": "256", "seq": "8192", "precision": "fp8", "recompute": "full"}
    return {**usual, "step_time_s": "40", "note": "", **cells}


def test_rows_say_how_torch_ran():
    plain, looped = training.question(row(interleave="1")), training.question(row(note="Interleaved1F1B AsyncTP"))
    assert (plain["batch"], plain["micro_batch"]) == (32, 4), "as many microbatches as stages"
    assert (looped["schedule"], looped["chunks"], looped["async_axes"]) == ("interleaved", 2, ("dp", "tp"))
    assert training.question(row(pp="1", precision="fp8-rowwise"))["dtype"] == "fp8-rowwise"
    sc21 = row(
        source="arXiv:2104.04473 Table 2", note="ZeRO-3; hardware TFLOP/s", gpu_type="A100-80GB-SXM", tp="1", pp="1", dp="512"
    )
    assert training.question({**sc21, "precision": "bf16"})["engine"] == "deepspeed-2021"
