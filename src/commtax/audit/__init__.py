"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``readers.formats`` reads a file; one function for each kind of record tells, compares and judges.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtax.audit.benches import audit_bench
from commtax.audit.finding import Audit, Claim, Section
from commtax.audit.logs import audit_log
from commtax.audit.reading import Read, read_all
from commtax.audit.traces import audit_traces
from commtax.files import LOG_BYTES, read_text
from commtax.readers import bench, formats
from commtax.readers.vllm_log import StartupLog

AUDITS: Mapping[type, Callable[[Any, Claim | None, str], Section]] = {StartupLog: audit_log}
"""By the kind of record: what it says, what was claimed, and the name of its file."""


def audit(files: Sequence[Path], claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """All that files and folders say; traces of several ranks are read as one job."""
    return audit_read(read_all(files), claim, baseline)


def audit_read(read: Read, claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """All that was read."""
    sections = [_section(name, said, claim, baseline) for name, said in read.others]
    if traces := read.traces:
        sections.append(audit_traces([trace for _, trace in traces], claim, [name for name, _ in traces]))
    return Audit(claim, tuple(sections), read.notes)


def _section(name: str, said: formats.Left, claim: Claim | None, baseline: Path | None) -> Section:
    if not isinstance(said, tuple):
        return AUDITS[type(said)](said, claim, name)
    first = bench.parse(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0] if baseline else None
    return audit_bench(said, claim, name, first)
