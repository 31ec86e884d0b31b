"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``readers.formats`` reads a file; one function for each kind of record tells, compares and judges.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtax.audit.benches import audit_bench
from commtax.audit.collective_tests import audit_collectives
from commtax.audit.finding import Audit, Claim, Section
from commtax.audit.logs import audit_log
from commtax.audit.nvidia_smi import audit_links, audit_monitor
from commtax.audit.traces import audit_traces
from commtax.audit.training import audit_training
from commtax.files import LOG_BYTES, read_text
from commtax.readers import bench, formats
from commtax.readers.collective_tests import CollectiveTests
from commtax.readers.smi import Links, Monitor
from commtax.readers.trace import Trace
from commtax.readers.training_log import TrainingLog
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal

AUDITS: Mapping[type, Callable[[Any, Claim | None, str], Section]] = {
    StartupLog: audit_log,
    TrainingLog: audit_training,
    CollectiveTests: audit_collectives,
    Links: audit_links,
    Monitor: audit_monitor,
}
"""By the kind of record: what it says, what was claimed, and the name of its file."""


def audit(files: Sequence[Path], claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """All that the files say; traces of several ranks are read as one job."""
    if not files:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    left = _joined([(path.name, said) for path in files for said in formats.read(path)])
    sections = [_section(name, said, claim, baseline) for name, said in left if not isinstance(said, Trace)]
    traces = [(name, said) for name, said in left if isinstance(said, Trace)]
    if traces:
        sections.append(audit_traces([trace for _, trace in traces], claim, [name for name, _ in traces]))
    return Audit(claim, tuple(sections))


def _joined(left: list[tuple[str, formats.Left]]) -> list[tuple[str, formats.Left]]:
    """Counters of links that several files hold, first to last, as one record: their difference is what was carried."""
    counters = [(name, said) for name, said in left if isinstance(said, Links)]
    if len(counters) < 2:
        return left
    names, seen = ", ".join(name for name, _ in counters), counters[0][1]
    for _, later in counters[1:]:
        seen = seen.and_then(later)
    return [*((name, said) for name, said in left if not isinstance(said, Links)), (names, seen)]


def _section(name: str, said: formats.Left, claim: Claim | None, baseline: Path | None) -> Section:
    if not isinstance(said, tuple):
        return AUDITS[type(said)](said, claim, name)
    first = bench.parse(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0] if baseline else None
    return audit_bench(said, claim, name, first)
