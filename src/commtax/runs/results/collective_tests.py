"""Output of nccl-tests and rccl-tests: a row for each size, on which devices and hosts, and the average that they print.

Two things tell how many ranks took part: the list of ranks, of which a text may hold a part, and busbw / algbw, which is rounded.
What agrees with both is taken; what contradicts itself is refused. JSON is read as the text that the same programs print.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from commtax.files import Json, JsonObject, need_list, need_number, need_object, need_whole, table
from commtax.runs.evidence import prefixes
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.wordings import lines_with, patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

OPS: dict[str, str] = table("launch/collective_tests.toml")["programs"]  # what each program measures
NAMED = re.compile(rf"(?<!\w)({'|'.join(OPS)})_perf\b", re.I)
TITLES = re.compile(r"#?\s*+size\s++count\b")  # above each table
_CONCLUDED = "test concluded:"
_REDUCTIONS = ("sum", "prod", "min", "max", "avg", "mulsum")
_WITH_ROOT = (5, 7, 9, 11, 17, 19)  # figures of a row with the root's: three or more follow for one column, twice that for both
_BOTH = (6, 8, 10, 16, 18)  # figures of both columns: times and bandwidths, wrong values, differing bits, times of each iteration
NO_FACTOR = ("send-recv", "broadcast", "reduce", "hypercube")  # whose busbw is algbw, over however many ranks


@dataclass(frozen=True, slots=True)
class NcclTestsRow:
    """One size: seconds, algorithm and bus bandwidth out of place as printed, seconds in place, and wrong values of both."""

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
    """A whole output. ``op`` and ``ranks`` where the text states them, else "" and 0."""

    rows: tuple[NcclTestsRow, ...]
    op: str
    ranks: int
    empty: int = 0  # rows of 0 B, which are in the average that is printed


def parse_run(text: str, name: str = "output") -> NcclTestsRun:
    """Read the data rows (size count type [redop [root]] time algbw busbw wrong …), leaving out sizes of 0.

    >>> run = parse_run("  1048576  262144  float  sum  -1  25.41  41.26  72.21  0  25.2  41.6  72.8  0")
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
        """Return one run. Without its command, the bus bandwidth still distinguishes an all-reduce from a reduce-scatter."""
        ratio, op = _ratio(self.rows), self.op
        if not op and ratio and self.rows[0].reduction:
            op = "all-reduce" if ratio >= 1 else "reduce-scatter"
        run = NcclTestsRun(tuple(self.rows), op, _ranks(self.rows, op, self.listed, self.name), self.empty)
        self.rows, self.listed, self.empty = [], {}, 0
        return run


def parse_all(text: str, name: str = "output", mended: Callable[[str], str] = str) -> tuple[NcclTestsRun, ...]:
    """Read every run of a text that holds several outputs, one after the other or of several hosts in turn."""
    runs: list[NcclTestsRun] = []
    sources: dict[str, _Source] = {}
    op, kept = "", 0
    marked = lines_with(SAYS.row_marks, text, COUNT.row_chars)
    for who, raw in (pair for line in marked for pair in prefixes.lines(mended(line))):
        line = raw.strip()
        source = sources.setdefault(who, _Source(name, op))
        named, header = NAMED.search(line), SAYS.run_header.match(line)
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
    """Return what one more in the last digit of GB/s is, in B/s.

    >>> _last_digit("41.26"), _last_digit("1204")
    (10000000.0, 1000000000.0)
    """
    return 1e9 * 10.0 ** -len(word.partition(".")[2])


