"""Traces of Nsight Systems: the SQLite database that ``nsys export`` writes, or the report itself where ``nsys`` is installed.

Also calls of NCCL and RCCL as profilers record them: which collective, with how many bytes, among how many ranks.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

from commtax.files import TRACE_BYTES, FileStream, Json, JsonObject
from commtax.runs.evidence.collective_names import call_op
from commtax.runs.traces.profilers.kineto import assemble
from commtax.runs.traces.trace import Trace
from commtax.statement import Note, Refusal
from commtax.thresholds import thresholds
from commtax.units import plural

COUNT, LEVEL = thresholds(__name__)

_TRTLLM = re.compile(r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:(\d{1,9}) ctx tokens, )?(\d{1,9}) gen reqs")
_ITERATION = re.compile(r"(?:iteration|iter|step|train_step|training_step)[ _#:]{0,2}(\d{1,18})", re.I)
Span = tuple[int, int]
UNNUMBERED = Note("unnumbered", "nothing in the file tells its rank")


def microseconds(ns: int) -> str:
    """Return microseconds with all digits of the nanoseconds as text: since 1970 they do not fit in a float.

    >>> microseconds(1712195495527376234), microseconds(-1500)
    ('1712195495527376.234', '-1.500')
    """
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{microseconds(-ns)}"


def device_event(kind: str, name: str, span_ns: Span, device: Json, stream: Json, correlation: Json) -> JsonObject:
    """Make an event that a GPU ran: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``."""
    args: JsonObject = {"device": device, "stream": stream, "correlation": correlation}
    return _event(kind, name, span_ns, stream, device, args)


def host_event(category: str, name: str, span_ns: Span, thread: Json, **args: Json) -> JsonObject:
    """Make an event on a thread of the host: ``cuda_runtime``, ``user_annotation`` or ``cpu_op``."""
    return _event(category, name, span_ns, thread, "host", args)


def names_rank(name: str) -> bool:
    """Return whether the name of a file contains a rank, in the form that is read where nothing else states one.

    >>> names_rank("report_rank-3.sqlite"), names_rank("report3.sqlite")
    (True, False)
    """
    return bool(re.search(r"rank[-_]?\d", name))


def step_name(name: str) -> str:
    """Rename a range that is a step as known engines would: TensorRT-LLM's steps, and plain iterations.

    >>> step_name("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs"), step_name("iteration_7")
    ('execute_context_0(0)_generation_32(32)', 'ProfilerStep#7')
    >>> step_name("forward")
    'forward'
    """
    if match := _TRTLLM.fullmatch(name):
        return f"execute_context_{match[1]}({match[2] or 0})_generation_{match[3]}({match[3]})"
    match = _ITERATION.fullmatch(name)
    return f"ProfilerStep#{match[1]}" if match else name


def launched_unseen(at_ns: int, correlation: Json, name: str) -> JsonObject:
    """Make a launch that nobody traced, on a thread of its own, so that it is inside no call."""
    return host_event("cuda_runtime", f"{name} (not traced)", (at_ns, at_ns), "not traced", correlation=correlation)


def _event(category: str, name: str, span_ns: Span, thread: Json, process: Json, args: JsonObject) -> JsonObject:
    start, end = span_ns
    times = {"ts": microseconds(start), "dur": microseconds(max(0, end - start))}
    return {"ph": "X", "cat": category, "name": name, **times, "pid": process, "tid": thread, "args": args}


COMMUNICATOR, RANKS, RANK, SIZE = "NCCL communicator ID", "No. of ranks", "Rank", "Message size [bytes]"
PAYLOAD_HEADER = struct.Struct("<QQQQ")
FORMATS = {5: "<i", 6: "<I", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
"""How the types of NVTX payloads lie in memory: int, unsigned, long long, and those of fixed size."""
SHARED = ("all-gather", "reduce-scatter")  # whose message is a rank's part of the whole
Payload = dict[str, int]
Schemas = dict[tuple[int, int], list[tuple[str, int, str]]]
"""Of each domain and schema: what its entries are called, where they lie, and how."""


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One call: its name without ``nccl``, when it ran, where, and its arguments."""

    name: str
    start_ns: int
    end_ns: int
    thread: Json
    payload: Payload = field(default_factory=dict)
    alone: bool = True  # no other call is in its group


