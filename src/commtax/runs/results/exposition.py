"""A server's ``/metrics`` as text: samples of vLLM, SGLang and TensorRT-LLM, all engines and other labels added together.

Totals only grow while a server runs, so the difference of two pages is what happened between them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from commtax.runs.results.bench_record import TABLE, number
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

NAMES: Mapping[str, list[str]] = TABLE["gauges"]
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt_llm": "trtllm"}
GROWING = ("_total", "_sum", "_count")  # ends of the names of totals since a server's start
COUNT = counts(__name__)
SAYS = patterns(__name__)
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
        """Of a histogram: exact, unlike its percentiles."""
        total, count = self.totals.get(f"{name}_sum"), self.totals.get(f"{name}_count")
        return total / count if total is not None and count else None

    def named(self, kind: str) -> float | None:
        """The first sample of those that engines have for one thing."""
        held = {**self.gauges, **self.totals}
        return next((held[name] for name in NAMES[kind] if name in held), None)

    def restarted_since(self, before: "Exposition") -> bool:
        """Whether the server is another process than before: it says so, or a total has become smaller."""
        if self.started_s is not None and before.started_s is not None and self.started_s > before.started_s + 1:
            return True
        return any(self.totals.get(name, 0.0) < value for name, value in before.totals.items())

    def since(self, before: "Exposition") -> "Exposition":
        """What happened between two pages of one process."""
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
    """Whether lines begin with a metric of an engine."""
    return len(list(islice(SAYS.told.finditer(text), 2))) == 2


def read_exposition(text: str) -> Exposition:
    """All samples of engines; nothing where there are none."""
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
    """Between which bounds a share of all observations ends; (0, 0) where there is none.

    >>> quantile_bounds({0.5: 90.0, 1.0: 100.0, math.inf: 100.0}, 0.99)
    (0.5, 1.0)
    """
    total, below = max(buckets.values(), default=0.0), 0.0
    for bound in sorted(buckets):
        if total > 0 and buckets[bound] >= share * total:
            return below, bound
        below = bound
    return 0.0, 0.0
