"""Steps of a trace: what belongs to one, how long it is wherever that is told, and what its collectives are of, by counts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.evidence.finding import Audit, typical_of_ranks
from commtax.runs.traces.claim_check import both_means
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.run_differences import difference
from commtax.runs.traces.trace import EVER, TraceStep, extend_steps
from commtax.runs.traces.trace_audit import audit_traces
from commtax.units import format_seconds
from made_traces import document, event, kernel, launch

BACKWARD = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
SIZES = {"allreduce": 1000, "all_to_all": 300, "allgather": 50}


def told(*documents):
    return audit_traces([kineto.parse(d) for d in documents], None, ["a"])


def by_code(section, code):
    return {f.of: f.measured for f in section.findings if f.code == code}


# What belongs to a step


def gapped(pause_us, inside, late_us=0, before=()):
    """1.8 ms of kernels, a pause in which the host is in one call, and a few more kernels, launched behind it or before it."""
    events = [event("user_annotation", "ProfilerStep#7", 0, 1900 + pause_us + 900), *before]
    for i in range(18):
        events += [launch(10 * i, i, "hipLaunchKernel"), kernel("Cijk_Alik_Bljk", 20 + 100 * i, 100, i)]
    events.append(event("cuda_runtime", inside, 1000, 800 + pause_us, correlation=900))
    for i in range(18, 22):
        at = 1830 + pause_us + 200 * (i - 18)
        events += [launch(at - 10 if not late_us else 200, i, "hipLaunchKernel"), kernel("vectorized", at + late_us, 12, i)]
    return document(events)


@pytest.mark.parametrize("inside", ["hipMemcpyWithStream", "hipDeviceSynchronize", "hipModuleLoadData", "hipMalloc"])
def test_kernels_behind_a_pause_of_the_host_belong_to_the_step_that_launched_them(inside):
    """The host is in a call of the driver for 6.6 ms between two launches of one step: it was read as a step of 1.8 ms."""
    section = told(gapped(6600, inside))
    (row,) = section.steps
    assert typical_of_ranks(section).total_s == pytest.approx((1830 + 6600 + 612 - 20) * 1e-6)
    assert row.idle_s > 6.6e-3
    assert not any(n.code == "strays" for n in section.notes)
    (stall,) = [c for c in section.causes if c.code == "stall"]
    assert "pauses of up to 6.61 ms" in stall.said


@pytest.mark.parametrize(
    ("inside", "microseconds"), [("hipModuleLoadData", 7000), ("hipMalloc", 7000), ("hipStreamSynchronize", 400)]
)
def test_kernels_ahead_of_the_first_step_s_others(inside, microseconds):
    """Code that is loaded between them is the host's own time; while it waits, the device may run what is not in the trace."""
    events = [event("user_annotation", "ProfilerStep#0", 0, 7100), event("cuda_runtime", inside, 3, 6590, correlation=9)]
    for number, (at, lasts) in enumerate([(0, 2), (6600, 200), (6800, 200)]):
        events += [launch(at, number), kernel("void gemm(float)", at, lasts, number)]
    (step,) = kineto.parse(document(events)).steps
    assert step.seconds == pytest.approx(microseconds * 1e-6)


def test_a_kernel_that_was_launched_long_before_it_ran_is_still_a_stray():
    section = told(gapped(6600, "hipDeviceSynchronize", late_us=200_000))
    assert typical_of_ranks(section).total_s == pytest.approx(1.8e-3)
    assert any("4 device events far" in n for n in section.notes)
    assert not any("pauses" in c.said for c in section.causes), "a pause behind the step is none of its own"


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20_000)), min_size=2, max_size=12))
def test_a_step_holds_all_that_it_launches_as_it_goes(work):
    """Kernels that run as soon as they are launched, with pauses of any length between: the step is from the first to the last."""
    events, at = [kernel("before", 0, 5, 999)], 10
    for number, (lasts, pause) in enumerate(work):
        events += [launch(at, number), kernel("gemm", at + 1, lasts, number)]
        events.append(event("cuda_runtime", "cudaStreamSynchronize", at + 2, lasts + pause, correlation=500 + number))
        at += lasts + pause + 4
    (step,) = kineto.parse(document([*events, event("user_annotation", "ProfilerStep#1", 9, at)])).steps
    assert step.start_s == pytest.approx(11e-6)
    assert step.end_s == pytest.approx((at - work[-1][1] - 3) * 1e-6)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200), st.booleans()), min_size=2, max_size=10))
