"""Results of benchmarks, recognised by their content; seconds inside.

JSON, JSON lines and CSV: ``vllm bench latency|throughput|serve`` and its sweeps, ``sglang.bench_serving``, ``bench_one_batch`` and
``bench_one_batch_server``, AIPerf, GenAI-Perf, GuideLLM, InferenceX. Text: what those and trtllm-bench print, MLPerf's summary, a
server's ``/metrics``.

Which keys are there differs by tool and version; a key that is missing leaves None. TPOT is (E2E - TTFT) / (output - 1) in all of
them; ITL is the list of gaps between chunks of a stream, which may hold several tokens. Of JSON that ends too early, or
is damaged somewhere, all is read that is whole before that place.
"""

import csv
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from statistics import fmean, median, pstdev

from commtax.files import JSON_MEMORY_BYTES, Json, JsonObject, memory_of, need_list, need_number, need_object, parse_documents
from commtax.runs.results import exposition, printed, printed_runs, tool_documents
from commtax.runs.results.bench_record import METRICS, TABLE, BenchmarkRun, number, result, spread_of, thirds_of
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.wordings import split_lines

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \n\r\t]*")

COUNT = counts(__name__)
KEYS = tuple(f'"{key}"'.encode() for key in (*TABLE["told_by"], *tool_documents.INFERENCEX_KEYS))
_LINE = re.compile(r'^\{"\w{1,60}": .{0,4000}?"(?:total_output_tokens|output_throughput)": ', re.M)  # with which a result begins
COLUMNS = ("mean_ttft_ms", "request_throughput", "output_throughput")  # any of a sweep's table
NOTHING = "no key of vllm bench, sglang.bench_serving or bench_one_batch, AIPerf, GenAI-Perf, GuideLLM or InferenceX found"

SPECIAL = (
    (tool_documents.looks_like_mlperf, tool_documents.parse_mlperf),
    (exposition.looks_like, exposition.parse),
    (tool_documents.looks_like_batches, tool_documents.parse_batches),
    (tool_documents.looks_like_trtllm, tool_documents.parse_trtllm),
)
"""What single tools print: how it is recognised, and its parser. ``printed`` reads all others."""


def looks_like_data(head: bytes) -> bool:
    """Return whether JSON begins with a key of a result."""
    return any(key in head for key in KEYS) or printed_runs.are_labels(head)


def looks_like_text(text: str) -> bool:
    """Return whether a text holds any printed result, summary, page of metrics or CSV table."""
    printed_result = printed.looks_like(text) or any(looks_like(text) for looks_like, _ in SPECIAL)
    return printed_result or tool_documents.is_aiperf_csv(text) or _is_sweep(text) or _LINE.search(text) is not None


def read(text: str, name: str = "benchmark") -> tuple[BenchmarkRun, ...]:
    """Read all results of a file of any of these kinds."""
    return parse(text, name) if text.lstrip()[:1] in ("{", "[") or not looks_like_text(text) else parse_text(text, name)


def parse_text(text: str, name: str = "benchmark") -> tuple[BenchmarkRun, ...]:
    """Read all results of a text, kind by kind."""
    try:
        results = list(islice(_find_results(text), COUNT.most_results + 1))
    except csv.Error as error:
        raise Refusal(f"benchmark '{name}': a row of its table is damaged ({error!s:.80})") from None
    return _check_results(results, name, "a benchmark's title, but no figure of it found")


def _find_results(text: str) -> Iterator[BenchmarkRun]:
    if tool_documents.is_aiperf_csv(text):
        yield from tool_documents.from_aiperf_csv(text)
    elif _is_sweep(text):
        rows = csv.DictReader((line for line in split_lines(text.lstrip()) if len(line) <= COUNT.longest_line), strict=False)
        for row in rows:
            cells = ((key, value, number(value)) for key, value in row.items() if isinstance(key, str))
            d: JsonObject = {key: value if n is None else n for key, value, n in cells}
            if any(number(d.get(column)) is not None for column in COLUMNS):
                yield _serve(d)
    else:
        special = [parser for looks_like, parser in SPECIAL if looks_like(text)]
        if printed.TITLE in text or not special:
            yield from printed.parse(text)
        for parser in special:
            yield from parser(text)
        # Results that stand as JSON in lines of their own among others, as a client's output has them.
        for match in _LINE.finditer(text):
            end = text.find("\n", match.start())
            line = text[match.start() : end if end >= 0 else None]
            with suppress(Refusal, TypeError, AttributeError, ValueError, OverflowError):  # a line that is cut off
                yield from (one for d in parse_documents(line, "line") if isinstance(d, dict) for one in _results_of_document(d))


