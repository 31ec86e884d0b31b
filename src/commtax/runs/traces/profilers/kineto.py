"""Traces of the PyTorch profiler (Kineto), read in pieces: what is kept is columns of what ran, not the file.

From the columns: launches linked to what they launched, steps, collectives, and the rows of a timeline.

Also other traces in the format of chrome://tracing: those with nothing that is known are refused, and our own (``simulate
--timeline``, ``pipeline --chrome-trace``) have a lane for each engine, stage or rank, and each lane becomes a trace. A slice that
says so holds several steps alike: they share its time evenly.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from commtax.files import (
    OUTPUT_BYTES,
    TRACE_BYTES,
    FileStream,
    Json,
    JsonObject,
    list_of,
    need_list,
    need_number,
    need_object,
    need_whole,
    object_of,
    open_stream,
    parse_json,
)
from commtax.runs.evidence.collective_names import UNNAMED, algorithm_of, call_op, kernel_op, shared_memory_op
from commtax.runs.traces import trace
from commtax.runs.traces.profilers.columns import (
    CALL,
    COPY_KERNELS,
    OWN,
    RECORD,
    SHARED,
    STEP,
    TABLE,
    TORCH_CALL,
    WAIT_KERNELS,
    WRONG,
    Columns,
    EventFacts,
)
from commtax.runs.traces.profilers.json_pieces import ListedObjects
from commtax.runs.traces.trace import KINDS, Collective, Coverage, Device, Span, Trace, TraceStep, coverage, holding, timeline_of
from commtax.statement import Note, Refusal
from commtax.thresholds import counts, thresholds
from commtax.timeline import PRODUCER, Column, Timeline, pairs
from commtax.units import plural

COUNT, LEVEL = thresholds(__name__)

Groups = Mapping[str, tuple[int, ...]]  # ranks of the process groups, by name
_HOSTED = ("gloo:", "mpi:")  # libraries whose collectives are no kernels
_COMPUTE, _COMM, _COPY, _WAIT = (trace.KINDS.index(kind) for kind in ("compute", "comm", "copy", "wait"))


Issuers = tuple[list[float], list[float], list[int], list[int]]
"""Host calls of one thread that may issue a collective, in order: their starts, ends, names and facts."""


class RankEvents:
    """One rank's events. Times are seconds since its first. ``world``: the size of groups that state none."""

    def __init__(self, columns: Columns, world: int, groups: Groups) -> None:
        self.origin_ns = origin = columns.origin_ns or 0
        self.world, self.groups, self.strays = world, groups, 0
        self.names: tuple[str, ...] = tuple(map(str, columns.names))
        self.threads, self.lanes = tuple(columns.threads), list(columns.lanes)
        self.facts: list[EventFacts] = [f for f in columns.facts if isinstance(f, EventFacts)]
        kinds = (columns.device, columns.launches, columns.host, columns.work, columns.trained)
        timed: tuple[dict[str, Column], ...] = tuple(rows.taken() for rows in kinds)
        for rows in timed:
            rows |= {key: (rows[key] - origin) * 1e-9 for key in ("start", "end") if key in rows}
        self.device, launches, self.host, self.work, trained = timed
        self.trained = trained["start"]
        self.device["waits"] = self._named(lambda name: name.lower().startswith(WAIT_KERNELS))[self.device["name"]]
        if len(self.device["start"]):
            copies = self._named(lambda name: name.startswith(COPY_KERNELS))[self.device["name"]]
            self.device["copies"] = self.device["copies"].astype(bool) | copies
            self._order()
        self.on_device = bool(len(self.device["start"]))
        launching = self._named(lambda name: "aunch" in name)
        number = np.argsort(np.argsort(launches["start"], kind="stable"))
        better = np.where(launching[launches["name"]], number + len(number), -number) if len(number) else number
        order = np.lexsort((better, launches["correlation"]))
        correlation = launches["correlation"][order]
        last = np.flatnonzero(np.concatenate([correlation[1:] != correlation[:-1], [True]])) if len(order) else order
        self.launches = {key: column[order[last]] for key, column in launches.items()}
        self.launch = self._launch() if self.on_device else np.empty(0, dtype=int)

    def by_device(self) -> list[tuple[int, RankEvents]]:
        """Return the devices that one process computed on, each with what ran on it, or none where there is only one."""
        numbers = [place[0] if isinstance(place, tuple) and isinstance(place[0], int) else -1 for place in self.lanes]
        device = np.array(numbers, dtype=int)[self.device["lane"]]
        computes = ~self.device["copies"].astype(bool) & ~self.device["waits"] & (device >= 0)
        lasted = self.device["end"] - self.device["start"]
        busy = np.bincount(device[computes], lasted[computes]) if computes.any() else np.zeros(1)
        used = np.flatnonzero(busy > LEVEL.fair * busy.max()).tolist()
        return [(int(n), self._only(device == n)) for n in used] if len(used) > 1 else []

    def _only(self, rows: Column) -> RankEvents:
        """Return a copy with only some of the device's events."""
        part = copy(self)
        part.device = {key: column[rows] for key, column in self.device.items()}
        part._order()
        part.launch = part._launch()
        return part

    def _order(self) -> None:
        """Sort the device's events by time, and its lanes as they begin, however the file was cut."""
        order = np.lexsort((self.device["end"], self.device["correlation"], self.device["start"]))
        self.device = {key: column[order] for key, column in self.device.items()}
        used, first, lane = np.unique(self.device["lane"], return_index=True, return_inverse=True)
        begun = np.argsort(first)
        self.lanes = [self.lanes[i] for i in used[begun].tolist()]
        self.device["lane"] = np.argsort(begun)[lane]

    def _launch(self) -> Column:
        """Return the launch of each device event, or -1 where the trace lacks it."""
        launched, correlation = (of["correlation"] for of in (self.launches, self.device))
        if not len(launched):
            return np.full(len(correlation), -1)
        at = np.minimum(np.searchsorted(launched, correlation), len(launched) - 1)
        return np.where(launched[at] == correlation, at, -1)

    @cached_property
    def graph(self) -> Column:
        """Whether each device event was replayed from a graph."""
        return self._of_launch(self._named(lambda name: "GraphLaunch" in name)[self.launches["name"]], False)

    @cached_property
    def launched_s(self) -> Column:
        """When each device event was launched, nan where that is unknown."""
        return self._of_launch(self.launches["start"], math.nan)

    def _of_launch(self, of_launches: Column, other: float) -> Column:
        """Spread a property of launches over device events, with another value where the trace lacks the launch."""
        of_events, linked = np.full(len(self.launch), other), self.launch >= 0
        of_events[linked] = of_launches[self.launch[linked]]
        return of_events

    def _named(self, is_one: Callable[[str], bool]) -> Column:
        return np.array([is_one(name) for name in self.names], dtype=bool)

    @cached_property
    def _worked(self) -> Column:
        """Rows of the device whose launch is known and that do more than wait."""
        return np.flatnonzero((self.launch >= 0) & ~self.device["waits"])

    def of(self, *roles: int) -> Column:
        """Return which of the host's events have one of these roles, in the order of the roles."""
        return np.concatenate([np.flatnonzero(self.host["role"] == role) for role in roles])

    def issued(self) -> Counter[str]:
        """Count the collectives that the host called, by kind."""
        called = self.of(CALL) if len(self.of(CALL)) else self.of(OWN)
        counts = np.bincount(self.host["name"][called], minlength=len(self.names))
        ops: Counter[str] = Counter()
        for number in np.flatnonzero(counts).tolist():
            ops[call_op(self.names[number])] += int(counts[number])
        return ops

    def used_devices(self) -> Counter[object]:
        """Count the events of each device that events name."""
        counts = np.bincount(self.device["lane"], minlength=len(self.lanes))
        devices: Counter[object] = Counter()
        for place, count in zip(self.lanes, counts.tolist(), strict=True):
            devices[place[0] if isinstance(place, tuple) else None] += count
        return devices

    def steps(self) -> list[TraceStep]:
        """Return named steps, else those of repeated graph launches, as the device ran them where launches are traced."""
        rows = self.of(STEP)
        spans = zip(*(self.host[key][rows].tolist() for key in ("name", "start", "end")), strict=True)
        named = trace.mark_training(trace.named_steps([(self.names[n], start, end) for n, start, end in spans]), self.trained)
        if named:
            return self._on_device(named) if len(self._worked) else named
        return trace.mark_training(trace.graph_steps(self._replays()), self.trained)

    def _replays(self) -> Iterator[tuple[float, bytes, float, float]]:
        """Yield for each replayed graph when it was launched, its kernels as one key, and when it ran."""
        rows = np.flatnonzero(self.graph & ~self.device["copies"] & ~self.device["waits"])
        rows = rows[np.argsort(self.launch[rows], kind="stable")]
        for begin, end in pairwise(_edges(self.launch[rows])):
            group = rows[begin:end]
            sign = np.sort(self.device["name"][group]).tobytes()
            yield (float(self.launched_s[group[0]]), sign, *self._window(group))

    def _window(self, rows: Column, host_end_s: float = -math.inf) -> Span:
        """Return when the device ran what belongs together."""

        def host_s(begin: float, end: float) -> float:
            """Return the host's time in a pause: in its step and outside calls that wait, or until it launched what follows."""
            until = min(end, host_end_s)
            free_s = until - begin - self._in_driver.seconds(begin, until) if until > begin else 0.0
            return max(free_s, self._unlaunched(rows, begin, end))

        spans = np.stack([self.device["start"][rows], self.device["end"][rows]], axis=1)
        start, end, strays = trace.main_span(spans, host_s)
        self.strays += strays
        return start, end

    def _unlaunched(self, rows: Column, begin: float, end: float) -> float:
        """Return how long in a pause the device was idle for want of a launch, apart from the first few kernels of the trace."""
        starts, ends = self.device["start"][rows], self.device["end"][rows]
        behind = int(np.searchsorted(starts, end))
        until = min(end, float(self.launched_s[rows[behind]]))
        ahead = 2 * np.sum((ends - starts)[:behind]) < np.sum(ends - starts)
        if not until > begin or (ahead and starts[0] <= self.device["start"][0]):
            return 0.0
        return until - begin - self._busy.seconds(begin, until)

    @cached_property
    def _busy(self) -> Coverage:
        works = ~self.device["waits"]
        return coverage(self.device["start"][works], self.device["end"][works])

    @cached_property
    def _in_driver(self) -> Coverage:
        """When the host was inside calls of the driver that may wait for the device."""
        words = TABLE["categories"]["waiting_calls"]
        waits = self._named(lambda name: any(word in name.lower() for word in words))[self.launches["name"]]
        return coverage(self.launches["start"][waits], self.launches["end"][waits])

    def _on_device(self, steps: list[TraceStep]) -> list[TraceStep]:
        """Begin each step with its first launched kernel and end it where the next begins, unless the device idles between."""
        linked = self._worked
        within = holding([s.host for s in steps], self.launched_s[linked])
        order = np.argsort(within, kind="stable")
        linked, within = linked[order], within[order]
        moved = []
        for begin, end in pairwise(_edges(within)):
            if within[begin] >= 0:
                step = steps[int(within[begin])]
                window = self._window(linked[begin:end], step.host[1])
                moved += [replace(step, start_s=window[0], end_s=window[1])] if window[1] > window[0] else []
        return trace.number_steps(trace.extend_steps(moved))

    @cached_property
    def kernels_sent(self) -> Column:
        """Rows of the device that are collectives."""
        by_name = self._named(lambda name: bool(kernel_op(name)))
        by_facts = np.array([bool(f.collective) for f in self.facts], dtype=bool)
        sent = by_name[self.device["name"]] | by_facts[self.device["facts"]]
        return np.flatnonzero(sent & ~self.device["copies"])

    @cached_property
    def host_sent(self) -> Column:
        """Rows of the host that are collectives, beside a device those of a library without kernels alone."""
        if self.on_device:
            hosted, calls = self._named(lambda name: name.startswith(_HOSTED)), self.of(CALL)
            return calls[:0] if len(self.kernels_sent) else calls[hosted[self.host["name"][calls]]]
        records = self.of(RECORD)
        named = np.array([bool(self.facts[f].collective) for f in self.host["facts"][records].tolist()], dtype=bool)
        for rows in (self.of(CALL, SHARED), self.of(TORCH_CALL), records[named], self.of(OWN)):
            if len(rows):
                return rows
        return np.empty(0, dtype=int)

    def collectives(self, steps: Sequence[TraceStep]) -> list[Collective]:
        """Return collectives in order of their start."""
        ran, named = [(s.start_s, s.end_s) for s in steps], bool(steps) and steps[0].host != trace.EVER
        host_begins = self.host["start"][self.host_sent]
        made = list(self._on_host(holding([s.host for s in steps] if named else ran, host_begins)))
        if self.on_device:
            within = holding(ran, self.device["start"][self.kernels_sent])
            if named:  # what is launched between two steps is part of the one that it runs in
                launched = self.launched_s[self.kernels_sent]
                inside = holding([s.host for s in steps], launched)
                within = np.where((inside < 0) & ~(launched < steps[0].host[0]), within, inside)
            made += self._on_kernels(within)
        return sorted(made, key=lambda c: c.start_s)

    def _on_host(self, within: Column) -> Iterator[Collective]:
        host, rows = self.host, self.host_sent
        columns = [host[key][rows].tolist() for key in ("start", "end", "name", "facts")]
        for start, end, number, number_of_facts, step in zip(*columns, within.tolist(), strict=True):
            facts, name = self.facts[number_of_facts], self.names[number]
            op = facts.collective or shared_memory_op(name) or call_op(name) or UNNAMED
            ranks = facts.ranks or self.world
            members = facts.members or self.groups.get(facts.group_name, ())
            yield Collective(op, facts.nbytes(op, ranks), ranks, start, end, name, step, False, facts.group, members, "", -1)

    def _on_kernels(self, within: Column) -> Iterator[Collective]:
        device, rows = self.device, self.kernels_sent
        columns = [device[key][rows].tolist() for key in ("start", "end", "name", "facts", "lane")]
        launches, at = self.launch[rows].tolist(), self.launched_s[rows].tolist()
        replayed = self.graph[rows].tolist()
        kernels = zip(*columns, launches, at, replayed, within.tolist(), strict=True)
        for start, end, number, number_of_facts, lane, launch, launched, graph, step in kernels:
            calls = self._issuers.get(int(self.launches["thread"][launch])) if launch >= 0 else None
            around: list[tuple[int, int]] = []  # names and facts of the calls around the launch, innermost first
            if calls:
                starts, ends, names, facts_of_calls = calls
                last = bisect_right(starts, launched)
                near = range(last - 1, max(0, last - COUNT.looked_at) - 1, -1)
                around = [(names[i], facts_of_calls[i]) for i in near if launched <= ends[i]]
            facts, name = [self.facts[number_of_facts], *(self.facts[f] for _, f in around)], self.names[number]
            op = facts[0].collective or next((o for n, _ in around if (o := call_op(self.names[n]))), "") or kernel_op(name)
            ranks = next((f.ranks for f in facts if f.ranks), self.world)
            nbytes = next((size for f in facts if (size := f.nbytes(op, ranks)) is not None), None)
            group = next((f for f in facts if f.group), facts[0])
            members = group.members or self.groups.get(group.group_name, ())
            yield Collective(op, nbytes, ranks, start, end, name, step, graph, group.group, members, algorithm_of(name), lane)

    @cached_property
    def _issuers(self) -> dict[int, Issuers]:
        """By thread: process groups' records, torch's calls, and operators."""
        rows = self.of(OWN, TORCH_CALL, RECORD, CALL)
        rows = rows[np.argsort(self.host["start"][rows], kind="stable")]
        rows = rows[np.argsort(self.host["thread"][rows], kind="stable")]
        by_thread = {}
        for begin, end in pairwise(_edges(self.host["thread"][rows])):
            part = rows[begin:end]
            starts, ends, names, facts = (self.host[key][part].tolist() for key in ("start", "end", "name", "facts"))
            by_thread[int(self.host["thread"][part[0]])] = starts, ends, names, facts
        return by_thread

    def timeline(self, label: str) -> Timeline:
        """Return what the device ran and collectives of the host, or without a device those and its operations."""
        comm = {key: self.host[key][self.host_sent] for key in ("start", "end", "name", "thread")}
        rows = comm if self.on_device else self._with_operations(comm)
        used, lane = np.unique(rows["thread"], return_inverse=True)
        kind = np.full(len(lane), _COMPUTE)
        kind[: len(comm["start"])] = _COMM
        lanes = [f"{label} thread {self.threads[i]}" for i in used.tolist()]
        if self.on_device:
            ran = np.where(self.device["copies"], _COPY, np.where(self.device["waits"], _WAIT, _COMPUTE))
            ran[self.kernels_sent] = _COMM
            kind, lane = np.concatenate([ran, kind]), np.concatenate([self.device["lane"], lane + len(self.lanes)])
            rows = {key: np.concatenate([self.device[key], rows[key]]) for key in ("start", "end", "name")}
            lanes = [*(f"{label} gpu {place[1]} stream {place[2]}" for place in self.lanes if isinstance(place, tuple)), *lanes]
        names = tuple(map(self.names.__getitem__, rows["name"].tolist()))
        return Timeline(lane.astype(int), rows["start"], rows["end"], kind.astype(int), names, tuple(lanes), trace.KINDS)

    def _with_operations(self, comm: Mapping[str, Column]) -> dict[str, Column]:
        """Return collectives, and behind them the outermost operations on the host's threads that hold none."""
        others = np.setdiff1d(self.of(SHARED, OWN), self.host_sent)
        ops = {key: np.concatenate([self.work[key], self.host[key][others]]) for key in comm}
        able = np.ones(len(ops["start"]), dtype=bool)
        for thread in np.unique(comm["thread"]).tolist():
            mine, of_thread = comm["thread"] == thread, ops["thread"] == thread
            spans = np.array(sorted(pairs(np.stack([comm["start"][mine], comm["end"][mine]], axis=1))))
            start, end = ops["start"][of_thread], ops["end"][of_thread]
            holds = np.searchsorted(spans[:, 0], end) > np.searchsorted(spans[:, 0], start)
            able[of_thread] = ~holds & (holding(spans, start) < 0)
        rows = np.flatnonzero(able)
        rows = rows[np.lexsort((-ops["end"][rows], ops["start"][rows], ops["thread"][rows]))]
        parts = np.split(rows, _edges(ops["thread"][rows])[1:-1])
        # Those that begin after all before them on their thread have ended lie in no other.
        kept = [np.concatenate([[True], ops["start"][p][1:] >= np.maximum.accumulate(ops["end"][p])[:-1]]) for p in parts]
        keep = rows[np.concatenate(kept)] if len(rows) else rows
        return {key: np.concatenate([comm[key], ops[key][keep]]) for key in comm}


