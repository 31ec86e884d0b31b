"""A server's ``/metrics`` as a benchmark's result: what it did since it started, or between two looks at it.

Sums over counts are exact means. Quantiles lie somewhere in a bucket, and are told as such.
"""

import math
from collections.abc import Iterator, Mapping

from commtax.runs.results.bench_record import TABLE, BenchmarkRun, result, spread_of
from commtax.runs.results.exposition import Exposition, looks_like, quantile_bounds, read_exposition
from commtax.statement import Note
from commtax.thresholds import levels
from commtax.units import format_seconds

__all__ = ["looks_like", "parse", "quantile_bounds", "run_of"]

METRICS: Mapping[str, str] = TABLE["prometheus"]
GAPS: list[str] = TABLE["gaps"]["names"]
LEVEL = levels(__name__)
SHOWN = {"ttft": "TTFT", "e2el": "E2E", "queue": "queue"}  # whose 99th hundredth is told


def parse(text: str) -> Iterator[BenchmarkRun]:
    """One result: all that the server did since it started."""
    if page := read_exposition(text):
        yield run_of(page)


def run_of(page: Exposition, window_s: float | None = None) -> BenchmarkRun:
    """All that a page tells; with ``window_s`` it is of so many seconds, and rates are known too."""
    stats: dict[str, dict[str, float]] = {}
    for name, metric in METRICS.items():
        mean = page.mean(name)
        if mean is not None and metric not in stats:
            stats[metric] = {"mean": mean}
    requests = num_answered(page)
    tokens = [page.named(kind) for kind in ("prompt_tokens", "output_tokens")]
    said = {"total_input_tokens": tokens[0], "total_output_tokens": tokens[1], "completed": requests, "model": page.model}
    if window_s:
        each = {"duration": window_s, "request_throughput": requests and requests / window_s}
        said |= {**each, "output_throughput": tokens[1] and tokens[1] / window_s}
    return result(
        "prometheus",
        "serve",
        said,
        stats,
        lengths=lengths_of_requests(page),
        concurrency=requests_in_flight(page, window_s),
        accepted=_accepted(page),
        spread=_spread_of_answers(page),
        hit_rate=_hit_rate(page),
        facts=dict(_facts(page)),
        notes=tuple(_notes(page, window_s)),
    )


def num_answered(page: Exposition) -> int | None:
    """Requests whose times are told; None where none is."""
    counted = [n for name in METRICS if (n := page.totals.get(f"{name}_count")) and METRICS[name] in ("e2el", "ttft")]
    return int(min(counted)) if counted else None


def lengths_of_requests(page: Exposition) -> tuple[float | None, float | None]:
    """Mean prompt and output tokens: of answered requests where they are told, else all tokens over all requests."""
    requests, tokens = num_answered(page), [page.named(kind) for kind in ("prompt_tokens", "output_tokens")]
    prompt, answer = (n / requests if n and requests else None for n in tokens)
    return page.mean("request_prompt_tokens") or prompt, page.mean("request_generation_tokens") or answer


def requests_in_flight(page: Exposition, window_s: float | None) -> float | None:
    """Requests that were there at once, on average; None where nothing tells it.

    Over a window each second that a request waits for its first token or a next one is in a histogram's sum: those seconds over
    the window are the requests at once. Since the start of a server idle hours count as much as busy ones: then tokens over steps
    tell how many ran in a step.
    """
    whole = next((page.totals.get(f"{name}_sum") for name, metric in METRICS.items() if metric == "e2el"), None)
    first, gaps = page.totals.get("time_to_first_token_seconds_sum"), _seconds_decoding(page)
    if window_s:
        there = first + gaps if first is not None and gaps else whole
        return there / window_s if there else None
    steps, tokens = page.totals.get("iteration_tokens_total_count"), page.named("output_tokens")
    return tokens / steps / _accepted(page) if steps and tokens else None


def _seconds_decoding(page: Exposition) -> float | None:
    """The sum of all gaps between tokens; histograms that have one entry for each request hold means instead."""
    tokens = page.named("output_tokens") or 0.0
    for name in GAPS:
        count = page.totals.get(f"{name}_count", 0.0) * _accepted(page)
        if count and count >= LEVEL.each_token * tokens:
            return page.totals.get(f"{name}_sum")
    return None


def _accepted(page: Exposition) -> float:
    """Tokens of a request's step under speculative decoding: each first token and each gap between tokens is a step. Drafts are not
    made in every step, so accepted ones alone do not tell it. An engine that counts none tells a length itself."""
    if page.named("drafts") is None:
        return max(1.0, (page.named("accept_length") or 1.0) / page.num_engines)
    steps = sum(page.totals.get(f"{name}_count", 0.0) for name in ("time_to_first_token_seconds", GAPS[0]))
    return max(1.0, (page.named("output_tokens") or 0.0) / steps) if steps else 1.0


def _spread_of_answers(page: Exposition) -> float | None:
    """By how much of their mean the lengths of answers vary, as if each lay in the middle of its bucket; None: all are in one."""
    bounds = page.buckets.get("request_generation_tokens", {})
    below, before, middles = 0.0, 0.0, list[tuple[float, float]]()
    for bound in sorted(b for b in bounds if math.isfinite(b)):
        middles.append(((below + bound) / 2, bounds[bound] - before))
        below, before = bound, bounds[bound]
    count = sum(n for _, n in middles)
    if count <= 0 or max(n for _, n in middles) >= LEVEL.alike * count:
        return None
    mean = sum(x * n for x, n in middles) / count
    return spread_of(mean, math.sqrt(sum(n * (x - mean) ** 2 for x, n in middles) / count))


def _hit_rate(page: Exposition) -> float:
    """The share of prompt tokens that the prefix cache had."""
    hits, queries = page.named("hits"), page.named("queries")
    told = hits / queries if hits is not None and queries else page.gauges.get("cache_hit_rate", 0.0) / page.num_engines
    return min(1.0, max(0.0, told))


def _facts(page: Exposition) -> Iterator[tuple[str, str]]:
    yield "engine", page.engine
    if page.num_engines > 1:
        yield "engines", f"{page.num_engines}"
    for kind, form in (("running", "{:g}"), ("waiting", "{:g}"), ("kv_usage", "{:.1%}"), ("preemptions", "{:g}")):
        value = page.named(kind)
        if value is not None:
            yield kind.replace("_", " "), form.format(value / page.num_engines if kind == "kv_usage" else value)
    if hits := _hit_rate(page):
        yield "prefix cache hits", f"{hits:.1%}"
    for name, metric in METRICS.items():
        low, high = quantile_bounds(page.buckets.get(name, {}), LEVEL.tail)
        if metric in SHOWN and high:
            yield f"p99 {SHOWN[metric]}", bounds_text(low, high)


def bounds_text(low: float, high: float) -> str:
    """The bucket in which a percentile lies.

    >>> bounds_text(0.25, 0.5), bounds_text(2560, math.inf)
    ('250 ms to 500 ms', 'above 43 minutes')
    """
    return f"{format_seconds(low)} to {format_seconds(high)}" if math.isfinite(high) else f"above {format_seconds(low)}"


def _notes(page: Exposition, window_s: float | None) -> Iterator[Note]:
    if window_s is None:
        yield Note("since-start", "counters hold all requests since the server started, warm-up and idle hours too")
    if page.broken_line:
        yield Note("partial", f"line {page.broken_line} is cut off or no sample: what follows on it is missing")