def parse(text: str, name: str = "benchmark") -> tuple[BenchmarkRun, ...]:
    """Read all results of JSON: one object, a list or one a line. Of JSON that is cut off, what is whole is read."""
    documents, cut = _documents(text, f"benchmark '{name}'")
    try:
        every = (one for d in documents if isinstance(d, dict) for one in _results_of_document(d))
        results = list(islice(every, COUNT.most_results + 1))
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Refusal(f"benchmark '{name}': a field has the wrong form ({error!s:.80})") from None
    first = next((d for d in documents if isinstance(d, dict)), {})
    keys = f"; its own: {', '.join(str(key)[:30] for key in list(first)[:8])}" if first else ""
    *before, last = _check_results(results, name, f"{NOTHING}{keys}")
    return (*before, replace(last, notes=(*last.notes, cut)) if cut else last)


def _check_results(runs: list[BenchmarkRun], name: str, nothing: str) -> tuple[BenchmarkRun, ...]:
    if not runs:
        raise Refusal(f"benchmark '{name}': {nothing}")
    if len(runs) > COUNT.most_results:
        raise Refusal(f"benchmark '{name}': more than {COUNT.most_results:,} results; split it")
    if not all(math.isfinite(x) and x >= 0 for b in runs for stats in b.stats.values() for x in stats.values()):
        raise Refusal(f"benchmark '{name}': a time is negative or not a number")
    return tuple(runs)


def _documents(text: str, name: str) -> tuple[list[Json], Note | None]:
    """Return the documents of a text, and a note on where it is cut off."""
    try:
        return parse_documents(text, name), None
    except Refusal:
        if memory_of(text) > JSON_MEMORY_BYTES:
            raise
        whole: list[Json] = []
        for line in (line for line in split_lines(text) if line.strip()):
            try:
                whole += parse_documents(line, name)
            except Refusal:
                break
        if whole and isinstance(whole[0], dict):
            return whole, Note("partial", f"result {len(whole) + 1} is cut off or no JSON: those before it are read")
        value, last = read_damaged(text)
        if not value:
            raise
        note = Note("partial", f"cut off or damaged after its key '{last[:40]}': what is whole before it is read")
        return value if isinstance(value, list) else [value], note


def _results_of_document(d: JsonObject) -> Iterator[BenchmarkRun]:
    if tool_documents.is_guidellm(d):
        yield from tool_documents.from_guidellm(d)
    elif "duration" in d and ("completed" in d or "total_output_tokens" in d):  # newer versions add latencies: look here first
        yield _serve(d)
    elif "latencies" in d or "avg_latency" in d:
        each = tuple(map(need_number, need_list(d.get("latencies", []))))
        if not each and "avg_latency" not in d:
            raise Refusal("latencies is empty")
        stats: dict[str, float] = {"mean": need_number(d["avg_latency"]) if "avg_latency" in d else fmean(each)}
        stats |= {f"p{key}": need_number(value) for key, value in need_object(d.get("percentiles") or {}).items()}
        if each or "p50" in stats:
            stats["median"] = median(each) if each else stats["p50"]
        yield result("vllm", "latency", d, {"e2el": stats}, latencies_s=each)
    elif "elapsed_time" in d and "tokens_per_second" in d:  # prompt and output tokens are counted together
        yield result("vllm", "throughput", d, request_rate=math.inf)
    elif tool_documents.is_inferencex(d):
        yield tool_documents.from_inferencex(d)
    elif tool_documents.is_aiperf(d):
        yield tool_documents.from_aiperf(d)
    elif tool_documents.is_batch(d):
        yield tool_documents.from_batch(d)
    else:
        yield from printed_runs.of_document(d)