def _edges(groups: Column) -> list[int]:
    """Return where each run of equal numbers begins, and where the last ends."""
    return [] if not len(groups) else [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]


_RANKED = (r"rank[-_]?(\d{1,7})", r"(?:^|[^A-Za-z])TP[-_]?(\d{1,7})", r"(?:^|[^A-Za-z0-9])r(\d{1,7})(?![A-Za-z0-9])")
_RANK = tuple(map(re.compile, _RANKED))
_HOST = re.compile(r"^(?P<host>[A-Za-z0-9][\w.-]*)_\d+\.\d{10,}\.pt\.trace\.json")  # torch.profiler.tensorboard_trace_handler


def read(source: FileStream | Path | str) -> Trace:
    """Read ``.json`` or ``.json.gz``: of a file that is cut off what is whole, and of several devices the first."""
    if not isinstance(source, FileStream):
        with open_stream(source, "trace") as stream:
            return read(stream)
    return from_pieces(_limited_pieces(source), source.path.name)


def read_each(stream: FileStream) -> list[Trace]:
    """Read the traces of several devices that one process drove."""
    return traces_from_pieces(_limited_pieces(stream), stream.path.name)


def _limited_pieces(stream: FileStream) -> Iterator[bytes]:
    total = 0
    for piece in stream.pieces(counts("runs.traces.profilers.json_pieces").piece_bytes):
        total += len(piece)
        stream.judge(total, TRACE_BYTES)
        yield piece


