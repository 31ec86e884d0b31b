"""Pipelines: stages do different work and hand it on, so that each is compared with its own past, and with those that feed it.

Also whether something in a row of steps is above nothing, always or from some step on, beyond what chance does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from commtax.runs.traces.accounts import Accounts, TracedJob, sum_columns
from commtax.runs.traces.meeting import MESSAGE
from commtax.thresholds import thresholds
from commtax.timeline import Column

COUNT, LEVEL = thresholds(__name__)

TO_MEDIAN = 1.2533  # standard error of a median, in those of a mean


@dataclass(frozen=True, slots=True)
class Rise:
    """A level, the step since which it holds (0: always), and the level before it."""

    level: float
    since: int
    before: float

    @property
    def grown(self) -> float:
        return self.level - self.before


def rise(x: Column, least: float = LEVEL.least, changed: bool = False) -> Rise | None:
    """Return the level of a series that exceeds 0, or with ``changed`` its earlier level, by at least ``least``.

    >>> risen = rise(np.array([0.0, 0.01, 0.0, 0.3, 0.31, 0.3]), 0.05)
    >>> (risen.level, risen.since, risen.before) if risen else None
    (0.3, 3, 0.0)
    """
    if len(x) < COUNT.after:
        return None
    since = _split(x)
    if since:
        before, after = float(np.median(x[:since])), float(np.median(x[since:]))
        noise = max(LEVEL.floor, _noise(x[:since]), _noise(x[since:]))
        sure = (after - before) / (TO_MEDIAN * noise * np.sqrt(1 / since + 1 / (len(x) - since)))
        risen = sure >= LEVEL.sure and after - before >= least and (changed or before < after / 2)
        if risen and _is_steady(x[since:] - before, after - before):
            return Rise(after, since, before)
    level = float(np.median(x))
    sure = level / (TO_MEDIAN * max(LEVEL.floor, _noise(x)) / np.sqrt(len(x)))
    if changed or level < least or sure < LEVEL.sure or not _is_steady(x, level):
        return None
    return Rise(level, 0, 0.0)


def _is_steady(x: Column, level: float) -> bool:
    return float(np.mean(x > 0.4 * level)) >= LEVEL.steady


def _noise(x: Column) -> float:
    """Return the mean distance from the median as a standard deviation, leaving out a tenth (one of five or more)."""
    apart = np.sort(np.abs(x - np.median(x)))
    strange = max(len(apart) // 10, int(len(apart) >= COUNT.enough))
    return float(TO_MEDIAN * np.mean(apart[: len(apart) - strange]))


def _split(x: Column) -> int:
    """Return the step where two means fit best, without steps that stand alone, or 0 where there is none."""
    if len(x) < COUNT.before + COUNT.after:
        return 0
    padded = np.concatenate([x[:1], x, x[-1:]])
    smooth = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    sums, n = np.cumsum(smooth), len(x)
    at = np.arange(COUNT.before, n - COUNT.after + 1)
    left, right = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (n - at)
    return int(at[np.argmax(at * (n - at) * (right - left) ** 2)])


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit's kind, its place among the ranks (None: no single one), cost as a share of a step, first step, and evidence."""

    kind: str
    place: int | None
    cost: float
    since: int
    text: str


def of_others(x: Column) -> Column:
    """Return for each row the median of the other rows."""
    rows = np.arange(len(x))
    return np.array([np.median(x[rows != r], axis=0) for r in rows]) if len(x) > 1 else np.zeros_like(x)


def dearest(rises: Iterable[Rise | None]) -> tuple[int, Rise] | None:
    """Return the rise that grew most, with its place."""
    rises_by_growth = [(r.grown, place, r) for place, r in enumerate(rises) if r is not None]
    return max(rises_by_growth, key=lambda f: f[:2])[1:] if rises_by_growth else None


def is_pipeline(job: TracedJob) -> bool:
    """Return whether ranks hand work on by messages."""
    met = job.meetings
    if met is None or any(size > 2 for size, c in zip(met.sizes.tolist(), met.calls, strict=True) if c.op == MESSAGE):
        return False
    messages = sum(c.op == MESSAGE for t in job.traces for c in t.collectives)
    return len(job.traces) > 1 and messages > LEVEL.messages * sum(len(t.collectives) for t in job.traces)


