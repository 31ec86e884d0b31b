"""Logs of llama.cpp: how fast prompts were read and tokens written, and the memory that its buffers take."""

import re
from dataclasses import dataclass, field

from commtax.evidence.short_lines import each_line
from commtax.evidence.thresholds import counts

COUNT = counts(__name__)
_N = r"(\d{1,12}(?:\.\d{1,12})?)"
_TIMED = re.compile(
    rf"(prompt eval|(?<!prompt )\beval) time = {{1,20}}{_N} ms / {{1,20}}\d{{1,12}} \w{{1,12}} .{{0,60}}?{_N} tokens per second"
)
_WRITES = re.compile(rf"\bn_decoded = {{1,20}}\d{{1,12}},.{{0,60}}?\btg = {{1,20}}{_N} t/s")
_READS = re.compile(rf"prompt processing.{{0,160}}?\b{_N} (?:tokens per second|t/s)")
_BUFFER = re.compile(rf"(\S{{1,40}}) {{1,20}}(model|KV|compute) buffer size = {{1,20}}{_N} MiB")
_SIGNS = (" tokens per second", " t/s", " buffer size = ")
_OWN = re.compile(r"\b(?:llama_\w{2,40}|slot \w{4,30}|load_tensors|llm_load_\w{2,30}|srv {1,9}\w{3,30}):|print_timing")


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
    return any(sign in text for sign in _SIGNS) and bool(_OWN.search(text)) and parse(text).told


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
        if match := _TIMED.search(line):
            (found.reads if match[1].startswith("prompt") else found.writes).append(float(match[3]))
        elif match := _WRITES.search(line):
            found.writes.append(float(match[1]))
        elif match := _READS.search(line):
            found.reads.append(float(match[1]))
        elif match := _BUFFER.search(line):
            found.buffers.setdefault(match[2], {})[match[1]] = float(match[3])
    return found
