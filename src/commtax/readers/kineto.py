"""Traces of the PyTorch profiler (Kineto): a timeline, the collectives in it, and the steps they belong to.

On a device a collective is a kernel. Its name may be a lie (old traces call every NCCL kernel SendRecv, all-reduces too). What is
believed, in this order: the metadata on the kernel, the host call that launched it, its name. A kernel replayed from a CUDA graph
has its name only, and then its size is unknown. Without a device the host's own collectives are taken.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from commtax.files import TRACE_BYTES, TRACE_MEMORY_BYTES, parse_json, read_bytes
from commtax.readers.collective_names import UNNAMED, call_op, is_call, kernel_op, operator_op, shared_memory_op
from commtax.readers.devices import Device, described
from commtax.readers.messages import told_bytes, told_op, told_ranks
from commtax.readers.trace_steps import Step, graph_steps, named_steps, trained, trains, without_strays
from commtax.readers.usage import Usage, usage, within
from commtax.statement import Refusal
from commtax.timeline import Timeline
from commtax.units import plural

KINDS = ("compute", "comm", "copy")
Event = dict[str, Any]
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. ``nbytes`` is the full tensor (as in ``ledger.Item``); None where nothing tells it."""

    op: str
    nbytes: float | None
    ranks: int  # 0: not told
    start_s: float
    end_s: float
    name: str
    step: int = -1  # index into the trace's steps; -1: in none
    graph: bool = False  # replayed from a CUDA graph
    group: str = ""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace. Times are seconds since ``origin_ns``; ``issued`` counts collectives that the host called, by kind."""

    rank: int
    world: int
    backend: str
    origin_ns: int
    on_device: bool
    timeline: Timeline
    collectives: tuple[Collective, ...]
    steps: tuple[Step, ...]
    issued: Mapping[str, int]
    engine: str = ""
    device: Device | None = None
    training: bool = False  # something of training ran, in a step or not
    notes: tuple[str, ...] = ()

    @property
    def comm_fraction(self) -> float:
        """Communication that no compute covers, over the steps (over the whole trace where it has none)."""
        return self.usage(self.steps).exposed_share

    def usage(self, steps: Sequence[Step]) -> Usage:
        """How some of the steps (the whole trace where there are none) were spent."""
        return usage(self.timeline, [(s.start_s, s.end_s) for s in steps] or [(self.timeline.begin_s, self.timeline.finish_s)])

    def per_step(self, op: str, phase: str = "") -> list[int]:
        """How many collectives of one kind each step (of one phase) holds."""
        counts = Counter(c.step for c in self.collectives if c.op == op)
        return [counts[s.index] for s in self.steps if not phase or s.phase == phase]


def read(path: Path | str) -> Trace:
    """Read ``.json`` or ``.json.gz``."""
    return parse(load(read_bytes(path, "trace", most=TRACE_BYTES), str(path)), Path(path).name)


def load(raw: bytes, name: str = "trace") -> Any:
    """JSON in which fractions stay text: microseconds since 1970 with nanoseconds behind the point do not fit in a float."""
    if raw[-99:].rstrip()[-1:] not in (b"]", b"}"):  # before gigabytes of objects are made of what has no end
        raise Refusal(f"trace '{name}': not valid JSON, or cut off (its end is missing)", "trace")
    return parse_json(raw, f"trace '{name}'", memory=TRACE_MEMORY_BYTES, depth=None, parse_float=str, strict=False)


def parse(document: Any, name: str = "trace") -> Trace:
    """A trace from its JSON: an object with ``traceEvents``, or the bare list of events."""
    head = document if isinstance(document, dict) else {}
    listed = head.get("traceEvents") if head else document
    if not isinstance(listed, list):
        raise Refusal(f"trace '{name}': no traceEvents found", "trace")
    events = [e for e in listed if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e and "name" in e]
    if not events:
        raise Refusal(f"trace '{name}': no complete events (ph X) found", "trace")
    try:
        return _trace(head, events, name)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise Refusal(f"trace '{name}': an event has the wrong form ({error})", "trace") from None


def _trace(head: Mapping[str, Any], events: list[Event], name: str) -> Trace:
    job = head.get("distributedInfo") or {}
    rank = int(job["rank"] if "rank" in job else _rank_in(name))
    origin = min(_ns(e["ts"]) for e in events)
    found = _Parts(events, origin, _group_size(job))
    on_device = bool(found.device)
    steps = found.steps()
    windows = _Windows(steps)
    collectives = found.device_collectives(windows) if on_device else found.host_collectives(windows)
    label = f"rank {rank}"
    timeline = found.device_timeline(label, collectives) if on_device else found.host_timeline(label, collectives)
    return Trace(
        rank=rank,
        world=int(job.get("world_size", 0)),
        backend=str(job.get("backend", "")),
        origin_ns=origin + int(head.get("baseTimeNanoseconds", 0)),
        on_device=on_device,
        timeline=timeline,
        collectives=tuple(collectives),
        steps=tuple(steps),
        issued=Counter(call_op(e["name"]) for e in found.calls or found.operators),
        engine=f"vllm {head['vllm_version']}" if "vllm_version" in head else "",
        device=described(head, found.device_number) if on_device else None,
        training=bool(found.trained),
        notes=tuple(_notes(found, collectives, steps)),
    )


class _Parts:
    """The events of a trace sorted by what they are, in one pass; seconds since the first event."""

    def __init__(self, events: list[Event], origin: int, world: int) -> None:
        self.origin, self.world = origin, world
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
        self.launches: dict[Any, Event] = {}
        for event in events:
            self._sort(event)

    def _sort(self, event: Event) -> None:
        category, name = event.get("cat"), str(event.get("name", ""))
        if category in _DEVICE:
            self.device.append(event)
        elif category in _LAUNCHES:
            correlation = (event.get("args") or {}).get("correlation")
            if correlation is not None and ("aunch" in name or correlation not in self.launches):
                self.launches[correlation] = event
        elif category in ("user_annotation", "cpu_op"):
            if trains(name):
                self.trained.append(self.span(event)[0])
            if category == "cpu_op":
                self._sort_op(event, name)
            else:
                (self.calls if is_call(name) else self.annotations).append(event)

    def _sort_op(self, event: Event, name: str) -> None:
        if is_call(name):
            self.calls.append(event)
        elif name.startswith("c10d::"):
            self.torch_calls.append(event)
        elif name == "record_param_comms":
            self.records.append(event)
        else:
            if "shm_" in name and shared_memory_op(name):
                self.shared.append(event)
            elif "::" in name and operator_op(name):
                self.operators.append(event)
            self.ops.append(event)

    @property
    def device_number(self) -> int:
        """The GPU that most of the rank's kernels ran on."""
        numbers = Counter((e.get("args") or {}).get("device") for e in self.device)
        return next((n for n, _ in numbers.most_common() if isinstance(n, int)), 0)

    def span(self, event: Event) -> tuple[float, float]:
        start = _ns(event["ts"]) - self.origin
        return start * 1e-9, (start + max(0, _ns(event.get("dur", 0)))) * 1e-9

    def launched_s(self, event: Event) -> float | None:
        """When the host launched a device event; None where the launch is not in the trace."""
        call = self.launches.get((event.get("args") or {}).get("correlation"))
        return None if call is None else self.span(call)[0]

    def is_graph(self, event: Event) -> bool:
        call = self.launches.get((event.get("args") or {}).get("correlation"))
        return call is not None and "GraphLaunch" in call["name"]

    def steps(self) -> list[Step]:
        """Steps that somebody named, else those that repeated graph launches show; on a device moved to when it ran them."""
        named = trained(named_steps([(str(e["name"]), *self.span(e)) for e in self.annotations]), self.trained)
        if named:
            return self._on_device(named) if self.device else named
        replays = ((self.span(self.launches[c])[0], names, start, end) for c, (names, start, end) in self._replays().items())
        return trained(graph_steps(replays), self.trained)

    def _replays(self) -> dict[Any, tuple[tuple[str, ...], float, float]]:
        found: dict[Any, list[Event]] = {}
        for event in self.device:
            if event.get("cat") == "kernel" and self.is_graph(event):
                found.setdefault(event["args"]["correlation"], []).append(event)
        return {c: (tuple(sorted(e["name"] for e in group)), *self._window(group)) for c, group in found.items()}

    def _window(self, events: Sequence[Event], host_end_s: float = -math.inf) -> tuple[float, float]:
        """When the device ran what belongs together."""

        def host_s(begin: float, end: float) -> float:
            """Its own time in a pause: before its step ends, and not inside a call that waits for the device."""
            until = min(end, host_end_s)
            return until - begin - within(self.in_driver, [(begin, until)]) if until > begin else 0.0

        start, end, strays = without_strays([self.span(e) for e in events], host_s)
        self.strays += strays
        return start, end

    @cached_property
    def in_driver(self) -> list[tuple[float, float]]:
        """When the host was inside calls of the driver."""
        rows = [("host", *self.span(e), "compute", "") for e in self.launches.values()]
        return _timeline(rows).covered("compute")

    def _on_device(self, steps: list[Step]) -> list[Step]:
        """A step begins with the first kernel launched in it and ends where the next begins, unless the device idles between."""
        starts = [s.start_s for s in steps]
        launched_in: list[list[Event]] = [[] for _ in steps]
        for event in self.device:
            launched = self.launched_s(event)
            at = -1 if launched is None else bisect_right(starts, launched) - 1
            if at >= 0 and launched is not None and launched < steps[at].host_end_s:
                launched_in[at].append(event)
        windows = [self._window(found, s.host_end_s) if found else (0.0, 0.0) for s, found in zip(steps, launched_in, strict=True)]
        moved = [replace(s, start_s=a, end_s=b) for s, (a, b) in zip(steps, windows, strict=True) if b > a]
        return [replace(s, index=i, end_s=_until(s, moved[i + 1 : i + 2])) for i, s in enumerate(moved)]

    def device_collectives(self, steps: _Windows) -> list[Collective]:
        issuers = _Issuers(self)
        found = []
        for event in self.device:
            if event.get("cat") != "kernel":
                continue
            args = event.get("args") or {}
            op = kernel_op(str(event["name"]))
            told = call_op(str(args.get("Collective name", "")))
            if not op and not told:
                continue
            found.append(self._collective(event, told, op, issuers.of(event), steps))
        return sorted(found, key=lambda c: c.start_s)

    def _collective(self, event: Event, told: str, named: str, issuers: list[Event], steps: _Windows) -> Collective:
        args = event.get("args") or {}
        called = next((op for e in issuers if (op := call_op(str(e["name"])))), "")
        op = told or called or named
        ranks = next((n for e in (event, *issuers) if (n := told_ranks(e))), self.world)
        nbytes = next((size for e in (event, *issuers) if (size := told_bytes(e, op, ranks)) is not None), None)
        start, end = self.span(event)
        launched = self.launched_s(event)
        step = steps.holding(start) if launched is None else steps.launching(launched, start)
        group = str(args.get("Process Group Name", ""))
        return Collective(op, nbytes, ranks, start, end, str(event["name"]), step, self.is_graph(event), group)

    def host_collectives(self, steps: _Windows) -> list[Collective]:
        """Without a device: what the process groups recorded and shared-memory calls; else torch's calls around them."""
        events = [*self.calls, *self.shared] or self.torch_calls or [e for e in self.records if told_op(e)] or self.operators
        found = []
        for event in events:
            name, (start, end) = str(event["name"]), self.span(event)
            op = told_op(event) or shared_memory_op(name) or call_op(name) or UNNAMED
            ranks = told_ranks(event) or self.world
            found.append(Collective(op, told_bytes(event, op, ranks), ranks, start, end, name, steps.holding(start)))
        return sorted(found, key=lambda c: c.start_s)

    def device_timeline(self, label: str, collectives: Sequence[Collective]) -> Timeline:
        comm = {(c.name, c.start_s) for c in collectives}
        rows = []
        for event in self.device:
            start, end = self.span(event)
            args, name = event.get("args") or {}, str(event["name"])
            lane = f"{label} gpu {args.get('device', event.get('pid'))} stream {args.get('stream', event.get('tid'))}"
            rows.append((lane, start, end, "comm" if (name, start) in comm else _DEVICE[event["cat"]], name))
        return _timeline(rows)

    def host_timeline(self, label: str, collectives: Sequence[Collective]) -> Timeline:
        """Collectives, and operations that call no other (leaves), on their threads."""
        chosen = {(c.name, c.start_s) for c in collectives}
        rows: list[tuple[str, float, float, str, str]] = []
        busy: dict[Any, list[tuple[float, float]]] = {}
        for event in (*self.calls, *self.torch_calls, *self.records, *self.shared, *self.operators):
            start, end = self.span(event)
            if (str(event["name"]), start) in chosen:
                rows.append((f"{label} thread {event.get('tid')}", start, end, "comm", str(event["name"])))
                busy.setdefault(event.get("tid"), []).append((start, end))
        inside = {tid: _Windows([Step(0, "", *span) for span in sorted(spans)]) for tid, spans in busy.items()}
        for event, start, end in _leaves(self.ops, self.span):
            name, thread = str(event["name"]), event.get("tid")
            if (name, start) not in chosen and (thread not in inside or inside[thread].holding(start) < 0):
                rows.append((f"{label} thread {thread}", start, end, "compute", name))
        return _timeline(rows)