def from_pieces(pieces: Iterable[bytes], name: str = "trace") -> Trace:
    """Read a trace from the pieces of its text, however they are cut."""
    return traces_from_pieces(pieces, name)[0]


def traces_from_pieces(pieces: Iterable[bytes], name: str = "trace") -> list[Trace]:
    """Read the traces of all devices in the pieces of a text."""
    from commtax.runs.traces.profilers import kineto_events as typed  # and with it msgspec, for those who read a trace

    columns = Columns(name)
    numbers = typed.CollectiveNumber(columns)
    listed = ListedObjects(pieces, "traceEvents", typed.Decoder(), typed.is_event, name)
    for events in listed:
        typed.take(columns, events, numbers)
    columns.wrong += listed.damaged
    partial = ""
    if listed.partial:
        partial = f"{listed.partial}: {plural(columns.complete, 'whole event')}, up to byte {listed.at:,}"
    return _traces(listed.around, columns, name, partial)


def assemble(head: JsonObject, events: Iterable[Json], name: str) -> Trace:
    """Make a trace of a head (``distributedInfo``, ``deviceProperties``, ``baseTimeNanoseconds``) and events in Kineto's form."""
    columns = Columns(name)
    for number, event in enumerate(events):
        columns.take(event)
        if number % COUNT.batch == 0:
            columns.judge_size()
    return _traces(head, columns, name, "")[0]


