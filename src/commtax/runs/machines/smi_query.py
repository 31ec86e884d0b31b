"""``nvidia-smi -q``: what the driver says of each GPU, line by line, as often as it was printed; other outputs in its words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commtax.files import table
from commtax.runs.machines import smi_tables
from commtax.thresholds import counts
from commtax.wordings import patterns, short_lines

COUNT = counts(__name__)
INDENT = 4  # signs by which each level stands further in
SAYS = patterns(__name__)
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


def looks_like(text: str) -> bool:
    """Whether a GPU's heading stands in a text, with something below it; or lines of one whose heading is cut off; or a table."""
    found = SAYS.gpu.search(text)
    if found and SAYS.line.match(text[found.end() :].lstrip("\r\n")[: COUNT.line_chars].split("\n")[0]):
        return True
    known = sum(word in text for word in KNOWN) >= COUNT.least_words
    return (known and len({m[1] for m in SAYS.words.finditer(text)}) >= COUNT.least_words) or smi_tables.looks_like(text)


def parse(text: str) -> States:
    """All GPUs; a GPU that comes again was printed again.

    >>> seen = parse("GPU 00000000:18:00.0\\n    Clocks\\n        SM                                : 345 MHz\\n")
    >>> seen.last(0)["Clocks/SM"]
    '345 MHz'
    """
    samples: dict[str, list[dict[str, str]]] = {}
    for name, said in _listed_gpus(text) if SAYS.gpu.search(text) or SAYS.words.search(text) else smi_tables.samples(text):
        if name in samples or len(samples) < COUNT.most_gpus:
            mine = samples.setdefault(name, [])
            mine += [said] if len(mine) < COUNT.most_samples else []
    attached = SAYS.attached.search(text)
    return States({at: tuple(mine) for at, mine in enumerate(samples.values()) if mine}, int(attached[1]) if attached else 0)


def _listed_gpus(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """GPUs of ``-q``: lines under their headings; those above the first heading are the rest of one that is cut off."""
    gpus: list[tuple[str, dict[str, str]]] = [("", {})]
    above: list[str] = []
    # An excerpt may be moved to the left: known words stand four signs in.
    shift = INDENT if any(len(m[0]) == len(m[0].lstrip(" ")) for m in SAYS.words.finditer(text)) else 0
    for line in short_lines(text, COUNT.line_chars):
        if found := SAYS.gpu.match(line):
            gpus.append((found[1], {"PCI/Bus Id": found[1]}))
            above, shift = [], 0
        elif found := SAYS.line.match(" " * shift + line.rstrip("\r")):
            above = [*above[: len(found[1]) // INDENT - 1], found[2]]
            if found[3] is not None and len(gpus[-1][1]) < COUNT.most_lines:
                gpus[-1][1]["/".join(above)] = found[3].strip()
    # Lines without a heading may be of the driver, and not of a GPU.
    return ((name, said) for name, said in gpus if name or any(f"/{word}/" in f"/{path}/" for path in said for word in KNOWN))


def figure(said: Mapping[str, str], *paths: str) -> float | None:
    """The first number under one of these names; None where there is none, or N/A.

    >>> figure({"Clocks/SM": "345 MHz"}, "Clocks/Graphics", "Clocks/SM")
    345.0
    """
    for path in paths:
        if found := SAYS.number.match(said.get(path, "")):
            return float(found[0])
    return None


def clock_reasons(said: Mapping[str, str]) -> list[str]:
    """The reasons that hold a GPU's clocks back, as the driver names them.

    >>> clock_reasons({"Clocks Event Reasons/Idle": "Not Active", "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown": "Active"})
    ['HW Thermal Slowdown']
    """
    reasons = (path for path in said if path.startswith(("Clocks Event Reasons/", "Clocks Throttle Reasons/")))
    return [path.rpartition("/")[2] for path in reasons if said[path] == "Active"]
