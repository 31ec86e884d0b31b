"""The content of one benchmark run, whichever tool wrote it: seconds inside, and None for what a file omits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypedDict, cast

from commtax.files import table
from commtax.records import record_from
from commtax.statement import Note
from commtax.thresholds import counts

METRICS = ("ttft", "tpot", "itl", "e2el")
TABLE = table("runs/results/bench.toml")
_KEYS, _WHOLE, SECONDS, STATISTICS = (TABLE[kind] for kind in ("keys", "whole", "seconds", "statistics"))
Stats = Mapping[str, float]
NO_STATS: Mapping[str, Stats] = {}
COUNT = counts(__name__)
ASKED = "requests asked for"  # a fact: by the command above a result, where fewer were answered
HARDWARE = "hardware"  # a fact: what a result calls the chips that it ran on
NO_FACTS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One benchmark run. ``stats[metric][statistic]`` in seconds: statistics are mean, median, std, p99 …

    Of TTFT also early and late: medians of the first and of the last third of the requests. A server's own metrics also tell
    ``queue``, ``prefill`` and ``decode`` of a request.
    """

    tool: str  # vllm | sglang | aiperf | guidellm | inferencex | trtllm | mlperf | prometheus
    kind: str  # latency (one batch at a time) | throughput (all at once) | serve
    model: str = ""
    version: str = ""  # of the tool
    duration_s: float | None = None
    requests: int | None = None
    failed: int = 0
    input_tokens: float | None = None  # in total
    output_tokens: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    concurrency: float | None = None  # the limit that was set
    request_rate: float | None = None  # inf: all at once
    burstiness: float = 1.0  # shape of the gaps between arrivals: 1 Poisson, inf a constant rate
    batch: int | None = None  # sequences of a static batch
    latencies_s: tuple[float, ...] = ()
    stats: Mapping[str, Stats] = field(default_factory=dict)
    tp: int = 0  # where the result carries it
    accepted: float = 1.0  # tokens a step under speculative decoding
    spread: float | None = None  # output lengths vary by this share of their mean to either side
    hit_rate: float = 0.0  # share of prompt tokens that the cache had
    lengths: tuple[float | None, float | None] = (None, None)  # mean prompt and output tokens, where they are stated directly
    facts: Mapping[str, str] = field(default_factory=dict)  # what else a tool reports
    notes: tuple[Note, ...] = ()

    def seconds(self, metric: str, statistic: str = "median") -> float | None:
        """Return a statistic in seconds, or the mean where that statistic is missing."""
        statistics = self.stats.get(metric, {})
        return statistics.get(statistic, statistics.get("mean"))

    @property
    def output_len(self) -> float | None:
        """Mean output tokens of a request."""
        return self.lengths[1] or (self.output_tokens / self.requests if self.output_tokens and self.requests else None)

    @property
    def input_len(self) -> float | None:
        return self.lengths[0] or (self.input_tokens / self.requests if self.input_tokens and self.requests else None)


class SentLoad(TypedDict, total=False):
    """How requests were sent, as fields of a run."""

    concurrency: float | None
    request_rate: float | None
    burstiness: float


def result(tool: str, kind: str, d: Mapping[str, object], stats: Mapping[str, Stats] = NO_STATS, **stated: object) -> BenchmarkRun:
    """Make a run of what a document has under any key of each field. ``stated`` fields take precedence."""
    numbers = {name: next((n for key in keys if (n := number(d.get(key))) is not None), None) for name, keys in _KEYS.items()}
    numeric = {name: int(n) if name in _WHOLE else n for name, n in numbers.items() if n is not None and (n or name != "accepted")}
    numeric |= {"accepted": max(1.0, numeric["accepted"])} if "accepted" in numeric else {}
    rate = SentLoad(request_rate=next((n for key in TABLE["rate"] if (n := rate_of(d.get(key))) is not None), None))
    fields = {"model": str(d.get("model_id") or d.get("model") or ""), **rate, **numeric}
    clear = {name: value for name, value in stated.items() if value is not None}
    named = (value for key in TABLE["hardware"] if isinstance(value := d.get(key), str) and 0 < len(value) <= COUNT.most_signs)
    sizes = {axis: next((n for key in keys if (n := number(d.get(key)))), 0.0) for axis, keys in TABLE["degrees"].items()}
    degrees = {axis: f"{int(size)}" for axis, size in sizes.items() if size >= 1}
    place = degrees | ({HARDWARE: name} if (name := next(named, "")) else {})
    facts = {**place, **cast(Mapping[str, str], clear.pop("facts", NO_FACTS))}
    return record_from(BenchmarkRun, {"tool": tool, "kind": kind, "stats": stats, **fields, **clear, "facts": facts})


def rate_of(value: object) -> float | None:
    """Return requests a second. ``inf`` is a rate too: all at once."""
    return math.inf if str(value).strip().lower() in ("inf", "infinity") else number(value)


def number(value: object) -> float | None:
    """Return a finite number, or None. Some tools write numbers as text with commas.

    >>> number("10,944.03"), number("N/A"), number(True)
    (10944.03, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        read = float(value.replace(",", "") if isinstance(value, str) and len(value) < 40 else value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def spread_of(mean: float | None, deviation: float | None) -> float | None:
    """Return the half width of uniform lengths with this deviation, relative to their mean, or None where it is unknown.

    >>> round(spread_of(100, 50 / 3**0.5), 6), spread_of(100, None)
    (0.5, None)
    """
    return None if not mean or deviation is None else min(1.0, math.sqrt(3) * max(0.0, deviation) / max(mean, 1e-9))


def thirds_of(seconds: Sequence[float]) -> dict[str, float]:
    """Return the medians of the first and of the last third of the requests in order, or nothing for a handful.

    >>> thirds_of([0.1, 0.1, 0.2, 0.5, 0.6, 0.7, 0.9, 1.0, 1.1]), thirds_of([0.1, 0.2])
    ({'early': 0.1, 'late': 1.0}, {})
    """
    third = len(seconds) // 3
    return {"early": median(seconds[:third]), "late": median(seconds[-third:])} if third >= COUNT.least_third else {}
