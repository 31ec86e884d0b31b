"""Routed experts: laws of their form, rows that were not fitted, how loads are spread, and what a step makes of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.compute import step_kernels
from commtax.cost.kernels import kernel_source, least_s, peak, seconds, table_of
from commtax.cost.layer_forms import BACKENDS, FORMS, WAYS, RoutedSizes, exchanged_kernel, routed_kernels
from commtax.spec import Plan, Workload
from commtax_lab.published.kernel_kinds.experts import load
from commtax_lab.published.kernel_tables import read as read_kernels
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.kernel_scores import answers
from each import each
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
    return {
        "": found,
        "exchange": exchanged,
        **{family: found[records.where[mine] == family] for family in set(records.where[mine])},
    }


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
    sizes,
    st.integers(1, 4096),
    st.sampled_from([8, 64, 256]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1024, 2880, 7168]),
    st.sampled_from([16, 360, 2048]),
    st.sampled_from([1.0, 2.0]),
)
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
    st.sampled_from(CHIPS),
    st.sampled_from(ENGINES),
    st.sampled_from(WAYS),
    st.floats(1e3, 1e9),
    st.integers(2, 64),
    st.integers(1, 32),
    st.integers(1, 512),
)
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


def test_exchanges_that_were_not_fitted(errors):
    assert len(errors["exchange"]) >= 20
    assert np.median(errors["exchange"]) < 0.25


@pytest.mark.parametrize("family", ["ampere", "hopper", "ada", "blackwell"])
def test_each_family_on_rows_that_were_not_fitted(errors, family):
    assert np.median(errors[family]) < 0.15


def test_a_family_without_tables_has_those_of_others():
    constants = catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("mi300x"))
    _, kernels, _ = priced(sizes(64, 64, 8, 1, 4096, 1024, 2.0), "mi300x", "vllm", "bf16")
    assert kernel_source(kernels[1], constants).kind == "assumed"


def test_an_implementation_has_its_own_table_where_it_differs():
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


def test_a_skewed_load_is_heavier():
    loads = [load(512, 128, 8, 8, skew).copies for skew in (0.0, 0.6, 1.01)]
    assert loads == sorted(loads)


def routed_bytes(model, plan, engine="vllm"):
    kernels = step_kernels(catalog.model(model), plan, Workload(decode_seqs=64, cached_tokens=64000), 64, catalog.engine(engine))
    return {k.part: k for k in kernels if k.part in ("experts", "routing")}


def test_a_step_reads_the_chosen_experts():
    found = routed_bytes("qwen3-30b-a3b", Plan(tp=2))
    r = found["experts"].shape
    assert r.hidden * r.inner * 3 == 2048 * 768 / 2 * 3
    assert 8 < r.active <= 128
    assert found["experts"].nbytes == pytest.approx(r.active * 3 * 2048 * 384 * 2)
    assert found["experts"].flops == pytest.approx(2 * 64 * 8 * 3 * 2048 * 384)


def test_training_keeps_plain_products():
    kernels = step_kernels(
        catalog.model("mixtral-8x7b"), Plan(), Workload(prefill_seqs=1, prefill_tokens=512), 512, catalog.engine("megatron")
    )
    assert {k.form for k in kernels if k.part == "experts"} == {"gemm"}


def test_the_bill_tells_products_from_what_is_around_them():
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


def test_narrow_slices_have_more_blocks():
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
        took = [
            sum(FORMS["experts"](kernel, {**table, "tb": tb}, chip.memory_Bps, chip.flops_per_s["fp8"]))
            for tb in (0.0, table["tb"])
        ]
        more.append(float(took[1] - took[0]))
    assert more[0] > more[1] > 0


def test_zeros_for_copies_of_other_ranks_are_activated_as_all_others_are():
    """Eight ranks, 1,024 tokens, 8 copies each, experts 2,048 wide inside: 4 passes over 7,168 copies that lie elsewhere."""
    chip, constants = catalog.chip("h100-sxm"), catalog.kernel_constants(catalog.engine("sglang"), catalog.chip("h100-sxm"))
    table = constants.tables["experts.fp8"]
    shape = RoutedSizes(1024.0, 1024.0, 7168.0, 32.0, 32.0, 256, 7168, 2048.0)
    kernel = routed_kernels(shape, "fp8", "fp8-block", 1.0)[0]
    told, without = (
        sum(FORMS["routing"](kernel, {**table, "wide": wide}, chip.memory_Bps, chip.flops_per_s["fp8"])) for wide in (4.0, 0.0)
    )
    assert table["wide"] == 4.0
    assert told - without == pytest.approx(4 * 7168 * 2048 * 2 / 3.35e12)
