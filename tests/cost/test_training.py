"""Training: what is sent and held, FSDP and ZeRO, parts that recipes switch, interleaved pipelines of any number of layers."""

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax import catalog
from commtax.cost.adapters import trained_params
from commtax.cost.inventory import num_params
from commtax.cost.kernels import power_clock
from commtax.cost.memory import activations, microbatches_in_flight, training_memory
from commtax.cost.schedules import SCHEDULES, fill_factor, idle_s, kept_layers, most_chunks, virtual_layers
from commtax.cost.training import training_items
from commtax.launch.megatron_command import layout_of, layout_text, stages
from commtax.launch.read_command import parse
from commtax.launch.writing import launch_command
from commtax.question import Question
from commtax.sim.pipeline import Durations, run
from commtax.spec import Plan, TrainStep
from commtax.statement import Refusal
from commtax.verbs.fitting import fits
from commtax_lab.published import training
from commtax_lab.published.rows import read
from commtax_lab.published.scoring.predicting import predict_training
from commtax_lab.published.tables import shipped_tables
from commtax_lab.published.training import row_of_page
from each import each
from paths import ROOT
from strategies import questions
from tables import tables

DATA = tables(__file__)
MEGATRON = catalog.engine("megatron")


def lines(*args, **kwargs):
    return {(x.item.what, x.item.op): x.item for x in commtax.traffic(*args, phase="train", **kwargs).lines}


def test_parallel_layers_by_hand():
    """GPT-3 shape, TP 8 x PP 8 x DP 2, 16 microbatches: 12 layers a stage, 2 all-reduces each way."""
    found = lines("gpt-3-175b", "16x8xa100-80-sxm", tp=8, pp=8, dp=2, batch=16, context=2048)
    payload = 2048 * 12288 * 2
    assert (found["layers forward", "all-reduce"].nbytes, found["layers forward", "all-reduce"].count) == (payload, 2 * 12 * 16)
    assert found["layers backward", "all-reduce"].count == 2 * 12 * 16
    assert found["activations on", "send-recv"].count == found["gradients back", "send-recv"].count == 16
    assert found["loss", "all-reduce"].nbytes == 2048 * 4
    # Six all-reduces a layer instead of four.
    plain = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=1)
    again = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=1, recompute="full")
    per_layer = [sum(i.count for (w, _), i in f.items() if w.startswith("layers")) / 32 for f in (plain, again)]
    assert per_layer == [4, 6]
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=1, sequence_parallel=True)
    assert found["layers forward", "all-gather"].count == 2 * 32
    assert found["layers backward", "all-gather"].count == found["inputs again", "all-gather"].count == 2 * 32
    assert found["layers backward", "reduce-scatter"].count == 2 * 32
    assert ("layers forward", "all-reduce") not in found


def exposures(**how):
    """Of each tensor-parallel collective inside layers, the share that hides."""
    priced = commtax.train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, batch=4, **how)
    inside = [x for x in priced.items if x.kind == "comm" and x.item.axis == "tp" and x.item.part == "layers"]
    return {(x.item.what, x.item.op): float(x.hidden_s / x.total_s) for x in inside}


def test_backward_of_columns_hides_its_own_collectives_and_no_others():
    """Megatron's LinearWithGradAccumulationAndAsyncCommunication: windows are long here, so half of each hides (the engine's
    share); forward and the gradients of rows' outputs have nothing to run beside."""
    whole, split = exposures(), exposures(sequence_parallel=True)
    assert whole == {("layers forward", "all-reduce"): 0.0, ("layers backward", "all-reduce"): 0.5}
    beside = {("inputs again", "all-gather"), ("layers backward", "reduce-scatter")}
    assert split == {
        name: 0.5 if name in beside else 0.0
        for name in [
            *beside,
            ("layers forward", "all-gather"),
            ("layers forward", "reduce-scatter"),
            ("layers backward", "all-gather"),
        ]
    }
    assert set(exposures(async_axes=()).values()) == {0.0}
    assert set(exposures(lora_rank=8).values()) == {0.0}, "frozen products have no weight gradients"
    assert set(exposures(engine="megatron-2021@2.5").values()) == {0.0}


