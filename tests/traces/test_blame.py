"""Who is to blame: faults put into made jobs, clocks that differ, and what healthy jobs do."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fault_traces
import plain_traces
from commtax.runs.evidence.finding import CULPRITS, typical_of_ranks
from commtax.runs.traces.accounts import TracedJob, collective_rows, kernel_rows, period_of, step_rows, typical_step
from commtax.runs.traces.causes import blame
from commtax.runs.traces.meeting import Clock, clock_between, coinciding_offset, meet
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.stages import rise
from commtax.runs.traces.trace import KINDS as WORK
from commtax.runs.traces.trace import Trace, coverage, usage
from commtax.runs.traces.trace_audit import audit_traces
from commtax.timeline import Timeline
from each import each
from fault_traces import KINDS, case
from made_traces import decode_graphs, document, event, kernel, launch
from tables import tables

DATA = tables(__file__)
SMALL = [
    ("slow rank", "tp"), ("slow rank", "ddp"), ("late rank", "tp-stream"), ("late rank", "fsdp"), ("slow link", "tp"),
    ("slow link", "pp"), ("starved stage", "pp"), ("lost overlap", "ddp"),
]  # fmt: skip
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 60)), min_size=1, max_size=30)


def job_of(made):
    return TracedJob.of([kineto.parse(d) for d in made.documents])


@each("skew", [0.0, 50.0])
@each(("fault", "job"), SMALL)
def test_a_fault_is_named_and_dated(fault, job, skew):
    """A sample of what ``benchmarks/faults.py`` runs by the hundred."""
    made = case(42, fault, skew, job, ranks=3)
    found, cost = blame(job_of(made))
    assert found is not None
    assert found.kind == fault
    assert found.rank in made.ranks
    assert found.since_s == pytest.approx(made.since_s, abs=made.step_s)
    assert cost > 0


@pytest.mark.parametrize("skew", [0.0, 50.0])
@pytest.mark.parametrize("job", ["tp", "ddp", "pp"])
def test_healthy_jobs_name_nobody(job, skew):
    assert blame(job_of(case(42, None, skew, job, ranks=3))) == (None, 0.0)


@pytest.mark.parametrize("skew", [0.0, 50.0])
def test_traces_with_few_facts_are_blamed_too(skew):
    """No launches, no groups, one kernel for all compute, messages without a direction: of 24 two may be missed."""
    made = [plain_traces.case(seed, kind, skew) for kind in (*KINDS, None) for seed in range(4)]
    found = [blame(job_of(m))[0] for m in made]
    wrong = [
        (m.kind, m.says, f) for m, f in zip(made, found, strict=True)
        if (f.kind if f else None) != m.kind or (f and (f.rank not in m.ranks or abs(f.since_s - m.since_s) > m.step_s))
    ]  # fmt: skip
    assert len(wrong) <= 2, wrong


def test_weights_that_never_overlap_are_told():
    """Sharded weights in training: gathers and scatters that every rank waits for at once, in every step."""
    rng = random.Random(5)
    plan = fault_traces.chosen(rng, "lost overlap", "fsdp", ranks=3)
    plan.since, plan.everyone, plan.wire_us = 0, True, 0.3 * plan.compute_us
    ranks = fault_traces.simulate(fault_traces.program(plan))
    made = [fault_traces.document(r, plan, rng, 0.0, 1e9, True, "profiler") for r in ranks]
    found, _ = blame(TracedJob.of([kineto.parse(d) for d in made]))
    assert (found.kind, found.rank, found.since_s) == ("lost overlap", None, pytest.approx(0.0, abs=1e-5))


def test_every_kind_is_made_and_a_single_slow_step_is_no_rise():
    assert KINDS == CULPRITS
    assert rise(np.array([0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0]), 0.04) is None
    assert rise(np.array([0.9, 0.0, 0.01, 0.0, 0.0, 0.0]), 0.04) is None


def test_skew_changes_no_waiting():
    """The same job under other clocks: the same collectives, wire, waiting and order in time."""
    plain, skewed = (job_of(case(7, "slow rank", skew, "tp", ranks=3)) for skew in (0.0, 50.0))
    assert plain.meetings.by_clock
    assert not skewed.meetings.by_clock
    assert np.allclose(plain.meetings.wire_s, skewed.meetings.wire_s, atol=2e-9)
    assert np.allclose(plain.meetings.start_s, skewed.meetings.start_s, atol=1e-6)
    for a, b in zip(plain.waiting, skewed.waiting, strict=True):
        assert np.allclose(a, b, atol=4e-9)


# Clocks
@given(st.floats(-1, 1), st.floats(-50e-6, 50e-6), st.integers(0, 2**32 - 1))
def test_offset_and_drift_are_found(offset, drift, seed):
    rng = np.random.default_rng(seed)
    own = np.sort(rng.uniform(0, 20, 300))
    ours = Clock(offset, drift, own[0]).job_s(own) + rng.uniform(-2e-6, 2e-6, 300)
    clock, apart = clock_between(ours, own)
    drifts = abs(drift * 20) > 1e-4
    assert np.abs(clock.job_s(own) - ours).max() < (1e-5 if drifts else 1.2e-4)
    assert not drifts or apart < 3e-6
    assert np.allclose(clock.local_s(clock.job_s(own)), own)


@given(st.floats(-0.05, 0.05), st.integers(0, 2**32 - 1))
def test_ends_that_coincide_tell_the_offset(offset, seed):
    rng = np.random.default_rng(seed)
    shared = np.cumsum(rng.uniform(1e-3, 3e-3, 60))
    own = np.sort(np.append(shared, rng.uniform(0, shared[-1], 30)))
    assert coinciding_offset(shared + offset, own) == pytest.approx(offset, abs=2e-6)


def test_groups_that_nobody_told_are_found_by_their_ends():
    """Two tensor-parallel pairs and two data-parallel ones: which ranks end together tells them apart."""
    made = next(c for seed in range(99) if not (c := case(seed, None, 50.0, "tp-dp", 4)).says["told"] and c.says["jitter"] > 0)
    met = meet([kineto.parse(d) for d in made.documents])
    spread = max(np.ptp(met.end_s[a:b]) for a, b in pairwise(np.append(met.first, len(met.place))))
    assert met.unmatched == 0
    assert spread < 1e-6
    assert met.sizes.max() < len(made.documents)


def test_an_exchange_that_is_called_a_message():
    """All-to-alls of experts in a graph are kernels named SendRecv: on all ranks at once, so that they are no pipeline."""
    traces = [kineto.parse(decode_graphs(6, 0, steps=4, rank=r, late_us=3.0 * (r != 1))) for r in range(3)]
    named = [replace(t, collectives=tuple(replace(c, op="send-recv", ranks=3) for c in t.collectives)) for t in traces]
    met = meet(named)
    assert set(met.sizes.tolist()) == {3}
    assert np.allclose(met.wire_s, 5e-6)
    found, _ = blame(TracedJob.of(named))
    assert (found.kind, found.rank) == ("slow rank", 1)


def test_a_rank_that_was_watched_later_is_matched_by_its_ends():
    """The second rank's profiler began three collectives later: the same collectives are found, by their ends."""
    traces = [kineto.parse(d) for d in case(3, None, 50.0, "tp", ranks=2).documents[:2]]
    whole = meet(traces)
    late = Trace(**{name: getattr(traces[1], name) for name in Trace.__slots__} | {"collectives": traces[1].collectives[3:]})
    met = meet([traces[0], late])
    assert len(met.first) == len(whole.first) - 3
    assert np.allclose(met.wire_s, whole.wire_s[3:], atol=1e-9)


