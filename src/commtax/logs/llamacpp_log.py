"""Logs of llama.cpp: how fast prompts were read and tokens written, and the memory that its buffers take."""

from dataclasses import dataclass, field

from commtax.evidence.short_lines import each_line
from commtax.evidence.thresholds import counts
from commtax.evidence.wordings import patterns

COUNT = counts(__name__)
_N = r"(\d{1,12}(?:\.\d{1,12})?)"
SAYS = patterns(__name__)
_SIGNS = (" tokens per second", " t/s", " buffer size = ")


@dataclass(slots=True)
class Timings:
    """Rates in tokens a second, one for each answer or line, and MiB by buffer and device."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    buffers: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def told(self) -> bool:
        return bool(self.reads or self.writes or self.buffers)


def looks_like(text: str) -> bool:
    """Whether a text holds such lines with a figure in them."""
    return any(sign in text for sign in _SIGNS) and bool(SAYS.own.search(text)) and parse(text).told


def parse(text: str) -> Timings:
    """All rates and buffers.

    >>> parse("slot print_timing: id  0 | task 0 | n_decoded =    100, tg =  49.32 t/s").writes
    [49.32]
    """
    found = Timings()
    for full in each_line(text):
        line = full[: COUNT.most_line]
        if not any(sign in line for sign in _SIGNS) or len(found.reads) + len(found.writes) >= COUNT.most_rows:
            continue
        if match := SAYS.timed.search(line):
            (found.reads if match[1].startswith("prompt") else found.writes).append(float(match[3]))
        elif match := SAYS.writes.search(line):
            found.writes.append(float(match[1]))
        elif match := SAYS.reads.search(line):
            found.reads.append(float(match[1]))
        elif match := SAYS.buffer.search(line):
            found.buffers.setdefault(match[2], {})[match[1]] = float(match[3])
    return found
