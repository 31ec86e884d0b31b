"""Results as people print and paste them: lists of labels and values, tables of any frame, anywhere in a longer text.

A line is a label, a colon or an equals sign and a value, whatever a launcher or a logger wrote before it; below the title of a
metric its statistics may stand alone. A list whose first labels come again is the next run. Labels mean what ``labels`` says.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest

from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.printed_runs import (
    LABELS,
    STRONG,
    CommandContext,
    Dialect,
    LabelMeaning,
    PrintedRun,
    dialect_of,
    is_command,
    make_benchmark,
    meaning,
)
from commtax.statement import Note
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)

_BAR = re.compile(r"[|│┃║]")
_RULE = re.compile(r"[\s|│┃║+:=─━═\-╇╪┼╒╤╕╞╡╘╧╛├┤┌┬┐└┴┘┏┳┓┡┩╔╗╚╝╠╣╦╩╬]{3,}")
_LEFT_OUT = frozenset(LABELS["left_out"])
Row = list[str]
Pairs = list[tuple[LabelMeaning, str]]
Lines = Sequence[tuple[int, Row]]  # an empty row is a rule


def row_of(line: str) -> Row | None:
    """Return the cells of a table's line, [] for a rule or None for other lines. A cell of no width belongs to its left neighbour.

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
    """Yield the runs of a table. Figures that belong to no single run are put into the current one."""
    header, rows = _labels_and_rows(lines)
    if not rows:
        if len(lines) > 1 and any(meaning(label).measured for label in header):
            current.notes.append(Note("partial", f"the table on line {lines[0][0]} has no rows: the file is cut there"))
        return
    columns = [meaning(label) for label in header]
    across, down = sum(bool(label.field) for label in columns), sum(bool(meaning(row[0]).field) for _, row in rows)
    if any(label.measured for label in columns) or across > down:
        yield from _by_row(columns, rows, dialect, current)
    elif down:
        yield from _by_column(header, columns, rows, dialect, current)


def _labels_and_rows(lines: Lines) -> tuple[Row, list[tuple[int, Row]]]:
    """Return the labels of the columns, with words above each other joined, and the rows below them."""
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
    """Repeat each cell of a header over the columns that it spans."""
    spread: Row = []
    for cell in [*row, *["\0"] * (width - len(row))]:
        spread.append(spread[-1] if cell == "\0" and spread else cell.strip("\0"))
    return spread


def _by_row(columns: list[LabelMeaning], rows: Lines, dialect: Dialect, current: PrintedRun) -> Iterator[PrintedRun]:
    """Read each row as a run, or as a statistic of the current one."""
    for n, row in rows:
        ranked = meaning(row[0] if columns[0].field == "" else "")
        if not ranked.kind and ranked.statistics:
            for label, cell in zip_longest(columns[1:], row[1 : len(columns)], fillvalue=LabelMeaning()):
                if isinstance(label, LabelMeaning) and label.kind == "time":
                    current.put(replace(label, statistics=ranked.statistics), str(cell))
            continue
        named = row[0] if not columns[0].field and any(sign.isalpha() for sign in row[0]) else ""
        run = PrintedRun(dialect, n, named)
        for label, cell in zip(columns, row, strict=False):
            if label.field:
                run.put(label, cell)
        yield run