# Time that is spent, by an oracle
@given(SPANS, st.lists(st.integers(0, 500), min_size=2, max_size=6, unique=True))
def test_steps_equal_an_oracle_of_nanoseconds(rows, cuts):
    """Every nanosecond of every step, by hand: compute hides communication, both hide copies, the rest is idle."""
    kinds, starts, lengths = (np.array(x) for x in zip(*rows, strict=True))
    line = Timeline(
        np.arange(len(rows)), starts * 1e-9, (starts + lengths) * 1e-9, kinds, ("x",) * len(rows), ("x",) * len(rows), WORK
    )
    running = np.zeros((3, 500), dtype=bool)
    for kind, start, length in rows:
        running[kind, start : start + length] = True
    compute, comm, copy = running
    for begin, end in zip(sorted(cuts)[:-1], sorted(cuts)[1:], strict=True):
        spent, at = usage(line, [(begin * 1e-9, end * 1e-9)]), slice(begin, end)
        oracle = (compute[at], comm[at] & ~compute[at], comm[at] & compute[at], copy[at] & ~comm[at] & ~compute[at])
        told = (spent.compute_s, spent.exposed_s, spent.hidden_s, spent.copy_s)
        assert np.allclose(np.array(told) * 1e9, [o.sum() for o in oracle], atol=1e-3)
        assert spent.idle_s * 1e9 == pytest.approx((~running[:, at].any(axis=0)).sum(), abs=1e-3)


