"""A run's files, held against what is said of it: ``commtax.audit_run("vllm.log", model="llama-3.1-8b", tp=2)``.

What nobody says is taken from a start-up log or a result among the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from commtax import catalog
from commtax.options import check_taken, options, taken_by
from commtax.records import record_from
from commtax.runs.audit import audit_read
from commtax.runs.audit.read_files import ReadFiles, model_of, place_of, read_all
from commtax.runs.evidence.finding import Audit, Claim
from commtax.runs.logs.engine_logs import StartupLog
from commtax.runs.logs.startup_audit import logged_options
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.units import listed
from commtax.verbs.keywords import AuditRunOptions, CompareOptions
from commtax.verbs.settling import resolve_question

if TYPE_CHECKING:
    from commtax.runs.results.bench_record import BenchmarkRun

RELEASE = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){1,9})")
UNSAID = "assumed (neither a file nor -tp says it)"
ENGINE = "engine"
LAYOUT = ("tp", "pp", "dp")
SIZES = (*LAYOUT, "ep")


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Options of a serving question as files say them, and the files that say them, in words."""

    options: Mapping[str, str | int] = field(default_factory=dict)
    files: str = ""

    def over(self, claim: Claim, stated: set[str]) -> Claim:
        """Return the claim with what nobody ``stated`` taken from the files, where a stated size stands for the whole layout."""
        q = claim.question
        fixed = {options()[name].field.rpartition(".")[2] for name in stated if name in options()}
        fixed |= (set(SIZES) if stated & {*LAYOUT} else set()) | ({"weights_dtype"} if q.model.quant else set())
        ranks = prod(int(self.options.get(axis, 1)) for axis in LAYOUT)
        if ranks > q.cluster.num_gpus:  # which the audit then says
            fixed |= set(SIZES)
        taken = {name: value for name, value in self.options.items() if name not in fixed}
        if q.trains:
            return claim
        if engine := taken.pop(ENGINE, ""):
            q = replace(q, engine=catalog.engine(str(engine)))
        guessed = "tp" not in taken and not stated & {*LAYOUT} and q.cluster.num_gpus > 1
        source = f"from {self.files}" if "tp" in taken else UNSAID if guessed else ""
        return replace(claim, question=q.but(**taken), plan_source=source, guessed=guessed)


def launched_options(read: ReadFiles, model: str, stated: Mapping[str, object]) -> dict[str, object]:
    """Return the options in the commands beside a run that are not among those ``stated``, where one size fixes all."""
    if not read.launches:
        return {}
    from commtax.runs.audit.reported_deployments import ReportedDeployment, joined

    sizes = {axis: stated[axis] for axis in LAYOUT if axis in stated}
    fixed = {*stated, *(SIZES if sizes else ())}
    of_it = [launch for launch in read.launches if all(launch.options.get(axis, n) == n for axis, n in sizes.items())]
    try:
        options = joined((ReportedDeployment("--model", model), *of_it)).options
    except Refusal as refusal:
        raise Refusal(f"{refusal}; name with --from what ran", refusal.argument) from None
    return {name: value for name, value in options.items() if name not in fixed}


def by_launch(read: ReadFiles, claim: Claim, options: Mapping[str, object]) -> Claim:
    """Return the claim with its plan attributed to the command beside the run, if that gave one."""
    return replace(claim, plan_source=f"from {read.launches[0].source}", guessed=False) if "tp" in options else claim


def logged_run(read: ReadFiles) -> LoggedRun:
    """Return the options on which all engine logs agree, or without logs all benchmark results."""
    logs = [(name, _log_options(record)) for name, record in read.left if isinstance(record, StartupLog)]
    benches = [(name, cast("tuple[BenchmarkRun, ...]", record)) for name, record in read.left if isinstance(record, tuple)]
    results = [(name, _result_options(run)) for name, runs in benches for run in runs]
    reports = logs or results
    if not reports:
        return LoggedRun()
    first, *others = (options for _, options in reports)
    alike = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    names = [name for name, _ in reports]
    return LoggedRun(alike, listed(names if len(names) < 3 else [names[0], f"{len(names) - 1} more"])) if alike else LoggedRun()


def _log_options(log: StartupLog) -> dict[str, str | int]:
    """Return the options of a start-up log, with no name for an engine or version that is not modelled."""
    options = {name: value for name, value in logged_options(log).items() if name != "model"}
    options |= {name: value for name in ("ep", "max_model_len") if (value := getattr(log, name))}
    release = RELEASE.match(log.version)
    engine = f"{log.engine}@{release[1]}" if release else log.engine
    try:
        catalog.engine(engine)
    except Refusal:
        engine = ""
    return {**options, ENGINE: engine}


def _result_options(run: BenchmarkRun) -> dict[str, str | int]:
    if not run.tp:
        return {}
    larger = {axis: size for axis in SIZES[1:] if (size := int(run.facts.get(axis, "1"))) > 1}  # tools write 1 whatever ran
    return {"tp": run.tp, **larger}


WORKLOAD = [f.name for f in fields(Claim)[1:4]]  # what a claim says beside its question


def audit_run(
    *files: str | PathLike[str],
    model: str | Model = "",
    cluster: str | Cluster = "",
    tolerance: float = levels("runs.evidence.finding").seconds_tolerance,
    baseline: str | PathLike[str] = "",
    **options: Unpack[AuditRunOptions],
) -> Audit:
    """Audit the logs, traces and benchmark results of a run, and name who is to blame.

    With ``model`` (and ``cluster``, where the files do not name it) every count, size and time is also held against its
    prediction: ``tolerance`` is relative, for seconds. The other keywords say how it was launched. ``baseline`` is the same
    benchmark at TP 1. Files are recognised by their content; folders stand for the files in them.

    >>> import commtax
    >>> run = commtax.audit_run("tests/fixtures/vllm-cpu-tp2.log")
    >>> run.verdict, len(run.findings) > 5
    ('unknown', True)
    """
    check_taken("audit_run", options)
    read = read_all([Path(file) for file in files])
    if not model and not cluster and options:
        name = next(iter(options))
        raise Refusal(f"{name}: belongs to a prediction: say with model= what ran", name)
    claim = _claim(read, model, cluster, tolerance, options) if model or cluster else None
    return audit_read(read, claim, Path(baseline) if baseline else None)


def _claim(read: ReadFiles, model: str | Model, cluster: str | Cluster, tolerance: float, stated: AuditRunOptions) -> Claim:
    """Return the claim on what ran and where, completed from the files."""
    place = cluster or place_of(read)
    if not place:
        raise Refusal("cluster: the files do not tell where it ran: name it, such as 8xh100-sxm", "cluster")
    phase = stated.pop("phase", "decode")
    work = {name: value for name, value in stated.items() if name in WORKLOAD}
    plain = {name: value for name, value in stated.items() if name not in WORKLOAD}
    trained = CompareOptions(phase="train") if phase == "train" else CompareOptions()  # which has engines of its own
    resolved = catalog.cluster(place) if isinstance(place, str) else place
    launched = launched_options(read, model if isinstance(model, str) else "", plain)
    launched = {name: value for name, value in launched.items() if name in taken_by("audit_run()")}
    q = resolve_question(model or model_of(read), resolved, {**launched, **plain, **trained}).but(phase=phase)
    claim = record_from(Claim, {**work, "question": q, "tolerance": tolerance})
    return by_launch(read, logged_run(read).over(claim, {*plain, *launched}), launched)
