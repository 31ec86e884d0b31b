"""AIPerf and GenAI-Perf: a document of blocks ``{unit, avg, p50, …}``, the same as CSV, and the same as a printed table."""

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from commtax.files import JsonObject, list_of, object_of
from commtax.runs.results.bench_record import SECONDS, STATISTICS, TABLE, BenchmarkRun, number, result, spread_of
from commtax.thresholds import counts
from commtax.wordings import split_lines

NAMES: Mapping[str, str] = TABLE["aiperf"]
LOAD: Mapping[str, list[str]] = TABLE["aiperf_load"]
COUNT = counts(__name__)
_UNIT = re.compile(r"([^()]{1,80})\(([^()]{1,40})\)\s*+$")
_HEADER = re.compile(r"\s*(?:Metric|Statistic)\s*")
Blocks = Mapping[str, Mapping[str, object]]


def is_document(d: JsonObject) -> bool:
    return any("avg" in object_of(d.get(key)) for key in NAMES)


def from_document(d: JsonObject) -> BenchmarkRun:
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
    for key, metric in NAMES.items():
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


def is_csv(text: str) -> bool:
    """Whether a text begins with the header of the export."""
    return text.lstrip()[:11].lower() == "metric,avg,"


def from_csv(text: str) -> Iterator[BenchmarkRun]:
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
    return any(number(blocks.get(key, {}).get("avg")) is not None for key in NAMES)


def _key_and_unit(cell: str) -> tuple[str, str]:
    """A metric's key and unit.

    >>> _key_and_unit("Time to First Token (ms)"), _key_and_unit("Output token throughput (per sec)")
    (('time_to_first_token', 'ms'), ('output_token_throughput', 'per sec'))
    """
    match = _UNIT.match(cell.strip()[:160])
    name, unit = (match[1], match[2]) if match else (cell, "")
    return "_".join(name.lower().split()), unit
