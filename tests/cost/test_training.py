"""Training: what is sent and what is held, by hand and by law."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.inventory import num_params
from commtax.cost.memory import activations, microbatches_in_flight, training_memory
from commtax.cost.training import training_items
from commtax.spec import Plan, TrainStep
from each import each
from strategies import questions
from tables import tables

DATA = tables(__file__)

MEGATRON = catalog.engine("megatron")


def lines(*args, **kwargs):
    return {(x.item.what, x.item.op): x.item for x in commtax.traffic(*args, phase="train", **kwargs).lines}


def test_tensor_parallel_by_hand():
    """GPT-3 shape, TP 8 x PP 8 x DP 2, 16 microbatches: 12 layers a stage, 2 all-reduces each way."""
    found = lines("gpt-3-175b", "16x8xa100-80-sxm", tp=8, pp=8, dp=2, batch=16, context=2048)
    payload = 2048 * 12288 * 2
    assert (found["layers forward", "all-reduce"].nbytes, found["layers forward", "all-reduce"].count) == (payload, 2 * 12 * 16)
    assert found["layers backward", "all-reduce"].count == 2 * 12 * 16
    assert found["activations on", "send-recv"].count == found["gradients back", "send-recv"].count == 16
    assert found["loss", "all-reduce"].nbytes == 2048 * 4


def test_full_recompute_reissues_the_forward():
    """Six all-reduces a layer instead of four."""
    plain = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=1)
    again = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=1, recompute="full")
    per_layer = [sum(i.count for (w, _), i in f.items() if w.startswith("layers")) / 32 for f in (plain, again)]
    assert per_layer == [4, 6]


def test_sequence_parallel_gathers_again_in_backward():
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


def test_deferred_weight_gradients_hide_nothing():
    """Zero-bubble schedules run them where the pipeline would idle."""
    hidden = [exposures(pp=2, schedule=schedule)["layers backward", "all-reduce"] for schedule in ("1f1b", "zb-h1")]
    assert hidden == [0.5, 0.0]


def test_gradients():
    """8B over 64 ranks: fp32 all-reduce; with ZeRO 1 reduce-scatter and a bf16 all-gather."""
    padded = num_params(catalog.model("llama-3.1-8b"))  # 128,256 is a multiple of 128 already
    plain = lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=1)
    assert plain["gradients", "all-reduce"].nbytes == 4 * padded
    sharded = lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=4, zero=1)
    assert (sharded["gradients", "reduce-scatter"].nbytes, sharded["gradients", "reduce-scatter"].count) == (4 * padded, 1)
    assert sharded["parameters", "all-gather"].nbytes == 2 * padded
    assert lines("llama-3.1-8b", "8x8xh100-sxm", dp=64, batch=4, zero=2)["gradients", "reduce-scatter"].count == 4


def test_fsdp_gathers_every_layer_twice():
    found = lines("llama-3.1-8b", "8x8xh100-sxm", engine="fsdp", dp=64, batch=2, zero=3)
    layer, table, head = (found[f"{part} parameters", "all-gather"] for part in ("layer", "embedding", "head"))
    assert (layer.count, table.count, head.count) == (2 * 32 * 2, 4, 2), "the head stays gathered"
    assert layer.nbytes * 32 + table.nbytes + head.nbytes == 2 * num_params(catalog.model("llama-3.1-8b"))
    piped = lines("llama-3.1-8b", "8x8xh100-sxm", engine="torchtitan", pp=2, dp=32, batch=2)
    assert piped["layer parameters", "all-gather"].count == 16, "with a pipeline layers stay gathered all step"
    assert found["layer gradients", "reduce-scatter"].count == 32 * 2
    assert found["layer gradients", "reduce-scatter"].nbytes == 2 * layer.nbytes, "gradients travel in fp32"


def test_experts_have_their_own_replicas():
    """Mixtral, EP 8 inside DP 16: an expert is held twice, the rest sixteen times."""
    found = lines("mixtral-8x7b", "2x8xh100-sxm", dp=16, ep=8, batch=1)
    assert found["expert gradients", "all-reduce"].ranks == 2
    assert found["gradients", "all-reduce"].ranks == 16
    dispatch = found["expert dispatch", "all-to-all"]
    assert (dispatch.nbytes, dispatch.count) == (1024 * 2 * 4096 * 2, 2 * 32)


def test_experts_gather_every_copy_under_tp():
    """Mixtral, TP 2 x EP 4: after the dispatch, top_k copies of each token are gathered over tp; nothing twice."""
    found = lines("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=4, batch=1, sequence_parallel=True)
    payload = 1024 * 4096 * 2
    assert found["expert tokens", "all-gather"].nbytes == 2 * payload
    assert found["expert tokens", "all-gather"].count == found["expert tokens", "reduce-scatter"].count == 2 * 32
    assert found["layers forward", "all-gather"].count == 32
    with pytest.raises(ValueError, match="needs sequence_parallel"):
        lines("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=4, batch=1)


def test_tied_embeddings_are_summed_between_first_and_last_stage():
    found = lines("llama-3.2-1b", "2xh100-sxm", pp=2, batch=2)
    assert found["tied embedding gradients", "all-reduce"].nbytes == 128256 * 2048 * 4
    assert "tied embedding gradients" not in {k[0] for k in lines("llama-3.1-8b", "2xh100-sxm", pp=2, batch=2)}


def test_arrays_of_batches():
    many = commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", dp=2, batch=np.array([2, 4]))
    one = commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", dp=2, batch=4)
    for a, b in zip(many.items, one.items, strict=True):
        assert np.broadcast_to(a.count, 2)[1] == b.count


def test_context_parallel_ring():
    found = lines("llama-3.1-8b", "8xh100-sxm", cp=4, batch=1, context=8192)
    chunk = 8192 / 4 * 2 * 8 * 128 * 2
    kv = found["keys and values", "send-recv"]
    assert (kv.nbytes, kv.count) == (chunk, 32 * 3 * 2)
    assert found["their gradients", "send-recv"].count == 32 * 3
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
        whole = training_memory(
            model, Plan(tp=plan.tp, pp=pps, dp=plan.dp, zero=zero, order=plan.order), TrainStep(1, 512), engine
        ).total
        assert np.broadcast_to(whole, 3)[i] == pytest.approx(held)


def test_activations_of_the_gpt_shape():
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


def test_in_flight_microbatches():
    model = catalog.model("llama-3.1-8b")
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=64)) == 8
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=4)) == 4
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=64, schedule="gpipe")) == 64
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=64, schedule="interleaved", chunks=2)) == pytest.approx(
        8 * (1 + 7 / 16)
    )
    assert microbatches_in_flight(model, Plan(pp=8, microbatches=8, schedule="interleaved", chunks=2)) == 8, "there are no more"


@pytest.mark.parametrize("dp", [2, 8, 64])
def test_zero_stages_divide(dp):
    """16 or 18 bytes a parameter: 2 + 4 + 12, of which ZeRO divides the last, the last two, or all."""
    model, n = catalog.model("llama-3.1-8b"), num_params(catalog.model("llama-3.1-8b"))
    held = [training_memory(model, Plan(dp=dp, zero=z, grads_dtype="fp32"), TrainStep(1, 128), MEGATRON) for z in range(4)]
    assert held[0].optimizer == 12 * n
    assert held[1].optimizer == pytest.approx(12 * n / dp)
    assert held[1].gradients == 4 * n
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


def test_gradients_of_a_pipeline_add_up_whole_and_are_summed_once():
    """Stages of FSDP leave gradients unreduced until the last microbatch, and parameters gathered."""
    words = {"engine": "torchtitan", "dp": 4, "pp": 2, "batch": 8}
    for zero in (2, 3):
        found = lines("llama-3.1-8b", "8xh100-sxm", zero=zero, **words)
        assert {i.count for (what, op), i in found.items() if "gradients" in what and op == "reduce-scatter" and i.count} <= {1, 16}
    held = [commtax.train_bill("llama-3.1-8b", "8xh100-sxm", zero=z, **words).memory.gradients for z in (1, 2, 3)]
    assert held[0] == held[1] == held[2]


@each(("change", "says"), DATA["bad_questions"])
def test_bad_questions(change, says):
    with pytest.raises(ValueError, match=says):
        commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", **change)
