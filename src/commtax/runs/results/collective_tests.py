"""A text of nccl-tests or rccl-tests: its runs, on which devices and hosts, and the average that it prints itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from commtax.runs.evidence import prefixes
from commtax.runs.results import nccl_tests
from commtax.runs.results.nccl_tests import NcclTestsRun
from commtax.thresholds import thresholds
from commtax.wordings import lines_with, patterns

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)


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
    cut: tuple["BegunTest", ...] = ()  # tests that were begun and of which the end is not there


@dataclass(slots=True)
class BegunTest:
    """One test as far as a text has it."""

    op: str = ""
    asked: int = 0  # sizes that its header announces; 0: its header is not there
    most: float = 0.0  # the largest of them
    titled: bool = False  # the head of its table was printed
    rows: int = 0
    last: float = 0.0
    half: float = 0.0  # the size of a last row that is not whole
    ended: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether rows are missing at its end, or may be; a test that reached the largest size lacks its last lines alone."""
        return not self.ended and (not self.asked or bool(self.half) or self.last < LEVEL.last * self.most)


def looks_like(text: str) -> bool:
    """Whether a text holds the table of a collective's test."""
    return ("busbw" in text and "algbw" in text) or ("nThread" in text and "nGpus" in text) or SAYS.row.search(text) is not None


def parse(text: str, name: str = "output") -> CollectiveTests:
    """All runs of a text, whatever printed it."""
    devices: dict[int, tuple[str, str]] = {}
    buses: dict[int, tuple[str, str]] = {}  # host and bus id of each rank
    version, averages = "", list[float]()
    namesakes, alone = dict[str, set[tuple[str, str]]](), 0  # since the last row
    tests = _Tests()
    for raw, line in _lines(text):
        if "device" in line and (found := SAYS.device.search(line)) and len(devices) < COUNT.most_devices:
            devices[int(found[1])] = (found[2], found[4].strip())
            buses[int(found[1])] = (found[2], found[3])
            pid = SAYS.pid.search(line)
            namesakes.setdefault(found[1], set()).add((found[2], pid[1] if pid else ""))
            alone = max(alone, len(namesakes[found[1]]))
        elif SAYS.row.match(line):
            namesakes.clear()
        elif "Avg bus" in line and (found := SAYS.average.search(line)):
            averages.append(float(found[1]) * 1e9)
        elif not version and "-tests" in raw and (found := SAYS.version.search(raw)):
            version = found[1]
        tests.take(line)
    runs = nccl_tests.parse_all(text, name, _mend_line)
    names, hosts = (tuple(dict.fromkeys(d[i] for d in devices.values() if d[i])) for i in (1, 0))
    cut = [test for test in tests.begun if test.is_cut]
    return CollectiveTests(
        runs,
        _whole_names(names, text),
        hosts,
        min(max(devices, default=-1) + 1, COUNT.most_devices),
        _ranks_on_one_gpu(buses),
        version,
        alone if alone > 1 else 0,
        tuple(averages),
        tuple(cut[-1:] if alone > 1 else cut),
    )


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line that may be read, and what a program wrote of it."""
    return ((raw, told) for raw in lines_with(SAYS.said, text, COUNT.line_chars) for _, told in prefixes.lines(_mend_line(raw)))


def _mend_line(line: str) -> str:
    return SAYS.within.sub(" ", line)


class _Tests:
    """The tests of a text, one after the other: a header begins one, or a table whose header is not there."""

    def __init__(self) -> None:
        self.begun: list[BegunTest] = []
        self._op, self._width = "", 0

    @property
    def _now(self) -> BegunTest:
        """The test that is running; one whose beginning is missing where none is."""
        if (not self.begun or self.begun[-1].ended) and len(self.begun) < COUNT.most_sizes:
            self.begun.append(BegunTest(self._op))
        return self.begun[-1]

    def take(self, line: str) -> None:
        if named := nccl_tests.NAMED.search(line):
            self._op = nccl_tests.OPS[named[1].lower()]
        if row := SAYS.row.match(line) or (self.begun and self.begun[-1].rows and SAYS.half.match(line)):
            self._row(float(row[0].split()[0]), line)
        elif (found := SAYS.header.search(line)) and len(self.begun) < COUNT.most_sizes:
            asked = _sizes(int(found[1]), int(found[2]), int(found[3]), found[4] == "factor")
            self.begun.append(BegunTest(self._op, asked, float(found[2])))
        elif nccl_tests.TITLES.match(line):
            if self._now.rows:  # another table of a text without its headers
                self.begun.append(BegunTest(self._op))
            self._now.titled = True
        elif SAYS.ended.search(line) and self.begun:
            self.begun[-1].ended = True

    def _row(self, size: float, line: str) -> None:
        test, width = self._now, len(line.split())
        whole = nccl_tests.row_of(line) is not None and (not test.rows or width >= self._width)
        test.half = 0.0 if whole else size
        if whole:
            test.rows, test.last, self._width = test.rows + 1, size, width


def _whole_names(names: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Without a name that the end of the text cuts off.

    >>> _whole_names(("NVIDIA B200", "NVIDIA B2"), "device 1 [0x1b] NVIDIA B2")
    ('NVIDIA B200',)
    """
    return tuple(n for n in names if not (text.rstrip().endswith(n) and any(other != n and other.startswith(n) for other in names)))


def _ranks_on_one_gpu(buses: dict[int, tuple[str, str]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that name one GPU.

    >>> _ranks_on_one_gpu({0: ("a", "0000:02:00"), 1: ("a", "0000:02:00"), 2: ("b", "0000:02:00")})
    ((0, 1),)
    """
    held: dict[tuple[str, str], list[int]] = {}
    for rank, place in sorted(buses.items()):
        held.setdefault(place, []).append(rank)
    return tuple(tuple(ranks) for ranks in held.values() if len(ranks) > 1)


def _sizes(least: int, most: int, step: int, factor: bool) -> int:
    """How many sizes a header announces.

    >>> _sizes(8, 128, 2, True), _sizes(1024, 4096, 1024, False), _sizes(8, 8, 1, True)
    (5, 4, 1)
    """
    if not factor:
        return min(COUNT.most_sizes, (most - least) // step + 1) if step and most >= least else 1
    count, size = 1, max(1, least)
    while step > 1 and (size := size * step) <= most:
        count += 1
    return count
