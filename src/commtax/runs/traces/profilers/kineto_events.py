"""Events of a profiler's trace as typed records: their text is decoded once, and unused fields are skipped.

msgspec reads such records several times faster than any parser makes dictionaries, and ten times faster than one that hands out
sign for sign; it is imported here alone, by those who read a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from commtax.files import Json, need_object
from commtax.runs.traces.profilers import columns as limits
from commtax.runs.traces.profilers.columns import (
    ANNOTATION,
    COPY,
    KEYS,
    LAUNCH,
    OPERATOR,
    OTHER,
    UNTOLD,
    WRONG,
    Columns,
    all_ns,
    ns,
)
from commtax.runs.traces.profilers.json_pieces import repair_json
from commtax.thresholds import counts
from commtax.timeline import Column

NONE = msgspec.Raw(b"")


class _EventPlace(msgspec.Struct, gc=False):
    """What an event is and where. Fields stand in the order of a trace, in which they are decoded fastest."""

    ph: str = ""
    cat: str = ""
    name: str | None = None
    pid: int | str = 0
    tid: int | str = 0


class Event(_EventPlace, gc=False):
    """One event, whose arguments stay text."""

    ts: float = math.nan
    dur: float = 0.0
    args: msgspec.Raw = NONE


class ExactEvent(_EventPlace, gc=False):
    """One event whose time of beginning stays text: microseconds since 1970 with nanoseconds behind the point."""

    ts: msgspec.Raw = NONE
    dur: float = 0.0
    args: msgspec.Raw = NONE


class OddEvent:
    """One event that does not fit those types, as JSON has it."""

    __slots__ = ("event", "ph")
    cat, ts, dur, name = "", -math.inf, 0.0, None

    def __init__(self, event: Json) -> None:
        self.event, self.ph = event, "odd" if isinstance(event, dict) and "ph" in event else ""


class _LaunchArguments(msgspec.Struct, gc=False):
    """The arguments of a call of the driver."""

    correlation: int | None = None


class _DeviceArguments(msgspec.Struct, gc=False):
    """The arguments of a device event, the last three of which only collectives have."""

    correlation: int | None = None
    device: int | str | None = None
    stream: int | str | None = None
    collective: msgspec.Raw = msgspec.field(default=NONE, name="Collective name")
    elements: msgspec.Raw = msgspec.field(default=NONE, name="In msg nelems")
    size: msgspec.Raw = msgspec.field(default=NONE, name="Group size")


_EMPTY = msgspec.Raw(b"{}")
_FACT_FIELDS = [(f"argument_{i}", msgspec.Raw, msgspec.field(default=NONE, name=key)) for i, key in enumerate(KEYS)]
_FactArguments = msgspec.defstruct("_FactArguments", _FACT_FIELDS, gc=False)
"""What facts are made of, as text."""
COUNT = counts(__name__)
Typed = Event | ExactEvent
SomeEvent = Typed | OddEvent
_FACTS = msgspec.json.Decoder(_FactArguments).decode
_LAUNCHED, _RAN = msgspec.json.Decoder(_LaunchArguments).decode, msgspec.json.Decoder(_DeviceArguments).decode
_EACH = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EVENTS, _EXACTS = msgspec.json.Decoder(list[Event]).decode, msgspec.json.Decoder(list[ExactEvent]).decode
_EVENT, _EXACT = msgspec.json.Decoder(Event).decode, msgspec.json.Decoder(ExactEvent).decode
_TIME, _FIELDS = attrgetter("ts"), attrgetter("name", "ts", "dur", "pid", "tid", "args")


class Decoder:
    """Lists of events from their text. ``exact`` once times exceed what a float can represent."""

    def __init__(self) -> None:
        self.exact = False

    def __call__(self, text: bytes) -> Sequence[SomeEvent]:
        """Decode events, or raise ``ValueError`` or ``RecursionError`` where a text is no JSON even when repaired."""
        if not self.exact:
            events = _decode_events(text, False)
            largest = max(map(_TIME, events), default=0.0)
            if largest < limits.LARGE_US:
                return events
            self.exact = largest >= limits.LARGE_US  # not where it is no number
        return _decode_events(text, True)


def is_event(event: SomeEvent) -> bool:
    """Return whether an object is an event and not a part of one. Some writers leave out that it is complete."""
    return bool(event.ph) or (event.dur > 0 and event.name is not None)


class CollectiveNumber:
    """The number of what arguments state of a collective. Many events share it, and other arguments are not looked at."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self._numbers = columns, dict[tuple[str, bytes], int]()

    def __call__(self, name: str, args: msgspec.Raw) -> int:
        key = name, b"\0".join(msgspec.structs.astuple(_FACTS(args or _EMPTY)))
        number = self._numbers.get(key)
        if number is None:
            number = self._columns.facts_number(name, need_object(_loads(args)))
            if len(self._numbers) < COUNT.most_known:
                self._numbers[key] = number
        return number


