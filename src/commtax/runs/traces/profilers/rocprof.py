"""Traces of rocprofv3 (ROCm 6.2 to 7.2): its JSON, or its tables (``123_kernel_trace.csv`` and its neighbours, of one process).

Each GPU that a process used is a trace of its own. RCCL calls nearly all of its kernels alike: what they did, the calls around
their launches tell (``--rccl-trace --hip-trace``). Columns came with the versions; an agent is ``2``, ``Agent 2`` or ``GPU 1``.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from commtax import files
from commtax.files import LOG_BYTES, FileStream, Json, JsonObject, decode_text, need_object, need_whole, parse_json
from commtax.runs.traces.profilers import nsys
from commtax.runs.traces.profilers.columns import WRONG
from commtax.runs.traces.profilers.kineto import assemble
from commtax.runs.traces.profilers.nsys import (
    UNNUMBERED,
    NcclCall,
    device_event,
    host_event,
    launched_unseen,
    names_rank,
    step_name,
)
from commtax.runs.traces.trace import Trace
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.units import plural

TOOL = "rocprofiler-sdk-tool"
TABLES = "kernel|memory_copy|memory_allocation|scratch_memory|rccl_api|marker_api|marker|hip_api|hsa_api"
_TABLE = re.compile(rf"(?P<run>.*?)_?(?:(?:{TABLES})_trace|agent_info)\.csv(?:\.gz)?$")
OF_ROW = {"Kernel_Name", "Direction", "Function", "Operation"}  # one of which shows what a row is
COUNT = counts(__name__)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.S)
_CLOSED_BY = {"{": "}", "[": "]"}
PERFETTO = (".pftrace", ".perfetto-trace")
GPU = 2  # an agent's type
FRAME_BUFFERS = (1, 2)  # kinds of memory banks that are the GPU's own
NO_KERNELS = Note("calls only", "no kernels were traced: times are those of the calls, which return before what they start has run")
Cells = Mapping[str, str]


def looks_like(head: bytes) -> bool:
    """Return whether a file is rocprofv3's JSON."""
    return f'"{TOOL}"'.encode() in head[:4096]


def looks_like_table(head: bytes) -> bool:
    """Return whether a file is one of rocprofv3's tables.

    >>> looks_like_table(b'"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"'), looks_like_table(b"a,b")
    (True, False)
    """
    first = set(decode_text(head[:4096]).split("\n", 1)[0].replace('"', "").strip().split(","))
    timed = {"Start_Timestamp", "End_Timestamp"} <= first and OF_ROW & first
    return bool(timed) or {"Agent_Type", "Logical_Node_Id"} <= first


def refuse_perfetto(path: Path) -> list[Trace]:
    """Refuse Perfetto's protobuf, which rocprofv3 writes too."""
    again = "run rocprofv3 with --output-format csv json"
    raise Refusal(f"trace '{path.name}': a Perfetto protobuf, which is not read; {again}", "trace")


def run_of(path: Path) -> str:
    """Return the run of a table, which is its folder and the first part of its name, or "" for any other file.

    >>> run_of(Path("out/197_kernel_trace.csv")) == run_of(Path("out/197_rccl_api_trace.csv")), run_of(Path("x.csv"))
    (True, '')
    """
    match = _TABLE.match(path.name)
    return str(path.parent / f"run {match['run']}") if match else ""


def read_tables(paths: Sequence[Path]) -> list[Trace]:
    """Read the traces of the tables of one run."""
    with ExitStack() as stack:
        return read_streams([stack.enter_context(files.open_stream(path, "trace")) for path in paths])


def read_table(table: FileStream) -> list[Trace]:
    """Return the traces of one table alone."""
    return read_streams([table])


def read_streams(tables: Sequence[FileStream]) -> list[Trace]:
    run = _RocmProcess()
    for table in tables:
        run.add_table(table)
    return run.traces(tables[0].path.name)


def read(stream: FileStream) -> list[Trace]:
    """Read the traces of rocprofv3's JSON, one of each process on each of its GPUs."""
    name = stream.path.name
    document, missing = _read_or_mend(stream)
    listed = document.get(TOOL) if isinstance(document, dict) else None
    processes = listed if isinstance(listed, list) else [listed]
    traces: list[Trace] = []
    try:
        for process in processes:
            run = _RocmProcess(missing=missing)
            run.add_process(need_object(process))
            traces += run.traces(name)
    except Refusal:
        raise
    except WRONG as error:
        raise Refusal(f"trace '{name}': a record has the wrong form ({error!s:.80})", "trace") from None
    return traces