def test_deferred_weight_gradients_hide_nothing_and_gradients_are_sent_once():
    """Zero-bubble schedules run them where the pipeline would idle."""
    hidden = [exposures(pp=2, schedule=schedule)["layers backward", "all-reduce"] for schedule in ("1f1b", "zb-h1")]
    assert hidden == [0.5, 0.0]
    # 8B over 64 ranks: fp32 all-reduce; with ZeRO 1 reduce-scatter and a bf16 all-gather.
    padded = num_params(catalog.model("llama-3.1-8b"))  # 128,256 is a multiple of 128 already
    plain = lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=1)
    assert plain["gradients", "all-reduce"].nbytes == 4 * padded
    sharded = lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=4, zero=1)
    assert (sharded["gradients", "reduce-scatter"].nbytes, sharded["gradients", "reduce-scatter"].count) == (4 * padded, 1)
    assert sharded["parameters", "all-gather"].nbytes == 2 * padded
    assert lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=4, zero=2)["gradients", "reduce-scatter"].count == 4


def test_gradients_of_a_pipeline_are_whole_and_layers_gathered_twice():
    """Stages of FSDP leave gradients unreduced until the last microbatch, and parameters gathered."""
    words = {"engine": "torchtitan", "dp": 4, "pp": 2, "batch": 8}
    for zero in (2, 3):
        found = lines("llama-3.1-8b", "8xh100-sxm", zero=zero, **words)
        assert {i.count for (what, op), i in found.items() if "gradients" in what and op == "reduce-scatter" and i.count} <= {1, 16}
    held = [commtax.train_bill("llama-3.1-8b", "8xh100-sxm", zero=z, **words).memory.gradients for z in (1, 2, 3)]
    assert held[0] == held[1] == held[2]
    found = lines("llama-3.1-8b", "8x8xh100-sxm", engine="fsdp", dp=64, batch=2, zero=3)
    layer, table, head = (found[f"{part} parameters", "all-gather"] for part in ("layer", "embedding", "head"))
    assert (layer.count, table.count, head.count) == (2 * 32 * 2, 4, 2), "the head stays gathered"
    assert layer.nbytes * 32 + table.nbytes + head.nbytes == 2 * num_params(catalog.model("llama-3.1-8b"))
    piped = lines("llama-3.1-8b", "8x8xh100-sxm", engine="torchtitan", pp=2, dp=32, batch=2)
    assert piped["layer parameters", "all-gather"].count == 16, "with a pipeline layers stay gathered all step"
    assert found["layer gradients", "reduce-scatter"].count == 32 * 2
    assert found["layer gradients", "reduce-scatter"].nbytes == 2 * layer.nbytes, "gradients travel in fp32"


