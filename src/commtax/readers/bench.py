"""Results of benchmarks: ``vllm bench latency|throughput|serve``, ``sglang.bench_serving``, AIPerf and GenAI-Perf; seconds inside.

Which keys are there differs by tool and version; a key that is missing leaves None. TPOT is (E2E - TTFT) / (output - 1) in all of
them; ITL is the list of gaps between chunks of a stream, which may hold several tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from commtax.files import Json, parse_documents, table
from commtax.readers import filled
from commtax.statement import Refusal

METRICS = ("ttft", "tpot", "itl", "e2el")
_TABLE = table("readers/bench.toml")
_KEYS, _WHOLE, _AIPERF, _SECONDS = (_TABLE[kind] for kind in ("keys", "whole", "aiperf", "seconds"))
Stats = Mapping[str, float]
NO_STATS: Mapping[str, Stats] = {}


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark run. ``stats[metric][statistic]`` in seconds: statistics are mean, median, std, p99 …"""

    tool: str  # vllm | sglang | aiperf
    kind: str  # latency | throughput | serve
    model: str = ""
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
    latencies_s: tuple[float, ...] = ()
    stats: Mapping[str, Stats] = field(default_factory=dict)
    tp: int = 0  # where the result carries it
    accepted: float = 1.0  # tokens a step under speculative decoding

    def seconds(self, metric: str, statistic: str = "median") -> float | None:
        """A statistic in seconds; the mean where the one asked for is missing."""
        statistics = self.stats.get(metric, {})
        return statistics.get(statistic, statistics.get("mean"))

    @property
    def output_len(self) -> float | None:
        """Mean output tokens of a request."""
        return self.output_tokens / self.requests if self.output_tokens and self.requests else None

    @property
    def input_len(self) -> float | None:
        return self.input_tokens / self.requests if self.input_tokens and self.requests else None


def parse(text: str, name: str = "benchmark") -> tuple[Bench, ...]:
    """All results of a file: one JSON object, a list of them, or one a line."""
    documents = [d for d in parse_documents(text, f"benchmark '{name}'") if isinstance(d, dict)]
    try:
        read = [_one(d) for d in documents]
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Refusal(f"benchmark '{name}': a field has the wrong form ({error})") from None
    results = tuple(b for b in read if b is not None)
    if not results:
        raise Refusal(f"benchmark '{name}': none of the keys of vllm bench, sglang.bench_serving or AIPerf found")
    if not all(math.isfinite(x) and x >= 0 for b in results for stats in b.stats.values() for x in stats.values()):
        raise Refusal(f"benchmark '{name}': a time is negative or not a number")
    return results


def _one(d: Json) -> Bench | None:
    if "duration" in d and ("completed" in d or "total_output_tokens" in d):  # newer versions add latencies: look here first
        return _serve(d)
    if "latencies" in d or "avg_latency" in d:
        return _latency(d)
    if "elapsed_time" in d and "tokens_per_second" in d:
        return _run("vllm", "throughput", d)  # prompt and output tokens are counted together
    if any(isinstance(d.get(k), dict) and "avg" in d[k] for k in _AIPERF):
        return _aiperf(d)
    return None


def _run(tool: str, kind: str, d: Json, stats: Mapping[str, Stats] = NO_STATS, latencies_s: tuple[float, ...] = ()) -> Bench:
    """A result with what it says under any of the keys of a field; what it does not say is left out."""
    numbers = {name: next((n for key in keys if (n := _number(d.get(key))) is not None), None) for name, keys in _KEYS.items()}
    given = {name: int(n) if name in _WHOLE else n for name, n in numbers.items() if n is not None and (n or name != "accepted")}
    rate = math.inf if str(d.get("request_rate")).lower() in ("inf", "infinity") else _number(d.get("request_rate"))
    said = {"model": str(d.get("model_id") or d.get("model") or ""), "request_rate": rate, **given}
    return filled(Bench, {"tool": tool, "kind": kind, "stats": stats, "latencies_s": latencies_s, **said})


def _latency(d: Json) -> Bench:
    """``avg_latency``, ``latencies`` and ``percentiles`` of whole batches, in seconds."""
    each = tuple(float(x) for x in d.get("latencies", ()))
    if not each and "avg_latency" not in d:
        raise Refusal("latencies is empty")
    stats: dict[str, float] = {"mean": float(d["avg_latency"]) if "avg_latency" in d else fmean(each)}
    stats |= {f"p{key}": float(value) for key, value in (d.get("percentiles") or {}).items()}
    if each or "p50" in stats:
        stats["median"] = median(each) if each else stats["p50"]
    return _run("vllm", "latency", d, {"e2el": stats}, each)


def _serve(d: Json) -> Bench:
    """``*_ms`` statistics; ``ttfts``, ``itls`` and ``latencies`` of single requests, where they are kept, in seconds."""
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        statistic, _, metric = key.removesuffix("_ms").partition("_")
        metric = _TABLE["metrics"].get(metric, metric)
        if key.endswith("_ms") and isinstance(value, (int, float)) and metric in METRICS:
            stats.setdefault(metric, {})[statistic] = float(value) * 1e-3
    for metric, values in _details(d).items():
        if values and metric not in stats:
            stats[metric] = {"mean": fmean(values), "median": median(values)}
    sglang = "accept_length" in d or "mean_e2e_latency_ms" in d or str(d.get("backend", "")).startswith("sglang")
    return _run("sglang" if sglang else "vllm", "serve", d, stats)


def _details(d: Json) -> dict[str, list[float]]:
    ttfts, itls = d.get("ttfts") or (), d.get("itls") or ()
    gaps = [float(x) for row in itls for x in (row if isinstance(row, list) else [row])]
    return {"ttft": [float(x) for x in ttfts if x], "itl": gaps, "e2el": [float(x) for x in d.get("latencies") or ()]}


def _aiperf(d: Json) -> Bench:
    """Blocks ``{unit, avg, p50, …}``, one a metric."""
    blocks = {key: block for key, block in d.items() if isinstance(block, dict)}
    stats: dict[str, dict[str, float]] = {}
    for key, metric in _AIPERF.items():
        if "avg" in (block := blocks.get(key, {})):
            factor = _SECONDS.get(str(block.get("unit", "ms")), 1e-3)
            numbers = {k: float(v) * factor for k, v in block.items() if isinstance(v, (int, float)) and k != "count"}
            stats[metric] = {_TABLE["statistics"].get(k, k): v for k, v in numbers.items()}
    flat = {**d, **{key: block.get("avg") for key, block in blocks.items()}}
    requests = int(_number(flat.get("request_count")) or 0)
    for side in ("input", "output") if requests else ():
        length = _number(flat.get(f"{side}_sequence_length"))
        flat[f"total_{side}_tokens"] = None if length is None else length * requests
    config = blocks.get("input_config", {})
    load = config.get("loadgen", config)
    return _run("aiperf", "serve", {**flat, "max_concurrency": load.get("concurrency") if isinstance(load, dict) else None}, stats)


def _number(value: Any) -> float | None:
    """A finite number, or None; some tools write numbers as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
