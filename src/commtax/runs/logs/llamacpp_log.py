"""Logs of llama.cpp: how fast prompts were read and tokens written, and the memory that its buffers take.

Its kernels and formats are not modelled, so that nothing of a claim is judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from commtax.files import MiB
from commtax.runs.evidence.finding import Claim, Finding, Section
from commtax.runs.logs.startup_audit import range_in_words
from commtax.statement import Note
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)
BUFFERS = {"model": "memory of the weights", "KV": "memory of the KV cache", "compute": "memory of computations"}
_SIGNS = (" tokens per second", " t/s", " buffer size = ")


@dataclass(slots=True)
class Timings:
    """Rates in tokens a second, one for each answer or line, and MiB by buffer and device."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    buffers: dict[str, dict[str, float]] = field(default_factory=dict)


def looks_like(text: str) -> bool:
    """Whether a text holds such lines with a figure in them."""
    return any(sign in text for sign in _SIGNS) and bool(SAYS.own.search(text)) and parse(text) != Timings()


def parse(text: str) -> Timings:
    """All rates and buffers.

    >>> parse("slot print_timing: id  0 | task 0 | n_decoded =    100, tg =  49.32 t/s").writes
    [49.32]
    """
    found = Timings()
    for full in split_lines(text):
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


def audit_timings(timings: Timings, claim: Claim | None, name: str = "log") -> Section:
    """Medians of its rates, and its buffers over all devices."""
    notes = [Note("start", "llama.cpp served" if timings.writes else "llama.cpp, which wrote no token in this text")]
    if claim:
        notes.append(Note("claim", "llama.cpp's kernels and formats are not modelled: nothing of the claim is judged"))
    return Section("log", (name,), tuple(_told(timings)), tuple(notes), facts={"engine": "llama.cpp"})


def _told(timings: Timings) -> Iterator[Finding]:
    for title, rates in (("prompt tokens/s", timings.reads), ("generated tokens/s", timings.writes)):
        if rates:
            yield Finding(title, None, median(rates), reason=range_in_words(rates), told=True)
    for kind, devices in timings.buffers.items():
        yield Finding(BUFFERS[kind], None, sum(devices.values()) * MiB, "bytes", reason=f"on {', '.join(devices)}"[:200], told=True)
