"""Traces of the PyTorch profiler (Kineto).

On a device a collective is a kernel. Its name may be a lie (old traces call every NCCL kernel SendRecv, all-reduces too). What is
believed, in this order: the metadata on the kernel, the host call that launched it, its name. A kernel replayed from a CUDA graph
has its name only, and then its size is unknown. Without a device the host's own collectives are taken.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from commtax.files import TRACE_BYTES, TRACE_MEMORY_BYTES, Json, Stream, opened, parse_json, table
from commtax.readers import trace
from commtax.readers.collective_names import UNNAMED, call_op, is_call, kernel_op, operator_op, shared_memory_op
from commtax.readers.trace import Collective, Device, Span, Step, Trace
from commtax.statement import Note, Refusal
from commtax.units import plural

_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_HOST = ("user_annotation", "cpu_op")
_TABLE = table("readers/kineto.toml")
_SIZES = {name: int(size) for size, names in _TABLE["sizes"].items() for name in names}
_PRODUCT = re.compile(r"matmul|gemm|linear|_mm")  # fused with a collective: what is given is not what is sent


def looks_like(raw: bytes) -> bool:
    """Whether a file is such a trace: an object with ``traceEvents``, or the bare list of events."""
    return b'"traceEvents"' in raw or (raw[:99].lstrip()[:1] == b"[" and b'"ph"' in raw)


def read(given: Stream | Path | str) -> Trace:
    """Read ``.json`` or ``.json.gz``."""
    if not isinstance(given, Stream):
        with opened(given, "trace") as stream:
            return read(stream)
    return parse(load(given.whole(TRACE_BYTES), str(given.path)), given.path.name)


def load(raw: bytes, name: str = "trace") -> Any:
    """JSON in which fractions stay text: microseconds since 1970 with nanoseconds behind the point do not fit in a float."""
    if raw[-99:].rstrip()[-1:] not in (b"]", b"}"):  # before gigabytes of objects are made of what has no end
        raise Refusal(f"trace '{name}': not valid JSON, or cut off (its end is missing)", "trace")
    return parse_json(raw, f"trace '{name}'", memory=TRACE_MEMORY_BYTES, depth=None, exact=True)


def parse(document: Any, name: str = "trace") -> Trace:
    """A trace from its JSON."""
    head = document if isinstance(document, dict) else {}
    listed = head.get("traceEvents") if head else document
    if not isinstance(listed, list):
        raise Refusal(f"trace '{name}': no traceEvents found", "trace")
    complete = [e for e in listed if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e and "name" in e]
    if not complete:
        raise Refusal(f"trace '{name}': no complete events (ph X) found", "trace")
    try:
        return _trace(head, complete, name)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise Refusal(f"trace '{name}': an event has the wrong form ({error})", "trace") from None


def _trace(head: Json, complete: list[Json], name: str) -> Trace:
    job = head.get("distributedInfo") or {}
    named = re.search(r"rank[-_]?(\d+)", name)  # rank1.….pt.trace.json, trace_rank-0.json
    rank = int(job["rank"] if "rank" in job else named[1] if named else 0)
    origin = min(ns(e["ts"]) for e in complete)
    # Groups are as large as those that are told, where all of them (but those of one rank) are alike.
    sizes = {int(g.get("pg_size", 0)) for g in job.get("pg_config") or [] if isinstance(g, dict)} - {0, 1}
    events = _Events(complete, origin, sizes.pop() if len(sizes) == 1 else 0)
    steps = events.steps()
    collectives = sorted(events.collectives(steps), key=lambda c: c.start_s)
    return Trace(
        rank=rank,
        world=int(job.get("world_size", 0)),
        origin_ns=origin + int(head.get("baseTimeNanoseconds", 0)),
        on_device=bool(events.device),
        timeline=trace.timeline_of(list(events.rows(f"rank {rank}", {(c.name, c.start_s) for c in collectives}))),
        collectives=tuple(collectives),
        steps=tuple(steps),
        issued=Counter(call_op(e.name) for e in events.calls or events.operators),
        device=_device(head, events.device),
        training=bool(events.trained),
        notes=tuple(_notes(events, collectives, steps)),
    )


def _device(head: Json, events: Sequence[Event]) -> Device | None:
    """The GPU that most of the rank's kernels ran on, from ``deviceProperties``; None where a trace has none."""
    listed = [d for d in head.get("deviceProperties") or [] if isinstance(d, dict) and d.get("totalGlobalMem")]
    if not listed or not events:
        return None
    numbers = Counter(e.args.get("device") for e in events)
    used = next((n for n, _ in numbers.most_common() if isinstance(n, int)), 0)
    own = next((d for d in listed if d.get("id") == used), listed[0])
    alike = sum(d.get("totalGlobalMem") == own["totalGlobalMem"] and d.get("name") == own.get("name") for d in listed)
    return Device(str(own.get("name", "")).strip(), float(own["totalGlobalMem"]), int(own.get("numSms", 0)), alike)


