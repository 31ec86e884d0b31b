"""Routed experts: laws of their form, kernels that carry tokens to them, copies of popular ones and the busiest rank."""

import csv
import gzip
import hashlib
import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here, told_here
from commtax import catalog
from commtax.catalog.fabric import exchange as paths_of
from commtax.catalog.loader import stems
from commtax.cost.collectives import choose, for_experts
from commtax.cost.compute import step_kernels
from commtax.cost.kernels import kernel_source, least_s, peak, seconds, table_of
from commtax.cost.layer_forms import BACKENDS, FORMS, WAYS, RoutedSizes, exchanged_kernel, routed_kernels
from commtax.cost.memory import weights
from commtax.cost.pricing import Pricer
from commtax.cost.traffic import dispatched_bytes, exchange_item, expected_destinations
from commtax.launch.read_command import parse
from commtax.launch.writing import launch_command
from commtax.report.view.state import arguments
from commtax.report.view.state import parse as state_of
from commtax.spec import Experts, Plan, Workload
from commtax.statement import Refusal
from commtax.verbs.settling import AUTO_EP, ask, settle, terms_of
from commtax_lab.published.kernel_kinds.experts import load
from commtax_lab.published.kernel_tables import read as read_kernels
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.kernel_scores import answers
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)
CHIPS = ("a100-80-sxm", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "b300-sxm", "gb200", "rtx-pro-6000", "mi300x")
ENGINES = ("vllm", "sglang", "trtllm", "megatron")
STORES = DATA["stores"]


@pytest.fixture(scope="module")
def errors():
    """Relative errors of the shipped rows of routed experts, none of which was fitted, by family."""
    records = check(only="kernels").records
    mine = records.kind == "experts"
    assert np.sum(mine) > 100
    assert not np.any(records.fitted[mine])
    assert np.all(records.priced[mine])
    found = np.abs(np.expm1(records.log_error[mine]))
    exchanged = np.abs(np.expm1(records.log_error[records.kind == "exchange"]))
    families = {family: found[records.where[mine] == family] for family in set(records.where[mine])}
    return {"": found, "exchange": exchanged, **families}


def sizes(tokens, experts, top_k, ep, hidden, inner, up):
    """The busiest of ``ep`` ranks with equal loads."""
    found = load(tokens, experts, top_k, ep, 0.0)
    elsewhere = tokens * top_k - found.copies
    return RoutedSizes(tokens, found.copies, elsewhere, found.active, experts / ep, experts, hidden, inner, up)


def priced(r, chip, engine, store, backend=""):
    dtype, width = STORES[store]
    constants = catalog.kernel_constants(catalog.engine(engine), catalog.chip(chip))
    kernels = routed_kernels(r, dtype, store, width, backend)
    return sum(sum(seconds(k, catalog.chip(chip), constants)) for k in kernels), kernels, constants


ROUTED = st.builds(
    sizes, st.integers(1, 4096), st.sampled_from([8, 64, 256]), st.sampled_from([1, 4, 8]), st.sampled_from([1, 2, 8]),
    st.sampled_from([1024, 2880, 7168]), st.sampled_from([16, 360, 2048]), st.sampled_from([1.0, 2.0]),
)  # fmt: skip
HERE = st.tuples(st.sampled_from(CHIPS), st.sampled_from(ENGINES), st.sampled_from(list(STORES)), st.sampled_from(BACKENDS))


@given(ROUTED, HERE)
def test_no_price_beats_the_datasheet(r, here):
    """Every weight of a chosen expert is read once, every copy multiplied with it, every token read and written."""
    chip, engine, store, backend = here
    took, kernels, constants = priced(r, chip, engine, store, backend.removeprefix("_"))
    known = catalog.chip(chip)
    assert took >= sum(least_s(k, known, constants) for k in kernels) * (1 - 1e-9)
    assert took >= r.active * r.weights * STORES[store][1] / known.memory_Bps
    assert took >= 2 * r.copies * r.weights / peak(kernels[1], known, constants) * (1 - 1e-9)


