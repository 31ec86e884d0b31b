"""Traces of several ranks of one job put beside each other: the shortest time of a collective is the wire, the rest is waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commtax.readers.trace import Collective, Trace
from commtax.statement import Refusal


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