def stages(job: TracedJob) -> list[list[int]]:
    """Return, in order, the ranks that do the same work: those that share collectives which not all ranks share."""
    met, count = job.meetings, len(job.traces)
    groups = [{p} for p in range(count)]
    if met is not None:
        ends = np.append(met.first, len(met.place))
        shared = {tuple(met.place[a:b].tolist()) for a, b, c in zip(ends[:-1], ends[1:], met.calls, strict=True) if c.op != MESSAGE}
        for places in shared:
            if len(places) < count:
                joined = set().union(*(g for g in groups if g & set(places)))
                groups = [g for g in groups if not g & joined] + [joined]
    return sorted(sorted(g) for g in groups)


def slow_stages(job: TracedJob, accounts: Accounts) -> Iterator[Suspect]:
    """Yield stages that compute longer than they did, or whose kernels take longer than in all other stages."""
    step_s, usual = accounts.step_s, np.median(accounts.compute_s, axis=1, keepdims=True)
    relative_s = accounts.compute_s / np.maximum(usual, 1e-12)
    relative = relative_s - of_others(relative_s)
    mine = [_lengths(job, at) for at in range(len(job.traces))]
    shared = set.intersection(*(set(m) for m in mine)) if mine else set()
    pace = np.ones(len(mine))
    for at, lengths in enumerate(mine):
        ratios = [lengths[n][0] / max(1e-12, float(np.median([m[n][0] for i, m in enumerate(mine) if i != at]))) for n in shared]
        weights = np.array([lengths[n][1] for n in shared])
        if ratios and len(mine) > 1:
            order = np.argsort(ratios)
            pace[at] = np.array(ratios)[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]
    for place, rank in enumerate(t.rank for t in job.traces):
        risen = rise(relative[place], LEVEL.slower, changed=True)
        if risen is not None:
            computed = accounts.compute_s[place]
            cost = float(np.median(computed[risen.since :]) - np.median(computed[: risen.since])) / step_s
            text = f"rank {rank} computes for {risen.grown:.0%} longer than it did"
            yield Suspect("slow rank", place, cost, risen.since, text)
        others = np.delete(pace, place)
        alike = len(others) and np.all(np.abs(others - np.median(others)) < LEVEL.alike)
        if risen is None and alike and pace[place] > 1 + LEVEL.slower:
            cost = float(np.median(accounts.compute_s[place])) * (1 - 1 / pace[place]) / step_s
            text = f"rank {rank}'s kernels take {pace[place] - 1:.0%} longer than those of the other stages"
            yield Suspect("slow rank", place, cost, 0, text)


