"""What is kept of a trace while it is read: columns of numbers, and each name once.

Of a device's events, of the calls that launched them and of the host's collectives; of the host's other operations as long as no
device shows, since without one their leaves are what is computed.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from commtax.files import Json, JsonObject, MiB, list_of, need_list, need_number, need_object, need_whole, table
from commtax.runs.evidence.collective_names import call_op, is_call, operator_op, shared_memory_op
from commtax.runs.traces import trace
from commtax.statement import Refusal
from commtax.thresholds import counts
from commtax.timeline import Column

COUNT = counts(__name__)

TABLE = table("runs/traces/profilers/kineto.toml")
_SIZES = {name: int(size) for size, names in TABLE["sizes"].items() for name in names}
_PRODUCT = re.compile(r"matmul|gemm|linear|_mm")  # fused with a collective: its input is not what is sent
KEYS = (
    *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks", "Input Dims", "Input type", "Concrete Inputs"),
)
"""Of arguments, those that facts are made of."""
_UNDESCRIBED = ("", "undefined")


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Facts of one event, shared by events alike. ``in_bytes`` and ``out_bytes`` of the message, ``tensors`` of a call's inputs."""

    name: str = ""
    collective: str = ""
    ranks: int = 0  # of its group; 0: unknown
    group: str = ""
    group_name: str = ""
    members: tuple[int, ...] = ()
    sized: bool = False  # the message has a size, even where its type is unknown
    in_bytes: float | None = None
    out_bytes: float | None = None
    tensors: tuple[float, ...] = ()

    def nbytes(self, op: str, ranks: int) -> float | None:
        """Return the full tensor: from the message metadata, else from the shapes of a call's input (a shard, in an all-gather)."""
        if self.sized:
            return self.out_bytes if op == "all-gather" else self.in_bytes
        output_first = self.name.startswith("c10d::_allgather_base")
        if self.name.startswith(("c10d::", "record_param")) and not output_first:
            return None  # torch's calls have several tensors, or lists without a type: the record inside has the one that counts
        if operator_op(self.name):
            # Its first tensor where all ranks hold all of it; of input and output the larger; else the sum of its shard.
            if not self.tensors or _PRODUCT.search(self.name[-200:]):
                return None
            if op not in ("all-gather", "reduce-scatter"):
                return self.tensors[0]
            if len(self.tensors) > 1 and self.tensors[0] != self.tensors[1]:
                return max(self.tensors[:2])
            shares = ranks if op == "all-gather" else 1
            return self.tensors[0] * shares if shares else None
        shares = ranks if op == "all-gather" and not output_first else 1
        return self.tensors[0] * shares if self.tensors and shares else None


def facts_of(name: str, args: JsonObject) -> EventFacts:
    """Return what an event's arguments state."""
    described, called = str(args.get("Process Group Description", "")), str(args.get("Process Group Name", ""))
    sized = "In msg nelems" in args and "dtype" in args
    size = _size(str(args["dtype"])) if sized else None
    counts = [args.get(key) if size is not None else None for key in ("In msg nelems", "Out msg nelems")]
    in_bytes, out_bytes = (None if size is None or count is None else need_number(count) * size for count in counts)
    inputs = zip(list_of(args.get("Input Dims")), list_of(args.get("Input type")), strict=False)
    return EventFacts(
        name=name,
        collective=call_op(str(args.get("Collective name", ""))),
        ranks=_ranks(name, args),
        group=called if described in _UNDESCRIBED else described,
        group_name=called,
        members=_members(str(args.get("Process Group Ranks", ""))),
        sized=sized,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        tensors=() if sized else tuple(float(_elements(dims) * n) for dims, kind in inputs if dims and (n := _size(str(kind)))),
    )


def _ranks(name: str, args: JsonObject) -> int:
    if size := need_whole(args.get("Group size", 0) or 0):
        return size
    inputs, at = list_of(args.get("Concrete Inputs")), TABLE["group_argument"].get(name)
    word = str(inputs[at]) if at is not None and len(inputs) > at else ""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0