def _by_column(
    header: Row, columns: list[LabelMeaning], rows: Lines, dialect: Dialect, current: PrintedRun
) -> Iterator[PrintedRun]:
    """Read each row as a figure: its statistics in columns, or each column a run. Columns of sizes separate runs."""
    others = [at for at in range(1, len(header)) if not columns[at].statistics and header[at].lower() not in _LEFT_OUT]
    units = next((at for at in others if header[at].lower() in ("unit", "units")), 0)
    sizes = [at for at in others if columns[at].kind == "count"]
    labelled = [row for _, row in rows if meaning(row[0]).field]
    apart = [at for at in others if at not in (units, *sizes) and any(_digits(row[at]) for row in labelled)]
    apart = apart or [at for at in others if len(header) == 2]
    runs: dict[tuple[str | int, ...], PrintedRun] = {}
    for at in apart:
        runs[at,] = PrintedRun(dialect, rows[0][0], header[at]) if len(apart) > 1 else current
    above = ""
    for n, row in rows:
        above = row[0] or above
        label = meaning(f"{above} ({row[units]})" if units and row[units] else above)
        if label.field and sizes:
            run = runs.setdefault(("", *(row[at] for at in sizes)), PrintedRun(dialect, n))
            for meant, cell in (*((columns[at], row[at]) for at in sizes), *_statistics(label, columns, row)):
                run.put(meant, cell)
        elif label.field:
            for meant, cell in _statistics(label, columns, row):
                current.put(meant, cell)
            for at in apart:
                runs[at,].put(label, row[at])
    yield from (run for run in runs.values() if run is not current)


def _statistics(label: LabelMeaning, columns: list[LabelMeaning], row: Row) -> Pairs:
    """Return the cells of a row below statistics, or none for a rate with several: rates of requests are not the run's."""
    cells = [(column, cell) for column, cell in zip(columns, row, strict=False) if column.statistics and not column.field]
    if label.statistics or (label.kind == "rate" and sum(_digits(cell) for _, cell in cells) > 1):
        return []
    return [(replace(label, statistics=column.statistics, unit_s=column.unit_s or label.unit_s), cell) for column, cell in cells]


def _digits(cell: str) -> bool:
    return any(sign.isdigit() for sign in cell)


TITLE = "Serving Benchmark Result"
INSIDE = ("Benchmark duration (s):", "Mean TTFT (ms):")  # lines that only a table of that title has
TOPS = "┏┌╒╔╭┡"  # with which a drawn table begins
BOTTOMS = "└╘╚╰┗"
FRAME = "│┃|>*#\"', \t=•-"  # what panes, quotes and lists put around a line
END = "=" * 40
SAYS = patterns(__name__)
_NAMES = ("model", "backend", "engine", "path", "gpu", "hardware")  # labels of what is no figure


def looks_like(text: str) -> bool:
    return SAYS.hint.search(text) is not None and bool(parse(text))


@lru_cache(maxsize=1)
def parse(text: str) -> tuple[BenchmarkRun, ...]:
    """Return all results of a text, in order."""
    return tuple(_PrintedReader(text).results())


def pair_of(line: str) -> tuple[str, str]:
    """Return a label and its value. A line that is no pair is a label alone.

    >>> pair_of("INFO: Mean TTFT (ms):   5.1 "), pair_of("p50 = 0.1"), pair_of("rank 3: loading"), pair_of("Latency (ms):")
    (('INFO: Mean TTFT (ms)', '5.1'), ('p50', '0.1'), ('', ''), ('Latency (ms):', ''))
    """
    line = line.rstrip("│┃| \t")
    for sign in (": ", ":\t", " = ", ":"):
        label, separator, value = line.rpartition(sign)
        if separator and (value := value.strip()):
            named = label[-12:].lower().rstrip(' "*`').endswith(_NAMES)
            return (label.rstrip(), value) if (SAYS.figure.match(value) and value[-1] != "%") or named else ("", "")
    return line, ""


