"""What is sent: exact counts and bytes, by hand and by law, also over bridges that join cards in pairs."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.catalog.fabric import OPS
from commtax.cost.placement import span, used_of_domain
from commtax.cost.traffic import expected_destinations, inference, padded_rows
from commtax.launch.topology import Topology, place
from commtax.planner import plan
from commtax.question import workload
from commtax.report.view.state import state_of as controls
from commtax.runs.calibrate.calibration import calibrate
from commtax.spec import Experts, Path, Plan, Profile, Workload
from commtax.verbs.disaggregation import Disaggregation, wire_of
from commtax.verbs.settling import ask, fabric_of
from each import each
from made_nccl import TRUE, noisy, output, written
from planned import value
from strategies import SERVING, questions
from tables import tables

DATA = tables(__file__)


def lines(*args, **kwargs):
    return {(x.item.what, x.item.op): x for x in commtax.traffic(*args, **kwargs).lines}


def test_llama_decode_and_its_pipeline_by_hand():
    """8B, TP 8, one token: 64 + 1 all-reduces of 4096 x 2 bytes, and the logits of 128,256 x 2."""
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, engine="torch")
    assert {k: (v.item.nbytes, v.item.count, v.item.ranks) for k, v in found.items()} == {
        ("embedding", "all-reduce"): (8192, 1, 8),
        ("attention output", "all-reduce"): (8192, 32, 8),
        ("feed-forward output", "all-reduce"): (8192, 32, 8),
        ("logits", "all-gather"): (128256 * 2, 1, 8),
    }
    # vLLM sends both, 1/tp by each rank, and the receivers gather them.
    found = lines("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=32)  # two microbatches of 16
    sent = found["stage hand-off", "send-recv"]
    assert (sent.item.nbytes, sent.item.count, sent.link) == (16 * 8192 * 2 / 8, 2, "ib-ndr")
    gathered = found["stage hand-off", "all-gather"]
    assert (gathered.item.nbytes, gathered.item.count, gathered.link) == (16 * 8192 * 2, 2, "nvlink4")
    torch = lines("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, batch=32, engine="torch")
    assert torch["stage hand-off", "send-recv"].item.nbytes == 16 * 8192 * 2
    assert ("stage hand-off", "all-gather") not in torch


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
    many = Plan(tp=tps, pp=plan.pp, dp=plan.dp, ep=plan.ep, order=plan.order)
    arrays = inference(model, many, workload(phase, batches, 128), engine)
    for i, wrong in enumerate(batches):
        alone = Plan(tp=plan.tp, pp=plan.pp, dp=plan.dp, ep=plan.ep, order=plan.order)
        scalar = inference(model, alone, workload(phase, int(wrong), 128), engine)
        for many, one in zip(arrays, scalar, strict=True):
            assert (np.broadcast_to(many.nbytes, 3)[i], np.broadcast_to(many.count, 3)[i]) == (one.nbytes, one.count)


@each(("rows", "padded"), [(1, 1), (3, 4), (5, 8), (9, 16), (255, 256), (257, 272), (512, 512), (513, 513)])
def test_vllm_pads_to_its_captured_sizes(rows, padded):
    engine = catalog.engine("vllm")
    assert padded_rows(rows, Workload(decode_seqs=rows), engine) == padded
    assert padded_rows(rows, Workload(decode_seqs=rows), engine, eager=True) == rows
    assert padded_rows(rows, Workload(prefill_tokens=rows), engine) == padded, "piecewise graphs pad prompts too"
    assert padded_rows(rows, Workload(prefill_tokens=rows), catalog.engine("sglang")) == rows


def test_rows_that_are_sent_by_hand():
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3)
    assert found["attention output", "all-reduce"].item.nbytes == 4 * 8192
    assert found["logits", "all-gather"].item.nbytes == 3 * 128256 * 2
    sglang = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3, engine="sglang")
    assert sglang["logits", "all-gather"].item.nbytes == 4 * 128256 * 2, "computed inside the graph"
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=2, batch=4, speculative=3, engine="torch")
    assert found["attention output", "all-reduce"].item.nbytes == 16 * 8192
    assert found["logits", "all-gather"].item.nbytes == 16 * 128256 * 2


def test_experts_in_a_replica_keep_the_all_reduce_and_over_replicas_gather_all_tokens():
    tp = lines("mixtral-8x7b", "8xh100-sxm", tp=8, batch=8)
    ep = lines("mixtral-8x7b", "8xh100-sxm", tp=8, ep=8, batch=8)
    assert tp.keys() == ep.keys()
    # DeepSeek-V3, 8 replicas of TP 8, EP 64: 3 dense layers keep their all-reduce, 58 gather 8 x 128 tokens.
    found = lines("deepseek-v3", "8x8xh200-sxm", tp=8, dp=8, ep=64, batch=128)
    assert found["feed-forward output", "all-reduce"].item.count == 3
    dispatch = found["expert dispatch", "all-gather"]
    assert (dispatch.item.nbytes, dispatch.item.count, dispatch.item.ranks) == (8 * 128 * (7168 + 7168 / 128 * 4), 58, 64)
    assert dispatch.crosses_hosts
    assert found["expert combine", "reduce-scatter"].item.nbytes == 8 * 128 * 7168 * 2, "fp8 out, bf16 back"
    assert found["expert output", "all-gather"].item.nbytes == 128 * 7168 * 2
    found = lines("qwen3-30b-a3b", "8xh100-sxm", dp=8, ep=8, batch=64, ep_backend="deepep_low_latency")
    assert found["expert dispatch", "all-to-all"].item.nbytes == 64 * 8 * 2048 * 2


def test_families_without_split_tokens_gather_over_the_replicas():
    """MiniMax-M2 in vLLM: the gather runs over dp, each tp rank on its own, and the tp all-reduce stays."""
    found = lines("minimax-m2.5", "8xh200-sxm", tp=4, dp=2, ep=8, batch=64)
    dispatch = found["expert dispatch", "all-gather"].item
    assert (dispatch.axis, dispatch.ranks, dispatch.nbytes) == ("dp", 2, 2 * 64 * (3072 + 3072 / 128 * 4))
    assert found["feed-forward output", "all-reduce"].item.count == 62
    assert ("expert output", "all-gather") not in found
    norm = found["query/key norm", "all-reduce"].item
    assert (norm.nbytes, norm.count) == (64 * 2 * 4, 62), "a norm over all heads must sum its squares over tp"
    found = lines("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, batch=8)
    assert found["expert dispatch", "all-gather"].item.ranks == 2
    assert found["feed-forward output", "all-reduce"].item.count == 94
    fit = commtax.fit("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, max_model_len=8192)
    assert next(w.nbytes for w in fit.weights if w.part == "experts") == pytest.approx(94 * 128 * 3 * 4096 * 1536 * 2 / 8)
    assert "expert dispatch" not in {k[0] for k in lines("qwen3-235b-a22b", "8xh100-sxm", tp=4, dp=2, engine="sglang")}


def test_groups_lie_where_rank_order_puts_them():
    """Megatron numbers experts' ranks tp, ep, edp; cp counts into the gradient group; odd groups straddle a host's edge."""
    spread = lines("mixtral-8x7b", "8x8xh100-sxm", phase="train", tp=8, dp=8, ep=8, batch=1, sequence_parallel=True)
    assert spread["expert dispatch", "all-to-all"].crosses_hosts
    assert lines("llama-3.1-8b", "2x8xh100-sxm", phase="train", cp=16, batch=1)["gradients", "all-reduce"].crosses_hosts
    wide = lines("deepseek-v3", "4x8xh200-sxm", tp=16, dp=2, ep=32)
    assert wide["expert dispatch", "all-gather"].crosses_hosts
    assert lines("phi-4", "2x8xh100-sxm", tp=5, dp=3)["attention output", "all-reduce"].crosses_hosts
    # vLLM counts tp innermost, dp outermost; Megatron puts the pipeline outermost.
    found = lines("llama-3.1-70b", "2x8xh100-sxm", tp=16)
    assert found["attention output", "all-reduce"].crosses_hosts
    inside = lines("llama-3.1-70b", "2x8xh100-sxm", tp=4, pp=2, dp=2)
    assert not inside["stage hand-off", "send-recv"].crosses_hosts
    megatron = lines("llama-3.1-70b", "2x8xh100-sxm", tp=4, pp=2, dp=2, phase="train", batch=4)
    assert megatron["activations on", "send-recv"].crosses_hosts
    assert not megatron["gradients", "all-reduce"].crosses_hosts
    rack = lines("llama-3.1-405b", "18x4xgb200", tp=64)
    assert not rack["attention output", "all-reduce"].crosses_hosts, "72 GPUs are one NVLink domain"
    found = lines("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512, sequence_parallel=True)
    assert found["attention output", "reduce-scatter"].item.count == 32
    assert found["attention output", "all-gather"].item.count == 32
    whole = commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512)
    split = commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=512, sequence_parallel=True)
    assert whole.sent_bytes_per_rank == pytest.approx(split.sent_bytes_per_rank)


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


def test_deepep_sends_fp8_out_and_racks_are_filled():
    found = lines("deepseek-v3", "8x8xh200-sxm", tp=1, dp=64, ep=64, batch=32, ep_backend="deepep_low_latency")
    assert found["expert dispatch", "all-to-all"].item.nbytes == 32 * 8 * (7168 + 7168 / 128 * 4)
    assert found["expert combine", "all-to-all"].item.nbytes == 32 * 8 * 7168 * 2
    fewer = lines("deepseek-v3", "8x8xh200-sxm", tp=1, dp=64, ep=64, batch=32, ep_backend="deepep_high_throughput")
    assert fewer["expert dispatch", "all-to-all"].item.nbytes < found["expert dispatch", "all-to-all"].item.nbytes
    known = catalog.engine("vllm")
    full, roomy = (Plan(tp=16, dp=n, order=known.order) for n in (9, 8))
    racks = catalog.cluster("36x4xgb200")
    assert span("tp", full, racks, known).crosses
    assert not span("tp", roomy, racks, known).crosses


@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(1, 2**32 - 1))
def test_expected_destinations_match_a_draw(top_k, ep, seed):
    experts = 16
    rng = np.random.default_rng(seed)
    draws = [len(set(rng.choice(experts, top_k, replace=False) // (experts // ep))) for _ in range(400)]
    assert float(expected_destinations(Experts(experts, top_k, 1), ep)) == pytest.approx(np.mean(draws), abs=0.35)


@each(
    ("change", "says"),
    [
        *DATA["bad_questions"],
        ({"batch": [1, 2.5]}, "batch="),
        ({"batch": [1, "2"]}, "batch: an array of numbers"),
        ({"batch": {1, 2}}, "batch="),
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
    # 5 pairs on hosts of 8 lie on two of them, however many more hosts there are.
    plan = Plan(tp=2, pp=5, order=known.order)
    lie = [span("pp", plan, catalog.cluster(f"{hosts}x8xb200-sxm"), known) for hosts in (2, 3, 9)]
    assert [(float(x.ranks), float(x.domains)) for x in lie] == [(5, 2)] * 3
    assert used_of_domain(plan, catalog.cluster("3x8xb200-sxm"), known) == 6


def test_a_hosts_nic_is_shared_by_those_who_run_there():
    """The same four ranks on two hosts cost the same, whether or not other GPUs of the hosts idle."""
    two, three = (commtax.bill("mixtral-8x7b", f"3x{gpus}xl40s", tp=4, engine="trtllm").step_s for gpus in (2, 3))
    assert float(two) == pytest.approx(float(three))
    # Four ranks on hosts of 3 that have no room for 2 and 2 everywhere are not priced as 3 a host: one host has one NIC in use.
    known = catalog.engine("trtllm")
    plan = Plan(tp=4, pp=2, order=known.order)
    assert span("tp", plan, catalog.cluster("3x3xmi300x"), known).ranks_per_domain == 2


HOSTS = ("3xh100-nvl", "4xh100-nvl", "8xh100-nvl", "2x8xh100-nvl", "2x3xh100-nvl")
ENGINE = catalog.engine("vllm")


def collectives(cluster, **words):
    b = commtax.bill("mixtral-8x7b", cluster, context=2048, **words)
    lines = [x for x in b.items if x.kind == "comm"]
    return [(x.item.what, str(x.link), str(x.algorithm), float(x.each_s), float(x.sigma), x.source) for x in lines]


def test_cards_of_larger_hosts_are_bridged_in_pairs():
    assert (catalog.cluster("2xh100-nvl").intra.key, catalog.cluster("2xh100-nvl").bridge) == ("nvlink-bridge", None)
    for text in HOSTS:
        found = catalog.cluster(text)
        assert (found.intra.key, found.bridge.key) == ("pcie5", "nvlink-bridge")
        assert "pairs over NVLink bridge" in found.note
        assert catalog.cluster(text, intra="pcie5").bridge is None
    assert all(catalog.cluster(f"8x{key}").bridge is None for key in catalog.keys("chips") if not key.endswith("-nvl"))
    rows = commtax.compare_plans("llama-3.1-8b", "4xh100-nvl", ["tp2", "tp4"]).rows
    assert {row.link for row in rows} == {"pcie5, nvlink-bridge"}

    def links(cluster, **words):
        b = commtax.train_bill("llama-3.1-8b", cluster, engine="megatron", **words)
        return {(x.item.axis, str(x.link)) for x in b.items if x.kind == "comm"}

    assert links("8xh100-nvl", tp=1, dp=2) == {("dp", "nvlink-bridge")}
    assert links("8xh100-nvl", tp=2, dp=2) == {("tp", "nvlink-bridge"), ("dp", "pcie5")}


@each("cluster", HOSTS)
@each("words", [{"tp": 2}, {"pp": 2}, {"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}], ids=str)
@each("phase", ["decode", "prefill"])
def test_a_pair_costs_the_same_in_every_host(cluster, words, phase):
    """Seconds, link, algorithm, range and source of every collective, the kernels that carry tokens to experts among them."""
    backends = ("", "deepep_low_latency") if "dp" in words else ("",)
    for backend in backends:
        asked = {**words, "batch": 4, "phase": phase, "ep_backend": backend}
        assert collectives(cluster, **asked) == collectives("2xh100-nvl", **asked) != []


@given(st.floats(1, 1e10), st.sampled_from(HOSTS[:3]), st.sampled_from(OPS), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_first_two_gpus_are_a_pair(nbytes, cluster, op, eager):
    here, alone = (commtax.expect(op, place, nbytes=nbytes, ranks=2, eager=eager) for place in (cluster, "2xh100-nvl"))
    assert (here.seconds, here.spread, here.link, here.source) == (alone.seconds, alone.spread, alone.link, alone.source)
    three = commtax.expect(op, cluster, nbytes=nbytes, ranks=3, eager=eager)
    assert three.link == "pcie5"
    unbridged = commtax.expect(op, catalog.cluster(cluster, intra="pcie5"), nbytes=nbytes, ranks=3, eager=eager)
    assert three.seconds <= unbridged.seconds <= 1.3 * three.seconds, "every other card sends over PCIe"


def groups(sizes, order, axis):
    """All groups of an axis, rank by rank: those that differ in its coordinate alone."""
    strides, stride = {}, 1
    for name in order:
        strides[name], stride = stride, stride * sizes[name]
    others = [name for name in order if name != axis]
    for at in product(*(range(sizes[name]) for name in others)):
        first = sum(i * strides[name] for i, name in zip(at, others, strict=True))
        yield [first + i * strides[axis] for i in range(sizes[axis])]


@given(
    st.fixed_dictionaries({a: st.sampled_from((1, 1, 2, 3, 4)) for a in ("tp", "cp", "pp", "dp")}),
    st.permutations(("tp", "cp", "pp", "dp")),
)
@settings(max_examples=200)
def test_neighbours_are_paired_and_nobody_else(sizes, order):
    """Against the groups one by one, in a host that holds them all."""
    host = replace(catalog.cluster("8xh100-nvl"), gpus_per_host=256)
    asked = Plan(**sizes, order=tuple(order))
    for axis in ("tp", "cp", "pp"):
        joined = all(len(g) == 2 and g[0] % 2 == 0 and g[1] == g[0] + 1 for g in groups(sizes, order, axis))
        assert bool(span(axis, asked, host, ENGINE).paired) == joined
        assert not span(axis, asked, catalog.cluster("8xh100-nvl", intra="pcie5"), ENGINE).paired


@given(
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("1x3", "1x8", "2x3", "2x5", "3x4")),
)
def test_no_pair_lies_across_an_edge(tp, pp, dp, hosts):
    """Ranks fill hosts in order: a group that is priced on bridges has two ranks per host, the first of them even there."""
    cluster, sizes = catalog.cluster(f"{hosts}xh100-nvl"), {"tp": tp, "cp": 1, "pp": pp, "dp": dp}
    asked = Plan(tp=tp, pp=pp, dp=dp)
    if asked.num_gpus > cluster.num_gpus:
        return
    for axis in ("tp", "pp"):
        found = span(axis, asked, cluster, ENGINE)
        if found.paired:
            assert found.ranks_per_domain == 2
            assert found.crosses or all(g[0] % 2 == 0 and g[1] == g[0] + 1 for g in groups(sizes, asked.order, axis))


@pytest.mark.parametrize(("words", "links"), DATA["groups_that_no_bridge_joins_run_over_pcie"], ids=str)
def test_groups_that_no_bridge_joins_run_over_pcie(words, links):
    b = commtax.bill("mixtral-8x7b", "8xh100-nvl", batch=8, **words)
    found = {(x.item.axis, str(x.link)) for x in b.items if x.kind == "comm"}
    assert found
    assert all(links[axis] == link for axis, link in found)
    told = commtax.traffic("mixtral-8x7b", "8xh100-nvl", batch=8, **words)
    assert {(x.item.axis, x.link) for x in told.lines} == found


@pytest.mark.parametrize("cluster", ["8xh100-nvl", "2x8xh100-nvl"])
def test_plans_in_arrays_are_those_one_by_one(cluster):
    """Some of them paired, some not, some across hosts."""
    plans = [(1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (8, 1), *([(8, 2)] if cluster.startswith("2x8") else [])]
    tp, pp = (np.array(x) for x in zip(*plans, strict=True))
    many = commtax.bill("llama-3.1-70b", cluster, batch=16, context=2048, tp=tp, pp=pp)
    for i, (t, p) in enumerate(plans):
        one = commtax.bill("llama-3.1-70b", cluster, batch=16, context=2048, tp=t, pp=p)
        lines = {(x.item.what, x.item.op): x for x in many.at(i).items if x.kind == "comm"}
        for line in (x for x in one.items if x.kind == "comm"):
            mine = lines[line.item.what, line.item.op]
            assert (mine.link, mine.algorithm) == (line.link, line.algorithm)
            assert float(mine.each_s) == pytest.approx(float(line.each_s))
            if cluster == "8xh100-nvl":  # where some plan crosses hosts, arrays have the range of those that do
                assert float(mine.sigma) == pytest.approx(float(line.sigma))


@pytest.mark.parametrize("cluster", ["1x3xh100-nvl", "1x4xh100-nvl", "1x8xh100-nvl", "3x3xh100-nvl"])
def test_a_plan_for_more_cards_is_no_worse(cluster):
    """852 tokens/s on 2 cards, and 654 on 3 whose pair was priced over PCIe."""
    asked = {"model": "mixtral-8x7b", "ttft_s": 0.2, "tpot_s": 0.015, "input_len": 512, "output_len": 128}
    assert value(plan(cluster=cluster, **asked)) >= value(plan(cluster="1x2xh100-nvl", **asked)) * (1 - 1e-9)


def test_a_cache_moves_to_its_neighbour_and_a_matrix_of_pairs_agrees():
    alone, among = (ask("llama-3.1-8b", c) for c in ("2xh100-nvl", "8xh100-nvl"))
    near, same, far = (wire_of(q, Disaggregation(q.plan, 1, n), 4096).alone_s for q, n in ((among, 1), (alone, 1), (among, 2)))
    assert near == same < far
    rows = tuple(tuple("X" if i == j else "NV12" if i // 2 == j // 2 else "SYS" for j in range(8)) for i in range(8))
    laid = place(Topology(rows), catalog.cluster("8xh100-nvl"), 2, 4)
    assert collectives(laid.cluster, tp=2) == collectives("8xh100-nvl", tp=2)
    wide = place(Topology(rows), catalog.cluster("8xh100-nvl"), 4, 2)
    assert (wide.cluster.intra.key, wide.cluster.bridge) == ("pcie5", None)


def test_pairs_have_links_and_rows_of_their_own(tmp_path):
    mine = Path("all-reduce", "ring", 20e9, launch_s=1e-3)
    for link, there in (("nvlink-bridge", (True, False)), ("pcie5", (False, True))):
        own = Profile("mine", chip={"key": "h100-nvl"}, libraries={"nccl": (mine,)}, links={"intra": link})
        found = overlay.paths(own, "nccl", catalog.cluster("8xh100-nvl"))
        assert tuple(x.paths["all-reduce"][0].launch_s == 1e-3 for x in (found.pairs, found)) == there
    rng = np.random.default_rng(0)
    slow = replace(TRUE, bandwidth_Bps=30e9)
    paths = {2: TRUE, 4: slow, 8: slow}
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, noisy(p, n, rng))) for n, p in paths.items()]
    found = calibrate(files, "8xh100-nvl")
    (path,) = found.profile.libraries["nccl"]
    assert (path.bandwidth_Bps, found.profile.links["intra"]) == (pytest.approx(30e9, rel=0.03), "pcie5")
    assert any("rows of 2 ranks ran over nvlink-bridge" in why for why in found.refused)
    assert not any("2 ranks" in w.what for part in found.parts for w in part.wishes)
    b = commtax.bill("llama-3.1-8b", "8xh100-nvl", tp=2)
    assert "collectives on nvlink-bridge with h100-nvl are assumed" in " ".join(b.notes)
    assert controls(b.question)["intra"] == ""
    assert fabric_of(b.question).pairs.pairs is None
