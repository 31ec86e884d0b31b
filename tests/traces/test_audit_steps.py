"""Steps and groups of a trace: what belongs to one, hand-counted rows; names of kernels, and traces of our own."""

import json
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax.runs.audit import audit, formats
from commtax.runs.evidence.collective_names import algorithm_of, kernel_op, operator_op
from commtax.runs.evidence.finding import Audit, typical_of_ranks
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.causes import microbatches
from commtax.runs.traces.claim_check import both_means
from commtax.runs.traces.meeting import coinciding_offset
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.run_differences import difference
from commtax.runs.traces.trace import EVER, TraceStep, extend_steps
from commtax.runs.traces.trace_audit import audit_traces
from commtax.timeline import Timeline
from commtax.units import format_seconds
from each import each
from fault_traces import NCCL
from made_traces import document, event, kernel, launch
from paths import FIXTURES
from tables import tables
from texts import put

DATA = tables(__file__)
BACKWARD = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
SIZES = {"allreduce": 1000, "all_to_all": 300, "allgather": 50}
H100 = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504, "numSms": 132}
REDUCE, GATHER, SCATTER, MESSAGE = (NCCL[key] for key in ("allreduce", "_allgather_base", "_reduce_scatter_base", "send"))
NAMES = json.loads((FIXTURES / "audit" / "kernel-names.json").read_text())
"""Found in public sources and profiles; each says where."""
KINDS = ("compute", "comm", "copy", "F", "decode")
SLICE = st.tuples(st.integers(0, 2), st.integers(0, 10**7), st.integers(0, 10**5), st.integers(0, 4))


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
    assert (step.start_s, step.end_s) == (pytest.approx(11e-6), pytest.approx((at - work[-1][1] - 3) * 1e-6))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200), st.booleans()), min_size=2, max_size=10))
def test_a_step_lasts_until_the_next_unless_host_and_device_rest(work):
    """A host that is in its step all the while loads data: that is part of the step, however long the device waits."""
    steps, at = [], 0.0
    for length, gap, hosted in work:
        steps.append(TraceStep(0, "x", at, at + length, (at, at + length + gap if hosted else at + length)))
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


def test_rests_between_steps_are_theirs_while_a_host_or_another_rank_works():
    loading, asking = (told(RUNS[name]) for name in ("data is loaded between steps", "nothing is asked between steps"))
    assert typical_of_ranks(loading).total_s == pytest.approx(1100e-6)
    assert typical_of_ranks(asking).total_s == pytest.approx(400e-6)
    assert typical_of_ranks(asking).idle_s == pytest.approx(0, abs=1e-9)
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


@pytest.mark.parametrize(("gradients", "reduces", "says"), DATA["gradients_are_counted"])
def test_gradients_are_counted(gradients, reduces, says):
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


