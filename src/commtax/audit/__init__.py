"""Does a real run agree? Start-up logs, profiler traces and benchmark results against what was predicted for them.

One function for each kind of file turns it into ``Finding``s; a new kind is one reader, one such function and one line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commtax.audit.benches import audit_bench
from commtax.audit.finding import AGREE, DISAGREE, SECONDS_TOLERANCE, UNKNOWN, Audit, Finding, Question, Section
from commtax.audit.logs import audit_log
from commtax.audit.traces import audit_traces
from commtax.files import LOG_BYTES, TRACE_BYTES, decoded, read_bytes
from commtax.readers import bench, kineto, prefixes, vllm_log
from commtax.statement import Refusal

__all__ = [
    "AGREE",
    "DISAGREE",
    "SECONDS_TOLERANCE",
    "UNKNOWN",
    "Audit",
    "Finding",
    "Question",
    "Section",
    "audit",
    "content",
    "kind_of",
]


def audit(files: Sequence[Path], question: Question, baseline: Path | None = None) -> Audit:
    """Compare every file with the question; traces of several ranks are read as one job."""
    if not files:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    raw = {path: content(path) for path in files}
    kinds = {path: kind_of(raw[path], path) for path in files}
    sections = [_section(path, kinds[path], raw[path], question, baseline) for path in files if kinds[path] != "trace"]
    traced = [path for path in files if kinds[path] == "trace"]
    if traced:
        traces = [kineto.parse(kineto.load(raw[p], p.name), p.name) for p in traced]
        sections.append(audit_traces(traces, question, [p.name for p in traced]))
    return Audit(question, tuple(sections))


def _section(path: Path, kind: str, raw: bytes, question: Question, baseline: Path | None) -> Section:
    text = prefixes.plain(decoded(raw))
    if kind == "log":
        return audit_log(vllm_log.parse(text), question, path.name)
    first = bench.parse(decoded(content(baseline)), baseline.name)[0] if baseline else None
    return audit_bench(bench.parse(text, path.name), question, path.name, first)


def content(path: Path) -> bytes:
    """A file's bytes, unpacked."""
    raw = read_bytes(path, "file", most=TRACE_BYTES)
    if not _is_trace(raw) and len(raw) > LOG_BYTES:
        raise Refusal(f"file '{path}': larger than {LOG_BYTES >> 20} MiB, and no trace; split it")
    return raw


def _is_trace(raw: bytes) -> bool:
    return b'"traceEvents"' in raw or (raw[:99].lstrip()[:1] == b"[" and b'"ph"' in raw)


def kind_of(raw: bytes, path: Path) -> str:
    """log, trace or bench, by what is inside."""
    if _is_trace(raw):
        return "trace"
    text = prefixes.plain(decoded(raw))
    if text[:99].lstrip()[:1] in ("{", "["):
        bench.parse(text, str(path))
        return "bench"
    if vllm_log.looks_like(text):
        return "log"
    raise Refusal(
        f"'{path}' is not recognised: looked for a vLLM start-up log (model weights, KV cache size, rank lines), "
        "a PyTorch profiler trace (traceEvents) and a benchmark result (vllm bench, sglang.bench_serving, AIPerf)"
    )