def test_a_step_lasts_until_the_next_unless_host_and_device_rest(work):
    """A host that is in its step all the while loads data: that is part of the step, however long the device waits."""
    steps, at = [], 0.0
    for length, gap, hosted in work:
        host = (at, at + length + gap if hosted else at + length)
        steps.append(TraceStep(0, "x", at, at + length, host))
        at += length + gap
    for (before, after), (length, gap, hosted) in zip(pairwise(extend_steps(steps)), work, strict=False):
        assert before.end_s == (after.start_s if hosted or gap <= length else before.start_s + length)
    assert extend_steps([TraceStep(0, "x", 0.0, 1.0, EVER), TraceStep(1, "x", 9.0, 10.0, EVER)])[0].end_s == 1.0


# One length of a step


def sent(op, at, number, count=1000, dtype="Byte", group=4):
    said = {"Collective name": op, "In msg nelems": count, "Out msg nelems": count, "dtype": dtype, "Group size": group}
    return [launch(at - 1, number), kernel("ncclDevKernel_SendRecv(x)", at, 40, number, 20, **said)]


def steps_of(lengths, ops=tuple(SIZES), gap=0, name="ProfilerStep#{}", hosted=True, odd=()):
    """Steps of compute with one collective of each kind; some have none of them, and a pause follows each."""
    events, at, number = [], 100, 0
    for i, length in enumerate(lengths):
        events.append(event("user_annotation", name.format(i), at - 5, length + (gap if hosted else 0)))
        number += 1
        events += [launch(at - 2, number), kernel("gemm", at, length, number)]
        for j, op in enumerate(() if i in odd else ops):
            number += 1
            events += sent(op, at + 5 + 45 * j, number, SIZES[op] + i)
        at += length + gap
    return document(events)


