"""Events of a profiler's trace as typed records: their text is decoded once, and what nobody asks for is not looked at.

msgspec reads such records several times faster than any parser makes dictionaries, and ten times faster than one that hands out
sign for sign; it is imported here alone, by those who read a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from commtax.files import Json
from commtax.readers.columns import ANNOTATION, COPY, KIND_OF, LAUNCH, OPERATOR, OTHER, UNTOLD, WRONG, Columns
from commtax.readers.json_pieces import repaired
from commtax.readers.kineto_facts import KEYS
from commtax.readers.kineto_times import EARLIEST_NS, LARGE_US, LATEST_NS, LONGEST_NS, all_ns, ns
from commtax.timeline import Column

NONE = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One event; its arguments stay text."""

    ph: str = ""
    cat: str = ""
    name: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = math.nan
    dur: float = 0.0
    args: msgspec.Raw = NONE


class Exact(msgspec.Struct, gc=False):
    """One event whose time of beginning stays text: microseconds since 1970 with nanoseconds behind the point."""

    ph: str = ""
    cat: str = ""
    name: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: msgspec.Raw = NONE
    dur: float = 0.0
    args: msgspec.Raw = NONE


class Odd:
    """One event that does not fit those types, as JSON has it."""

    __slots__ = ("event", "ph")
    cat, ts = "", -math.inf

    def __init__(self, event: Json) -> None:
        self.event, self.ph = event, "odd" if isinstance(event, dict) and "ph" in event else ""


class _Launched(msgspec.Struct, gc=False):
    """What the arguments of a call of the driver tell."""

    correlation: int | None = None


class _Ran(msgspec.Struct, gc=False):
    """What the arguments of a device event tell; the last three are there where a collective's are."""

    correlation: int | None = None
    device: int | str | None = None
    stream: int | str | None = None
    collective: msgspec.Raw = msgspec.field(default=NONE, name="Collective name")
    elements: msgspec.Raw = msgspec.field(default=NONE, name="In msg nelems")
    size: msgspec.Raw = msgspec.field(default=NONE, name="Group size")


_EMPTY = msgspec.Raw(b"{}")
_Told = msgspec.defstruct(
    "_Told",
    [(f"told_{i}", msgspec.Raw, msgspec.field(default=NONE, name=key)) for i, key in enumerate(KEYS)],
    gc=False,
)
"""What facts are made of, as text."""
_MOST_KNOWN = 100_000
Typed = Event | Exact
_TOLD = msgspec.json.Decoder(_Told).decode
_LAUNCHED, _RAN = msgspec.json.Decoder(_Launched).decode, msgspec.json.Decoder(_Ran).decode
_EACH = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EVENTS, _EXACTS = msgspec.json.Decoder(list[Event]).decode, msgspec.json.Decoder(list[Exact]).decode
_EVENT, _EXACT = msgspec.json.Decoder(Event).decode, msgspec.json.Decoder(Exact).decode
_TIME, _NAME = attrgetter("ts"), attrgetter("name")


class Decoder:
    """Lists of events from their text; ``exact`` once times are as large as a float cannot hold."""

    def __init__(self) -> None:
        self.exact = False

    def __call__(self, text: bytes) -> list[Typed | Odd]:
        """Events; a text that is no JSON even when repaired is a ``ValueError`` or a ``RecursionError``."""
        if not self.exact:
            events = _typed(text, False)
            largest = max(map(_TIME, events), default=0.0)
            if largest < LARGE_US:
                return events
            self.exact = largest >= LARGE_US  # not where it is no number
        return _typed(text, True)


def is_event(event: Typed | Odd) -> bool:
    """Whether an object is an event, and not a part of one."""
    return bool(event.ph)


