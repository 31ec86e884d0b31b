"""Events of a profiler's trace as typed records: their text is decoded once, and what nobody asks for is not looked at.

msgspec reads such records several times faster than any parser makes dictionaries, and ten times faster than one that hands out
sign for sign; it is imported here alone, by those who read a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from commtax.files import Json
from commtax.readers.columns import ANNOTATION, COPY, KERNEL, KIND_OF, LAUNCH, OPERATOR, OTHER, WRONG, Columns, correlation_of
from commtax.readers.json_pieces import repaired
from commtax.readers.kineto_times import EARLIEST_NS, LARGE_US, LATEST_NS, LONGEST_NS, all_ns, ns

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


Typed = Event | Exact
_LAUNCHED, _RAN = msgspec.json.Decoder(_Launched).decode, msgspec.json.Decoder(_Ran).decode
_EACH = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EVENTS, _EXACTS = msgspec.json.Decoder(list[Event]).decode, msgspec.json.Decoder(list[Exact]).decode
_EVENT, _EXACT = msgspec.json.Decoder(Event).decode, msgspec.json.Decoder(Exact).decode
_TIME = attrgetter("ts")


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


def take(columns: Columns, events: Sequence[Typed | Odd]) -> None:
    """Add events to the columns."""
    whole: list[Any] = []
    held: dict[int, list[Any]] = {kind: [] for kind in (KERNEL, COPY, LAUNCH, ANNOTATION, OPERATOR)}
    for event in events:
        if event.ph == "X":
            whole.append(event)
            kind = KIND_OF[event.cat]
            if kind != OTHER:
                held[kind].append(event)
        elif isinstance(event, Odd):
            columns.take(event.event)
    if len(set(map(type, whole))) > 1:  # of pieces that were decoded one way and the other
        for kept in (Event, Exact):
            take(columns, [e for e in whole if isinstance(e, kept)])
        return
    if whole:
        columns.begun(_earliest(whole), len(whole))
    for kind, found in held.items():
        if found:
            _place(columns, kind, *_timed(columns, found))
    columns.judge_size()


def _earliest(events: list[Any]) -> int | None:
    """When the first of them begins."""
    times = [_number(e.ts) for e in events] if isinstance(events[0], Exact) else list(map(_TIME, events))
    low = float(np.nanmin(times)) if not all(map(math.isnan, times)) else math.nan
    if not EARLIEST_NS < low * 1000 < LATEST_NS:
        return None
    if isinstance(events[0], Event):
        return ns(low)
    return min(ns(bytes(e.ts).decode()) for e, at in zip(events, times, strict=True) if at <= low)


def _timed(columns: Columns, events: list[Any]) -> tuple[list[Any], list[int], list[int]]:
    """Those that have a name and times that a clock shows, with their starts and ends."""
    exact = isinstance(events[0], Exact)
    lasting = np.array([e.dur for e in events])
    times = np.array([_number(e.ts) for e in events] if exact else list(map(_TIME, events)))
    with np.errstate(invalid="ignore", over="ignore"):
        sound = (times * 1000 > EARLIEST_NS) & (times * 1000 < LATEST_NS) & (np.abs(lasting) * 1000 < LONGEST_NS)
    sound &= np.array([e.name is not None for e in events])
    if not sound.all():
        columns.wrong += int(np.sum(~sound))
        events = [e for e, is_sound in zip(events, sound.tolist(), strict=True) if is_sound]
        times, lasting = times[sound], lasting[sound]
    starts = np.array([ns(bytes(e.ts).decode()) for e in events], dtype=np.int64) if exact else all_ns(times)
    return events, starts.tolist(), (starts + all_ns(np.maximum(lasting, 0.0))).tolist()


def _place(columns: Columns, kind: int, events: list[Any], starts: list[int], ends: list[int]) -> None:
    for event, start, end in zip(events, starts, ends, strict=True):
        try:
            if kind in (ANNOTATION, OPERATOR):
                columns.hosted(kind, event.name, start, end, event.tid, partial(_loads, event.args))
            elif kind == LAUNCH:
                if (told := _LAUNCHED(event.args).correlation) is not None:
                    columns.launched(event.name, start, end, event.tid, correlation_of(told))
            else:
                args = _RAN(event.args)
                place = (
                    args.device,
                    event.pid if args.device is None else args.device,
                    event.tid if args.stream is None else args.stream,
                )
                told = args.collective is not NONE or args.elements is not NONE or args.size is not NONE
                meta = _loads(event.args) if told else None
                columns.ran(kind, event.name, start, end, place, correlation_of(args.correlation), meta)
        except WRONG:
            _place_odd(columns, kind, event, start, end)


def _place_odd(columns: Columns, kind: int, event: Any, start: int, end: int) -> None:
    """An event whose arguments do not fit their types."""
    try:
        columns.place(kind, event.name, start, end, event.pid, event.tid, _loads(event.args))
    except WRONG:
        columns.wrong += 1


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