def parse(document: Json, name: str = "trace") -> Trace:
    head = object_of(document)
    listed = head.get("traceEvents") if head else document
    if not isinstance(listed, list):
        raise Refusal(f"trace '{name}': no traceEvents found", "trace")
    return assemble(head, listed, name)


def _traces(head: JsonObject, columns: Columns, name: str, partial: str) -> list[Trace]:
    if not columns.complete:
        why = f", {plural(columns.wrong, 'damaged one')}" if columns.wrong else ""
        raise Refusal(f"trace '{name}': no complete events (ph X) found{why}{f' ({partial})' if partial else ''}", "trace")
    job = object_of(head.get("distributedInfo"))
    rank = _rank(job, name)
    groups = [g for g in list_of(job.get("pg_config")) if isinstance(g, dict)]
    # Groups without a size are as large as the others, where all of these (but those of one rank) are alike.
    sizes = {_whole_number(g.get("pg_size")) for g in groups} - {0, 1}
    groups_by_name = {}
    for group in groups:
        listed = group.get("ranks")
        ranks = tuple(rank for rank in list_of(listed) if isinstance(rank, int))
        if isinstance(listed, list) and len(ranks) == len(listed):
            groups_by_name[str(group.get("pg_name", ""))] = ranks
    run = RankEvents(columns, sizes.pop() if len(sizes) == 1 else 0, groups_by_name)
    world = _whole_number(job.get("world_size"))
    parts = run.by_device() if run.on_device and world < 2 else []  # of a job's rank the file is one
    remarks = [Note("devices", f"{len(parts)} devices of one process, each told as a rank")] if parts else []
    damage = [Note("partial", f"the file is not read to its end: {partial}")] if partial else []
    damage += [Note("damaged", f"{plural(columns.wrong, 'event')} of the wrong form left out")] if columns.wrong else []
    gradients = columns.gradients
    return [_trace(head, part, n, world, name, partial, damage + remarks, gradients) for n, part in parts or [(rank, run)]]