class _Windows:
    """Finds the step of a moment."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.starts, self.host_starts = [s.start_s for s in steps], [s.host_start_s for s in steps]
        self.has_host = bool(steps) and steps[0].host_end_s > steps[0].host_start_s

    def holding(self, at: float) -> int:
        """The step in whose window it ran; -1: in none."""
        found = bisect_right(self.starts, at) - 1
        return found if found >= 0 and at < self.steps[found].end_s else -1

    def launching(self, launched: float, start: float) -> int:
        """The step in which the host launched it; steps known from the device alone hold what ran in them."""
        if not self.has_host:
            return self.holding(start)
        found = bisect_right(self.host_starts, launched) - 1
        return found if found >= 0 and launched < self.steps[found].host_end_s else -1


class _Issuers:
    """Finds the host calls around a launch: the process group's record, torch's call, the metadata record, and the operator."""

    def __init__(self, parts: _Parts) -> None:
        self.parts = parts
        self.by_thread: dict[Any, list[tuple[float, float, Event]]] = {}
        for event in (*parts.operators, *parts.torch_calls, *parts.records, *parts.calls):
            self.by_thread.setdefault(event.get("tid"), []).append((*parts.span(event), event))
        for spans in self.by_thread.values():
            spans.sort(key=lambda s: s[0])
        self.starts = {tid: [s[0] for s in spans] for tid, spans in self.by_thread.items()}

    def of(self, event: Event) -> list[Event]:
        """Innermost first."""
        call = self.parts.launches.get((event.get("args") or {}).get("correlation"))
        spans = self.by_thread.get(call.get("tid")) if call else None
        if call is None or not spans:
            return []
        at = self.parts.span(call)[0]
        last = bisect_right(self.starts[call.get("tid")], at)
        return [e for start, end, e in reversed(spans[max(0, last - 8) : last]) if start <= at <= end]


def _timeline(rows: list[tuple[str, float, float, str, str]]) -> Timeline:
    lanes = tuple(dict.fromkeys(r[0] for r in rows))
    codes = {lane: i for i, lane in enumerate(lanes)}
    return Timeline(
        lane=np.array([codes[r[0]] for r in rows], dtype=int),
        start_s=np.array([r[1] for r in rows], dtype=float),
        end_s=np.array([r[2] for r in rows], dtype=float),
        kind=np.array([KINDS.index(r[3]) for r in rows], dtype=int),
        name=tuple(r[4] for r in rows),
        lanes=lanes,
        kinds=KINDS,
    )


def _leaves(ops: Iterable[Event], span: Any) -> list[tuple[Event, float, float]]:
    """Operations that contain no other on their thread."""
    rows = sorted(((e.get("tid"), *span(e), e) for e in ops), key=lambda r: (str(r[0]), r[1], -r[2]))
    pairs = zip(rows, [*rows[1:], None], strict=True)
    return [(r[3], r[1], r[2]) for r, n in pairs if n is None or n[0] != r[0] or n[1] >= r[2]]


def _until(step: Step, following: Sequence[Step]) -> float:
    """The next step's start, where the gap before it is shorter than the step itself (longer: nobody was asking)."""
    gap = following[0].start_s - step.end_s if following else math.inf
    return following[0].start_s if gap <= step.end_s - step.start_s else step.end_s