class Known:
    """The number of what arguments tell of a collective: many events tell the same, and their other arguments are not looked at."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self._numbers = columns, dict[tuple[Any, ...], int]()

    def __call__(self, name: str, args: msgspec.Raw) -> int:
        key: tuple[Any, ...] = (name, *map(bytes, msgspec.structs.astuple(_TOLD(args)))) if args is not NONE else (name,)
        number = self._numbers.get(key)
        if number is None:
            number = self._columns.told(name, _loads(args))
            if len(self._numbers) < _MOST_KNOWN:
                self._numbers[key] = number
        return number


def take(columns: Columns, events: Sequence[Typed | Odd], known: Known) -> None:
    """Add events to the columns."""
    shapes = set(map(type, events))
    if len(shapes) > 1:  # odd ones among them, or pieces that were decoded one way and the other
        for shape in (Event, Exact):
            take(columns, [e for e in events if isinstance(e, shape)], known)
        for odd in (e for e in events if isinstance(e, Odd)):
            columns.take(odd.event)
        return None
    if shapes == {Odd}:
        return take(columns, [*events, Event()], known)
    held: dict[int, list[Any]] = {kind: [] for kind in range(OTHER + 1)}
    by_category = _Appending(held)
    for event in events:
        if event.ph == "X":
            by_category[event.cat](event)
    for kind, found in held.items():
        if found and kind == OTHER:
            columns.begun(_earliest(found), len(found))
        elif found:
            _place(columns, known, kind, *_timed(columns, found))
    return columns.judge_size()


class _Appending(dict[str, Callable[[Any], None]]):
    """By category, what appends an event to the list of its kind."""

    def __init__(self, held: Mapping[int, list[Any]]) -> None:
        self._held = held

    def __missing__(self, category: str) -> Callable[[Any], None]:
        self[category] = found = self._held[KIND_OF[category]].append
        return found


def _earliest(events: list[Any]) -> int | None:
    """When the first of them begins."""
    exact = isinstance(events[0], Exact)
    times = [_number(e.ts) for e in events] if exact else []
    low = min(times) if exact else min(map(_TIME, events))
    if not EARLIEST_NS < low * 1000 < LATEST_NS:  # nor is anything less than what is no number
        sound = [e for e in events if EARLIEST_NS < (_number(e.ts) if exact else e.ts) * 1000 < LATEST_NS]
        return _earliest(sound) if sound else None
    return min(ns(bytes(e.ts).decode()) for e, at in zip(events, times, strict=True) if at <= low) if exact else ns(low)


def _timed(columns: Columns, events: list[Any]) -> tuple[list[Any], Column, Column]:
    """Those that have a name and times that a clock shows, with their starts and ends."""
    exact = isinstance(events[0], Exact)
    lasting = np.array([e.dur for e in events])
    times = np.array([_number(e.ts) for e in events] if exact else list(map(_TIME, events)))
    with np.errstate(invalid="ignore", over="ignore"):
        sound = (times * 1000 > EARLIEST_NS) & (times * 1000 < LATEST_NS) & (np.abs(lasting) * 1000 < LONGEST_NS)
    if None in map(_NAME, events):
        sound &= np.array([e.name is not None for e in events])
    if not sound.all():
        columns.wrong += int(np.sum(~sound))
        events = [e for e, is_sound in zip(events, sound.tolist(), strict=True) if is_sound]
        times, lasting = times[sound], lasting[sound]
    starts = np.array([ns(bytes(e.ts).decode()) for e in events], dtype=np.int64) if exact else all_ns(times)
    return events, starts, starts + all_ns(np.maximum(lasting, 0.0))


def _place(columns: Columns, known: Known, kind: int, events: list[Any], starts: Column, ends: Column) -> None:
    """All at once, or one by one where the arguments of some do not fit their types."""
    names = [e.name for e in events]
    try:
        if kind in (ANNOTATION, OPERATOR):
            columns.all_hosted(kind, names, starts, ends, [e.tid for e in events], known, [e.args for e in events])
        elif kind == LAUNCH:
            _place_launches(columns, events, names, starts, ends)
        else:
            _place_ran(columns, known, kind, events, names, starts, ends)
        if events:
            columns.begun(int(starts.min()), len(events))
    except WRONG:
        for event, start, end in zip(events, starts.tolist(), ends.tolist(), strict=True):
            try:
                columns.place(kind, event.name, start, end, event.pid, event.tid, _loads(event.args))
                columns.begun(start)
            except WRONG:
                columns.wrong += 1


def _place_launches(columns: Columns, events: list[Any], names: list[str], starts: Column, ends: Column) -> None:
    told: list[Any] = [_LAUNCHED(e.args or _EMPTY).correlation for e in events]
    numbers, threads = list(map(columns.names.__getitem__, names)), [columns.threads[e.tid] for e in events]
    if None in told:
        kept = [c is not None for c in told]
        numbers, threads, told = (list(compress(column, kept)) for column in (numbers, threads, told))
        starts, ends = starts[kept], ends[kept]
    columns.launches.extend(starts, ends, numbers, threads, told)


def _place_ran(
    columns: Columns, known: Known, kind: int, events: list[Any], names: list[str], starts: Column, ends: Column
) -> None:
    args = [_RAN(e.args or _EMPTY) for e in events]
    lanes, numbers = columns.lanes, list(map(columns.names.__getitem__, names))
    places = [
        lanes[a.device, e.pid if a.device is None else a.device, e.tid if a.stream is None else a.stream]
        for e, a in zip(events, args, strict=True)
    ]
    correlations = [UNTOLD if a.correlation is None else a.correlation for a in args]
    told = [0] * len(events)
    for i, a in enumerate(args):
        if a.collective is not NONE or a.elements is not NONE or a.size is not NONE:
            told[i] = known(names[i], events[i].args)
    columns.found_device()
    columns.device.extend(starts, ends, numbers, places, correlations, told, [kind == COPY] * len(events))


def _number(raw: msgspec.Raw) -> float:
    try:
        return float(bytes(raw))
    except ValueError:
        return math.nan


def _typed(text: bytes, exact: bool) -> list[Any]:
    """Events of a list; what does not fit the types comes as JSON has it."""
    whole: Callable[[bytes], list[Any]] = _EXACTS if exact else _EVENTS
    try:
        return whole(text)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            text = repaired(text)
    try:
        return whole(text)
    except msgspec.ValidationError:
        return [_one(each, exact) for each in _EACH(repaired(text))]


def _one(raw: msgspec.Raw, exact: bool) -> Typed | Odd:
    try:
        return _EXACT(raw) if exact else _EVENT(raw)
    except msgspec.ValidationError:
        return Odd(_loads(raw))


def _loads(raw: msgspec.Raw) -> Json:
    """JSON in which fractions are text; nothing where there is no text."""
    text = bytes(raw)
    return json.loads(text.decode(errors="replace"), parse_float=str, strict=False) if text else {}
