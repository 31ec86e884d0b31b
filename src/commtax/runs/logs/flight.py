"""Dumps of PyTorch's flight recorder: the last collectives of one rank, as a pickle (``nccl_trace_rank_3``) or as JSON.

Written when a collective timed out (``TORCH_FR_BUFFER_SIZE``, once ``TORCH_NCCL_TRACE_BUFFER_SIZE``) by NCCL, gloo and others; and
what an analyser of such dumps printed: ``torchfrtrace`` in its wordings, and tables with ``missing_ranks``.

Python's reader of pickles runs whatever a pickle names, so that it may name nothing here. A file that breaks off gives what is
whole before.
"""

import io
import json
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import ClassVar, NoReturn

from commtax.files import OUTPUT_BYTES, FileStream, Json, decode_text, parse_json, table
from commtax.runs.evidence.collective_names import call_op
from commtax.runs.evidence.finding import Cause, Claim, CollectiveRow, Culprit, Finding, Section
from commtax.runs.logs.nccl_audit import ranks_in_words
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)


class _PlainData(pickle._Unpickler):
    """Python's reader without classes and functions. Frames are passed over, so that one that is cut off is read too. A byte array
    is refused, since its stated length is allocated before anything of it is read."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: lambda reader: reader.find_class("builtins", "bytearray"),
        pickle.FRAME[0]: lambda reader: reader.read(8),
    }
    stack: list[object]
    metastack: list[list[object]]  # what stands before each open mark

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Refusal(f"a pickle of more than plain data ({module}.{name}), which is not run")


class _WholeReads(io.BytesIO):
    """Bytes that end in an error, and not in a shorter value, as does a file of too many instructions."""

    left = COUNT.most_instructions

    def read(self, size: int | None = -1, /) -> bytes:
        text, self.left = super().read(size), self.left - 1
        if not self.left:
            raise EOFError(f"more than {COUNT.most_instructions:,} instructions")
        if size is not None and len(text) < size:
            raise EOFError("Ran out of input")
        return text


def loads(raw: bytes, name: str) -> tuple[object, str]:
    """Return what a pickle holds, and why it was not read to its end ("" where it was).

    >>> import pickle
    >>> loads(pickle.dumps({"entries": [1, (2.5, None)]}), "x")
    ({'entries': [1, (2.5, None)]}, '')
    >>> loads(pickle.dumps(print), "x")
    Traceback (most recent call last):
    commtax.statement.Refusal: x: a pickle of more than plain data (builtins.print), which is not run
    """
    reader = _PlainData(_WholeReads(raw))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in a damaged text
            return reader.load(), ""
    except Refusal as refusal:
        raise Refusal(f"{name}: {refusal}") from None
    except Exception as error:  # damage may make any instruction of any
        partial = f"it breaks off or is damaged ({error})"[:200]
    whole = getattr(reader, "stack", [])
    for before in reversed(getattr(reader, "metastack", [])):  # containers that were open take what was read of them
        if before and isinstance(before[-1], list):
            before[-1].extend(whole)
        elif before and isinstance(before[-1], dict):
            keys = [key if isinstance(key, str) else "" for key in whole[::2]]
            before[-1].update(zip(keys, whole[1::2], strict=False))
        whole = before
    if not whole:
        raise Refusal(f"{name}: a pickle without anything readable: {partial}")
    return whole[0], partial


STARTED, COMPLETED = "started", "completed"
DTYPE_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}
DTYPE_BYTES |= {"Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_ENTRIES = re.compile(r'"entries"\s{0,9}:\s{0,9}\[')
_RANK = re.compile(r"(\d{1,7})(?:\.\w{1,10}){0,2}$")
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective of one rank. ``state`` is scheduled, started or completed, and sizes are those of each tensor."""

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
        """Bytes of the larger side, which is the whole tensor, or None where the type is unknown."""
        each = DTYPE_BYTES.get(self.dtype)
        sides = (sum(min(math.prod(size), 2**63) for size in side) for side in (self.inputs, self.outputs))
        return each * float(max(sides)) if each else None


