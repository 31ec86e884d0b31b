"""Calls of NCCL and RCCL as a profiler records them: which collective, with how many bytes, among how many ranks.

In an Nsight Systems export NCCL marks each call (``ncclAllReduce``) and hands over communicator and message size: bytes behind a
header of 32 (domain, schema, size, where they begin), laid out as NVTX_PAYLOAD_SCHEMA_ENTRIES says. The size is one message's: a
rank's own part where ranks gather or scatter. A call inside a group launches nothing before the group ends.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from commtax.files import Json, JsonObject
from commtax.runs.evidence.collective_names import call_op
from commtax.runs.traces.profilers.nsys import Database
from commtax.statement import Note
from commtax.thresholds import counts

_TRTLLM = re.compile(r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:(\d{1,9}) ctx tokens, )?(\d{1,9}) gen reqs")
_ITERATION = re.compile(r"(?:iteration|iter|step|train_step|training_step)[ _#:]{0,2}(\d{1,18})", re.I)
Span = tuple[int, int]
UNNUMBERED = Note("unnumbered", "nothing in the file tells its rank")


def microseconds(ns: int) -> str:
    """Microseconds with all digits of the nanoseconds, as text: since 1970 they do not fit in a float.

    >>> microseconds(1712195495527376234), microseconds(-1500)
    ('1712195495527376.234', '-1.500')
    """
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{microseconds(-ns)}"


def device_event(kind: str, name: str, span_ns: Span, device: Json, stream: Json, correlation: Json) -> JsonObject:
    """Something that a GPU ran: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``."""
    args: JsonObject = {"device": device, "stream": stream, "correlation": correlation}
    return _event(kind, name, span_ns, stream, device, args)


def host_event(category: str, name: str, span_ns: Span, thread: Json, **args: Json) -> JsonObject:
    """Something on a thread of the host: ``cuda_runtime``, ``user_annotation`` or ``cpu_op``."""
    return _event(category, name, span_ns, thread, "host", args)


def names_rank(name: str) -> bool:
    """Whether the name of a file tells a rank, as it is read where nothing else does.

    >>> names_rank("report_rank-3.sqlite"), names_rank("report3.sqlite")
    (True, False)
    """
    return bool(re.search(r"rank[-_]?\d", name))


def step_name(name: str) -> str:
    """A range that is a step, as the engines whose steps are known would have named it: TensorRT-LLM's, and plain iterations.

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
    """Stands for a launch that nobody traced: on a thread of its own, so that it is inside no call."""
    return host_event("cuda_runtime", f"{name} (not traced)", (at_ns, at_ns), "not traced", correlation=correlation)


def _event(category: str, name: str, span_ns: Span, thread: Json, process: Json, args: JsonObject) -> JsonObject:
    start, end = span_ns
    times = {"ts": microseconds(start), "dur": microseconds(max(0, end - start))}
    return {"ph": "X", "cat": category, "name": name, **times, "pid": process, "tid": thread, "args": args}


COMMUNICATOR, RANKS, RANK, SIZE = "NCCL communicator ID", "No. of ranks", "Rank", "Message size [bytes]"
HEADER = struct.Struct("<QQQQ")
FORMATS = {5: "<i", 6: "<I", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
"""How the types of NVTX payloads lie in memory: int, unsigned, long long, and those of fixed size."""
COUNT = counts(__name__)
SHARED = ("all-gather", "reduce-scatter")  # whose message is a rank's part of the whole
Payload = dict[str, int]
Schemas = dict[tuple[int, int], list[tuple[str, int, str]]]
"""Of each domain and schema: what its entries are called, where they lie, and how."""


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One call: its name without ``nccl``, when it ran, where, and what was handed over."""

    name: str
    start_ns: int
    end_ns: int
    thread: Json
    payload: Payload = field(default_factory=dict)
    alone: bool = True  # no other call is in its group


def schemas(database: Database) -> Schemas:
    """What NCCL's payloads look like in this export."""
    entries = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(entries, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    found: Schemas = {}
    asked = 'SELECT domainId, schemaId, name, "offset", type FROM ' + entries
    for domain, schema, name, offset, kind in database.rows(asked):
        if kind in FORMATS and name in (COMMUNICATOR, RANKS, RANK, SIZE):
            found.setdefault((domain, schema), []).append((name, offset or 0, FORMATS[kind]))  # the first offset is left out
    return found


def payload_of(raw: object, known: Schemas) -> Payload:
    """What the bytes behind a range say."""
    if not isinstance(raw, bytes) or len(raw) < HEADER.size:
        return {}
    domain, schema, _, _ = HEADER.unpack_from(raw)
    told: Payload = {}
    for name, offset, form in known.get((domain, schema), ()):
        if isinstance(offset, int) and 0 <= offset <= len(raw) - HEADER.size - struct.calcsize(form):
            (told[name],) = struct.unpack_from(form, raw, HEADER.size + offset)
    return told


def extend_to_group(ranges: Iterable[NcclCall]) -> Iterator[NcclCall]:
    """Calls, each as long as it may launch something: to the end of the group that it stands in."""
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


def place(ranges: Iterable[NcclCall]) -> tuple[int, int] | None:
    """The rank and how many there are, of the largest communicator that was made."""
    made = [(r.payload.get(RANKS, 0), -r.start_ns, r.payload.get(RANK, -1)) for r in ranges]
    ranks, _, rank = max(made, default=(0, 0, -1))
    return (rank, ranks) if 0 <= rank < ranks <= COUNT.most_ranks else None


def events(ranges: Sequence[NcclCall]) -> Iterator[JsonObject]:
    """The calls of collectives as the PyTorch profiler records them."""
    made = (r.payload for r in ranges if COMMUNICATOR in r.payload)
    sizes = {p[COMMUNICATOR]: p[RANKS] for p in made if 0 < p.get(RANKS, 0) <= COUNT.most_ranks}  # ranks of each communicator
    for call in extend_to_group(ranges):
        op = call_op(call.name)
        if not op or call.name.startswith("Comm"):
            continue
        told = call.payload
        ranks = sizes.get(told.get(COMMUNICATOR, -1), 0)
        args: JsonObject = {"Group size": ranks, "Process Group Name": f"{told[COMMUNICATOR]:#x}"} if COMMUNICATOR in told else {}
        shares = ranks if op in SHARED else 1
        if SIZE in told and shares and call.alone:
            whole = told[SIZE] * shares
            args |= {"In msg nelems": whole, "Out msg nelems": whole, "dtype": "Byte"}
        yield host_event("user_annotation", f"nccl:{call.name}", (call.start_ns, call.end_ns), call.thread, **args)