def _lengths(job: TracedJob, place: int) -> dict[str, tuple[float, float]]:
    """Return the median and total time of each kernel by name."""
    line = job.traces[place].timeline
    mask = np.flatnonzero(line.kind == line.kinds.index("compute"))
    codes: dict[str, int] = {}
    code = np.fromiter((codes.setdefault(line.name[i], len(codes)) for i in mask.tolist()), int, len(mask))
    length = (line.end_s - line.start_s)[mask]
    order = np.lexsort((length, code))
    counts = np.bincount(code, minlength=len(codes))
    first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    middle, sums = length[order][first + counts // 2], np.bincount(code, weights=length, minlength=len(codes))
    return {name: (float(middle[i]), float(sums[i])) for name, i in codes.items()}


def starved_stages(job: TracedJob, accounts: Accounts, first: Column, explained: bool) -> Iterator[Suspect]:
    """Yield stages whose input comes late: what feeds them idles, their host asks late, or messages do not arrive."""
    step_s = accounts.step_s
    if not step_s > 0:
        return
    if not job.synchronised:
        yield from [] if explained else _late_handovers(job, accounts, first)
        return
    changed = not (job.gathered or job.named)  # else what is so from the beginning on may be the schedule
    late = list(_undelivered_messages(job, accounts.starved_s / step_s, accounts.compute_s / step_s, changed))
    within = np.array([job.paused_within(place) for place in range(len(job.traces))])
    idle = sum_columns(within, first) / step_s
    late += _late_feeders(job, idle, changed)
    if not late and not explained:
        late = list(_late_handovers(job, accounts, first))
    if not late and not explained:
        late = list(_late_feeders(job, accounts.host_s / step_s, changed=True))
    yield from late


def _late_feeders(job: TracedJob, idle: Column, changed: bool) -> Iterator[Suspect]:
    """Yield the stage behind the one that idles most before it sends, or that one where it idles before it receives."""
    worst = dearest(rise(x, changed=changed) for x in idle - of_others(idle))
    if worst is None:
        return
    place, level = worst[0], worst[1].grown
    rank, last = job.traces[place].rank, len(job.traces) - 1
    partner = _partner_behind_pauses(job, place)
    starving = place + 1 if partner > place and place < last else place
    text = f"rank {rank} is idle for {level:.0%} of each step before it takes what it is sent"
    if starving != place:
        behind = f"rank {job.traces[starving].rank} waits for rank {rank}"
        text = f"{behind}, which is idle for {level:.0%} of each step before it hands over"
    yield Suspect("starved stage", starving, level, worst[1].since, text)


def _partner_behind_pauses(job: TracedJob, place: int) -> int:
    """Return who is at the other end of messages right behind a rank's long pauses, or itself where unknown."""
    met, (begin, length) = job.meetings, job.covered[place].anything.gaps
    if met is None or not len(length):
        return place
    after = (begin + length)[length > LEVEL.long_pause * np.quantile(length, 0.95)]
    rows = np.flatnonzero(met.place == place)
    calls = job.traces[place].collectives
    starts = np.array([calls[i].start_s for i in met.index[rows].tolist()])
    hits = rows[np.isin(np.round(starts * 1e9), np.round(after * 1e9))]
    hits = hits[[calls[i].op == MESSAGE for i in met.index[hits].tolist()]] if len(hits) else hits
    others = [int(met.place[r + 1] if met.first[met.of[r]] == r else met.place[r - 1]) for r in hits.tolist()]
    return int(np.median(others)) if others else place + 1


def _undelivered_messages(job: TracedJob, starving: Column, computed: Column, changed: bool) -> Iterator[Suspect]:
    """Yield the first stage that waits long for messages whose senders are done. Later stages wait for it in turn."""
    messages = [sum(c.op == MESSAGE for c in t.collectives) / max(1, len(t.steps)) for t in job.traces]
    # Each waits longer than the one before it by the microbatch that fills the pipeline.
    ahead = np.vstack([starving[:1], (starving + computed / max(1.0, min(messages)))[:-1]])
    rises = [(place, r) for place, x in enumerate(starving - ahead) if (r := rise(x, changed=changed)) is not None]
    most = max((r.grown for _, r in rises), default=0.0)
    for place, r in [(place, r) for place, r in rises if r.grown >= LEVEL.first * most][:1]:
        text = f"rank {job.traces[place].rank} waits {r.grown:.0%} of each step for input that was sent long before"
        yield Suspect("starved stage", place, r.grown, r.since, text)


def _late_handovers(job: TracedJob, accounts: Accounts, first: Column) -> Iterator[Suspect]:
    """Yield a stage that begins later behind the one before than it used to, by each rank's clock."""
    groups = stages(job)
    begun = np.array([np.mean([_first_compute(job, place) for place in group], axis=0) for group in groups])
    hops = sum_columns(np.diff(begun, axis=0), first) / accounts.step_s
    worst = dearest(rise(x, changed=True) for x in hops)
    if worst is None:
        return
    at, r = worst
    level = r.grown
    grown = np.median(hops[:, r.since :], axis=1) - np.median(hops[:, : r.since], axis=1)
    if np.any(np.delete(grown, at) > LEVEL.first * level):
        return
    place, rank, feeder = groups[at + 1][0], job.traces[groups[at + 1][0]].rank, job.traces[groups[at][0]].rank
    text = f"rank {rank} begins {level:.0%} of a step later behind rank {feeder} than it did; that computes as fast as before"
    yield Suspect("starved stage", place, level, r.since, text)


def _first_compute(job: TracedJob, place: int) -> Column:
    line, (begin, _) = job.traces[place].timeline, job.windows[place]
    starts = np.sort(line.start_s[line.kind == line.kinds.index("compute")])
    at = np.searchsorted(starts, begin[job.common[place]])
    return starts[np.minimum(at, len(starts) - 1)] if len(starts) else begin[job.common[place]]
