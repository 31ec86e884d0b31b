"""GuideLLM's ``benchmarks.json``: several benchmarks a file, of its older and newer schema.

Its inter-token latency is (E2E - TTFT) / (output - 1), what others call TPOT; its own TPOT holds the first token and is left out.
"""

import math
from collections.abc import Iterator, Mapping

from commtax.files import Json
from commtax.results.bench_record import STATISTICS, TABLE, BenchmarkRun, SentLoad, number, result, spread_of

NAMES: Mapping[str, str] = TABLE["guidellm"]
AT_ONCE, IN_TURN = "throughput", "synchronous"


def is_document(d: Json) -> bool:
    listed = d.get("benchmarks")
    return isinstance(listed, list) and any(isinstance(b, dict) and isinstance(b.get("metrics"), dict) for b in listed)


def from_document(d: Json) -> Iterator[BenchmarkRun]:
    about, asked = _object(d, "metadata"), _object(d, "args")
    for benchmark in d["benchmarks"]:
        if isinstance(benchmark, dict) and isinstance(benchmark.get("metrics"), dict):
            yield _one(benchmark, str(about.get("guidellm_version") or ""), str(asked.get("model") or ""))


def _one(b: Json, version: str, model: str) -> BenchmarkRun:
    metrics = b["metrics"]
    stats = {metric: s for key, metric in NAMES.items() if (s := _statistics(metrics, key, 1e-3 if key.endswith("_ms") else 1.0))}
    totals = _object(metrics, "request_totals") or _object(_object(b, "run_stats"), "requests_made")
    requests = int(number(totals.get("successful")) or 0)
    prompt, answer = (_statistics(metrics, f"{side}_token_count", 1.0) for side in ("prompt", "output"))
    rates = {key: _statistics(metrics, name, 1.0).get("mean") for key, name in TABLE["guidellm_rates"].items()}
    said = {"completed": requests or None, "failed": number(totals.get("errored")), **rates}
    config = _object(b, "config") or _object(b, "args")
    served = str(_object(config, "backend").get("model") or _object(_object(b, "worker"), "backend_args").get("model") or model)
    spread = spread_of(answer.get("mean"), answer.get("std"))
    lengths = prompt.get("mean"), answer.get("mean")
    return result("guidellm", "serve", said, stats, model=served, version=version, spread=spread, lengths=lengths, **_load(config))


def _load(config: Json) -> SentLoad:
    """Clients of a closed loop, or a rate: evenly spaced, or by chance."""
    strategy = _object(config, "strategy")
    kind = str(strategy.get("type_") or strategy.get("type") or "")
    rate, most = number(strategy.get("rate")), number(strategy.get(TABLE["keys"]["concurrency"][0]))
    if kind == IN_TURN:
        return SentLoad(concurrency=1.0)
    if kind == AT_ONCE:
        return SentLoad(request_rate=math.inf, concurrency=most)
    if rate is None:
        return SentLoad(concurrency=number(strategy.get("streams")) or most)
    return SentLoad(request_rate=rate, concurrency=most, burstiness=math.inf if kind.startswith("constant") else 1.0)


def _statistics(metrics: Json, key: str, factor: float) -> dict[str, float]:
    """Of the requests that succeeded, in SI units."""
    held = _object(_object(metrics, key), "successful")
    read = {**{k: held.get(k) for k in ("mean", "median", "std_dev")}, **_object(held, "percentiles")}
    return {STATISTICS.get(k, k): n * factor for k, v in read.items() if (n := number(v)) is not None}


def _object(d: Json, key: str) -> Json:
    value = d.get(key)
    return value if isinstance(value, dict) else {}