def payload_schemas(database: Database) -> Schemas:
    """Read the layouts of NCCL's NVTX payloads from this export."""
    entries = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(entries, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    schemas: Schemas = {}
    sql = 'SELECT domainId, schemaId, name, "offset", type FROM ' + entries
    for domain, schema, name, offset, kind in database.rows(sql):
        if kind in FORMATS and name in (COMMUNICATOR, RANKS, RANK, SIZE):
            schemas.setdefault((domain, schema), []).append((name, offset or 0, FORMATS[kind]))  # the first offset is left out
    return schemas


def payload_of(raw: object, schemas: Schemas) -> Payload:
    """Read the bytes behind a range."""
    if not isinstance(raw, bytes) or len(raw) < PAYLOAD_HEADER.size:
        return {}
    domain, schema, _, _ = PAYLOAD_HEADER.unpack_from(raw)
    fields: Payload = {}
    for name, offset, form in schemas.get((domain, schema), ()):
        if isinstance(offset, int) and 0 <= offset <= len(raw) - PAYLOAD_HEADER.size - struct.calcsize(form):
            (fields[name],) = struct.unpack_from(form, raw, PAYLOAD_HEADER.size + offset)
    return fields


def extend_to_group(ranges: Iterable[NcclCall]) -> Iterator[NcclCall]:
    """Yield calls, each extended as long as it may launch something: to the end of its group."""
    open_groups: dict[object, list[NcclCall]] = {}
    depth: dict[object, int] = {}
    for call in sorted(ranges, key=lambda r: r.start_ns):
        thread = call.thread
        if call.name == "GroupStart":
            depth[thread] = depth.get(thread, 0) + 1
        elif call.name == "GroupEnd" and depth.get(thread):
            depth[thread] -= 1
            if not depth[thread]:
                waiting = open_groups.pop(thread, [])
                yield from (replace(w, end_ns=max(w.end_ns, call.end_ns), alone=len(waiting) == 1) for w in waiting)
        elif depth.get(thread):
            open_groups.setdefault(thread, []).append(call)
        else:
            yield call
    for waiting in open_groups.values():
        yield from waiting


def place_of_calls(ranges: Iterable[NcclCall]) -> tuple[int, int] | None:
    """Return rank and size in the largest communicator that was made."""
    made = [(r.payload.get(RANKS, 0), -r.start_ns, r.payload.get(RANK, -1)) for r in ranges]
    ranks, _, rank = max(made, default=(0, 0, -1))
    return (rank, ranks) if 0 <= rank < ranks <= COUNT.most_ranks else None


def call_events(ranges: Sequence[NcclCall]) -> Iterator[JsonObject]:
    """Yield the calls of collectives as the PyTorch profiler records them."""
    made = (r.payload for r in ranges if COMMUNICATOR in r.payload)
    sizes = {p[COMMUNICATOR]: p[RANKS] for p in made if 0 < p.get(RANKS, 0) <= COUNT.most_ranks}  # ranks of each communicator
    for call in extend_to_group(ranges):
        op = call_op(call.name)
        if not op or call.name.startswith("Comm"):
            continue
        payload = call.payload
        ranks = sizes.get(payload.get(COMMUNICATOR, -1), 0)
        named = COMMUNICATOR in payload
        args: JsonObject = {"Group size": ranks, "Process Group Name": f"{payload[COMMUNICATOR]:#x}"} if named else {}
        shares = ranks if op in SHARED else 1
        if SIZE in payload and shares and call.alone:
            whole = payload[SIZE] * shares
            args |= {"In msg nelems": whole, "Out msg nelems": whole, "dtype": "Byte"}
        yield host_event("user_annotation", f"nccl:{call.name}", (call.start_ns, call.end_ns), call.thread, **args)


HEADER = b"SQLite format 3\0"
PROCESS = 1 << 24  # of a serialised id, which holds host, process and thread
Row = tuple[Any, ...]
FAILURES = (sqlite3.Error, OverflowError, ValueError)  # the last where the library's message is no text


class Database:
    """An open export. ``broken`` explains missing rows."""

    def __init__(self, connection: sqlite3.Connection, name: str, size: int) -> None:
        self.name, self.broken = name, ""
        self._connection, self._most = connection, max(size, 1)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        plain = "type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' AND name NOT LIKE 'sqlite_%'"
        names = [str(row[0]) for row in self._fetch(f"SELECT name FROM sqlite_master WHERE {plain} ORDER BY name")]
        self.tables = {t: {str(c[1]) for c in self._fetch(f"PRAGMA table_info({_quote_name(t)})")} for t in names}

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.tables.get(table, set()) and table in self.tables

    def column(self, table: str, *names: str, other: str = "NULL") -> str:
        """Return the first of some columns that the table has, as SQL."""
        return next((_quote_name(n) for n in names if n in self.tables[table]), other)

    def rows(self, sql: str, *parameters: object) -> Iterator[Row]:
        """Yield rows one by one, until the file breaks off."""
        try:
            for count, row in enumerate(self._connection.execute(sql, parameters)):
                if count > self._most:  # no row is smaller than a byte
                    raise sqlite3.DatabaseError("more rows than the file has bytes")
                yield row
        except FAILURES as error:
            self.broken = _error_line(error)

    def first(self, table: str, *columns: str, where: str = "1") -> Row:
        """Return the first row of a table, or nothing."""
        if not self.has(table, *columns):
            return ()
        return next(self.rows(f"SELECT {', '.join(map(_quote_name, columns))} FROM {_quote_name(table)} WHERE {where} LIMIT 1"), ())

    def strings(self, used: Iterable[tuple[str, str]]) -> dict[int, str]:
        """Return the strings that some columns refer to, and no others: an export holds those of every call stack too."""
        queries = [f"SELECT {_quote_name(c)} FROM {_quote_name(t)}" for t, c in used if self.has(t, c)]
        if not queries:
            return {}
        return {i: str(value) for i, value in self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({' UNION '.join(queries)})")}

    def _fetch(self, sql: str) -> list[Row]:
        try:
            return self._connection.execute(sql).fetchall()
        except FAILURES as error:
            if not self.broken and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT:
                self.broken = "the file is cut off or damaged"
                # Fewer pages than its header states are no reason to give up.
                self._connection.execute("PRAGMA writable_schema = ON")
                return self._fetch(sql)
            why = _error_line(error)
            raise Refusal(f"trace '{self.name}': an SQLite database that cannot be read ({why})", "trace") from None


def _error_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _quote_name(name: str) -> str:
    """Quote a name as SQL, where ``end`` is a keyword.

    >>> _quote_name('end'), _quote_name('a"b')
    ('"end"', '"a""b"')
    """
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def database(path: Path, name: str) -> Iterator[Database]:
    """Open a database on the disk so that nothing can change it."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise Refusal(f"trace '{name}': cannot be opened ({error})", "trace") from None
    with closing(connection):
        yield Database(connection, name, path.stat().st_size)


@contextmanager
def path_on_disk(stream: FileStream) -> Iterator[Path]:
    """Yield a path to a file's bytes as they are: its own, or a temporary one where it is packed or came through a pipe."""
    if stream.path.is_file():
        with stream.path.open("rb") as file:
            is_plain = file.read(len(HEADER)) == HEADER
        if is_plain:
            yield stream.path
            return
    with NamedTemporaryFile(suffix=".sqlite") as kept:
        for piece in stream.pieces():
            kept.write(piece)
            if kept.tell() > TRACE_BYTES:
                raise Refusal(f"trace '{stream.path.name}': larger than 1 GiB unpacked; unpack it first", "trace")
        kept.flush()
        yield Path(kept.name)


REPORTS = (".nsys-rep", ".qdrep")
KERNEL, GRAPH, COPY, SET = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET"))
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
NVTX, SYSTEM, COPY_KINDS = "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "ENUM_CUDA_MEMCPY_OPER"
NAMES = ("demangledName", "shortName", "mangledName")
STRINGS = [*((KERNEL, name) for name in NAMES), *((table, "nameId") for table in CALLS), (NVTX, "textId")]
ROCPD = "rocpd_"  # with which the tables of rocprofv3's database begin
NCCL_NAME = re.compile(r"nccl([A-Z]\w{1,60})")
_OPERATOR = re.compile(r"([\w.]{1,100}(?:::[\w.]{1,100}){1,4}), (?:op_id|seq)")  # torch.autograd.profiler.emit_nvtx


def looks_like(head: bytes) -> bool:
    """Return whether a file is an SQLite database. Its tables tell which one."""
    return head.startswith(HEADER)


def read_report(path: Path, program: str = "nsys") -> list[Trace]:
    """Read the traces of a report, exported by Nsight Systems itself."""
    executable = shutil.which(program)
    wanted = f"{program} export --type sqlite -o {path.stem}.sqlite {path.name}"
    if executable is None:
        raise Refusal(f"trace '{path.name}': a report of Nsight Systems, and no program '{program}' here; run: {wanted}", "nsys")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "export.sqlite"
        command = [executable, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(out), str(path)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LEVEL.export_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal(f"trace '{path.name}': '{program}' could not be run ({error}); run: {wanted}", "nsys") from None
        if ran.returncode or not out.is_file():
            lines = (ran.stderr or ran.stdout).decode(errors="replace").strip().splitlines()[-1:] or ["it wrote nothing"]
            raise Refusal(f"trace '{path.name}': '{program} export' failed ({lines[0][:200]})", "nsys")
        with database(out, path.name) as opened:
            return _traces(opened, path.name)


def read(stream: FileStream) -> list[Trace]:
    """Read the traces of an export, one of each process on each of its GPUs."""
    with path_on_disk(stream) as place, database(place, stream.path.name) as opened:
        return _traces(opened, stream.path.name)


def _traces(opened: Database, name: str) -> list[Trace]:
    there = [" ".join(table.split()) for table in sorted(opened.tables)]
    if any(t.startswith(ROCPD) for t in there):
        convert = f"rocpd convert --output-format csv -i {name}"
        raise Refusal(f"trace '{name}': rocprofv3's own database, which is not read; convert it: {convert}", "trace")
    if not opened.has("StringIds", "id", "value") or not (opened.has(KERNEL) or opened.has(GRAPH)):
        listed = f"{', '.join(there[:6])}{' …' if len(there) > 6 else ''}" or "no table"
        wanted = f"{KERNEL} (or {GRAPH}) and StringIds, as nsys export --type sqlite writes them"
        raise Refusal(f"trace '{name}': an SQLite database without the tables {wanted}; found {listed}", "trace")
    for table in (KERNEL, GRAPH):
        if opened.has(table) and not opened.has(table, "start", "end"):
            columns = " ".join(", ".join(sorted(opened.tables[table])[:8]).split())
            raise Refusal(f"trace '{name}': {table} has no columns start and end; found {columns}", "trace")
    export = _Export(opened)
    traces = (export.trace(place, number, name) for number, place in enumerate(export.places))
    kept = [t for t in traces if t]
    if not kept:
        why = f" ({opened.broken})" if opened.broken else ""
        raise Refusal(f"trace '{name}': an export of Nsight Systems without a kernel or a graph{why}", "trace")
    return kept


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU, -1 where an export does not name the process."""

    process: int
    device: int

    @property
    def pid(self) -> int:
        return self.process % PROCESS if self.process >= 0 else -1


def _is_timed(row: Row) -> bool:
    return isinstance(row[0], int) and isinstance(row[1], int)


class _Export:
    """The content of an export, process by process."""

    def __init__(self, opened: Database) -> None:
        self._database = opened
        self._text = opened.strings(STRINGS)
        self._copies: dict[object, object] = {}
        if opened.has(COPY_KINDS, "id", "label"):
            self._copies = dict(opened.rows(f"SELECT id, label FROM {COPY_KINDS}"))
        self._schemas = payload_schemas(opened)

    def _process(self, table: str) -> str:
        """Return the process of a row, as SQL."""
        column = self._database.column(table, "globalPid", "globalTid", other="")
        return f"ifnull({column} / {PROCESS}, -1)" if column else "-1"

    def _device(self, table: str) -> str:
        return f"ifnull({self._database.column(table, 'deviceId', other='0')}, 0)"

    @cached_property
    def places(self) -> list[GpuProcess]:
        """All that ran something, by GPU and process."""
        tables = [table for table in (KERNEL, GRAPH) if self._database.has(table)]
        queries = [f"SELECT DISTINCT {self._process(t)}, {self._device(t)} FROM {t}" for t in tables]
        rows = self._database.rows(" UNION ".join(queries))
        pairs = {GpuProcess(p, d) for p, d in rows if isinstance(p, int) and isinstance(d, int)}
        real = {p for p in pairs if p.device < 2**31 - 1}  # a graph that begins on the host names no GPU
        return sorted(real, key=lambda p: (self._gpu(p), p.process))

    def _gpu(self, place: GpuProcess) -> int:
        """Return which GPU of the host a process means. With some of them hidden it counts those that it sees."""
        if place.pid < 0:
            return place.device
        where = f"cudaId = {place.device} AND pid = {place.pid}"
        row = self._database.first("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid", where=where)
        return row[0] if row and isinstance(row[0], int) else place.device

    def trace(self, place: GpuProcess, number: int, name: str) -> Trace | None:
        """Return the trace of one process on one GPU, or None where nothing in it has a time."""
        ran = self._on_device(place)
        first = next(ran, None)
        if first is None:
            return None
        calls = []
        for called, start, end, thread, raw in self._named(place):
            if match := NCCL_NAME.fullmatch(called):
                calls.append(NcclCall(match[1], start, end, thread, payload_of(raw, self._schemas)))
        place_in_job = place_of_calls(calls)
        head: JsonObject = {"deviceProperties": list(self._gpus(place)), "baseTimeNanoseconds": self._began_ns}
        if place_in_job:
            head["distributedInfo"] = {"rank": place_in_job[0], "world_size": place_in_job[1]}
        elif len(self.places) > 1:
            head["distributedInfo"] = {"rank": number}
        others = self._launches(place), self._ranges(place), call_events(calls)
        made = assemble(head, chain([first], ran, *others), name)
        numbered = place_in_job or (names_rank(name) and len(self.places) == 1)
        notes = (*made.notes, *([] if numbered else [UNNUMBERED]), *self._notes(place))
        return replace(made, host=self._host, notes=notes, partial=self._database.broken)

    @cached_property
    def _began_ns(self) -> int:
        row = self._database.first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return row[0] if row and isinstance(row[0], int) else 0

    @cached_property
    def _host(self) -> str:
        row = self._database.first(SYSTEM, "value", "name", where="name = 'Hostname'")
        return str(row[0]) if row else ""

    def _gpus(self, place: GpuProcess) -> Iterator[JsonObject]:
        """Yield the GPUs as the PyTorch profiler describes them, the process's GPU under the process's number."""
        table, gpu = "TARGET_INFO_GPU", self._gpu(place)
        if not self._database.has(table, "id", "name"):
            return
        memory, cores = (self._database.column(table, column) for column in ("totalMemory", "smCount"))
        for number, name, nbytes, sms in self._database.rows(f"SELECT id, name, {memory}, {cores} FROM {table}"):
            shown = place.device if number == gpu else f"gpu {number}"
            yield {"id": shown, "name": name, "totalGlobalMem": nbytes, "numSms": sms or 0}

    def _on_device(self, place: GpuProcess) -> Iterator[JsonObject]:
        """Yield kernels, graphs that were traced whole as one kernel each, and copies."""
        for start, end, stream, correlation, *names in self._timed(KERNEL, place, *NAMES):
            name = next((self._text[n] for n in names if n in self._text), "kernel without a name")
            yield device_event("kernel", name, (start, end), place.device, stream, correlation)
        for start, end, stream, correlation, number in self._timed(GRAPH, place, "graphId"):
            yield device_event("kernel", f"CUDA graph {number}", (start, end), place.device, stream, correlation)
        for start, end, stream, correlation, kind in self._timed(COPY, place, "copyKind"):
            name = f"Memcpy {self._copies.get(kind, kind)}"
            yield device_event("gpu_memcpy", name, (start, end), place.device, stream, correlation)
        for start, end, stream, correlation in self._timed(SET, place):
            yield device_event("gpu_memset", "Memset", (start, end), place.device, stream, correlation)

    def _timed(self, table: str, place: GpuProcess, *columns: str) -> Iterator[Row]:
        """Yield rows of a process on a GPU with stream and correlation, and with a beginning and an end, unless unmeasured (0)."""
        if not self._database.has(table, "start", "end"):
            return iter(())
        wanted = ", ".join(self._database.column(table, c) for c in ("start", "end", "streamId", "correlationId", *columns))
        sql = f"SELECT {wanted} FROM {table} WHERE {self._process(table)} = ? AND {self._device(table)} = ?"
        return (row for row in self._database.rows(sql, place.process, place.device) if _is_timed(row) and row[1] > 0)

    def _hosted(self, table: str, place: GpuProcess, columns: str) -> Iterator[Row]:
        """Yield rows of a process's threads that have a beginning and an end."""
        if not self._database.has(table, "start", "end"):
            return iter(())
        sql = f'SELECT start, "end", {self._database.column(table, "globalTid")}, {columns} FROM {table}'
        where = "" if place.process < 0 else f" WHERE {self._process(table)} = {place.process}"
        return filter(_is_timed, self._database.rows(sql + where))

    def _launches(self, place: GpuProcess) -> Iterator[JsonObject]:
        """Yield calls of runtime and driver. Where none were traced, a kernel or graph counts as launched when it began."""
        called = False
        for table in CALLS:
            if not self._database.has(table, "correlationId", "nameId"):
                continue
            for start, end, thread, correlation, name in self._hosted(table, place, "correlationId, nameId"):
                called = True
                yield host_event("cuda_runtime", self._text.get(name, "call"), (start, end), thread, correlation=correlation)
        if called or not self._database.has(KERNEL, "correlationId"):
            return
        of_place = f"{self._process(KERNEL)} = {place.process} AND {self._device(KERNEL)} = {place.device}"
        node = self._database.column(KERNEL, "graphNodeId")
        sql = f"SELECT min(start), correlationId, max({node}) FROM {KERNEL} WHERE {of_place} GROUP BY correlationId"
        for start, correlation, of_graph in (row for row in self._database.rows(sql) if isinstance(row[0], int)):
            yield launched_unseen(start, correlation, "GraphLaunch" if of_graph else "launch")

    def _named(self, place: GpuProcess) -> Iterator[tuple[str, int, int, int, object]]:
        """Yield ranges that the program named: name, beginning, end, thread and payload."""
        if not self._database.has(NVTX):
            return
        text, number = (self._database.column(NVTX, column) for column in ("text", "textId"))
        payload = "CAST(binaryData AS BLOB)" if self._database.has(NVTX, "binaryData") else "NULL"
        for start, end, thread, plain, registered, raw in self._hosted(NVTX, place, f"{text}, {number}, {payload}"):
            if name := plain or self._text.get(registered, ""):
                yield str(name), start, end, thread, raw

    def _ranges(self, place: GpuProcess) -> Iterator[JsonObject]:
        """Yield annotations, and operators where torch was configured to name them."""
        for name, start, end, thread, _ in self._named(place):
            if operator := _OPERATOR.match(name):
                yield host_event("cpu_op", operator[1], (start, end), thread)
            elif not NCCL_NAME.fullmatch(name):
                yield host_event("user_annotation", step_name(name), (start, end), thread)

    def _notes(self, place: GpuProcess) -> Iterator[Note]:
        whole = sum(1 for _ in self._timed(GRAPH, place))
        if whole:
            again = "their collectives are not seen; nsys profile --cuda-graph-trace=node shows them"
            yield Note("whole graphs", f"{plural(whole, 'CUDA graph launch')} traced whole: {again}")
        if self._database.broken:
            yield Note("partial", f"the database breaks off ({self._database.broken}): what follows is missing")