def _trace(
    head: JsonObject, run: RankEvents, rank: int, world: int, name: str, partial: str, notes: Sequence[Note], gradients: int
) -> Trace:
    steps = run.steps()
    collectives = run.collectives(steps)
    return Trace(
        rank=rank,
        world=world,
        origin_ns=run.origin_ns + _whole_number(head.get("baseTimeNanoseconds")),
        on_device=run.on_device,
        timeline=run.timeline(f"rank {rank}"),
        collectives=tuple(collectives),
        steps=tuple(steps),
        issued=run.issued(),
        device=_device(head, run.used_devices()) if run.on_device else None,
        training=bool(len(run.trained)),
        notes=(*notes, *_notes(run, collectives, steps)),
        host=_host(head, name),
        partial=partial,
        replayed=float(run.graph.mean()) if len(run.graph) else 0.0,
        gradients=gradients,
    )


def _whole_number(value: Json) -> int:
    try:
        number = need_whole(value or 0)
    except WRONG:
        return 0
    return number if abs(number) < 2**63 else 0


def _rank(job: JsonObject, name: str) -> int:
    """Return the rank in the trace, else in its file's name: rank1.….pt.trace.json, t_rank-0.json, …-TP-3.….json.gz, r1.json."""
    if isinstance(job.get("rank"), int):
        return _whole_number(job["rank"])
    match = next((match for pattern in _RANK if (match := pattern.search(name))), None)
    return int(match[1]) if match else 0


