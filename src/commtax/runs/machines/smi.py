"""What ``nvidia-smi`` prints: links and their counters, ``dmon``'s table over time, and the state of each GPU (``-q``).

States in other forms are read in the words of ``-q``: its table, ``--query-gpu`` and XML; ``amd-smi`` and ``rocm-smi``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from commtax.files import table
from commtax.thresholds import counts
from commtax.units import GiB
from commtax.wordings import lines_with, patterns, short_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)

_FIELDS = table("runs/machines/smi_fields.toml")
Sample = tuple[str, dict[str, str]]  # a GPU's name, and its fields
LOST = "Readings/Lost"  # where the driver prints ERR! instead of a figure


def _other_samples(text: str) -> Iterator[Sample]:
    """Yield every GPU of every table, as often as it was printed."""
    for signs, reader in READERS:
        if any(sign in text for sign in signs):
            yield from reader(text)


def _available_fields(printed: Mapping[str, str | None], unit: str = "") -> dict[str, str]:
    """Keep the fields that are available, and add the unit of memory where figures have none."""
    missing = ("N/A", "Off", "[N/A]", "[Not Supported]")
    available = {path: words for path, words in printed.items() if words and words not in missing}
    return {path: f"{words} {unit}" if unit and path.startswith("FB") else words for path, words in available.items()}


def _of_two_lines(text: str, kind: str) -> Iterator[tuple[re.Match[str], re.Match[str] | None]]:
    """Yield the two lines of each GPU in a table, and the first alone where the second is cut off."""
    above, below = getattr(SAYS, kind), getattr(SAYS, f"{kind}_used")
    first: re.Match[str] | None = None
    for line in short_lines(text, COUNT.line_chars):
        if match := above.match(line):
            if first:
                yield first, None
            first = match
        elif first and (match := below.match(line)):
            yield first, match
            first = None
    if first:
        yield first, None


def _two_line_table(text: str, kind: str, unit: str) -> Iterator[Sample]:
    """Read a table with two lines a GPU: of nvidia-smi, or of amd-smi, whose second line has the GPU's number."""
    for first, second in _of_two_lines(text, kind):
        if "gpu" not in _FIELDS[kind] and not second:
            continue
        fields = dict(zip(_FIELDS[kind], first.groups(), strict=True))
        fields |= dict(zip(_FIELDS[f"{kind}_used"], second.groups(), strict=True)) if second else {}
        lost = {LOST: "Yes"} if "ERR!" in fields.values() else {}
        there = {path: words for path, words in fields.items() if words != "ERR!"} | lost
        yield there.pop("gpu"), _available_fields(there | {"Product Name": there["Product Name"].lstrip(".")}, unit)


def _concise(text: str) -> Iterator[Sample]:
    """Read the table of rocm-smi by the units of its figures, since its columns differ between versions."""
    headed = False
    for line in short_lines(text, COUNT.line_chars):
        headed = headed or "GPU%" in line
        if not headed or not (row := SAYS.concise_row.match(line)):
            continue
        heat = re.findall(r"(\d{1,4}(?:\.\d)?) ?°?[cC]\b", line)
        watts, clocks = re.findall(r"(\d{1,6}(?:\.\d{1,6})?)W\b", line), re.findall(r"(\d{1,6})Mhz", line, re.I)
        figures = {
            "Temperature/GPU Current Temp": heat[:1],
            "Utilization/Gpu": re.findall(r"(\d{1,3})%", line)[-1:],
            "Clocks/SM": clocks[:1],
            "GPU Power Readings/Power Draw": watts[:1],
            "GPU Power Readings/Current Power Limit": watts[1:2],
        }
        yield row[1], _available_fields({path: "".join(words) for path, words in figures.items()})


