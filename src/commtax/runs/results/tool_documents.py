"""Documents of single tools: AIPerf and GenAI-Perf (JSON of blocks ``{unit, avg, p50, …}``, or CSV), GuideLLM, InferenceX."""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from commtax.files import JsonObject, list_of, object_of
from commtax.runs.results.bench_record import METRICS, SECONDS, STATISTICS, TABLE, BenchmarkRun, SentLoad, number, result, spread_of
from commtax.statement import Note
from commtax.thresholds import counts
from commtax.wordings import split_lines

COUNT = counts(__name__)

AIPERF_NAMES: Mapping[str, str] = TABLE["aiperf"]
LOAD: Mapping[str, list[str]] = TABLE["aiperf_load"]
_UNIT = re.compile(r"([^()]{1,80})\(([^()]{1,40})\)\s*+$")
_HEADER = re.compile(r"\s*(?:Metric|Statistic)\s*")
Blocks = Mapping[str, Mapping[str, object]]


def is_aiperf(d: JsonObject) -> bool:
    return any("avg" in object_of(d.get(key)) for key in AIPERF_NAMES)


def from_aiperf(d: JsonObject) -> BenchmarkRun:
    """``profile_export_aiperf.json`` or ``profile_export_genai_perf.json``."""
    blocks = {key: block for key, block in d.items() if isinstance(block, dict)}
    flat = {**d, **{key: block.get("avg") for key, block in blocks.items() if "avg" in block}}
    config = blocks.get("input_config", {})
    kept = [p for p in list_of(config.get("phases")) if isinstance(p, dict) and not p.get("exclude_from_results")]
    older = [config.get("loadgen"), config.get("perf_analyzer"), config]
    load = next((part for part in (*kept, *older) if isinstance(part, dict)), JsonObject())
    stimulus, endpoint = map(object_of, (load.get("stimulus"), config.get("endpoint")))
    named = [m.get("name") for m in list_of(object_of(config.get("models")).get("items")) if isinstance(m, dict)]
    models = endpoint.get("model_names") or config.get("model_names") or named or [config.get("model")]
    load_options = {
        **{key: next((v for at in (load, stimulus) for k in keys if (v := at.get(k))), None) for key, keys in LOAD.items()},
        "model": models[0] if isinstance(models, list) and models else models,
    }
    return _make_result(blocks, {**flat, **load_options}, str(d.get("aiperf_version") or d.get("version") or ""))


def _make_result(blocks: Blocks, flat: Mapping[str, object], version: str = "") -> BenchmarkRun:
    stats: dict[str, dict[str, float]] = {}
    for key, metric in AIPERF_NAMES.items():
        block = blocks.get(key, {})
        if "avg" in block:
            factor = SECONDS.get(str(block.get("unit", "ms")), 1e-3)
            read = {k: n for k, v in block.items() if k not in ("unit", "count", "sum") and (n := number(v)) is not None}
            stats[metric] = {STATISTICS.get(k, k): n * factor for k, n in read.items()}
    lengths = tuple(number(flat.get(f"{side}_sequence_length", flat.get(f"num_{side}_token"))) for side in ("input", "output"))
    spread = spread_of(lengths[1], number(blocks.get("output_sequence_length", {}).get("std")))
    requests = int(number(flat.get("request_count")) or 0)
    totals = {f"total_{side}_tokens": n * requests for side, n in zip(("input", "output"), lengths, strict=True) if n and requests}
    return result("aiperf", "serve", {**flat, **totals}, stats, version=version, spread=spread, lengths=lengths)


def is_aiperf_csv(text: str) -> bool:
    """Whether a text begins with the header of the export."""
    return text.lstrip()[:11].lower() == "metric,avg,"