class _PrintedReader:
    def __init__(self, text: str) -> None:
        self.text, self.dialect = text, dialect_of(text)
        self.commands = CommandContext()
        self.run = PrintedRun(self.dialect)
        self.grid: list[tuple[int, Row]] = []
        self.section = LabelMeaning()
        self.titled = 0  # the line of a title whose table is not ended
        self.command, self.idle = "", 0
        self.named: dict[tuple[str, int], PrintedRun] = {}  # rows of tables by their names, which later tables go on with
        self.model = ""
        self.heads: frozenset[tuple[str, str]] = frozenset()  # figures with which the first run begins
        self.begun = self.drawn = False
        self.cut: Note | None = None

    def results(self) -> Iterator[BenchmarkRun]:
        for number, line in enumerate(split_lines(self.text), 1):
            head = line[: COUNT.namespace_signs] if len(line) > COUNT.longest_line else ""
            if "Namespace(" in head and (named := SAYS.model.search(head)):
                self.model = named[1]
            elif len(line) <= COUNT.longest_line or self.command:
                yield from self._line(number, line)
        if self.grid and self.drawn and not self.text.rstrip().rpartition("\n")[2].strip().startswith(tuple(BOTTOMS)):
            self.cut = Note("partial", "the table's frame does not end: rows below are missing")
        self._table()
        rows = [one for run in self.named.values() for one in self._bench(run, row=True)]
        listed = list(self._closed(self._unended() or (None if rows else self.cut)))
        yield from (*listed, *rows[:-1], *(replace(one, notes=(*one.notes, *filter(None, [self.cut]))) for one in rows[-1:]))

    def _line(self, number: int, line: str) -> Iterator[BenchmarkRun]:
        row = None if self.titled or self.command else row_of(line)
        if row is not None and (row or self.grid) and len(self.grid) < COUNT.most_rows:
            if not row and line.lstrip()[0] in TOPS[:-1]:  # a table begins, and what stands above was its title or another
                self._table()
            self.drawn = self.drawn or (not row and line.lstrip()[0] in TOPS)
            self.grid.append((number, row))
            return
        self._table()
        if TITLE in line:
            if self.titled or self.run.measured:  # else what stands above states its load
                yield from self._closed(self._unended() if self.titled else None)
            self.titled = number
        elif END in line and not any(sign.isalpha() for sign in line):
            yield from self._closed(None) if self.titled else ()
        elif self.command or is_command(line.strip(" `")):
            self.command += " " + line.strip(" `").rstrip("\\")
            if not line.rstrip().endswith("\\"):
                if self.run.measured:
                    yield from self._closed(None)
                self.commands.take(self.command.strip())
                self.command = ""
        else:
            yield from self._plain(number, line)

    def _plain(self, number: int, line: str) -> Iterator[BenchmarkRun]:
        """Read a pair, or the title of a metric."""
        if "Namespace(" in line and (named := SAYS.model.search(line)):
            self.model = named[1]
            return
        label, value = pair_of(line)
        if value:
            yield from self._pair(number, label, value)
        elif label and len(label) <= counts("runs.results.printed_runs").longest:
            title = label.strip(FRAME + "─━ :")  # a line that is no title of a metric ends the section above it
            meant = meaning(title) if self.section.field or SAYS.metric.search(title) else LabelMeaning()
            if meant.kind:
                self.section = meant if meant.kind in ("time", "count") and not meant.statistics else LabelMeaning()
            self.idle += not meant.field
        if self.idle > COUNT.far and not self.titled and not self.run.measured:
            self.run, self.idle = PrintedRun(self.dialect), 0

    def _pair(self, number: int, label: str, value: str) -> Iterator[BenchmarkRun]:
        meant, value = self._meant(label, value)
        if not meant.field:
            self.idle += 1
            return
        if not self.titled and self._again(self.run.read(meant, value)):
            yield from self._closed(None)
        if not self.run.figures:
            self.run.line = number
        headless = not self.titled and not self.run.notes and ("requests", "") not in self.run.figures
        if headless and any(word in f"{label}:" for word in INSIDE):
            self.run.notes.append(Note("partial", f"the table on line {number} has no title: what is above it is missing"))
        self.run.put(meant, value)
        self.idle = 0

    def _again(self, read: Mapping[tuple[str, str], float]) -> bool:
        """Return whether a figure begins the next run: one with which runs begin, or another value than a full run has."""
        run = self.run
        self.begun = self.begun or bool(run.measured)
        self.heads = self.heads if self.begun else self.heads | read.keys()
        other = {name for (name, s), n in read.items() if run.figures.get((name, s), n) != n}
        return bool((self.heads & read.keys() and run.measured) or other & STRONG or (other and run.measured >= COUNT.least))

    def _meant(self, label: str, value: str) -> tuple[LabelMeaning, str]:
        """Return a label's meaning without a logger's prefix. Below the title of a metric a statistic may stand alone."""
        cut = [match.end() for match in SAYS.separated.finditer(label[-COUNT.longest_line :])]
        whole, last = label[-COUNT.longest_line :], label[-COUNT.longest_line :][cut[-1] if cut else 0 :]
        longest = counts("runs.results.printed_runs").longest
        for one in dict.fromkeys(text.strip(FRAME) for text in (whole, last) if len(text) <= longest):
            meant = meaning(one)
            if meant.field:
                return meant, value
            if not meant.kind and meant.statistics and self.section.field:
                return replace(self.section, statistics=meant.statistics, unit_s=meant.unit_s or self.section.unit_s), value
        return LabelMeaning(), value

    def _table(self) -> None:
        """Read the table above, and merge its rows with those of the same name in earlier tables."""
        lines, self.grid = self.grid, []
        seen: dict[str, int] = {}
        for run in runs_of(lines, self.dialect, self.run) if any(row for _, row in lines) else ():
            run.strings = {**self.run.strings, **run.strings}
            run.figures = {**({} if self.run.measured else self.run.figures), **run.figures}
            key = run.name, seen.setdefault(run.name, 0)
            seen[run.name] += 1
            if key not in self.named or not run.name:
                key = (run.name, seen[run.name] - 1) if run.name else ("", len(self.named))
            earlier = self.named.setdefault(key, run)
            earlier.figures = {**run.figures, **earlier.figures}
            earlier.strings = {**run.strings, **earlier.strings}

    def _closed(self, note: Note | None) -> Iterator[BenchmarkRun]:
        run, titled = self.run, self.titled
        run.notes += [note] if note else []
        self.run, self.titled, self.section = PrintedRun(self.dialect), 0, LabelMeaning()
        yield from self._bench(run, bool(titled))

    def _bench(self, run: PrintedRun, titled: bool = False, row: bool = False) -> Iterator[BenchmarkRun]:
        """Yield the run's result if it is one: a titled table with any figure, another list or row with a time or a rate."""
        named_tool = self.dialect.tool not in ("printed", "vllm")
        least = 1 if row or run.line == 0 else COUNT.least
        whole = run.strong and (run.measured >= least or len(run.figures) > COUNT.least)
        if whole or (titled and run.figures) or (named_tool and not run.measured and len(run.figures) > COUNT.least):
            if not run.measured:
                run.notes.append(Note("partial", "no time and no rate is in it: cut off before them"))
            if self.model:
                run.strings.setdefault("model", self.model)
            benchmark = make_benchmark(run, self.commands.facts)
            if titled and {("failed", ""), ("peak_concurrency", "")} <= run.figures.keys() and not benchmark.concurrency:
                benchmark = replace(benchmark, request_rate=benchmark.request_rate or math.inf)  # it would say a rate or a cap
            yield replace(benchmark, tool="sglang") if titled and "backend" in run.strings else benchmark

    def _unended(self) -> Note | None:
        """Return a note where the output is cut off: a table without its last line, or text that ends within a label."""
        if self.titled:
            return Note("partial", f"the table that begins on line {self.titled} is cut off: what it has is read")
        last = self.text[-COUNT.longest_line :].rstrip().rpartition("\n")[2].strip(FRAME)
        ended = self.run.measured and last.endswith(":") and meaning(last.rstrip(":")).field
        return Note("partial", "the text ends within a line: what is above it is read") if ended else None
