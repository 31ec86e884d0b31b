"""A server's ``/metrics``: vLLM's, SGLang's and TensorRT-LLM's histograms since it started, all engines together.

Sums over counts are exact means. Quantiles lie somewhere in a bucket, and are told as such.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from commtax.evidence.short_lines import split_lines
from commtax.evidence.thresholds import counts
from commtax.evidence.wordings import patterns
from commtax.results.bench_record import TABLE, BenchmarkRun, number, result
from commtax.statement import Note

METRICS: Mapping[str, str] = TABLE["prometheus"]
GAUGES: Mapping[str, list[str]] = TABLE["gauges"]
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt_llm": "trtllm"}
COUNT = counts(__name__)
SHOWN = {"ttft": "TTFT", "e2el": "E2E", "queue": "queue"}  # whose 99th hundredth is told
SAYS = patterns(__name__)


def looks_like(text: str) -> bool:
    """Whether lines begin with a metric of an engine."""
    return len(list(islice(SAYS.told.finditer(text), 2))) == 2


class _Page:
    """Samples by name, added over engines and other labels; buckets by their bound."""

    def __init__(self) -> None:
        self.engine, self.model = "", ""
        self.values: dict[str, float] = {}
        self.buckets: dict[str, dict[float, float]] = {}
        self.engines: set[str] = set()
        self.broken = 0  # the first line that is none

    def add(self, engine: str, name: str, labels: Mapping[str, str], value: float) -> None:
        self.engine = self.engine or ENGINES[engine]
        self.model = self.model or labels.get("model_name", labels.get("model", ""))
        self.engines.add(labels.get("engine", labels.get("engine_index", "0")))
        if name.endswith("_bucket"):
            bounds = self.buckets.setdefault(name.removesuffix("_bucket"), {})
            bound = math.inf if labels.get("le") == "+Inf" else number(labels.get("le"))
            if bound is not None:
                bounds[bound] = bounds.get(bound, 0.0) + value
        else:
            self.values[name] = self.values.get(name, 0.0) + value

    def mean(self, name: str) -> float | None:
        total, count = self.values.get(f"{name}_sum"), self.values.get(f"{name}_count")
        return total / count if total is not None and count else None

    def gauge(self, kind: str) -> float | None:
        return next((self.values[name] for name in GAUGES[kind] if name in self.values), None)


def parse(text: str) -> Iterator[BenchmarkRun]:
    """One result: all that the server did since it started."""
    page = _Page()
    for line_number, line in enumerate(split_lines(text), 1):
        if len(line) > COUNT.longest_line or line.startswith("#") or not line.strip():
            continue
        if match := SAYS.sample.match(line):
            value = number(match[4])
            if value is not None:
                page.add(match[1], match[2], dict(SAYS.label.findall(match[3] or "")), value)
        elif line.startswith(tuple(ENGINES)):
            page.broken = page.broken or line_number
    if page.values or page.buckets:
        yield _result(page)


def _result(page: _Page) -> BenchmarkRun:
    stats: dict[str, dict[str, float]] = {}
    for name, metric in METRICS.items():
        mean = page.mean(name)
        if mean is not None and metric not in stats:
            stats[metric] = {"mean": mean}
    counts = [n for name in METRICS if (n := page.values.get(f"{name}_count")) and METRICS[name] in ("e2el", "ttft")]
    requests = int(min(counts)) if counts else None
    prompt, answer = page.mean("request_prompt_tokens"), page.mean("request_generation_tokens")
    tokens = [page.gauge(kind) for kind in ("prompt_tokens", "output_tokens")]
    each = [n / requests if n and requests else None for n in tokens]
    hits, queries = page.gauge("hits"), page.gauge("queries")
    said = {"total_input_tokens": tokens[0], "total_output_tokens": tokens[1], "completed": requests, "model": page.model}
    return result(
        "prometheus",
        "serve",
        said,
        stats,
        lengths=(prompt or each[0], answer or each[1]),
        hit_rate=min(1.0, hits / queries) if hits and queries else 0.0,
        facts=dict(_facts(page)),
        notes=tuple(_notes(page)),
    )


def _facts(page: _Page) -> Iterator[tuple[str, str]]:
    yield "engine", page.engine
    if len(page.engines) > 1:
        yield "engines", f"{len(page.engines)}"
    for kind, form in (("running", "{:g}"), ("waiting", "{:g}"), ("kv_usage", "{:.1%}"), ("preemptions", "{:g}")):
        value = page.gauge(kind)
        if value is not None:
            yield kind.replace("_", " "), form.format(value / len(page.engines) if kind == "kv_usage" else value)
    for name, metric in METRICS.items():
        low, high = quantile_bounds(page.buckets.get(name, {}), 0.99)
        if metric in SHOWN and high:
            yield f"p99 {SHOWN[metric]}", f"{low:g} to {high:g} s"


def _notes(page: _Page) -> Iterator[Note]:
    yield Note("since-start", "counters hold all requests since the server started, warm-up and idle hours too")
    if page.broken:
        yield Note("partial", f"line {page.broken} is cut off or no sample: what follows on it is missing")


def quantile_bounds(buckets: Mapping[float, float], share: float) -> tuple[float, float]:
    """Between which bounds a share of all observations ends; (0, 0) where there is none.

    >>> quantile_bounds({0.5: 90.0, 1.0: 100.0, math.inf: 100.0}, 0.99)
    (0.5, 1.0)
    """
    total, below = max(buckets.values(), default=0.0), 0.0
    for bound in sorted(buckets):
        if total and buckets[bound] >= share * total:
            return below, bound
        below = bound
    return 0.0, 0.0