@given(ROUTED, HERE, st.sampled_from(["hidden", "inner", "up", "copies", "active", "elsewhere"]))
def test_more_work_never_takes_less(r, here, name):
    chip, engine, store, _ = here
    more = replace(r, **{name: 2 * getattr(r, name)})
    if name in ("copies", "elsewhere"):  # tiles of other rows may waste less: twice the copies are never half the work
        assert priced(more, chip, engine, store)[0] >= 0.5 * priced(r, chip, engine, store)[0]
    else:
        assert priced(more, chip, engine, store)[0] >= priced(r, chip, engine, store)[0] * (1 - 1e-9)


@given(
    st.sampled_from(CHIPS), st.sampled_from(ENGINES), st.sampled_from(WAYS), st.floats(1e3, 1e9), st.integers(2, 64),
    st.integers(1, 32), st.integers(1, 512),
)  # fmt: skip
def test_an_exchange_is_no_faster_than_memory_and_more_of_it_never_faster(chip, engine, way, nbytes, ranks, sms, experts):
    known = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine(engine), known)
    for phase in ("dispatch", "combine"):
        few, many = (exchanged_kernel(phase, f"exchange_{way}", n, ranks, sms, experts) for n in (nbytes, 2 * nbytes))
        assert sum(seconds(few, known, constants)) >= least_s(few, known, constants)
        assert sum(seconds(few, known, constants)) <= sum(seconds(many, known, constants))


def test_rows_that_were_not_fitted(errors):
    assert np.median(errors[""]) < 0.10
    assert np.quantile(errors[""], 0.9) < 0.35
    assert len(errors["exchange"]) >= 20
    assert np.median(errors["exchange"]) < 0.25


@pytest.mark.parametrize("family", ["ampere", "hopper", "ada", "blackwell"])
def test_each_family_on_rows_that_were_not_fitted(errors, family):
    assert np.median(errors[family]) < 0.15


def test_tables_are_those_of_the_family_and_of_the_implementation():
    constants = catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("mi300x"))
    _, kernels, _ = priced(sizes(64, 64, 8, 1, 4096, 1024, 2.0), "mi300x", "vllm", "bf16")
    assert kernel_source(kernels[1], constants).kind == "assumed"
    r = sizes(64, 64, 8, 1, 4096, 1024, 2.0)
    for backend, wanted in (("", "experts.bf16"), ("triton", "experts_triton.bf16"), ("marlin", "experts.bf16")):
        _, kernels, constants = priced(r, "b200-sxm", "sglang", "bf16", backend)
        assert {table_of(k, constants) for k in kernels} == {wanted}