@lru_cache(maxsize=4096)
def _members(text: str) -> tuple[int, ...]:
    """Return listed ranks, or none where a long list was shortened.

    >>> _members("[0, 1]"), _members("[0, 1, ..., 7]")
    ((0, 1), ())
    """
    if "..." in text or len(text) > COUNT.most_members:
        return ()
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


@lru_cache(maxsize=4096)
def _size(dtype: str) -> int | None:
    name = re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch."))
    return 1 if name.startswith("float8") else _SIZES.get(name)


def _elements(dims: Json) -> int:
    """Return the elements of a tensor by its shape, or of a list of tensors."""
    shape = need_list(dims)
    return sum(map(_elements, shape)) if shape and isinstance(shape[0], list) else math.prod(map(need_whole, shape))


T = TypeVar("T")
KERNEL, COPY, LAUNCH, ANNOTATION, OPERATOR, OTHER = range(6)  # what an event is, by its category
CALL, TORCH_CALL, RECORD, SHARED, OWN, WORK, STEP = range(7)
"""What a host's event is: a process group's record, torch's call around it, its metadata, shared memory, an engine's operator."""
UNTOLD = -(2**63)  # no correlation
MOST_NAMES = 512 * MiB
WRONG = (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError)
"""What an event of the wrong form ends in."""
_ROLE, _TRAINS, _GRADIENT = 15, 16, 32  # of a host's event, that it runs in training alone, and that it accumulates a gradient
_OF_COLLECTIVES = ("Collective name", "In msg nelems", "Group size")
_CATEGORIES: Mapping[str, Sequence[str]] = TABLE["categories"]
COPY_KERNELS, WAIT_KERNELS, _LAUNCH_ENDS = (tuple(_CATEGORIES[of]) for of in ("copy_kernels", "wait_kernels", "launch_ends"))
_KINDS = {"kernel": KERNEL, "copy": COPY, "launch": LAUNCH, "annotation": ANNOTATION, "operator": OPERATOR}

LARGE_US = 2.0**43  # from here on a float does not hold microseconds with all three digits behind the point
LATEST_NS, EARLIEST_NS, LONGEST_NS = 2**62, -(2**60), 2**60  # so that differences fit in eight bytes; 2**62 is the year 2116


def ns(microseconds: object) -> int:
    """Return nanoseconds from microseconds, whether whole, with a fraction, or with a fraction kept as text.

    >>> ns(5), ns("1712195495527376.234"), ns(-5.25)
    (5000, 1712195495527376234, -5250)
    """
    if isinstance(microseconds, int):
        return microseconds * 1000
    text = str(microseconds)
    value = float(text)
    if -LARGE_US < value < LARGE_US:
        whole = math.floor(value)
        return whole * 1000 + round((value - whole) * 1000)
    whole_text, point, fraction = text.partition(".")
    if not point or "e" in fraction or "E" in fraction:
        return round(value * 1000) if "e" in text or "E" in text else int(text) * 1000
    return int(whole_text) * 1000 + (-1 if whole_text.startswith("-") else 1) * round(float(f"0.{fraction}") * 1000)


def span(ts: object, dur: object) -> tuple[int, int]:
    """Return start and end, or raise ``ValueError`` for a time that no clock shows."""
    start, lasting = ns(ts), max(0, ns(dur))
    if not EARLIEST_NS < start < LATEST_NS or lasting >= LONGEST_NS:
        raise ValueError("a time beyond any clock")
    return start, start + lasting


def all_ns(microseconds: Column) -> Column:
    """Convert like ``ns`` floats that hold all digits."""
    whole = np.floor(microseconds)
    nanoseconds: Column = (whole * 1000).astype(np.int64) + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return nanoseconds


class _Roles(dict[str, int]):
    """Roles by name, of annotations or of operators, computed once for each name."""

    def __init__(self, of_operators: bool) -> None:
        self._of_operators = of_operators

    def __missing__(self, name: str) -> int:
        self[name] = role = _role(name, self._of_operators)
        return role


class ItemNumbers(dict[object, int]):
    """Items numbered in the order in which they came. ``signs``: what their text takes."""

    signs = 0

    def __missing__(self, item: object) -> int:
        self.signs += len(item) + 100 if isinstance(item, str) else 200
        self[item] = number = len(self)
        return number