def from_aiperf_csv(text: str) -> Iterator[BenchmarkRun]:
    """``profile_export_aiperf.csv`` or ``profile_export_genai_perf.csv``: a table of metrics, and one of single values."""
    lines = (line for line in split_lines(text) if len(line) <= COUNT.longest_line)
    rows = islice(csv.reader(lines, strict=False), COUNT.most_rows)
    header: list[str] = []
    tables: list[dict[str, dict[str, str | None]]] = [{}]
    for cells in rows:
        if cells and _HEADER.fullmatch(cells[0]):
            header = [cell.strip() for cell in cells]
            tables += [{}] if "avg" in header and _has_metrics(tables[-1]) else []
        elif header and len(cells) > 1:
            name, unit = _key_and_unit(cells[0])
            values = dict(zip(header[1:], cells[1:], strict=False))
            tables[-1][name] = {"unit": unit, **({"avg": values.get("Value")} if "Value" in values else values)}
    for blocks in filter(_has_metrics, tables):
        yield _make_result(blocks, {key: block.get("avg") for key, block in blocks.items()})


def _has_metrics(blocks: Blocks) -> bool:
    return any(number(blocks.get(key, {}).get("avg")) is not None for key in AIPERF_NAMES)


def _key_and_unit(cell: str) -> tuple[str, str]:
    """A metric's key and unit.

    >>> _key_and_unit("Time to First Token (ms)"), _key_and_unit("Output token throughput (per sec)")
    (('time_to_first_token', 'ms'), ('output_token_throughput', 'per sec'))
    """
    match = _UNIT.match(cell.strip()[:160])
    name, unit = (match[1], match[2]) if match else (cell, "")
    return "_".join(name.lower().split()), unit


GUIDELLM_NAMES: Mapping[str, str] = TABLE["guidellm"]
AT_ONCE, IN_TURN = "throughput", "synchronous"


def is_guidellm(d: JsonObject) -> bool:
    return any(isinstance(b, dict) and isinstance(b.get("metrics"), dict) for b in list_of(d.get("benchmarks")))


def from_guidellm(d: JsonObject) -> Iterator[BenchmarkRun]:
    about, asked = object_of(d.get("metadata")), object_of(d.get("args"))
    for benchmark in list_of(d["benchmarks"]):
        if isinstance(benchmark, dict) and isinstance(benchmark.get("metrics"), dict):
            yield _one(benchmark, str(about.get("guidellm_version") or ""), str(asked.get("model") or ""))


def _one(b: JsonObject, version: str, model: str) -> BenchmarkRun:
    metrics = object_of(b["metrics"])
    stats = {
        metric: s
        for key, metric in GUIDELLM_NAMES.items()
        if (s := _statistics(metrics, key, 1e-3 if key.endswith("_ms") else 1.0))
    }
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


INFERENCEX_KEYS = ("tput_per_gpu", "output_tput_per_gpu")
MEAN_LENGTH, SPREAD = 0.9, 1 / 9  # of the lengths it names, and to either side of that mean
APART = ("workers for prompts", "tp for prompts", "dp for prompts", "workers that decode")
"""Facts of a run whose prompts have workers of their own."""
UNDRAFTED = ("", "none", "false", "off", "0")
_ENGINES = {"trt": "trtllm", "tensorrt": "trtllm", "sglang": "sglang", "vllm": "vllm"}


def is_inferencex(d: JsonObject) -> bool:
    """Whether a document is such a summary, or a row of its database, which keeps the figures apart."""
    held = d.get("metrics")
    return any(key in part for part in (d, held) if isinstance(part, dict) for key in INFERENCEX_KEYS)