def _monitor(text: str) -> Iterator[Sample]:
    """Read ``amd-smi monitor``: one row a GPU, each figure followed by its unit."""
    names: list[str] = []
    for line in short_lines(text, COUNT.line_chars):
        if SAYS.monitor.match(line):
            names = line.split()
        elif names and len(figures := SAYS.figure.findall(line)) == len(names):
            row = dict(zip(names, figures, strict=True))
            readings = {path: row[name] for name, path in _FIELDS["monitor"].items() if name in row}
            yield row["GPU"], _available_fields(readings, "MB")


def _query(text: str) -> Iterator[Sample]:
    """Read ``--query-gpu=… --format=csv`` by field names, taking GPUs in turn where rows have no index."""
    fields: list[str] = []
    count = 0
    for line in short_lines(text, COUNT.line_chars):
        cells = [cell.strip() for cell in line.lstrip("# ").split(",")]
        if SAYS.query.match(line) and "--" not in line and all(re.fullmatch(r"[\w.]+(?: \[[^]]{1,9}\])?", cell) for cell in cells):
            fields, count = [cell.split()[0].lower() for cell in cells], 0
        elif fields and len(cells) == len(fields):
            row = dict(zip(fields, cells, strict=True))
            turn = "0" if "timestamp" in row else str(count)
            readings = {path: row[name] for name, path in _FIELDS["query"].items() if name in row}
            for name, words in row.items():
                kind, _, reason = name.rpartition(".")
                if kind in ("clocks_event_reasons", "clocks_throttle_reasons") and reason in _FIELDS["reasons"]:
                    readings[f"Clocks Event Reasons/{_FIELDS['reasons'][reason]}"] = words
            query_fields = _available_fields(readings)
            yield next((row[key] for key in ("index", "uuid", "gpu_uuid", "pci.bus_id") if key in row), turn), query_fields
            count += 1


def _xml(text: str) -> Iterator[Sample]:
    """Read ``nvidia-smi -q -x``: elements by the last two names of their paths."""
    above: list[str] = []
    fields: dict[str, str] = {}
    number = -1
    for match in SAYS.xml.finditer(text):
        closes, name, words = match[1], match[2], match[3].strip()
        if closes:
            if name == "gpu" and number >= 0:
                yield str(number), _available_fields(fields)
            above = above[: above.index(name)] if name in above else above
            continue
        if name == "gpu" and "id=" in match[0]:
            number, fields, above = number + 1, {}, []
        if words:
            reason = re.sub(r"^clocks_(?:event|throttle)_reason_", "", name)
            path = _FIELDS["xml"].get(f"{above[-1] if above else ''}/{name}") or _FIELDS["xml"].get(name)
            if reason != name and reason in _FIELDS["reasons"]:
                path = f"Clocks Event Reasons/{_FIELDS['reasons'][reason]}"
            fields |= {path: words} if path else {}
        above = [*above[-16:], name]


READERS: tuple[tuple[tuple[str, ...], Callable[[str], Iterator[Sample]]], ...] = (
    (("MiB /",), partial(_two_line_table, kind="box", unit="MiB")),
    ((" W |",), partial(_two_line_table, kind="amd", unit="MB")),
    (("GPU%",), _concise),
    (("GPU_T", "GFX_", "VRAM_"), _monitor),
    (("utilization.gpu", "memory.used", "temperature.gpu", "power.draw", "clocks_", "clocks."), _query),
    (("<nvidia_smi_log", "<gpu id="), _xml),
)
"""By words of which one stands in each such text, its reader."""


INDENT = 4  # signs by which each level stands further in
KNOWN: Sequence[str] = table("runs/machines/smi_fields.toml")["known"]
"""Lines of each GPU in this output, and hardly in any other."""


@dataclass(frozen=True, slots=True)
class States:
    """By GPU, in the order of the output: what was printed, each line under the names of those above it (``Clocks/SM``)."""

    samples: Mapping[int, tuple[Mapping[str, str], ...]]
    attached: int = 0  # GPUs that the head of the output counts; 0 where it is missing

    def last(self, gpu: int) -> Mapping[str, str]:
        return self.samples[gpu][-1]

    def name(self, gpu: int) -> str:
        return self.last(gpu).get("Product Name", "")