def take(columns: Columns, events: Sequence[SomeEvent], numbers: CollectiveNumber) -> None:
    shapes = set(map(type, events))
    if len(shapes) > 1:  # odd ones among them, or pieces that were decoded one way and the other
        for shape in (Event, ExactEvent):
            take(columns, [e for e in events if type(e) is shape], numbers)
        for odd in (e for e in events if isinstance(e, OddEvent)):
            columns.take(odd.event)
        return None
    if shapes == {OddEvent}:
        return take(columns, [*events, Event()], numbers)
    by_kind: dict[int, list[SomeEvent]] = {kind: [] for kind in range(OTHER + 1)}
    by_category = _AppendByCategory(by_kind)
    for event in events:
        if event.ph == "X" or (not event.ph and event.dur > 0):
            by_category[event.cat](event)
    for kind, of_kind in by_kind.items():
        if of_kind and kind == OTHER:
            columns.begun(_earliest(of_kind), len(of_kind))
        elif of_kind:
            _place(columns, numbers, kind, of_kind)
    return columns.judge_size()


class _AppendByCategory(dict[str, Callable[[SomeEvent], None]]):
    """By category, what appends an event to the list of its kind."""

    def __init__(self, lists: Mapping[int, list[SomeEvent]]) -> None:
        self._lists = lists

    def __missing__(self, category: str) -> Callable[[SomeEvent], None]:
        self[category] = append = self._lists[Columns.kind_of(category)].append
        return append


def _earliest(events: Sequence[SomeEvent]) -> int | None:
    exact, stamps = isinstance(events[0], ExactEvent), list(map(_TIME, events))
    times = list(map(_number, stamps)) if exact else stamps
    low = min(times)
    if not limits.EARLIEST_NS < low * 1000 < limits.LATEST_NS:  # nor is anything less than what is no number
        sound = [e for e, at in zip(events, times, strict=True) if limits.EARLIEST_NS < at * 1000 < limits.LATEST_NS]
        return _earliest(sound) if sound else None
    return min(ns(bytes(raw).decode()) for raw, at in zip(stamps, times, strict=True) if at <= low) if exact else ns(low)


class _EventColumns(NamedTuple):
    """Events of one kind as columns: each is touched once, since what is spread over the memory is slow to touch."""

    names: Sequence[str]
    times: Sequence[Any]  # numbers, or their text
    lasting: Sequence[float]
    pids: Sequence[int | str]
    tids: Sequence[int | str]
    args: Sequence[msgspec.Raw]


