"""Tables of bars: grids, Markdown, drawn boxes. Columns are figures and rows runs, or the other way round, or both name one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from commtax.results.labels import LABELS, LabelMeaning, meaning
from commtax.results.runs import Dialect, PrintedRun
from commtax.statement import Note
from commtax.thresholds import counts

COUNT = counts(__name__)
_BAR = re.compile(r"[|│┃║]")
_RULE = re.compile(r"[\s|│┃║+:=─━═\-╇╪┼╒╤╕╞╡╘╧╛├┤┌┬┐└┴┘┏┳┓┡┩╔╗╚╝╠╣╦╩╬]{3,}")
_LEFT_OUT = frozenset(LABELS["left_out"])
Row = list[str]
Pairs = list[tuple[LabelMeaning, str]]
Lines = Sequence[tuple[int, Row]]  # an empty row is a rule


def row_of(line: str) -> Row | None:
    """The cells of a line of a table; [] of a rule; None where it is none. A cell of no width belongs to its left neighbour.

    >>> row_of("| a | b || 1 |"), row_of("|---|---|"), row_of("a: 1")
    (['a', 'b', '\\x00', '1'], [], None)
    """
    line = line.strip()
    if not line or (line[0].isalnum() and not _BAR.search(line)):
        return None
    if _RULE.fullmatch(line):
        return [] if len(set(line)) > 1 or line[0] in "=-─━═" else None
    if "█" in line or not _BAR.search(line):
        return None
    parts = _BAR.split(line)
    parts = parts[1:] if not parts[0] else parts
    parts = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    return [part.strip(" \t*`") if part else "\0" for part in parts[: COUNT.most_cells]] if len(parts) > 1 else None


def runs_of(lines: Lines, dialect: Dialect, current: PrintedRun) -> Iterator[PrintedRun]:
    """The runs of a table; figures of none in particular are put into the current one."""
    header, rows = _labels_and_rows(lines)
    if not rows:
        if len(lines) > 1 and any(meaning(label).measured for label in header):
            current.notes.append(Note("partial", f"the table on line {lines[0][0]} has no rows: the file is cut there"))
        return
    columns = [meaning(label) for label in header]
    across, down = sum(bool(said.field) for said in columns), sum(bool(meaning(row[0]).field) for _, row in rows)
    if any(said.measured for said in columns) or across > down:
        yield from _by_row(columns, rows, dialect, current)
    elif down:
        yield from _by_column(header, columns, rows, dialect, current)


def _labels_and_rows(lines: Lines) -> tuple[Row, list[tuple[int, Row]]]:
    """The labels of the columns, words above each other joined, and the rows below them."""
    filled = [(n, row) for n, row in lines if row]
    width = max((len(row) for _, row in filled), default=0)
    first = next((at for at, (_, row) in enumerate(lines) if row), 0)
    last = next((at for at in range(first, len(lines)) if not lines[at][1]), first + 1)
    if width == 2 and last - first > 1 and not any(row for _, row in lines[last:]):  # a list without a header
        last = first
    above = [_spread(row, width) for _, row in lines[first:last]][: COUNT.most_headers] or [[""] * width]
    labels = [" ".join(dict.fromkeys(part for part in parts if part)) for parts in zip(*above, strict=True)]
    rows: list[tuple[int, Row]] = []
    for n, row in ((n, [*(cell.strip("\0") for cell in row), *[""] * (width - len(row))]) for n, row in lines[last:] if row):
        if rows and row[0] and not any(row[1:]) and (row[0][0] == "(" or rows[-1][1][0].count("(") > rows[-1][1][0].count(")")):
            rows[-1][1][0] += f" {row[0]}"  # the rest of a label, on a line of its own
        else:
            rows.append((n, row))
    return labels, rows


def _spread(row: Row, width: int) -> Row:
    """Cells of a header, each as wide as it spans."""
    spread: Row = []
    for cell in [*row, *["\0"] * (width - len(row))]:
        spread.append(spread[-1] if cell == "\0" and spread else cell.strip("\0"))
    return spread


def _by_row(columns: list[LabelMeaning], rows: Lines, dialect: Dialect, current: PrintedRun) -> Iterator[PrintedRun]:
    """Each row a run, or a statistic of the current one."""
    for n, row in rows:
        ranked = meaning(row[0] if columns[0].field == "" else "")
        if not ranked.kind and ranked.statistics:
            for said, cell in zip_longest(columns[1:], row[1 : len(columns)], fillvalue=LabelMeaning()):
                if isinstance(said, LabelMeaning) and said.kind == "time":
                    current.put(replace(said, statistics=ranked.statistics), str(cell))
            continue
        named = row[0] if not columns[0].field and any(sign.isalpha() for sign in row[0]) else ""
        run = PrintedRun(dialect, n, named)
        for said, cell in zip(columns, row, strict=False):
            if said.field:
                run.put(said, cell)
        yield run


def _by_column(
    header: Row, columns: list[LabelMeaning], rows: Lines, dialect: Dialect, current: PrintedRun
) -> Iterator[PrintedRun]:
    """Each row a figure: its statistics in columns, or each column a run; sizes beside it tell runs apart."""
    others = [at for at in range(1, len(header)) if not columns[at].statistics and header[at].lower() not in _LEFT_OUT]
    units = next((at for at in others if header[at].lower() in ("unit", "units")), 0)
    sizes = [at for at in others if columns[at].kind == "count"]
    known = [row for _, row in rows if meaning(row[0]).field]
    apart = [at for at in others if at not in (units, *sizes) and any(_digits(row[at]) for row in known)]
    apart = apart or [at for at in others if len(header) == 2]
    runs: dict[tuple[str | int, ...], PrintedRun] = {}
    for at in apart:
        runs[at,] = PrintedRun(dialect, rows[0][0], header[at]) if len(apart) > 1 else current
    above = ""
    for n, row in rows:
        above = row[0] or above
        said = meaning(f"{above} ({row[units]})" if units and row[units] else above)
        if said.field and sizes:
            run = runs.setdefault(("", *(row[at] for at in sizes)), PrintedRun(dialect, n))
            _put_row([*((columns[at], row[at]) for at in sizes), *_statistics(said, columns, row)], run)
        elif said.field:
            _put_row(_statistics(said, columns, row), current)
            for at in apart:
                runs[at,].put(said, row[at])
    yield from (run for run in runs.values() if run is not current)


def _statistics(said: LabelMeaning, columns: list[LabelMeaning], row: Row) -> Pairs:
    """The cells of a row below statistics; of a rate the mean alone, where it is one of the whole run: a request has others too."""
    told = [(column, cell) for column, cell in zip(columns, row, strict=False) if column.statistics and not column.field]
    if said.statistics or (said.kind == "rate" and sum(_digits(cell) for _, cell in told) > 1):
        return []
    return [(replace(said, statistics=column.statistics, unit_s=column.unit_s or said.unit_s), cell) for column, cell in told]


def _put_row(pairs: Pairs, run: PrintedRun) -> None:
    for said, cell in pairs:
        run.put(said, cell)


def _digits(cell: str) -> bool:
    return any(sign.isdigit() for sign in cell)
