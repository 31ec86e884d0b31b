"""Files and folders into measurements: each file is recognised by what is inside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import cast

from commtax.catalog.fabric import OPS, library
from commtax.files import OUTPUT_BYTES, Json, JsonObject, object_of, open_stream, parse_documents, read_text
from commtax.launch.read_command import from_settings
from commtax.runs.audit import reported_deployments
from commtax.runs.audit.formats import read_traces
from commtax.runs.audit.reported_deployments import PROSE, ReportedDeployment, from_launch, joined
from commtax.runs.calibrate import engine_runs
from commtax.runs.calibrate.engine_runs import LabelledResult, LabelledTraces
from commtax.runs.calibrate.measurements import SHAPES, MeasurementFiles, SweepRow, SweptKernel, TimedCollective
from commtax.runs.evidence import prefixes
from commtax.runs.logs.engine_logs import ENGINE_LOGS
from commtax.runs.results import bench, collective_tests
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.traces.trace import Trace
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.thresholds import counts
from commtax.units import MAX_COUNT, format_bytes

COUNT = counts(__name__)
UNUSED = ("header", "small", "copy", "step")  # rows of a sweep that no constant is fitted on
SHORTEST_S, LONGEST_S = 1e-9, 1e6  # of anything that somebody timed


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The contents of one file: rows, results of benchmarks, and what it reports of their deployment."""

    name: str
    rows: MeasurementFiles = field(default_factory=MeasurementFiles)
    results: tuple[BenchmarkRun, ...] = ()
    launch: ReportedDeployment | None = None
    is_log: bool = False
    servers: tuple[ReportedDeployment | None, ...] = ()  # by each result, of its own server
    traces: tuple[Trace, ...] = ()  # of profilers


Group = tuple[list[ReadFile], tuple[ReportedDeployment, ...]]
"""Files of one deployment, and what stands in the folders above it."""


@dataclass(frozen=True, slots=True)
class ReadMeasurements:
    """Measurements of all named files and folders: rows of collectives and kernels, and results with their deployments."""

    rows: MeasurementFiles
    results: tuple[LabelledResult, ...] = ()
    traces: tuple[LabelledTraces, ...] = ()

    def laid_out_as(self, profile: Profile) -> ReadMeasurements:
        """Return the same with the one layout of a profile's runs where nobody reports another, or ask for what stays open."""
        results = tuple(replace(one, reported=one.reported.laid_out_as(profile)) for one in self.results)
        unstated = (one for one in results if "tp" not in one.reported.options)
        engine_runs.refuse_missing({one.label: ["tp"] for one in unstated if not engine_runs.reason_unusable(one)})
        return replace(self, results=results)

    def refuse_missing(self, lacking: Sequence[str] = ()) -> None:
        """Ask for all that no file states, and for options of the call that are ``lacking``."""
        missing = {one.label: engine_runs.missing_facts(one) for one in self.results}
        missing |= {one.label: engine_runs.missing_step_facts(one) for one in self.traces}
        engine_runs.refuse_missing(missing, lacking)

    def at(self, cluster: Cluster) -> MeasurementFiles:
        """Return everything that was measured, as measured on a cluster."""
        return self.rows + engine_runs.measured_runs(self.results, cluster) + engine_runs.measured_steps(self.traces, cluster)


def read_all(
    paths: Sequence[Path], library_key: str, stated: Sequence[ReportedDeployment] = (), profiled: Sequence[ReportedDeployment] = ()
) -> ReadMeasurements:
    """Read all measurements of files and folders.

    ``stated`` holds for every benchmark and trace among them, ``profiled`` for traces alone, the library for nccl-tests.

    A folder is a deployment: results in it, and in folders below, are of the launches that stand in it. Files that are named one
    by one are told apart by what they say.
    """
    alone: list[Group] = [([read(path, library_key) for path in paths if not path.is_dir()], ())]
    places = [alone, *(_read_folder(path, path.name, library_key) for path in paths if path.is_dir())]
    groups = [group for place in map(_without_repeats, places) for group in place]
    rows = sum((file.rows for files, _ in groups for file in files), MeasurementFiles())
    results = tuple(one for files, above in groups for one in _label_results(files, stated, above))
    traces = tuple(one for files, above in groups for one in _label_traces(files, (*stated, *profiled), above))
    launches = [launch for files, _ in groups for file in files if (launch := file.launch)]
    notes = dict.fromkeys(note for launch in (*stated, *launches) for note in launch.notes)
    return ReadMeasurements(rows + MeasurementFiles(notes=tuple(notes)), results, traces)


def _without_repeats(groups: list[Group]) -> list[Group]:
    """Drop results printed in logs where files of results stand beside them, since those hold the same."""
    if not any(file.results for files, _ in groups for file in files if not file.is_log):
        return groups
    return [([replace(file, results=()) if file.is_log else file for file in files], above) for files, above in groups]