def _host(head: JsonObject, name: str) -> str:
    if isinstance(stated := head.get("host_name"), str):
        return stated
    match = _HOST.match(name)
    return match["host"] if match and not any(pattern.search(name) for pattern in _RANK) else ""


def _device(head: JsonObject, used: Counter[object]) -> Device | None:
    """Return the GPU that most of the rank's kernels ran on, from ``deviceProperties``, or None without them."""
    properties = list_of(head.get("deviceProperties"))
    listed = [d for d in properties if isinstance(d, dict) and _whole_number(d.get("totalGlobalMem"))]
    if not listed:
        return None
    number = next((n for n, _ in used.most_common() if isinstance(n, int)), 0)
    props = next((d for d in listed if d.get("id") == number), listed[0])
    alike = sum(d.get("totalGlobalMem") == props["totalGlobalMem"] and d.get("name") == props.get("name") for d in listed)
    name, nbytes = str(props.get("name", "")).strip(), need_number(props["totalGlobalMem"])
    return Device(name, nbytes, _whole_number(props.get("numSms")), alike)


def _notes(run: RankEvents, collectives: Sequence[Collective], steps: Sequence[TraceStep]) -> Iterator[Note]:
    if not run.on_device:
        yield Note("no device", "the trace has no GPU events: all times are host times")
    if run.on_device and (called := len(run.of(CALL))) and not collectives:
        yield Note("none ran", f"{called} collectives were called and none ran on the device (groups of one rank move nothing)")
    if unsized := sum(c.nbytes is None for c in collectives):
        yield Note("unsized", f"{unsized} of {len(collectives)} collectives carry no message size")
    if stray := plural(run.strays, "device event") if run.strays else "":
        yield Note("strays", f"{stray} far from the step that launched them: left out of its time")
    if not steps:
        yield Note("no steps", "no step is named in it (ProfilerStep, an engine's step, a repeated graph)")