def looks_like_states(text: str) -> bool:
    """Return whether a text holds a GPU's heading with lines below it, lines whose heading is cut off, or a table."""
    heading = SAYS.state_gpu.search(text)
    if heading and SAYS.line.match(text[heading.end() :].lstrip("\r\n")[: COUNT.state_chars].split("\n")[0]):
        return True
    enough = sum(word in text for word in KNOWN) >= COUNT.least_words
    worded = enough and len({m[1] for m in SAYS.words.finditer(text)}) >= COUNT.least_words
    return worded or next(iter(_other_samples(text)), None) is not None


def parse_states(text: str) -> States:
    """Read the states of all GPUs, a GPU that comes again as another sample.

    >>> seen = parse_states("GPU 00000000:18:00.0\\n    Clocks\\n        SM                                : 345 MHz\\n")
    >>> seen.last(0)["Clocks/SM"]
    '345 MHz'
    """
    samples: dict[str, list[dict[str, str]]] = {}
    for name, fields in _listed_gpus(text) if SAYS.state_gpu.search(text) or SAYS.words.search(text) else _other_samples(text):
        if name in samples or len(samples) < COUNT.most_gpus:
            mine = samples.setdefault(name, [])
            mine += [fields] if len(mine) < COUNT.most_state_samples else []
    attached = SAYS.attached.search(text)
    return States({at: tuple(mine) for at, mine in enumerate(samples.values()) if mine}, int(attached[1]) if attached else 0)


def _listed_gpus(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the GPUs of ``-q``. Lines above the first heading belong to a GPU whose heading is cut off."""
    gpus: list[tuple[str, dict[str, str]]] = [("", {})]
    above: list[str] = []
    # An excerpt may be moved to the left: known words stand four signs in.
    shift = INDENT if any(len(m[0]) == len(m[0].lstrip(" ")) for m in SAYS.words.finditer(text)) else 0
    for line in short_lines(text, COUNT.state_chars):
        if match := SAYS.state_gpu.match(line):
            gpus.append((match[1], {"PCI/Bus Id": match[1]}))
            above, shift = [], 0
        elif match := SAYS.line.match(" " * shift + line.rstrip("\r")):
            above = [*above[: len(match[1]) // INDENT - 1], match[2]]
            if match[3] is not None and len(gpus[-1][1]) < COUNT.most_lines:
                gpus[-1][1]["/".join(above)] = match[3].strip()
    # Lines without a heading may be of the driver, and not of a GPU.
    return (gpu for gpu in gpus if gpu[0] or any(f"/{word}/" in f"/{path}/" for path in gpu[1] for word in KNOWN))


def figure(fields: Mapping[str, str], *paths: str) -> float | None:
    """Return the first number under one of these names, or None where there is none or N/A.

    >>> figure({"Clocks/SM": "345 MHz"}, "Clocks/Graphics", "Clocks/SM")
    345.0
    """
    for path in paths:
        if match := SAYS.number.match(fields.get(path, "")):
            return float(match[0])
    return None


def clock_reasons(fields: Mapping[str, str]) -> list[str]:
    """List the reasons for reduced clocks, as the driver names them.

    >>> clock_reasons({"Clocks Event Reasons/Idle": "Not Active", "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown": "Active"})
    ['HW Thermal Slowdown']
    """
    reasons = (path for path in fields if path.startswith(("Clocks Event Reasons/", "Clocks Throttle Reasons/")))
    return [path.rpartition("/")[2] for path in reasons if fields[path] == "Active"]


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
    def _grown(self) -> dict[int, dict[int, Pair]]:
        """By how much the counters of each link differ between the first and the last output."""
        first, last = self.snapshots[0], self.snapshots[-1]
        links = {gpu: {n: (first[gpu][n], last[gpu][n]) for n in last[gpu] if n in first[gpu]} for gpu in last if gpu in first}
        return {gpu: {n: (b[0] - a[0], b[1] - a[1]) for n, (a, b) in of.items()} for gpu, of in links.items()}

    @property
    def carried(self) -> dict[int, dict[int, Pair]]:
        """Bytes of each link between the first and the last output, or since the reset where there is one output."""
        if len(self.snapshots) > 1 and not self.was_reset:
            return self._grown
        return {gpu: dict(links) for snapshot in self.snapshots[-1:] for gpu, links in snapshot.items()}

    @property
    def was_reset(self) -> bool:
        """Whether a counter went back between the first and the last time."""
        return len(self.snapshots) > 1 and any(min(pair) < 0 for of in self._grown.values() for pair in of.values())

    def and_then(self, later: "Links") -> "Links":
        """Return the links with what a later file reports of the same GPUs."""
        names, speeds, errors = {**self.names, **later.names}, {**self.speeds, **later.speeds}, {**self.errors, **later.errors}
        return Links(names, (*self.snapshots, *later.snapshots), speeds, errors)


@dataclass(frozen=True, slots=True)
class Monitor:
    """``dmon``'s samples by GPU and column (pwr, gtemp, sm, mem, mclk, pclk, rxpci …), in the units that it prints."""

    samples: Mapping[int, Mapping[str, tuple[float, ...]]]
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for of_gpu in self.samples.values() for name in of_gpu))


