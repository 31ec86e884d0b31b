"""Output of nccl-tests and rccl-tests: one row a size, whatever launcher prefixed the lines.

Two things tell how many ranks took part: the list of ranks, of which a text may hold a part, and busbw / algbw, which is rounded.
What agrees with both is taken; what contradicts itself is refused.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commtax.files import table
from commtax.runs.evidence import prefixes
from commtax.statement import Refusal
from commtax.thresholds import counts
from commtax.wordings import lines_with, patterns

OPS: dict[str, str] = table("launch/collective_tests.toml")["programs"]  # what each program measures
NAMED = re.compile(rf"(?<!\w)({'|'.join(OPS)})_perf\b", re.I)
TITLES = re.compile(r"#?\s*+size\s++count\b")  # above each table
_CONCLUDED = "test concluded:"
SAYS = patterns(__name__)
_REDUCTIONS = ("sum", "prod", "min", "max", "avg", "mulsum")
_WITH_ROOT = (5, 7, 9, 11, 17, 19)  # figures of a row with the root's: three or more follow for one column, twice that for both
_BOTH = (6, 8, 10, 16, 18)  # figures of both columns: times and bandwidths, wrong values, differing bits, times of each iteration
COUNT = counts(__name__)
NO_FACTOR = ("send-recv", "broadcast", "reduce", "hypercube")  # whose busbw is algbw, over however many ranks


@dataclass(frozen=True, slots=True)
class NcclTestsRow:
    """One size: seconds, algorithm and bus bandwidth out of place as printed; seconds in place; wrong values of both."""

    nbytes: float
    seconds: float
    algbw_Bps: float
    busbw_Bps: float
    in_place_s: float | None = None
    wrong: int = 0
    reduction: str = ""
    digit_Bps: tuple[float, float] = (0.0, 0.0)  # what the last digits of both bandwidths stand for


@dataclass(frozen=True, slots=True)
class NcclTestsRun:
    """A whole output. ``op`` and ``ranks`` where the text tells them, else "" and 0."""

    rows: tuple[NcclTestsRow, ...]
    op: str
    ranks: int
    empty: int = 0  # rows of 0 B, which are in the average that is printed


def parse(text: str, name: str = "output") -> NcclTestsRun:
    """Read the data rows (size count type [redop [root]] time algbw busbw wrong …); sizes of 0 are left out.

    >>> run = parse("  1048576  262144  float  sum  -1  25.41  41.26  72.21  0  25.2  41.6  72.8  0")
    >>> run.rows[0].nbytes, round(run.rows[0].seconds * 1e6, 2), run.ranks
    (1048576.0, 25.41, 8)
    """
    runs = parse_all(text, name)
    rows = tuple(row for run in runs for row in run.rows)
    return NcclTestsRun(rows, runs[-1].op if runs else "", next((run.ranks for run in runs if run.ranks), 0))


@dataclass(slots=True)
class _Source:
    """What one process (or a text without prefixes) printed since its last header."""

    name: str
    op: str = ""
    rows: list[NcclTestsRow] = field(default_factory=list)
    width: int = 0  # cells of the last row: one that has fewer is cut off
    listed: dict[int, int] = field(default_factory=dict)  # rank and its group
    empty: int = 0

    def ended(self) -> NcclTestsRun:
        """One run; a text without its command still tells an all-reduce or a reduce-scatter by its bus bandwidth."""
        ratio, op = _ratio(self.rows), self.op
        if not op and ratio and self.rows[0].reduction:
            op = "all-reduce" if ratio >= 1 else "reduce-scatter"
        run = NcclTestsRun(tuple(self.rows), op, _ranks(self.rows, op, self.listed, self.name), self.empty)
        self.rows, self.listed, self.empty = [], {}, 0
        return run


def parse_all(text: str, name: str = "output", mended: Callable[[str], str] = str) -> tuple[NcclTestsRun, ...]:
    """Every run of a text that holds several outputs, one after the other or of several hosts in turn."""
    runs: list[NcclTestsRun] = []
    sources: dict[str, _Source] = {}
    op, kept = "", 0
    for who, raw in (told for line in lines_with(SAYS.said, text, COUNT.line_chars) for told in prefixes.lines(mended(line))):
        line = raw.strip()
        source = sources.setdefault(who, _Source(name, op))
        named, header = NAMED.search(line), SAYS.header.match(line)
        concluded = bool(named) and _CONCLUDED in line  # newer versions name a table below it
        if named and concluded:
            source.op = OPS[named[1].lower()]
        if source.rows and (header or named or TITLES.match(line)):
            runs.append(source.ended())
        if concluded:
            op = source.op = ""
        elif named:  # a command is often printed by the launcher, whose lines have no prefix
            op = OPS[named[1].lower()]
        if header or (named and not concluded):
            source.op = op
        if rank := SAYS.rank.match(line):
            kept += 1
            source.listed[int(rank[1])] = int(rank[2] or 0)
        source.empty += bool(SAYS.empty.match(line))
        row = None if line.startswith("#") else row_of(line)
        width = len(line.split())
        if row and (not source.rows or width >= source.width):
            source.op = source.op or op
            source.rows.append(row)
            source.width = width
            kept += 1
        if kept >= COUNT.most_rows or len(sources) > COUNT.most_rows:
            raise Refusal(f"'{name}': more than {COUNT.most_rows:,} rows, ranks or hosts, which is more than is read; split it")
    runs += [source.ended() for source in sources.values() if source.rows]
    return tuple(runs)


def row_of(line: str) -> NcclTestsRow | None:
    cells = line.split()
    if not 6 <= len(cells) <= 26 or not all(cell.isascii() and cell.isdigit() for cell in cells[:2]):
        return None
    figures: list[tuple[float, str]] = []
    for cell in cells[2:]:
        if figures and SAYS.date.match(cell):
            break
        try:
            figures.append((float(cell), cell))
        except ValueError:
            if figures and cell != "N/A":
                return None
            figures += [(math.nan, cell)] if figures else []
    if figures and re.fullmatch(r"-\d+" if len(figures) not in _WITH_ROOT else r"-?\d+", figures[0][1]):
        figures = figures[1:]
    numbers = [value for value, _ in figures]
    sized = len(cells[0]) <= COUNT.most_digits and float(cells[0]) != 0
    if len(numbers) < 3 or not sized or any(math.isinf(n) or n < 0 for n in numbers):
        return None
    time_us, algbw, busbw = numbers[:3]
    half = len(numbers) // 2
    again = numbers[half] * 1e-6 if len(numbers) in _BOTH else None
    counts = [figures[3], figures[half + 3]] if len(figures) in _BOTH[1:] else figures[3:4]
    wrong = sum(int(cell) for _, cell in counts if cell.isdigit())  # older versions print the largest error here, as 2e-06
    reduction = cells[3] if cells[3] in _REDUCTIONS else ""
    digits = (_last_digit(figures[1][1]), _last_digit(figures[2][1]))
    return NcclTestsRow(float(cells[0]), time_us * 1e-6, algbw * 1e9, busbw * 1e9, again, wrong, reduction, digits)


def _last_digit(word: str) -> float:
    """What one more in the last digit of GB/s is, in B/s.

    >>> _last_digit("41.26"), _last_digit("1204")
    (10000000.0, 1000000000.0)
    """
    return 1e9 * 10.0 ** -len(word.partition(".")[2])


def _ratio(rows: Sequence[NcclTestsRow]) -> float:
    """Bus over algorithm bandwidth, of rows with digits enough; 0: none has."""
    ratios = sorted(r.busbw_Bps / r.algbw_Bps for r in rows if r.algbw_Bps > 1e9)
    return ratios[len(ratios) // 2] if ratios else 0.0


def _ranks(rows: list[NcclTestsRow], op: str, listed: dict[int, int], name: str) -> int:
    """The group's size, with which the listed ranks (all, or a part) and the bandwidths agree; 0: not told."""
    groups = Counter(listed.values())
    if len(groups) > 1:  # NCCL_TESTS_SPLIT: several groups at once, each a communicator of its own
        return max(groups.values())
    least, most = possible_ranks(rows, op)
    highest = max(listed, default=-1) + 1
    if least > most:  # bandwidths by other definitions than nccl-tests'
        return highest
    if highest > most:
        raise Refusal(f"'{name}': lists rank {highest - 1}, and its busbw / algbw tell {most} ranks: not the output of one run")
    if least <= highest:
        return highest
    return least if least == most else 0