RUNS = {
    "even": steps_of([400] * 6),
    "uneven": steps_of([400, 500, 450, 900, 410, 430, 420]),
    "a step without collectives": steps_of([400, 410, 2000, 420, 430], odd=(2,)),
    "data is loaded between steps": steps_of([400] * 6, gap=700),
    "nothing is asked between steps": steps_of([400] * 6, gap=700, name="execute_context_0(0)_generation_1({})", hosted=False),
    "one step": steps_of([400]),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_a_step_has_one_length_in_all_tables(run):
    section = told(run)
    found = difference(Audit(None, (section,)), Audit(None, (section,)))
    (length,) = by_code(section, "step").values()
    assert typical_of_ranks(section).total_s == pytest.approx(length)
    assert [used.total_s for _, used in section.usage] == pytest.approx([length])
    assert found.step.before == pytest.approx(length)
    assert [c.before for c in found.metrics if c.item.endswith("step") and c.unit == "s"] == pytest.approx([length])
    assert all(f"instead of {format_seconds(length)}" in c.gain for c in section.causes)


def test_what_lies_between_steps_is_theirs_where_the_host_is_in_them():
    loading, asking = (told(RUNS[name]) for name in ("data is loaded between steps", "nothing is asked between steps"))
    assert typical_of_ranks(loading).total_s == pytest.approx(1100e-6)
    assert typical_of_ranks(asking).total_s == pytest.approx(400e-6)
    assert typical_of_ranks(asking).idle_s == pytest.approx(0, abs=1e-9)


def test_one_rank_s_rest_is_part_of_its_step_while_the_others_work():
    engine = {"name": "execute_context_0(0)_generation_1({})", "hosted": False}
    rests, works = steps_of([400] * 6, gap=700, **engine), steps_of([1100] * 6, **engine)
    works["distributedInfo"] = {"rank": 1, "world_size": 2}
    mixed, resting = told(rests, works), told(rests, {**rests, "distributedInfo": works["distributedInfo"]})
    assert [used.total_s for _, used in mixed.usage] == pytest.approx([1100e-6, 1100e-6])
    assert [used.total_s for _, used in resting.usage] == pytest.approx([400e-6, 400e-6])


# Two runs


def test_a_figure_is_compared_with_its_own_of_the_other_run():
    """B has no all-gathers: its all-reduces were compared with A's all-gathers, and its all-to-alls with A's all-reduces."""
    before, after = steps_of([400] * 5), steps_of([400] * 5, ops=("allreduce", "all_to_all"))
    first, second = told(before), told(after)
    found = difference(Audit(None, (first,)), Audit(None, (second,)))
    for op, word in (("all-reduce", "allreduce"), ("all-to-all", "all_to_all")):
        (change,) = [c for c in found.metrics if c.item == f"{op} bytes per step"]
        assert (change.before, change.after) == (by_code(first, "bytes")[op], by_code(second, "bytes")[op])
        assert change.before == pytest.approx(SIZES[word] + 2)
    assert not any("all-gather" in c.item for c in found.metrics)


@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_bytes_of_a_step_are_the_same_in_both_tables(run):
    """Of two ranks whose messages differ in size, too: each rank's own are counted, not the sum over their sizes."""
    other = {**run, "traceEvents": [dict(e) for e in run["traceEvents"]], "distributedInfo": {"rank": 1, "world_size": 2}}
    for e in other["traceEvents"]:
        if "In msg nelems" in e["args"]:
            e["args"] = {
                **e["args"],
                "In msg nelems": 2 * e["args"]["In msg nelems"],
                "Out msg nelems": 2 * e["args"]["Out msg nelems"],
            }
    for traces in ((run,), (run, other)):
        section = told(*traces)
        found = difference(Audit(None, (section,)), Audit(None, (section,)))
        assert {c.op: c.before.nbytes for c in found.collectives} == pytest.approx(by_code(section, "bytes"))
        assert {c.before.count for c in found.collectives} == {1.0}


# What collectives are of


def trained(gradients, reduces, steps=5, reduce_us=(11,)):
    """Training steps with so many gradients and all-reduces each."""
    events, at, number = [], 100, 0
    for i in range(steps):
        begin = at
        for _ in range(gradients):
            events.append(event("cpu_op", BACKWARD, at, 3, tid=9))
            events.append(event("cpu_op", "torch::autograd::AccumulateGrad", at + 1, 1, tid=9))
            number += 1
            events += [launch(at, number), kernel("gemm", at, 9, number)]
            at += 10
        for j in range(reduces):
            number += 1
            made = sent("allreduce", at, number)
            made[1]["dur"] = reduce_us[j % len(reduce_us)]
            events += made
            at += made[1]["dur"] + 1
        events.append(event("user_annotation", f"ProfilerStep#{i}", begin - 5, at - begin))
    return document(events)


@pytest.mark.parametrize(
    ("gradients", "reduces", "says"),
    [
        (44, 44, "44 all-reduces per step, one for each of 44 gradients (AccumulateGrad): they are not bucketed"),
        (44, 45, "45 all-reduces per step, one for each of 44 gradients (AccumulateGrad): they are not bucketed"),
        (12, 10, "10 all-reduces and 12 gradients (AccumulateGrad) per step: at most 10 buckets of gradients"),
        (44, 5, "5 all-reduces and 44 gradients (AccumulateGrad) per step: at most 5 buckets of gradients"),
        (22, 44, "44 all-reduces and 22 gradients (AccumulateGrad) per step: not all of them are of gradients"),
    ],
)
def test_gradients_are_counted(gradients, reduces, says):
    """As many all-reduces as gradients were told as two for each of half as many layers, of which nothing in the trace speaks."""
    section = told(trained(gradients, reduces))
    assert [str(n) for n in section.notes if n.code in ("layers", "gradients")] == [says]
    (exposed,) = [c for c in section.causes if c.code == "exposed"]
    assert ("buckets" in exposed.change) == (abs(gradients - reduces) <= 1)


def test_what_crosses_hosts_is_not_always_tensor_parallel():
    """44 all-reduces per step over two hosts were advised to stay inside one, as if each were a layer's."""
    device = {"name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84990623744, "numSms": 108}
    section = told({**trained(44, 44), "deviceProperties": [{**device, "id": i} for i in range(2)]})
    (crossing,) = [c for c in section.causes if c.code == "crosses hosts"]
    assert "buckets" in crossing.change


def test_a_median_far_from_its_mean_stands_beside_it():
    """Nine all-reduces of 11 us and one of 1,671: 11 and 177 us."""
    section = told(trained(0, 10, reduce_us=(*[11] * 9, 1671)))
    both = {f.item.split(" (")[0]: f.measured for f in section.findings if f.of == "all-reduce" and f.unit == "s"}
    assert both == {"one all-reduce, median": pytest.approx(11e-6), "one all-reduce, mean": pytest.approx(177e-6)}
    even = told(trained(0, 10, reduce_us=(11, 12)))
    assert [f.item.split(" (")[0] for f in even.findings if f.of == "all-reduce" and f.unit == "s"] == ["one all-reduce"]
    assert both_means("all-reduce", "none", [])[1] is None


# Waiting on a device


@pytest.mark.parametrize("name", ["event_wait", "EVENT_WAIT", "Notify_Wait"])
def test_a_stream_that_waits_for_an_event_is_not_busy(name):
    """MTIA: 200 us of kernels and 700 us of waiting in the same stream were 100 % compute."""
    events, ran = [event("user_annotation", "ProfilerStep#0", 0, 1000)], (("fba", 10, 100), (name, 110, 700), ("fba", 810, 100))
    for number, (what, at, lasts) in enumerate(ran):
        events.append(event("mtia_runtime", "runFunction", at - 5, 2, correlation=number))
        events.append(event("mtia_ccp_events", what, at, lasts, 1, device=0, stream=1, correlation=number))
    section = told(document(events))
    used = typical_of_ranks(section)
    assert (used.total_s, used.compute_s, used.idle_s) == pytest.approx((900e-6, 200e-6, 700e-6))
    assert {(k.name, k.kind) for k in section.kernels} == {("fba", "compute"), (name, "wait")}
