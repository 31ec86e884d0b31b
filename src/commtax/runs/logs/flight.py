"""Dumps of PyTorch's flight recorder: the last collectives of one rank, as a pickle (``nccl_trace_rank_3``) or as JSON.

Written when a collective timed out (``TORCH_FR_BUFFER_SIZE``, once ``TORCH_NCCL_TRACE_BUFFER_SIZE``) by NCCL, gloo and others.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from commtax.files import OUTPUT_BYTES, FileStream, Json, decode_text, parse_json
from commtax.runs.evidence.collective_names import call_op
from commtax.runs.logs import safe_pickle
from commtax.statement import Note, Refusal
from commtax.thresholds import counts

COUNT = counts(__name__)
STARTED, COMPLETED = "started", "completed"
DTYPE_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}
DTYPE_BYTES |= {"Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_ENTRIES = re.compile(r'"entries"\s{0,9}:\s{0,9}\[')
_RANK = re.compile(r"(\d{1,7})(?:\.\w{1,10}){0,2}$")
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective of one rank. ``state``: scheduled, started or completed; sizes are those of each tensor."""

    seq: int
    op: str  # as everywhere: all-reduce …; the recorder's own word where it is none of those
    name: str
    group: str
    state: str
    inputs: Sizes
    outputs: Sizes
    dtype: str
    created_s: float
    seconds: float | None = None
    paired: bool = False  # between two ranks: its numbers are its own
    where: str = ""  # the line of the program that called it

    @property
    def done(self) -> bool:
        return self.state == COMPLETED

    @property
    def nbytes(self) -> float | None:
        """Of the larger side, which is the whole tensor; None where the type is unknown."""
        each = DTYPE_BYTES.get(self.dtype)
        sides = (sum(min(math.prod(size), 2**63) for size in side) for side in (self.inputs, self.outputs))
        return each * float(max(sides)) if each else None


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded. ``groups``: the ranks of each, where the dump lists them."""

    rank: int
    version: str
    entries: tuple[FlightEntry, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    library: str = ""  # of the communication, and its version
    notes: tuple[Note, ...] = ()


def looks_like(head: bytes) -> bool:
    """Whether a file begins as such a dump does: a pickle or JSON with a recorder's keys."""
    if head[:1] == b"\x80":
        return b"pg_config" in head or b"profiling_name" in head
    return head.lstrip()[:1] == b"{" and b'"entries"' in head and (b'"pg_config"' in head or b'"profiling_name"' in head)


def read(stream: FileStream) -> Dump:
    """A dump; the rank is the number with which the name of its file ends."""
    raw, name = stream.whole(OUTPUT_BYTES), f"{stream.what} '{stream.path}'"
    document, partial = (safe_pickle.loads if raw[:1] == b"\x80" else _json)(raw, name)
    return parse(document, rank_of(stream.path), name, partial)


def _json(raw: bytes, name: str) -> tuple[Json, str]:
    """What a JSON file holds, and why it was not read to its end; of one that breaks off the entries before."""
    try:
        return parse_json(raw, name), ""
    except Refusal as refusal:
        text, rows = decode_text(raw), list[Json]()
        begins = _ENTRIES.search(text)
        at, decoder = begins.end() if begins else len(text), json.JSONDecoder()
        while at < len(text) and text[at] in "{, \n\r\t" and len(rows) < COUNT.most_entries:
            if text[at] != "{":
                at += 1
                continue
            try:
                row, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                break
            rows.append(row)
        if not rows:
            raise
        return {"entries": rows}, str(refusal).removeprefix(f"{name}: ")


def rank_of(path: PurePath) -> int:
    """The rank in the name of a file; -1 where it has none.

    >>> rank_of(PurePath("nccl_trace_rank_3")), rank_of(PurePath("nccl_trace_rank_node02_5")), rank_of(PurePath("rank_7.json"))
    (3, 5, 7)
    """
    match = _RANK.search(path.name)
    return int(match[1]) if match else -1