def _read_or_mend(stream: FileStream) -> tuple[Json, str]:
    """Read a document, and of one that was cut off all records before the last whole one, with what is missing."""
    title, raw = f"trace '{stream.path.name}'", stream.whole(LOG_BYTES)
    try:
        return parse_json(raw, title, depth=None), ""
    except Refusal:
        text = decode_text(raw)
        end, closing = 0, ""
        open_now: list[str] = []
        for token in _TOKEN.finditer(text):
            sign = token[0]
            if sign == '"':
                break
            if sign in _CLOSED_BY:
                open_now.append(_CLOSED_BY[sign])
            elif sign in ("}", "]") and open_now and open_now.pop() == sign and open_now[-1:] == ["]"]:
                end, closing = token.end(), "".join(reversed(open_now))
        if not closing:
            raise
        return parse_json(text[:end] + closing, title, depth=None), f"the file is cut off after sign {end:,}"


_GpuEvent = tuple[str, str, tuple[int, int], Json, Json]
"""What a GPU ran: its category (a kernel, or a copy), name, beginning and end, stream and correlation."""


@dataclass(slots=True)
class _RocmProcess:
    """One process: what its GPUs ran, by agent, and what its threads called."""

    ran: dict[str, list[_GpuEvent]] = field(default_factory=dict)
    launches: list[JsonObject] = field(default_factory=list)
    ranges: list[JsonObject] = field(default_factory=list)
    calls: list[NcclCall] = field(default_factory=list)
    gpus: list[JsonObject] = field(default_factory=list)
    missing: str = ""

    def add(self, agent: object, *ran: *_GpuEvent) -> None:
        self.ran.setdefault(str(agent).removeprefix("Agent ").removeprefix("GPU "), []).append(ran)

    def call(self, domain: str, function: str, thread: Json, correlation: Json, span_ns: tuple[int, int]) -> None:
        """Take a call of the host by its library, leaving out marks (that last no time) and HSA's calls."""
        if domain.startswith("HIP_"):
            self.launches.append(host_event("hip_runtime", function, span_ns, thread, correlation=correlation))
        elif domain.startswith("RCCL") and (match := nsys.NCCL_NAME.fullmatch(function)):
            self.calls.append(NcclCall(match[1], *span_ns, thread))
        elif domain.startswith("MARKER_CORE") and span_ns[1] > span_ns[0]:
            self.ranges.append(host_event("user_annotation", step_name(function), span_ns, thread))

    def add_table(self, table: FileStream) -> None:
        """Take all rows of a table, counting and leaving out what has another form."""
        wrong, first = 0, 0
        rows = csv.reader(_lines(table), strict=False)
        try:
            columns = [name.strip().title() for name in next(rows, [])]
            for row in rows:
                try:
                    self._row(dict(zip(columns, row, strict=True)))
                except (ValueError, KeyError):
                    wrong, first = wrong + 1, first or rows.line_num
        except (csv.Error, Refusal) as error:
            wrong, first = wrong + 1, first or rows.line_num + 1
            self.missing = str(error)
        if wrong:
            self.missing = f"{plural(wrong, 'row')} of another form in {table.path.name}, the first in line {first}"

    def _row(self, cells: Cells) -> None:
        if "Agent_Type" in cells:
            return
        span = int(cells["Start_Timestamp"]), int(cells["End_Timestamp"])
        stream, correlation = cells.get("Stream_Id") or cells.get("Queue_Id", "0"), cells.get("Correlation_Id", "")
        if "Kernel_Name" in cells:
            self.add(cells["Agent_Id"], "kernel", cells["Kernel_Name"], span, stream, correlation)
        elif "Direction" in cells:
            to_device = cells["Direction"].endswith("_TO_DEVICE")
            agent = cells["Destination_Agent_Id" if to_device else "Source_Agent_Id"]
            self.add(agent, "gpu_memcpy", cells["Direction"], span, f"copies {stream}", correlation)
        elif "Function" in cells:
            self.call(cells["Domain"], cells["Function"], cells["Thread_Id"], correlation, span)

    def add_process(self, process: JsonObject) -> None:
        records, strings = need_object(process["buffer_records"]), need_object(process.get("strings") or {})
        kinds = _objects(strings.get("buffer_records"))
        symbols: dict[object, JsonObject] = {s["kernel_id"]: s for s in _objects(process.get("kernel_symbols"))}
        messages: dict[object, Json] = {m["key"]: m["value"] for m in _objects(strings.get("marker_api"))}
        for gpu in _objects(process.get("agents")):
            banks = _objects(gpu.get("mem_banks"))
            nbytes = sum(need_whole(b.get("size_in_bytes", 0)) for b in banks if b.get("heap_type") in FRAME_BUFFERS)
            if gpu.get("type") == GPU and nbytes:
                about = {"id": str(_handle(gpu["id"])), "name": str(gpu.get("product_name") or gpu.get("name") or "")}
                self.gpus.append({**about, "totalGlobalMem": nbytes, "numSms": gpu.get("cu_count", 0)})
        for record in _objects(records.get("kernel_dispatch")):
            info, stream = need_object(record["dispatch_info"]), _handle(record.get("stream_id"))
            symbol = symbols.get(info["kernel_id"], {})
            name = str(symbol.get("formatted_kernel_name") or symbol.get("kernel_name") or "kernel without a name")
            where = stream or _handle(info.get("queue_id"))
            self.add(_handle(info["agent_id"]), "kernel", name, _span(record), where, _correlation(record))
        for record in _objects(records.get("memory_copy")):
            named = str(_operation(record, kinds))
            agent = _handle(record["dst_agent_id" if named.endswith("_TO_DEVICE") else "src_agent_id"])
            self.add(agent, "gpu_memcpy", named, _span(record), "copies", _correlation(record))
        for library in ("hip_api", "rccl_api", "marker_api"):
            for record in _objects(records.get(library)):
                domain = str(kinds[need_whole(record["kind"])]["kind"])
                message = messages.get(_correlation(record)) if library == "marker_api" else None
                function = str(message if message is not None else _operation(record, kinds))
                self.call(domain, function, record.get("thread_id"), _correlation(record), _span(record))

    def traces(self, name: str) -> list[Trace]:
        """Return one trace for each GPU that ran a kernel, or one of the calls where none did."""
        agents = sorted((a for a, ran in self.ran.items() if any(category == "kernel" for category, *_ in ran)), key=_agent_order)
        if not agents and not self.calls and not self.ranges and not self.launches:
            why = f" ({self.missing})" if self.missing else ""
            raise Refusal(f"trace '{name}': of rocprofv3, and no kernel or call in it{why}", "trace")
        return [self._trace(agent, number, len(agents), name) for number, agent in enumerate(agents or [""])]

    def _trace(self, agent: str, number: int, many: int, name: str) -> Trace:
        events = chain(self._on_device(agent), self.launches, self.ranges, nsys.call_events(self.calls))
        head: JsonObject = {"deviceProperties": [g | {"id": 0} for g in self.gpus if g["id"] == agent]}
        if many > 1:
            head["distributedInfo"] = {"rank": number}
        made = assemble(head, events, name)
        notes = [*made.notes] if names_rank(name) and many < 2 else [*made.notes, UNNUMBERED]
        notes += [] if agent else [NO_KERNELS]
        notes += [Note("partial", f"{self.missing}: left out")] if self.missing else []
        return replace(made, notes=tuple(notes), partial=self.missing)

    def _on_device(self, agent: str) -> Iterator[JsonObject]:
        """Yield what a GPU ran. Where no calls of HIP were traced, each kernel counts as launched when it began."""
        for number, (category, name, span, stream, correlation) in enumerate(self.ran.get(agent, ())):
            yield device_event(category, name, span, 0, stream, correlation if self.launches else number)
            if not self.launches:
                yield launched_unseen(span[0], number, "launch")


