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
from commtax.cost.collectives import choose
from each import each
from paths import SHARED

TABLES = SHARED / "kernels_more"
BACKENDS = ("deepep-low-latency", "deepep-high-throughput")
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


def test_high_throughput_goes_once_to_each_host():
    """Published: 58 GB/s of 32 ranks, counting the copies that stay: 4,096 tokens to 3.6 of 4 hosts are 1.9 ms."""
    out, _ = exchange("deepep_high_throughput", 32, 4096)
    assert float(out.each_s) == pytest.approx(1.9e-3, rel=0.15)
    assert out.source.startswith("assumed")
    low, high = (float(out.each_s) * np.exp(k * 1.2816 * float(out.sigma)) for k in (-1, 1))
    assert low < 1.6e-3
    assert high > 2.3e-3


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
    path = paths_of("deepep-low-latency", catalog.cluster(f"8x{system}-sxm")).paths[phase][0]
    errors = np.abs(np.log(choose((path,), nbytes, 8).seconds / times))
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


@given(st.sampled_from(["deepep_low_latency", "deepep_high_throughput"]), st.sampled_from([8, 16, 32, 64]), st.integers(1, 2048))
def test_more_tokens_never_take_less(backend, ep, tokens):
    few, many = (sum(float(x.each_s) for x in exchange(backend, ep, n, f"{ep // 8}x8xh200-sxm")) for n in (tokens, tokens + 64))
    assert few <= many * (1 + 1e-9)
