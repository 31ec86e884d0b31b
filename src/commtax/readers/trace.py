"""What a profiler's trace of one rank says, whoever wrote it: a timeline, the collectives in it, and the steps they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from commtax.readers.trace_steps import Step
from commtax.statement import Note, Refusal
from commtax.timeline import Timeline

KINDS = ("compute", "comm", "copy")
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of some windows, each second once: what computes hides what communicates, and both hide what copies."""

    total_s: float
    compute_s: float
    exposed_s: float  # communication that no compute covers
    hidden_s: float  # communication under compute, which ``compute_s`` holds already
    copy_s: float

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.exposed_s + self.copy_s

    @property
    def idle_s(self) -> float:
        return max(0.0, self.total_s - self.busy_s)

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.total_s if self.total_s > 0 else 0.0

    def of(self, steps: int) -> Usage:
        """The mean of so many steps."""
        return Usage(*(getattr(self, f.name) / steps for f in fields(self)))


def usage(timeline: Timeline, windows: Sequence[Span]) -> Usage:
    """How the windows of a rank were spent."""
    exposed = within(timeline.uncovered("comm", "compute"), windows)
    return Usage(
        total_s=sum(end - start for start, end in windows),
        compute_s=within(timeline.covered("compute"), windows),
        exposed_s=exposed,
        hidden_s=max(0.0, within(timeline.covered("comm"), windows) - exposed),
        copy_s=within(timeline.uncovered("copy", "compute", "comm"), windows),
    )


def within(spans: Sequence[Span], windows: Sequence[Span]) -> float:
    """Seconds of spans (in order, none over another) that lie inside the windows."""
    if not spans or not windows:
        return 0.0
    edges = np.array(spans).ravel()
    sums = np.concatenate([[0.0], np.cumsum(np.diff(edges)[::2])])
    so_far = np.interp(np.array(windows), edges, np.repeat(sums, 2)[1:-1])  # it grows inside a span and rests between
    return float(np.sum(so_far[:, 1] - so_far[:, 0]))


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its driver describes it; "" and 0 where it does not. ``count``: as many alike are in the host."""

    name: str = ""
    memory_bytes: float = 0.0
    num_sms: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. ``nbytes`` is the full tensor (as in ``ledger.Item``); None where nothing tells it."""

    op: str
    nbytes: float | None
    ranks: int  # 0: not told
    start_s: float
    end_s: float
    name: str
    step: int = -1  # index into the trace's steps; -1: in none
    graph: bool = False  # replayed from a CUDA graph

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace. Times are seconds since ``origin_ns``; ``issued`` counts collectives that the host called, by kind."""

    rank: int
    world: int
    origin_ns: int
    on_device: bool
    timeline: Timeline
    collectives: tuple[Collective, ...]
    steps: tuple[Step, ...]
    issued: Mapping[str, int]
    device: Device | None = None
    training: bool = False  # something of training ran, in a step or not
    notes: tuple[Note, ...] = ()

    def usage(self, steps: Sequence[Step]) -> Usage:
        """How some of the steps (the whole trace where there are none) were spent."""
        return usage(self.timeline, [(s.start_s, s.end_s) for s in steps] or [(self.timeline.begin_s, self.timeline.finish_s)])


def timeline_of(rows: Sequence[tuple[str, float, float, str, str]]) -> Timeline:
    """Rows of lane, start, end, kind and name as columns."""
    lane, start, end, kind, name = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    lanes = tuple(dict.fromkeys(lane))
    codes = {name: i for i, name in enumerate(lanes)}
    return Timeline(
        lane=np.array([codes[x] for x in lane], dtype=int),
        start_s=np.array(start, dtype=float),
        end_s=np.array(end, dtype=float),
        kind=np.array([KINDS.index(k) for k in kind], dtype=int),
        name=name,
        lanes=lanes,
        kinds=KINDS,
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective on all ranks. A rank that comes late finds the others waiting: its own time is the least."""

    op: str
    nbytes: float | None
    seconds: tuple[float, ...]  # one for each rank
    step: int

    @property
    def wire_s(self) -> float:
        return min(self.seconds)

    @property
    def skew_s(self) -> tuple[float, ...]:
        return tuple(s - self.wire_s for s in self.seconds)