PHASES = {"decode": "decode", "prompts": "prefill", "both": "mixed"}
TRAINED = ("B", "W", "BW", "F&B")  # parts of a backward pass, in a pipeline
_CATEGORY = re.compile(rb'"cat"\s{0,9}:\s{0,9}"([^"\\]{1,40})"')
_ALIKE = re.compile(r"(\d[\d,]{0,12}) steps?: (?:(\d[\d,]{0,12}) prompt tokens?)?(?: \+ )?(?:(\d[\d,]{0,12}) decodes?)?")
_HEADS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_OVERLAP = 64  # signs that a category may take


def is_ours(head: bytes) -> bool:
    return b'"traceEvents"' in head and f'"producer": "{PRODUCER}"'.encode() in head[:200]


def looks_like(raw: bytes) -> bool:
    """Return whether a file holds events: an object with ``traceEvents`` (or what stands before them), or a list of events."""
    text = raw.decode("utf-16", errors="ignore").encode() if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else raw
    begins = text[:99].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if begins == b"{" and any(key in text[:4096] for key in _HEADS):
        return True
    return b'"traceEvents"' in text or (begins == b"[" and b'"ph"' in text)


def read_ours(stream: FileStream) -> list[Trace]:
    """Read each lane of a trace that we wrote."""
    name = stream.path.name
    document = parse_json(stream.whole(OUTPUT_BYTES), f"trace '{name}'")
    try:
        events = [e for e in need_list(need_object(document)["traceEvents"]) if isinstance(e, dict)]
        lanes: dict[object, str] = {e["tid"]: str(need_object(e["args"])["name"]) for e in events if e.get("name") == "thread_name"}
        slices: dict[str, list[JsonObject]] = {lane: [] for lane in lanes.values()}
        for event in events:
            if event.get("ph") == "X":
                slices[lanes[event["tid"]]].append(event)
        traces_of_lanes = [_lane_trace(lane, number, of_lane) for number, (lane, of_lane) in enumerate(slices.items()) if of_lane]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        raise Refusal(f"trace '{name}': written by {PRODUCER}, and not as it writes them ({error!r:.80})", "trace") from None
    if not traces_of_lanes:
        raise Refusal(f"trace '{name}': written by {PRODUCER}, without a slice", "trace")
    return traces_of_lanes


