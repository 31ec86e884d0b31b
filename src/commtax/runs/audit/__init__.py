"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``formats`` names the reader and the audit of each kind of file; the rooms hold them side by side.
"""

from collections.abc import Sequence
from pathlib import Path

from commtax.files import LOG_BYTES, read_text
from commtax.runs.audit.formats import kind_of
from commtax.runs.audit.read_files import ReadFiles, read_all
from commtax.runs.evidence.finding import Audit, Claim, Section


def audit(files: Sequence[Path], claim: Claim | None = None, baseline: Path | None = None, nsys: str = "nsys") -> Audit:
    """Audit everything that the files and folders hold. ``nsys`` opens reports of Nsight Systems."""
    return audit_read(read_all(files, nsys), claim, baseline)


def audit_read(read: ReadFiles, claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """Audit what was read: one section for what the ranks of a job left of one kind, and one after the other for several jobs."""
    sections = [_section(name, record, claim, baseline) for name, record in read.left if not kind_of(record).together]
    jobs = {id(record) for job in read.jobs for _, record in job}
    others: dict[type, list[tuple[str, object]]] = {}
    for name, record in read.left:
        if kind_of(record).together and id(record) not in jobs:
            others.setdefault(type(record), []).append((name, record))
    for job in (*others.values(), *read.jobs):
        names, records = zip(*job, strict=True)
        sections.append(kind_of(records[0]).judge(records, claim, names))
    return Audit(claim, tuple(sections), read.notes)


def _section(name: str, record: object, claim: Claim | None, baseline: Path | None) -> Section:
    judge = kind_of(record).judge
    if not baseline or not isinstance(record, tuple):
        return judge(record, claim, name)
    from commtax.runs.results import bench

    return judge(record, claim, name, bench.read(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0])
