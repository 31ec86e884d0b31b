"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``readers.formats`` reads a file; one function for each kind of record tells, compares and judges.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtax.audit.benches import audit_bench
from commtax.audit.finding import Audit, Claim, Section
from commtax.audit.logs import audit_log
from commtax.audit.reading import read_all
from commtax.audit.traces import audit_traces
from commtax.files import LOG_BYTES, Watch, read_text
from commtax.readers import bench, formats
from commtax.readers.ranks import distinct
from commtax.readers.trace import Trace
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal

AUDITS: Mapping[type, Callable[[Any, Claim | None, str], Section]] = {StartupLog: audit_log}
"""By the kind of record: what it says, what was claimed, and the name of its file."""


def audit(
    files: Sequence[Path],
    claim: Claim | None = None,
    baseline: Path | None = None,
    *,
    watch: Watch | None = None,
    processes: int = 1,
) -> Audit:
    """All that the files say; traces of several ranks are read as one job.

    ``watch`` is told of bytes as they are read; ``processes``: several read large files at once (0: as many as there are cores).
    """
    if not files:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    left = [(path.name, said) for path, all_said in zip(files, read_all(files, watch, processes), strict=True) for said in all_said]
    sections = [_section(name, said, claim, baseline) for name, said in left if not isinstance(said, Trace)]
    traces = [(name, said) for name, said in left if isinstance(said, Trace)]
    if traces:
        sections.append(audit_traces(distinct([trace for _, trace in traces]), claim, [name for name, _ in traces]))
    return Audit(claim, tuple(sections))


def _section(name: str, said: formats.Left, claim: Claim | None, baseline: Path | None) -> Section:
    if not isinstance(said, tuple):
        return AUDITS[type(said)](said, claim, name)
    first = bench.parse(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0] if baseline else None
    return audit_bench(said, claim, name, first)