def _lines(table: FileStream) -> Iterator[str]:
    """Yield the lines of a table, however long it is."""
    rest = b""
    for piece in table.pieces():
        *whole, rest = (rest + piece).split(b"\n")
        yield from (decode_text(line) + "\n" for line in whole)
        if len(rest) > COUNT.most_signs:
            raise Refusal("a row has no end")
    if rest:
        yield decode_text(rest)


def _handle(value: Json, key: str = "handle") -> Json:
    return value.get(key) if isinstance(value, dict) else value


def _correlation(record: JsonObject) -> Json:
    return _handle(record.get("correlation_id"), "internal")


def _span(record: JsonObject) -> tuple[int, int]:
    return need_whole(record["start_timestamp"]), need_whole(record["end_timestamp"])


def _operation(record: JsonObject, kinds: Sequence[JsonObject]) -> Json:
    return files.need_list(kinds[need_whole(record["kind"])]["operations"])[need_whole(record["operation"])]


def _objects(listed: Json) -> list[JsonObject]:
    """Return the objects of a list, which may be missing."""
    return [need_object(each) for each in files.need_list(listed or [])]


def _agent_order(agent: str) -> tuple[int, str]:
    """Sort numbers by their size.

    >>> sorted(["10", "9", "x"], key=_agent_order)
    ['9', '10', 'x']
    """
    return (int(agent), "") if agent.isdecimal() and len(agent) < 30 else (1 << 100, agent)