def test_experts_have_their_own_replicas_and_gather_every_copy_under_tp():
    """Mixtral, EP 8 inside DP 16: an expert is held twice, the rest sixteen times."""
    found = lines("mixtral-8x7b", "2x8xh100-sxm", dp=16, ep=8, batch=1)
    assert (found["expert gradients", "all-reduce"].ranks, found["gradients", "all-reduce"].ranks) == (2, 16)
    dispatch = found["expert dispatch", "all-to-all"]
    assert (dispatch.nbytes, dispatch.count) == (1024 * 2 * 4096 * 2, 2 * 32)
    # Mixtral, TP 2 x EP 4: after the dispatch, top_k copies of each token are gathered over tp; nothing twice.
    found = lines("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=4, batch=1, sequence_parallel=True)
    payload = 1024 * 4096 * 2
    assert found["expert tokens", "all-gather"].nbytes == 2 * payload
    assert found["expert tokens", "all-gather"].count == found["expert tokens", "reduce-scatter"].count == 2 * 32
    assert found["layers forward", "all-gather"].count == 32
    with pytest.raises(ValueError, match="needs sequence_parallel"):
        lines("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=4, batch=1)


def test_tied_embeddings_context_parallelism_and_arrays_by_hand():
    found = lines("llama-3.2-1b", "2xh100-sxm", pp=2, batch=2)
    assert found["tied embedding gradients", "all-reduce"].nbytes == 128256 * 2048 * 4
    assert "tied embedding gradients" not in {k[0] for k in lines("llama-3.1-8b", "2xh100-sxm", pp=2, batch=2)}
    many = commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", dp=2, batch=np.array([2, 4]))
    one = commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", dp=2, batch=4)
    for a, b in zip(many.items, one.items, strict=True):
        assert np.broadcast_to(a.count, 2)[1] == b.count
    found = lines("llama-3.1-8b", "8xh100-sxm", cp=4, batch=1, context=8192)
    chunk = 8192 / 4 * 2 * 8 * 128 * 2
    kv = found["keys and values", "send-recv"]
    assert (kv.nbytes, kv.count, found["their gradients", "send-recv"].count) == (chunk, 32 * 3 * 2, 32 * 3)
    gathered = lines("llama-3.1-8b", "8xh100-sxm", engine="fsdp", cp=4, batch=1, context=8192)
    assert gathered["keys and values", "all-gather"].nbytes == 4 * chunk


@given(questions(engines=("megatron", "fsdp")))
def test_one_data_parallel_rank_sends_no_gradients(question):
    model, _, plan, engine = question
    alone = Plan(tp=plan.tp, pp=plan.pp, order=plan.order)
    sent = [i for i in training_items(model, alone, TrainStep(1, 256), engine) if i.is_sent]
    assert not any(i.axis in ("dp", "edp") for i in sent)
    assert not [i for i in training_items(model, Plan(), TrainStep(1, 256), engine) if i.is_sent]


@given(questions(engines=("megatron",)), st.integers(1, 4))
def test_doubling_the_microbatch_doubles_activation_bytes(question, micro):
    model, _, plan, engine = question
    one, two = (training_items(model, plan, TrainStep(m, 512), engine) for m in (micro, 2 * micro))
    for a, b in zip(one, two, strict=True):
        weights = a.axis in ("dp", "edp") or a.what in ("tied embedding gradients", "norm gradients")
        assert b.nbytes == (a.nbytes if weights else 2 * a.nbytes)


@given(questions(engines=("megatron", "fsdp")), st.sampled_from([0, 1]))
def test_scalar_equals_array(question, zero):
    model, _, plan, engine = question
    pps = np.array([1, int(plan.pp), 2])
    arrays = training_items(model, Plan(tp=plan.tp, pp=pps, dp=plan.dp, zero=zero, order=plan.order), TrainStep(1, 512), engine)
    for i, pp in enumerate(pps):
        alone = Plan(tp=plan.tp, pp=int(pp), dp=plan.dp, zero=zero, order=plan.order)
        scalar = training_items(model, alone, TrainStep(1, 512), engine)
        for many, one in zip(arrays, scalar, strict=True):
            assert np.broadcast_to(many.nbytes, 3)[i] == pytest.approx(one.nbytes)
            assert np.broadcast_to(many.count, 3)[i] == one.count
        held = training_memory(model, alone, TrainStep(1, 512), engine).total
        many = Plan(tp=plan.tp, pp=pps, dp=plan.dp, zero=zero, order=plan.order)
        whole = training_memory(model, many, TrainStep(1, 512), engine).total
        assert np.broadcast_to(whole, 3)[i] == pytest.approx(held)


def test_activations_of_the_gpt_shape_in_flight():
    """s b h (8 + 24/t) without, s b h 32/t with sequence parallelism (Korthikanti et al. 2022 without dropout)."""
    model, step = catalog.model("gpt-3-175b"), TrainStep(1, 2048)
    sbh = 2048 * 12288
    now, old, kept = (catalog.engine(name) for name in ("megatron", "megatron-2021", "torchtitan"))
    assert activations(model, Plan(tp=8), step, now) == pytest.approx(96 * sbh * (8 + 24 / 8))
    assert activations(model, Plan(tp=8, sequence_parallel=True), step, now) == pytest.approx(96 * sbh * 32 / 8)
    assert activations(model, Plan(tp=8, recompute="full"), step, now) == pytest.approx(96 * sbh * 2)
    scores = 5 * 96 * 2048 / 12288 / 8  # 5 a s/(h t): the score matrix where attention is not fused
    assert activations(model, Plan(tp=8), step, old) == pytest.approx(96 * sbh * (8 + 24 / 8 + scores))
    assert activations(model, Plan(tp=8, recompute="selective"), step, old) == pytest.approx(96 * sbh * (8 + 24 / 8))
    split = Plan(tp=8, sequence_parallel=True)
    assert activations(model, split, step, kept) == pytest.approx(96 * sbh * (4 + 28 / 8)), "inputs stay gathered"
    model = catalog.model("llama-3.1-8b")
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=64)) == 8
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=4)) == 4
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=64, schedule="gpipe")) == 64
    plan = Plan(pp=8, microbatches=64, schedule="interleaved", chunks=2)
    assert microbatches_in_flight(model, plan) == pytest.approx(8 * (1 + 7 / 16))
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=8, schedule="interleaved", chunks=2)) == 8, "there are no more"


