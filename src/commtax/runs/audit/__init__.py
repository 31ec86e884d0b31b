"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``formats`` names the reader and the audit of each kind of file; the rooms hold them side by side.
"""

from collections.abc import Sequence
from pathlib import Path

from commtax.files import LOG_BYTES, read_text
from commtax.runs.audit.formats import BY_RECORD
from commtax.runs.audit.read_files import ReadFiles, read_all
from commtax.runs.evidence.finding import Audit, Claim, Section
from commtax.runs.logs.nccl_log import NcclLog
from commtax.runs.results import bench


def audit(files: Sequence[Path], claim: Claim | None = None, baseline: Path | None = None, nsys: str = "nsys") -> Audit:
    """All that files and folders say. ``nsys`` opens reports of Nsight Systems."""
    return audit_read(read_all(files, nsys), claim, baseline)


def audit_read(read: ReadFiles, claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """All that was read; what the ranks of a job left of one kind is told together, and several jobs one after the other."""
    sections = [_section(name, said, claim, baseline) for name, said in read.left if not BY_RECORD[type(said)].together]
    logs = [(name, said) for name, said in read.left if isinstance(said, NcclLog)]
    for job in (*([logs] if logs else []), *read.jobs):
        names, said = zip(*job, strict=True)
        sections.append(BY_RECORD[type(said[0])].audit(said, claim, names))
    return Audit(claim, tuple(sections), read.notes)


def _section(name: str, said: object, claim: Claim | None, baseline: Path | None) -> Section:
    judge = BY_RECORD[type(said)].audit
    if not baseline or not isinstance(said, tuple):
        return judge(said, claim, name)
    return judge(said, claim, name, bench.read(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0])
