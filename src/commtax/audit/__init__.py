"""What happened in a run, and does it agree? What it left behind, against what was predicted for it where somebody says what ran.

``readers.formats`` reads a file; one function for each kind of record tells, compares and judges.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtax.audit import formats
from commtax.audit.reading import Read, read_all
from commtax.evidence.finding import Audit, Claim, Section
from commtax.files import LOG_BYTES, read_text
from commtax.logs.crash_audit import audit_crash
from commtax.logs.crashes import Crash
from commtax.logs.flight import Dump
from commtax.logs.flight_audit import audit_analysis, audit_flight
from commtax.logs.flight_text import Analysis
from commtax.logs.llamacpp_audit import audit_timings
from commtax.logs.llamacpp_log import Timings
from commtax.logs.nccl_audit import audit_nccl
from commtax.logs.nccl_log import NcclLog
from commtax.logs.startup import StartupLog
from commtax.logs.startup_audit import audit_log
from commtax.logs.training_audit import audit_training
from commtax.logs.training_log import TrainingLog
from commtax.machines.matrices import Matrices
from commtax.machines.smi import Links, Monitor
from commtax.machines.smi_audit import audit_links, audit_monitor
from commtax.machines.smi_query import States
from commtax.machines.state_audit import audit_states
from commtax.machines.topology_audit import audit_topology
from commtax.results import bench
from commtax.results.bench_audit import audit_bench
from commtax.results.collective_audit import audit_collectives
from commtax.results.collective_tests import CollectiveTests
from commtax.traces.trace import Trace
from commtax.traces.trace_audit import audit_traces

AUDITS: Mapping[type, Callable[[Any, Claim | None, str], Section]] = {
    StartupLog: audit_log,
    Analysis: audit_analysis,
    Timings: audit_timings,
    TrainingLog: audit_training,
    CollectiveTests: audit_collectives,
    Links: audit_links,
    Monitor: audit_monitor,
    Matrices: audit_topology,
    States: audit_states,
    Crash: audit_crash,
}
"""By the kind of record: what it says, what was claimed, and the name of its file."""
JOINED: Mapping[type, Callable[[Sequence[Any], Claim | None, Sequence[str]], Section]] = {
    NcclLog: audit_nccl,
    Dump: audit_flight,
    Trace: audit_traces,
}
"""By the kind of record of which all of a job's files are read together: the records, what was claimed, and the files' names."""


def audit(files: Sequence[Path], claim: Claim | None = None, baseline: Path | None = None, nsys: str = "nsys") -> Audit:
    """All that files and folders say. ``nsys`` opens reports of Nsight Systems."""
    return audit_read(read_all(files, nsys), claim, baseline)


def audit_read(read: Read, claim: Claim | None = None, baseline: Path | None = None) -> Audit:
    """All that was read; what the ranks of a job left of one kind is told together, and several jobs one after the other."""
    sections = [_section(name, said, claim, baseline) for name, said in read.left if type(said) not in JOINED]
    logs = [(name, said) for name, said in read.left if isinstance(said, NcclLog)]
    for job in (*([logs] if logs else []), *read.jobs):
        names, said = zip(*job, strict=True)
        sections.append(JOINED[type(said[0])](said, claim, names))
    return Audit(claim, tuple(sections), read.notes)


def _section(name: str, said: formats.Left, claim: Claim | None, baseline: Path | None) -> Section:
    if not isinstance(said, tuple):
        return AUDITS[type(said)](said, claim, name)
    first = bench.read(read_text(baseline, "file", most=LOG_BYTES), baseline.name)[0] if baseline else None
    return audit_bench(said, claim, name, first)
