"""MLPerf LoadGen's ``mlperf_log_summary.txt``: the scenario is the load, latencies are in nanoseconds.

Offline sends all samples at once; Server at a rate, by chance; SingleStream one after the other. Lengths of prompts are in no line.
"""

import math
import re
from collections.abc import Iterator

from commtax.evidence.short_lines import each_line
from commtax.evidence.thresholds import counts
from commtax.results.bench_record import Bench, number, result
from commtax.statement import Note

TITLE = "MLPerf Results Summary"
COUNT = counts(__name__)
NS = 1e-9
FIRST = "SUT name : "  # the line below the title
_PAIR = re.compile(  # of a summary, behind whatever a launcher or a logger writes before it
    r"(?<![\w.])(SUT name|Scenario|Mode|Result is|target_qps|samples_per_query|\w[\w ]{2,60}? satisfied"
    r"|(?:Completed |Scheduled )?(?:samples|tokens) per second(?: \(inferred\))?"
    r"|(?:Mean|[\d.]{1,8} percentile) [\w ]{3,60}? \(ns\))\s*+:\s*+(\S.{0,80})$",
    re.I,
)
_LATENCY = re.compile(
    r"(mean|[\d.]{1,8} percentile) (first token latency|time (?:per|to) output token|latency)(?: latency)? \(ns\)"
)
_METRICS = {"first token latency": "ttft", "latency": "e2el"}  # else: of an output token
_SAMPLES = ("completed samples per second", "samples per second")
_TOKENS = ("completed tokens per second", "tokens per second", "tokens per second (inferred)")
_SCENARIOS = ("offline", "server", "interactive", "singlestream", "multistream")


def looks_like(text: str) -> bool:
    return TITLE in text or (FIRST in text and "Result is : " in text)


def parse(text: str) -> Iterator[Bench]:
    """A result for each summary of a text."""
    held: dict[str, str] | None = None
    for line in each_line(text):
        if TITLE in line or (FIRST in line and (held is None or "sut name" in held)):
            if held:
                yield _one(held)
            held = {}
        if held is not None and len(line) <= COUNT.longest_line and (pair := _PAIR.search(line)):
            held.setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    if held:
        yield _one(held)


def _one(held: dict[str, str]) -> Bench:
    stats: dict[str, dict[str, float]] = {}
    for label, value in held.items():
        match, seconds = _LATENCY.fullmatch(label), number(value)
        if match and seconds:  # samples without tokens of their own have 0 here
            stats.setdefault(_METRICS.get(match[2], "tpot"), {})[_statistic(match[1])] = seconds * NS
    samples, tokens = (next((n for k in keys if (n := number(held.get(k)))), None) for keys in (_SAMPLES, _TOKENS))
    scenario = held.get("scenario", "").lower()
    rate = number(held.get("scheduled samples per second")) or number(held.get("target_qps"))
    loads: dict[str, dict[str, float | None]] = {
        "offline": {"request_rate": math.inf},
        "singlestream": {"concurrency": 1.0},
        "server": {"request_rate": rate},
        "interactive": {"request_rate": rate},
    }
    said = {
        "completed": number(held.get("samples_per_query")) if scenario == "offline" else None,
        "request_throughput": samples,
        "output_throughput": tokens,
        "model": None,
    }
    facts = {k: held[k] for k in ("scenario", "mode", "result is", "sut name") if k in held}
    length = tokens / samples if tokens and samples and tokens > samples else None
    kind = "throughput" if scenario == "offline" else "serve"
    return result(
        "mlperf", kind, said, stats, lengths=(None, length), facts=facts, notes=tuple(_notes(held)), **loads.get(scenario, {})
    )


def _statistic(said: str) -> str:
    """``mean``, ``median`` or ``p99``.

    >>> _statistic("50.00 percentile"), _statistic("99.90 percentile")
    ('median', 'p99.9')
    """
    share = number(said.split()[0])
    return "mean" if share is None else "median" if share == 50 else f"p{share:g}"


def _notes(held: dict[str, str]) -> Iterator[Note]:
    if held.get("result is", "").upper().startswith("INVALID"):
        missed = [
            label.replace(" satisfied", " not satisfied")
            for label, value in held.items()
            if label.endswith("satisfied") and value.upper() == "NO"
        ]
        yield Note("invalid", f"LoadGen calls the run INVALID{': ' if missed else ''}{', '.join(missed)}")
    if held.get("scenario", "").lower() not in _SCENARIOS:
        yield Note("partial", "the summary is cut off before its scenario: what load it was is not known")
