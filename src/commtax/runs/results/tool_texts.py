"""Texts of single tools: vLLM's and SGLang's benchmarks of one batch, MLPerf LoadGen's summary, and ``trtllm-bench``."""

import math
from collections.abc import Iterator, Mapping

from commtax.files import JsonObject
from commtax.runs.results.bench_record import TABLE, BenchmarkRun, SentLoad, number, result
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.wordings import patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

_BATCH_KEYS, _BATCH_TIMES = TABLE["batched"], ("latency", "total_latency", "prefill_latency")


def looks_like_batches(text: str) -> bool:
    return any(pattern.search(text) for pattern in (SAYS.average, SAYS.throughput, SAYS.part))


def parse_batches(text: str) -> Iterator[BenchmarkRun]:
    """All results in their order; a batch of SGLang's that only warmed up is left out."""
    latency: dict[str, float] = {}
    rates: dict[str, float] = {}
    parts: dict[str, tuple[float, float]] = {}
    warming = False
    asked: dict[str, int] = {}
    for line in split_lines(text):
        if "Namespace(" in line[: COUNT.options_signs]:
            asked = {name: int(figure) for name, figure in SAYS.option.findall(line[: COUNT.options_signs])}
        if len(line) > COUNT.longest_line:
            continue
        if match := SAYS.average.search(line):
            yield from _latency(latency, asked)
            latency = {"mean": _printed_number(match[1])}
        elif latency and (match := SAYS.percentile.search(line)):
            latency["median" if match[1] == "50" else f"p{match[1]}"] = _printed_number(match[2])
        elif match := SAYS.throughput.search(line):
            yield from _throughput(rates, asked)
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
    yield from _latency(latency, asked)
    yield from _throughput(rates, asked)


def _printed_number(figure: str) -> float:
    """What was printed; 0 where it is no number."""
    return number(figure) or 0.0


def _latency(stats: dict[str, float], asked: dict[str, int]) -> Iterator[BenchmarkRun]:
    """With the lengths of its batch, where the command's options are printed above."""
    if stats.get("mean"):
        batch, *lengths = (asked.get(key) for key in _BATCH_KEYS)
        yield result("vllm", "latency", asked, {"e2el": stats}, batch=batch, lengths=tuple(lengths))


def _throughput(rates: dict[str, float], asked: dict[str, int]) -> Iterator[BenchmarkRun]:
    """Totals, where they are printed, tell how long it took and how many requests there were."""
    if not rates.get("requests"):
        return
    whole = {side: rates.get(f"{side} tokens") for side in ("prompt", "output")}
    duration = whole["output"] / rates["output"] if whole["output"] and rates.get("output") else None
    told = next((asked[key] for key in TABLE["keys"]["requests"] if key in asked), None)
    requests = round(rates["requests"] * duration) if duration else told
    lengths = tuple(n / requests if n and requests else None for n in (whole["prompt"], whole["output"]))
    if not any(lengths) and rates.get("output"):
        answer = rates["output"] / rates["requests"]
        lengths = max(0.0, rates["total"] / rates["requests"] - answer) or None, answer
    said = {"requests_per_second": rates["requests"], "tokens_per_second": rates["total"], "output_throughput": rates.get("output")}
    totals = {"total_input_tokens": whole["prompt"], "total_output_tokens": whole["output"], "num_requests": requests}
    yield result("vllm", "throughput", {**asked, **said, **totals}, duration_s=duration, request_rate=float("inf"), lengths=lengths)


def _batch(parts: dict[str, tuple[float, float]]) -> Iterator[BenchmarkRun]:
    """Latency times throughput are the tokens: of all prompts, of a step, and of all in all."""
    if set(parts) != {"Prefill", "Decode", "Total"}:
        return
    (prefill, of_prompts), (decode, of_step), (total, of_all) = (parts[k] for k in ("Prefill", "Decode", "Total"))
    batch = max(1, round(decode * of_step))
    prompt, whole = prefill * of_prompts / batch, total * of_all / batch
    stats = {"ttft": {"mean": prefill}, "tpot": {"median": decode}, "e2el": {"mean": total}}
    lengths = float(round(prompt)), float(max(1, round(whole - prompt)))
    yield result("sglang", "latency", {}, stats, batch=batch, requests=batch, lengths=lengths)


def is_batch(d: JsonObject) -> bool:
    """Whether a document is a line of ``sglang.bench_one_batch`` or ``bench_one_batch_server``."""
    return all(number(d.get(key)) for key in _BATCH_KEYS) and any(key in d for key in _BATCH_TIMES)


def from_batch(d: JsonObject) -> BenchmarkRun:
    batch, prompt, answer = (int(number(d[key]) or 0) for key in _BATCH_KEYS)
    whole, first = (_first_number(d, *keys) for keys in (("total_latency", "latency"), ("prefill_latency", "last_ttft")))
    step, rate = _first_number(d, "median_decode_latency"), number(d.get("output_throughput"))
    if step is None and whole and first and answer > 1 and whole > first:
        step = (whole - first) / (answer - 1)
    stats = {m: {"mean": s} for m, s in (("e2el", whole), ("ttft", first), ("tpot", step)) if s}
    accepted = max(1.0, number(d.get("acc_length")) or 1.0)
    said = {"requests": batch, "batch": batch, "lengths": (float(prompt), float(answer)), "accepted": accepted}
    return result("sglang", "latency", d, stats, output_tokens_per_s=rate, **said)