@dataclass(frozen=True, slots=True)
class Dump:
    """The record of one rank. ``groups`` holds the ranks of each, where the dump lists them."""

    rank: int
    version: str
    entries: tuple[FlightEntry, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    library: str = ""  # of the communication, and its version
    notes: tuple[Note, ...] = ()


def looks_like(head: bytes) -> bool:
    """Return whether a file begins like a dump: a pickle or JSON with a recorder's keys."""
    if head[:1] == b"\x80":
        return b"pg_config" in head or b"profiling_name" in head
    return head.lstrip()[:1] == b"{" and b'"entries"' in head and (b'"pg_config"' in head or b'"profiling_name"' in head)


def read(stream: FileStream) -> Dump:
    """Read a dump, whose rank is the number at the end of its file's name."""
    raw, name = stream.whole(OUTPUT_BYTES), f"{stream.what} '{stream.path}'"
    document, partial = (loads if raw[:1] == b"\x80" else _json)(raw, name)
    return parse(document, rank_of(stream.path), name, partial)


def _json(raw: bytes, name: str) -> tuple[Json, str]:
    """Return what a JSON file holds, and why it was not read to its end. Of one that breaks off, whole entries are read."""
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
    """Return the rank in the name of a file, or -1 where it has none.

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
    dtypes, took = row.get("input_dtypes"), row.get("duration_ms")
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
        where=_calling_line(row.get("frames")),
    )


def _calling_line(frames: object) -> str:
    """Return the first line of a program that is none of the framework's."""
    for frame in (frame for frame in (frames[:64] if isinstance(frames, list) else ()) if isinstance(frame, dict)):
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
    """Return the sizes of tensors. One alone may stand without a list around it."""
    if not isinstance(value, list | tuple):
        return ()
    if value and all(isinstance(n, int) for n in value):
        value = [value]
    return tuple(tuple(_whole_number(n, 0) for n in size[:16]) for size in value[:4096] if isinstance(size, list | tuple))


def _members(value: object) -> tuple[int, ...]:
    """Return ranks from a list or from the text of one.

    >>> _members("[0, 1, 5]"), _members([2, 3]), _members("0-3")
    ((0, 1, 5), (2, 3), ())
    """
    if isinstance(value, str):
        inside = value.strip().removeprefix("[").removesuffix("]")
        value = [part.strip() for part in inside.split(",")]
    ranks = [_whole_number(n, -1) for n in value[:1_000_000]] if isinstance(value, list | tuple) else []
    return tuple(ranks) if ranks and min(ranks) >= 0 else ()


_OWN = "torch/distributed/"  # frames of the library itself
_NAMED = ("collective_seq_id", "missing_ranks")  # columns of such a table


@dataclass(slots=True)
class Fault:
    """A collective that went wrong: who did not come to it, or who called it otherwise."""

    seq: int
    op: str = ""
    group: str = ""
    missing: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    why: str = ""  # what differs, in the analyser's word
    size: int = 0  # of the group
    state: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What went wrong in the order of the text, and how many collectives its table lists."""

    faults: tuple[Fault, ...] = ()
    listed: int = 0


def looks_like_analysis(text: str) -> bool:
    return "Not all ranks joining collective" in text or all(name in text for name in _NAMED) or "Culprit rank " in text


def parse_analysis(text: str) -> Analysis:
    """Read blocks of faults and tables, whichever are there.

    >>> text = "Not all ranks joining collective, sequence number: 4\\ncollective: nccl:all_reduce\\nmissing ranks: {1, 3}"
    >>> analysis = parse_analysis(text)
    >>> analysis.faults[0].seq, analysis.faults[0].op, analysis.faults[0].missing
    (4, 'all-reduce', (1, 3))
    """
    faults: dict[tuple[int, str, tuple[int, ...]], Fault] = {}
    listed = 0
    for fault in (*_blocks(text), *(rows := list(_rows(text)))):
        listed = len(rows)
        if (fault.missing or fault.culprits or fault.why) and len(faults) < COUNT.most_faults:
            faults.setdefault((fault.seq, fault.op, fault.missing or fault.culprits), fault)
    return Analysis(tuple(faults.values()), listed)


def _blocks(text: str) -> Iterator[Fault]:
    """Yield each fault: a line that announces it, and the lines below that describe it."""
    fault: Fault | None = None
    for full in split_lines(text):
        line = full[: COUNT.most_line]
        if SAYS.begins.search(line):
            if fault:
                yield fault
            number, group = SAYS.number.search(line), SAYS.group.search(line)
            fault = Fault(int(number[1]) if number else -1)
            if group:
                fault.group, fault.op = group[1], _op(group[2])
            fault.missing = _ranks(among[1]) if (among := SAYS.among.search(line)) else ()
        elif fault:
            if pair := SAYS.said.search(line):
                key, value = pair[1].lower(), pair[2].strip()
                if key == "missing ranks":
                    fault.missing = _ranks(value.partition("}")[0])
                elif key == "expected ranks":
                    fault.size = len(_ranks(value)) if "{" in value else int(value) if value.isdecimal() else fault.size
                elif key == "world size" and value.isdecimal():
                    fault.size = int(value)
                elif key == "error msg":
                    fault.culprits = tuple(dict.fromkeys(int(r) for r in SAYS.culprit.findall(value)))
                    fault.why = ", ".join(dict.fromkeys(SAYS.why.findall(value)))
                elif key == "group info":
                    fault.group = value[:120]
                elif key == "collective":
                    fault.op = _op(value)
                else:
                    fault.state = value[:60]
            elif not fault.where and (frame := SAYS.frame.match(line)) and _OWN not in frame[2]:
                fault.where = frame[2]
    if fault:
        yield fault


def _rows(text: str) -> Iterator[Fault]:
    """Yield the collectives of a table, each with the ranks that it lacks."""
    columns: list[str] = []
    for full in split_lines(text):
        line = full[: COUNT.most_line]
        parts = line.strip().strip("|").split("|") if "|" in line else SAYS.cells.split(line.strip())
        cells = [part.strip() for part in parts]
        if all(name in cells for name in _NAMED):
            columns = cells
        elif columns and len(cells) + 1 >= len(columns):
            row = dict(zip(columns, cells, strict=False))
            if row.get("collective_seq_id", "").isdecimal():
                differs = row.get("type_of_mismatch", "") or ("calls that differ" if row.get("pass_check") == "False" else "")
                group, op = row.get("pg_desc") or row.get("group_id", ""), _op(row.get("collective_name", ""))
                missing = _ranks(row.get("missing_ranks", ""))
                yield Fault(int(row["collective_seq_id"]), op, group, missing, why=differs, state=row.get("collective_state", ""))
        elif columns and not set(full.strip()) <= set("-+=| "):
            columns = []


def _op(name: str) -> str:
    return call_op(name.strip()) or name.strip().rsplit(":", 1)[-1][:120]


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in SAYS.ranks.findall(text)[: COUNT.most_ranks])


CHANGES = table("runs/logs/log_causes.toml")["flight"]
UNEVEN = ("all-to-all", "gather", "scatter", "send-recv", "barrier")  # whose ranks may bring tensors of different sizes
MEETINGS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")  # that end nowhere before all have come
DEFAULT = "0"  # the group of all ranks
HANGS, DIFFERS, STUCK = "hang", "mismatch", "stuck"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A collective that went wrong, and the ranks to blame: none where all came to it and none went on."""

    code: str
    group: str
    entry: FlightEntry
    ranks: tuple[int, ...]
    text: str


def audit_flight(dumps: Sequence[Dump], claim: Claim | None, names: Sequence[str]) -> Section:
    """Audit all ranks of a job, or as many as there are dumps of."""
    taken: list[int] = []
    free = max([d.rank for d in dumps], default=-1)
    for dump in dumps:
        if dump.rank < 0 or dump.rank in taken:
            free += 1
        taken.append(free if dump.rank < 0 or dump.rank in taken else dump.rank)
    ranks = dict(zip(taken, dumps, strict=True))
    groups: dict[Group, dict[int, dict[int, FlightEntry]]] = {}
    for rank, dump in ranks.items():
        for entry in dump.entries:
            if not entry.paired:
                group = entry.group, dump.groups.get(entry.group, ())
                groups.setdefault(group, {}).setdefault(rank, {}).setdefault(entry.seq, entry)
    troubles: list[Trouble] = []
    for (name, listed), calls in groups.items():
        recorded = set(listed or (ranks if name == DEFAULT else calls)) & set(ranks)  # of the ranks expected, those with a dump
        troubles += [t] if (t := _trouble(name, calls, sorted(recorded))) else []
    root = _root(troubles, groups)
    blamed = Culprit("late rank", root.ranks[0], None, root.text) if root and root.ranks else None
    notes, causes = (*(note for dump in dumps for note in dump.notes), *_notes(ranks)), list[Cause]()
    for trouble in sorted(troubles, key=lambda t: (root is None or t.group != root.group, t.entry.created_s)):  # the root first
        where = f"; called from {trouble.entry.where}" if trouble.entry.where else ""
        causes.append(Cause(trouble.code, trouble.text + where, change=CHANGES[trouble.code]))
    code = root.code if root and not root.entry.where else ""  # a cause with a line of the program stands for itself
    versions = ", ".join(sorted({d.version for d in dumps if d.version}))
    libraries = ", ".join(sorted({d.library for d in dumps if d.library}))
    facts = {"recorder": versions, "version": libraries, "ranks": str(len(ranks))}
    stated, findings = {name: value for name, value in facts.items() if value}, tuple(_layout(ranks, claim))
    section = Section("flight", tuple(names), findings, notes, causes=tuple(causes), culprit=blamed, blamed=code, facts=stated)
    return replace(section, collectives=tuple(_call_rows(groups)))


def audit_analysis(analysis: Analysis, claim: Claim | None, name: str = "analysis") -> Section:
    """Report what an analyser of such dumps saw: the first collective that a rank missed or called differently."""
    causes = tuple(_fault_as_cause(fault) for fault in analysis.faults[: COUNT.named])
    findings = [Finding("collectives that went wrong", 0, len(analysis.faults), reason="as the analyser tells").judged()]
    findings += [Finding("collectives listed", None, analysis.listed)] if analysis.listed else []
    if size := max((fault.size for fault in analysis.faults), default=0):
        findings.append(Finding("ranks", None, size))
    first = next((who for f in analysis.faults if (who := f.missing or f.culprits)), ())
    culprit = Culprit("late rank", first[0], None, causes[0].said) if len(first) == 1 else None  # of several, which began it?
    notes = (Note("claim", "what an analyser says is judged by itself: nothing of the claim is in it"),) if claim else ()
    blamed = causes[0].code if culprit else ""
    return Section("flight", (name,), tuple(findings), notes, causes=causes, culprit=culprit, blamed=blamed)


def _fault_as_cause(fault: Fault) -> Cause:
    group = f" of group {fault.group}" if fault.group else ""
    what = f"{fault.op or 'a collective'}, number {fault.seq}{group}" if fault.seq >= 0 else f"{fault.op or 'a collective'}{group}"
    where = f"; called from {fault.where}" if fault.where else ""
    if fault.missing:
        rest = f"; the other {fault.size - len(fault.missing)} waited" if fault.size > len(fault.missing) + 1 else ""
        return Cause(HANGS, f"{ranks_in_words(fault.missing)} never came to {what}{rest}{where}", change=CHANGES[HANGS])
    who = f"{ranks_in_words(fault.culprits)} differed from others" if fault.culprits else "ranks differ"
    return Cause(DIFFERS, f"{who} in {what}: {fault.why}{where}", change=CHANGES[DIFFERS])


Calls = Mapping[int, Mapping[int, FlightEntry]]  # by rank and by number


Group = tuple[str, tuple[int, ...]]  # its name, and its ranks where dumps list them: groups side by side may share a name


def _trouble(group: str, calls: Calls, expected: Sequence[int]) -> Trouble | None:
    """Return the first collective of a group on which ranks disagree, or which did not end."""
    here = [calls[rank] for rank in expected if calls.get(rank)]
    if not here:
        return None
    oldest = max(min(mine) for mine in here)
    # A group's collectives run one after the other, and a recorder may mark an earlier one later.
    last = {rank: max((seq for seq, e in calls[rank].items() if e.done), default=-1) for rank in expected if calls.get(rank)}
    for seq in sorted({seq for mine in here for seq in mine if seq >= oldest}):
        entries = {rank: calls[rank][seq] for rank in expected if seq in calls.get(rank, {})}
        first, missing = entries[min(entries)], tuple(rank for rank in expected if rank not in entries)
        what = f"{_entry_text(first)}, number {seq} of group {group}"
        if kinds := _kinds(entries):
            each = "; ".join(f"{ranks_in_words(who)} called {_entry_text(entries[who[0]])}" for who in kinds)
            few = kinds[-1] if len(kinds[0]) * 2 > len(entries) else ()
            return Trouble(DIFFERS, group, first, few, f"number {seq} of group {group}: {each}")
        ended = [rank for rank in entries if seq <= last[rank]]
        if len(ended) == len(entries) or (ended and not missing and first.op in MEETINGS):
            continue
        if missing:
            text = f"{ranks_in_words(missing)} never came to {what}; {ranks_in_words([*entries])} waited"
            return Trouble(HANGS, group, first, missing, text)
        begun = [rank for rank, e in entries.items() if rank in ended or e.state == STARTED]
        idle = tuple(rank for rank in entries if rank not in begun) if begun else ()
        late = f"{ranks_in_words(idle)} had not started {what}, which the others were in"
        return Trouble(STUCK, group, first, idle, late if idle else f"all came to {what}, and it did not end")
    return None


def _kinds(entries: Mapping[int, FlightEntry]) -> list[tuple[int, ...]]:
    """Group ranks by what they called, the largest group first, or return none where all calls and sizes are equal."""
    same = len({e.op for e in entries.values()}) == 1
    kinds: dict[object, list[int]] = {}
    for rank, e in sorted(entries.items()):
        sign = (() if e.op in UNEVEN else (e.inputs, e.dtype)) if same else e.op
        kinds.setdefault(sign, []).append(rank)
    return sorted(map(tuple, kinds.values()), key=len, reverse=True) if len(kinds) > 1 else []


def _root(troubles: Sequence[Trouble], groups: Mapping[Group, Calls]) -> Trouble | None:
    """Return where it began: a disagreement, or a missing rank that waits nowhere else, else the earliest call."""
    waiting = {rank for calls in groups.values() for rank, mine in calls.items() if not mine[max(mine)].done}
    free = [t for t in troubles if t.code == DIFFERS or set(t.ranks) - waiting]
    chosen = min(free or troubles, key=lambda t: (t.entry.created_s, t.group), default=None)
    if chosen and chosen.code == HANGS and (blamed := tuple(r for r in chosen.ranks if r not in waiting)):
        return replace(chosen, ranks=blamed)
    return chosen


def _entry_text(entry: FlightEntry) -> str:
    """Describe a call, as in ``all-reduce of [1024] Float``."""
    sizes = ", ".join(str(list(size)) for size in entry.inputs[:2]) + (", …" if len(entry.inputs) > 2 else "")
    return f"{entry.op} of {sizes} {entry.dtype}".strip() if sizes else entry.op


def _layout(ranks: Mapping[int, Dump], claim: Claim | None) -> Iterator[Finding]:
    listed = [len(members) for dump in ranks.values() for members in dump.groups.values()]
    world = max([*listed, len(ranks)])
    if claim is None:
        yield Finding("ranks", None, world)
    else:
        plan = claim.plan
        wanted = int(plan.tp) * int(plan.pp) * int(plan.dp)
        yield Finding("ranks", wanted, world, reason="another plan than was said, or dumps are missing").judged()
    yield Finding("collectives recorded", None, sum(len(d.entries) for d in ranks.values()))
    yield Finding("collectives that did not end", None, sum(not e.done for d in ranks.values() for e in d.entries))


def _notes(ranks: Mapping[int, Dump]) -> Iterator[Note]:
    listed = {rank for dump in ranks.values() for members in dump.groups.values() for rank in members}
    if gone := sorted(listed - set(ranks)):
        yield Note("ranks", f"there is no dump of {ranks_in_words(gone)}: whether they came is not known")
    if len(ranks) == 1:
        yield Note("ranks", "one rank's dump tells where it stood; those of all ranks tell who did not come")


def _call_rows(groups: Mapping[Group, Calls]) -> Iterator[CollectiveRow]:
    """Yield the calls of each group's lowest rank. The least time of all ranks is the wire's, and the rest is waiting."""
    for (group, _), calls in groups.items():
        mine, kinds = calls[min(calls)], dict[str, list[FlightEntry]]()
        for entry in mine.values():
            kinds.setdefault(entry.op, []).append(entry)
        for op, entries in kinds.items():
            sizes = [e.nbytes for e in entries]
            total = sum(n for n in sizes if n is not None) if None not in sizes else None
            wire = wait = 0.0
            for entry in entries:
                took = [s for rank in calls if entry.seq in calls[rank] and (s := calls[rank][entry.seq].seconds) is not None]
                wire += min(took, default=0.0)
                wait += (entry.seconds or 0.0) - min(took, default=0.0) if entry.seconds is not None else 0.0
            yield CollectiveRow(op, "", group, len(calls), len(entries), total, wire, wait, 0.0)
