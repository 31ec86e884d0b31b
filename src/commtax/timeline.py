"""What happens in time, as columns: simulated, measured and parsed runs alike.

A lane is a rank, a stream or a stage; intervals on one lane do not overlap. Everything asked of a timeline (busy, idle,
overlap, exposed) is a sum over intervals.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Column = np.ndarray[Any, Any]
Event = dict[str, Any]
"""Of a trace, as browsers read it."""
PRODUCER = "commtax"  # by which a trace of ours is known


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that changes in time."""

    name: str
    at_s: Column
    value: Column


@dataclass(frozen=True, slots=True)
class Timeline:
    """Intervals: lane and kind are codes into ``lanes`` and ``kinds``; ``name`` labels each interval."""

    lane: Column
    start_s: Column
    end_s: Column
    kind: Column
    name: tuple[str, ...]
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]
    number: Column | None = None  # of the microbatch that an interval belongs to, where there are such
    counters: tuple[Counter, ...] = ()

    @property
    def begin_s(self) -> float:
        return float(self.start_s.min()) if len(self.start_s) else 0.0

    @property
    def finish_s(self) -> float:
        return float(self.end_s.max()) if len(self.end_s) else 0.0

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return self.finish_s - self.begin_s

    def busy_s(self, kinds: Sequence[str] = ()) -> Column:
        """Busy seconds of each lane, of all kinds or of some."""
        wanted = [self.kinds.index(k) for k in kinds]
        mask = np.isin(self.kind, wanted) if wanted else np.ones(len(self.lane), dtype=bool)
        return np.bincount(self.lane[mask], weights=(self.end_s - self.start_s)[mask], minlength=len(self.lanes))

    def idle_s(self) -> Column:
        """Seconds of the whole span in which a lane does nothing."""
        return self.span_s - self.busy_s()

    def uncovered(self, kind: str, *behind: str) -> list[tuple[float, float]]:
        """When one kind runs and nothing of the others does, in order."""
        covered = self.covered(*behind)
        edges = [-np.inf, *(x for span in covered for x in span), np.inf]
        return _cross(self.covered(kind), list(zip(edges[::2], edges[1::2], strict=True)))

    def covered(self, *kinds: str) -> list[tuple[float, float]]:
        """When something of any of these kinds runs, on any lane, in order."""
        mask = np.isin(self.kind, [self.kinds.index(kind) for kind in kinds])
        spans = sorted(zip(self.start_s[mask].tolist(), self.end_s[mask].tolist(), strict=True))
        merged: list[tuple[float, float]] = []
        for start, end in spans:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def to_chrome(self) -> str:
        """The trace-event JSON that Perfetto and chrome://tracing open; microseconds."""
        named = [{"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": n}} for i, n in enumerate(self.lanes)]
        columns = zip(self.lane.tolist(), self.start_s.tolist(), self.end_s.tolist(), self.kind.tolist(), self.name, strict=True)
        slices: list[Event] = [
            {"ph": "X", "pid": 0, "tid": lane, "name": name, "cat": self.kinds[kind], "ts": start * 1e6, "dur": (end - start) * 1e6}
            for lane, start, end, kind, name in columns
        ]
        events = sorted([*slices, *self._counted()], key=lambda event: event["ts"]) if self.counters else slices
        return json.dumps({"otherData": {"producer": PRODUCER}, "traceEvents": [*named, *events], "displayTimeUnit": "ms"})

    def _counted(self) -> Iterator[Event]:
        for counter in self.counters:
            for at, value in zip(counter.at_s.tolist(), counter.value.tolist(), strict=True):
                yield {"ph": "C", "pid": 0, "name": counter.name, "ts": at * 1e6, "args": {"value": value}}


def _cross(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[tuple[float, float]]:
    crossed, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            crossed.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return crossed
