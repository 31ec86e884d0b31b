"""Results of single tools, apart from those that write like vLLM: AIPerf and GenAI-Perf (JSON of blocks ``{unit, avg, p50, …}``, or
CSV), GuideLLM, InferenceX; and texts: vLLM's and SGLang's benchmarks of one batch, MLPerf LoadGen's summary, ``trtllm-bench``.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from commtax.files import JsonObject, list_of, object_of
from commtax.runs.results.bench_record import METRICS, SECONDS, STATISTICS, TABLE, BenchmarkRun, SentLoad, number, result, spread_of
from commtax.runs.results.printed_runs import statistic_of
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.wordings import patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

AIPERF_NAMES: Mapping[str, str] = TABLE["aiperf"]
LOAD: Mapping[str, list[str]] = TABLE["aiperf_load"]
_UNIT = re.compile(r"([^()]{1,80})\(([^()]{1,40})\)\s*+$")
_HEADER = re.compile(r"\s*(?:Metric|Statistic)\s*")
Blocks = Mapping[str, Mapping[str, object]]


def is_aiperf(d: JsonObject) -> bool:
    return any("avg" in object_of(d.get(key)) for key in AIPERF_NAMES)


def from_aiperf(d: JsonObject) -> BenchmarkRun:
    """Read ``profile_export_aiperf.json`` or ``profile_export_genai_perf.json``."""
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
    """Return whether a text begins with the header of the export."""
    return text.lstrip()[:11].lower() == "metric,avg,"


def from_aiperf_csv(text: str) -> Iterator[BenchmarkRun]:
    """Read ``profile_export_aiperf.csv`` or ``profile_export_genai_perf.csv``: a table of metrics, and one of single values."""
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
    """Split a metric's label into its key and unit.

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
    about, options = object_of(d.get("metadata")), object_of(d.get("args"))
    for benchmark in list_of(d["benchmarks"]):
        if isinstance(benchmark, dict) and isinstance(benchmark.get("metrics"), dict):
            yield _one(benchmark, str(about.get("guidellm_version") or ""), str(options.get("model") or ""))


def _one(b: JsonObject, version: str, model: str) -> BenchmarkRun:
    metrics = object_of(b["metrics"])
    units = {key: 1e-3 if key.endswith("_ms") else 1.0 for key in GUIDELLM_NAMES}
    stats = {metric: s for key, metric in GUIDELLM_NAMES.items() if (s := _statistics(metrics, key, units[key]))}
    totals = object_of(metrics.get("request_totals")) or object_of(object_of(b.get("run_stats")).get("requests_made"))
    requests = int(number(totals.get("successful")) or 0)
    prompt, answer = (_statistics(metrics, f"{side}_token_count", 1.0) for side in ("prompt", "output"))
    rates = {key: _statistics(metrics, name, 1.0).get("mean") for key, name in TABLE["guidellm_rates"].items()}
    counts = {"completed": requests or None, "failed": number(totals.get("errored")), **rates}
    config = object_of(b.get("config")) or object_of(b.get("args"))
    backend, worker = object_of(config.get("backend")), object_of(object_of(b.get("worker")).get("backend_args"))
    served = str(backend.get("model") or worker.get("model") or model)
    spread = spread_of(answer.get("mean"), answer.get("std"))
    lengths = prompt.get("mean"), answer.get("mean")
    about = {"model": served, "version": version, "spread": spread, "lengths": lengths}
    return result("guidellm", "serve", counts, stats, **about, **_load(config))


def _load(config: JsonObject) -> SentLoad:
    """Return the load: the clients of a closed loop, or a rate, evenly spaced or at random."""
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
    """Return the statistics of successful requests, in SI units."""
    succeeded = object_of(object_of(metrics.get(key)).get("successful"))
    read = {**{k: succeeded.get(k) for k in ("mean", "median", "std_dev")}, **object_of(succeeded.get("percentiles"))}
    return {STATISTICS.get(k, k): n * factor for k, v in read.items() if (n := number(v)) is not None}