@dataclass(frozen=True, slots=True)
class Meetings:
    """All collectives that every rank's trace holds. ``by_clock``: matched by when they ran; else by their order."""

    ranks: tuple[int, ...]
    matched: tuple[Meeting, ...]
    unmatched: int
    by_clock: bool


def meet(traces: Sequence[Trace]) -> Meetings:
    """Match the collectives of all ranks, by clock where the ranks share one (they end together), else by order."""
    if len(traces) < 2:
        raise Refusal("traces: at least two ranks are needed to tell the wire from waiting", "traces")
    if len({t.rank for t in traces}) < len(traces):
        raise Refusal(f"traces: ranks {', '.join(str(t.rank) for t in traces)}: each rank once", "traces")
    ordered = sorted(traces, key=lambda t: t.rank)
    ranks = tuple(t.rank for t in ordered)
    most = max(len(t.collectives) for t in ordered)
    by_order = _by_order(ordered)
    if by_order and all(_together(row, ordered) for row in by_order):
        return Meetings(ranks, tuple(_meeting(r) for r in by_order), most - len(by_order), True)
    by_clock = _by_clock(ordered)
    rows = by_clock if by_clock else by_order
    return Meetings(ranks, tuple(_meeting(r) for r in rows), most - len(rows), bool(by_clock))


def _meeting(row: Sequence[Collective]) -> Meeting:
    nbytes = next((c.nbytes for c in row if c.nbytes is not None), None)
    return Meeting(row[0].op, nbytes, tuple(c.seconds for c in row), row[0].step)


def _by_order(traces: Sequence[Trace]) -> list[tuple[Collective, ...]]:
    """The n-th with the n-th; nothing where the ranks' lists of operations differ."""
    lists = [t.collectives for t in traces]
    signs = [[(c.op, c.nbytes) if c.op != "all-to-all" else (c.op, None) for c in found] for found in lists]
    if any(s != signs[0] for s in signs):
        return []
    return list(zip(*lists, strict=True))


def _absolute(c: Collective, trace: Trace, origin_ns: int) -> tuple[float, float]:
    shift = (trace.origin_ns - origin_ns) * 1e-9
    return c.start_s + shift, c.end_s + shift


def _together(row: Sequence[Collective], traces: Sequence[Trace]) -> bool:
    """Whether all ranks were inside the collective at one moment."""
    spans = [_absolute(c, t, traces[0].origin_ns) for c, t in zip(row, traces, strict=True)]
    return max(s for s, _ in spans) < min(e for _, e in spans)


def _by_clock(traces: Sequence[Trace]) -> list[tuple[Collective, ...]]:
    """For each collective of the first rank the one of every other rank that overlaps it and ends nearest to it."""
    base = traces[0]
    others = [_nearest(base, t) for t in traces[1:]]
    rows = [(c, *(o.get(i) for o in others)) for i, c in enumerate(base.collectives)]
    return [tuple(c for c in row if c is not None) for row in rows if all(c is not None for c in row)]


def _nearest(base: Trace, other: Trace) -> dict[int, Collective]:
    """Pairs that are each other's nearest."""
    pairs = []
    spans = [_absolute(c, other, base.origin_ns) for c in other.collectives]
    begin = 0
    for i, c in enumerate(base.collectives):
        while begin < len(spans) and spans[begin][1] <= c.start_s:
            begin += 1
        for j in range(begin, len(spans)):
            if spans[j][0] >= c.end_s:
                break
            if other.collectives[j].op == c.op and spans[j][1] > c.start_s:
                pairs.append((abs(spans[j][1] - c.end_s), i, j))
    found: dict[int, Collective] = {}
    taken: set[int] = set()
    for _, i, j in sorted(pairs):
        if i not in found and j not in taken:
            found[i] = other.collectives[j]
            taken.add(j)
    return found
