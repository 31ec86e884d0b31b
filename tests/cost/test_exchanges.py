"""Kernels that carry tokens to experts (DeepEP): published times, and the laws of all collectives."""

import csv
import gzip
import hashlib
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.fabric import exchange as paths_of
from commtax.catalog.loader import stems
from commtax.cost.collectives import choose, for_experts
from commtax.cost.pricing import Pricer
from commtax.cost.traffic import dispatched_bytes, exchange_item, expected_destinations
from commtax.spec import Experts, Plan
from commtax.statement import Refusal
from commtax.verbs.settling import ask, settle, terms_of
from each import each
from paths import SHARED

TABLES = SHARED / "kernels_more"
BACKENDS = tuple(stems("exchanges"))
SIZES = np.logspace(2, 10, 120)


def exchange(backend, ep, tokens, cluster=""):
    priced = commtax.bill("deepseek-v3", cluster or f"{ep // 8}x8xh100-sxm", dp=ep, ep=ep, batch=tokens, ep_backend=backend)
    return [line for line in priced.lines if line.item.what in ("expert dispatch", "expert combine") and line.item.is_sent]


LOW_LATENCY = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
"""Published microseconds of dispatch and combine by ranks, 128 tokens each; 16, 64 and 256 were fitted."""


@pytest.mark.parametrize("ep", LOW_LATENCY)
def test_low_latency_between_hosts(ep):
    for line, measured in zip(exchange("deepep_low_latency", ep, 128), LOW_LATENCY[ep], strict=True):
        assert float(line.each_s) * 1e6 == pytest.approx(measured, rel=0.12)
        assert line.source == "calibrated"
        assert "DeepEP" in line.algorithm


NORMAL = {8: (153, 158), 16: (43, 43), 32: (58, 57), 64: (51, 50)}
"""Published GB/s of 4,096 tokens on H800 over NVLink, or RDMA, counting the copies that stay: at most four hosts of a token."""


@pytest.mark.parametrize("ep", NORMAL)
def test_high_throughput_goes_once_to_each_host(ep):
    """Out through the NICs and on over NVLink: of two hosts NVLink decides, of more the NICs."""
    hosts = ep // 8
    moe = Experts(256, 8, 1, groups=hosts, top_groups=min(4, hosts))
    reached = float(expected_destinations(moe, hosts if hosts > 1 else 8))
    for way, width, rate in zip(("dispatch", "combine"), (1 + 4 / 128, 2.0), NORMAL[ep], strict=True):
        took = one_way("deepep_high_throughput", f"{hosts}x8xh800-sxm", ep, way, 4096 * 7168 * width, moe)
        assert took == pytest.approx(4096 * reached * 7168 * width / (rate * 1e9), rel=0.1)


def one_way(backend, cluster, ep, way, token_bytes, moe, copies=0.0):
    """Seconds of one way of an exchange: ``token_bytes`` of all tokens of a rank, once for each copy."""
    pricer = Pricer(terms_of(settle(ask("deepseek-v3", cluster, dp=ep, ep=ep, ep_backend=backend))))
    sent = token_bytes * (copies or float(expected_destinations(moe, ep)))
    return float(pricer.price(replace(exchange_item(way, "ep", "all-to-all", sent, ep, 1), routed=moe)).seconds)


@pytest.mark.parametrize(
    ("chip", "hosts", "rates"), [("h100-sxm", 2, (90, 81)), ("h100-sxm", 4, (61, 61)), ("b200-sxm", 2, (90, 91))]
)
def test_second_version_between_hosts(chip, hosts, rates):
    """Published GB/s of 8,192 tokens, counting the copies that stay in their host."""
    moe = Experts(256, 8, 1)
    for way, width, rate in zip(("dispatch", "combine"), (1 + 4 / 128, 2.0), rates, strict=True):
        took = one_way("deepep_v2", f"{hosts}x8x{chip}", 8 * hosts, way, 8192 * 7168 * width, moe)
        assert took == pytest.approx(8192 * float(expected_destinations(moe, hosts)) * 7168 * width / (rate * 1e9), rel=0.12)


ONE_SIDED = {8: ((1, 18.9, 31.0), (128, 31.7, 38.1), (2048, 311.8, 322.6)), 32: ((1, 19.8, 31.4), (2048, 373.7, 369.5))}
"""Published microseconds on GB200 NVL72 by ranks and tokens, in bf16; a token goes to eight ranks."""


@pytest.mark.parametrize("ep", ONE_SIDED)
def test_one_sided_in_a_rack(ep):
    for tokens, *published in ONE_SIDED[ep]:
        for way, us in zip(("dispatch", "combine"), published, strict=True):
            took = one_way("flashinfer_nvlink_one_sided", "gb200-nvl72", ep, way, tokens * 7168 * 2.0, Experts(256, 8, 1), 8)
            assert took * 1e6 == pytest.approx(us, rel=0.15), (tokens, way)