INFERENCEX_KEYS = ("tput_per_gpu", "output_tput_per_gpu")
MEAN_LENGTH, SPREAD = 0.9, 1 / 9  # of the lengths it names, and to either side of that mean
APART = ("workers for prompts", "tp for prompts", "dp for prompts", "workers that decode")
"""Facts of a run whose prompts have workers of their own."""
UNDRAFTED = ("", "none", "false", "off", "0")


def is_inferencex(d: JsonObject) -> bool:
    """Return whether a document is such a summary, or a row of its database, which keeps the figures apart."""
    figures = d.get("metrics")
    return any(key in part for part in (d, figures) if isinstance(part, dict) for key in INFERENCEX_KEYS)


def from_inferencex(d: JsonObject) -> BenchmarkRun:
    figures = d.get("metrics")
    d = {**d, **figures} if isinstance(figures, dict) else d
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        statistic, _, metric = key.partition("_")
        if metric in METRICS and (seconds := number(value)) is not None:
            stats.setdefault(metric, {})[statistic] = seconds
    prefill, decode = (number(d.get(f"num_{part}_gpu")) or 0.0 for part in ("prefill", "decode"))
    apart = decode and (_is_true(d, "disagg") or d.get("is_multinode") is True)  # prompts have GPUs that write no output
    gpus, decoding = (prefill + decode, decode) if apart else (number(d.get("tp")) or decode,) * 2
    rates = {"total_token_throughput": ("tput_per_gpu", gpus), "output_throughput": ("output_tput_per_gpu", decoding)}
    whole = {name: each * count for name, (key, count) in rates.items() if count and (each := number(d.get(key)))}
    lengths = tuple(n * MEAN_LENGTH if (n := number(d.get(key))) else None for key in ("isl", "osl"))
    figures_of_run = {"tp": _sizes(d).get("tp"), "model": d.get("model"), **whole}
    drafted = str(d.get("spec_decoding", d.get("spec_method", ""))).lower() not in UNDRAFTED
    gap, token = (stats.get(metric, {}).get("mean", 0.0) for metric in ("itl", "tpot"))
    accepted = max(1.0, gap / token) if drafted and token else 1.0  # a step sends one chunk, and gaps are between chunks
    chunk_text = f"a step gives {accepted:.2f} tokens (ITL over TPOT)" if accepted > 1 else "how many a step gives is not told"
    notes = (Note("drafted", f"tokens were drafted: {chunk_text}"),) if drafted else ()
    framework = str(d.get("framework") or "").lower()
    engine = next((name for word, name in TABLE["inferencex_engines"].items() if word in framework), framework)
    hardware = next((str(d[key]) for key in TABLE["hardware"] if isinstance(d.get(key), str)), "")
    rate = {"tokens/s per GPU": f"{one:.2f}"} if (one := number(d.get("tput_per_gpu"))) else {}
    named = rate | {"hardware": hardware, "engine": engine, "precision": d.get("precision"), "drafts": d.get("spec_decoding")}
    image = str(d.get("image") or "").rpartition(":")[2]
    named |= {"version": image.lstrip("v")} if image[:2].lstrip("v")[:1].isdigit() else {}
    sizes = {axis: str(size) for axis, size in _sizes(d).items() if axis != "tp"} | _workers(d)
    facts = {name: str(value)[:80] for name, value in (*named.items(), *sizes.items()) if value}
    more = {"facts": facts, "notes": notes, "concurrency": number(d.get("conc"))}
    return result("inferencex", "serve", figures_of_run, stats, lengths=lengths, spread=SPREAD, accepted=accepted, **more)


def _sizes(d: JsonObject, part: str = "") -> dict[str, int]:
    """Return the sizes of a server or decode worker. With data-parallel attention ``tp`` counts the GPUs that share experts."""
    part = part or ("decode_" if _is_true(d, "disagg") and number(d.get("decode_tp")) else "")
    sizes = {axis: int(n) for axis in ("tp", "ep", "dp") if (n := number(d.get(f"{part}{axis}")))}
    groups = _is_true(d, f"{part}dp_attention") and "tp" in sizes
    return {"tp": 1, "dp": sizes["tp"], "ep": sizes["tp"]} if groups else sizes


def _is_true(d: JsonObject, key: str) -> bool:
    return str(d.get(key, "")).lower() == "true"


