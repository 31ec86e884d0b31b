"""Bridges join the cards of a host in pairs: neighbours meet over the bridge, all others over PCIe."""

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
from commtax.cost.placement import span
from commtax.launch.topology import Topology, place
from commtax.planner import plan
from commtax.report.view.state import state_of as controls
from commtax.runs.calibrate.calibration import calibrate
from commtax.spec import Path, Plan, Profile
from commtax.verbs.disaggregation import Disaggregation, wire_of
from commtax.verbs.settling import ask, fabric_of
from each import each
from made_nccl import TRUE, noisy, output, written
from planned import value

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


@pytest.mark.parametrize(
    ("words", "links"),
    [
        ({"tp": 2, "pp": 2}, {"tp": "nvlink-bridge", "pp": "pcie5"}),
        ({"tp": 4}, {"tp": "pcie5"}),
        ({"tp": 2, "dp": 2, "ep": 4}, {"tp": "nvlink-bridge", "ep": "pcie5", "dp": "pcie5"}),
        ({"pp": 4}, {"pp": "pcie5"}),
    ],
    ids=str,
)
def test_groups_that_no_bridge_joins_run_over_pcie(words, links):
    b = commtax.bill("mixtral-8x7b", "8xh100-nvl", batch=8, **words)
    found = {(x.item.axis, str(x.link)) for x in b.items if x.kind == "comm"}
    assert found
    assert all(links[axis] == link for axis, link in found)
    told = commtax.traffic("mixtral-8x7b", "8xh100-nvl", batch=8, **words)
    assert {(x.item.axis, x.link) for x in told.lines} == found


def test_both_links_are_named_where_plans_are_compared():
    rows = commtax.compare_plans("llama-3.1-8b", "4xh100-nvl", ["tp2", "tp4"]).rows
    assert {row.link for row in rows} == {"pcie5, nvlink-bridge"}


def test_gradients_of_a_bridged_pair():
    def links(cluster, **words):
        b = commtax.train_bill("llama-3.1-8b", cluster, engine="megatron", **words)
        return {(x.item.axis, str(x.link)) for x in b.items if x.kind == "comm"}

    assert links("8xh100-nvl", tp=1, dp=2) == {("dp", "nvlink-bridge")}
    assert links("8xh100-nvl", tp=2, dp=2) == {("tp", "nvlink-bridge"), ("dp", "pcie5")}


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


def test_the_cache_of_one_rank_moves_to_its_neighbour():
    alone, among = (ask("llama-3.1-8b", c) for c in ("2xh100-nvl", "8xh100-nvl"))
    near, same, far = (wire_of(q, Disaggregation(q.plan, 1, n), 4096).alone_s for q, n in ((among, 1), (alone, 1), (among, 2)))
    assert near == same < far


def test_a_matrix_of_pairs_agrees():
    rows = tuple(tuple("X" if i == j else "NV12" if i // 2 == j // 2 else "SYS" for j in range(8)) for i in range(8))
    laid = place(Topology(rows), catalog.cluster("8xh100-nvl"), 2, 4)
    assert collectives(laid.cluster, tp=2) == collectives("8xh100-nvl", tp=2)
    wide = place(Topology(rows), catalog.cluster("8xh100-nvl"), 4, 2)
    assert (wide.cluster.intra.key, wide.cluster.bridge) == ("pcie5", None)


def test_a_profile_tells_of_the_link_that_it_was_measured_on():
    mine = Path("all-reduce", "ring", 20e9, launch_s=1e-3)
    for link, there in (("nvlink-bridge", (True, False)), ("pcie5", (False, True))):
        own = Profile("mine", chip={"key": "h100-nvl"}, libraries={"nccl": (mine,)}, links={"intra": link})
        found = overlay.paths(own, "nccl", catalog.cluster("8xh100-nvl"))
        assert tuple(x.paths["all-reduce"][0].launch_s == 1e-3 for x in (found.pairs, found)) == there


def test_rows_of_a_pair_make_no_constants_of_the_host(tmp_path):
    rng = np.random.default_rng(0)
    slow = replace(TRUE, bandwidth_Bps=30e9)
    paths = {2: TRUE, 4: slow, 8: slow}
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, noisy(p, n, rng))) for n, p in paths.items()]
    found = calibrate(files, "8xh100-nvl")
    (path,) = found.profile.libraries["nccl"]
    assert path.bandwidth_Bps == pytest.approx(30e9, rel=0.03)
    assert found.profile.links["intra"] == "pcie5"
    assert any("rows of 2 ranks ran over nvlink-bridge" in why for why in found.refused)
    assert not any("2 ranks" in w.what for part in found.parts for w in part.wishes)


def test_what_is_assumed_is_said_of_both_links_and_the_page_keeps_the_pairs():
    b = commtax.bill("llama-3.1-8b", "8xh100-nvl", tp=2)
    assert "collectives on nvlink-bridge with h100-nvl are assumed" in " ".join(b.notes)
    assert controls(b.question)["intra"] == ""
    assert fabric_of(b.question).pairs.pairs is None