@given(SPANS, st.lists(st.integers(1, 459), max_size=4, unique=True))
def test_named_steps_of_a_trace_without_launches_equal_an_oracle(rows, cuts):
    """The file that a stranger writes: kernels, collectives, copies and steps, and nothing that links them."""
    edges, running = [0, *sorted(cuts), 460], np.zeros((3, 460), dtype=bool)
    names = (("kernel", "gemm"), ("kernel", fault_traces.NCCL["allreduce"]), ("gpu_memcpy", "Memcpy DtoH"))
    events = []
    for stream, (kind, start, length) in enumerate(rows):
        running[kind, start : start + length] = True
        events.append(event(*names[kind], start, length, stream, device=0, stream=stream))
    events += [event("user_annotation", f"ProfilerStep#{i}", b, e - b, 99) for i, (b, e) in enumerate(pairwise(edges))]
    made = TracedJob.of([kineto.parse(document(events))])
    compute, comm, copy = running
    told = {row.index: (row.compute_s, row.exposed_s, row.hidden_s, row.copy_s, row.idle_s) for row in step_rows(made)}
    for i, (begin, end) in enumerate(pairwise(edges)):
        at = slice(begin, end)
        spent = (compute, comm & ~compute, comm & compute, copy & ~comm & ~compute, ~running.any(axis=0))
        assert np.allclose(np.array(told[i]) * 1e6, [s[at].sum() for s in spent], atol=1e-3)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50)), max_size=30), st.integers(0, 300), st.integers(0, 100))
def test_coverage_counts_each_moment_once(spans, begin, length):
    starts = np.array([s for s, _ in spans], dtype=float)
    found = coverage(starts, starts + np.array([n for _, n in spans], dtype=float))
    by_hand = sum(any(s <= t < s + n for s, n in spans) for t in range(begin, begin + length))
    assert found.within(np.array([begin]), np.array([begin + length]))[0] == pytest.approx(by_hand)


@pytest.mark.parametrize("job", ["tp", "fsdp", "pp"])
def test_rows_add_up(job):
    made = job_of(case(11, None, 50.0, job, ranks=3))
    for row in step_rows(made):
        step = next(t for t in made.traces if t.rank == row.rank).steps[row.index]
        assert row.compute_s + row.exposed_s + row.copy_s + row.idle_s == pytest.approx(step.seconds, abs=1e-12)
    rows = collective_rows(made)
    assert sum(r.count for r in rows) == pytest.approx(np.mean([len(t.collectives) for t in made.traces]), rel=0.02)
    lasted = np.mean([sum(c.seconds for c in t.collectives) for t in made.traces])
    if job != "pp":  # stages have different collectives: the mean of those that have one is no stage's own
        assert sum(r.wire_s + r.wait_s for r in rows) == pytest.approx(lasted)
    kernels = kernel_rows(made)
    assert [k.seconds for k in kernels] == sorted((k.seconds for k in kernels), reverse=True)
    shown = typical_step(made)
    assert 0 <= shown.begin_s <= 1e-6
    assert len(shown.name) <= 5000


# Series
@given(st.integers(0, 2**32 - 1), st.integers(6, 40), st.floats(0.1, 0.5))
def test_a_rise_is_found_where_it_begins(seed, count, level):
    rng = np.random.default_rng(seed)
    since = int(rng.integers(2, count - 2))
    found = rise(rng.normal(0, 0.005, count) + level * (np.arange(count) >= since), 0.04)
    assert found is not None
    assert (found.since, found.level) == (since, pytest.approx(level, abs=0.02))
    assert rise(rng.normal(0, 0.005, count), 0.04) is None


