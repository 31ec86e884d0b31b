"""``nvidia-smi -q``: what the driver says of each GPU, line by line, as often as it was printed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from commtax.readers.short_lines import short_lines

LINE_CHARS = 400
MOST_GPUS, MOST_SAMPLES, MOST_LINES = 1024, 20_000, 1000
INDENT = 4  # signs by which each level stands further in
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s{0,9}$", re.M)
_ATTACHED = re.compile(r"^Attached GPUs\s{1,80}: (\d{1,4})\s{0,9}$", re.M)
_LINE = re.compile(r"^( {4,40})(\S.{0,120}?)(?:\s{0,80}: (.{0,200}))?\s{0,40}$")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")


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
    """Whether a GPU's heading stands in a text, with something below it."""
    return (found := _GPU.search(text)) is not None and _LINE.match(
        text[found.end() :].lstrip("\r\n")[:LINE_CHARS].split("\n")[0]
    ) is not None


def parse(text: str) -> States:
    """All GPUs; a GPU that comes again was printed again.

    >>> seen = parse("GPU 00000000:18:00.0\\n    Clocks\\n        SM                                : 345 MHz\\n")
    >>> seen.last(0)
    {'Clocks/SM': '345 MHz'}
    """
    samples: dict[str, list[dict[str, str]]] = {}
    now: dict[str, str] | None = None
    above: list[str] = []
    for line in short_lines(text, LINE_CHARS):
        if found := _GPU.match(line):
            mine = samples.setdefault(found[1], []) if found[1] in samples or len(samples) < MOST_GPUS else []
            now, above = {}, []
            mine += [now] if len(mine) < MOST_SAMPLES else []
        elif now is not None and (found := _LINE.match(line.rstrip("\r"))):
            above = [*above[: len(found[1]) // INDENT - 1], found[2]]
            if found[3] is not None and len(now) < MOST_LINES:
                now["/".join(above)] = found[3].strip()
    attached = _ATTACHED.search(text)
    return States({at: tuple(mine) for at, mine in enumerate(samples.values()) if mine}, int(attached[1]) if attached else 0)


def figure(said: Mapping[str, str], *paths: str) -> float | None:
    """The first number under one of these names; None where there is none, or N/A.

    >>> figure({"Clocks/SM": "345 MHz"}, "Clocks/Graphics", "Clocks/SM")
    345.0
    """
    for path in paths:
        if found := _NUMBER.match(said.get(path, "")):
            return float(found[0])
    return None


def active(said: Mapping[str, str]) -> list[str]:
    """The reasons that hold a GPU's clocks back, as the driver names them.

    >>> active({"Clocks Event Reasons/Idle": "Not Active", "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown": "Active"})
    ['HW Thermal Slowdown']
    """
    return [
        path.rpartition("/")[2]
        for path, value in said.items()
        if path.startswith(("Clocks Event Reasons/", "Clocks Throttle Reasons/")) and value == "Active"
    ]