def _ns(value: Any) -> int:
    """Nanoseconds from microseconds, exactly, whether whole or with a fraction kept as text."""
    if isinstance(value, int):
        return value * 1000
    text = str(value)
    whole, point, fraction = text.partition(".")
    if not point or "e" in fraction or "E" in fraction:
        return round(float(text) * 1000)
    return int(whole) * 1000 + (-1 if whole.startswith("-") else 1) * int((fraction + "000")[:3])


def _rank_in(name: str) -> int:
    """The rank in a file's name (``rank1.….pt.trace.json``, ``trace_rank-0.json``), where the trace does not say it."""
    found = re.search(r"rank[-_]?(\d+)", name)
    return int(found[1]) if found else 0


def _group_size(job: Mapping[str, Any]) -> int:
    """The size of the groups where all of them (but those of one rank) are alike, else 0."""
    sizes = {int(g.get("pg_size", 0)) for g in job.get("pg_config") or [] if isinstance(g, dict)} - {0, 1}
    return sizes.pop() if len(sizes) == 1 else 0


def _notes(parts: _Parts, collectives: Sequence[Collective], steps: Sequence[Step]) -> list[str]:
    found = []
    if not parts.device:
        found.append("no device events: times are the host's")
    if parts.device and parts.calls and not collectives:
        found.append(f"{len(parts.calls)} collectives were called and none ran on the device (groups of one rank move nothing)")
    unsized = sum(c.nbytes is None for c in collectives)
    if unsized:
        found.append(f"{unsized} of {len(collectives)} collectives carry no message size")
    if parts.strays:
        found.append(
            f"{plural(parts.strays, 'device event')} far behind or ahead of the step that launched them: left out of its time"
        )
    if not steps:
        found.append("no steps found (no ProfilerStep, engine step or repeated graph): fractions are over the whole trace")
    return found