def _notes(events: _Events, collectives: Sequence[Collective], steps: Sequence[Step]) -> Iterator[Note]:
    if not events.device:
        yield Note("no device", "no device events: times are the host's")
    if events.device and (called := len(events.calls)) and not collectives:
        yield Note("none ran", f"{called} collectives were called and none ran on the device (groups of one rank move nothing)")
    if unsized := sum(c.nbytes is None for c in collectives):
        yield Note("unsized", f"{unsized} of {len(collectives)} collectives carry no message size")
    if stray := plural(events.strays, "device event") if events.strays else "":
        yield Note("strays", f"{stray} far behind or ahead of the step that launched them: left out of its time")
    if not steps:
        looked_for = "no ProfilerStep, engine step or repeated graph"
        yield Note("no steps", f"no steps found ({looked_for}): fractions are over the whole trace")


class _Events:
    """The events of a trace sorted by what they are, in one pass."""

    def __init__(self, complete: list[Json], origin_ns: int, world: int) -> None:
        self.world = world
        self.device: list[Event] = []
        self.calls: list[Event] = []  # nccl:… and gloo:…, the process groups' own records
        self.torch_calls: list[Event] = []  # c10d::… around them
        self.records: list[Event] = []  # record_param_comms, with metadata in newer versions
        self.shared: list[Event] = []  # shared-memory collectives on CPUs
        self.operators: list[Event] = []  # engines' and libraries' own collectives, as torch calls them
        self.annotations: list[Event] = []
        self.ops: list[Event] = []
        self.trained: list[float] = []  # when something of training began
        self.strays = 0
        self.launches: dict[object, Event] = {}  # by correlation
        for raw in complete:
            if (category := raw.get("cat")) in _DEVICE:
                self.device.append(event_of(raw, origin_ns))
            elif category in _LAUNCHES:
                event = event_of(raw, origin_ns)
                correlation = event.args.get("correlation")
                if correlation is not None and ("aunch" in event.name or correlation not in self.launches):
                    self.launches[correlation] = event
            elif category in _HOST:
                self._sort_host(event_of(raw, origin_ns))

    def _sort_host(self, event: Event) -> None:
        name, is_op = event.name, event.category == "cpu_op"
        if trace.trains(name):
            self.trained.append(event.start_s)
        if is_call(name):
            self.calls.append(event)
        elif not is_op:
            self.annotations.append(event)
        elif name.startswith("c10d::"):
            self.torch_calls.append(event)
        elif name == "record_param_comms":
            self.records.append(event)
        else:
            self.ops.append(event)
            if "shm_" in name and shared_memory_op(name):
                self.shared.append(event)
            elif "::" in name and operator_op(name):
                self.operators.append(event)

    def launch(self, event: Event) -> Event | None:
        """The host's call that launched a device event; None where it is not in the trace."""
        return self.launches.get(event.args.get("correlation"))

    def is_graph(self, event: Event) -> bool:
        call = self.launch(event)
        return call is not None and "GraphLaunch" in call.name

    @cached_property
    def host_calls(self) -> dict[object, list[Event]]:
        """Calls that may issue a collective, by thread and in order: process groups' records, torch's calls, and operators."""
        by_thread: dict[object, list[Event]] = {}
        for event in sorted((*self.operators, *self.torch_calls, *self.records, *self.calls), key=lambda e: e.start_s):
            by_thread.setdefault(event.thread, []).append(event)
        return by_thread

    def issuers(self, event: Event) -> list[Event]:
        """The host calls around a device event's launch, innermost first."""
        launch = self.launch(event)
        if launch is None:
            return []
        at, calls = launch.start_s, self.host_calls.get(launch.thread, [])
        last = bisect_right(calls, at, key=lambda e: e.start_s)
        return [e for e in reversed(calls[max(0, last - 8) : last]) if e.start_s <= at <= e.end_s]

    def steps(self) -> list[Step]:
        """Steps that somebody named, else those that repeated graph launches show; on a device moved to when it ran them."""
        named = trace.trained(trace.named_steps([(e.name, *e.span) for e in self.annotations]), self.trained)
        if named:
            return self._on_device(named) if self.device else named
        replays: dict[object, list[Event]] = {}
        for event in self.device:
            if event.category == "kernel" and self.is_graph(event):
                replays.setdefault(event.args["correlation"], []).append(event)
        graphs = (
            (self.launches[c].start_s, tuple(sorted(e.name for e in group)), *self._window(group)) for c, group in replays.items()
        )
        return trace.trained(trace.graph_steps(graphs), self.trained)

    def _window(self, events: Sequence[Event], host_end_s: float = -math.inf) -> Span:
        """When the device ran what belongs together."""

        def host_s(begin: float, end: float) -> float:
            """Its own time in a pause: before its step ends, and not inside a call that waits for the device."""
            until = min(end, host_end_s)
            return until - begin - trace.within(self.in_driver, [(begin, until)]) if until > begin else 0.0

        start, end, strays = trace.without_strays([e.span for e in events], host_s)
        self.strays += strays
        return start, end

    @cached_property
    def in_driver(self) -> list[Span]:
        """When the host was inside calls of the driver."""
        return trace.timeline_of([("host", *e.span, "compute", "") for e in self.launches.values()]).covered("compute")

    def _on_device(self, steps: list[Step]) -> list[Step]:
        """A step begins with the first kernel launched in it and ends where the next begins, unless the device idles between."""
        hosted = [s.host for s in steps]
        launched_in: dict[int, list[Event]] = {}
        for event in self.device:
            if call := self.launch(event):
                launched_in.setdefault(_holding(hosted, call.start_s), []).append(event)
        moved = []
        for at, step in enumerate(steps):
            start, end = self._window(launched_in[at], step.host[1]) if at in launched_in else (0.0, 0.0)
            moved += [replace(step, start_s=start, end_s=end)] if end > start else []
        return trace.numbered(trace.until_the_next(moved))

    def collectives(self, steps: Sequence[Step]) -> Iterator[Collective]:
        """The device's; without one what the process groups recorded and shared-memory calls, else torch's calls around them."""
        ran = [(s.start_s, s.end_s) for s in steps]
        if self.device:
            kernels = [e for e in self.device if e.category == "kernel"]
            hosted = [s.host for s in steps] if steps and steps[0].host != trace.EVER else None
            yield from (self._on_kernel(e, ran, hosted) for e in kernels if e.collective or kernel_op(e.name))
            return
        named = [e for e in self.records if e.collective]
        for event in [*self.calls, *self.shared] or self.torch_calls or named or self.operators:
            op = event.collective or shared_memory_op(event.name) or call_op(event.name) or UNNAMED
            ranks = event.ranks or self.world
            yield Collective(op, event.nbytes(op, ranks), ranks, *event.span, event.name, _holding(ran, event.start_s))

    def _on_kernel(self, event: Event, ran: Sequence[Span], hosted: Sequence[Span] | None) -> Collective:
        issuers = self.issuers(event)
        called = next((op for e in issuers if (op := call_op(e.name))), "")
        op = event.collective or called or kernel_op(event.name)
        ranks = next((n for e in (event, *issuers) if (n := e.ranks)), self.world)
        nbytes = next((size for e in (event, *issuers) if (size := e.nbytes(op, ranks)) is not None), None)
        call = self.launch(event)
        step = _holding(hosted, call.start_s) if call and hosted else _holding(ran, event.start_s)
        return Collective(op, nbytes, ranks, *event.span, event.name, step, self.is_graph(event))

    def rows(self, label: str, sent: set[tuple[str, float]]) -> Iterator[tuple[str, float, float, str, str]]:
        """Intervals of the timeline: what the device ran, or collectives and leaves of operations on the host's threads."""
        for e in self.device:
            lane = f"{label} gpu {e.args.get('device', e.process)} stream {e.args.get('stream', e.thread)}"
            yield lane, *e.span, "comm" if (e.name, e.start_s) in sent else _DEVICE[e.category], e.name
        if self.device:
            return
        busy: dict[object, list[Span]] = {}
        for e in (*self.calls, *self.torch_calls, *self.records, *self.shared, *self.operators):
            if (e.name, e.start_s) in sent:
                yield f"{label} thread {e.thread}", *e.span, "comm", e.name
                busy.setdefault(e.thread, []).append(e.span)
        inside = {thread: sorted(spans) for thread, spans in busy.items()}
        for e in _leaves(self.ops):
            if (e.name, e.start_s) not in sent and _holding(inside.get(e.thread, ()), e.start_s) < 0:
                yield f"{label} thread {e.thread}", *e.span, "compute", e.name


