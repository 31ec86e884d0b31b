"""A run's files, held against what is said of it: ``commtax.audit_run("vllm.log", model="llama-3.1-8b", tp=2)``."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Unpack

from commtax import catalog
from commtax.audit import audit_read
from commtax.audit.logged_run import by_launch, launched_options, logged_run
from commtax.audit.read_files import ReadFiles, model_of, place_of, read_all
from commtax.evidence.finding import Audit, Claim
from commtax.options import check_taken, taken_by
from commtax.records import record_from
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.verbs.keywords import AuditRunOptions, CompareOptions
from commtax.verbs.settling import resolve_question

WORKLOAD = [f.name for f in fields(Claim)[1:4]]
"""What a claim says beside its question."""


def audit_run(
    *files: str | PathLike[str],
    model: str | Model = "",
    cluster: str | Cluster = "",
    tolerance: float = levels("evidence.finding").seconds_tolerance,
    baseline: str | PathLike[str] = "",
    **options: Unpack[AuditRunOptions],
) -> Audit:
    """What logs, traces and benchmark results say of a run, and who is to blame.

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


def _claim(read: ReadFiles, model: str | Model, cluster: str | Cluster, tolerance: float, said: AuditRunOptions) -> Claim:
    """What is said to have run, and on what; where one of them is not said, as the files do."""
    place = cluster or place_of(read)
    if not place:
        raise Refusal("cluster: the files do not tell where it ran: name it, such as 8xh100-sxm", "cluster")
    phase = said.pop("phase", "decode")
    work = {name: value for name, value in said.items() if name in WORKLOAD}
    plain = {name: value for name, value in said.items() if name not in WORKLOAD}
    trained = CompareOptions(phase="train") if phase == "train" else CompareOptions()  # which has engines of its own
    resolved = catalog.cluster(place) if isinstance(place, str) else place
    launched = launched_options(read, model if isinstance(model, str) else "", plain)
    launched = {name: value for name, value in launched.items() if name in taken_by("audit_run()")}
    q = resolve_question(model or model_of(read), resolved, {**launched, **plain, **trained}).but(phase=phase)
    claim = record_from(Claim, {**work, "question": q, "tolerance": tolerance})
    return by_launch(read, logged_run(read).over(claim, {*plain, *launched}), launched)
