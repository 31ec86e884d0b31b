"""MLPerf LoadGen's ``mlperf_log_summary.txt``: the scenario is the load, latencies are in nanoseconds.

Offline sends all samples at once; Server at a rate, by chance; SingleStream one after the other. Lengths of prompts are in no line.
"""

import math
from collections.abc import Iterator

from commtax.runs.results.bench_record import BenchmarkRun, SentLoad, number, result
from commtax.statement import Note
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

TITLE = "MLPerf Results Summary"
COUNT = counts(__name__)
NS = 1e-9
FIRST = "SUT name : "  # the line below the title
SAYS = patterns(__name__)
_METRICS = {"first token latency": "ttft", "latency": "e2el"}  # else: of an output token
_SAMPLES = ("completed samples per second", "samples per second")
_TOKENS = ("completed tokens per second", "tokens per second", "tokens per second (inferred)")
_SCENARIOS = ("offline", "server", "interactive", "singlestream", "multistream")


def looks_like(text: str) -> bool:
    return TITLE in text or (FIRST in text and "Result is : " in text)


def parse(text: str) -> Iterator[BenchmarkRun]:
    summaries: list[dict[str, str]] = []
    for line in split_lines(text):
        if TITLE in line or (FIRST in line and (not summaries or "sut name" in summaries[-1])):
            summaries.append({})
        if summaries and len(line) <= COUNT.longest_line and (pair := SAYS.pair.search(line)):
            summaries[-1].setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    yield from map(_one, filter(None, summaries))


def _one(held: dict[str, str]) -> BenchmarkRun:
    stats: dict[str, dict[str, float]] = {}
    for label, value in held.items():
        match, seconds = SAYS.latency.fullmatch(label), number(value)
        if match and seconds:  # samples without tokens of their own have 0 here
            stats.setdefault(_METRICS.get(match[2], "tpot"), {})[_statistic(match[1])] = seconds * NS
    samples, tokens = (next((n for k in keys if (n := number(held.get(k)))), None) for keys in (_SAMPLES, _TOKENS))
    scenario = held.get("scenario", "").lower()
    rate = number(held.get("scheduled samples per second")) or number(held.get("target_qps"))
    rates = {"offline": math.inf, "server": rate, "interactive": rate}
    load = SentLoad(request_rate=rates.get(scenario), concurrency=1.0 if scenario == "singlestream" else None)
    asked = number(held.get("samples_per_query")) if scenario == "offline" else None
    said = {"completed": asked, "request_throughput": samples, "output_throughput": tokens, "model": None}
    facts = {k: held[k] for k in ("scenario", "mode", "result is", "sut name") if k in held}
    length = tokens / samples if tokens and samples and tokens > samples else None
    kind = "throughput" if scenario == "offline" else "serve"
    return result("mlperf", kind, said, stats, lengths=(None, length), facts=facts, notes=tuple(_notes(held)), **load)


def _statistic(said: str) -> str:
    """``mean``, ``median`` or ``p99``.

    >>> _statistic("50.00 percentile"), _statistic("99.90 percentile")
    ('median', 'p99.9')
    """
    share = number(said.split()[0])
    return "mean" if share is None else "median" if share == 50 else f"p{share:g}"


def _notes(held: dict[str, str]) -> Iterator[Note]:
    if held.get("result is", "").upper().startswith("INVALID"):
        no = [label for label, value in held.items() if label.endswith("satisfied") and value.upper() == "NO"]
        missed = [label.replace(" satisfied", " not satisfied") for label in no]
        yield Note("invalid", f"LoadGen calls the run INVALID{': ' if missed else ''}{', '.join(missed)}")
    if held.get("scenario", "").lower() not in _SCENARIOS:
        yield Note("partial", "the summary is cut off before its scenario: what load it was is not known")