@pytest.mark.parametrize(("dtype", "width", "us"), [("bf16", 2.0, 311.8), ("fp8", 1 + 4 / 128, 172.2), ("nvfp4", 0.5625, 101.7)])
def test_a_dispatch_takes_the_bytes_of_its_format(dtype, width, us):
    """Published for 2,048 tokens to 8 ranks; bytes are exact: fp8 with a scale for 128 values, nvfp4 for 16."""
    assert dispatched_bytes(Plan(), None, dtype) == width
    took = one_way("flashinfer_nvlink_one_sided", "gb200-nvl72", 8, "dispatch", 2048 * 7168 * width, Experts(256, 8, 1), 8)
    assert took * 1e6 == pytest.approx(us, rel=0.1)
    asked = {"dp": 8, "ep": 8, "batch": 64, "ep_backend": "deepep_low_latency"}
    plain, told = (commtax.traffic("deepseek-v3", "8xh200-sxm", **asked, **how) for how in ({}, {"technique": f"dispatch={dtype}"}))
    out = [next(x.item.nbytes for x in t.lines if x.item.what == "expert dispatch") for t in (plain, told)]
    assert out[1] / out[0] == pytest.approx(width / (1 + 4 / 128), rel=1e-12)


def test_few_experts_are_copied_by_few_multiprocessors():
    """A kernel of low latency has one for each expert: 8 experts on H100 take 8 of 132, and more time for the same bytes."""
    fabric = paths_of("deepep-low-latency", catalog.cluster("8xh100-sxm"))
    few, many = (choose(for_experts(fabric, n, 132).paths["dispatch"], 5e7, 8).seconds for n in (8, 128))
    assert few > 2 * many


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cluster": "2x8xh100-sxm", "ep_backend": "flashinfer_nvlink_one_sided"}, "one NVLink domain"),
        ({"cluster": "2x8xh100-sxm", "ep_backend": "mori_low_latency"}, "for AMD GPUs only"),
        ({"cluster": "2x8xh100-sxm", "technique": "dispatch=fp8", "dp": 1, "ep": 16, "tp": 16}, "that share experts"),
        ({"cluster": "2x8xh100-sxm", "technique": "eplb", "dp": 1, "ep": 1, "tp": 16}, "ep > 1"),
        ({"cluster": "2x8xh100-sxm", "technique": "nvlink-two-sided", "engine": "sglang"}, "SGLang does not have it"),
    ],
)
def test_where_an_exchange_has_no_place(options, why):
    asked = {"dp": 16, "ep": 16, "engine": "vllm"} | options
    with pytest.raises(Refusal, match=why):
        commtax.bill("deepseek-v3", **asked)


