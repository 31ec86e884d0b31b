"""Results as people print and paste them: lists of labels and values, tables of any frame, anywhere in a longer text.

A line is a label, a colon or an equals sign and a value, whatever a launcher or a logger wrote before it; below the title of a
metric its statistics may stand alone. A list whose first labels come again is the next run. Labels mean what ``labels`` says.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from commtax.evidence.short_lines import split_lines
from commtax.evidence.wordings import patterns
from commtax.results.bench_record import BenchmarkRun
from commtax.results.commands import CommandContext, is_command
from commtax.results.labels import LabelMeaning, meaning
from commtax.results.printed_grids import Row, row_of, runs_of
from commtax.results.runs import STRONG, PrintedRun, dialect_of, make_benchmark
from commtax.statement import Note
from commtax.thresholds import counts

TITLE = "Serving Benchmark Result"
INSIDE = ("Benchmark duration (s):", "Mean TTFT (ms):")  # lines that only a table of that title has
TOPS = "┏┌╒╔╭┡"  # with which a drawn table begins
BOTTOMS = "└╘╚╰┗"
FRAME = "│┃|>*#\"', \t=•-"  # what panes, quotes and lists put around a line
COUNT = counts(__name__)
END = "=" * 40
SAYS = patterns(__name__)
_NAMES = ("model", "backend", "engine", "path", "gpu", "hardware")  # labels of what is no figure


def looks_like(text: str) -> bool:
    return SAYS.hint.search(text) is not None and bool(parse(text))


@lru_cache(maxsize=1)
def parse(text: str) -> tuple[BenchmarkRun, ...]:
    """All results of a text, in their order."""
    return tuple(_PrintedReader(text).results())


def pair_of(line: str) -> tuple[str, str]:
    """A label and its value; a line that is no pair is a label alone.

    >>> pair_of("INFO: Mean TTFT (ms):   5.1 "), pair_of("p50 = 0.1"), pair_of("rank 3: loading"), pair_of("Latency (ms):")
    (('INFO: Mean TTFT (ms)', '5.1'), ('p50', '0.1'), ('', ''), ('Latency (ms):', ''))
    """
    line = line.rstrip("│┃| \t")
    for sign in (": ", ":\t", " = ", ":"):
        label, found, value = line.rpartition(sign)
        if found and (value := value.strip()):
            named = label[-12:].lower().rstrip(' "*`').endswith(_NAMES)
            return (label.rstrip(), value) if (SAYS.figure.match(value) and value[-1] != "%") or named else ("", "")
    return line, ""


class _PrintedReader:
    """Goes through a text once."""

    def __init__(self, text: str) -> None:
        self.text, self.dialect = text, dialect_of(text)
        self.told = CommandContext()
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
            if self.titled or self.run.measured:  # else what stands above says its load
                yield from self._closed(self._unended() if self.titled else None)
            self.titled = number
        elif END in line and not any(sign.isalpha() for sign in line):
            yield from self._closed(None) if self.titled else ()
        elif self.command or is_command(line.strip(" `")):
            self.command += " " + line.strip(" `").rstrip("\\")
            if not line.rstrip().endswith("\\"):
                if self.run.measured:
                    yield from self._closed(None)
                self.told.take(self.command.strip())
                self.command = ""
        else:
            yield from self._plain(number, line)

    def _plain(self, number: int, line: str) -> Iterator[BenchmarkRun]:
        """A pair, or the title of a metric."""
        if "Namespace(" in line and (named := SAYS.model.search(line)):
            self.model = named[1]
            return
        label, value = pair_of(line)
        if value:
            yield from self._pair(number, label, value)
        elif label and len(label) <= counts("results.labels").longest:
            self._titled_by(label.strip(FRAME + "─━ :"))
        if self.idle > COUNT.far and not self.titled and not self.run.measured:
            self.run, self.idle = PrintedRun(self.dialect), 0

    def _titled_by(self, label: str) -> None:
        """A line that may be the title of a metric; what is none ends the one above."""
        said = meaning(label) if self.section.field or SAYS.metric.search(label) else LabelMeaning()
        if said.kind:
            self.section = said if said.kind in ("time", "count") and not said.statistics else LabelMeaning()
        self.idle += not said.field

    def _pair(self, number: int, label: str, value: str) -> Iterator[BenchmarkRun]:
        said, value = self._meant(label, value)
        if not said.field:
            self.idle += 1
            return
        if not self.titled and self._again(self.run.read(said, value)):
            yield from self._closed(None)
        if not self.run.figures:
            self.run.line = number
        headless = not self.titled and not self.run.notes and ("requests", "") not in self.run.figures
        if headless and any(word in f"{label}:" for word in INSIDE):
            self.run.notes.append(Note("partial", f"the table on line {number} has no title: what is above it is missing"))
        self.run.put(said, value)
        self.idle = 0

    def _again(self, read: Mapping[tuple[str, str], float]) -> bool:
        """Whether a figure is one of the next run: one with which runs begin, or another value of what a full one has."""
        held = self.run
        self.begun = self.begun or bool(held.measured)
        self.heads = self.heads if self.begun else self.heads | read.keys()
        other = {name for (name, s), n in read.items() if held.figures.get((name, s), n) != n}
        return bool((self.heads & read.keys() and held.measured) or other & STRONG or (other and held.measured >= COUNT.least))

    def _meant(self, label: str, value: str) -> tuple[LabelMeaning, str]:
        """A label's meaning: below the title of a metric statistics alone, and behind whatever a logger wrote."""
        cut = [match.end() for match in SAYS.separated.finditer(label[-COUNT.longest_line :])]
        whole, last = label[-COUNT.longest_line :], label[-COUNT.longest_line :][cut[-1] if cut else 0 :]
        for one in dict.fromkeys(text.strip(FRAME) for text in (whole, last) if len(text) <= counts("results.labels").longest):
            said = meaning(one)
            if said.field:
                return said, value
            if not said.kind and said.statistics and self.section.field:
                return replace(self.section, statistics=said.statistics, unit_s=said.unit_s or self.section.unit_s), value
        return LabelMeaning(), value

    def _table(self) -> None:
        """What the table above was."""
        lines, self.grid = self.grid, []
        seen: dict[str, int] = {}
        for run in runs_of(lines, self.dialect, self.run) if any(row for _, row in lines) else ():
            run.strings = {**self.run.strings, **run.strings}
            run.figures = {**({} if self.run.measured else self.run.figures), **run.figures}
            key = run.name, seen.setdefault(run.name, 0)
            seen[run.name] += 1
            if key not in self.named or not run.name:
                key = (run.name, seen[run.name] - 1) if run.name else ("", len(self.named))
            known = self.named.setdefault(key, run)
            known.figures = {**run.figures, **known.figures}
            known.strings = {**run.strings, **known.strings}

    def _closed(self, note: Note | None) -> Iterator[BenchmarkRun]:
        run, titled = self.run, self.titled
        run.notes += [note] if note else []
        self.run, self.titled, self.section = PrintedRun(self.dialect), 0, LabelMeaning()
        yield from self._bench(run, bool(titled))

    def _bench(self, run: PrintedRun, titled: bool = False, row: bool = False) -> Iterator[BenchmarkRun]:
        """The run's result, where it is one: a titled table with any figure, another list or row with a time or a rate."""
        known = self.dialect.tool not in ("printed", "vllm")
        least = 1 if row or run.line == 0 else COUNT.least
        whole = run.strong and (run.measured >= least or len(run.figures) > COUNT.least)
        if whole or (titled and run.figures) or (known and not run.measured and len(run.figures) > COUNT.least):
            if not run.measured:
                run.notes.append(Note("partial", "no time and no rate is in it: cut off before them"))
            if self.model:
                run.strings.setdefault("model", self.model)
            found = make_benchmark(run, self.told.facts)
            if titled and {("failed", ""), ("peak_concurrency", "")} <= run.figures.keys() and not found.concurrency:
                found = replace(found, request_rate=found.request_rate or math.inf)  # it would say a rate or a cap
            yield replace(found, tool="sglang") if titled and "backend" in run.strings else found

    def _unended(self) -> Note | None:
        """That a table is cut off: its last line is missing, or the text ends within a label."""
        if self.titled:
            return Note("partial", f"the table that begins on line {self.titled} is cut off: what it has is read")
        last = self.text[-COUNT.longest_line :].rstrip().rpartition("\n")[2].strip(FRAME)
        ended = self.run.measured and last.endswith(":") and meaning(last.rstrip(":")).field
        return Note("partial", "the text ends within a line: what is above it is read") if ended else None
