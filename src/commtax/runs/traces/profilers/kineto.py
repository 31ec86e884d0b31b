"""Traces of the PyTorch profiler (Kineto), read in pieces: what is held is columns of what ran, not the file.

On a device a collective is a kernel. Its name may be a lie (old traces call every NCCL kernel SendRecv, all-reduces too). What is
believed, in this order: the metadata on the kernel, the host call that launched it, its name. A kernel replayed from a CUDA graph
has its name only, and then its size is unknown. Without a device the host's own collectives are taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from commtax.files import TRACE_BYTES, FileStream, Json, JsonObject, list_of, need_number, need_whole, object_of, open_stream
from commtax.runs.traces.profilers.columns import CALL, WRONG, Columns
from commtax.runs.traces.profilers.json_pieces import ListedObjects
from commtax.runs.traces.profilers.kineto_run import RankEvents
from commtax.runs.traces.trace import Collective, Device, Trace, TraceStep
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.units import plural

_RANK = tuple(
    map(re.compile, (r"rank[-_]?(\d{1,7})", r"(?:^|[^A-Za-z])TP[-_]?(\d{1,7})", r"(?:^|[^A-Za-z0-9])r(\d{1,7})(?![A-Za-z0-9])"))
)
_HOST = re.compile(r"^(?P<host>[A-Za-z0-9][\w.-]*)_\d+\.\d{10,}\.pt\.trace\.json")  # torch.profiler.tensorboard_trace_handler
COUNT = counts(__name__)


def read(given: FileStream | Path | str) -> Trace:
    """Read ``.json`` or ``.json.gz``; of a file that is cut off what is whole; of several devices the first."""
    if not isinstance(given, FileStream):
        with open_stream(given, "trace") as stream:
            return read(stream)
    return from_pieces(_limited_pieces(given), given.path.name)


def read_each(stream: FileStream) -> list[Trace]:
    """… of several devices that one process drove each."""
    return traces_from_pieces(_limited_pieces(stream), stream.path.name)


def _limited_pieces(stream: FileStream) -> Iterator[bytes]:
    total = 0
    for piece in stream.pieces(counts("runs.traces.profilers.json_pieces").piece_bytes):
        total += len(piece)
        stream.judge(total, TRACE_BYTES)
        yield piece


def from_pieces(pieces: Iterable[bytes], name: str = "trace") -> Trace:
    """A trace from the pieces of its text, however they are cut."""
    return traces_from_pieces(pieces, name)[0]


def traces_from_pieces(pieces: Iterable[bytes], name: str = "trace") -> list[Trace]:
    """The traces of all devices in it."""
    from commtax.runs.traces.profilers import kineto_events as typed  # and with it msgspec, for those who read a trace

    columns = Columns(name)
    known = typed.CollectiveNumber(columns)
    listed = ListedObjects(pieces, "traceEvents", typed.Decoder(), typed.is_event, name)
    for events in listed:
        typed.take(columns, events, known)
    columns.wrong += listed.damaged
    partial = ""
    if listed.partial:
        partial = f"{listed.partial}: {plural(columns.complete, 'whole event')}, up to byte {listed.at:,}"
    return _traces(listed.around, columns, name, partial)


def assemble(head: JsonObject, events: Iterable[Json], name: str) -> Trace:
    """A trace from its head (``distributedInfo``, ``deviceProperties``, ``baseTimeNanoseconds``) and events as Kineto has them."""
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
    # Groups are as large as those that are told, where all of them (but those of one rank) are alike.
    sizes = {_whole_number(g.get("pg_size")) for g in groups} - {0, 1}
    found = {}
    for group in groups:
        given = group.get("ranks")
        ranks = tuple(rank for rank in list_of(given) if isinstance(rank, int))
        if isinstance(given, list) and len(ranks) == len(given):
            found[str(group.get("pg_name", ""))] = ranks
    run = RankEvents(columns, sizes.pop() if len(sizes) == 1 else 0, found)
    world = _whole_number(job.get("world_size"))
    parts = run.by_device() if run.on_device and world < 2 else []  # of a job's rank the file is one
    said = [Note("devices", f"{len(parts)} devices of one process, each told as a rank")] if parts else []
    damage = [Note("partial", f"the file is not read to its end: {partial}")] if partial else []
    damage += [Note("damaged", f"{plural(columns.wrong, 'event')} of the wrong form left out")] if columns.wrong else []
    gradients = columns.gradients
    return [_trace(head, part, n, world, name, partial, damage + said, gradients) for n, part in parts or [(rank, run)]]


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


def _whole_number(told: Json) -> int:
    """A whole number of a trace's head; 0 where there is none."""
    try:
        number = need_whole(told or 0)
    except WRONG:
        return 0
    return number if abs(number) < 2**63 else 0


def _rank(job: JsonObject, name: str) -> int:
    """As the trace tells it, else as its file is called: rank1.….pt.trace.json, t_rank-0.json, …-TP-3.trace.json.gz, r1.json."""
    if isinstance(job.get("rank"), int):
        return _whole_number(job["rank"])
    found = next((match for pattern in _RANK if (match := pattern.search(name))), None)
    return int(found[1]) if found else 0


def _host(head: JsonObject, name: str) -> str:
    if isinstance(told := head.get("host_name"), str):
        return told
    found = _HOST.match(name)
    return found["host"] if found and not any(pattern.search(name) for pattern in _RANK) else ""


def _device(head: JsonObject, used: Counter[object]) -> Device | None:
    """The GPU that most of the rank's kernels ran on, from ``deviceProperties``; None where a trace has none."""
    given = list_of(head.get("deviceProperties"))
    listed = [d for d in given if isinstance(d, dict) and _whole_number(d.get("totalGlobalMem"))]
    if not listed:
        return None
    number = next((n for n, _ in used.most_common() if isinstance(n, int)), 0)
    own = next((d for d in listed if d.get("id") == number), listed[0])
    alike = sum(d.get("totalGlobalMem") == own["totalGlobalMem"] and d.get("name") == own.get("name") for d in listed)
    return Device(str(own.get("name", "")).strip(), need_number(own["totalGlobalMem"]), _whole_number(own.get("numSms")), alike)


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
