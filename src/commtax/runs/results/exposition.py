"""A server's ``/metrics``: samples of vLLM, SGLang and TensorRT-LLM, and the benchmark result that they make.

All engines and other labels are added together. A result is of the time since the server started, or between two looks at it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from commtax.runs.results.bench_record import TABLE, BenchmarkRun, number, result, spread_of
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import format_seconds
from commtax.wordings import patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

NAMES: Mapping[str, list[str]] = TABLE["gauges"]
ENGINES: Mapping[str, str] = TABLE["metric_engines"]
GROWING = ("_total", "_sum", "_count")  # ends of the names of totals since a server's start
Buckets = Mapping[float, float]  # how many observations are at most a bound


@dataclass(frozen=True, slots=True)
class Exposition:
    """``totals`` and ``buckets`` are since ``started_s`` where nothing was taken off, ``gauges`` are of the moment."""

    engine: str = ""
    model: str = ""
    totals: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, Buckets] = field(default_factory=dict)
    num_engines: int = 1
    started_s: float | None = None  # of the server's process, since 1970
    broken_line: int = 0  # the first line that is no sample

    def __bool__(self) -> bool:
        return bool(self.totals or self.gauges or self.buckets)

    def mean(self, name: str) -> float | None:
        """Return the mean of a histogram, which is exact, unlike its percentiles."""
        total, count = self.totals.get(f"{name}_sum"), self.totals.get(f"{name}_count")
        return total / count if total is not None and count else None

    def named(self, kind: str) -> float | None:
        """Return the first sample among the names that engines have for a kind."""
        samples = {**self.gauges, **self.totals}
        return next((samples[name] for name in NAMES[kind] if name in samples), None)

    def restarted_since(self, before: "Exposition") -> bool:
        """Return whether the server is another process than before, by its start time or by a total that became smaller."""
        if self.started_s is not None and before.started_s is not None and self.started_s > before.started_s + 1:
            return True
        return any(self.totals.get(name, 0.0) < value for name, value in before.totals.items())

    def since(self, before: "Exposition") -> "Exposition":
        """Return what happened between two pages of one process."""
        totals = {name: value - before.totals.get(name, 0.0) for name, value in self.totals.items()}
        pairs = ((name, bounds, before.buckets.get(name, {})) for name, bounds in self.buckets.items())
        buckets = {name: {at: n - was.get(at, 0.0) for at, n in bounds.items()} for name, bounds, was in pairs}
        return replace(self, totals=totals, buckets=buckets)


@dataclass(frozen=True, slots=True)
class LookAtServer:
    """A page, and when it was fetched: seconds of a clock that only counts."""

    at_s: float
    page: Exposition


def looks_like(text: str) -> bool:
    """Return whether lines begin with a metric of an engine."""
    return len(list(islice(SAYS.told.finditer(text), 2))) == 2


def read_exposition(text: str) -> Exposition:
    """Read all samples of engines, if there are any."""
    page = _Page()
    for line_number, line in enumerate(split_lines(text), 1):
        if len(line) > COUNT.longest_line or line.startswith("#") or not line.strip():
            continue
        if match := SAYS.sample.match(line):
            value = number(match[4])
            if value is not None:
                page.add(match[1], match[2], dict(SAYS.label.findall(match[3] or "")), value)
        elif line.startswith(tuple(ENGINES)):
            page.broken_line = page.broken_line or line_number
    started = SAYS.started.search(text)
    return page.read(number(started[1]) if started else None)


class _Page:
    def __init__(self) -> None:
        self.engine, self.model, self.broken_line = "", "", 0
        self.values: dict[str, float] = {}
        self.buckets: dict[str, dict[float, float]] = {}
        self.engines: set[str] = set()

    def add(self, engine: str, name: str, labels: Mapping[str, str], value: float) -> None:
        self.engine = self.engine or ENGINES[engine]
        self.model = self.model or labels.get("model_name", labels.get("model", ""))
        self.engines.add(labels.get("engine", labels.get("engine_index", labels.get("dp_rank", "0"))))
        if name.endswith("_bucket"):
            bounds = self.buckets.setdefault(name.removesuffix("_bucket"), {})
            bound = math.inf if labels.get("le") == "+Inf" else number(labels.get("le"))
            if bound is not None:
                bounds[bound] = bounds.get(bound, 0.0) + value
        else:
            self.values[name] = self.values.get(name, 0.0) + value

    def read(self, started_s: float | None) -> Exposition:
        totals = {name: value for name, value in self.values.items() if name.endswith(GROWING)}
        gauges = {name: value for name, value in self.values.items() if name not in totals}
        engines = max(1, len(self.engines))
        return Exposition(self.engine, self.model, totals, gauges, self.buckets, engines, started_s, self.broken_line)


def quantile_bounds(buckets: Buckets, share: float) -> tuple[float, float]:
    """Return the bounds between which a share of all observations ends, or (0, 0) where there is none.

    >>> quantile_bounds({0.5: 90.0, 1.0: 100.0, math.inf: 100.0}, 0.99)
    (0.5, 1.0)
    """
    total, below = max(buckets.values(), default=0.0), 0.0
    for bound in sorted(buckets):
        if total > 0 and buckets[bound] >= share * total:
            return below, bound
        below = bound
    return 0.0, 0.0


METRICS: Mapping[str, str] = TABLE["prometheus"]
GAPS: list[str] = TABLE["gaps"]["names"]
SHOWN = {"ttft": "TTFT", "e2el": "E2E", "queue": "queue"}  # whose p99 is reported


def parse(text: str) -> Iterator[BenchmarkRun]:
    """Yield one result: all that the server did since it started."""
    if page := read_exposition(text):
        yield run_of(page)


def run_of(page: Exposition, window_s: float | None = None) -> BenchmarkRun:
    """Return a page of metrics as a benchmark run, with rates too where ``window_s``, the seconds it covers, is known."""
    stats: dict[str, dict[str, float]] = {}
    for name, metric in METRICS.items():
        mean = page.mean(name)
        if mean is not None and metric not in stats:
            stats[metric] = {"mean": mean}
    requests = num_answered(page)
    tokens = [page.named(kind) for kind in ("prompt_tokens", "output_tokens")]
    fields = {"total_input_tokens": tokens[0], "total_output_tokens": tokens[1], "completed": requests, "model": page.model}
    if window_s:
        each = {"duration": window_s, "request_throughput": requests and requests / window_s}
        fields |= {**each, "output_throughput": tokens[1] and tokens[1] / window_s}
    load = {"lengths": lengths_of_requests(page), "concurrency": requests_in_flight(page, window_s)}
    answers = {"accepted": _accepted(page), "spread": _spread_of_answers(page), "hit_rate": _hit_rate(page)}
    facts, notes = dict(_facts(page)), tuple(_notes(page, window_s))
    return result("prometheus", "serve", fields, stats, **load, **answers, facts=facts, notes=notes)


def num_answered(page: Exposition) -> int | None:
    """Return the number of requests with recorded latencies, or None if there are none."""
    counted = [n for name in METRICS if (n := page.totals.get(f"{name}_count")) and METRICS[name] in ("e2el", "ttft")]
    return int(min(counted)) if counted else None


def lengths_of_requests(page: Exposition) -> tuple[float | None, float | None]:
    """Return mean prompt and output tokens of answered requests, else all tokens over all requests."""
    requests, tokens = num_answered(page), [page.named(kind) for kind in ("prompt_tokens", "output_tokens")]
    prompt, answer = (n / requests if n and requests else None for n in tokens)
    return page.mean("request_prompt_tokens") or prompt, page.mean("request_generation_tokens") or answer


def requests_in_flight(page: Exposition, window_s: float | None) -> float | None:
    """Return the mean number of concurrent requests, or None where nothing shows it.

    Over a window each second that a request waits for its first token or a next one is in a histogram's sum: those seconds over
    the window are the requests at once. Since the start of a server idle hours count as much as busy ones: then tokens over steps
    tell how many ran in a step.
    """
    whole = next((page.totals.get(f"{name}_sum") for name, metric in METRICS.items() if metric == "e2el"), None)
    if window_s:
        first, least = page.totals.get("time_to_first_token_seconds_sum"), LEVEL.each_token * (page.named("output_tokens") or 0.0)
        # Histograms of gaps between tokens; those that have one entry for each request hold means instead.
        counts = {name: page.totals.get(f"{name}_count", 0.0) * _accepted(page) for name in GAPS}
        gaps = next((page.totals.get(f"{name}_sum") for name, count in counts.items() if count and count >= least), None)
        there = first + gaps if first is not None and gaps else whole
        return there / window_s if there else None
    steps, tokens = page.totals.get("iteration_tokens_total_count"), page.named("output_tokens")
    return tokens / steps / _accepted(page) if steps and tokens else None


def _accepted(page: Exposition) -> float:
    """Return the tokens of a request's step under speculative decoding, where each first token and each gap is a step."""
    if page.named("drafts") is None:
        return max(1.0, (page.named("accept_length") or 1.0) / page.num_engines)
    steps = sum(page.totals.get(f"{name}_count", 0.0) for name in ("time_to_first_token_seconds", GAPS[0]))
    return max(1.0, (page.named("output_tokens") or 0.0) / steps) if steps else 1.0


def _spread_of_answers(page: Exposition) -> float | None:
    """Return how much answers vary in length, as if each lay in the middle of its bucket, or None where one bucket has all."""
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
    hits, queries = page.named("hits"), page.named("queries")
    rate = hits / queries if hits is not None and queries else page.gauges.get("cache_hit_rate", 0.0) / page.num_engines
    return min(1.0, max(0.0, rate))


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
    """Describe the bucket in which a percentile lies.

    >>> bounds_text(0.25, 0.5), bounds_text(2560, math.inf)
    ('250 ms to 500 ms', 'above 43 minutes')
    """
    return f"{format_seconds(low)} to {format_seconds(high)}" if math.isfinite(high) else f"above {format_seconds(low)}"


def _notes(page: Exposition, window_s: float | None) -> Iterator[Note]:
    if window_s is None:
        yield Note("since-start", "counters hold all requests since the server started, warm-up and idle hours too")
    if page.broken_line:
        yield Note("partial", f"line {page.broken_line} is cut off or no sample: what follows on it is missing")