class Rows:
    """Columns that grow: whole numbers of eight bytes (q), four (i) or one (b)."""

    def __init__(self, **kinds: str) -> None:
        self._columns = {name: array(kind) for name, kind in kinds.items()}
        self._loose: list[tuple[int, ...]] = []
        self.add = self._loose.append  # one row; rows become columns when they are settled

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) + len(self._loose)

    def extend(self, *columns: Column | list[int]) -> None:
        """Append many rows, or none of them where a number does not fit."""
        raw = (column.tobytes() if isinstance(column, np.ndarray) else column for column in columns)
        added = [array(kept.typecode, column) for kept, column in zip(self._columns.values(), raw, strict=True)]
        self.settle()
        for kept, column in zip(self._columns.values(), added, strict=True):
            kept.extend(column)

    def settle(self) -> None:
        for column, values in zip(self._columns.values(), zip(*self._loose, strict=True), strict=False):
            column.extend(values)
        self._loose.clear()

    def taken(self) -> dict[str, Column]:
        """Return all columns, and empty them."""
        self.settle()
        done = {name: np.array(column, dtype=column.typecode) for name, column in self._columns.items()}
        self.clear()
        return done

    def clear(self) -> None:
        self._loose.clear()
        for column in self._columns.values():
            del column[:]