def read(path: Path, library_key: str) -> ReadFile:
    if (traces := read_traces(path)) is not None:
        return ReadFile(path.name, traces=tuple(traces))
    if file := recognise(read_text(path, "file", most=OUTPUT_BYTES), path.name, library_key):
        return file
    raise Refusal(
        f"'{path}' is not recognised: looked for nccl-tests or rccl-tests output, rows of commtax measure (collectives, "
        "kernels), results of vllm bench, sglang.bench_serving, trtllm-bench, AIPerf, GenAI-Perf or GuideLLM, traces of "
        "profilers, launch commands and logs of their servers"
    )


def _read_folder(
    path: Path, name: str, library_key: str, above: tuple[ReportedDeployment, ...] = (), depth: int = 1
) -> list[Group]:
    """Read a folder and those below it, with a note on files that hold neither measurements nor launches."""
    inside = sorted(islice(path.iterdir(), COUNT.most_files + 1))
    if len(inside) > COUNT.most_files:
        raise Refusal(f"'{path}' holds more than {COUNT.most_files:,} files; name the ones that were measured")
    files, others = [], list[str]()
    for file in (one for one in inside if one.is_file() and not one.name.startswith(".")):
        read_file = _read_if_text(file, f"{name}/{file.name}", library_key)
        files += [read_file] if read_file else []
        others += [] if read_file else [f"{name}/{file.name}"]
    note = (f"not recognised, and left out: {engine_runs.name_some(others)}",) if others else ()
    files += [ReadFile(name, MeasurementFiles(notes=note))] if note else []
    local = tuple(launch for file in files if (launch := file.launch)) or above
    below = [one for one in inside if one.is_dir() and not one.is_symlink() and not one.name.startswith(".")]
    deeper = [_read_folder(one, f"{name}/{one.name}", library_key, local, depth + 1) for one in below if depth < COUNT.deepest]
    return [(files, above), *(group for groups in deeper for group in groups)]


def _read_if_text(path: Path, name: str, library_key: str) -> ReadFile | None:
    """Read a file of a folder, None if it is of no use here, and refuse JSON that is cut off or damaged."""
    if path.suffix in PROSE:
        return None
    try:
        if (traces := read_traces(path)) is not None:
            return ReadFile(name, traces=tuple(traces))
    except Refusal:  # a damaged trace is refused, but what only resembles one may be anything
        with open_stream(path) as stream:
            if b'"traceEvents"' in stream.head(COUNT.head_bytes):
                raise
    try:
        text = read_text(path, "file", most=OUTPUT_BYTES)
    except Refusal:  # a picture, an archive, weights
        return None
    rows = [one for one in parse_documents(text, f"'{name}'") if isinstance(one, dict)] if _is_json(text) else None
    foreign = rows is not None and not any(map(_is_measured, rows))
    return None if foreign else recognise(text, name, library_key)


def _is_json(text: str) -> bool:
    return prefixes.strip_prefixes(text)[:99].lstrip()[:1] in ("{", "[")


def _is_measured(row: JsonObject) -> bool:
    """Return whether ``commtax measure`` or a benchmark's client wrote a row."""
    if isinstance(row.get("rows"), list) or {"time_us", "size_bytes"} <= row.keys() or row.get("kind") in (*SHAPES, *UNUSED):
        return True
    try:
        return bool(bench.parse(json.dumps(row)))
    except Refusal:
        return False


def recognise(text: str, name: str, library_key: str) -> ReadFile | None:
    """Read a text by its contents, None if it is of no use here."""
    if _is_json(text):
        return _json(prefixes.strip_prefixes(text), name, library_key)
    if runs := collective_tests.parse_all(text, name):
        return ReadFile(name, sum((_nccl_tests(run, name, library_key) for run in runs), MeasurementFiles()))
    written = prefixes.strip_prefixes(prefixes.unpack_docker(text))
    log = next((log.parse(written) for log in ENGINE_LOGS if log.looks_like(written)), None)
    try:
        results = bench.parse_text(text, name) if bench.looks_like_text(text) else ()
    except Refusal:  # a log may hold words of a title, and no result
        if log is None:
            raise
        results = ()
    if log:
        lines = reported_deployments.from_command_lines(written, name)
        both = joined(filter(None, (lines, reported_deployments.from_log(log, name))))
        return ReadFile(name, results=results, launch=both, is_log=True)
    launch = reported_deployments.from_command_lines(text, name) if results else reported_deployments.from_text(text, name)
    return ReadFile(name, results=results, launch=launch) if results or launch else None


def _label_results(
    files: Sequence[ReadFile], stated: Sequence[ReportedDeployment], above: Sequence[ReportedDeployment]
) -> Iterator[LabelledResult]:
    for file in files:
        for number, result in enumerate(file.results, 1):
            label = f"{file.name}: run {number}" if len(file.results) > 1 else file.name
            server = file.servers[number - 1] if file.servers else None
            reported = joined(filter(None, (reported_deployments.from_result(result, label), server)))
            yield LabelledResult(label, result, joined((*stated, *_launches_of(reported, files, above), reported)))


