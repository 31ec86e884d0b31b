"""Seconds that something covers: spans merged once, then asked for any number of windows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.timeline import Column, Timeline


@dataclass(frozen=True, slots=True)
class Coverage:
    """Spans in order, none over another, as their edges; ``sums`` is how much is covered until each edge."""

    edges: Column
    sums: Column

    def until(self, at_s: Column) -> Column:
        """Covered seconds before each moment: they grow inside a span and rest between."""
        return np.interp(at_s, self.edges, self.sums) if len(self.edges) else np.zeros(np.shape(at_s))

    def within(self, begin_s: Column, end_s: Column) -> Column:
        """Covered seconds of each window."""
        return self.until(end_s) - self.until(begin_s)

    @property
    def gaps(self) -> tuple[Column, Column]:
        """When each pause between two spans begins, and how long it is."""
        return self.edges[1:-1:2], self.edges[2::2] - self.edges[1:-1:2]


def merged(start_s: Column, end_s: Column) -> Coverage:
    """What any of the spans covers."""
    if not len(start_s):
        return Coverage(np.zeros(0), np.zeros(0))
    order = np.argsort(start_s, kind="stable")
    start, until = start_s[order], np.maximum.accumulate(end_s[order])
    opens = np.concatenate([[True], start[1:] > until[:-1]])  # nothing before reaches it
    first = np.flatnonzero(opens)
    ends = until[np.concatenate([first[1:] - 1, [len(start) - 1]])]
    edges = np.column_stack([start[first], ends]).ravel()
    sums = np.concatenate([[0.0], np.cumsum(ends - start[first])])
    return Coverage(edges, np.repeat(sums, 2)[1:-1])


@dataclass(frozen=True, slots=True)
class Covered:
    """What one rank's device did: under compute, under compute or communication, and under anything but waiting."""

    compute: Coverage
    comm: Coverage
    either: Coverage
    anything: Coverage


def covered(timeline: Timeline) -> Covered:
    """All four of a timeline with the kinds compute, comm and copy; a stream that waits for another is not busy."""

    def of(*kinds: str) -> Coverage:
        mask = np.isin(timeline.kind, [timeline.kinds.index(k) for k in kinds if k in timeline.kinds])
        return merged(timeline.start_s[mask], timeline.end_s[mask])

    return Covered(of("compute"), of("comm"), of("compute", "comm"), of("compute", "comm", "copy"))