@pytest.mark.parametrize("dp", [2, 8, 64])
def test_zero_stages_divide(dp):
    """16 or 18 bytes a parameter: 2 + 4 + 12, of which ZeRO divides the last, the last two, or all."""
    model, n = catalog.model("llama-3.1-8b"), num_params(catalog.model("llama-3.1-8b"))
    held = [training_memory(model, Plan(dp=dp, zero=z, grads_dtype="fp32"), TrainStep(1, 128), MEGATRON) for z in range(4)]
    assert (held[0].optimizer, held[1].optimizer, held[1].gradients) == (12 * n, pytest.approx(12 * n / dp), 4 * n)
    assert held[2].gradients == pytest.approx(4 * n / dp)
    layer = (n - 2 * 128256 * 4096 - 4096) / 32
    assert held[3].parameters == pytest.approx(2 * n / dp + 2 * 2 * layer)
    assert held[0].total > held[1].total > held[2].total
    fsdp = training_memory(model, Plan(dp=dp, zero=3, grads_dtype="fp32"), TrainStep(1, 128), catalog.engine("fsdp"))
    assert fsdp.parameters - 4 * layer + fsdp.gradients + fsdp.optimizer == pytest.approx(16 * n / dp), "the shard is the master"


@given(
    questions(engines=("fsdp", "torchtitan", "llm-foundry", "llama3", "deepspeed", "megatron"), max_dp=64),
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1), ("zb-v", 1)]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_a_higher_zero_stage_never_needs_more_memory(question, schedule, recompute):
    model, _, plan, engine = question
    kinds = {"schedule": schedule[0], "chunks": schedule[1], "recompute": recompute, "microbatches": 2 * plan.pp}
    stages = range(4 if plan.pp == 1 or engine.trains.master_is_parameter else 2)  # others refuse higher stages with a pipeline
    plans = [replace(plan, zero=z, grads_dtype=engine.trains.grads_dtype, **kinds) for z in stages]
    held = [training_memory(model, p, TrainStep(1, 2048), engine).total for p in plans]
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(held))


@each(("change", "says"), DATA["bad_questions"])
def test_bad_questions(change, says):
    with pytest.raises(ValueError, match=says):
        commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", **change)


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


def test_recomputation_gathers_again_and_repeated_keys_travel_for_every_query_head():
    none, selective, full = (titan(tp=8, recompute=r) for r in ("none", "selective", "full"))
    layers = 32 * none.question.plan.microbatches
    assert [sent(b, "all-gather") / layers for b in (none, selective, full)] == [4, 6, 6]
    assert [sent(b, "reduce-scatter") / layers for b in (none, selective, full)] == [4, 4, 5], "its end is not summed again"
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


def test_a_scale_a_row_is_no_way_to_serve_and_gathers_of_2021_are_slow():
    with pytest.raises(ValueError, match="recipe of training"):
        commtax.bill("llama-3.1-8b", HOST, dtype="fp8-rowwise")
    with pytest.raises(ValueError, match="no fp8 arithmetic"):
        commtax.train_bill("llama-3.1-8b", "8xa100-80-sxm", engine="torchtitan", dtype="fp8-rowwise")
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


PAGE = DATA["page"]


def trained(rank=0, model="llama-3.1-8b", **options):
    plan = {"dp": 8, "batch": 4, "context": 4096, "zero": 1, **options}
    return commtax.train_bill(model, "8xh100-sxm", engine="megatron", lora_rank=rank, **plan)