class Rank:
    """One rank's kernels one after the other, each launched; steps are named."""

    def __init__(self, rank):
        self.rank, self.at, self.events = rank, 1000.0, []

    def ran(self, name, us, stream=7, begin=None, **args):
        begin = self.at if begin is None else begin
        number = len(self.events)
        self.events += [launch(begin - 3, number), kernel(name, begin, us, number, stream, **args)]
        self.at = max(self.at, begin + us)

    def sent(self, name, us, members, nbytes, **where):
        told = {"Collective name": "send" if name == MESSAGE else "allreduce", "dtype": "BFloat16", "Group size": len(members)}
        told |= {"In msg nelems": nbytes // 2, "Out msg nelems": nbytes // 2}
        told |= {"Process Group Name": str(members), "Process Group Ranks": str(list(members))}
        self.ran(name, us, **told, **where)

    def shown(self, told, name, us, members, **where):
        """A collective of 4 kB, with or without what PyTorch tells of it."""
        self.sent(name, us, members, 4096, **where) if told else self.ran(name, us, **where)

    def step(self, number, begin):
        self.events.append(event("user_annotation", f"ProfilerStep#{number}", begin - 4, self.at - begin - 1))

    def trace(self, world, devices=0):
        listed = [{"id": i, **H100} for i in range(devices)]
        head = {"distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world}}
        return kineto.parse(document(self.events, self.rank, world, **head, **({"deviceProperties": listed} if devices else {})))


def two_by_two(devices=4, inside_us=60.0, across_us=300.0):
    """Four ranks: pairs that meet thrice a step, and pairs across them that meet once."""
    ranks = [Rank(r) for r in range(4)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            for _ in range(3):
                r.ran("gemm", 200.0)
                r.sent(REDUCE, inside_us, (0, 1) if r.rank < 2 else (2, 3), 8 << 20)
            r.sent(REDUCE, across_us, (r.rank % 2, r.rank % 2 + 2), 64 << 20)
            r.step(step, begin)
    return audit_traces([r.trace(4, devices) for r in ranks], None, "abcd")


def test_rows_of_collectives_add_up_to_what_one_rank_has():
    rows = two_by_two().collectives
    assert [(r.group, r.ranks, r.count) for r in sorted(rows, key=lambda r: r.count)] == [
        ("(0, 2) and 1 more", 2, 4),
        ("(0, 1) and 1 more", 2, 12),
    ]
    assert sum(r.nbytes for r in rows) == 4 * (3 * (8 << 20) + (64 << 20))
    assert sum(r.wire_s for r in rows) == pytest.approx(4 * (3 * 60e-6 + 300e-6))


def test_one_collective_is_of_those_that_the_first_rank_is_in():
    (found,) = [f for f in two_by_two().findings if f.code == "collective"]
    assert found.measured == pytest.approx(60e-6)  # three of its four


@pytest.mark.parametrize(("devices", "told"), [(4, True), (2, False)])
def test_only_groups_inside_a_host_are_held_against_its_links(devices, told):
    """64 MiB in 3 ms are a twentieth of NVLink, and may be a good network; what the link costs is summed message by message."""
    (link,) = [c for c in two_by_two(devices, 600.0, 3000.0).causes if c.code == "link"]
    usual = 0.8 * 450e9
    lost = 3 * (600e-6 - (8 << 20) / usual) + told * (3000e-6 - (64 << 20) / usual)
    assert link.cost_s == pytest.approx(lost, rel=1e-6)


def test_ranks_that_are_not_here_and_late_gathers_are_causes():
    ranks = [Rank(r) for r in range(2)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            r.ran("gemm", 100.0)
            r.sent(REDUCE, 50.0, tuple(range(8)), 1 << 20)
            r.step(step, begin)
    (found,) = [c for c in audit_traces([r.trace(8) for r in ranks], None, "ab").causes if c.code == "exposed"]
    assert found.said.endswith("; waiting for the 6 ranks that are not here included")
    assert "none of it hides" in found.said
    ranks = [Rank(r) for r in range(2)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            for _ in range(3):
                r.ran(GATHER, 60.0, stream=20)
                r.ran("gemm", 200.0)
            r.ran(SCATTER, 40.0, stream=20)
            r.events.append(event("user_annotation", "Optimizer.step#AdamW.step", r.at - 9, 1))
            r.step(step, begin)
    (found,) = [c for c in audit_traces([r.trace(2) for r in ranks], None, "ab").causes if c.code == "prefetch"]
    assert found.said == "3 of 3 all-gathers per step begin only when compute waits for them"
    assert found.cost_s == pytest.approx(180e-6)


@pytest.mark.parametrize(("counts", "found"), [((11, 21, 19, 9), 8), ((16, 32, 32, 16), 8), ((12, 24, 24, 12), 6)])
def test_microbatches_are_counted_where_both_ways_share_a_kernel(counts, found):
    """1F1B of 8 microbatches in 4 stages: m + 3 kernels on the first stage and m + 1 on the last, or one each way: 2 m."""
    traces = []
    for rank, count in enumerate(counts):
        r = Rank(rank)
        for step in range(3):
            begin = r.at
            for _ in range(count):
                r.ran("gemm", 30.0)
                r.ran(MESSAGE, 5.0, stream=20)
            r.events.append(event("user_annotation", "Optimizer.step#AdamW.step", r.at - 9, 1))
            r.step(step, begin)
        traces.append(r.trace(4))
    assert microbatches(TracedJob.of(traces), [[0], [1], [2], [3]]) == found


def test_short_pauses_are_launches_though_a_step_has_few_kernels():
    """Nobody named steps, and what repeats is a layer of three kernels."""
    r = Rank(0)
    for _ in range(60):
        for name, us in (("triton_tem_fused_mm_0", 50.0), ("triton_red_fused_norm_1", 12.0), ("triton_poi_fused_add_2", 5.0)):
            r.ran(name, us)
            r.at += 3
    (found,) = audit_traces([r.trace(1)], None, "a").causes
    assert (found.code, found.share) == ("launch-bound", pytest.approx(9 / 76, abs=0.01))


@pytest.mark.parametrize(("told", "messages"), [(True, 40), (False, 80 / 3)])
def test_messages_between_stages_of_several_ranks_are_not_matched_inside_a_stage(told, messages):
    """Three stages of two ranks: both of a stage hand on at one moment, and those of the next have waited; the wire is 12 us."""
    ranks = [Rank(r) for r in range(6)]
    for r in ranks:
        stage, lane = r.rank // 2, r.rank % 2
        own, before, behind = (2 * stage, 2 * stage + 1), (r.rank - 2, r.rank), (r.rank, r.rank + 2)
        for step in range(5):
            begin = 1000.0 + step * 480.0
            for k in range(4):
                less = [0, 0, (3 * k + step) % 7, (3 * k + step) % 7 + (2 * k + step) % 5]  # so much earlier than usual
                at = begin + k * 120.0 + 102 * stage
                if stage:
                    r.shown(told, MESSAGE, 40.0 - less[stage] - lane, before, stream=20, begin=at - 20 + lane)
                first = at + 20 - less[stage] if stage else at - 10  # nobody hands anything to the first stage: it is always busy
                r.ran("gemm", at + 100 - less[stage + 1] - first, begin=first)
                r.shown(told, REDUCE, 10.0, own, begin=at + 100 - less[stage + 1])
                if stage < 2:
                    r.shown(told, MESSAGE, 12.0, behind, stream=21, begin=at + 110 - less[stage + 1])
            r.events.append(event("user_annotation", f"ProfilerStep#{step}", begin + 82 * stage - 4, 480.0))
    section = audit_traces([r.trace(6) for r in ranks], None, "abcdef")
    assert section.culprit is None
    assert sum(r.wire_s for r in section.collectives if r.op == "send-recv") == pytest.approx(messages * 12e-6)


def test_short_messages_close_together_do_not_move_a_clock():
    """Each stage hands on 12 us after it was handed something: nearly as many ends are 12 us apart as are together."""
    handed = np.cumsum(np.full(48, 400e-6) + np.arange(48) % 5 * 1e-6)
    ours, theirs = np.sort(np.append(handed, handed + 12e-6)), np.sort(np.append(handed + 12e-6, handed + 24e-6))
    assert coinciding_offset(ours, theirs) == pytest.approx(0.0, abs=1e-9)


def test_a_collective_of_all_that_nobody_told_is_no_slow_link():
    """Two pairs of ranks, and at the end of a step all four, on one stream and without groups: the first pair has waited."""
    ranks = [Rank(r) for r in range(4)]
    for r in ranks:
        for step in range(6):
            begin, slower = 1000.0 + step * 1000.0, 20.0 * (r.rank > 1)
            for k in range(6):
                less = (3 * k + step * (1 + r.rank // 2)) % 7
                r.ran("gemm", 100.0 + slower - less, begin=begin + k * (110.0 + slower))
                r.ran(REDUCE, 10.0, begin=begin + k * (110.0 + slower) + 100.0 + slower - less)
            r.ran(REDUCE, begin + 800.0 - r.at, begin=r.at)
            r.step(step, begin)
    section = audit_traces([r.trace(4) for r in ranks], None, "abcd")
    assert section.culprit is None or section.culprit.kind != "slow link"
    (row,) = section.collectives
    last = 800.0 - 6 * 130.0  # of the slower pair, but for what its last layer was shorter
    assert row.count == 42
    assert row.wire_s == pytest.approx(1e-6 * (36 * 10 + sum(last + (15 + 2 * step) % 7 for step in range(6))), rel=0.01)


@each("found", NAMES, ids=lambda n: n["name"][:60])
def test_what_a_name_tells(found):
    name = found["name"]
    assert (kernel_op(name), algorithm_of(name)) == (found["op"], found["algorithm"])


@given(st.sampled_from(NAMES), st.sampled_from(["<float, 8>(float*, int)", "(x)", ".kd", " [clone .kd]", "<(int)8>"]))
def test_arguments_do_not_change_what_a_bare_name_tells(found, tail):
    name = found["name"]
    if not set("<( ") & set(name):
        assert kernel_op(name + tail) == found["op"]


@given(st.text(max_size=40))
def test_only_what_communicates_has_an_algorithm(text):
    if not kernel_op(text):
        assert algorithm_of(text) == ""


def test_long_names_take_no_time_and_enough_are_listed():
    began = perf_counter()
    for name in ("ncclDevKernel_" + "AllReduce" * 200_000, "oneshotAllreduceFusionKernel<" + "a, " * 500_000, "cub::" * 400_000):
        kernel_op(name), algorithm_of(name), operator_op(name)
    assert perf_counter() - began < 1
    assert len(NAMES) >= 60
    assert sum(not n["op"] for n in NAMES) >= 25
    assert all(n["source"] for n in NAMES)


def timeline(rows):
    lane, start, us, kind = (np.array(x) for x in zip(*rows, strict=True))
    names = tuple(f"slice {i}" for i in range(len(rows)))
    return Timeline(lane, start * 1e-6, (start + us) * 1e-6, kind, names, ("rank 0", "rank 1", "rank 2"), KINDS)


@given(st.lists(SLICE, min_size=1, max_size=20))
def test_what_we_write_is_read_back(tmp_path_factory, rows):
    """Lane by lane: seconds of each kind, where what neither communicates nor copies computes."""
    traces = formats.read(put(tmp_path_factory.mktemp("own"), "x.json", timeline(rows).to_chrome()))
    assert [t.rank for t in traces] == sorted({lane for lane, *_ in rows})
    for trace in traces:
        own = [(us, KINDS[kind]) for lane, _, us, kind in rows if lane == trace.rank]
        for kind in ("comm", "copy"):
            assert trace.timeline.busy_s([kind]).sum() == pytest.approx(sum(us for us, k in own if k == kind) * 1e-6)
        assert trace.timeline.busy_s().sum() == pytest.approx(sum(us for us, _ in own) * 1e-6)


def test_a_pipeline_read_back(tmp_path):
    """Four stages of eight microbatches: forward and backward of each, and the bubble that the command says."""
    path = tmp_path / "pipeline.json"
    done = run_here("pipeline", "-p", "4", "-m", "8", "--chrome-trace", path, "--json")
    assert done.returncode == 0
    traces = formats.read(path)
    assert [(t.rank, len(t.timeline.name), t.training) for t in traces] == [(r, 16, True) for r in range(4)]
    spans = [(t.timeline.begin_s, t.timeline.finish_s) for t in traces]
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    busy = sum(t.timeline.busy_s().sum() for t in traces) / 4
    assert 1 - busy / whole == pytest.approx(json.loads(done.stdout)["bubble_over_total"])


def test_a_simulation_read_back(tmp_path):
    """Slices of steps alike become steps; their phases are those of the slices."""
    path = tmp_path / "served.json"
    asked = ("--cluster", "h100-sxm", "--request-rate", "4", "--num-prompts", "20", "--timeline", path)
    assert run_here("simulate", "llama-3.1-8b", *asked).returncode in (0, 1)
    (trace,) = formats.read(path)
    assert {s.phase for s in trace.steps} >= {"decode"}
    assert [s.index for s in trace.steps] == list(range(len(trace.steps)))
    assert sum(s.seconds for s in trace.steps) == pytest.approx(float(trace.timeline.busy_s().sum()))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"ph": "X", "cat": "gpu_activity", "name": "k", "ts": 1, "dur": 1}], "found categories gpu_activity"),
        ([{"ph": "X", "cat": f"c{i}", "name": "k", "ts": 1, "dur": 1} for i in range(20)], "found categories c0, c1.* …"),
        ([{"ph": "X", "name": "k", "ts": 1, "dur": 1, "pid": 1}], "found categories none"),
    ],
)
def test_other_chrome_traces_are_told_apart(tmp_path, events, words):
    path = put(tmp_path, "other.json", json.dumps({"traceEvents": events}))
    with pytest.raises(ValueError, match=f"a Chrome trace without device kernels.*{words}"):
        formats.read(path)


@given(st.data())
def test_damaged_traces_of_ours_are_refused_in_one_line(tmp_path_factory, data):
    made = json.loads(timeline([(0, 5, 5, 1), (1, 5, 9, 0)]).to_chrome())
    event = data.draw(st.sampled_from(made["traceEvents"]))
    event[data.draw(st.sampled_from([*event]))] = data.draw(st.none() | st.text(max_size=3) | st.floats() | st.builds(list))
    path = put(tmp_path_factory.mktemp("damaged"), "x.json", json.dumps(made))
    assert kineto.is_ours(path.read_bytes()[:999])
    try:
        formats.read(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def device_event(name, device, start_us, us, **other):
    return {"cat": "kernel", "name": name, "ts": start_us, "dur": us, "tid": 7, "args": {"device": device, "stream": 7}, **other}


def test_events_without_their_phase_are_read(tmp_path):
    """Some writers leave out ph: what has a category, a beginning and a length is complete."""
    path = tmp_path / "x.json"
    events = [device_event("ncclDevKernel_AllReduce", 0, 10.0, 24.0), device_event("moe", 0, 40.0, 539.0)]
    events += [{"name": "meta", "args": {}}]
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = formats.read(path)
    assert [(c.op, round(c.seconds * 1e6)) for c in trace.collectives] == [("all-reduce", 24)]
    assert trace.timeline.busy_s(["compute"]).sum() == pytest.approx(539e-6)


@pytest.mark.parametrize("world", [0, 8])
def test_devices_of_one_process_are_told_one_by_one(tmp_path, world):
    """A device that copies alone is none; the file of a job's rank is one, whatever it names."""
    path = tmp_path / "x.json"
    events = [device_event("gemm", d, 50.0 * i, 40.0 - 10 * d, ph="X") for d in range(3) for i in range(4)]
    events += [device_event("ncclDevKernel_AllReduce_RING", d, 300.0, 50.0, ph="X") for d in range(3)]
    events.append({**device_event("Memcpy DtoD", 3, 0.0, 9.0, ph="X"), "cat": "gpu_memcpy"})
    told = {"distributedInfo": {"rank": 0, "world_size": world}} if world else {}
    path.write_text(json.dumps({**told, "traceEvents": events}))
    traces = formats.read(path)
    assert [t.rank for t in traces] == ([0] if world else [0, 1, 2])
    if not world:
        assert [round(t.timeline.busy_s(["compute"]).sum() * 1e6) for t in traces] == [160, 120, 80]
        assert all(len(t.collectives) == 1 for t in traces)


def test_idle_time_is_a_part_of_the_ranks_own_step(tmp_path):
    """Steps of 1 and 1.5 ms: what idles in the longer one is no more than all of it."""
    for rank, (length, us) in enumerate([(1000.0, 50.0), (1500.0, 100.0)]):
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "tid": 1, "ts": 0, "dur": length}
        kernels = [device_event("triton", 0, 20.0 + 1000 * i, us, ph="X") for i in range(8)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [step, *kernels]}))
    audited = audit([tmp_path])
    (stall,) = (c for c in audited.sections[0].causes if c.code == "stall")
    assert stall.share == pytest.approx(1300 / 1500)
    assert "a step of rank 1 would take 200 µs instead of 1.5 ms" in stall.gain
    assert {f.item: f.measured for f in audited.findings if f.code == "outside"} == {
        f"rank {r}: compute in the whole trace": pytest.approx(us * 1e-6) for r, us in enumerate((400, 800))
    }