def _serve(d: JsonObject) -> BenchmarkRun:
    """Read ``*_ms`` statistics, and in seconds ``ttfts``, ``itls`` and ``latencies`` of single requests where they are kept."""
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        statistic, _, metric = key.removesuffix("_ms").partition("_")
        metric = TABLE["metrics"].get(metric, metric)
        if key.endswith("_ms") and isinstance(value, (int, float)) and metric in METRICS:
            stats.setdefault(metric, {})[statistic] = float(value) * 1e-3
    gaps = [need_number(x) for row in need_list(d.get("itls") or []) for x in (row if isinstance(row, list) else [row])]
    ttfts = [need_number(x) for x in need_list(d.get("ttfts") or []) if x]
    whole = [need_number(x) for x in need_list(d.get("latencies") or [])]
    for metric, values in {"ttft": ttfts, "itl": gaps, "e2el": whole}.items():
        if values and metric not in stats:
            stats[metric] = {"mean": fmean(values), "median": median(values)}
    if thirds := thirds_of(ttfts):
        stats["ttft"] |= thirds
    backend = str(d.get("backend") or "")
    sglang = "accept_length" in d or "mean_e2e_latency_ms" in d or backend.startswith("sglang")
    lengths = d.get("output_lens")
    answers = [need_number(n) for n in lengths if n] if isinstance(lengths, list) else []
    peak = number(d.get("max_concurrent_requests", d.get("peak_concurrency")))
    facts = ({"backend": backend} if backend else {}) | ({"peak concurrency": f"{peak:g}"} if peak else {})
    version = next((value for key in TABLE["engine_version"] if isinstance(value := d.get(key), str)), "")
    facts |= {"version": version[: COUNT.most_version]} if version else {}
    facts |= {key: value[: COUNT.most_version] for key in ("engine", "precision") if isinstance(value := d.get(key), str) and value}
    spread = spread_of(fmean(answers), pstdev(answers)) if answers else None
    if sglang and not answers and str(d.get("dataset_name", "")).startswith("random"):
        ratio = number(d.get("random_range_ratio"))  # lengths are drawn evenly from this share of the longest up to all of it
        spread = (1 - ratio) / (1 + ratio) if ratio is not None and 0 <= ratio <= 1 else None
    return result("sglang" if sglang else "vllm", "serve", d, stats, spread=spread, facts=facts)


def _is_sweep(text: str) -> bool:
    header = text[:20000].lstrip().partition("\n")[0].strip()
    return "," in header and any(column in header.split(",") for column in COLUMNS)


def read_damaged(text: str) -> tuple[Json, str]:
    """Return the value of a text as far as it goes, and the last key before the end, or None where nothing is readable.

    >>> read_damaged('{"a": 1, "b": [{"c": 2, "d": {"e": 3}}, {"f": 4, "g": "ha')
    ({'a': 1, 'b': [{'c': 2, 'd': {'e': 3}}, {'f': 4}]}, 'f')
    """
    last = [""]
    begin = _skip_space(text, 0)
    value, _ = _value(text, begin, last, COUNT.depth) if text.startswith(("{", "["), begin) else (None, -1)
    return value, last[0]


def _value(text: str, at: int, last: list[str], depth: int) -> tuple[Json, int]:
    """Return a value and where it ends, -1 where it does not."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        if depth and text.startswith("{", at):
            return dict(_items(text, at + 1, last, depth - 1, True)), -1
        if depth and text.startswith("[", at):
            return [item for _, item in _items(text, at + 1, last, depth - 1, False)], -1
        return None, -1
    if end == len(text) and not text.startswith(("{", "[", '"'), at):  # a number may have had more digits
        return None, -1
    return value, end


def _items(text: str, at: int, last: list[str], depth: int, keyed: bool) -> Iterator[tuple[str, Json]]:
    """Yield the items of an object (``keyed``) or a list that does not end, with "" for a list's keys."""
    while at > 0:
        key = ""
        if keyed:
            name, at = _value(text, _skip_space(text, at), last, 0)
            colon = _skip_space(text, at)
            if at < 0 or not isinstance(name, str) or not text.startswith(":", colon):
                return
            key, at = name, colon + 1
        value, at = _value(text, _skip_space(text, at), last, depth)
        if at < 0 and not value:
            return
        yield key, value
        last[0] = key if keyed and at > 0 else last[0]
        comma = _skip_space(text, at)
        at = comma + 1 if at > 0 and text.startswith(",", comma) else -1


def _skip_space(text: str, at: int) -> int:
    """Return the place of the next character that is no space."""
    return _SPACE.match(text, max(at, 0)).end()  # type: ignore[union-attr]  # it matches anywhere
