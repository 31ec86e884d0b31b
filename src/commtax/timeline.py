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
Event = dict[str, object]  # of a trace, as browsers read it
PRODUCER = "commtax"  # marks a trace of ours


@dataclass(frozen=True, slots=True)
class Counter:
    """A figure of one engine, rank or stage in time."""

    owner: str
    figure: str
    at_s: Column
    value: Column

    @property
    def name(self) -> str:
        return f"{self.owner}: {self.figure}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Intervals, whose lane and kind are codes into ``lanes`` and ``kinds`` and whose ``name`` labels each."""

    lane: Column
    start_s: Column
    end_s: Column
    kind: Column
    name: tuple[str, ...]
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]
    number: Column | None = None  # of the microbatch that an interval belongs to, where there are such
    counters: tuple[Counter, ...] = ()
    owners: tuple[str, ...] = ()  # the engine that each lane is of, where lanes are ranks or stages of several

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
        """Return the busy seconds of each lane, of all kinds or of some."""
        wanted = [self.kinds.index(k) for k in kinds]
        mask = np.isin(self.kind, wanted) if wanted else np.ones(len(self.lane), dtype=bool)
        return np.bincount(self.lane[mask], weights=(self.end_s - self.start_s)[mask], minlength=len(self.lanes))

    def idle_s(self) -> Column:
        """Return the seconds of the whole span in which a lane does nothing."""
        return self.span_s - self.busy_s()

    def covered(self, *kinds: str) -> list[tuple[float, float]]:
        """Return when something of any of these kinds runs, on any lane, in order."""
        mask = np.isin(self.kind, [self.kinds.index(kind) for kind in kinds])
        return pairs(merge_spans(self.start_s[mask], self.end_s[mask]))

    def to_chrome(self) -> str:
        """Write the trace-event JSON that Perfetto and chrome://tracing open, in microseconds."""
        named = [{"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": n}} for i, n in enumerate(self.lanes)]
        columns = zip(self.lane.tolist(), self.start_s.tolist(), self.end_s.tolist(), self.kind.tolist(), self.name, strict=True)
        slices: list[Event] = [
            {"ph": "X", "pid": 0, "tid": lane, "name": name, "cat": self.kinds[kind], "ts": start * 1e6, "dur": (end - start) * 1e6}
            for lane, start, end, kind, name in columns
        ]
        timed = [*zip((self.start_s * 1e6).tolist(), slices, strict=True), *self._counted()]
        events = (event for _, event in (sorted(timed, key=lambda pair: pair[0]) if self.counters else timed))
        return json.dumps({"otherData": {"producer": PRODUCER}, "traceEvents": [*named, *events], "displayTimeUnit": "ms"})

    def _counted(self) -> Iterator[tuple[float, Event]]:
        for counter in self.counters:
            for at, value in zip(counter.at_s.tolist(), counter.value.tolist(), strict=True):
                yield at * 1e6, {"ph": "C", "pid": 0, "name": counter.name, "ts": at * 1e6, "args": {"value": value}}


def pairs(spans: Column) -> list[tuple[float, float]]:
    return list(zip(spans[:, 0].tolist(), spans[:, 1].tolist(), strict=True))


def merge_spans(start_s: Column, end_s: Column) -> Column:
    """Merge spans in any order into those that nothing overlaps or touches, in order.

    >>> merge_spans(np.array([3.0, 0.0, 1.0]), np.array([4.0, 2.0, 1.5])).tolist()
    [[0.0, 2.0], [3.0, 4.0]]
    """
    if not len(start_s):
        return np.empty((0, 2))
    order = np.argsort(start_s, kind="stable")
    start, until = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate([[True], start[1:] > until[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([start[first], until[last]], axis=1)