# Steps by repetition
def test_what_repeats_is_a_step_and_what_does_not_is_one():
    assert period_of(["warm", "up", *["qkv", "attn", "mlp"] * 4, "head", *(["qkv", "attn", "mlp"] * 4 + ["head"]) * 5]) == 13
    made = decode_graphs(4, 1, steps=5, phase=False)
    for e in made["traceEvents"]:
        if e["cat"] == "cuda_runtime":
            e["name"] = "cudaLaunchKernel"
    section = audit_traces([kineto.parse(made)], None, ["a"])
    assert [(r.index, r.name) for r in section.steps] == [(i, "repetition") for i in range(5)]
    assert any(n.code == "repetition" for n in section.notes)
    events = [e for i, us in enumerate((5, 7, 9)) for e in (launch(i * 20, i), kernel(f"k{i}", i * 20, us, i))]
    ((row),) = audit_traces([kineto.parse(document(events))], None, ["a"]).steps
    assert (row.name, (row.compute_s, row.idle_s)) == ("whole trace", (pytest.approx(21e-6), pytest.approx(28e-6)))


# What is told without a claim
def layered(layers, extra, steps=4, attention=True, norms=True, pause=1, launched="cudaLaunchKernel"):
    """Decode steps with two all-reduces a layer, an attention kernel and two norms."""
    events, at, correlation = [], 0.0, 0
    for _ in range(steps):
        begin = at
        names = ["cross_device_reduce_1stage"] * extra
        for _ in range(layers):
            names += ["rms_norm_kernel"] * norms + [
                "flash_fwd_splitkv_kernel" if attention else "gemv",
                "cross_device_reduce_1stage",
            ]
            names += ["rms_norm_kernel"] * norms + ["gemv", "cross_device_reduce_1stage"]
        for name in names:
            correlation += 1
            events += [launch(at, correlation, launched), kernel(f"void vllm::{name}<x>(y)", at, 4, correlation)]
            at += 4 + pause
        events.append(event("user_annotation", "execute_context_0(0)_generation_1(1)", begin, at - begin - 1))
    return kineto.parse(document(events))


@pytest.mark.parametrize(("layers", "extra", "attention", "says"), DATA["layers_are_told_by_counts"])
def test_layers_are_told_by_counts(layers, extra, attention, says):
    section = audit_traces([layered(layers, extra, attention=attention)], None, ["a"])
    assert [str(n) for n in section.notes if n.code == "layers"] == [says]


@pytest.mark.parametrize(("pause", "launched", "code"), DATA["many_short_pauses_are_launches"])
def test_many_short_pauses_are_launches(pause, launched, code):
    """Each kernel of 4 us is followed by a pause."""
    section = audit_traces([layered(20, 1, pause=pause, launched=launched)], None, ["a"])
    (found,) = [c for c in section.causes if c.code in ("launch-bound", "between kernels", "stall")]
    assert (found.code, found.share) == (code, pytest.approx(pause / (4 + pause), abs=0.01))
    assert "instead of" in found.gain
    assert ("CUDA graphs" in found.change) == (code == "launch-bound")


def test_causes_and_the_typical_step_tell_the_same():
    """Shares of a single rank's causes are those of the step that is shown."""
    section = audit_traces([layered(20, 1, pause=4)], None, ["a"])
    used = typical_of_ranks(section)
    shares = {c.code: c.share for c in section.causes}
    assert shares["launch-bound"] == pytest.approx(used.idle_share)
    assert shares["exposed"] == pytest.approx(used.exposed_share)
    told = {f.code: f.measured for f in section.findings}
    assert (told["idle device, of the step"], told["step"]) == (pytest.approx(used.idle_share), pytest.approx(used.total_s))


def test_a_culprit_is_a_cause_with_its_gain():
    made = case(42, "slow rank", 0.0, "tp", ranks=3)
    section = audit_traces([kineto.parse(d) for d in made.documents], None, ["a"])
    (blamed,) = [c for c in section.causes if c.code == section.culprit.kind == "slow rank"]
    assert f"rank {section.culprit.rank}" in blamed.said
    assert "instead of" in blamed.gain
    costs = [c.cost_s for c in section.causes]
    assert costs == sorted(costs, reverse=True)
    assert {f.predicted for f in section.findings if f.code in ("count", "bytes", "step", "collective")} == {None}
