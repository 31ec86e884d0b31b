"""Collectives: laws of every algorithm, the choice a library makes, and published times as anchors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog, napkin
from commtax.catalog.fabric import OPS, fabric, library_keys
from commtax.cost.collectives import ALGORITHMS, across, applies, choose, ring_factor
from commtax.cost.collectives import Choice as Price
from commtax.cost.collectives import Network as Net
from commtax.spec import Path

CLUSTERS = (
    "8xa100-80-sxm",
    "8xh100-sxm",
    "8xb200-sxm",
    "8xl40s",
    "8xmi300x",
    "4x4090-pcie",
    "2x8xh100-sxm",
    "2xp4de",
    "18x4xgb200",
    "4xcpu",
)
sizes = st.integers(1, 2**33)
paths = st.builds(
    Path,
    op=st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]),
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    bandwidth_Bps=st.floats(1e8, 1e12),
    launch_s=st.floats(0, 1e-4),
    hop_s=st.floats(0, 1e-4),
    extra_s=st.floats(0, 1e-4),
    sqrt_s=st.floats(0, 1e-7),
)


@given(paths, sizes)
def test_one_rank_is_free(path, nbytes):
    assert ALGORITHMS[path.algorithm](nbytes, 1, path) == (0, 0)


@given(paths, sizes, sizes, st.integers(2, 64))
def test_more_bytes_never_take_less(path, a, b, ranks):
    low, high = (sum(ALGORITHMS[path.algorithm](n, ranks, path)) for n in sorted((a, b)))
    assert low <= high


@given(paths, sizes, st.integers(2, 64), st.floats(1.01, 100))
def test_less_bandwidth_is_never_faster(path, nbytes, ranks, factor):
    slower = Path(**{**{f: getattr(path, f) for f in Path.__slots__}, "bandwidth_Bps": path.bandwidth_Bps / factor})
    assert sum(ALGORITHMS[path.algorithm](nbytes, ranks, slower)) >= sum(ALGORITHMS[path.algorithm](nbytes, ranks, path))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("library", library_keys())
def test_nothing_beats_the_wire(cluster, library):
    """Every library on every link: a collective takes at least its least bytes over the link's one-way rate."""
    place = catalog.cluster(cluster)
    made = fabric(library, place)
    nbytes = np.logspace(0, 10, 200)
    for op in OPS:
        for ranks in (2, 3, 4, 6, 8, 16):
            chosen = choose(made.paths[op], nbytes, ranks)
            least = np.minimum(ring_factor(op, ranks), 1 + 1 / ranks) * nbytes / place.intra.bandwidth_Bps
            assert np.all(chosen.seconds >= least * (1 - 1e-9)), (op, ranks)
            assert np.all(np.isfinite(chosen.seconds))


@given(sizes, st.integers(2, 512), st.sampled_from(["nvlink4", "pcie4", "10gbe", "ib-ndr"]))
def test_textbook_all_reduce_is_reduce_scatter_and_all_gather(nbytes, ranks, link):
    wire = catalog.link(link)
    place = replace(catalog.cluster("512xh100-sxm"), intra=wire)
    made = fabric("textbook", place)
    whole, halves = (
        choose(made.paths["all-reduce"], nbytes, ranks).seconds,
        sum(choose(made.paths[op], nbytes, ranks).seconds for op in ("reduce-scatter", "all-gather")),
    )
    assert whole == pytest.approx(halves, rel=1e-12)
    assert whole == pytest.approx(napkin.allreduce_time_s(nbytes, ranks, wire.bandwidth_Bps, wire.latency_s), rel=1e-12)


@given(st.lists(st.integers(1, 2**30), min_size=3, max_size=3), st.lists(st.integers(1, 16), min_size=3, max_size=3))
def test_choice_of_an_array_is_the_choice_of_each(sizes, ranks):
    for cluster in ("8xh100-sxm", "8xl40s", "8xb200-sxm"):
        made = fabric("vllm", catalog.cluster(cluster)).paths["all-reduce"]
        many = choose(made, np.array(sizes), np.array(ranks))
        for i in range(3):
            one = choose(made, sizes[i], ranks[i])
            assert (many.latency_s[i], many.wire_s[i], many.path[i]) == (one.latency_s, one.wire_s, one.path)


@given(sizes, st.integers(2, 256), st.floats(1e8, 1e12))
def test_across_hosts_costs_at_least_its_network_part(nbytes, domains, bandwidth):
    inside = Price(1e-6, 1e-6, 0)
    over = across("all-reduce", nbytes, inside, domains, Net(bandwidth, 5e-6))
    assert over.wire_s >= ring_factor("all-reduce", domains) * nbytes / bandwidth
    assert over.latency_s >= inside.latency_s + 2 * 5e-6