def _workers(d: JsonObject) -> dict[str, str]:
    """Return how many workers prefill and how many decode, and the sizes of the former, where they are apart."""
    count, decode = (int(number(d.get(f"{part}_num_workers")) or 0) for part in ("prefill", "decode"))
    if not (_is_true(d, "disagg") and count and decode):
        return {}
    ahead = {"tp": 1, "dp": 1, **_sizes(d, "prefill_")}
    return dict(zip(APART, map(str, (count, ahead["tp"], ahead["dp"], decode)), strict=True))


_BATCH_KEYS, _BATCH_TIMES = TABLE["batched"], ("latency", "total_latency", "prefill_latency")


def looks_like_batches(text: str) -> bool:
    return any(pattern.search(text) for pattern in (SAYS.average, SAYS.throughput, SAYS.part))


def parse_batches(text: str) -> Iterator[BenchmarkRun]:
    """Yield all results in order, leaving out batches of SGLang's that only warm up."""
    latency: dict[str, float] = {}
    rates: dict[str, float] = {}
    parts: dict[str, tuple[float, float]] = {}
    warming = False
    options: dict[str, int] = {}
    for line in split_lines(text):
        if "Namespace(" in line[: COUNT.options_signs]:
            options = {name: int(figure) for name, figure in SAYS.option.findall(line[: COUNT.options_signs])}
        if len(line) > COUNT.printed_line:
            continue
        if match := SAYS.average.search(line):
            yield from _latency(latency, options)
            latency = {"mean": _printed_number(match[1])}
        elif latency and (match := SAYS.percentile.search(line)):
            latency["median" if match[1] == "50" else f"p{match[1]}"] = _printed_number(match[2])
        elif match := SAYS.throughput.search(line):
            yield from _throughput(rates, options)
            rates = {k: _printed_number(v) for k, v in zip(("requests", "total", "output"), match.groups(), strict=True) if v}
        elif rates and (match := SAYS.total.search(line)):
            rates[f"{match[1]} tokens"] = _printed_number(match[2])
        elif match := SAYS.part.search(line):
            parts[match[1]] = _printed_number(match[2]), _printed_number(match[3])
            if match[1] == "Total":
                yield from () if warming else _batch(parts)
                parts = {}
        elif line.strip() in ("Warmup ...", "Benchmark ..."):
            parts, warming = {}, line.strip() == "Warmup ..."
    yield from _latency(latency, options)
    yield from _throughput(rates, options)


def _printed_number(figure: str) -> float:
    """Return the printed number, or 0 where it is none."""
    return number(figure) or 0.0


def _latency(stats: dict[str, float], options: dict[str, int]) -> Iterator[BenchmarkRun]:
    """Yield a latency result, with the lengths of its batch where the command's options are printed above."""
    if stats.get("mean"):
        batch, *lengths = (options.get(key) for key in _BATCH_KEYS)
        yield result("vllm", "latency", options, {"e2el": stats}, batch=batch, lengths=tuple(lengths))


def _throughput(rates: dict[str, float], options: dict[str, int]) -> Iterator[BenchmarkRun]:
    """Yield a throughput result, whose duration and number of requests follow from totals where they are printed."""
    if not rates.get("requests"):
        return
    whole = {side: rates.get(f"{side} tokens") for side in ("prompt", "output")}
    duration = whole["output"] / rates["output"] if whole["output"] and rates.get("output") else None
    count = next((options[key] for key in TABLE["keys"]["requests"] if key in options), None)
    requests = round(rates["requests"] * duration) if duration else count
    lengths = tuple(n / requests if n and requests else None for n in (whole["prompt"], whole["output"]))
    if not any(lengths) and rates.get("output"):
        answer = rates["output"] / rates["requests"]
        lengths = max(0.0, rates["total"] / rates["requests"] - answer) or None, answer
    output = {"output_throughput": rates.get("output")}
    speeds = {"requests_per_second": rates["requests"], "tokens_per_second": rates["total"], **output}
    totals = {"total_input_tokens": whole["prompt"], "total_output_tokens": whole["output"], "num_requests": requests}
    yield result("vllm", "throughput", {**options, **speeds, **totals}, duration_s=duration, request_rate=math.inf, lengths=lengths)