class Columns:
    """The events of one trace."""

    def __init__(self, name: str) -> None:
        self.file = name
        self.names, self.threads, self.lanes, self.facts = ItemNumbers(), ItemNumbers(), ItemNumbers(), ItemNumbers()
        self.facts[EventFacts()] = 0
        self.device = Rows(start="q", end="q", name="i", lane="i", correlation="q", facts="i", copies="b")
        self.launches = Rows(start="q", end="q", name="i", thread="i", correlation="q")
        self.host = Rows(start="q", end="q", name="i", thread="i", role="b", facts="i")
        self.work = Rows(start="q", end="q", name="i", thread="i")
        self.trained = Rows(start="q")
        self.complete = self.wrong = self.gradients = 0
        self.on_device = False
        self.origin_ns: int | None = None
        self._roles = {ANNOTATION: _Roles(False), OPERATOR: _Roles(True)}

    @staticmethod
    @lru_cache(maxsize=10_000)
    def kind_of(category: str) -> int:
        """Return the kind of an event by its category."""
        small = category.lower()
        kind = next((code for name, code in _KINDS.items() if small in _CATEGORIES[name]), OTHER)
        return LAUNCH if kind == OTHER and small.endswith(_LAUNCH_ENDS) else kind

    def begun(self, start: int | None, events: int = 1) -> None:
        """Count so many complete events, the first of which begins then."""
        self.complete += events
        if start is not None:
            self.origin_ns = start if self.origin_ns is None else min(start, self.origin_ns)

    def take(self, event: Json) -> None:
        """Take an event as JSON has it, passing over incomplete ones and counting those of the wrong form."""
        if not isinstance(event, dict) or event.get("ph", "X" if event.get("dur") else "") != "X":
            return
        kind = KERNEL  # until its category is read
        try:
            category: object = event.get("cat") or ""
            kind = self.kind_of(category)
            start, end = span(event["ts"], event.get("dur", 0) if kind != OTHER else 0)
            if kind != OTHER:
                if event["name"] is None:
                    raise ValueError("an event without a name")
                self.place(kind, str(event["name"]), start, end, event.get("pid"), event.get("tid"), event.get("args"))
        except WRONG:
            self.wrong += kind != OTHER
            self.complete += kind == OTHER
        else:
            self.begun(start)

    def place(self, kind: int, name: str, start: int, end: int, pid: object, tid: object, arguments: Json) -> None:
        """Place an event whose arguments are as JSON has them."""
        args = arguments if isinstance(arguments, dict) else need_object(arguments or {})
        if kind in (ANNOTATION, OPERATOR):
            self.all_hosted(kind, [name], np.array([start]), np.array([end]), [tid], self.facts_number, [args])
        elif kind == LAUNCH:
            if args.get("correlation") is not None:
                correlation = correlation_of(args["correlation"])
                self.launches.add((start, end, self.names[name], self.threads[tid], correlation))
        elif kind != OTHER:
            device, stream = args.get("device"), args.get("stream")
            # The stated device, then device and stream as shown: process and thread where those are missing.
            place = device, pid if device is None else device, tid if stream is None else stream
            facts = self.facts_number(name, args) if any(key in args for key in _OF_COLLECTIVES) else 0
            correlation = correlation_of(args.get("correlation"))
            self.mark_on_device()
            self.device.add((start, end, self.names[name], self.lanes[place], correlation, facts, kind == COPY))

    def mark_on_device(self) -> None:
        """Note that there is a device, so that what the host computes is no longer needed."""
        self.on_device = True
        self.work.clear()

    def all_hosted(
        self,
        kind: int,
        names: Sequence[str],
        starts: Column,
        ends: Column,
        tids: Sequence[object],
        facts_number: Callable[[str, T], int],
        args: Sequence[T],
    ) -> None:
        """Take a host's events of one kind. Arguments are looked at only where an event is a collective's."""
        roles_of, number_of = self._roles[kind], self.names
        numbers = [number_of[name] for name in names]
        roles = np.array([roles_of[name] for name in names])
        threads = [self.threads[thread] for thread in tids]
        collective = np.flatnonzero(roles & _ROLE < WORK).tolist()
        facts = [facts_number(names[i], args[i]) for i in collective]
        self.trained.extend(starts[roles >= _TRAINS])
        self.gradients += int(np.count_nonzero(roles & _GRADIENT))
        kept = [*collective, *np.flatnonzero(roles & _ROLE == STEP).tolist()]
        facts += [0] * (len(kept) - len(facts))
        picked = [[numbers[i] for i in kept], [threads[i] for i in kept], (roles[kept] & _ROLE).tolist() if kept else []]
        self.host.extend(starts[kept] if kept else [], ends[kept] if kept else [], *picked, facts)
        if kind == OPERATOR and not self.on_device:
            work = np.flatnonzero(roles & _ROLE == WORK)
            self.work.extend(starts[work], ends[work], *([column[i] for i in work.tolist()] for column in (numbers, threads)))

    def facts_number(self, name: str, args: JsonObject) -> int:
        """Return the number of what an event's arguments state of a collective."""
        return self.facts[facts_of(name, args)]

    def judge_size(self) -> None:
        """Refuse what would take more memory than an answer may."""
        kept = (self.device, self.launches, self.host, self.work, self.trained)
        for one in kept:
            one.settle()
        rows = sum(map(len, kept))
        if self.names.signs > MOST_NAMES:
            raise Refusal(f"trace '{self.file}': more than {MOST_NAMES // MiB} MiB of different names", "trace")
        if rows > COUNT.most_rows:
            why = f"more than {COUNT.most_rows:,} device events, launches and collectives"
            raise Refusal(f"trace '{self.file}': {why}, which is more than is kept; profile fewer steps", "trace")


def correlation_of(value: Json) -> int:
    """Return the number that links a device's event to its launch."""
    if value is None:
        return UNTOLD
    number = value if isinstance(value, int) else need_whole(value)
    if not UNTOLD < number < -UNTOLD:
        raise ValueError("a correlation beyond eight bytes")
    return number


def _role(name: str, is_op: bool) -> int:
    """Return what a host's event is by its name, plus 16 where it runs in training alone and 32 where it accumulates a gradient."""
    trains = (_TRAINS if trace.trains(name) else 0) + (_GRADIENT if trace.accumulates(name) else 0)
    step = not is_op and trace.names_step(name)
    if is_call(name):
        return CALL + trains
    if not is_op:
        return (STEP if step else WORK) + trains
    if name.startswith("c10d::"):
        return TORCH_CALL + trains
    if name == "record_param_comms":
        return RECORD + trains
    if "shm_" in name and shared_memory_op(name):
        return SHARED + trains
    return (OWN if "::" in name and operator_op(name) else WORK) + trains
