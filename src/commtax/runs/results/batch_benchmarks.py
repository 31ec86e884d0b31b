"""What benchmarks of one batch print: ``vllm bench latency`` and ``throughput``, and ``sglang.bench_one_batch``."""

from collections.abc import Iterator

from commtax.files import JsonObject
from commtax.runs.results.bench_record import TABLE, BenchmarkRun, number, result
from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)
SAYS = patterns(__name__)
_BATCH_KEYS, _BATCH_TIMES = TABLE["batched"], ("latency", "total_latency", "prefill_latency")


def looks_like(text: str) -> bool:
    return any(pattern.search(text) for pattern in (SAYS.average, SAYS.throughput, SAYS.part))


def parse(text: str) -> Iterator[BenchmarkRun]:
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