def _label_traces(
    files: Sequence[ReadFile], stated: Sequence[ReportedDeployment], above: Sequence[ReportedDeployment]
) -> Iterator[LabelledTraces]:
    """Yield traces, those of one job together, with what is reported of their deployment."""
    for label, traces in engine_runs.label_jobs([(file.name, trace) for file in files for trace in file.traces]):
        reported = ReportedDeployment(f"'{label}'")
        yield LabelledTraces(label, traces, joined((*stated, *_launches_of(reported, files, above), reported)))


def _launches_of(
    reported: ReportedDeployment, files: Sequence[ReadFile], above: Sequence[ReportedDeployment]
) -> Sequence[ReportedDeployment]:
    """Return the launches beside a result that it can be of, which must agree with each other, or with it alone."""
    launches = [launch for file in files if (launch := file.launch)] or list(above)
    fitting = [launch for launch in launches if reported_deployments.suits(launch, reported)]
    if len(fitting) < 2:
        return fitting or launches
    try:
        return [joined(fitting)]
    except Refusal as refusal:
        unclear = f"{reported.source} does not say which it is of; a folder for each deployment tells them apart"
        raise Refusal(f"{refusal}: {unclear}", refusal.argument) from None


def _nccl_tests(run: collective_tests.NcclTestsRun, name: str, library_key: str) -> MeasurementFiles:
    """Return out-of-place and in-place timings of each size, without rows that have wrong values."""
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
                rows.append(TimedCollective(library_key, run.op, run.ranks, row.nbytes, _time(seconds, label), label + how))
    return MeasurementFiles(collectives=tuple(rows), refused=tuple(refused))


def _json(text: str, name: str, library_key: str) -> ReadFile:
    """Read a document, a list of them, or one per line, where lines of several kinds may be mixed."""
    documents = parse_documents(text, f"'{name}'")
    rows = [document for document in documents if isinstance(document, dict)]
    if not rows or len(rows) < len(documents):
        raise Refusal(f"'{name}': JSON without measurements")
    ours = MeasurementFiles()
    others = []
    for number, row in enumerate(rows, 1):
        if isinstance(inner := row.get("rows"), list):  # measure collectives --json
            ours += _json("\n".join(json.dumps(r) for r in inner), name, library_key).rows
        elif "time_us" in row and "size_bytes" in row:
            ours += _collective(row, f"{name}: row {number}")
        elif row.get("kind") in (*SHAPES, *UNUSED):
            ours += _kernel(row, f"{name}: row {number}")
        else:
            others.append(row)
    if not any("server_info" in row for row in others):
        return ReadFile(name, ours, bench.parse(json.dumps(others), name) if others else ())
    runs = [(one, _server_info(row, name)) for row in others for one in bench.parse(json.dumps(row), name)]
    return ReadFile(name, ours, tuple(one for one, _ in runs), servers=tuple(info for _, info in runs))


def _server_info(row: JsonObject, name: str) -> ReportedDeployment | None:
    """Return what an SGLang server reported to the client, if the client keeps it in its result."""
    info = {key: str(value) for key, value in object_of(row.get("server_info")).items() if isinstance(value, (str, int, float))}
    version = reported_deployments.released(info.get("version", ""))
    return from_launch(from_settings("sglang", info, version), f"'{name}'") if info else None


def _collective(row: JsonObject, label: str) -> MeasurementFiles:
    """Read a line of ``measure collectives --output``."""
    op, ranks, nbytes = str(row.get("op")), _count(row, "ranks", label), _count(row, "size_bytes", label)
    if op not in OPS:
        raise Refusal(f"'{label}': collective {op!r} is none of {', '.join(OPS)}")
    label = f"{label}, {op} of {format_bytes(nbytes)} over {ranks} ranks"
    if row.get("wrong"):
        return MeasurementFiles(refused=(f"{label}: {row['wrong']} wrong values, no measurement",))
    key = library(str(row.get("impl", "nccl"))).key
    return MeasurementFiles((TimedCollective(key, op, ranks, nbytes, _time(row["time_us"], label, 1e-6), label),))


def _kernel(row: JsonObject, label: str) -> MeasurementFiles:
    """Read a line of ``python -m commtax_lab.measure.study.kernels``."""
    kind = str(row["kind"])
    if kind in UNUSED:
        return MeasurementFiles()
    shape = " x ".join(str(row[k]) for k in ("m", "n", "k", "batch", "length", "heads", "rows", "width") if k in row)
    label = f"{label}, {kind} {row.get('op', row.get('dtype', ''))} {shape}"
    for key in SHAPES[kind]:
        _count(row, key, label)
    return MeasurementFiles(kernels=(SweptKernel(cast(SweepRow, row), _time(row.get("median_s"), label), label),))


def _count(row: JsonObject, key: str, label: str) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise Refusal(f"'{label}': {key}={repr(value)[:40]}, a whole number of at least 1 (and at most 2^48) is needed")
    return value


def _time(value: Json, label: str, unit: float = 1.0) -> float:
    if not isinstance(value, (int, float)) or not SHORTEST_S / unit <= value < LONGEST_S / unit:  # any whole number compares
        raise Refusal(f"'{label}': a time of {repr(value)[:40]} is no measurement")
    return float(value) * unit
