"""Files into rows: each is recognised by what is inside it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from commtax.calibrate.kernel_rows import SHAPES, SweepRow
from commtax.calibrate.measurements import EngineBenchmark, MeasuredMachine, MeasurementFiles, SweptKernel, TimedCollective
from commtax.catalog.fabric import OPS, library
from commtax.evidence import prefixes
from commtax.files import OUTPUT_BYTES, Json, JsonObject, parse_documents, read_text
from commtax.results import bench, nccl_tests
from commtax.results.bench_record import BenchmarkRun
from commtax.statement import Refusal
from commtax.units import MAX_COUNT, format_bytes
from commtax.verbs.keywords import BillOptions, SimulateOptions

UNUSED = ("header", "small", "copy", "step")  # rows of a sweep that no constant is fitted on
SHORTEST_S, LONGEST_S = 1e-9, 1e6  # of anything that somebody timed


def read(path: Path, place: MeasuredMachine) -> MeasurementFiles:
    """All measurements of one file."""
    text = read_text(path, "file", most=OUTPUT_BYTES)
    printed = prefixes.strip_prefixes(text)
    if printed[:99].lstrip()[:1] in ("{", "["):
        return _json(printed, path.name, place)
    runs = nccl_tests.parse_all(text, path.name)
    if not runs and bench.looks_like_text(text):
        return _results(bench.parse_text(text, path.name), path.name, place)
    if not runs:
        raise Refusal(
            f"'{path}' is not recognised: looked for nccl-tests or rccl-tests output, rows of commtax measure (collectives, "
            "kernels) and results of vllm bench, sglang.bench_serving, AIPerf or GuideLLM"
        )
    return sum((_nccl_tests(run, path.name, place) for run in runs), MeasurementFiles())


def _nccl_tests(run: nccl_tests.NcclTestsRun, name: str, place: MeasuredMachine) -> MeasurementFiles:
    """Out of place and in place are two timings of one size; rows with wrong values are no measurements."""
    if not run.op or run.op not in OPS:
        raise Refusal(f"'{name}': the text does not say which collective ran (a line with all_reduce_perf or its like)")
    if run.ranks < 2:
        raise Refusal(f"'{name}': does not say how many ranks took part: neither its list ('#  Rank  0 …') nor its bandwidths do")
    rows: list[TimedCollective] = []
    refused: list[str] = []
    for row in run.rows:
        label = f"{name}: {run.op} of {format_bytes(row.nbytes)} over {run.ranks} ranks"
        if row.wrong:
            refused.append(f"{label}: {row.wrong:,} wrong values, no measurement")
            continue
        for seconds, how in ((row.seconds, ""), (row.in_place_s, " in place")):
            if seconds is not None and not math.isnan(seconds):
                rows.append(TimedCollective(place.library, run.op, run.ranks, row.nbytes, _time(seconds, label), label + how))
    return MeasurementFiles(collectives=tuple(rows), refused=tuple(refused))


def _json(text: str, name: str, place: MeasuredMachine) -> MeasurementFiles:
    """A document, a list of them, or one a line; lines of several kinds may be mixed."""
    documents = parse_documents(text, f"'{name}'")
    rows = [document for document in documents if isinstance(document, dict)]
    if not rows or len(rows) < len(documents):
        raise Refusal(f"'{name}': JSON without measurements")
    ours = MeasurementFiles()
    others = []
    for number, row in enumerate(rows, 1):
        if isinstance(held := row.get("rows"), list):  # measure collectives --json
            ours += _json("\n".join(json.dumps(r) for r in held), name, place)
        elif "time_us" in row and "size_bytes" in row:
            ours += _collective(row, f"{name}: row {number}")
        elif row.get("kind") in (*SHAPES, *UNUSED):
            ours += _kernel(row, f"{name}: row {number}")
        else:
            others.append(row)
    if others:
        ours += _results(bench.parse(json.dumps(others), name), name, place)
    return ours


def _results(results: Sequence[BenchmarkRun], name: str, place: MeasuredMachine) -> MeasurementFiles:
    """Benchmarks of one file."""
    labels = (f"{name}: run {number}" if len(results) > 1 else name for number in range(1, len(results) + 1))
    return sum((_engine_benchmark(result, label, place) for result, label in zip(results, labels, strict=True)), MeasurementFiles())


def _collective(row: JsonObject, label: str) -> MeasurementFiles:
    """A line of ``measure collectives --output``."""
    op, ranks, nbytes = str(row.get("op")), _count(row, "ranks", label), _count(row, "size_bytes", label)
    if op not in OPS:
        raise Refusal(f"'{label}': collective {op!r} is none of {', '.join(OPS)}")
    label = f"{label}, {op} of {format_bytes(nbytes)} over {ranks} ranks"
    if row.get("wrong"):
        return MeasurementFiles(refused=(f"{label}: {row['wrong']} wrong values, no measurement",))
    key = library(str(row.get("impl", "nccl"))).key
    return MeasurementFiles((TimedCollective(key, op, ranks, nbytes, _time(row["time_us"], label, 1e-6), label),))


def _kernel(row: JsonObject, label: str) -> MeasurementFiles:
    """A line of ``python -m commtax_lab.study.kernels``."""
    kind = str(row["kind"])
    if kind in UNUSED:
        return MeasurementFiles()
    shape = " x ".join(str(row[k]) for k in ("m", "n", "k", "batch", "length", "heads", "rows", "width") if k in row)
    label = f"{label}, {kind} {row.get('op', row.get('dtype', ''))} {shape}"
    for key in SHAPES[kind]:
        _count(row, key, label)
    return MeasurementFiles(kernels=(SweptKernel(cast(SweepRow, row), _time(row.get("median_s"), label), label),))


def _engine_benchmark(result: BenchmarkRun, label: str, place: MeasuredMachine) -> MeasurementFiles:
    """A benchmark with its question, or why it cannot be used."""
    batch, model, tp = result.kind == "latency", place.model or result.model, place.tp or result.tp or 1
    if place.tp and result.tp and place.tp != result.tp:
        raise Refusal(f"'{label}': ran at tp {result.tp}, and -tp {place.tp} was said")
    if not model:
        raise Refusal(f"'{label}': does not say which model ran; say --model")
    if result.kind == "throughput":
        return MeasurementFiles(refused=(f"{label}: throughput of a queue is not fitted; latency and serve are",))
    input_len = place.input_len or round(result.input_len or 0)
    output_len = place.output_len or round(result.output_len or 0)
    clients = int(place.batch if batch else result.concurrency or 0)
    lengths = SimulateOptions(input_len=input_len, output_len=output_len)
    needed = {**lengths, **BillOptions(batch=clients if batch else 1)}
    if wanted := [key for key, value in needed.items() if not value]:
        raise Refusal(f"'{label}': does not say {', '.join(wanted)}; add {' '.join(f'--{w}'.replace('_', '-') for w in wanted)}")
    latency_s = result.seconds("e2el" if batch else "tpot", "mean")
    reason = ""
    if not clients:
        reason = "no limit of concurrency: only closed loops (--max-concurrency) are fitted"
    elif result.failed:
        reason = f"{result.failed} requests failed, and what failed is not in the means"
    elif result.accepted > 1:
        reason = f"{result.accepted:g} tokens a step under speculative decoding, which hides the time of a step"
    elif latency_s:
        prompts, ttft_s = max(result.requests or 0, clients), result.seconds("ttft", "mean")
        asked = EngineBenchmark(result.kind, model, tp, clients, input_len, output_len, prompts, latency_s, ttft_s, label)
        return MeasurementFiles(runs=(asked,))
    return MeasurementFiles(refused=(f"{label}: {reason or 'no mean time a token'}",))


def _count(row: JsonObject, key: str, label: str) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise Refusal(f"'{label}': {key}={repr(value)[:40]}, a whole number of at least 1 (and at most 2^48) is needed")
    return value


def _time(value: Json, label: str, unit: float = 1.0) -> float:
    if not isinstance(value, (int, float)) or not SHORTEST_S / unit <= value < LONGEST_S / unit:  # any whole number compares
        raise Refusal(f"'{label}': a time of {repr(value)[:40]} is no measurement")
    return float(value) * unit