def _batch(parts: dict[str, tuple[float, float]]) -> Iterator[BenchmarkRun]:
    """Yield the result of a batch. Latency times throughput gives its tokens: of all prompts, of a step, and in total."""
    if set(parts) != {"Prefill", "Decode", "Total"}:
        return
    (prefill, of_prompts), (decode, of_step), (total, of_all) = (parts[k] for k in ("Prefill", "Decode", "Total"))
    batch = max(1, round(decode * of_step))
    prompt, whole = prefill * of_prompts / batch, total * of_all / batch
    stats = {"ttft": {"mean": prefill}, "tpot": {"median": decode}, "e2el": {"mean": total}}
    lengths = float(round(prompt)), float(max(1, round(whole - prompt)))
    yield result("sglang", "latency", {}, stats, batch=batch, requests=batch, lengths=lengths)


def is_batch(d: JsonObject) -> bool:
    """Return whether a document is a line of ``sglang.bench_one_batch`` or ``bench_one_batch_server``."""
    return all(number(d.get(key)) for key in _BATCH_KEYS) and any(key in d for key in _BATCH_TIMES)


def from_batch(d: JsonObject) -> BenchmarkRun:
    batch, prompt, answer = (int(number(d[key]) or 0) for key in _BATCH_KEYS)
    whole, first = (_first_number(d, *keys) for keys in (("total_latency", "latency"), ("prefill_latency", "last_ttft")))
    step, rate = _first_number(d, "median_decode_latency"), number(d.get("output_throughput"))
    if step is None and whole and first and answer > 1 and whole > first:
        step = (whole - first) / (answer - 1)
    stats = {m: {"mean": s} for m, s in (("e2el", whole), ("ttft", first), ("tpot", step)) if s}
    accepted = max(1.0, number(d.get("acc_length")) or 1.0)
    sizes = {"requests": batch, "batch": batch, "lengths": (float(prompt), float(answer)), "accepted": accepted}
    return result("sglang", "latency", d, stats, output_tokens_per_s=rate, **sizes)


def _first_number(d: Mapping[str, object], *keys: str) -> float | None:
    return next((n for key in keys if (n := number(d.get(key)))), None)


TITLE = "MLPerf Results Summary"
NS = 1e-9
FIRST = "SUT name : "  # the line below the title
_MLPERF_METRICS = {"first token latency": "ttft", "latency": "e2el"}  # else: of an output token
_SAMPLES = ("completed samples per second", "samples per second")
_TOKENS = ("completed tokens per second", "tokens per second", "tokens per second (inferred)")
_SCENARIOS = ("offline", "server", "interactive", "singlestream", "multistream")


def looks_like_mlperf(text: str) -> bool:
    return TITLE in text or (FIRST in text and "Result is : " in text)


def parse_mlperf(text: str) -> Iterator[BenchmarkRun]:
    summaries: list[dict[str, str]] = []
    for line in split_lines(text):
        if TITLE in line or (FIRST in line and (not summaries or "sut name" in summaries[-1])):
            summaries.append({})
        if summaries and len(line) <= COUNT.printed_line and (pair := SAYS.pair.search(line)):
            summaries[-1].setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    yield from map(_mlperf_result, filter(None, summaries))


def _mlperf_result(summary: dict[str, str]) -> BenchmarkRun:
    stats: dict[str, dict[str, float]] = {}
    for label, value in summary.items():
        match, seconds = SAYS.latency.fullmatch(label), number(value)
        if match and seconds:  # samples without tokens of their own have 0 here
            stats.setdefault(_MLPERF_METRICS.get(match[2], "tpot"), {})[statistic_of(match[1].split()[0], True)] = seconds * NS
    samples, tokens = (_first_number(summary, *keys) for keys in (_SAMPLES, _TOKENS))
    scenario = summary.get("scenario", "").lower()
    rate = _first_number(summary, "scheduled samples per second", "target_qps")
    rates = {"offline": math.inf, "server": rate, "interactive": rate}
    load = SentLoad(request_rate=rates.get(scenario), concurrency=1.0 if scenario == "singlestream" else None)
    queried = number(summary.get("samples_per_query")) if scenario == "offline" else None
    figures = {"completed": queried, "request_throughput": samples, "output_throughput": tokens, "model": None}
    facts = {k: summary[k] for k in ("scenario", "mode", "result is", "sut name") if k in summary}
    length = tokens / samples if tokens and samples and tokens > samples else None
    kind = "throughput" if scenario == "offline" else "serve"
    return result("mlperf", kind, figures, stats, lengths=(None, length), facts=facts, notes=tuple(_notes(summary)), **load)


