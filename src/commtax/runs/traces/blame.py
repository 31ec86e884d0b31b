"""Who is to blame: of all that is suspected the dearest, if it costs enough."""

from __future__ import annotations

import numpy as np

from commtax.runs.evidence.finding import Culprit
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.series import LEVEL, Suspect
from commtax.runs.traces.stages import is_pipeline, slow_stages, stages, starved_stages
from commtax.runs.traces.suspects import lost_overlap, slow_links, stragglers, unhidden_gathers
from commtax.thresholds import counts
from commtax.timeline import Column

COUNT = counts(__name__)
BEATS = counts("runs.traces.accounts").most_beats


def suspects(job: TracedJob, most: int) -> list[Suspect]:
    """All that may be at fault in so many stretches of steps at most, dearest first."""
    accounts, first = job.accounts.together(most)
    if accounts.total_s.shape[1] < COUNT.fewest or (is_pipeline(job) and not (job.named or job.synchronised)):
        return []
    ranks = [t.rank for t in job.traces]
    links = list(slow_links(job, accounts, first))
    found = [*lost_overlap(accounts), *unhidden_gathers(job, accounts), *links]
    if is_pipeline(job):
        found += slow_stages(job, accounts)
        found += starved_stages(job, accounts, first, explained=bool(found))
        for peers in stages(job):
            found += stragglers(accounts, ranks, peers)
    else:
        found += stragglers(accounts, ranks, range(len(ranks)))
    return sorted((s for s in found if s.cost >= LEVEL.least), key=lambda s: -s.cost)


def blame(job: TracedJob) -> tuple[Culprit | None, float]:
    """The dearest suspect, with when it began on the job's clock, and what it costs a step in seconds."""
    for most in (BEATS,) if job.named else (BEATS, COUNT.stretches):
        if found := suspects(job, most):
            break
    else:
        return None, 0.0
    accounts, first = job.accounts.together(most)
    worst = found[0]
    begins = _begins(job, first[worst.since])
    alone = worst.place is not None and worst.kind != "late rank"  # which is late in a step that the others have begun
    since = float(begins[worst.place] if alone else np.min(begins))
    rank = job.traces[worst.place].rank if worst.place is not None else None
    steps = max(1, round(job.accounts.total_s.shape[1] / len(first)))
    return Culprit(worst.kind, rank, max(0.0, since), worst.said), worst.cost * accounts.step_s / steps


def _begins(job: TracedJob, step: int) -> Column:
    """When each rank began a step: on the job's clock, or on its own where the clocks are not known."""
    if job.synchronised:
        return np.asarray(job.accounts.begin_s[:, step])
    own = zip(job.windows, job.common, job.traces, strict=True)
    return np.array([begin[common[step]] - trace.begin_s for (begin, _), common, trace in own])