def _place(columns: Columns, numbers: CollectiveNumber, kind: int, events: Sequence[SomeEvent]) -> None:
    """Place all events at once, or one by one where the arguments of some do not fit their types."""
    fields = _EventColumns(*zip(*map(_FIELDS, events), strict=True))
    kept, starts, ends = _with_times(columns, fields, isinstance(events[0], ExactEvent))
    if not len(starts):
        return
    try:
        if kind in (ANNOTATION, OPERATOR):
            columns.all_hosted(kind, kept.names, starts, ends, kept.tids, numbers, kept.args)
        elif kind == LAUNCH:
            _place_launches(columns, kept, starts, ends)
        else:
            ran = [_RAN(args or _EMPTY) for args in kept.args]
            lanes, names = columns.lanes, list(map(columns.names.__getitem__, kept.names))
            places, correlations, facts = [], [], [0] * len(ran)
            for i, one in enumerate(ran):
                device, stream, correlation = one.device, one.stream, one.correlation
                places.append(lanes[device, kept.pids[i] if device is None else device, kept.tids[i] if stream is None else stream])
                correlations.append(UNTOLD if correlation is None else correlation)
                if one.collective is not NONE or one.elements is not NONE or one.size is not NONE:
                    facts[i] = numbers(kept.names[i], kept.args[i])
            columns.mark_on_device()
            columns.device.extend(starts, ends, names, [kind == COPY] * len(ran))
        columns.begun(int(starts.min()), len(starts))
    except WRONG:
        rows = zip(kept.names, starts.tolist(), ends.tolist(), kept.pids, kept.tids, kept.args, strict=True)
        for name, start, end, pid, tid, args in rows:
            try:
                columns.place(kind, name, start, end, pid, tid, _loads(args))
                columns.begun(start)
            except WRONG:
                columns.wrong += 1


def _with_times(columns: Columns, kept: _EventColumns, exact: bool) -> tuple[_EventColumns, Column, Column]:
    """Keep the events that have a name and times that a clock shows, and return their starts and ends."""
    lasting = np.array(kept.lasting)
    times = np.array(list(map(_number, kept.times)) if exact else kept.times)
    with np.errstate(invalid="ignore", over="ignore"):
        since_ns, lasting_ns = times * 1000, np.abs(lasting) * 1000
        sound = (since_ns > limits.EARLIEST_NS) & (since_ns < limits.LATEST_NS) & (lasting_ns < limits.LONGEST_NS)
    if None in kept.names:
        sound &= np.array([name is not None for name in kept.names])
    if not sound.all():
        columns.wrong += int(np.sum(~sound))
        kept = _EventColumns(*(tuple(compress(column, sound.tolist())) for column in kept))
        times, lasting = times[sound], lasting[sound]
    starts = np.array([ns(bytes(at).decode()) for at in kept.times], dtype=np.int64) if exact else all_ns(times)
    return kept, starts, starts + all_ns(np.maximum(lasting, 0.0))


def _place_launches(columns: Columns, kept: _EventColumns, starts: Column, ends: Column) -> None:
    linked_to = [_LAUNCHED(args or _EMPTY).correlation for args in kept.args]
    correlations = [c for c in linked_to if c is not None]
    numbers, threads = list(map(columns.names.__getitem__, kept.names)), list(map(columns.threads.__getitem__, kept.tids))
    if len(correlations) < len(linked_to):
        linked = [c is not None for c in linked_to]
        numbers, threads = (list(compress(column, linked)) for column in (numbers, threads))
        starts, ends = starts[linked], ends[linked]
    columns.launches.extend(starts, ends, numbers, threads, correlations)


def _number(raw: msgspec.Raw) -> float:
    try:
        return float(bytes(raw))
    except ValueError:
        return math.nan


def _decode_events(text: bytes, exact: bool) -> Sequence[SomeEvent]:
    """Decode the events of a list. What does not fit the types comes as JSON has it."""
    whole: Callable[[bytes], Sequence[SomeEvent]] = _EXACTS if exact else _EVENTS
    try:
        return whole(text)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            text = repair_json(text)
    try:
        return whole(text)
    except msgspec.ValidationError:
        return [_one(each, exact) for each in _EACH(repair_json(text))]


def _one(raw: msgspec.Raw, exact: bool) -> SomeEvent:
    try:
        return _EXACT(raw) if exact else _EVENT(raw)
    except msgspec.ValidationError:
        return OddEvent(_loads(raw))


def _loads(raw: msgspec.Raw) -> Json:
    """Parse JSON with fractions as text. An empty text gives an empty object."""
    document: Json = json.loads(bytes(raw).decode(errors="replace"), parse_float=str, strict=False) if raw else {}
    return document