def _lane_trace(lane: str, number: int, slices: Sequence[JsonObject]) -> Trace:
    rows = [(lane, *_span(e), str(e["cat"]) if e["cat"] in KINDS else "compute", str(e["name"])) for e in slices]
    every = (s for e in slices for s in _steps(e))
    steps = [replace(s, index=i) for i, s in enumerate(islice(every, COUNT.most_steps))]
    notes = [Note("simulated", f"'{lane}' of a simulation by {PRODUCER}")]
    if next(every, None):
        notes.append(Note("partial", f"'{lane}' has more than {COUNT.most_steps:,} steps: those are told"))
    number_in_name = re.search(r"(?:rank|stage) (\d{1,9})$", lane)
    copies = lane.startswith(("replica", "decode", "prompt"))
    rank, training = int(number_in_name[1]) if number_in_name and not copies else number, any(e["cat"] in TRAINED for e in slices)
    return Trace(rank, 0, 0, True, timeline_of(rows), (), tuple(steps), {}, training=training, notes=tuple(notes))


def _span(event: JsonObject) -> tuple[float, float]:
    start, seconds = need_number(event["ts"]) * 1e-6, need_number(event["dur"]) * 1e-6
    if not (abs(start) < LEVEL.most_s and 0 <= seconds < LEVEL.most_s):
        raise ValueError(f"a slice at {start:g} s of {seconds:g} s")
    return start, start + seconds


def _steps(event: JsonObject) -> Iterator[TraceStep]:
    match = _ALIKE.match(str(event["name"]))
    if not match:
        return
    count, tokens, decodes = (int((part or "0").replace(",", "")) for part in match.groups())
    (start, end), count = _span(event), min(count, COUNT.most_steps)
    phase, each = PHASES.get(str(event["cat"]), ""), (end - start) / max(count, 1)
    for i in range(count):
        window = start + i * each, start + (i + 1) * each
        yield TraceStep(0, str(event["name"]), *window, window, phase, decodes, bool(tokens), tokens)


def read_or_refuse(stream: FileStream) -> list[Trace]:
    """Read the PyTorch profiler's traces of each device, or refuse with what else a trace holds."""
    traces = read_each(stream)
    if any(t.on_device or len(t.timeline.name) or t.steps or t.collectives for t in traces):
        return traces
    categories: set[str] = set()
    rest = b""
    for piece in stream.pieces():
        window = rest + piece
        categories.update(match[1].decode(errors="replace") for match in _CATEGORY.finditer(window))
        rest = window[-_OVERLAP:]
        if len(categories) > 100:
            break
    there = sorted(categories)
    wanted = "kernel, gpu_memcpy, cpu_op or user_annotation, as the PyTorch profiler writes them"
    listed = ", ".join(there[:8]) + (" …" if len(there) > 8 else "") if there else "none"
    text = f"expected events of the categories {wanted}; found categories {listed}"
    raise Refusal(f"trace '{stream.path.name}': a Chrome trace without device kernels: {text}", "trace")
