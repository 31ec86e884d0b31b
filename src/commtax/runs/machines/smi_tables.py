"""States of GPUs in other forms than ``nvidia-smi -q``: its table, ``--query-gpu`` and XML; ``amd-smi`` and ``rocm-smi``.

Each gives what ``-q`` would have said, under the same names, so that one judge serves all of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from commtax.files import table
from commtax.thresholds import counts
from commtax.wordings import patterns, short_lines

COUNT = counts(__name__)
_FIELDS = table("runs/machines/smi_fields.toml")
Sample = tuple[str, dict[str, str]]  # a GPU as it is called, and what is said of it
LOST = "Readings/Lost"  # where the driver prints ERR! instead of a figure
SAYS = patterns(__name__)


def looks_like(text: str) -> bool:
    return next(samples(text), None) is not None


def samples(text: str) -> Iterator[Sample]:
    """Every GPU of every table, as often as it was printed."""
    for signs, reader in READERS:
        if any(sign in text for sign in signs):
            yield from reader(text)


def _available_fields(found: Mapping[str, str | None], unit: str = "") -> dict[str, str]:
    """What was printed, but for what is not available; memory with its unit, where figures have none."""
    told = {path: words for path, words in found.items() if words and words not in ("N/A", "Off", "[N/A]", "[Not Supported]")}
    return {path: f"{words} {unit}" if unit and path.startswith("FB") else words for path, words in told.items()}


def _of_two_lines(text: str, kind: str) -> Iterator[tuple[re.Match[str], re.Match[str] | None]]:
    """The lines of each GPU in a table that has two; of one that is cut off the first alone."""
    above, below = getattr(SAYS, kind), getattr(SAYS, f"{kind}_used")
    first: re.Match[str] | None = None
    for line in short_lines(text, COUNT.line_chars):
        if found := above.match(line):
            if first:
                yield first, None
            first = found
        elif first and (found := below.match(line)):
            yield first, found
            first = None
    if first:
        yield first, None


def _boxes(text: str) -> Iterator[Sample]:
    """The table of nvidia-smi."""
    for first, second in _of_two_lines(text, "box"):
        said = dict(zip(_FIELDS["box"], first.groups()[1:], strict=True))
        said |= dict(zip(_FIELDS["box_used"], second.groups(), strict=True)) if second else {}
        lost = {LOST: "Yes"} if "ERR!" in said.values() else {}
        yield first[1], _available_fields({path: words for path, words in said.items() if words != "ERR!"} | lost, "MiB")


def _amd_boxes(text: str) -> Iterator[Sample]:
    """The table of amd-smi."""
    for first, second in _of_two_lines(text, "amd"):
        if second:
            said = dict(zip(_FIELDS["amd"], first.groups(), strict=True))
            said |= dict(zip(_FIELDS["amd_used"], second.groups()[1:], strict=True))
            yield second[1], _available_fields(said | {"Product Name": said["Product Name"].lstrip(".")}, "MB")


def _concise(text: str) -> Iterator[Sample]:
    """The table of rocm-smi, whose columns differ between versions: its figures by their units."""
    headed = False
    for line in short_lines(text, COUNT.line_chars):
        headed = headed or "GPU%" in line
        if not headed or not (row := SAYS.concise_row.match(line)):
            continue
        heat = re.search(r"(\d{1,4}(?:\.\d)?) ?°?[cC]\b", line)
        watts, clocks = re.findall(r"(\d{1,6}(?:\.\d{1,6})?)W\b", line), re.findall(r"(\d{1,6})Mhz", line, re.I)
        shares = re.findall(r"(\d{1,3})%", line)
        said = {"Temperature/GPU Current Temp": heat[1] if heat else "", "Utilization/Gpu": shares[-1] if shares else ""}
        said |= {"Clocks/SM": clocks[0] if clocks else "", "GPU Power Readings/Power Draw": watts[0] if watts else ""}
        said |= {"GPU Power Readings/Current Power Limit": watts[1] if len(watts) > 1 else ""}
        yield row[1], _available_fields(said)


def _monitor(text: str) -> Iterator[Sample]:
    """amd-smi monitor: a row a GPU, figures with their units behind them."""
    names: list[str] = []
    for line in short_lines(text, COUNT.line_chars):
        if SAYS.monitor.match(line):
            names = line.split()
        elif names and len(figures := SAYS.figure.findall(line)) == len(names):
            row = dict(zip(names, figures, strict=True))
            said = {path: row[name] for name, path in _FIELDS["monitor"].items() if name in row}
            yield row["GPU"], _available_fields(said, "MB")


def _query(text: str) -> Iterator[Sample]:
    """``--query-gpu=… --format=csv``: fields by their names; a row without an index is that GPU's whose turn it is."""
    fields: list[str] = []
    count = 0
    for line in short_lines(text, COUNT.line_chars):
        cells = [cell.strip() for cell in line.lstrip("# ").split(",")]
        if SAYS.query.match(line) and "--" not in line and all(re.fullmatch(r"[\w.]+(?: \[[^]]{1,9}\])?", cell) for cell in cells):
            fields, count = [cell.split()[0].lower() for cell in cells], 0
        elif fields and len(cells) == len(fields):
            row = dict(zip(fields, cells, strict=True))
            turn = "0" if "timestamp" in row else str(count)
            said = {path: row[name] for name, path in _FIELDS["query"].items() if name in row}
            for name, words in row.items():
                kind, _, reason = name.rpartition(".")
                if kind in ("clocks_event_reasons", "clocks_throttle_reasons") and reason in _FIELDS["reasons"]:
                    said[f"Clocks Event Reasons/{_FIELDS['reasons'][reason]}"] = words
            query_fields = _available_fields(said)
            yield next((row[key] for key in ("index", "uuid", "gpu_uuid", "pci.bus_id") if key in row), turn), query_fields
            count += 1


def _xml(text: str) -> Iterator[Sample]:
    """``nvidia-smi -q -x``: elements by the last two names of their paths."""
    above: list[str] = []
    said: dict[str, str] = {}
    number = -1
    for match in SAYS.xml.finditer(text):
        closes, name, words = match[1], match[2], match[3].strip()
        if closes:
            if name == "gpu" and number >= 0:
                yield str(number), _available_fields(said)
            above = above[: above.index(name)] if name in above else above
            continue
        if name == "gpu" and "id=" in match[0]:
            number, said, above = number + 1, {}, []
        if words:
            said |= _element(above[-1] if above else "", name, words)
        above = [*above[-16:], name]


def _element(above: str, name: str, words: str) -> dict[str, str]:
    reason = re.sub(r"^clocks_(?:event|throttle)_reason_", "", name)
    if reason != name and reason in _FIELDS["reasons"]:
        return {f"Clocks Event Reasons/{_FIELDS['reasons'][reason]}": words}
    path = _FIELDS["xml"].get(f"{above}/{name}") or _FIELDS["xml"].get(name)
    return {path: words} if path else {}


READERS: tuple[tuple[tuple[str, ...], Callable[[str], Iterator[Sample]]], ...] = (
    (("MiB /",), _boxes),
    ((" W |",), _amd_boxes),
    (("GPU%",), _concise),
    (("GPU_T", "GFX_", "VRAM_"), _monitor),
    (("utilization.gpu", "memory.used", "temperature.gpu", "power.draw", "clocks_", "clocks."), _query),
    (("<nvidia_smi_log", "<gpu id="), _xml),
)
"""By words of which one stands in each such text, its reader."""