def _ratio(rows: Sequence[NcclTestsRow]) -> float:
    """Return the ratio of bus to algorithm bandwidth over rows with enough digits, or 0 where none has."""
    ratios = sorted(r.busbw_Bps / r.algbw_Bps for r in rows if r.algbw_Bps > 1e9)
    return ratios[len(ratios) // 2] if ratios else 0.0


def _ranks(rows: list[NcclTestsRow], op: str, listed: dict[int, int], name: str) -> int:
    """Return the group size that the listed ranks (all, or a part) and the bandwidths agree on, or 0 for none."""
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
    """Return the fewest and the most ranks with which every row's busbw / algbw agrees to its last digits.

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
    """Return n, where the ratio is whole (n-1)/n."""
    return whole / (whole - ratio) if ratio < whole * (1 - 1 / COUNT.most_ranks) else float(COUNT.most_ranks)


_KEYS = (b'"bus_bw"', b'"busBw"')


def looks_like_json(head: bytes) -> bool:
    """Return whether the beginning of a file holds a key of either document."""
    return any(key in head for key in _KEYS) and (b'"out_of_place"' in head or b'"inPlace"' in head)


def parse_json(text: str, name: str) -> CollectiveTests:
    """Return the tests of a JSON document."""
    return parse(text_of_json(text, name), name)


def text_of_json(text: str, name: str) -> str:
    """Convert the JSON of nccl-tests or rccl-tests to lines of text: header, devices, rows and end, where present."""
    try:
        documents = list(_objects(text))
        lines = list(_nccl(documents[0])) if documents and "results" in documents[0] else list(_rccl(documents))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refusal(f"'{name}': results of collectives, and not as nccl-tests or rccl-tests write them ({error!r:.80})") from None
    return "\n".join(lines)


def _objects(text: str) -> Iterator[JsonObject]:
    """Yield the objects of a text: itself, those of a list, or one of each line, until a line is cut off."""
    try:
        whole: Json = json.loads(text)
        yield from map(need_object, whole if isinstance(whole, list) else [whole])
    except json.JSONDecodeError:
        for line in split_lines(text):
            try:
                yield need_object(json.loads(line.strip().rstrip(",")))
            except json.JSONDecodeError:
                continue


def _op(name: str) -> str:
    """Return the program of an operation spelled in any way, or "" for none."""
    plain = name.lower().rpartition("/")[2].removesuffix("_perf").replace("_", "").replace("-", "")
    return next((program for program in reversed(OPS) if program.replace("_", "") == plain), "")


def _nccl(document: JsonObject) -> Iterator[str]:
    config = need_object(document.get("config", {}))
    words = (*need_list(document.get("args", [])), document.get("collective", ""))
    if program := next((op for word in words if (op := _op(str(word)))), ""):
        yield f"# Collective test starting: {program}_perf"
    if "minimum_bytes" in config:
        step = f"{config['step_factor']}(factor)" if "step_factor" in config else f"{config.get('step_bytes', 0)}(bytes)"
        sizes = f"minBytes {config['minimum_bytes']} maxBytes {config['maximum_bytes']} step: {step}"
        yield f"# nThread {config.get('nthreads', 1)} nGpus {config.get('ngpus', 1)} {sizes}"
    for d in map(need_object, need_list(config.get("devices", document.get("devices", [])))):
        place = f"Pid {d.get('pid', 0)} on {d['hostname']} device {d.get('device', 0)} [{d.get('device_hex', '?')}]"
        yield f"#  Rank {d.get('rank', 0)} Group {d.get('group', 0)} {place} {d['device_info']}"
    rows = [need_object(row) for row in need_list(document["results"])]
    ways = [(row, need_object(row.get("out_of_place") or {}), need_object(row.get("in_place") or {})) for row in rows]
    yield from _table(ways, ("alg_bw", "bus_bw", "nwrong"))
    if average := document.get("average_bus_bandwidth"):
        yield f"# Avg bus bandwidth    : {need_number(need_object(average)['bandwidth'])}"


def _rccl(documents: list[JsonObject]) -> Iterator[str]:
    """Yield rows out of place and in place, paired by size, and the GPUs as a list of ranks."""
    if not documents:
        return
    if program := _op(str(documents[0].get("name", ""))):
        yield f"# Collective test starting: {program}_perf"
    yield from (f"#  Rank {rank} Group 0" for rank in range(need_whole(documents[0].get("ranks", documents[0].get("gpus", 0)))))
    ways: dict[tuple[str, ...], dict[int, JsonObject]] = {}
    for row in documents:
        key = str(row.get("numCycle", 0)), str(row.get("type", "")), str(row.get("redop", "")), str(row["size"])
        ways.setdefault(key, {})[need_whole(row["inPlace"])] = row
    yield from _table([(next(iter(w.values())), w.get(0, {}), w.get(1, {})) for w in ways.values()], ("algBw", "busBw", "#wrong"))
    yield "# Out of bounds values"


def _table(rows: list[tuple[JsonObject, JsonObject, JsonObject]], keys: tuple[str, str, str]) -> Iterator[str]:
    """Yield rows as a table has them: both ways where every row has both, else one."""
    whole = all(out and again for _, out, again in rows)
    for row, out, again in rows:
        ways = [way for way in (out, again) if way][: 2 if whole else 1]
        times = [need_number(way["time"] if "time" in way else way["cpu_time"]) for way in ways]
        bandwidths = [(way[keys[0]], way[keys[1]], way.get(keys[2], way.get("wrong", 0))) for way in ways]
        cells = [cell for time, figures in zip(times, bandwidths, strict=True) for cell in (time, *figures)]
        row_text = " ".join("N/A" if cell is None else str(cell) for cell in cells)
        size, redop, root = need_whole(row["size"]), row.get("redop") or "none", str(row.get("root", -1)).strip()
        yield f"{size} {row.get('count', size // 4)} {row.get('type', 'float')} {redop} {root} {row_text}"


@dataclass(frozen=True, slots=True)
class CollectiveTests:
    """``averages_Bps`` are means of all bus bandwidths of both columns, as printed."""

    runs: tuple[NcclTestsRun, ...]
    devices: tuple[str, ...] = ()  # names, each once
    hosts: tuple[str, ...] = ()
    ranks: int = 0  # that are listed, and those before them where the list's beginning is missing
    shared: tuple[tuple[int, ...], ...] = ()  # ranks that one GPU has together, by its host and bus id
    version: str = ""
    alone: int = 0  # processes of one table that all call themselves the same rank
    averages_Bps: tuple[float, ...] = ()  # in order
    cut: tuple[BegunTest, ...] = ()  # tests that were begun and of which the end is not there


@dataclass(slots=True)
class BegunTest:
    """One test as far as a text has it."""

    op: str = ""
    num_sizes: int = 0  # sizes that its header announces; 0: its header is not there
    most: float = 0.0  # the largest of them
    titled: bool = False  # the head of its table was printed
    rows: int = 0
    last: float = 0.0
    half: float = 0.0  # the size of a last row that is not whole
    ended: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether rows may be missing at its end. A test that reached the largest size lacks its last lines alone."""
        return not self.ended and (not self.num_sizes or bool(self.half) or self.last < LEVEL.last * self.most)


def looks_like(text: str) -> bool:
    """Return whether a text holds the table of a collective's test."""
    return ("busbw" in text and "algbw" in text) or ("nThread" in text and "nGpus" in text) or SAYS.row.search(text) is not None


def parse(text: str, name: str = "output") -> CollectiveTests:
    """Read all runs of a text, whatever printed it."""
    devices: dict[int, tuple[str, str]] = {}
    buses: dict[int, tuple[str, str]] = {}  # host and bus id of each rank
    version, averages = "", list[float]()
    namesakes, alone = dict[str, set[tuple[str, str]]](), 0  # since the last row
    tests = _Tests()
    for raw, line in _lines(text):
        if "device" in line and (match := SAYS.device.search(line)) and len(devices) < COUNT.most_devices:
            devices[int(match[1])] = (match[2], match[4].strip())
            buses[int(match[1])] = (match[2], match[3])
            pid = SAYS.pid.search(line)
            namesakes.setdefault(match[1], set()).add((match[2], pid[1] if pid else ""))
            alone = max(alone, len(namesakes[match[1]]))
        elif SAYS.row.match(line):
            namesakes.clear()
        elif "Avg bus" in line and (match := SAYS.average.search(line)):
            averages.append(float(match[1]) * 1e9)
        elif not version and "-tests" in raw and (match := SAYS.version.search(raw)):
            version = match[1]
        tests.take(line)
    runs = parse_all(text, name, _mend_line)
    names, hosts = (tuple(dict.fromkeys(d[i] for d in devices.values() if d[i])) for i in (1, 0))
    cut = [test for test in tests.begun if test.is_cut]
    ranks = min(max(devices, default=-1) + 1, COUNT.most_devices)
    shared, ended = _ranks_on_one_gpu(buses), tuple(cut[-1:] if alone > 1 else cut)
    alone = alone if alone > 1 else 0
    return CollectiveTests(runs, _whole_names(names, text), hosts, ranks, shared, version, alone, tuple(averages), ended)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line that may matter, and what a program wrote of it."""
    return ((raw, text) for raw in lines_with(SAYS.said, text, COUNT.line_chars) for _, text in prefixes.lines(_mend_line(raw)))


def _mend_line(line: str) -> str:
    return SAYS.within.sub(" ", line)


class _Tests:
    """The tests of a text, one after the other: a header begins one, or a table whose header is not there."""

    def __init__(self) -> None:
        self.begun: list[BegunTest] = []
        self._op, self._width = "", 0

    @property
    def _now(self) -> BegunTest:
        """The test that is running, or one whose beginning is missing where none is."""
        if (not self.begun or self.begun[-1].ended) and len(self.begun) < COUNT.most_sizes:
            self.begun.append(BegunTest(self._op))
        return self.begun[-1]

    def take(self, line: str) -> None:
        if named := NAMED.search(line):
            self._op = OPS[named[1].lower()]
        if row := SAYS.row.match(line) or (self.begun and self.begun[-1].rows and SAYS.half.match(line)):
            size = float(row[0].split()[0])
            test, width = self._now, len(line.split())
            whole = row_of(line) is not None and (not test.rows or width >= self._width)
            test.half = 0.0 if whole else size
            if whole:
                test.rows, test.last, self._width = test.rows + 1, size, width
        elif (match := SAYS.header.search(line)) and len(self.begun) < COUNT.most_sizes:
            num_sizes = _sizes(int(match[1]), int(match[2]), int(match[3]), match[4] == "factor")
            self.begun.append(BegunTest(self._op, num_sizes, float(match[2])))
        elif TITLES.match(line):
            if self._now.rows:  # another table of a text without its headers
                self.begun.append(BegunTest(self._op))
            self._now.titled = True
        elif SAYS.ended.search(line) and self.begun:
            self.begun[-1].ended = True


def _whole_names(names: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Drop a name that the end of the text cuts off.

    >>> _whole_names(("NVIDIA B200", "NVIDIA B2"), "device 1 [0x1b] NVIDIA B2")
    ('NVIDIA B200',)
    """
    return tuple(n for n in names if not (text.rstrip().endswith(n) and any(other != n and other.startswith(n) for other in names)))


def _ranks_on_one_gpu(buses: dict[int, tuple[str, str]]) -> tuple[tuple[int, ...], ...]:
    """Group the ranks that name the same GPU.

    >>> _ranks_on_one_gpu({0: ("a", "0000:02:00"), 1: ("a", "0000:02:00"), 2: ("b", "0000:02:00")})
    ((0, 1),)
    """
    ranks_by_place: dict[tuple[str, str], list[int]] = {}
    for rank, place in sorted(buses.items()):
        ranks_by_place.setdefault(place, []).append(rank)
    return tuple(tuple(ranks) for ranks in ranks_by_place.values() if len(ranks) > 1)


def _sizes(least: int, most: int, step: int, factor: bool) -> int:
    """Return how many sizes a header announces.

    >>> _sizes(8, 128, 2, True), _sizes(1024, 4096, 1024, False), _sizes(8, 8, 1, True)
    (5, 4, 1)
    """
    if not factor:
        return min(COUNT.most_sizes, (most - least) // step + 1) if step and most >= least else 1
    count, size = 1, max(1, least)
    while step > 1 and (size := size * step) <= most:
        count += 1
    return count