def parse(document: object, rank: int, name: str = "dump", partial: str = "") -> Dump:
    rows = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(rows, list | type(None)):
        raise Refusal(f"{name}: a flight recorder's dump has a list 'entries'; found {type(document).__name__}")
    entries = tuple(e for row in (rows or [])[: COUNT.most_entries] if isinstance(row, dict) and (e := _entry(row)))
    notes = [Note("partial", f"rank {rank}: {len(entries)} collectives were readable, then {partial}")] if partial else []
    configured = document.get("pg_config")
    listed = [(key, row) for key, row in configured.items() if isinstance(row, dict)] if isinstance(configured, dict) else []
    groups = {str(key): members for key, row in listed if (members := _members(row.get("ranks")))}
    version = _text(document.get("version"))
    library = _text(document.get("comm_lib_version")) or _text(document.get("nccl_version"))
    return Dump(_whole_number(document.get("rank"), rank), version, entries, groups, library, tuple(notes))


def _entry(row: Mapping[str, object]) -> FlightEntry | None:
    group = row.get("process_group") or row.get("pg_name") or row.get("pg_id")
    name, paired = _text(row.get("profiling_name")), row.get("is_p2p") is True
    seq = _whole_number(row.get("p2p_seq_id" if paired else "collective_seq_id", row.get("seq_id")), -1)
    if not name or seq < 0:
        return None
    state = _text(row.get("state"))
    ended = row.get("retired") is True or bool(row.get("time_discovered_completed_ns"))
    dtypes, took, frames = row.get("input_dtypes"), row.get("duration_ms"), row.get("frames")
    return FlightEntry(
        seq=seq,
        op=call_op(name) or name.rsplit(":", 1)[-1],
        name=name[:120],
        group=_text(group[0] if isinstance(group, list | tuple) and group else group)[:120],
        state=COMPLETED if ended else state,
        inputs=_sizes(row.get("input_sizes")),
        outputs=_sizes(row.get("output_sizes")),
        dtype=_text(dtypes[0] if isinstance(dtypes, list | tuple) and dtypes else dtypes),
        created_s=_whole_number(row.get("time_created_ns"), 0) * 1e-9,
        seconds=float(took) / 1e3 if isinstance(took, int | float) and 0 <= took < 1e12 else None,
        paired=paired,
        where=_calling_line(frames if isinstance(frames, list) else []),
    )


def _calling_line(frames: Sequence[object]) -> str:
    """The first line of a program that is none of the framework's."""
    for frame in frames[:64]:
        if not isinstance(frame, dict):
            continue
        path = _text(frame.get("filename"))
        if path and "/torch/" not in path and not path.startswith("??"):
            return f"{path.rsplit('/', 1)[-1]}:{_whole_number(frame.get('line'), 0)} {_text(frame.get('name'))}".strip()[:160]
    return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def _whole_number(value: object, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return default
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else default
    return value if abs(value) < 2**63 else default


def _sizes(value: object) -> Sizes:
    """Sizes of tensors; one alone may stand without a list around it."""
    if not isinstance(value, list | tuple):
        return ()
    if value and all(isinstance(n, int) for n in value):
        value = [value]
    return tuple(tuple(_whole_number(n, 0) for n in size[:16]) for size in value[:4096] if isinstance(size, list | tuple))


def _members(value: object) -> tuple[int, ...]:
    """Ranks, as a list or as the text of one.

    >>> _members("[0, 1, 5]"), _members([2, 3]), _members("0-3")
    ((0, 1, 5), (2, 3), ())
    """
    if isinstance(value, str):
        inside = value.strip().removeprefix("[").removesuffix("]")
        value = [part.strip() for part in inside.split(",")]
    ranks = [_whole_number(n, -1) for n in value[:1_000_000]] if isinstance(value, list | tuple) else []
    return tuple(ranks) if ranks and min(ranks) >= 0 else ()
