"""The printed "Serving Benchmark Result" of ``vllm bench serve`` and ``sglang.bench_serving``, anywhere in a longer log.

A line is a label, a colon and a value, whatever a launcher or a logger wrote before it. A table ends with a line of equals signs;
one that does not is cut off, and what it says until then is read.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from commtax.readers.benches.record import TABLE, Bench
from commtax.readers.short_lines import each_line
from commtax.statement import Note

TITLE = "Serving Benchmark Result"
LABELS: Mapping[str, str] = TABLE["table"]
BEFORE = frozenset(TABLE["before"]["keys"])
FIRST_TIME = "Mean TTFT (ms):"
INSIDE = ("Benchmark duration (s):", FIRST_TIME)  # lines that only a table has
ABOVE = ("oncurrency", "equest rate", "urstiness", *INSIDE)  # of lines above a table that say its load
FRAME = "│┃|>*#\"', \t"  # what panes, quotes and lists put around a line
LONGEST_LINE = 400
NAMESPACE_SIGNS = 8000  # of a line with all options, in which the model shows
END = "=" * 40
_STATISTIC = re.compile(r"(mean|median|std|max|min|p[\d.]{1,6}) (ttft|tpot|itl|e2el|e2e latency) \(ms\)$")
_MODEL = re.compile(r"\bmodel(?:_id)?='([^']{1,200})'")
_RATE = re.compile(r"inf|[\d.]{1,20}")
Document = dict[str, object]
Build = Callable[[Document, tuple[Note, ...]], Bench]


def looks_like(text: str) -> bool:
    return TITLE in text or FIRST_TIME in text


def parse(text: str, built: Build) -> Iterator[Bench]:
    """Each table as the document that the tool would have written, ``built`` into a result."""
    held: Document = {}
    began, headless = 0, False  # the line on which a table begins
    for number, line in enumerate(each_line(text), 1):
        if TITLE in line:
            if began:
                yield from _ended(held, built, _cut(began, headless))
                held = {}
            began, headless = number, False
        elif began and END in line:
            yield from _ended(held, built, _cut(began, headless) if headless else None)
            held, began = {}, 0
        elif len(line) <= LONGEST_LINE and (began or any(word in line for word in ABOVE)):
            key, value = _pair(line)
            if not began and any(word in line for word in INSIDE):  # its beginning is missing
                began, headless = number, True
            if key and (began or key in BEFORE):
                held[key] = value
        elif not began and "Namespace(" in line[:NAMESPACE_SIGNS] and (named := _MODEL.search(line[:NAMESPACE_SIGNS])):
            held["model"] = named[1]
    if began:
        yield from _ended(held, built, _cut(began, headless))


def _cut(began: int, headless: bool) -> Note:
    missing = f"the table on line {began} has no title: what is above it is missing"
    return Note("partial", missing if headless else f"the table that begins on line {began} is cut off: what it has is read")


def _pair(line: str) -> tuple[str, object]:
    """A key of a result with its value; "" where a line is none."""
    label, colon, value = line.rpartition(":")
    if not colon:
        return "", ""
    words, value = " ".join(label.lower().split()).lstrip(FRAME), value.strip(FRAME)
    if statistic := _STATISTIC.search(words):
        metric = "e2el" if statistic[2].startswith("e2e") else statistic[2]
        return f"{statistic[1]}_{metric}_ms", _figure(value)
    key = LABELS.get(words) or next((LABELS[known] for known in LABELS if words.endswith(f" {known}")), "")
    if key in ("max_concurrency", "request_rate", "burstiness"):
        figure = _RATE.match(value)
        return key, (figure[0] if key == "request_rate" else _figure(figure[0])) if figure else None
    return key, value if key == "backend" else _figure(value)


def _figure(value: str) -> float | None:
    try:
        return float(value.replace(",", ""))
    except ValueError:
        return None


def _ended(held: Document, built: Build, cut: Note | None) -> Iterator[Bench]:
    """The table's result, where it has any figure."""
    if any(isinstance(value, float) for key, value in held.items() if key not in BEFORE):
        yield built(held, (cut,) if cut else ())