def looks_like_links(text: str) -> bool:
    """Return whether a text holds a GPU and one of its links."""
    named = False
    for line in (row.replace("\t", " ").rstrip("\r") for row in lines_with(SAYS.named, text, COUNT.line_chars)):
        if line.lstrip(" ").startswith("GPU ") and SAYS.gpu.match(line):
            named = True
        elif named and SAYS.none.search(line):
            return True
        elif named and (match := SAYS.link.match(line)):
            words = match[2]
            if words == "<inactive>" or _COUNTED.match(words) or SAYS.speed.match(words) or SAYS.errors.match(words):
                return True
    return False


def looks_like_monitor(text: str) -> bool:
    return any(_columns(line) for line in lines_with(SAYS.header, text, COUNT.line_chars))


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip("\r").replace("\t", " ") for line in short_lines(text, COUNT.line_chars))


def parse_links(text: str) -> Links:
    """Read all counters, speeds and errors, beginning another snapshot where a link is counted again."""
    names: dict[int, str] = {}
    counted: list[dict[int, dict[int, dict[str, float]]]] = [{}]
    speeds: dict[int, dict[int, float]] = {}
    errors: dict[int, dict[int, dict[str, int]]] = {}
    gpu = -1
    for line in _lines(text):
        if (match := SAYS.gpu.match(line)) and len(names) < COUNT.most_gpus:
            gpu = int(match[1])
            names[gpu] = match[2]
        elif gpu >= 0 and SAYS.none.search(line):
            speeds.setdefault(gpu, {})
        elif gpu >= 0 and (match := SAYS.link.match(line)) and int(match[1]) < COUNT.most_links:
            link, words = int(match[1]), match[2]
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
    """Return the column names of a header of ``dmon``, or [] where a line is no header."""
    names = [word.lower() for word in line.lstrip()[1:].split()[: COUNT.cells]]
    return names if "gpu" in names[:3] and {"sm", "pclk", "pwr", "rxpci", "mclk", "fb", "pviol"} & set(names) else []


def parse_monitor(text: str) -> Monitor:
    """Read all rows of the table. ``-`` is no figure, and headers come again every few rows."""
    samples: dict[int, dict[str, list[float]]] = {}
    columns: list[str] = []
    units: dict[str, str] = {}
    rows = 0
    for line in map(str.lstrip, _lines(text)):
        if line.startswith("#"):
            if header := _columns(line):
                columns = header
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
