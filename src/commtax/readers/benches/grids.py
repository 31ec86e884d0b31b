"""Tables of bars: grids, Markdown, drawn boxes. Columns are figures and rows runs, or the other way round, or both name one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from commtax.readers.benches.labels import LABELS, Meaning, meaning
from commtax.readers.benches.runs import Dialect, Run
from commtax.statement import Note

MOST_CELLS, MOST_HEADERS = 40, 5
_BAR = re.compile(r"[|│┃║]")
_RULE = re.compile(r"[\s|│┃║+:=─━═\-╇╪┼╒╤╕╞╡╘╧╛├┤┌┬┐└┴┘┏┳┓┡┩╔╗╚╝╠╣╦╩╬]{3,}")
_LEFT_OUT = frozenset(LABELS["left_out"])
Row = list[str]
Lines = Sequence[tuple[int, Row]]  # an empty row is a rule


def row_of(line: str) -> Row | None:
    """The cells of a line of a table; [] of a rule; None where it is none. A cell of no width belongs to its left neighbour.

    >>> row_of("| a | b || 1 |"), row_of("|---|---|"), row_of("a: 1")
    (['a', 'b', '\\x00', '1'], [], None)
    """
    line = line.strip()
    if _RULE.fullmatch(line):
        return [] if len(set(line)) > 1 or line[0] in "=-─━═" else None
    if "█" in line or not _BAR.search(line):
        return None
    parts = _BAR.split(line)
    parts = parts[1:] if not parts[0] else parts
    parts = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    return [part.strip(" \t*`") if part else "\0" for part in parts[:MOST_CELLS]] if len(parts) > 1 else None


def runs_of(lines: Lines, dialect: Dialect, current: Run) -> Iterator[Run]:
    """The runs of a table; figures of none in particular are put into the current one."""
    header, rows = _parted(lines)
    if not rows:
        if len(lines) > 1 and any(meaning(label).measured for label in header):
            current.notes.append(Note("partial", f"the table on line {lines[0][0]} has no rows: the file is cut there"))
        return
    columns = [meaning(label) for label in header]
    if any(said.measured or said.kind in ("time", "count") for said in columns[1:]) or columns[:1] and columns[0].measured:
        yield from _by_row(header, columns, rows, dialect, current)
    elif any(meaning(row[0]).field for _, row in rows):
        yield from _by_column(header, columns, rows, dialect, current)


def _parted(lines: Lines) -> tuple[Row, list[tuple[int, Row]]]:
    """The labels of the columns, words above each other joined, and the rows below them."""
    filled = [(n, row) for n, row in lines if row]
    width = max((len(row) for _, row in filled), default=0)
    first = next((at for at, (_, row) in enumerate(lines) if row), 0)
    last = next((at for at in range(first, len(lines)) if not lines[at][1]), first + 1)
    above = [_spread(row, width) for _, row in lines[first:last]][:MOST_HEADERS]
    labels = [" ".join(dict.fromkeys(part for part in parts if part)) for parts in zip(*above, strict=True)]
    return labels, [(n, [*(cell.strip("\0") for cell in row), *[""] * (width - len(row))]) for n, row in lines[last:] if row]


def _spread(row: Row, width: int) -> Row:
    """Cells of a header, each as wide as it spans."""
    spread: Row = []
    for cell in [*row, *["\0"] * (width - len(row))]:
        spread.append(spread[-1] if cell == "\0" and spread else cell.strip("\0"))
    return spread


def _by_row(header: Row, columns: list[Meaning], rows: Lines, dialect: Dialect, current: Run) -> Iterator[Run]:
    """Each row a run, or a statistic of the current one."""
    for n, row in rows:
        ranked = meaning(row[0] if columns[0].field == "" else "")
        if not ranked.kind and ranked.statistics:
            for said, cell in zip_longest(columns[1:], row[1 : len(columns)], fillvalue=Meaning()):
                if isinstance(said, Meaning) and said.kind == "time":
                    current.put(replace(said, statistics=ranked.statistics), str(cell))
            continue
        named = row[0] if not columns[0].field and any(sign.isalpha() for sign in row[0]) else ""
        run = Run(dialect, n, named)
        for said, cell in zip(columns, row, strict=False):
            if said.field:
                run.put(said, cell)
        yield run


def _by_column(header: Row, columns: list[Meaning], rows: Lines, dialect: Dialect, current: Run) -> Iterator[Run]:
    """Each row a figure: its statistics in columns, or each column a run."""
    apart = [at for at in range(1, len(header)) if not columns[at].statistics and header[at].lower() not in _LEFT_OUT]
    units = next((at for at in apart if header[at].lower() in ("unit", "units")), 0)
    apart = [at for at in apart if at != units and any(meaning(row[0]).field and _digits(row[at]) for _, row in rows)]
    several = len(apart) > 1
    runs = {at: Run(dialect, rows[0][0], header[at]) if several else current for at in apart}
    for _, row in rows:
        said = meaning(f"{row[0]} ({row[units]})" if units and row[units] else row[0])
        for at in range(1, len(row)) if said.field else ():
            if at in runs:
                runs[at].put(said, row[at])
            elif at < len(columns) and columns[at].statistics and not columns[at].field and not said.statistics:
                current.put(replace(said, statistics=columns[at].statistics, unit_s=columns[at].unit_s or said.unit_s), row[at])
    yield from runs.values() if several else ()


def _digits(cell: str) -> bool:
    return any(sign.isdigit() for sign in cell)