def _holding(spans: Sequence[Span], at: float) -> int:
    """Which of the spans, in order, holds a moment; -1: none does."""
    last = bisect_right(spans, at, key=lambda span: span[0]) - 1
    return last if last >= 0 and at < spans[last][1] else -1


def _leaves(ops: Iterable[Event]) -> list[Event]:
    """Operations that contain no other on their thread."""
    ordered = sorted(ops, key=lambda e: (str(e.thread), e.start_s, -e.end_s))
    pairs = zip(ordered, [*ordered[1:], None], strict=False)  # where there are none, nothing comes after them
    return [e for e, after in pairs if after is None or after.thread != e.thread or after.start_s >= e.end_s]


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One complete event; seconds since the trace's first."""

    name: str
    category: str
    start_s: float
    end_s: float
    thread: object
    process: object
    args: Json

    @property
    def span(self) -> Span:
        return self.start_s, self.end_s

    @property
    def collective(self) -> str:
        """The collective that its metadata names, or ""."""
        return call_op(str(self.args.get("Collective name", "")))

    @property
    def ranks(self) -> int:
        """The size of its group, or 0."""
        if size := int(self.args.get("Group size", 0) or 0):
            return size
        given, at = self.args.get("Concrete Inputs") or (), _TABLE["group_argument"].get(self.name)
        word = str(given[at]) if at is not None and len(given) > at else ""
        return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0

    def nbytes(self, op: str, ranks: int) -> float | None:
        """The full tensor: from the message metadata, else from the shapes of a call's input (a shard, in an all-gather)."""
        args, name = self.args, self.name
        if "In msg nelems" in args and "dtype" in args:
            count, size = args.get("Out msg nelems" if op == "all-gather" else "In msg nelems"), _size(str(args["dtype"]))
            return None if size is None or count is None else float(count) * size
        output_first = name.startswith("c10d::_allgather_base")
        if name.startswith(("c10d::", "record_param")) and not output_first:
            return None  # torch's calls have several tensors, or lists without a type: the record inside has the one that counts
        inputs = zip(args.get("Input Dims") or (), args.get("Input type") or (), strict=False)
        tensors = [float(_elements(dims) * size) for dims, kind in inputs if dims and (size := _size(str(kind)))]
        if operator_op(name):
            return _operator_bytes(name, tensors, op, ranks)
        shares = ranks if op == "all-gather" and not output_first else 1
        return tensors[0] * shares if tensors and shares else None


