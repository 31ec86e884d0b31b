"""What ``nvidia-smi`` prints of links and clocks: ``nvlink`` counters, states and errors, and ``dmon``'s table over time."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from commtax.thresholds import counts
from commtax.units import GiB
from commtax.wordings import lines_with, patterns, short_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)
_COUNTED = re.compile(r"^(?:Data |Raw )?(Tx|Rx)\d?: (\d{1,20}) (KiB|MiB|GiB|B)$")
_UNITS = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": float(GiB)}
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Links:
    """What the GPUs of a host say of their links. Counters are bytes sent and received since they were reset."""

    names: Mapping[int, str]
    snapshots: tuple[Mapping[int, Mapping[int, Pair]], ...] = ()  # by GPU and link, as often as they were printed
    speeds: Mapping[int, Mapping[int, float]] = field(default_factory=dict)  # B/s of one direction; 0: inactive; none: all are
    errors: Mapping[int, Mapping[int, Mapping[str, int]]] = field(default_factory=dict)

    @property
    def carried(self) -> dict[int, dict[int, Pair]]:
        """Bytes of each link between the first and the last time that it was printed; since the reset where it was once."""
        if not self.snapshots:
            return {}
        first, last = self.snapshots[0], self.snapshots[-1]
        if len(self.snapshots) == 1 or self.was_reset:
            return {gpu: dict(links) for gpu, links in last.items()}
        both = {gpu: [(n, first[gpu][n], last[gpu][n]) for n in last[gpu] if n in first[gpu]] for gpu in last if gpu in first}
        return {gpu: {n: (after[0] - was[0], after[1] - was[1]) for n, was, after in links} for gpu, links in both.items()}

    @property
    def was_reset(self) -> bool:
        """Whether a counter went back between the first and the last time."""
        if len(self.snapshots) < 2:
            return False
        first, last = self.snapshots[0], self.snapshots[-1]
        both = [(first[g][n], last[g][n]) for g in last if g in first for n in last[g] if n in first[g]]
        return any(after[i] < before[i] for before, after in both for i in (0, 1))

    def and_then(self, later: "Links") -> "Links":
        """With what another file says of the same GPUs, later."""
        return Links(
            {**self.names, **later.names},
            (*self.snapshots, *later.snapshots),
            {**self.speeds, **later.speeds},
            {**self.errors, **later.errors},
        )


@dataclass(frozen=True, slots=True)
class Monitor:
    """``dmon``'s samples by GPU and column (pwr, gtemp, sm, mem, mclk, pclk, rxpci …), in the units that it prints."""

    samples: Mapping[int, Mapping[str, tuple[float, ...]]]
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for of_gpu in self.samples.values() for name in of_gpu))


def looks_like_links(text: str) -> bool:
    """Whether a GPU and a link of it stand in a text."""
    named = False
    for line in (found.replace("\t", " ").rstrip("\r") for found in lines_with(SAYS.named, text, COUNT.line_chars)):
        if line.lstrip(" ").startswith("GPU ") and SAYS.gpu.match(line):
            named = True
        elif named and (((found := SAYS.link.match(line)) and _is_known_wording(found[2])) or SAYS.none.search(line)):
            return True
    return False


def looks_like_monitor(text: str) -> bool:
    return any(_columns(line) for line in lines_with(SAYS.header, text, COUNT.line_chars))


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip("\r").replace("\t", " ") for line in short_lines(text, COUNT.line_chars))


def _is_known_wording(words: str) -> bool:
    return bool(words == "<inactive>" or _COUNTED.match(words) or SAYS.speed.match(words) or SAYS.errors.match(words))


def parse_links(text: str) -> Links:
    """All counters, speeds and errors; a link that is counted again begins another snapshot."""
    names: dict[int, str] = {}
    counted: list[dict[int, dict[int, dict[str, float]]]] = [{}]
    speeds: dict[int, dict[int, float]] = {}
    errors: dict[int, dict[int, dict[str, int]]] = {}
    gpu = -1
    for line in _lines(text):
        if (found := SAYS.gpu.match(line)) and len(names) < COUNT.most_gpus:
            gpu = int(found[1])
            names[gpu] = found[2]
        elif gpu >= 0 and SAYS.none.search(line):
            speeds.setdefault(gpu, {})
        elif gpu >= 0 and (found := SAYS.link.match(line)) and int(found[1]) < COUNT.most_links:
            link, words = int(found[1]), found[2]
            if bytes_of := _COUNTED.match(words):
                if bytes_of[1] in counted[-1].get(gpu, {}).get(link, {}) and len(counted) < COUNT.most_samples:
                    counted.append({})
                counted[-1].setdefault(gpu, {}).setdefault(link, {})[bytes_of[1]] = float(bytes_of[2]) * _UNITS[bytes_of[3]]
            elif words == "<inactive>" or SAYS.speed.match(words):
                speeds.setdefault(gpu, {})[link] = 0.0 if words == "<inactive>" else float(words.partition(" ")[0]) * 1e9
            elif wrong := SAYS.errors.match(words):
                errors.setdefault(gpu, {}).setdefault(link, {})[wrong[1]] = int(wrong[2])
    made = [{g: {n: (c.get("Tx", 0.0), c.get("Rx", 0.0)) for n, c in of.items()} for g, of in s.items()} for s in counted if s]
    return Links(names, tuple(made), speeds, errors)


def _columns(line: str) -> list[str]:
    """Names of a header of ``dmon``; none where a line is no header."""
    names = [word.lower() for word in line.lstrip()[1:].split()[: COUNT.cells]]
    return names if "gpu" in names[:3] and {"sm", "pclk", "pwr", "rxpci", "mclk", "fb", "pviol"} & set(names) else []


def parse_monitor(text: str) -> Monitor:
    """All rows of the table; ``-`` is no figure. Headers come again every few rows."""
    samples: dict[int, dict[str, list[float]]] = {}
    columns: list[str] = []
    units: dict[str, str] = {}
    rows = 0
    for line in map(str.lstrip, _lines(text)):
        if line.startswith("#"):
            if found := _columns(line):
                columns = found
            elif columns and "Idx" in line:
                units = dict(zip(columns, line[1:].split()[: COUNT.cells], strict=False))
            continue
        cells = line.partition("#")[0].split()[: COUNT.cells]  # people write remarks behind rows
        if len(cells) != len(columns) or not columns or rows >= COUNT.most_samples:
            continue
        row = dict(zip(columns, cells, strict=True))
        gpu = row.get("gpu", "")
        if not gpu.isdecimal() or len(gpu) > 9 or (int(gpu) not in samples and len(samples) >= COUNT.most_gpus):
            continue
        rows += 1
        for name, cell in row.items():
            if name not in ("gpu", "date", "time") and re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", cell):
                samples.setdefault(int(gpu), {}).setdefault(name, []).append(float(cell))
    return Monitor({gpu: {name: tuple(v) for name, v in of.items()} for gpu, of in samples.items()}, units)
