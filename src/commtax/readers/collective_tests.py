"""A text of nccl-tests or rccl-tests: its runs, on which devices and hosts, and the average that it prints itself."""

import re
from dataclasses import dataclass

from commtax.readers import nccl_tests
from commtax.readers.nccl_tests import Run
from commtax.readers.short_lines import lines_with

LINE_CHARS = 1024
MOST_DEVICES = 1 << 16
LAST = 0.9  # of the largest size that was asked for: what is rounded down is still the last row
_WITHIN = re.compile(r"\[\d{1,9}\](?=\s{2})")  # a launcher's mark inside a row that was printed in pieces
_DEVICE = re.compile(
    r"#?\s{0,9}Rank\s{1,9}(\d{1,9})\s.{0,120}? on\s{1,40}(\S{0,120}) {0,9}device\s{1,9}\d{1,4} \[([^\]]{1,40})\] (.{1,80})"
)
_PID = re.compile(r"\bPid\s{1,20}(\d{1,12})")
_HEADER = re.compile(r"nThread:? \d{1,9} .{0,200}?minBytes:? (\d{1,18}) maxBytes:? (\d{1,18}) step: (\d{1,18})\((factor|bytes)\)")
_ENDED = re.compile(r"# Out of bounds values|# Avg bus bandwidth|test concluded")
MOST_SIZES = 100_000
_SAID = re.compile(
    r"device|Avg bus|-tests|nThread|Out of bounds|concluded|\d[ \t]++\d"
)  # one of which stands in every line that is read here
_ROW = re.compile(r"^[ \t]{0,40}\d{1,15}[ \t]{1,20}\d{1,15}[ \t]{1,20}(?:float|half|bfloat16|double|u?int\d{1,2})[ \t]", re.M)
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,20}:\s{0,9}(\d{1,15}(?:\.\d{1,15})?)")
_VERSION = re.compile(r"((?:nccl|rccl)-tests:? [vV]ersion \S{1,60})")


@dataclass(frozen=True, slots=True)
class CollectiveTests:
    """``average_Bps`` is the mean of all bus bandwidths of both columns, as printed; 0 where it is not."""

    runs: tuple[Run, ...]
    devices: tuple[str, ...] = ()  # names, each once
    hosts: tuple[str, ...] = ()
    ranks: int = 0  # that are listed, and those before them where the list's beginning is missing
    shared: tuple[tuple[int, ...], ...] = ()  # ranks that one GPU has together, by its host and bus id
    average_Bps: float = 0.0
    version: str = ""
    alone: int = 0  # processes of one table that all call themselves the same rank
    asked: int = 0  # sizes that its headers announce; 0 where there is none
    cut: bool = False  # a table that was begun has no last row and no end


def looks_like(text: str) -> bool:
    """Whether a text holds the table of a collective's test."""
    return ("busbw" in text and "algbw" in text) or ("nThread" in text and "nGpus" in text) or _ROW.search(text) is not None


def parse(text: str, name: str = "output") -> CollectiveTests:
    """All runs of a text, whatever printed it."""
    devices: dict[int, tuple[str, str]] = {}
    buses: dict[int, tuple[str, str]] = {}  # host and bus id of each rank
    average, version = 0.0, ""
    namesakes, alone = dict[str, set[tuple[str, str]]](), 0  # since the last row
    asked, last, ended, headed = 0, 0.0, True, 0.0
    cells, torn = 0, False  # of the row above, and whether the last has fewer
    for line in lines_with(_SAID, text, LINE_CHARS):
        if "device" in line and (found := _DEVICE.search(line)) and len(devices) < MOST_DEVICES:
            devices[int(found[1])] = (found[2], found[4].strip())
            buses[int(found[1])] = (found[2], found[3])
            pid = _PID.search(line)
            namesakes.setdefault(found[1], set()).add((found[2], pid[1] if pid else ""))
            alone = max(alone, len(namesakes[found[1]]))
        elif row := _ROW.match(line):
            namesakes.clear()
            last, torn, cells = float(row[0].split()[0]), len(line.split()) < cells, len(line.split())
        elif "nThread" in line and (found := _HEADER.search(line)):
            asked += 0 if alone > 1 else _sizes(int(found[1]), int(found[2]), int(found[3]), found[4] == "factor")
            headed, last, ended, cells, torn = float(found[2]), 0.0, False, 0, False
        elif "Avg bus" in line and (found := _AVERAGE.search(line)):
            average = float(found[1]) * 1e9
        elif not version and "-tests" in line and (found := _VERSION.search(line)):
            version = found[1]
        ended = ended or _ENDED.search(line) is not None
    runs = nccl_tests.parse_all(text, name, lambda line: _WITHIN.sub(" ", line))
    names, hosts = (tuple(dict.fromkeys(d[i] for d in devices.values() if d[i])) for i in (1, 0))
    return CollectiveTests(
        runs,
        _whole(names, text),
        hosts,
        min(max(devices, default=-1) + 1, MOST_DEVICES),
        _shared(buses),
        average,
        version,
        alone if alone > 1 else 0,
        asked,
        torn or (not ended and last < LAST * headed),
    )


def _whole(names: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Without a name that the end of the text cuts off.

    >>> _whole(("NVIDIA B200", "NVIDIA B2"), "device 1 [0x1b] NVIDIA B2")
    ('NVIDIA B200',)
    """
    return tuple(n for n in names if not (text.rstrip().endswith(n) and any(other != n and other.startswith(n) for other in names)))


def _shared(buses: dict[int, tuple[str, str]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that name one GPU.

    >>> _shared({0: ("a", "0000:02:00"), 1: ("a", "0000:02:00"), 2: ("b", "0000:02:00")})
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
        return min(MOST_SIZES, (most - least) // step + 1) if step and most >= least else 1
    count, size = 1, max(1, least)
    while step > 1 and (size := size * step) <= most:
        count += 1
    return count