def event_of(raw: Json, origin_ns: int) -> Event:
    start, seconds = ns(raw["ts"]) - origin_ns, max(0, ns(raw.get("dur", 0)))
    ends = start * 1e-9, (start + seconds) * 1e-9
    return Event(str(raw["name"]), raw.get("cat") or "", *ends, raw.get("tid"), raw.get("pid"), raw.get("args") or {})


def ns(microseconds: object) -> int:
    """Nanoseconds from microseconds, exactly, whether whole or with a fraction kept as text."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    text = str(microseconds)
    whole, point, fraction = text.partition(".")
    if not point or "e" in fraction or "E" in fraction:
        return round(float(text) * 1000)
    return int(whole) * 1000 + (-1 if whole.startswith("-") else 1) * int((fraction + "000")[:3])


def _operator_bytes(name: str, tensors: list[float], op: str, ranks: int) -> float | None:
    """An operator's full tensor: its first where all ranks hold all of it; of input and output the larger; else its shard's sum."""
    if not tensors or _PRODUCT.search(name[-200:]):
        return None
    if op not in ("all-gather", "reduce-scatter"):
        return tensors[0]
    if len(tensors) > 1 and tensors[0] != tensors[1]:
        return max(tensors[:2])
    shares = ranks if op == "all-gather" else 1
    return tensors[0] * shares if shares else None


def _size(dtype: str) -> int | None:
    name = re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch."))
    return 1 if name.startswith("float8") else _SIZES.get(name)


def _elements(dims: Any) -> int:
    """Elements of a tensor by its shape, or of a list of tensors."""
    if dims and isinstance(dims[0], list):
        return sum(_elements(d) for d in dims)
    return math.prod(int(d) for d in dims)
