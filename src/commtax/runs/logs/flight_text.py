"""What an analyser of flight recorders printed: ``torchfrtrace`` in its wordings, and tables with ``missing_ranks``."""

from collections.abc import Iterator
from dataclasses import dataclass

from commtax.runs.evidence.collective_names import call_op
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)
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


def looks_like(text: str) -> bool:
    return "Not all ranks joining collective" in text or all(name in text for name in _NAMED) or "Culprit rank " in text


def parse(text: str) -> Analysis:
    """Blocks of faults and tables, whichever are there.

    >>> found = parse("Not all ranks joining collective, sequence number: 4\\ncollective: nccl:all_reduce\\nmissing ranks: {1, 3}")
    >>> found.faults[0].seq, found.faults[0].op, found.faults[0].missing
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
    """A line that says that something is wrong, and the ones below it that say with what."""
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
            _take(fault, line)
    if fault:
        yield fault


def _take(fault: Fault, line: str) -> None:
    if said := SAYS.said.search(line):
        key, value = said[1].lower(), said[2].strip()
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


def _rows(text: str) -> Iterator[Fault]:
    """The collectives of a table, each with the ranks that it lacks."""
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
