"""The printed "Serving Benchmark Result" of ``vllm bench serve`` and ``sglang.bench_serving``, anywhere in a longer log.

A line is a label, a colon and a value, whatever a launcher or a logger wrote before it. A table ends with a line of equals signs;
one that does not is cut off, and what it says until then is read.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from commtax.readers.benches.record import TABLE, Bench
from commtax.statement import Note

TITLE = "Serving Benchmark Result"
LABELS: Mapping[str, str] = TABLE["table"]
BEFORE = frozenset(TABLE["before"]["keys"])
ABOVE = ("oncurrency", "equest rate", "urstiness")  # of lines above a table that say its load
LONGEST_LINE = 400
NAMESPACE_SIGNS = 8000  # of a line with all options, in which the model shows
END = "=" * 40
_STATISTIC = re.compile(r"(mean|median|std|max|min|p[\d.]{1,6}) (ttft|tpot|itl|e2el|e2e latency) \(ms\)$")
_MODEL = re.compile(r"\bmodel(?:_id)?='([^']{1,200})'")
_RATE = re.compile(r"inf|[\d.]{1,20}")
Document = dict[str, object]
Build = Callable[[Document, tuple[Note, ...]], Bench]


def looks_like(text: str) -> bool:
    return TITLE in text


def parse(text: str, built: Build) -> Iterator[Bench]:
    """Each table as the document that the tool would have written, ``built`` into a result."""
    held: Document = {}
    inside = 0  # the line of the table's title
    for line_number, line in enumerate(text.splitlines(), 1):
        if TITLE in line:
            if inside:
                yield from _ended(held, built, inside)
                held = {}
            inside = line_number
        elif inside and END in line:
            yield from _ended(held, built, 0)
            held, inside = {}, 0
        elif len(line) <= LONGEST_LINE and (inside or any(word in line for word in ABOVE)):
            key, value = _pair(line)
            if key and (inside or key in BEFORE):
                held[key] = value
        elif not inside and "Namespace(" in line[:NAMESPACE_SIGNS] and (named := _MODEL.search(line[:NAMESPACE_SIGNS])):
            held["model"] = named[1]
    if inside:
        yield from _ended(held, built, inside)


def _pair(line: str) -> tuple[str, object]:
    """A key of a result with its value; "" where a line is none."""
    label, colon, value = line.rpartition(":")
    if not colon:
        return "", ""
    words, value = " ".join(label.lower().split()), value.strip()
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


def _ended(held: Document, built: Build, cut: int) -> Iterator[Bench]:
    """The table's result, where it has any figure."""
    if not any(isinstance(value, float) for key, value in held.items() if key not in BEFORE):
        return
    notes = (Note("partial", f"the table that begins on line {cut} is cut off: what it has until there is read"),) if cut else ()
    yield built(held, notes)