@given(rank=st.sampled_from([1, 8, 64, 256]), zero=st.sampled_from([0, 1]), tp=st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=8)
def test_adapters_alone_need_no_more_time_gradients_or_state_than_the_whole_model(rank, zero, tp):
    alone, whole = (trained(r, zero=zero, tp=tp, dp=8 // tp) for r in (rank, 0))
    assert alone.step_s < whole.step_s
    assert alone.memory.gradients < whole.memory.gradients
    assert alone.memory.optimizer < whole.memory.optimizer
    assert alone.memory.parameters >= whole.memory.parameters
    assert alone.model_flops("causal") < whole.model_flops("causal")


def test_adapters_alone_are_trained():
    """Llama 3.1 8B: every layer has q and o (4096 + 4096), k and v (4096 + 1024), gate, up and down (4096 + 14336)."""
    each = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    model, engine = catalog.model("llama-3.1-8b"), catalog.engine("megatron")
    assert sum(trained_params(model, Plan(lora_rank=16), engine).values()) == 16 * 32 * each
    sent = [x for x in trained(16, zero=0).lines if x.item.axis == "dp" and x.item.is_sent]
    assert sum(x.item.nbytes * x.item.count for x in sent) == pytest.approx(16 * 32 * each * 4)
    lines = [x for x in trained(16).lines if x.item.stage == "weight-gradient" and x.total_s > 0]
    assert {x.item.part for x in lines} == {"adapters"}
    with pytest.raises(Refusal, match="one set of adapters"):
        trained(16, max_loras=2)


def test_a_page_tells_what_its_table_leaves_out_and_lora_is_priced_unfitted():
    row = training.whole_rows([PAGE])[0]
    assert (row["model"], training.lora_rank_of(row)) == ("LLAMA3_70B", 16)
    asked = training.row_questions([PAGE])[0]
    run = asked.question
    assert (run["engine"], asked.entries[0].measured) == ("megatron-bridge@26.04", pytest.approx(32 * 4096 / (8 * 7481)))
    assert float(commtax.train_bill(**run).step_s) == pytest.approx(asked.entries[0].measured, rel=0.2)
    assert row_of_page({"model": "x", "section": ""}) == {"model": "x", "section": ""}


@pytest.mark.parametrize("name", ["DeepSeekV3 (first 8 layers)", "DeepSeek-V3, 8-layer proxy", "first 8 layers of DeepSeekV3"])
def test_first_layers_of_a_model(name):
    cut, whole = training.model_of({"model": name, "seq": "4096"}), catalog.model("deepseek-v3")
    assert (cut.num_layers, cut.mtp) == (8, ())
    assert [cut.blocks[i] for i in cut.layers] == [whole.blocks[i] for i in whole.layers[:8]]


def test_modules_and_layers_by_their_names():
    with pytest.raises(Refusal, match="core_attn, layernorm"):
        trained(recompute="attention")
    with pytest.raises(Refusal, match="61 layers, not 99"):
        training.model_of({"model": "DeepSeekV3 (first 99 layers)", "seq": "4096"})


FUSED = {"dp": 8, "ep": 8, "batch": 64, "micro_batch": 8, "context": 4096, "dtype": "mxfp8"}


def test_fused_experts_are_never_slower_and_all_rows_are_cast():
    asked = {"model": "qwen3-30b-a3b", "cluster": "2x4xgb300", **FUSED}
    new, old = (commtax.train_bill(engine=f"megatron-bridge@{v}", **asked) for v in ("26.06", "26.04"))
    assert new.step_s < old.step_s
    assert not [x for x in new.lines if x.item.what == "launches of experts" and x.total_s > 0]
    # Two casts of 64 tokens' copies beside each other: as many bytes as rows times columns, however many experts share them.
    bill = commtax.train_bill("qwen3-30b-a3b", "2x4xgb300", engine="megatron-bridge@26.04", **FUSED)
    cast = next(x for x in bill.lines if x.item.what == "experts gate and up cast")
    copies = 8 * 4096 * 8
    assert cast.item.nbytes == pytest.approx(copies * 2048 * 4)


MIXTURE = {"dp": 8, "ep": 8, "batch": 4, "context": 4096, "zero": 1}


@given(modules=st.lists(st.sampled_from(["core_attn", "layernorm", "moe", "moe_act"]), unique=True, min_size=1))
@settings(deadline=None, max_examples=6)
def test_modules_that_are_recomputed_take_time_and_free_memory(modules):
    none, some = (
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", engine="megatron", recompute=kind, **MIXTURE)
        for kind in ("none", ",".join(modules))
    )
    assert some.step_s >= none.step_s
    assert some.memory.activations <= none.memory.activations


@pytest.mark.parametrize("dp", [128, 64])
def test_llama_405b_fits_as_it_was_trained(dp):
    """Table 4 of arXiv:2407.21783, without recomputation on 80 GB, with ZeRO 1 as well as 2."""
    plan = {"tp": 8, "pp": 16, "dp": dp, "batch": 2048 // dp, "context": 8192, "schedule": "interleaved", "chunks": 8, "zero": 1}
    assert commtax.train_fit("llama-3.1-405b", f"{dp * 16}x8xh100-sxm", engine="llama3", **plan).fits


META = {"tp": 8, "pp": 16, "dp": 128, "batch": 16, "context": 8192, "sequence_parallel": True}
in_reach = st.tuples(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8))
shapes = in_reach.filter(lambda s: s[2] <= max(1, most_chunks(s[0], s[1])))


def simulated(layers, pp, chunks, microbatches):
    factors = [float(n) for chunk in virtual_layers(layers, pp, chunks) for n in chunk]
    return run(SCHEDULES["interleaved"], pp, microbatches, Durations(1.0, 1.0, 1.0, stage_factors=factors), chunks)


@given(shapes)
def test_a_layout_has_all_layers_as_even_as_can_be(shape):
    layers, pp, chunks = shape
    layout = virtual_layers(layers, pp, chunks)
    sizes = [n for chunk in layout for n in chunk]
    ranks = [sum(column) for column in zip(*layout, strict=True)]
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert max(ranks) - min(ranks) <= 1
    assert sum(map(max, layout)) == max(ranks) == math.ceil(layers / pp), "no rank waits for another's larger chunk"
    assert chunks == 1 or pp == 1 or all(sizes[1:-1])
    if layers % pp:
        assert ranks[-1] == sizes[-1] * chunks or ranks[-1] < max(ranks), "the head's rank is not the fullest"


@given(shapes, st.integers(1, 6))
def test_as_many_activations_are_kept_as_the_schedule_has_in_flight(shape, rounds):
    layers, pp, chunks = shape
    assume(chunks > 1 and pp > 1)
    layout, order = virtual_layers(layers, pp, chunks), SCHEDULES["interleaved"].order(pp, rounds * pp, chunks)
    most = 0
    for rank, ops in enumerate(order.ranks):
        held = 0
        for kind, _, chunk in ops:
            held += layout[chunk][rank] * (1 if kind == "F" else -1)
            most = max(most, held)
    assert kept_layers(layers, pp, chunks, rounds * pp) == most


@each("layers", [126, 94, 61, 80])
@each("pp", [4, 8, 16])
@each("chunks", [2, 3, 4])
@each("rounds", [1, 4])
def test_the_closed_form_agrees_with_the_run_schedule(layers, pp, chunks, rounds):
    m, most = rounds * pp, math.ceil(layers / pp)
    formula = 3 * most * m + float(idle_s("interleaved", pp, chunks, most, most, most) * fill_factor(layers, pp, chunks))
    span = simulated(layers, pp, chunks, m).span_s
    assert span == pytest.approx(formula, rel=0.1)
    if layers % (pp * chunks) == 0:
        assert span == pytest.approx(formula)


@given(shapes)
def test_a_layout_reads_back(shape):
    layers, pp, chunks = shape
    assume(pp * chunks > 1)
    layout = virtual_layers(layers, pp, chunks)
    assert layout_of(layout_text(layout), pp) == layout


def test_layouts_as_megatron_writes_them():
    assert stages("Et*3|(tt|)*29,m|L") == ["Ettt", *["tt"] * 29, "m", "L"]
    assert layout_of("Et*3|(tt|)*29,m|L", 16)[0][:2] == (3, 2)
    for wrong, says in (("Ex|L", "not 'x'"), ("t*999999999|L", "more than"), ("E|t|L", "pp=2 does not divide")):
        with pytest.raises(ValueError, match=says.replace("|", r"\|")):
            layout_of(wrong, 2)


@given(
    st.sampled_from(["llama-3.1-405b", "qwen3-235b-a22b", "deepseek-v3", "llama-3.1-8b"]),
    st.sampled_from([2, 3, 4, 8, 16]),
    st.integers(1, 8),
)
def test_any_number_of_layers_is_launched_and_read_back_as_the_plan(key, pp, chunks):
    model = catalog.model(key)
    assume(chunks <= most_chunks(model.num_layers, pp))
    kinds = {"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {}
    plan = Plan(tp=8, pp=pp, zero=1, microbatches=pp, sequence_parallel=True, **kinds)
    asked = Question(model, catalog.cluster("64x8xh100-sxm"), catalog.engine("megatron"), plan, context=4096)
    text = launch_command(asked, "megatron")
    uneven = model.num_layers % (pp * chunks) != 0
    assert ("--pipeline-model-parallel-layout" in text) == uneven
    assert not (uneven and "--num-virtual-stages" in text), "Megatron takes one of the two"
    found = parse(text)
    read = found.options.get("pp"), found.options.get("chunks") or 1, found.options.get("schedule") or "1f1b"
    assert read == (pp, chunks, plan.schedule)
    assert not found.notes
    assert not found.unread


@pytest.mark.parametrize(("words", "note"), DATA["another_split_of_layers_is_said"])
def test_another_split_of_layers_is_said(words, note):
    text = f"torchrun --nproc-per-node 8 --nnodes 16 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 126 {words}"
    found = parse(f"{text} --pipeline-model-parallel-size 16")
    assert found.options.get("pp") == 16
    assert not found.unread
    assert bool(found.notes) == bool(note)
    assert note in "".join(found.notes)


def test_llama_3_405b_as_it_was_trained():
    """Published: 41 % on 16,384 H100 and 43 % on 8,192, in 80 GB without recomputation (arXiv:2407.21783, table 4)."""
    kinds = {"engine": "llama3", "schedule": "interleaved", "chunks": 8}
    large = commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META, **kinds)
    small = commtax.train_bill("llama-3.1-405b", "1024x8xh100-sxm", **{**META, "dp": 64, "batch": 32}, **kinds)
    assert fits(large)
    assert (large.mfu, small.mfu) == (pytest.approx(0.41, abs=0.03), pytest.approx(0.43, abs=0.03))
    plain = commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META)
    assert large.bubble_s < plain.bubble_s / 7


@pytest.mark.parametrize("key", ["llama-3.1-405b", "qwen3-235b-a22b", "deepseek-v3"])
def test_every_verb_takes_uneven_chunks(key):
    words = {"tp": 8, "pp": 8, "dp": 4, "batch": 8, "schedule": "interleaved", "chunks": 2, "sequence_parallel": True}
    priced = commtax.train_bill(key, "32x8xh100-sxm", **words)
    assert any("uneven pipeline" in note for note in priced.notes)
    assert commtax.train_fit(key, "32x8xh100-sxm", **words).memory.total == priced.memory.total


def test_chunks_are_refused_beyond_the_most_and_searched_below():
    with pytest.raises(ValueError, match="chunks=9: 126 layers on pp=16 make at most 8 chunks per rank"):
        commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META, schedule="interleaved", chunks=9)
    words = "bill llama-3.1-405b --cluster 2048x8xh100-sxm --phase train -tp 8 -pp 16 -dp 128 --global-batch 2048 --seq 8192"
    assert refusal(run_here(*words.split(), "--schedule", "interleaved", "--chunks", "9"))
    found = commtax.plan_training("llama-3.1-405b", "32x8xh100-sxm", global_batch=64, seq=8192)
    kinds = {found.kinds[int(i)].plan.chunks for i in found.plans.kind}
    assert kinds > {1}
    priced = commtax.train_bill("llama-3.1-8b", "8xh100-sxm", schedule="interleaved")
    assert any("no pipeline to interleave" in str(note) for note in priced.notes)