@pytest.mark.parametrize(
    ("library", "ranks", "nbytes", "name"),
    [  # vLLM's and SGLang's own limits: one-shot below 512 KiB on 4 and 256 KiB on 8 ranks, then two-shot or multimem, then NCCL
        ("vllm", 8, 16 << 10, "custom one-shot"),
        ("vllm", 4, 256 << 10, "custom one-shot"),
        ("vllm", 8, 1 << 20, "multimem (symmetric memory)"),
        ("vllm", 8, 1 << 30, "NCCL NVLS"),
        ("sglang", 8, 1 << 20, "custom two-shot"),
        ("sglang", 8, 64 << 20, "NCCL NVLS"),
        ("nccl", 8, 16 << 10, "NCCL ring"),
        ("nccl", 2, 1 << 30, "NCCL ring"),
        ("vllm", 3, 8 << 10, "NCCL ring"),
    ],
)
def test_libraries_choose_as_they_do(library, ranks, nbytes, name):
    assert commtax.expect("all-reduce", "8xh100-sxm", nbytes=nbytes, ranks=ranks, library=library).algorithm == name


def test_limits_between_listed_group_sizes_are_the_larger_ones():
    path = Path("all-reduce", "one-shot", 1e9, max_bytes=((4, 100.0), (8, 50.0)))
    assert [bool(applies(path, 75, ranks)) for ranks in (2, 4, 6, 8, 16)] == [True, True, False, False, False]


ANCHORS = [  # what, measured seconds, tolerance, source
    (("all-reduce", "8xh100-sxm", 16 << 10, "vllm"), 5.3e-6, 0.25, "aiconfigurator: vLLM 0.24 custom all-reduce in a CUDA graph"),
    (("all-reduce", "8xh100-sxm", 16 << 10, "trtllm"), 3.6e-6, 0.25, "aiconfigurator: TensorRT-LLM 1.3.0rc20"),
    (("all-reduce", "8xh100-sxm", 16 << 10, "nccl"), 19e-6, 0.25, "aiconfigurator: nccl-tests 2.29.2"),
    (("all-reduce", "12x8xh100-sxm", 512 << 20, "nccl"), 2985e-6, 0.30, "CoreWeave nccl-tests, 12 hosts of 8 H100, 8 x 400 Gb/s"),
    (("all-reduce", "2xp4de", 2 << 30, "nccl"), 51.4e-3, 0.30, "nccl-tests on two p4de.24xlarge, 4 x 100 Gb/s EFA"),
]


@pytest.mark.parametrize(("question", "seconds", "tolerance", "source"), ANCHORS, ids=[a[3][:40] for a in ANCHORS])
def test_anchor(question, seconds, tolerance, source):
    op, cluster, nbytes, library = question
    assert commtax.expect(op, cluster, nbytes=nbytes, library=library).seconds == pytest.approx(seconds, rel=tolerance), source


@pytest.mark.parametrize(("hosts", "nics", "inter"), [(2, 8, "ib-ndr"), (4, 8, "ib-ndr"), (2, 1, "100gbe")])
def test_all_to_all_pays_for_every_ranks_own_bytes(hosts, nics, inter):
    """Each of 8 ranks sends (M-1)/M of its buffer out of the host, through the host's NICs together."""
    place = catalog.cluster(f"{hosts}x8xh100-sxm", inter=inter, nics=nics)
    least = 8 * (2 << 29) * (hosts - 1) / hosts / (nics * place.inter.bandwidth_Bps)
    assert float(commtax.expect("all-to-all", place, nbytes=2 << 29).seconds) >= least


def test_own_kernels_stay_in_a_host_and_large_domains_are_assumed():
    rack = commtax.bill("llama-3.1-405b", "18xgb200-nvl72", tp=8)
    assert all("custom" not in str(x.algorithm) for x in rack.items)
    assert commtax.expect("all-reduce", "18xgb200-nvl72", nbytes=2**30).source.startswith("assumed")
    assert commtax.expect("send-recv", "18xgb200-nvl72", nbytes=2**30).link == "nvlink5"
    for bad in ({"intra": "10gbe"}, {"inter": "nvlink4"}):
        with pytest.raises(ValueError, match="runs"):
            catalog.cluster("8xh100-sxm", **bad)


def test_a_flat_ring_at_one_nic_would_be_many_times_slower():
    flat = napkin.allreduce_time_s(512 << 20, 96, 50e9, 5e-6)
    assert flat / float(commtax.expect("all-reduce", "12x8xh100-sxm", nbytes=512 << 20).seconds) > 6


def test_what_was_never_measured_says_so():
    assert fabric("nccl", catalog.cluster("8xh100-sxm")).label == "calibrated"
    for cluster in ("8xmi300x", "4x4090-pcie", "8xt4"):
        assert fabric("nccl", catalog.cluster(cluster)).label.startswith("assumed")
    assert fabric("nccl", catalog.cluster("8xh100-sxm", intra="pcie5")).label.startswith("assumed")
    with pytest.raises(ValueError, match="did you mean vllm"):
        fabric("vlm", catalog.cluster("8xh100-sxm"))