def possible_ranks(rows: Sequence[NcclTestsRow], op: str) -> tuple[int, int]:
    """The fewest and the most ranks with which every row's busbw / algbw agrees to its last digits.

    The ratio is 2 (n-1)/n in an all-reduce and (n-1)/n to gather or scatter.
    """
    ratio = _ratio(rows)
    if op in NO_FACTOR or (not op and ratio == 1):
        return 1, COUNT.most_ranks
    whole = 2.0 if op == "all-reduce" or (not op and ratio > 1) else 1.0
    low, high = 1.0, float(COUNT.most_ranks)
    for row in rows:
        alg_digit, bus_digit = row.digit_Bps
        if row.algbw_Bps > max(alg_digit, 0.0):
            low = max(low, _size((row.busbw_Bps - bus_digit) / (row.algbw_Bps + alg_digit), whole))
            high = min(high, _size((row.busbw_Bps + bus_digit) / (row.algbw_Bps - alg_digit), whole))
    return math.ceil(low - 1e-6), math.floor(high + 1e-6)


def _size(ratio: float, whole: float) -> float:
    """n, where the ratio is whole (n-1)/n."""
    return whole / (whole - ratio) if ratio < whole * (1 - 1 / COUNT.most_ranks) else float(COUNT.most_ranks)