def _first_number(d: JsonObject, *keys: str) -> float | None:
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
        if summaries and len(line) <= COUNT.longest_line and (pair := SAYS.pair.search(line)):
            summaries[-1].setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    yield from map(_mlperf_result, filter(None, summaries))


def _mlperf_result(held: dict[str, str]) -> BenchmarkRun:
    stats: dict[str, dict[str, float]] = {}
    for label, value in held.items():
        match, seconds = SAYS.latency.fullmatch(label), number(value)
        if match and seconds:  # samples without tokens of their own have 0 here
            stats.setdefault(_MLPERF_METRICS.get(match[2], "tpot"), {})[_statistic(match[1])] = seconds * NS
    samples, tokens = (next((n for k in keys if (n := number(held.get(k)))), None) for keys in (_SAMPLES, _TOKENS))
    scenario = held.get("scenario", "").lower()
    rate = number(held.get("scheduled samples per second")) or number(held.get("target_qps"))
    rates = {"offline": math.inf, "server": rate, "interactive": rate}
    load = SentLoad(request_rate=rates.get(scenario), concurrency=1.0 if scenario == "singlestream" else None)
    asked = number(held.get("samples_per_query")) if scenario == "offline" else None
    said = {"completed": asked, "request_throughput": samples, "output_throughput": tokens, "model": None}
    facts = {k: held[k] for k in ("scenario", "mode", "result is", "sut name") if k in held}
    length = tokens / samples if tokens and samples and tokens > samples else None
    kind = "throughput" if scenario == "offline" else "serve"
    return result("mlperf", kind, said, stats, lengths=(None, length), facts=facts, notes=tuple(_notes(held)), **load)


def _statistic(said: str) -> str:
    """``mean``, ``median`` or ``p99``.

    >>> _statistic("50.00 percentile"), _statistic("99.90 percentile")
    ('median', 'p99.9')
    """
    share = number(said.split()[0])
    return "mean" if share is None else "median" if share == 50 else f"p{share:g}"


def _notes(held: dict[str, str]) -> Iterator[Note]:
    if held.get("result is", "").upper().startswith("INVALID"):
        no = [label for label, value in held.items() if label.endswith("satisfied") and value.upper() == "NO"]
        missed = [label.replace(" satisfied", " not satisfied") for label in no]
        yield Note("invalid", f"LoadGen calls the run INVALID{': ' if missed else ''}{', '.join(missed)}")
    if held.get("scenario", "").lower() not in _SCENARIOS:
        yield Note("partial", "the summary is cut off before its scenario: what load it was is not known")


MS = 1e-3
_METRICS = ("ttft", "tpot", "itl")  # else: of a request
TRTLLM = TABLE["trtllm"]


def looks_like_trtllm(text: str) -> bool:
    return SAYS.title.search(text) is not None


def parse_trtllm(text: str) -> Iterator[BenchmarkRun]:
    """A result for each overview, with what stands above it since the last."""
    held: dict[str, str] = {}
    stats: dict[str, dict[str, float]] = {}
    seen = False
    for line in (line for line in split_lines(text) if len(line) <= COUNT.longest_line):
        if "BACKEND" in line[:80] and line.lstrip("= ").startswith(("PYTORCH", "ENGINE", "_AUTODEPLOY", "TENSORRT")) and seen:
            yield from _results_by_column(held, stats)
            held, stats, seen = {}, {}, False
        seen = seen or SAYS.title.match(line) is not None
        if part := SAYS.trtllm_part.search(line):
            metric, statistic = part[1].lower(), part[2].lower()
            kept = stats.setdefault(metric if metric in _METRICS else "e2el", {})
            kept[TRTLLM["statistics"].get(statistic, statistic)] = (number(part[3]) or 0.0) * MS
        elif pair := SAYS.trtllm_pair.match(line):
            held.setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    if seen:
        yield from _results_by_column(held, stats)


def _results_by_column(held: Mapping[str, str], stats: dict[str, dict[str, float]]) -> Iterator[BenchmarkRun]:
    """One result; of an overview whose figures stand in columns, as those of two builds beside each other, one for each column."""
    cells = {name: [cell.strip() for cell in value.strip("| ").split("|")] for name, value in held.items()}
    columns = max((len(row) for row in cells.values()), default=1)
    for at in range(min(columns, COUNT.most_columns)):
        column = {name: row[at] if at < len(row) else row[0] if len(row) == 1 else "" for name, row in cells.items()}
        yield _trtllm_result(column, {metric: dict(kept) for metric, kept in stats.items()})


def _trtllm_result(held: Mapping[str, str], stats: dict[str, dict[str, float]]) -> BenchmarkRun:
    def said(name: str) -> float | None:
        return number(held.get(name))

    for name, metric in TRTLLM["means"].items():
        if (mean := said(name)) is not None:
            stats.setdefault(metric, {}).setdefault("mean", mean * MS)
    rate, whole = said("issue rate (req/sec)"), said("total latency (ms)")
    figures = {"model": held.get("model", ""), **{key: said(label) for key, label in TRTLLM["figures"].items()}}
    return result(
        "trtllm",
        "throughput" if rate is None or rate > LEVEL.limitless else "serve",
        figures,
        stats,
        duration_s=whole * MS if whole else None,
        request_rate=rate if rate and rate <= LEVEL.limitless else math.inf,
        lengths=(said("average input length (tokens)"), said("average output length (tokens)")),
        facts={name: held[label] for label, name in TRTLLM["facts"].items() if label in held and held[label] != "None"},
    )