@given(
    st.integers(1, 2000), st.sampled_from([(8, 2), (64, 6), (256, 8)]), st.sampled_from([1, 2, 8]), st.sampled_from([0.0, 0.6, 1.2])
)
def test_loads_add_up(tokens, mixture, ep, skew):
    """Copies of the busiest rank are at least the mean, its experts no more than it has, its tokens no more than there are."""
    experts, top_k = mixture
    found = load(tokens, experts, top_k, ep, skew)
    mean = tokens * top_k / ep
    assert mean * (1 - 1e-9) <= found.copies <= tokens * min(top_k, experts // ep) or not skew
    assert found.active <= min(experts / ep, found.copies)
    assert 0 < found.reached <= min(tokens, found.copies) * (1 + 1e-9)
    if ep == 1:
        assert found.copies == tokens * top_k


@each("wild", ["1e400", "1e18", "0.5", "3"])
@each("column", ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"])
def test_sizes_that_no_mixture_has_are_priced_or_said_to_be_none(column, wild):
    row = {"framework": "vllm", "version": "1", "kernel_source": "x", "moe_dtype": "fp8", "distribution": "power_law_1.2"}
    row |= dict.fromkeys(("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"), "8")
    row |= {"latency_ms": "1", column: wild}
    records = answers(read_kernels("h100_sxm_moe.csv", list(row), [list(row.values())]), np.array([""], dtype=object))
    assert records.predicted[0] > 0 or "not a number above 0" in records.skipped[0]


def test_a_skewed_load_is_heavier_and_groups_match_a_draw():
    loads = [load(512, 128, 8, 8, skew).copies for skew in (0.0, 0.6, 1.01)]
    assert loads == sorted(loads)
    # Four of eight groups of 32, then eight of their 128 experts, on four hosts of two groups each.
    rng = np.random.default_rng(0)
    hosts = []
    for _ in range(2000):
        groups = rng.choice(8, 4, replace=False)
        experts = rng.choice(np.concatenate([np.arange(32 * g, 32 * g + 32) for g in groups]), 8, replace=False)
        hosts.append(len(set(experts // 64)))
    moe = Experts(256, 8, 1, groups=8, top_groups=4)
    assert float(expected_destinations(moe, 4)) == pytest.approx(np.mean(hosts), rel=0.02)


def routed_bytes(model, plan, engine="vllm"):
    kernels = step_kernels(catalog.model(model), plan, Workload(decode_seqs=64, cached_tokens=64000), 64, catalog.engine(engine))
    return {k.part: k for k in kernels if k.part in ("experts", "routing")}


def test_a_step_reads_the_chosen_experts_and_training_keeps_plain_products():
    found = routed_bytes("qwen3-30b-a3b", Plan(tp=2))
    r = found["experts"].shape
    assert r.hidden * r.inner * 3 == 2048 * 768 / 2 * 3
    assert 8 < r.active <= 128
    assert found["experts"].nbytes == pytest.approx(r.active * 3 * 2048 * 384 * 2)
    assert found["experts"].flops == pytest.approx(2 * 64 * 8 * 3 * 2048 * 384)
    work = Workload(prefill_seqs=1, prefill_tokens=512)
    kernels = step_kernels(catalog.model("mixtral-8x7b"), Plan(), work, 512, catalog.engine("megatron"))
    assert {k.form for k in kernels if k.part == "experts"} == {"gemm"}
    priced = commtax.bill("qwen3-30b-a3b", "8xh100-sxm", tp=2, batch=64).lines
    lines = {line.item.part: line for line in priced if line.kind == "compute"}
    assert float(lines["experts"].moving_s) > 0
    assert float(lines["routing"].fixed_s) > 0
    assert lines["experts"].source == "calibrated"


@pytest.mark.parametrize(
    ("engine", "ep", "form"), [("vllm", 1, "experts"), ("vllm", 8, "experts_cutlass"), ("vllm@0.11", 8, "experts")]
)
def test_experts_that_lie_whole_on_ranks_may_run_in_another_kernel(engine, ep, form):
    """vLLM's tables: FlashInfer's CUTLASS kernel for spread experts in fp8 tiles on Hopper, Triton's for cut ones."""
    priced = commtax.bill("deepseek-r1", "8xh200-sxm", engine=engine, tp=8, ep=ep, batch=64)
    assert {line.item.form for line in priced.lines if line.item.part == "experts" and line.item.op.startswith("experts")} == {form}


def test_narrow_slices_have_more_blocks_and_zeros_are_activated():
    """The same work of a rank, 256 experts cut by 8 or 32 whole ones: where each block takes a time, cut ones are slowed more."""
    chip, constants = catalog.chip("b200-sxm"), catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("b200-sxm"))
    table = constants.tables["experts.fp8"]
    cut, whole = (
        RoutedSizes(1024.0, 8192.0, 0.0, 256.0, 256.0, 256, 7168, 256.0),
        RoutedSizes(1024.0, 1024.0, 7168.0, 32.0, 32.0, 256, 7168, 2048.0),
    )
    more = []
    for shape in (cut, whole):
        kernel = routed_kernels(shape, "fp8", "fp8-block", 1.0)[1]
        rates = chip.memory_Bps, chip.flops_per_s["fp8"]
        took = [sum(FORMS["experts"](kernel, {**table, "tb": tb}, *rates)) for tb in (0.0, table["tb"])]
        more.append(float(took[1] - took[0]))
    assert more[0] > more[1] > 0
    # Eight ranks, 1,024 tokens, 8 copies each, experts 2,048 wide inside: 4 passes over 7,168 copies that lie elsewhere.
    chip, constants = catalog.chip("h100-sxm"), catalog.kernel_constants(catalog.engine("sglang"), catalog.chip("h100-sxm"))
    table = constants.tables["experts.fp8"]
    shape = RoutedSizes(1024.0, 1024.0, 7168.0, 32.0, 32.0, 256, 7168, 2048.0)
    kernel = routed_kernels(shape, "fp8", "fp8-block", 1.0)[0]
    rates = chip.memory_Bps, chip.flops_per_s["fp8"]
    told, without = (sum(FORMS["routing"](kernel, {**table, "wide": wide}, *rates)) for wide in (4.0, 0.0))
    assert (table["wide"], told - without) == (4.0, pytest.approx(4 * 7168 * 2048 * 2 / 3.35e12))


TABLES = SHARED / "kernels_more"
EXCHANGES = tuple(stems("exchanges"))
SIZES = np.logspace(2, 10, 120)


def exchange(backend, ep, tokens, cluster=""):
    priced = commtax.bill("deepseek-v3", cluster or f"{ep // 8}x8xh100-sxm", dp=ep, ep=ep, batch=tokens, ep_backend=backend)
    return [line for line in priced.lines if line.item.what in ("expert dispatch", "expert combine") and line.item.is_sent]


LOW_LATENCY = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}

"""Published microseconds of dispatch and combine by ranks, 128 tokens each; 16, 64 and 256 were fitted."""


@pytest.mark.parametrize("ep", LOW_LATENCY)
def test_low_latency_between_hosts(ep):
    for line, measured in zip(exchange("deepep_low_latency", ep, 128), LOW_LATENCY[ep], strict=True):
        assert (float(line.each_s) * 1e6, line.source) == (pytest.approx(measured, rel=0.12), "calibrated")
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


def test_few_experts_are_copied_by_few_multiprocessors_and_wide_ones_as_published():
    """A kernel of low latency has one for each expert: 8 experts on H100 take 8 of 132, and more time for the same bytes."""
    fabric = paths_of("deepep-low-latency", catalog.cluster("8xh100-sxm"))
    few, many = (choose(for_experts(fabric, n, 132).paths["dispatch"], 5e7, 8).seconds for n in (8, 128))
    assert few > 2 * many
    # SGLang, DeepSeek-V3 on 72 H100, 256 tokens a GPU at 2,000-token prompts, without overlap: 17,777 tokens/s a host.
    plan = {"dp": 72, "ep": 72, "redundant_experts": 32, "ep_backend": "deepep_low_latency"}
    step = commtax.bill("deepseek-v3", "9x8xh100-sxm", engine="sglang", batch=256, context=2050, **plan).step_s
    assert 256 * 8 / step == pytest.approx(17777, rel=0.15)
    lines = exchange("", 32, 128)
    assert not any("DeepEP" in line.algorithm for line in lines)


@pytest.mark.parametrize(("options", "why"), DATA["where_an_exchange_has_no_place"])
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


@pytest.mark.parametrize("backend", EXCHANGES)
def test_an_exchange_is_no_library(backend):
    with pytest.raises(ValueError, match="unknown library"):
        commtax.expect("all-reduce", "8xh100-sxm", nbytes=1, library=backend)


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
@each("backend", EXCHANGES)
def test_no_exchange_beats_its_link_and_a_faster_link_is_never_slower(chip, backend):
    here = catalog.cluster(f"8x{chip}")
    kinds = ("pcie", "xgmi") if here.chip.vendor == "amd" else ("pcie", "nvlink")
    links = [x for x in map(catalog.link, catalog.keys("links")) if x.kind in kinds and x.scope == "intra"]
    if here.chip.family.startswith("blackwell"):  # it never had the NVLink of Volta or of consumer cards
        links = [x for x in links if x.key not in ("nvlink2", "nvlink-bridge-3090")]
    made = [paths_of(backend, replace(here, intra=link)) for link in links]
    for phase in ("dispatch", "combine"):
        took = [choose(m.paths[phase], SIZES, 8).seconds for m in made]
        for link, times in zip(links, took, strict=True):
            assert np.all(times >= 7 / 8 * SIZES / link.bandwidth_Bps)
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


WIDE = ("deepseek-v3", "-c", "9x8xh100-sxm", "-tp", "1", "-dp", "72", "-ep")
MIXTURES = ("deepseek-v3", "mixtral-8x7b", "qwen3-235b-a22b", "gpt-oss-120b", "kimi-k2")


def of_experts(model, plan, engine="sglang"):
    """Bytes of routed experts on a rank."""
    lines = weights(catalog.model(model), plan, catalog.engine(engine), 0, 1)
    return next(line.nbytes for line in lines if line.part == "experts")


def test_copies_of_experts_by_hand():
    """256 experts and 32 copies on 72 ranks: 4 each, in 58 layers, of three 7168 x 2048 fp8 matrices with a scale a tile of 128."""
    each = 3 * (7168 * 2048 + 56 * 16 * 4)
    held = of_experts("deepseek-v3", Plan(dp=72, ep=72, redundant_experts=32))
    assert held == pytest.approx(58 * 4 * each, rel=1e-12)
    assert held == pytest.approx(of_experts("deepseek-v3", Plan(dp=64, ep=64)), rel=1e-12)
    # A token goes to as many experts, whichever copy of them.
    asked = {"dp": 16, "ep": 16, "batch": 64, "ep_backend": "deepep_low_latency"}
    plain, copied = (commtax.traffic("deepseek-v3", "2x8xh200-sxm", redundant_experts=n, **asked) for n in (0, 32))
    assert [x.item for x in plain.lines] == [x.item for x in copied.lines]
    with pytest.raises(Refusal, match="training has none"):
        commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, redundant_experts=8)
    step = [commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, **how).step_s for how in ({}, {"imbalance": 1.0})]
    assert step[0] == step[1] < commtax.train_bill("mixtral-8x7b", "8xh100-sxm", dp=8, ep=8, imbalance=1.5).step_s


@given(st.sampled_from(MIXTURES), st.sampled_from([2, 4, 8, 16]), st.integers(0, 64))
@settings(max_examples=30, deadline=None)
def test_copies_weigh_what_experts_weigh(model, ep, groups):
    experts, copies = catalog.model(model).experts.num_experts, groups * ep
    own, more = (of_experts(model, Plan(dp=ep, ep=ep, redundant_experts=n)) for n in (0, copies))
    assert more / own == pytest.approx((experts + copies) / experts, rel=1e-12)
    arrays = of_experts(model, Plan(dp=np.array([1, ep]), ep=np.array([1, ep]), redundant_experts=copies))
    assert arrays[1] == pytest.approx(more, rel=1e-12)
    assert arrays[0] == pytest.approx(own * ep, rel=1e-12)  # not spread: no copies


@given(st.sampled_from(MIXTURES), st.integers(2, 72), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_all_divide_or_the_nearest_that_do_are_named(model, ep, copies):
    total = catalog.model(model).experts.num_experts + copies
    asked = {"dp": ep, "ep": ep, "engine": "vllm", "redundant_experts": copies}
    most = catalog.model(model).experts.num_experts * (ep - 1)
    if total % ep == 0 and copies <= most:
        assert commtax.bill(model, "9x8xh200-sxm", **asked).question.plan.redundant_experts == copies
        return
    with pytest.raises(Refusal, match="redundant experts would do") as refused:
        commtax.bill(model, "9x8xh200-sxm", **asked)
    if refused.value.argument == "ep":  # nobody asked for copies
        assert copies == 0
        return
    assert refused.value.argument == "redundant_experts"
    for near in refused.value.nearest:
        assert (total - copies + near) % ep == 0
        assert abs(near - copies) < ep or near == most
        commtax.bill(model, "9x8xh200-sxm", **asked | {"redundant_experts": near})


@each(
    ("model", "options", "argument"),
    [*DATA["rules"], ("mixtral-8x7b", {"tp": 8, "ep": 8, "redundant_experts": np.array([0, 8])}, "redundant_experts")],
)
def test_rules(model, options, argument):
    for verb in (commtax.bill, commtax.simulate):
        with pytest.raises(Refusal) as refused:
            verb(model, "8xh100-sxm", **options)
        assert refused.value.argument == argument


@pytest.mark.parametrize("words", DATA["where_they_have_no_place"])
def test_where_they_have_no_place(words):
    verb, *options = words
    refused = run_here(verb, "mixtral-8x7b", "-c", "8xh100-sxm", *options)
    assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (2, 1)


@given(st.sampled_from(MIXTURES), st.sampled_from([1, 16, 256]), st.lists(st.floats(1, 8), min_size=2, max_size=2))
@settings(max_examples=25, deadline=None)
def test_a_busier_rank_is_never_faster(model, batch, factors):
    steps = [commtax.bill(model, "8xh200-sxm", tp=1, dp=8, ep=8, batch=batch, imbalance=f).step_s for f in sorted(factors)]
    assert steps[0] <= steps[1] * (1 + 1e-12)


def test_verbs_and_the_page_say_what_was_set():
    options = ("--redundant-experts", "32", "--imbalance", "1.3", "-e", "sglang")
    for verb, *share in (("bill", "--batch", "64"), ("simulate", "--concurrency", "72")):
        said = told_here(verb, *WIDE, *share, *options)
        assert "busiest expert rank 1.3x" in said.stdout
        assert "experts over 72 with 32 redundant ones" in said.stdout
        document = json.loads(said.document)
        assert (document["plan"]["redundant_experts"], document["imbalance"]) == (32, 1.3)
    assert "as routers were seen to choose" in run_here("bill", *WIDE, *options[:2]).stdout
    keys = {"m": "deepseek-v3", "c": "9x8xh100-sxm", "e": "sglang", "dp": "72", "ep": "72", "red": "32", "imb": "1.3", "b": "64"}
    state = state_of(keys.items())
    plan = state.question.plan
    assert (plan.redundant_experts, state.question.what_if.imbalance) == (32, 1.3)
    line = " ".join(arguments(state))
    assert "--redundant-experts 32" in line
    assert "--imbalance 1.3" in line
    spread = state_of((keys | {"dp": "1", "ep": "1", "tp": "8"}).items())
    assert "redundant" not in " ".join(arguments(spread))


@pytest.mark.parametrize(("engine", "words"), DATA["commands_say_copies_and_read_back"])
def test_commands_say_copies_and_read_back(engine, words, tmp_path):
    written = launch_command(ask("deepseek-v3", "9x8xh100-sxm", dp=72, ep=72, engine=engine, redundant_experts=32), engine)
    assert all(word in written for word in words)
    found = parse(written)
    assert (found.axes["ep"], found.options.get("redundant_experts", found.slots - 256)) == (72, 32)
    (tmp_path / "launch.sh").write_text(written)
    asked = ("--batch", "64", "--json")
    read = json.loads(run_here("bill", "-c", "9x8xh100-sxm", "--from", str(tmp_path / "launch.sh"), *asked).stdout)
    direct = json.loads(run_here("bill", *WIDE, "-e", engine, "--redundant-experts", "32", *asked).stdout)
    assert (read["plan"], read["step_s"]) == (direct["plan"], direct["step_s"])
    plain = launch_command(ask("deepseek-v3", "8x8xh100-sxm", dp=64, ep=64, engine=engine), engine)
    assert not any(word in plain for word in ("eplb", "redundant", "num_slots"))


@pytest.mark.parametrize(
    ("flags", "copies", "unread"), [*DATA["other_spellings"], ("--eplb-config nonsense", None, 1), ("--eplb-config [1]", None, 1)]
)
def test_other_spellings(flags, copies, unread):
    found = parse(f"vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel {flags}")
    assert (found.options.get("redundant_experts"), len(found.unread)) == (copies, unread)


def test_slots_in_a_file_of_their_own(tmp_path):
    (tmp_path / "balance.yaml").write_text("num_slots: 288\nlayer_updates_per_iter: 1\n")
    (tmp_path / "llm.yaml").write_text(f"enable_attention_dp: true\nmoe_config:\n  load_balancer: {tmp_path}/balance.yaml\n")
    command = f"trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 72 --ep_size 72 --config {tmp_path}/llm.yaml"
    found = parse(command)
    assert (found.slots, found.unread) == (288, ())
    (tmp_path / "balance.yaml").write_text("num_slots: 128\n")
    assert "num_slots 128 are fewer than the 256 experts" in refusal(run_here("bill", "-c", "9x8xh100-sxm", "--from", command))
    (tmp_path / "balance.yaml").unlink()
    assert "load_balancer" in parse(command).unread[0]


def test_a_search_keeps_them_for_plans_that_spread_experts():
    options = {"redundant_experts": 16, "imbalance": 3.0, "input_len": 256, "output_len": 32}
    found = commtax.plan("qwen3-235b-a22b", "8xh200-sxm", **options)
    rows = [found.put(found.plans, i) for i in range(len(found.plans))]
    assert {q.plan.redundant_experts for q in rows if q.plan.ep > 1} == {16}
    assert {q.what_if.imbalance for q in rows if q.plan.ep > 2} == {3.0}
    assert {(q.plan.redundant_experts, q.what_if.imbalance) for q in rows if q.plan.ep == 1} == {(0, 0.0)}
    plain = commtax.plan("qwen3-235b-a22b", "8xh200-sxm", input_len=256, output_len=32)
    room = [{a.layout(a.plans, i): a.plans.kv_headroom[i] for i in range(5) if a.plans.ep[i] == 1} for a in (found, plain)]
    alone = set(room[0]) & set(room[1])
    assert alone
    assert all(room[0][name] == room[1][name] for name in alone)
    with pytest.raises(Refusal, match="dense"):
        commtax.plan("llama-3.1-8b", "8xh200-sxm", redundant_experts=16)


def test_a_search_passes_over_plans_with_too_many_copies_and_prompts_have_none():
    """Two ranks of 8 experts take 8 copies at most: such plans are rejected by the rule, and others stand."""
    found = commtax.plan("mixtral-8x7b", "8xh100-sxm", redundant_experts=16, input_len=256, output_len=32)
    assert len(found.plans)
    assert 2 not in {int(ep) for ep in found.plans.ep}
    assert any("holds an expert twice" in lost.reason for lost in found.rejected)
    # Their experts lie on one rank: no copies, and no busiest one.
    asked = {"dp": 16, "ep": 16, "concurrency": 16, "disaggregated": True, "redundant_experts": 32, "imbalance": 1.5}
    s = commtax.simulate("deepseek-v3", "4x8xb200-sxm", prefill_tp=1, **asked)
    assert (int(s.question.plan.redundant), int(s.apart.plan.redundant)) == (32, 0)
    # A search for tp begins where experts lie on one rank.
    found = commtax.fit("deepseek-v3", "8xh200-sxm", ep=AUTO_EP, redundant_experts=32, max_model_len=8192)
    assert (int(found.question.plan.tp), found.question.plan.redundant_experts) == (8, 32)
