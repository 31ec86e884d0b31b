"""Results of benchmarks: ``vllm bench latency|throughput|serve``, ``sglang.bench_serving``, AIPerf and GenAI-Perf; seconds inside.

Which keys are there differs by tool and version; a key that is missing leaves None. TPOT is (E2E - TTFT) / (output - 1) in all of
them; ITL is the list of gaps between chunks of a stream, which may hold several tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from commtax.files import parse_documents
from commtax.statement import Refusal

METRICS = ("ttft", "tpot", "itl", "e2el")
_NAMES = {"e2e_latency": "e2el", "e2e": "e2el"}  # SGLang's spelling
_AIPERF = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",  # AIPerf's is (E2E - TTFT) / (output - 1)
    "request_latency": "e2el",
}
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Stats = Mapping[str, float]
_TP_KEYS = ("tensor_parallel_size", "tp", "tp_size")


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
        found = self.stats.get(metric, {})
        return found.get(statistic, found.get("mean"))

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
        found = [_one(d) for d in documents]
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Refusal(f"benchmark '{name}': a field has the wrong form ({error})") from None
    results = tuple(b for b in found if b is not None)
    if not results:
        raise Refusal(f"benchmark '{name}': none of the keys of vllm bench, sglang.bench_serving or AIPerf found")
    if not all(math.isfinite(x) and x >= 0 for b in results for stats in b.stats.values() for x in stats.values()):
        raise Refusal(f"benchmark '{name}': a time is negative or not a number")
    return results


def _one(d: Mapping[str, Any]) -> Bench | None:
    if "duration" in d and ("completed" in d or "total_output_tokens" in d):  # newer versions add latencies: look here first
        return _serve(d)
    if "latencies" in d or "avg_latency" in d:
        return _latency(d)
    if "elapsed_time" in d and "tokens_per_second" in d:
        return _throughput(d)
    if any(isinstance(d.get(k), dict) and "avg" in d[k] for k in _AIPERF):
        return _aiperf(d)
    return None


def _latency(d: Mapping[str, Any]) -> Bench:
    """``avg_latency``, ``latencies`` and ``percentiles`` of whole batches, in seconds."""
    each = tuple(float(x) for x in d.get("latencies", ()))
    if not each and "avg_latency" not in d:
        raise Refusal("latencies is empty")
    stats: dict[str, float] = {"mean": float(d["avg_latency"]) if "avg_latency" in d else fmean(each)}
    stats |= {f"p{key}": float(value) for key, value in (d.get("percentiles") or {}).items()}
    if each or "p50" in stats:
        stats["median"] = median(each) if each else stats["p50"]
    return Bench("vllm", "latency", str(d.get("model_id", "")), latencies_s=each, stats={"e2el": stats}, tp=_tp(d))


def _throughput(d: Mapping[str, Any]) -> Bench:
    """``tokens_per_second`` counts prompt and output tokens together."""
    return Bench(
        tool="vllm",
        kind="throughput",
        model=str(d.get("model_id", "")),
        duration_s=float(d["elapsed_time"]),
        requests=_int(d.get("num_requests")),
        requests_per_s=_number(d.get("requests_per_second")),
        total_tokens_per_s=_number(d.get("tokens_per_second")),
        tp=_tp(d),
    )


def _serve(d: Mapping[str, Any]) -> Bench:
    """``*_ms`` statistics; ``ttfts``, ``itls`` and ``latencies`` of single requests, where they are kept, in seconds."""
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        if key.endswith("_ms") and isinstance(value, (int, float)):
            statistic, _, metric = key.removesuffix("_ms").partition("_")
            metric = _NAMES.get(metric, metric)
            if metric in METRICS:
                stats.setdefault(metric, {})[statistic] = float(value) * 1e-3
    for metric, values in _details(d).items():
        if values and metric not in stats:
            stats[metric] = {"mean": fmean(values), "median": median(values)}
    sglang = "accept_length" in d or "mean_e2e_latency_ms" in d or str(d.get("backend", "")).startswith("sglang")
    return Bench(
        tool="sglang" if sglang else "vllm",
        kind="serve",
        model=str(d.get("model_id") or d.get("model") or ""),
        duration_s=_number(d.get("duration")),
        requests=_int(d.get("completed", d.get("num_prompts"))),
        failed=_int(d.get("failed")) or 0,
        input_tokens=_number(d.get("total_input_tokens", d.get("total_input"))),
        output_tokens=_number(d.get("total_output_tokens", d.get("total_output"))),
        requests_per_s=_number(d.get("request_throughput")),
        output_tokens_per_s=_number(d.get("output_throughput")),
        total_tokens_per_s=_number(d.get("total_token_throughput", d.get("total_throughput"))),
        concurrency=_number(d.get("max_concurrency")),
        request_rate=_rate(d.get("request_rate")),
        stats=stats,
        tp=_tp(d),
        accepted=_number(d.get("accept_length")) or 1.0,
    )


def _details(d: Mapping[str, Any]) -> dict[str, list[float]]:
    ttfts, itls = d.get("ttfts") or (), d.get("itls") or ()
    gaps = [float(x) for row in itls for x in (row if isinstance(row, list) else [row])]
    return {"ttft": [float(x) for x in ttfts if x], "itl": gaps, "e2el": [float(x) for x in d.get("latencies") or ()]}


def _aiperf(d: Mapping[str, Any]) -> Bench:
    """Blocks ``{unit, avg, p50, …}``, one a metric."""
    stats: dict[str, dict[str, float]] = {}
    for key, metric in _AIPERF.items():
        block = d.get(key)
        if isinstance(block, dict) and "avg" in block:
            factor = _SECONDS.get(str(block.get("unit", "ms")), 1e-3)
            numbers = {k: float(v) * factor for k, v in block.items() if isinstance(v, (int, float)) and k != "count"}
            stats[metric] = {("mean" if k == "avg" else "median" if k == "p50" else k): v for k, v in numbers.items()}
    requests = _int(_average(d, "request_count"))
    lengths = {key: _average(d, key) for key in ("input_sequence_length", "output_sequence_length")}
    totals = [None if n is None or not requests else n * requests for n in lengths.values()]
    config = d.get("input_config") or {}
    load = config.get("loadgen", config) if isinstance(config, dict) else {}
    return Bench(
        tool="aiperf",
        kind="serve",
        requests=requests,
        input_tokens=totals[0],
        output_tokens=totals[1],
        requests_per_s=_average(d, "request_throughput"),
        output_tokens_per_s=_average(d, "output_token_throughput"),
        concurrency=_number(load.get("concurrency")) if isinstance(load, dict) else None,
        stats=stats,
        tp=_tp(d),
    )


def _average(d: Mapping[str, Any], key: str) -> float | None:
    block = d.get(key)
    return _number(block.get("avg")) if isinstance(block, dict) else None


def _tp(d: Mapping[str, Any]) -> int:
    return next((n for key in _TP_KEYS if (n := _int(d.get(key)))), 0)


def _rate(value: Any) -> float | None:
    return math.inf if str(value).lower() in ("inf", "infinity") else _number(value)


def _number(value: Any) -> float | None:
    """A finite number, or None; some tools write numbers as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _int(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