def _notes(summary: dict[str, str]) -> Iterator[Note]:
    if summary.get("result is", "").upper().startswith("INVALID"):
        no = [label for label, value in summary.items() if label.endswith("satisfied") and value.upper() == "NO"]
        missed = [label.replace(" satisfied", " not satisfied") for label in no]
        yield Note("invalid", f"LoadGen calls the run INVALID{': ' if missed else ''}{', '.join(missed)}")
    if summary.get("scenario", "").lower() not in _SCENARIOS:
        yield Note("partial", "the summary is cut off before its scenario: what load it was is not known")


MS = 1e-3
_METRICS = ("ttft", "tpot", "itl")  # else: of a request
TRTLLM = TABLE["trtllm"]


def looks_like_trtllm(text: str) -> bool:
    return SAYS.title.search(text) is not None


def parse_trtllm(text: str) -> Iterator[BenchmarkRun]:
    """Yield a result for each overview, with what stands above it since the last one."""
    labels: dict[str, str] = {}
    stats: dict[str, dict[str, float]] = {}
    seen = False
    for line in (line for line in split_lines(text) if len(line) <= COUNT.printed_line):
        if "BACKEND" in line[:80] and line.lstrip("= ").startswith(("PYTORCH", "ENGINE", "_AUTODEPLOY", "TENSORRT")) and seen:
            yield from _results_by_column(labels, stats)
            labels, stats, seen = {}, {}, False
        seen = seen or SAYS.title.match(line) is not None
        if part := SAYS.trtllm_part.search(line):
            metric, statistic = part[1].lower(), part[2].lower()
            kept = stats.setdefault(metric if metric in _METRICS else "e2el", {})
            kept[TRTLLM["statistics"].get(statistic, statistic)] = (number(part[3]) or 0.0) * MS
        elif pair := SAYS.trtllm_pair.match(line):
            labels.setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    if seen:
        yield from _results_by_column(labels, stats)


def _results_by_column(labels: Mapping[str, str], stats: dict[str, dict[str, float]]) -> Iterator[BenchmarkRun]:
    """Yield one result, or one for each column of an overview that compares builds."""
    cells = {name: [cell.strip() for cell in value.strip("| ").split("|")] for name, value in labels.items()}
    columns = max((len(row) for row in cells.values()), default=1)
    for at in range(min(columns, COUNT.most_columns)):
        column = {name: row[at] if at < len(row) else row[0] if len(row) == 1 else "" for name, row in cells.items()}
        yield _trtllm_result(column, {metric: dict(kept) for metric, kept in stats.items()})


def _trtllm_result(labels: Mapping[str, str], stats: dict[str, dict[str, float]]) -> BenchmarkRun:
    def figure(name: str) -> float | None:
        return number(labels.get(name))

    for name, metric in TRTLLM["means"].items():
        if (mean := figure(name)) is not None:
            stats.setdefault(metric, {}).setdefault("mean", mean * MS)
    rate, whole = figure("issue rate (req/sec)"), figure("total latency (ms)")
    figures = {"model": labels.get("model", ""), **{key: figure(label) for key, label in TRTLLM["figures"].items()}}
    limited = rate is not None and rate <= LEVEL.limitless
    lengths = figure("average input length (tokens)"), figure("average output length (tokens)")
    facts = {name: labels[label] for label, name in TRTLLM["facts"].items() if label in labels and labels[label] != "None"}
    duration, sent = whole * MS if whole else None, rate if rate and limited else math.inf
    kind = "serve" if limited else "throughput"
    return result("trtllm", kind, figures, stats, duration_s=duration, request_rate=sent, lengths=lengths, facts=facts)
