"""Seconds that something covers: spans merged once, then asked for any number of windows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.timeline import Column, Timeline, merge_spans


@dataclass(frozen=True, slots=True)
class Coverage:
    """Spans in order, none over another, as their edges; ``sums`` is how much is covered until each edge."""

    edges: Column
    sums: Column

    def within(self, begin_s: Column, end_s: Column) -> Column:
        """Covered seconds of each window: those before a moment grow inside a span and rest between."""
        if not len(self.edges):
            return np.zeros(np.shape(end_s))
        return np.interp(end_s, self.edges, self.sums) - np.interp(begin_s, self.edges, self.sums)

    def seconds(self, begin_s: float, end_s: float) -> float:
        return float(self.within(np.array(begin_s), np.array(end_s)))

    @property
    def gaps(self) -> tuple[Column, Column]:
        """When each pause between two spans begins, and how long it is."""
        return self.edges[1:-1:2], self.edges[2::2] - self.edges[1:-1:2]


def coverage(start_s: Column, end_s: Column) -> Coverage:
    """What any of the spans covers."""
    spans = merge_spans(start_s, end_s)
    sums = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])
    return Coverage(spans.ravel(), np.repeat(sums, 2)[1:-1])


@dataclass(frozen=True, slots=True)
class DeviceCoverage:
    """What one rank's device did: under compute, under compute or communication, and under anything but waiting."""

    compute: Coverage
    comm: Coverage
    either: Coverage
    anything: Coverage

    def spent(self, begin_s: Column, end_s: Column) -> tuple[Column, Column, Column, Column, Column]:
        """Seconds of each window: of compute, of communication exposed and hidden under it, of copies, and with anything at all."""
        compute, comm, either, anything = (c.within(begin_s, end_s) for c in (self.compute, self.comm, self.either, self.anything))
        exposed, hidden, copy = (np.maximum(0.0, x) for x in (either - compute, comm + compute - either, anything - either))
        return compute, exposed, hidden, copy, anything


def device_coverage(timeline: Timeline) -> DeviceCoverage:
    """All four of a timeline with the kinds compute, comm and copy; a stream that waits for another is not busy."""

    def of(*kinds: str) -> Coverage:
        mask = np.isin(timeline.kind, [timeline.kinds.index(k) for k in kinds if k in timeline.kinds])
        return coverage(timeline.start_s[mask], timeline.end_s[mask])

    return DeviceCoverage(of("compute"), of("comm"), of("compute", "comm"), of("compute", "comm", "copy"))
