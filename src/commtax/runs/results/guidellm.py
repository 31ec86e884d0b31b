"""GuideLLM's ``benchmarks.json``: several benchmarks a file, of its older and newer schema.

Its inter-token latency is (E2E - TTFT) / (output - 1), what others call TPOT; its own TPOT holds the first token and is left out.
"""

import math
from collections.abc import Iterator, Mapping

from commtax.files import JsonObject, list_of, object_of
from commtax.runs.results.bench_record import STATISTICS, TABLE, BenchmarkRun, SentLoad, number, result, spread_of

NAMES: Mapping[str, str] = TABLE["guidellm"]
AT_ONCE, IN_TURN = "throughput", "synchronous"


def is_document(d: JsonObject) -> bool:
    return any(isinstance(b, dict) and isinstance(b.get("metrics"), dict) for b in list_of(d.get("benchmarks")))


def from_document(d: JsonObject) -> Iterator[BenchmarkRun]:
    about, asked = object_of(d.get("metadata")), object_of(d.get("args"))
    for benchmark in list_of(d["benchmarks"]):
        if isinstance(benchmark, dict) and isinstance(benchmark.get("metrics"), dict):
            yield _one(benchmark, str(about.get("guidellm_version") or ""), str(asked.get("model") or ""))


def _one(b: JsonObject, version: str, model: str) -> BenchmarkRun:
    metrics = object_of(b["metrics"])
    stats = {metric: s for key, metric in NAMES.items() if (s := _statistics(metrics, key, 1e-3 if key.endswith("_ms") else 1.0))}
    totals = object_of(metrics.get("request_totals")) or object_of(object_of(b.get("run_stats")).get("requests_made"))
    requests = int(number(totals.get("successful")) or 0)
    prompt, answer = (_statistics(metrics, f"{side}_token_count", 1.0) for side in ("prompt", "output"))
    rates = {key: _statistics(metrics, name, 1.0).get("mean") for key, name in TABLE["guidellm_rates"].items()}
    said = {"completed": requests or None, "failed": number(totals.get("errored")), **rates}
    config = object_of(b.get("config")) or object_of(b.get("args"))
    backend, worker = object_of(config.get("backend")), object_of(object_of(b.get("worker")).get("backend_args"))
    served = str(backend.get("model") or worker.get("model") or model)
    spread = spread_of(answer.get("mean"), answer.get("std"))
    lengths = prompt.get("mean"), answer.get("mean")
    return result("guidellm", "serve", said, stats, model=served, version=version, spread=spread, lengths=lengths, **_load(config))


def _load(config: JsonObject) -> SentLoad:
    """Clients of a closed loop, or a rate: evenly spaced, or by chance."""
    strategy = object_of(config.get("strategy"))
    kind = str(strategy.get("type_") or strategy.get("type") or "")
    rate, most = number(strategy.get("rate")), number(strategy.get(TABLE["keys"]["concurrency"][0]))
    if kind == IN_TURN:
        return SentLoad(concurrency=1.0)
    if kind == AT_ONCE:
        return SentLoad(request_rate=math.inf, concurrency=most)
    if rate is None:
        return SentLoad(concurrency=number(strategy.get("streams")) or most)
    return SentLoad(request_rate=rate, concurrency=most, burstiness=math.inf if kind.startswith("constant") else 1.0)


def _statistics(metrics: JsonObject, key: str, factor: float) -> dict[str, float]:
    """Of the requests that succeeded, in SI units."""
    held = object_of(object_of(metrics.get(key)).get("successful"))
    read = {**{k: held.get(k) for k in ("mean", "median", "std_dev")}, **object_of(held.get("percentiles"))}
    return {STATISTICS.get(k, k): n * factor for k, v in read.items() if (n := number(v)) is not None}