@given(st.sampled_from([(8, 4), (8, 2), (4, 4), (2, 1), (1, 1)]), st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_a_token_has_as_many_copies_as_it_reaches_ranks(groups, ep):
    """No more than its experts, its ranks, or those of the groups that it may choose; fewer ranks never hold more."""
    moe = Experts(256, 8, 1, groups=groups[0], top_groups=groups[1])
    reached, fewer = float(expected_destinations(moe, ep)), float(expected_destinations(moe, ep // 2))
    assert 1 <= fewer <= reached <= min(8, ep, max(1, ep * groups[1] / groups[0]) if ep >= groups[0] else ep) + 1e-9
    together = expected_destinations(moe, np.array([ep // 2, ep]))
    assert together == pytest.approx([fewer, reached], rel=1e-12)


def test_groups_of_experts_match_a_draw():
    """Four of eight groups of 32, then eight of their 128 experts, on four hosts of two groups each."""
    rng = np.random.default_rng(0)
    hosts = []
    for _ in range(2000):
        groups = rng.choice(8, 4, replace=False)
        experts = rng.choice(np.concatenate([np.arange(32 * g, 32 * g + 32) for g in groups]), 8, replace=False)
        hosts.append(len(set(experts // 64)))
    moe = Experts(256, 8, 1, groups=8, top_groups=4)
    assert float(expected_destinations(moe, 4)) == pytest.approx(np.mean(hosts), rel=0.02)


def test_wide_experts_as_published():
    """SGLang, DeepSeek-V3 on 72 H100, 256 tokens a GPU at 2,000-token prompts, without overlap: 17,777 tokens/s a host."""
    plan = {"dp": 72, "ep": 72, "redundant_experts": 32, "ep_backend": "deepep_low_latency"}
    step = commtax.bill("deepseek-v3", "9x8xh100-sxm", engine="sglang", batch=256, context=2050, **plan).step_s
    assert 256 * 8 / step == pytest.approx(17777, rel=0.15)


EPLB = {"eplb": (1.0492, 1.1345, 1.115), "eplb=32": (1.0603, 1.1196, 1.1463)}
"""SGLang on 16 Hopper GPUs: tokens/s over those without a layout by load, of MMLU, GPQA and GSM8K."""


@pytest.mark.parametrize("technique", EPLB)
def test_a_layout_by_load_gains_as_published(technique):
    asked = {"engine": "sglang", "dp": 16, "ep": 16, "batch": 2, "context": 4096, "phase": "prefill"}
    asked["ep_backend"] = "deepep_high_throughput"
    before, after = (commtax.bill("deepseek-v3", "2x8xh200-sxm", **asked, technique=t).step_s for t in ("none", technique))
    assert before / after == pytest.approx(np.mean(EPLB[technique]), rel=0.05)
    perfect = commtax.bill("deepseek-v3", "2x8xh200-sxm", **asked, imbalance=1.0).step_s
    assert perfect < after < before


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exchange_is_no_library(backend):
    with pytest.raises(ValueError, match="unknown library"):
        commtax.expect("all-reduce", "8xh100-sxm", nbytes=1, library=backend)


def test_without_deepep_it_is_not_deepep():
    lines = exchange("", 32, 128)
    assert not any("DeepEP" in line.algorithm for line in lines)


@pytest.mark.skipif(not TABLES.exists(), reason="published tables are not here")
@pytest.mark.parametrize("system", ["h100", "b200"])
@pytest.mark.parametrize(("phase", "width"), [("dispatch", 1 + 4 / 128), ("combine", 2.0)])
def test_rows_that_were_not_fitted_lie_in_the_range(system, phase, width):
    with gzip.open(TABLES / f"{system}_sxm_wideep_deepep_ll.csv.gz", "rt") as file:
        rows = [r for r in csv.DictReader(file) if hashlib.sha256(str(sorted(r.items())).encode()).digest()[0] % 2]
    nbytes = np.array([int(r["num_token"]) * int(r["num_topk"]) * int(r["hidden_size"]) * width for r in rows])
    times = np.array([float(r[f"{phase}_avg_t_us"]) * 1e-6 for r in rows])
    fabric = paths_of("deepep-low-latency", catalog.cluster(f"8x{system}-sxm"))
    path = fabric.paths[phase][0]
    tuned = [for_experts(fabric, int(r["num_experts"]), 132).paths[phase] for r in rows]
    errors = np.abs(np.log([choose(p, n, 8).seconds for p, n in zip(tuned, nbytes, strict=True)] / times))
    assert np.mean(errors <= np.log1p(path.spread)) >= 0.75
    assert np.median(errors) < 0.13


@each("chip", catalog.keys("chips"))
@each("backend", BACKENDS)
def test_no_exchange_beats_its_link_and_a_faster_link_is_never_slower(chip, backend):
    here = catalog.cluster(f"8x{chip}")
    kinds = ("pcie", "xgmi") if here.chip.vendor == "amd" else ("pcie", "nvlink")
    links = [x for x in map(catalog.link, catalog.keys("links")) if x.kind in kinds and x.scope == "intra"]
    if here.chip.family.startswith("blackwell"):  # it never had the NVLink of Volta or of consumer cards
        links = [x for x in links if x.key not in ("nvlink2", "nvlink-bridge-3090")]
    made = [paths_of(backend, replace(here, intra=link)) for link in links]
    for phase in ("dispatch", "combine"):
        took = [choose(m.paths[phase], SIZES, 8).seconds for m in made]
        for link, seconds in zip(links, took, strict=True):
            assert np.all(seconds >= 7 / 8 * SIZES / link.bandwidth_Bps)
        for i, j in permutations(range(len(links)), 2):
            if links[j].bandwidth_Bps > links[i].bandwidth_Bps and links[j].latency_s <= links[i].latency_s:
                assert np.all(took[j] <= took[i] * (1 + 1e-9)), (links[i].key, links[j].key)


@each("backend", ["deepep-low-latency", "deepep-high-throughput"])
def test_another_generation_waits_for_ranks_as_its_smallest_all_reduce_does(backend):
    """One-shot on 8 A100s: 5.027 + 7 x 0.104 us; on H100s, whose exchanges were measured, 2.34 + 7 x 0.154."""
    paths = [paths_of(backend, catalog.cluster(f"8x{chip}")).paths["dispatch"][0] for chip in ("a100-80-sxm", "h100-sxm")]
    waits = (5.027 + 7 * 0.1042) / (2.34 + 7 * 0.1542)
    assert paths[0].launch_s / paths[1].launch_s == pytest.approx(waits, rel=1e-3)
    assert paths[1].sm_Bps / paths[0].sm_Bps == pytest.approx(waits, rel=1e-3)


@given(st.sampled_from(["deepep_low_latency", "deepep_high_throughput"]), st.sampled_from([8, 16, 32, 64]), st.integers(1, 2048))
def test_more_tokens_never_take_less(backend, ep, tokens):
    few, many = (sum(float(x.each_s) for x in exchange(backend, ep, n, f"{ep // 8}x8xh200-sxm")) for n in (tokens, tokens + 64))
    assert few <= many * (1 + 1e-9)
