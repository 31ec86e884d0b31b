"""A pipeline schedule as it runs: every rank takes its operations in order, each as soon as its input has arrived."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, pairwise

import numpy as np

from commtax.answer import Answer
from commtax.cost.schedules import SCHEDULES, Op, OperationOrder, OverlappedPair, Schedule, virtual_layers
from commtax.ledger import Bill
from commtax.question import Question
from commtax.statement import Refusal
from commtax.timeline import Column, Timeline

CODES = {"F": 0, "B": 1, "W": 2}
KINDS = ("F", "B", "W", "BW", "F&B")


@dataclass(frozen=True, slots=True)
class Durations:
    """Times of one chunk's operations: forward, input gradient, weight gradient. A backward that is not split takes both.

    ``stage_factors`` multiply by position in the model, ``microbatch_factors`` by microbatch, ``rank_factors`` by rank
    (a straggler). ``transfer`` passes between an output and its use on another rank. ``overlapped`` is a forward and a
    backward that run together (DualPipe); 0: as long as both after each other.
    """

    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    overlapped: float = 0.0
    transfer: float = 0.0
    stage_factors: Sequence[float] = ()
    microbatch_factors: Sequence[float] = ()
    rank_factors: dict[int, float] = field(default_factory=dict)


def run(kind: Schedule, p: int, m: int, times: Durations | None = None, chunks: int = 1) -> Timeline:
    """Simulate ``p`` ranks and ``m`` microbatches under a schedule, and refuse a shape outside its domain by rule."""
    return simulate(kind.order(p, m, chunks), times or Durations())


@dataclass(slots=True)
class _OperationTable:
    """All operations of all ranks, one after the other, as columns."""

    code: Column
    microbatch: Column
    chunk: Column
    rank: Column
    leads: Column  # False: the second half of an overlapped pair
    ends: list[int]  # where each rank's operations end


def simulate(order: OperationOrder, times: Durations) -> Timeline:
    """Compute start and end of every operation, in time that grows with their number, and refuse a deadlock."""
    t, position = _table(order), np.full((3, order.m, order.p, order.v), -1)
    position[t.code, t.microbatch, t.rank, t.chunk] = np.arange(len(t.code))
    needs, lag = _inputs(order, t, position, times.transfer)
    full = (t.code == 1) & (position[2, t.microbatch, t.rank, t.chunk] < 0)
    seconds, second = _seconds(order, t, times, full), np.flatnonzero(~t.leads)
    ratio = times.overlapped / (times.forward + times.backward + times.weight) if times.overlapped else 1.0
    seconds[second - 1] = (seconds[second - 1] + seconds[second]) * ratio
    seconds[second] = 0.0
    also, also_lag = np.full(len(needs), -1), np.zeros(len(needs))  # a pair waits for the inputs of both
    also[second - 1], also_lag[second - 1] = needs[second], lag[second]
    start, end = _progress(t, needs.tolist(), lag.tolist(), also.tolist(), also_lag.tolist(), seconds.tolist())
    keep, kind = t.leads, np.where(full, 3, t.code)
    kind[second - 1] = 4
    ends = [f".{c}" if order.v > 1 else "" for c in range(order.v)]
    labels = [f"{letter}{j}{end}" for letter in "FBW" for end in ends for j in range(order.m)]
    names = [labels[i] for i in ((t.code * order.v + t.chunk) * order.m + t.microbatch).tolist()]
    for i in second.tolist():
        names[i - 1] = f"{names[i - 1]}&{names[i]}"
    return Timeline(
        lane=t.rank[keep],
        start_s=np.asarray(start)[keep],
        end_s=np.asarray(end)[keep],
        kind=kind[keep],
        name=tuple(compress(names, keep.tolist())) if second.size else tuple(names),
        lanes=tuple(f"rank {i}" for i in range(order.p)),
        kinds=KINDS,
        number=t.microbatch[keep],
    )


def _table(order: OperationOrder) -> _OperationTable:
    flat, leads, ends = list[Op](), list[bool](), list[int]()
    for ops in order.ranks:
        for op in ops:
            together = op if isinstance(op, OverlappedPair) else (op,)
            flat += together
            leads += (True, False)[: len(together)]
        ends.append(len(flat))
    kinds, microbatches, chunks = zip(*flat, strict=True)
    code = np.fromiter(map(CODES.__getitem__, kinds), np.int64, len(kinds))
    rank = np.repeat(np.arange(order.p), np.diff([0, *ends]))
    return _OperationTable(code, np.array(microbatches), np.array(chunks), rank, np.array(leads), ends)


def _inputs(order: OperationOrder, t: _OperationTable, position: Column, transfer: float) -> tuple[Column, Column]:
    """Return the operation that each one waits for, on another rank or the same, and how long its output travels."""
    near = np.full((2, order.p, order.v), -1)
    for path in order.paths:
        for (rank, chunk), (after, next_chunk) in pairwise(path):
            near[0, after, next_chunk] = rank * order.v + chunk
            near[1, rank, chunk] = after * order.v + next_chunk
    source = np.where(t.code < 2, near[np.minimum(t.code, 1), t.rank, t.chunk], -1)
    needs = np.where(source >= 0, position.reshape(3, order.m, -1)[t.code, t.microbatch, source], -1)
    return needs, np.where(source // order.v != t.rank, transfer, 0.0)


def _seconds(order: OperationOrder, t: _OperationTable, times: Durations, full: Column) -> Column:
    seconds = np.where(full, times.backward + times.weight, np.array([times.forward, times.backward, times.weight])[t.code])
    if len(times.stage_factors):
        stage = np.zeros((order.p, order.v), dtype=int)
        for path in order.paths:
            for index, (rank, chunk) in enumerate(path):
                stage[rank, chunk] = index
        seconds = seconds * np.asarray(times.stage_factors, float)[stage[t.rank, t.chunk]]
    if len(times.microbatch_factors):
        seconds = seconds * np.asarray(times.microbatch_factors, float)[t.microbatch]
    for rank, factor in times.rank_factors.items():
        seconds = np.where(t.rank == rank, seconds * factor, seconds)
    return seconds


def _progress(
    t: _OperationTable, needs: list[int], lag: list[float], also: list[int], also_lag: list[float], seconds: list[float]
) -> tuple[list[float], list[float]]:
    count, ranks = len(needs), len(t.ends)
    start, end, waiting = [0.0] * count, [-1.0] * count, [-1] * count
    leads, stops = t.leads.tolist(), t.ends
    at, now, work = [0, *stops[:-1]], [0.0] * ranks, list(range(ranks))
    while work:
        rank = work.pop()
        clock, i, stop = now[rank], at[rank], stops[rank]
        while i < stop:
            if leads[i]:
                source, other = needs[i], also[i]
                if source >= 0 and end[source] < 0:
                    waiting[source] = rank
                    break
                if other >= 0 and end[other] < 0:
                    waiting[other] = rank
                    break
                if source >= 0 and end[source] + lag[i] > clock:
                    clock = end[source] + lag[i]
                if other >= 0 and end[other] + also_lag[i] > clock:
                    clock = end[other] + also_lag[i]
                start[i] = clock
                clock += seconds[i]
            end[i] = clock
            if waiting[i] >= 0:
                work.append(waiting[i])
            i += 1
        now[rank], at[rank] = clock, i
    if stuck := [r for r in range(ranks) if at[r] < stops[r]]:
        raise Refusal(f"the schedule deadlocks: rank {stuck[0]} waits for an input that nobody makes")
    return start, end


@dataclass(frozen=True)  # without slots: it runs once, when first read
class PipelineRun(Answer):
    """A schedule of ``p`` stages, ``m`` microbatches and ``v`` chunks per rank, and how it runs.

    >>> import commtax
    >>> ran = commtax.pipeline(4, 8, schedule="gpipe")
    >>> ran.idle_counted_s == ran.idle_closed_form_s
    True
    """

    kind: Schedule
    p: int
    m: int
    v: int
    times: Durations

    @cached_property
    def timeline(self) -> Timeline:
        return run(self.kind, self.p, self.m, self.times, self.v)

    @property
    def uniform(self) -> bool:
        """Whether the closed form speaks of this run: equal stages, no transfers, and times that it covers."""
        t = self.times
        plain_run = not (t.transfer or t.rank_factors or len(t.stage_factors) or len(t.microbatch_factors) or t.overlapped)
        return plain_run and (self.kind.any_times or t.forward == t.backward == t.weight)

    @property
    def idle_counted_s(self) -> float:
        """Mean idle time of a rank within the whole run, counted."""
        return float(np.mean(self.timeline.idle_s()))

    @property
    def idle_closed_form_s(self) -> float | None:
        t = self.times
        return float(self.kind.idle(self.p, t.forward, t.backward, t.weight)) if self.uniform else None

    @property
    def over_total(self) -> float:
        return self.idle_counted_s / self.timeline.span_s

    @property
    def over_ideal(self) -> float:
        return self.idle_counted_s / float(np.mean(self.timeline.busy_s()))

    @property
    def peaks(self) -> list[int]:
        return [int(self.kind.peak(self.p, self.m, self.v, i)) for i in range(self.p)]


def step_pipeline(q: Question, b: Bill) -> PipelineRun:
    """Return the pipeline of a training step and its bill, in seconds."""
    plan, kind = q.plan, SCHEDULES[q.plan.schedule]
    chunks = kind.passes(int(plan.chunks))

    def each(*stages: str) -> float:  # of one microbatch on one of a rank's chunks
        total = sum(float(x.total_s) for x in b.items if x.kind == "compute" and x.item.stage in stages)
        return total / (float(plan.microbatches) * chunks)

    times = (each("forward"), each("backward", "recompute"), max(each("weight-gradient"), 1e-12))
    layers, pp, depths = q.model.num_layers, int(plan.pp), tuple[float, ...]()
    if plan.schedule == "interleaved" and layers % (pp * chunks):  # layers of each stage over the mean of the fullest rank's
        most = math.ceil(layers / pp) / chunks
        depths = tuple(size / most for chunk in virtual_layers(layers, pp, chunks) for size in chunk)
    return PipelineRun(kind, pp, int(plan.microbatches), int(plan.chunks), Durations(*times, stage_factors=depths))