def from_inferencex(d: JsonObject) -> BenchmarkRun:
    held = d.get("metrics")
    d = {**d, **held} if isinstance(held, dict) else d
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        statistic, _, metric = key.partition("_")
        if metric in METRICS and (seconds := number(value)) is not None:
            stats.setdefault(metric, {})[statistic] = seconds
    gpus, decoding = _gpus(d)
    rates = {"total_token_throughput": ("tput_per_gpu", gpus), "output_throughput": ("output_tput_per_gpu", decoding)}
    whole = {name: each * count for name, (key, count) in rates.items() if count and (each := number(d.get(key)))}
    lengths = tuple(n * MEAN_LENGTH if (n := number(d.get(key))) else None for key in ("isl", "osl"))
    said = {"tp": _sizes(d).get("tp"), "model": d.get("model"), **whole}
    drafted = str(d.get("spec_decoding", d.get("spec_method", ""))).lower() not in UNDRAFTED
    accepted = _chunk(stats) if drafted else 1.0
    told = f"a step gives {accepted:.2f} tokens (ITL over TPOT)" if accepted > 1 else "how many a step gives is not told"
    notes = (Note("drafted", f"tokens were drafted: {told}"),) if drafted else ()
    more = {"facts": _facts(d), "notes": notes, "concurrency": number(d.get("conc"))}
    return result("inferencex", "serve", said, stats, lengths=lengths, spread=SPREAD, accepted=accepted, **more)


def _gpus(d: JsonObject) -> tuple[float, float]:
    """GPUs that all tokens are divided by, and those that output is; 0 where they are not told."""
    prefill, decode = (number(d.get(f"num_{part}_gpu")) or 0.0 for part in ("prefill", "decode"))
    apart = str(d.get("disagg", "")).lower() == "true" or d.get("is_multinode") is True
    if apart and decode:
        return prefill + decode, decode
    return (number(d.get("tp")) or decode,) * 2


def _sizes(d: JsonObject, part: str = "") -> dict[str, int]:
    """Sizes of a server, or of a worker that decodes: with data-parallel attention ``tp`` counts the GPUs that share experts."""
    part = part or ("decode_" if _is_apart(d) and number(d.get("decode_tp")) else "")
    told = {axis: int(n) for axis in ("tp", "ep", "dp") if (n := number(d.get(f"{part}{axis}")))}
    groups = str(d.get(f"{part}dp_attention", "")).lower() == "true"
    return {"tp": 1, "dp": told["tp"], "ep": told["tp"]} if groups and "tp" in told else told


def _is_apart(d: JsonObject) -> bool:
    return str(d.get("disagg", "")).lower() == "true"


def _workers(d: JsonObject) -> dict[str, str]:
    """How many workers compute prompts and how many decode, and the sizes of the first, where they are apart."""
    count, decode = (int(number(d.get(f"{part}_num_workers")) or 0) for part in ("prefill", "decode"))
    if not (_is_apart(d) and count and decode):
        return {}
    ahead = {"tp": 1, "dp": 1, **_sizes(d, "prefill_")}
    return dict(zip(APART, map(str, (count, ahead["tp"], ahead["dp"], decode)), strict=True))


def _chunk(stats: dict[str, dict[str, float]]) -> float:
    """Tokens of a step: a step sends one chunk, and gaps between chunks are as many times the time of a token."""
    gap, token = (stats.get(metric, {}).get("mean", 0.0) for metric in ("itl", "tpot"))
    return max(1.0, gap / token) if token else 1.0


def _facts(d: JsonObject) -> dict[str, str]:
    """Chips, engine, number format and how the parts lie."""
    framework = str(d.get("framework") or "").lower()
    engine = next((name for word, name in _ENGINES.items() if word in framework), framework)
    hardware = next((str(d[key]) for key in TABLE["hardware"] if isinstance(d.get(key), str)), "")
    rate = {"tokens/s per GPU": f"{each:.2f}"} if (each := number(d.get("tput_per_gpu"))) else {}
    named = rate | {"hardware": hardware, "engine": engine, "precision": d.get("precision"), "drafts": d.get("spec_decoding")}
    image = str(d.get("image") or "").rpartition(":")[2]
    named |= {"version": image.lstrip("v")} if image[:2].lstrip("v")[:1].isdigit() else {}
    sizes = {axis: str(size) for axis, size in _sizes(d).items() if axis != "tp"} | _workers(d)
    return {name: str(value)[:80] for name, value in (*named.items(), *sizes.items()) if value}
