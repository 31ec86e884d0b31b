"""What a device did with its time: computing, communicating, copying, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from commtax.timeline import Timeline

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
