"""Calls of NCCL and RCCL as a profiler records them: which collective, with how many bytes, among how many ranks.

In an Nsight Systems export NCCL marks each call (``ncclAllReduce``) and hands over communicator and message size: bytes behind a
header of 32 (domain, schema, size, where they begin), laid out as NVTX_PAYLOAD_SCHEMA_ENTRIES says. The size is one message's: a
rank's own part where ranks gather or scatter. A call inside a group launches nothing before the group ends.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from commtax.evidence.collective_names import call_op
from commtax.files import Json, JsonObject
from commtax.thresholds import counts
from commtax.traces.profilers.kineto_shape import host_event
from commtax.traces.profilers.nsys_database import Database

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
