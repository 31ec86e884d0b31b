"""The closed forms: every reference case, and errors that name the argument."""

import inspect
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog, napkin
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)

CASES = json.loads((FIXTURES / "reference_cases.json").read_text())


def agrees(found, expected, tolerance):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(agrees(found[k], expected[k], tolerance) for k in expected)
    if tolerance["kind"] == "exact" or isinstance(expected, bool):
        return found == expected
    if tolerance["kind"] == "rel":
        return math.isclose(found, expected, rel_tol=tolerance["value"], abs_tol=0)
    return abs(found - expected) <= tolerance["value"]


@each("case", CASES, ids=[c["id"] for c in CASES])
def test_reference_case(case):
    found = getattr(napkin, case["function"])(**case["inputs"])
    assert agrees(found, case["expected"], case["tolerance"]), f"{found} instead of {case['expected']}"


def test_all_reference_cases_are_here():
    assert len(CASES) == 99


@given(st.integers(2, 200), st.integers(1, 400))
def test_min_microbatches_is_the_smallest(stages, m):
    budget = napkin.bubble_fraction(stages, m)
    assert napkin.min_microbatches_for_bubble(stages, budget) == m


@given(st.integers(1, 64), st.floats(1e-6, 1.0))
def test_min_microbatches_meets_any_budget(stages, budget):
    m = napkin.min_microbatches_for_bubble(stages, budget)
    assert napkin.bubble_fraction(stages, m) <= budget
    assert m == 1 or napkin.bubble_fraction(stages, m - 1) > budget


@given(st.integers(0, 2**40), st.integers(1, 4096), st.floats(1e6, 1e13), st.floats(0, 1))
def test_ring_time_splits_into_its_two_terms(payload, ranks, bandwidth, latency):
    whole = napkin.allreduce_time_s(payload, ranks, bandwidth, latency)
    wire = napkin.ring_allreduce_traffic_per_rank(payload, ranks) / bandwidth
    assert math.isclose(whole, wire + 2 * (ranks - 1) * latency, rel_tol=1e-12)
    if ranks == 1:
        assert whole == 0


@given(st.integers(2, 512), st.floats(1e6, 1e13), st.floats(1e-8, 1e-2))
def test_at_the_crossover_latency_equals_bandwidth(ranks, bandwidth, latency):
    payload = napkin.crossover_payload_bytes(ranks, bandwidth, latency)
    wire = napkin.ring_allreduce_traffic_per_rank(payload, ranks) / bandwidth
    assert math.isclose(wire, 2 * (ranks - 1) * latency, rel_tol=1e-9)


def valid_inputs(name):
    return next(dict(c["inputs"]) for c in CASES if c["function"] == name)


FUNCTIONS = sorted({c["function"] for c in CASES})


@each("name", FUNCTIONS)
@each("bad", [-1, math.nan, math.inf, "8", None, True], ids=str)
def test_bad_values_name_the_argument(name, bad):
    function = getattr(napkin, name)
    for argument, value in valid_inputs(name).items():
        if isinstance(value, dict):
            continue
        with pytest.raises(ValueError, match=argument):
            function(**{**valid_inputs(name), argument: bad})


@each("name", FUNCTIONS)
def test_fractional_counts_are_refused_and_whole_floats_pass(name):
    function, inputs = getattr(napkin, name), valid_inputs(name)
    counts = [a for a in inputs if a.startswith(("num_", "batch_", "tp", "pp", "hidden", "top_k")) and inputs[a] is not None]
    for argument in counts:
        with pytest.raises(ValueError, match=argument):
            function(**{**inputs, argument: 2.5})
        assert function(**{**inputs, argument: float(inputs[argument])}) == function(**inputs)


@each("name", FUNCTIONS)
def test_zero_ranks_or_bandwidth_are_refused(name):
    inputs = valid_inputs(name)
    for argument in inputs:
        if argument in ("num_ranks", "num_gpus", "num_stages", "num_microbatches") or "bandwidth" in argument:
            with pytest.raises(ValueError, match=argument):
                getattr(napkin, name)(**{**inputs, argument: 0})


@each("name", FUNCTIONS)
def test_unknown_keywords_are_type_errors(name):
    with pytest.raises(TypeError):
        getattr(napkin, name)(**valid_inputs(name), no_such_argument=1)


def test_extremes_neither_hang_nor_overflow():
    for call in (
        lambda: napkin.min_microbatches_for_bubble(8, 1e-300),
        lambda: napkin.allreduce_time_s(1e308, 2, 1e-308, 0),
        lambda: napkin.allreduce_payload_bytes(1e308, 1e308),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    assert napkin.comm_fraction(1e59, 1e59) == 0.5


def test_zero_sizes_are_free():
    assert napkin.tp_comm_time_per_step(0, 4096, 32, 1, 1e9, 1e-6) == 0
    assert napkin.tp_comm_time_per_step(8, 4096, 0, 8, 1e9, 1e-6) == 0
    assert napkin.ep_alltoall_bytes_per_rank(0, 4096, 2, 32, 8) == 0
    assert napkin.comm_fraction(0, 0) == 0


def test_slower_link_that_is_already_faster_needs_no_overlap():
    link = {"bandwidth_Bps": 1e9, "latency_s": 1e-6}
    assert napkin.breakeven_overlap_fraction(link, link, 1, 4096, 32, 2) == 0
    with pytest.raises(ValueError, match="slow"):
        napkin.breakeven_overlap_fraction({"bandwidth_Bps": 1e9}, link, 1, 4096, 32, 2)


def test_the_lab_and_compare_find_the_same_share_of_their_own_times():
    """The lab's rings 41 %, the kernels of an engine 74 %: one definition, other latencies."""
    slow, fast = {"bandwidth_Bps": 50e9, "latency_s": 5e-6}, {"bandwidth_Bps": 450e9, "latency_s": 3e-6}
    assert round(napkin.breakeven_overlap_fraction(slow, fast, 1, 4096, 32, 2), 2) == 0.41
    swept = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["link=nvlink4,ib-ndr"], tp=2, batch=1)
    near, far = (float(row.bill.exposed_comm_s) for row in swept.rows)
    shares = [swept.breakeven_overlap(row) for row in swept.rows]
    assert shares == [0, napkin.breakeven_overlap(far, near)]
    assert round(shares[1], 2) == 0.74
    hidden = commtax.bill("llama-3.1-8b", catalog.cluster("2x1xh100-sxm", inter="ib-ndr"), tp=2, batch=1, overlap=shares[1])
    assert float(hidden.step_s) == pytest.approx(float(swept.rows[0].bill.step_s), rel=0.001)


def test_signatures_are_the_contract():
    assert inspect.signature(napkin.tp_tax).parameters["tp"].default == 2
    parameters = inspect.signature(napkin.overlap_calculator).parameters
    keyword_only = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert tuple(keyword_only) == DATA["signatures_are_the_contract"]
