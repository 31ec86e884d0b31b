"""What is sent: exact counts and bytes, by hand and by law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.placement import span, used_of_domain
from commtax.cost.traffic import expected_destinations, inference, padded_rows
from commtax.question import workload
from commtax.spec import Experts, Plan, Workload
from each import each
from strategies import SERVING, questions


def lines(*args, **kwargs):
    return {(x.item.what, x.item.op): x for x in commtax.traffic(*args, **kwargs).lines}


def test_llama_decode_by_hand():
    """8B, TP 8, one token: 64 + 1 all-reduces of 4096 x 2 bytes, and the logits of 128,256 x 2."""
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, engine="torch")
    assert {k: (v.item.nbytes, v.item.count, v.item.ranks) for k, v in found.items()} == {
        ("embedding", "all-reduce"): (8192, 1, 8),
        ("attention output", "all-reduce"): (8192, 32, 8),
        ("feed-forward output", "all-reduce"): (8192, 32, 8),
        ("logits", "all-gather"): (128256 * 2, 1, 8),
    }


@each("engine", SERVING)
@each("key", ["llama-3.1-8b", "qwen3-32b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_two_all_reduces_a_layer(engine, key):
    found = lines(key, "8xh100-sxm", tp=8, engine=engine, phase="prefill", batch=2, context=100)
    model = catalog.model(key)
    each = [v.item for (what, op), v in found.items() if op == "all-reduce" and what.endswith("output")]
    assert sum(i.count for i in each) == 2 * model.num_layers
    assert found["logits", "all-gather"].item.nbytes == pytest.approx(2 * model.vocab * 2, rel=0.002), "one row a sampled prompt"


@given(questions())
def test_one_rank_sends_nothing(question):
    model, _, _, engine = question
    assert not any(i.is_sent for i in inference(model, Plan(), Workload(decode_seqs=3), engine))


@given(questions(), st.integers(1, 300), st.integers(1, 5000))
def test_doubling_the_batch_doubles_the_bytes(question, batch, context):
    """Without graphs nothing is padded (up to the split of MoE tokens over tp, which rounds up)."""
    model, _, plan, engine = question
    batch = batch * int(plan.tp)
    for phase in ("decode", "prefill"):
        one = inference(model, plan, workload(phase, batch, context), engine, eager=True)
        two = inference(model, plan, workload(phase, 2 * batch, context), engine, eager=True)
        assert [i.count for i in one] == [i.count for i in two]
        assert all(2 * a.nbytes == b.nbytes for a, b in zip(one, two, strict=True))


@given(questions(), st.integers(1, 600), st.sampled_from(["decode", "prefill", "mixed"]))
def test_scalar_equals_array(question, batch, phase):
    model, _, plan, engine = question
    batches = np.array([batch, 1, 2 * batch])
    tps = np.array([int(plan.tp)] * 3)
    arrays = inference(
        model, Plan(tp=tps, pp=plan.pp, dp=plan.dp, ep=plan.ep, order=plan.order), workload(phase, batches, 128), engine
    )
    for i, value in enumerate(batches):
        alone = Plan(tp=plan.tp, pp=plan.pp, dp=plan.dp, ep=plan.ep, order=plan.order)
        scalar = inference(model, alone, workload(phase, int(value), 128), engine)
        for many, one in zip(arrays, scalar, strict=True):
            assert np.broadcast_to(many.nbytes, 3)[i] == one.nbytes
            assert np.broadcast_to(many.count, 3)[i] == one.count


@each(("rows", "padded"), [(1, 1), (3, 4), (5, 8), (9, 16), (255, 256), (257, 272), (512, 512), (513, 513)])
def test_vllm_pads_to_its_captured_sizes(rows, padded):
    engine = catalog.engine("vllm")
    assert padded_rows(rows, Workload(decode_seqs=rows), engine) == padded
    assert padded_rows(rows, Workload(decode_seqs=rows), engine, eager=True) == rows
    assert padded_rows(rows, Workload(prefill_tokens=rows), engine) == padded, "piecewise graphs pad prompts too"
    assert padded_rows(rows, Workload(prefill_tokens=rows), catalog.engine("sglang")) == rows


def test_padding_is_sent_and_logits_are_not_padded():
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3)
    assert found["attention output", "all-reduce"].item.nbytes == 4 * 8192
    assert found["logits", "all-gather"].item.nbytes == 3 * 128256 * 2
    sglang = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3, engine="sglang")
    assert sglang["logits", "all-gather"].item.nbytes == 4 * 128256 * 2, "computed inside the graph"


def test_speculative_decoding_sends_k_plus_one_rows():
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=2, batch=4, speculative=3, engine="torch")
    assert found["attention output", "all-reduce"].item.nbytes == 16 * 8192
    assert found["logits", "all-gather"].item.nbytes == 16 * 128256 * 2


def test_pipeline_hands_over_hidden_and_residual():
    """vLLM sends both, 1/tp by each rank, and the receivers gather them."""
    found = lines("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=32)  # two microbatches of 16
    sent = found["stage hand-off", "send-recv"]
    assert (sent.item.nbytes, sent.item.count, sent.link) == (16 * 8192 * 2 / 8, 2, "ib-ndr")
    gathered = found["stage hand-off", "all-gather"]
    assert (gathered.item.nbytes, gathered.item.count, gathered.link) == (16 * 8192 * 2, 2, "nvlink4")
    torch = lines("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=32, engine="torch")
    assert torch["stage hand-off", "send-recv"].item.nbytes == 16 * 8192 * 2
    assert ("stage hand-off", "all-gather") not in torch


def test_expert_parallel_inside_a_replica_keeps_the_all_reduce():
    tp = lines("mixtral-8x7b", "8xh100-sxm", tp=8, batch=8)
    ep = lines("mixtral-8x7b", "8xh100-sxm", tp=8, ep=8, batch=8)
    assert tp.keys() == ep.keys()


def test_expert_parallel_over_replicas_gathers_all_tokens():
    """DeepSeek-V3, 8 replicas of TP 8, EP 64: 3 dense layers keep their all-reduce, 58 gather 8 x 128 tokens."""
    found = lines("deepseek-v3", "8x8xh200-sxm", tp=8, dp=8, ep=64, batch=128)
    assert found["feed-forward output", "all-reduce"].item.count == 3
    dispatch = found["expert dispatch", "all-gather"]
    assert (dispatch.item.nbytes, dispatch.item.count, dispatch.item.ranks) == (8 * 128 * (7168 + 7168 / 128 * 4), 58, 64)
    assert dispatch.crosses_hosts
    assert found["expert combine", "reduce-scatter"].item.nbytes == 8 * 128 * 7168 * 2, "fp8 out, bf16 back"
    assert found["expert output", "all-gather"].item.nbytes == 128 * 7168 * 2


def test_families_without_split_tokens_gather_over_the_replicas():
    """MiniMax-M2 in vLLM: the gather runs over dp, each tp rank on its own, and the tp all-reduce stays."""
    found = lines("minimax-m2.5", "8xh200-sxm", tp=4, dp=2, ep=8, batch=64)
    dispatch = found["expert dispatch", "all-gather"].item
    assert (dispatch.axis, dispatch.ranks, dispatch.nbytes) == ("dp", 2, 2 * 64 * (3072 + 3072 / 128 * 4))
    assert found["feed-forward output", "all-reduce"].item.count == 62
    assert ("expert output", "all-gather") not in found
    norm = found["query/key norm", "all-reduce"].item
    assert (norm.nbytes, norm.count) == (64 * 2 * 4, 62), "a norm over all heads must sum its squares over tp"


def test_vllm_cuts_experts_over_replicas_even_without_ep():
    found = lines("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, batch=8)
    assert found["expert dispatch", "all-gather"].item.ranks == 2
    assert found["feed-forward output", "all-reduce"].item.count == 94
    fit = commtax.fit("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, max_model_len=8192)
    assert next(w.nbytes for w in fit.weights if w.part == "experts") == pytest.approx(94 * 128 * 3 * 4096 * 1536 * 2 / 8)
    assert "expert dispatch" not in {k[0] for k in lines("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, engine="sglang")}


def test_deepep_sends_bf16_for_bf16_experts():
    found = lines("qwen3-30b-a3b", "8xh100-sxm", dp=8, ep=8, batch=64, ep_backend="deepep_low_latency")
    assert found["expert dispatch", "all-to-all"].item.nbytes == 64 * 8 * 2048 * 2


def test_groups_lie_where_rank_order_puts_them():
    """Megatron numbers experts' ranks tp, ep, edp; cp counts into the gradient group; odd groups straddle a host's edge."""
    spread = lines("mixtral-8x7b", "8x8xh100-sxm", phase="train", tp=8, dp=8, ep=8, batch=1, sequence_parallel=True)
    assert spread["expert dispatch", "all-to-all"].crosses_hosts
    assert lines("llama-3.1-8b", "2x8xh100-sxm", phase="train", cp=16, batch=1)["gradients", "all-reduce"].crosses_hosts
    wide = lines("deepseek-v3", "4x8xh200-sxm", tp=16, dp=2, ep=32)
    assert wide["expert dispatch", "all-gather"].crosses_hosts
    assert lines("phi-4", "2x8xh100-sxm", tp=5, dp=3)["attention output", "all-reduce"].crosses_hosts


@given(
    st.sampled_from([("gb200", 18, 4), ("h100-sxm", 1, 8)]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8, 16, 64]),
    st.integers(2, 40),
    st.sampled_from(["vllm", "megatron"]),
)
def test_groups_that_fit_into_a_domain_do_not_straddle_it_where_there_is_room(kind, tp, cp, ep, domains, engine):
    """A job takes of each domain a multiple of its widest group; every group that divides that one lies in one domain too."""
    (chip, hosts, gpus), known = kind, catalog.engine(engine)
    place = catalog.cluster(f"{domains * hosts}x{gpus}x{chip}")
    extents = {"tp": tp, "cp": tp * cp, "ep": (tp if known.sends.experts_keep_tp else 1) * ep}
    widest = max((n for n in extents.values() if n <= place.domain), default=1)
    each = place.domain // widest * widest // (tp * cp)
    if not each or (ep % tp and tp % ep):  # experts are spread over whole tensor-parallel groups, or parts of one
        return
    plan = Plan(tp=tp, cp=cp, dp=each * domains, ep=ep if ep <= tp * cp * each * domains else 1, order=known.order)
    if used_of_domain(plan, place, known) * domains < plan.num_gpus:
        return
    for axis in ("tp", "cp"):
        if extents[axis] <= widest and widest % extents[axis] == 0 and axis in known.order:
            assert not span(axis, plan, place, known).crosses


@each("ep", [16, 32, 64])
@each("gpus", [128, 256, 512, 1024])
def test_experts_stay_in_their_rack(ep, gpus):
    """256 GPUs of NVL72 racks are four times 64, not three and a half racks."""
    words = {"phase": "train", "pp": 2, "dp": gpus // 2, "ep": ep, "batch": 1, "engine": "megatron"}
    found = commtax.traffic("qwen3-30b-a3b", f"{gpus // 4}x4xgb200", **words)
    dispatch = [line for line in found.lines if line.item.what == "expert dispatch" and line.item.is_sent]
    assert dispatch
    assert not any(line.crosses_hosts for line in dispatch)
    assert any("laid on 64 of the 72 GPUs of each NVLink domain" in note for note in found.notes)


def test_whole_racks_are_filled_where_alignment_leaves_no_room():
    known = catalog.engine("vllm")
    full, roomy = (Plan(tp=16, dp=n, order=known.order) for n in (9, 8))
    racks = catalog.cluster("36x4xgb200")
    assert span("tp", full, racks, known).crosses
    assert not span("tp", roomy, racks, known).crosses


def test_deepep_sends_fp8_out_and_bf16_back():
    found = lines("deepseek-v3", "8x8xh200-sxm", tp=1, dp=64, ep=64, batch=32, ep_backend="deepep_low_latency")
    assert found["expert dispatch", "all-to-all"].item.nbytes == 32 * 8 * (7168 + 7168 / 128 * 4)
    assert found["expert combine", "all-to-all"].item.nbytes == 32 * 8 * 7168 * 2
    fewer = lines("deepseek-v3", "8x8xh200-sxm", tp=1, dp=64, ep=64, batch=32, ep_backend="deepep_high_throughput")
    assert fewer["expert dispatch", "all-to-all"].item.nbytes < found["expert dispatch", "all-to-all"].item.nbytes


@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(1, 2**32 - 1))
def test_expected_destinations_match_a_draw(top_k, ep, seed):
    experts = 16
    rng = np.random.default_rng(seed)
    draws = [len(set(rng.choice(experts, top_k, replace=False) // (experts // ep))) for _ in range(400)]
    assert float(expected_destinations(Experts(experts, top_k, 1), ep)) == pytest.approx(np.mean(draws), abs=0.35)


def test_links_follow_rank_order():
    """vLLM counts tp innermost, dp outermost; Megatron puts the pipeline outermost."""
    found = lines("llama-3.1-70b", "2x8xh100-sxm", tp=16)
    assert found["attention output", "all-reduce"].crosses_hosts
    inside = lines("llama-3.1-70b", "2x8xh100-sxm", tp=4, pp=2, dp=2)
    assert not inside["stage hand-off", "send-recv"].crosses_hosts
    megatron = lines("llama-3.1-70b", "2x8xh100-sxm", tp=4, pp=2, dp=2, phase="train", batch=4)
    assert megatron["activations on", "send-recv"].crosses_hosts
    assert not megatron["gradients", "all-reduce"].crosses_hosts
    rack = lines("llama-3.1-405b", "18x4xgb200", tp=64)
    assert not rack["attention output", "all-reduce"].crosses_hosts, "72 GPUs are one NVLink domain"


def test_sequence_parallel_splits_the_all_reduce():
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512, sequence_parallel=True)
    assert found["attention output", "reduce-scatter"].item.count == 32
    assert found["attention output", "all-gather"].item.count == 32
    whole = commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512)
    split = commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512, sequence_parallel=True)
    assert whole.sent_bytes_per_rank == pytest.approx(split.sent_bytes_per_rank)


@each(
    ("change", "says"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": float("nan")}, "batch=nan"),
        ({"batch": -3}, "batch=-3"),
        ({"batch": 1.5}, "batch=1.5"),
        ({"context": -1}, "context=-1"),
        ({"phase": "decoding"}, "phase 'decoding'"),
        ({"engine": "megatron"}, "no decode phase"),
        ({"tp": 3}, "nearest legal tp: 2 or 4"),
        ({"tp": 16}, "nearest legal tp: 8"),
        ({"tp": 0}, "at least 1"),
        ({"ep": 8}, "dense"),
        ({"cp": 2, "engine": "trtllm"}, "no context parallelism"),
        ({"ep_backend": "deepep_low_latency"}, "dense"),
        ({"phase": "prefill", "speculative": 3}, "speculative=3"),
        ({"tp": "8"}, "tp='8'"),
        ({"batch": [1, 2.5]}, "batch="),
        ({"batch": [1, "2"]}, "batch: an array of numbers"),
        ({"batch": {1, 2}}, "batch="),
        ({"engine": "vllm@banana"}, "not a version"),
        ({"kv_dtype": "int4"}, "KV cache"),
        ({"kv_dtype": "fp7"}, "kv_dtype 'fp7'"),
    ],
)
def test_bad_questions(change, says):
    with pytest.raises(ValueError, match=says):
        commtax.traffic("llama-3.1-8b", "8xh100-sxm", **change)


def test_a_group_over_several_hosts_takes_equal_parts_of_them():
    """8 ranks on hosts of 5 lie 4 and 4, as on hosts of 4: larger hosts are never worse."""
    known = catalog.engine("vllm")
    plan = Plan(tp=8, order=known.order)
    for gpus in (4, 5, 6, 7):
        where = span("tp", plan, catalog.cluster(f"2x{gpus}xh100-pcie"), known)
        assert (where.ranks_per_domain, where.domains) == (4, 2)


def test_equal_parts_are_whole_groups_and_no_more_hosts_than_needed():
    """5 pairs on hosts of 8 lie on two of them, however many more hosts there are."""
    known = catalog.engine("vllm")
    plan = Plan(tp=2, pp=5, order=known.order)
    lie = [span("pp", plan, catalog.cluster(f"{hosts}x8xb200-sxm"), known) for hosts in (2, 3, 9)]
    assert [(float(x.ranks), float(x.domains)) for x in lie] == [(5, 2)] * 3
    assert used_of_domain(plan, catalog.cluster("3x8xb200-sxm"), known) == 6


def test_a_hosts_nic_is_shared_by_those_who_run_there():
    """The same four ranks on two hosts cost the same, whether or not other GPUs of the hosts idle."""
    two, three = (commtax.bill("mixtral-8x7b", f"3x{gpus}xl40s", tp=4, engine="trtllm").step_s for gpus in (2, 3))
    assert float(two) == pytest.approx(float(three))


def test_unequal_parts_are_no_better_than_equal_ones():
    """Four ranks on hosts of 3 that have no room for 2 and 2 everywhere are not priced as 3 a host: one host has one NIC in use."""
    known = catalog.engine("trtllm")
    plan = Plan(tp=4, pp=2, order=known.order)
    assert span("tp", plan, catalog.cluster("3x3xmi300x"), known).ranks_per_domain == 2
