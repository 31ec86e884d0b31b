"""Collectives over several hosts or racks: laws, and anchors that were published."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.fabric import OPS, library
from commtax.cost.collectives import PAIRS, Crossing, PathChoice, cross_domains
from commtax.spec import Network
from each import each

sizes = st.integers(1, 2**33)
hosts = st.sampled_from(["dgx-h100", "p4de", "p5", "p6-b200", "a3-mega", "a3-high", "dgx-a100", "4x4090-pcie"])
collectives = st.sampled_from([op for op in OPS if op != "send-recv"])
networks = st.sampled_from([library("nccl").network, Network(hops=1.0), Network(pipelining=1.0, direct=True)])


def crossing(op, nbytes, domains, inside=8, nics_Bps=400e9, link="ib-ndr"):
    return Crossing(op, nbytes, domains * inside, inside, domains, nics_Bps, catalog.link(link))


@given(networks, collectives, sizes, st.integers(2, 256), st.floats(1e9, 1e12))
def test_what_crosses_takes_at_least_its_bytes_and_a_hop(network, op, nbytes, domains, nics_Bps):
    inside = PathChoice(1e-6, 1e-6, 0)
    over = cross_domains(crossing(op, nbytes, domains, nics_Bps=nics_Bps), inside, (), network)
    assert over.wire_s >= (domains - 1) / domains * nbytes / nics_Bps
    assert over.latency_s >= inside.latency_s + network.hops * catalog.link("ib-ndr").latency_s


@given(hosts, collectives, sizes, sizes)
def test_a_larger_tensor_is_never_cheaper(host, op, one, other):
    small, large = (commtax.expect(op, f"4x{host}", nbytes=x).seconds for x in sorted((one, other)))
    assert small <= large * (1 + 1e-9)


@given(hosts, collectives, sizes)
def test_two_hosts_take_longer_than_one_and_four_no_less(host, op, nbytes):
    inside, two, four = (commtax.expect(op, f"{n}x{host}", nbytes=nbytes).seconds for n in (1, 2, 4))
    assert inside <= two * (1 + 1e-9)
    assert two <= four * (1 + 1e-9)


@given(collectives, sizes, st.floats(1e9, 1e12), st.floats(1, 8))
def test_more_nics_are_never_slower(op, nbytes, nics_Bps, times):
    network, inside = library("nccl").network, PathChoice(1e-6, 1e-6, 0)
    few, many = (
        cross_domains(crossing(op, nbytes, 4, nics_Bps=rate), inside, (), network) for rate in (nics_Bps, nics_Bps * times)
    )
    assert many.seconds <= few.seconds * (1 + 1e-9)


@given(collectives, st.lists(sizes, min_size=2, max_size=5))
def test_arrays_are_priced_as_their_numbers_are(op, nbytes):
    together = commtax.expect(op, "4xdgx-h100", nbytes=np.array(nbytes, float)).seconds
    assert together == pytest.approx([float(commtax.expect(op, "4xdgx-h100", nbytes=float(x)).seconds) for x in nbytes])


def test_what_leaves_a_domain():
    assert crossing("all-reduce", 1.0, 2).leaving == 1  # two hosts swap their sums
    assert crossing("all-reduce", 1.0, 4).leaving == 2 * 31 / 32
    assert crossing("all-gather", 1.0, 2).leaving == 15 / 16
    assert crossing("all-to-all", 1.0, 4).leaving == 3 / 4


def test_a_gather_goes_round_and_a_reduction_goes_up_a_tree():
    assert crossing("all-gather", 1.0, 16).hops == 15
    assert crossing("all-gather", 1.0, 16, inside=1).hops == 4  # one rank per host: PAT
    assert crossing("all-reduce", 1.0, 16).hops == 4
    assert crossing("all-to-all", 1.0, 16).hops == 1


def test_no_pipeline_fills_for_messages_from_rank_to_rank():
    network = library("nccl").network
    for op in PAIRS:
        over = cross_domains(crossing(op, 2**30, 8), PathChoice(0.0, 0.0, 0), (), network)
        assert over.latency_s == pytest.approx(network.hops * catalog.link("ib-ndr").latency_s)


@each(
    ("op", "cluster", "nbytes", "published_us", "within"),
    [
        ("all-reduce", "2x8xh100-sxm", 8, 24.7, 0.3),  # NVIDIA/nccl-tests 309, eight NDR NICs a host
        ("all-reduce", "2x8xh100-sxm", 2**22, 94.4, 0.1),
        ("all-reduce", "2x8xh100-sxm", 2**30, 4485, 0.05),
        ("all-reduce", "4x8xh100-sxm", 2**26, 579, 0.15),
        ("all-reduce", "2xa3-mega", 2**22, 364.6, 0.15),  # lessizzmore/create-a3mega-ztan-fork
        ("all-reduce", "2xa3-mega", 2**28, 2360.9, 0.05),
        ("all-reduce", "2xp4de", 2**24, 1191.8, 0.1),  # aws-samples/awsome-distributed-training
        ("all-reduce", "2xp6-b200", 64, 55.6, 0.15),  # dstackai/dstack 3961
        ("all-reduce", "gb200-nvl72", 2**30, 3108.8, 0.1),  # coreweave/nccl-tests 43: one rack
        ("all-to-all", "gb200-nvl72", 2**33, 13574, 0.1),  # oracle-quickstart/oci-gpu-quickstarts, 64 of its GPUs
    ],
)
def test_published_times_across_hosts(op, cluster, nbytes, published_us, within):
    assert commtax.expect(op, cluster, nbytes=nbytes).seconds * 1e6 == pytest.approx(published_us, rel=within)


def test_a_rack_was_measured_and_two_networks_were_not():
    assert commtax.expect("all-reduce", "gb200-nvl72", nbytes=2**30).source.kind == "calibrated"
    assert commtax.expect("all-reduce", "2xdgx-h100", nbytes=2**30).source.kind == "calibrated"
    assert commtax.expect("all-reduce", "2xp5", nbytes=2**30).source.kind == "transferred"


def test_launched_from_python_threads_wake_on_every_host():
    captured, launched = (commtax.expect("all-reduce", "4xp6-b200", nbytes=2**20, eager=x).seconds for x in (False, True))
    assert launched - captured == pytest.approx(library("nccl").network.eager_s)


@pytest.mark.parametrize("name", ["nccl", "vllm", "sglang"])
def test_launches_take_longer_on_grace(name):
    x86, grace = (commtax.expect("all-reduce", f"4x{c}", nbytes=1024, library=name, eager=True) for c in ("b200-sxm", "gb200"))
    assert float(grace.seconds) > 1.5 * float(x86.seconds)


def test_an_engine_s_all_reduce_is_that_of_its_version():
    def took(version):
        return commtax.expect("all-reduce", "8xb300-sxm", nbytes=2**14, ranks=8, library=f"sglang{version}")

    old, new, between = took("@0.5.10"), took("@0.5.14"), took("@0.5.12")
    assert float(old.seconds - new.seconds) == pytest.approx(2.6e-6, abs=0.8e-6)
    assert float(took("").seconds) == float(new.seconds)
    assert float(between.seconds) == float(old.seconds)  # the newest that is not newer
    assert (new.source.kind, between.source.kind) == ("calibrated", "transferred")


def test_a_step_has_the_all_reduce_of_its_engine_s_version():
    asked = {"tp": 8, "batch": 16, "context": 1024}
    old, new = (commtax.bill("llama-3.1-70b", "8xb200-sxm", engine=f"sglang{v}", **asked) for v in ("@0.5.9", ""))
    assert float(old.comm_s) > float(new.comm_s)
