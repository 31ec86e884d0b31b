"""Open-loop runs: each simulated once for all rows that tell of it, on all cores; its figures and verdicts against the rows'."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import current_process

from commtax import catalog
from commtax.question import Question
from commtax.spec import Engine
from commtax.verbs.requests import RequestsInTime, run_requests
from commtax.verbs.settling import resolve_question, settle
from commtax_lab.published import open_loop
from commtax_lab.published.open_loop import BEYOND, HOLDS, HOLDS_BEYOND, OVERLOADED, OpenLoopRun, ReplicaSettings
from commtax_lab.published.rows import PublishedFigure, RowQuestion
from commtax_lab.published.scoring.prediction_columns import NONE, Prediction, Records, answers
from commtax_lab.published.tables import Table

JUDGED_REQUESTS = 3_000  # enough to see that a rate far beyond the published one is not held
FEW = 4  # runs that are not worth starting processes for


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A run and all that rows ask of it."""

    run: OpenLoopRun
    kinds: tuple[str, ...]


Scores = Mapping[str, Prediction]
"""Of one run, by kind."""


def score_table(table: Table) -> Records:
    """Score every row of a table, or give the reason why it has no figures."""
    rows = open_loop.read(table.dicts(), table.folder)
    wanted: dict[OpenLoopRun, set[str]] = {}
    for one in rows:
        if one.question is not None:
            wanted.setdefault(one.question, set()).update(entry.kind for entry in one.entries)
    jobs = [ScoringJob(run, tuple(sorted(kinds))) for run, kinds in wanted.items()]
    scores = dict(zip(wanted, score_runs(jobs), strict=True))

    def predict(run: OpenLoopRun, entries: Sequence[PublishedFigure]) -> list[Prediction]:
        outcome = scores[run]
        return [NONE if entry.skipped or isinstance(outcome, str) else outcome[entry.kind] for entry in entries]

    return answers([_with_reason(one, scores) for one in rows], predict, same=lambda run: run)


def _with_reason(one: RowQuestion[OpenLoopRun], scores: Mapping[OpenLoopRun, Scores | str]) -> RowQuestion[OpenLoopRun]:
    """Give the figures of a run that cannot be simulated the reason."""
    reason = "" if one.question is None else scores[one.question]
    if not isinstance(reason, str) or not reason:
        return one
    return RowQuestion(tuple(replace(entry, skipped=entry.skipped or reason) for entry in one.entries), None)


def score_runs(jobs: Sequence[ScoringJob]) -> list[Scores | str]:
    """Simulate each run, longest first so that no core is left with a long one, and return its scores or its refusal."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(jobs) <= FEW or cores == 1 or current_process().daemon:  # which may have no children
        return [score(job) for job in jobs]
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].run.load.num_requests)
    results: list[Scores | str] = [""] * len(jobs)
    with ProcessPoolExecutor(cores) as pool:
        for i, result in zip(order, pool.map(score, [jobs[i] for i in order], chunksize=1), strict=True):
            results[i] = result
    return results


def score(job: ScoringJob) -> Scores | str:
    """Return a run's figures and verdicts, or the refusal where it cannot be simulated."""
    run = job.run
    try:
        outcome = run_requests(settle(question_of(run)))
        return {kind: _prediction(kind, run, outcome) for kind in job.kinds}
    except ValueError as error:
        return str(error)


def _prediction(kind: str, run: OpenLoopRun, outcome: RequestsInTime) -> Prediction:
    if kind == OVERLOADED:
        return _verdict(outcome.overloaded)
    if kind == HOLDS:
        return _verdict(_holds_limits(run, outcome))
    if kind == HOLDS_BEYOND:
        return _verdict(_holds_limits(run, run_requests(settle(question_of(overload_question(run))))))
    low, high = outcome.range_of(kind)
    return Prediction(outcome.statistic(kind), low, high)


def _verdict(yes: bool) -> Prediction:
    return Prediction(float(yes), float(yes), float(yes))


def _holds_limits(run: OpenLoopRun, outcome: RequestsInTime) -> bool:
    return outcome.holds(run.slo_ttft_s, run.slo_tpot_s)


def overload_question(run: OpenLoopRun) -> OpenLoopRun:
    """Return the question at a rate out of reach, for as long as overload takes to show."""
    load = run.load
    fewer = min(load.num_requests, JUDGED_REQUESTS)
    return replace(run, load=replace(load, request_rate=load.request_rate * BEYOND, num_requests=fewer, warmup=0))


def question_of(run: OpenLoopRun) -> Question:
    """Return the question to put to the simulator."""
    server, load = run.server, run.load
    limits = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_tokens")
    options = {name: getattr(server, name) or None for name in (*limits, "dtype", "kv_dtype")}
    sizes = {name: getattr(server, name) for name in ("tp", "pp", "dp", "ep")}
    put = resolve_question(server.model, server.cluster, {"engine": _engine(server), **options, **sizes})
    same = ("request_rate", "burstiness", "warmup", "inputs", "outputs", "unique_prompts", "shared_prefix")
    offered = {name: getattr(load, name) for name in same}
    return put.but(**offered, num_prompts=load.num_requests + load.warmup, max_in_flight=load.in_flight)


def _engine(server: ReplicaSettings) -> Engine:
    """Return the engine as it was run: with or without chunked prefill, with or without a front end."""
    engine = catalog.engine(server.engine)
    if server.chunked is not None:
        engine = engine.but(chunked=server.chunked)
    return engine.but(request_s=0.0, frontend_request_s=0.0, frontend_token_s=0.0) if server.in_process else engine
