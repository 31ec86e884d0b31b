"""Does a real run agree? Start-up logs, profiler traces and benchmark results against what was predicted for them.

``readers.formats`` reads a file; one function for each kind of record compares it and judges.
"""

from collections.abc import Sequence
from pathlib import Path

from commtax.audit.benches import audit_bench
from commtax.audit.finding import Audit, Claim, Section
from commtax.audit.logs import audit_log
from commtax.audit.traces import audit_traces
from commtax.files import LOG_BYTES, read_text
from commtax.readers import bench, formats
from commtax.readers.trace import Trace
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal


def audit(files: Sequence[Path], claim: Claim, baseline: Path | None = None) -> Audit:
    """Compare every file with the claim; traces of several ranks are read as one job."""
    if not files:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    left = [(path.name, formats.read(path)) for path in files]
    sections = [_section(name, said, claim, baseline) for name, said in left if not isinstance(said, Trace)]
    traces = [(name, said) for name, said in left if isinstance(said, Trace)]
    if traces:
        sections.append(audit_traces([trace for _, trace in traces], claim, [name for name, _ in traces]))
    return Audit(claim, tuple(sections))


def _section(name: str, said: StartupLog | tuple[bench.Bench, ...], claim: Claim, baseline: Path | None) -> Section:
    if isinstance(said, StartupLog):
        return audit_log(said, claim, name)
    first = bench.parse(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0] if baseline else None
    return audit_bench(said, claim, name, first)
