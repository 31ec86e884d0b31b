"""Why the slowest requests are slow: what passes in their lives against those of the middle.

The slowest hundredth (by TTFT) is held against the middle fifth. Each second of a request's wait is put down to the step that its
engine was in:

===========  =====================================================================
``way``      before its engine's scheduler sees it: front end and network
``slots``    a step with as many requests as may run at once
``cache``    a step while the cache had no room for its prompt
``prompts``  another step with prompts of others
``step``     another step: that in progress, or the one that was decided ahead
``own``      its own prompt's steps, from the first on
``moved``    its cache on the way to the worker that decodes
===========  =====================================================================
"""

from collections.abc import Iterator, Mapping

import numpy as np

from commtax.records import dataclass
from commtax.sim.serving import figures
from commtax.sim.serving.figures import Array, Columns
from commtax.verbs.requests import RequestsInTime

CAUSES = ("way", "slots", "cache", "prompts", "step", "own", "moved")
SLOW, MIDDLE = 0.99, (0.4, 0.6)
MOST_LOOKED_AT = 200  # requests of a group
FULL = 0.98  # of the slots: prompts that are being computed have some too


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """TTFT of the slowest hundredth against the middle fifth."""

    median_s: float
    p99_s: float
    more_s: Mapping[str, float]  # by cause, the mean of the slowest less that of the middle
    longer: float  # prompt tokens that are computed, slowest over middle

    @property
    def cause(self) -> str:
        """What adds most."""
        return max(self.more_s, key=lambda name: self.more_s[name])


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between tokens: the slowest hundredth against the median."""

    median_s: float
    p99_s: float
    with_prompts: float  # share of the slowest that are steps with prompts of others …
    tokens: float  # … with so many prompt tokens in the mean
    behind: float  # share without prompts of their own that had to wait for another stage's or rank's
    stalled: float  # share that waited before their step: for prompts that go first, or for stages
    thrown: float  # share of those whose requests had been thrown out of the cache
    preempted: int  # requests that were thrown out of the cache …
    lost_s: float  # … and waited for their next token this long in the mean


def first_tokens(o: RequestsInTime) -> FirstTokens:
    seen = o.counted
    ttft = o.columns["ttft_s"][seen]
    rows = np.arange(len(o.columns["ttft_s"]))[seen]
    slow = np.quantile(ttft, SLOW)
    low, high = np.quantile(ttft, MIDDLE[0], method="lower"), np.quantile(ttft, MIDDLE[1], method="higher")  # of two: both
    tail, middle = rows[ttft >= slow], rows[(ttft >= low) & (ttft <= high)]
    logs = {engine.number: _steps_in_order(o.log, engine.number) for engine in o.ran.engines}
    groups = [_parts(o, group, logs) for group in (tail, middle)]
    computed = np.array(o.ran.book.input_len) - o.columns["cached_tokens"]
    longer = float(np.mean(computed[tail]) / max(1.0, float(np.mean(computed[middle]))))
    more_s = {name: groups[0][name] - groups[1][name] for name in CAUSES}
    return FirstTokens(o.statistic("ttft_p50"), o.statistic("ttft_p99"), more_s, longer)


def _steps_in_order(log: Columns, engine: int) -> Columns:
    """One engine's steps by when they begin: batches of a pipeline are written down when they leave it."""
    own = np.flatnonzero(log["engine"] == engine)
    order = own[np.argsort(log["begin_s"][own], kind="stable")]
    ordered = {name: column[order] for name, column in log.items()}
    # ranks that begin together wait for each other's prompts
    step = np.cumsum(np.diff(ordered["begin_s"], prepend=-np.inf) > 0) - 1
    tokens = np.zeros(len(order))
    np.maximum.at(tokens, step, ordered["tokens"])
    return {**ordered, "tokens": tokens[step]}


def _parts(o: RequestsInTime, rows: Array, logs: Mapping[int, Columns]) -> dict[str, float]:
    """Mean seconds of each cause, of a group of requests."""
    sums = dict.fromkeys(CAUSES, 0.0)
    some = rows[:: max(1, len(rows) // MOST_LOOKED_AT)]
    for i in some.tolist():
        for name, seconds in _life(o, i, logs):
            sums[name] += seconds
    return {name: total / len(some) for name, total in sums.items()}


def _life(o: RequestsInTime, i: int, logs: Mapping[int, Columns]) -> Iterator[tuple[str, float]]:
    """A request from sending to its first token."""
    book, columns = o.ran.book, o.columns
    sent, started, first = book.sent_s[i], book.started_s[i], book.first_s[i]
    moved = min(float(columns["transfer_s"][i]), first - started)
    yield "moved", moved
    yield "own", first - started - moved
    rules = (o.fleet.prompts or o.fleet.workers).rules
    seen = min(started, sent + rules.way_s + rules.door_s)
    yield "way", seen - sent
    if o.fleet.prompts:  # whose workers do nothing else
        yield "prompts", started - seen
        return
    log = logs[book.served_by[i]]
    begin = log["begin_s"]
    from_, to = int(np.searchsorted(begin, seen, side="right")) - 1, int(np.searchsorted(begin, started, side="left"))
    needed = -(-book.input_len[i] // rules.block)
    left = started - seen
    for at in range(max(0, from_), to):
        end = begin[at + 1] if at + 1 < len(begin) else started
        passed = max(0.0, min(end, started) - max(begin[at], seen))
        left -= passed
        yield _cause(log, at, rules.seqs, needed), passed
    yield "step", max(0.0, left)


def _cause(log: Columns, at: int, seqs: int, needed: int) -> str:
    if log["decodes"][at] >= FULL * seqs:
        return "slots"
    if log["free"][at] < needed and log["waiting"][at] > 0:
        return "cache"
    return "prompts" if log["tokens"][at] > 0 else "step"


def gaps(o: RequestsInTime) -> Gaps:
    """What the slowest times between tokens are."""
    limit = o.statistic("itl_p99")
    mixed, late = o.log["tokens"] > 0, figures.rows(o.late, o.late["gap_s"] >= limit)
    again = late["thrown"] > 0
    usual = figures.rows(o.late, o.late["thrown"] == 0)
    parts = [[figures.rows(log, (log["tokens"] > 0) == prompts) for log in (o.log, usual)] for prompts in (True, False)]
    slow = [float(counts[seconds >= limit].sum()) for seconds, counts in (figures.gaps(*part) for part in parts)]
    total = max(1.0, sum(slow) + float(late["requests"][again].sum()))
    heavy = mixed & (o.log["first_s"] >= limit) & (o.log["decodes"] > 0)
    thrown = o.columns["preemptions"] > 0
    return Gaps(
        median_s=o.statistic("itl_p50"),
        p99_s=limit,
        with_prompts=slow[0] / total,
        tokens=float(np.mean(o.log["tokens"][heavy])) if heavy.any() else 0.0,
        behind=float(o.log["decodes"][_steps_behind_prompts(o, limit)].sum()) / total,
        stalled=float(late["requests"][~again & (late["step_s"] < limit)].sum()) / total,
        thrown=float(late["requests"][again].sum()) / total,
        preempted=int(thrown.sum()),
        lost_s=float(np.mean(o.columns["preempted_s"][thrown])) if thrown.any() else 0.0,
    )


def _steps_behind_prompts(o: RequestsInTime, limit: float) -> Array:
    """Slow steps without prompts during which another stage's or rank's batch of the same engine had some."""
    log = o.log
    end = log["begin_s"] + figures.seconds(log)
    slow = (log["tokens"] == 0) & (log["decodes"] > 0) & (log["first_s"] >= limit)
    beside = np.zeros(len(end), dtype=bool)
    for engine in o.ran.engines if o.fleet.workers.stages > 1 or o.fleet.workers.ranks > 1 else ():
        own = np.flatnonzero((log["engine"] == engine.number) & (log["tokens"] > 0))
        own = own[np.argsort(log["begin_s"][own], kind="stable")]
        before = np.searchsorted(log["begin_s"][own], end, side="left")  # batches that began before a step's end …
        latest = np.maximum.accumulate(np.concatenate([[-np.inf], end[own]]))[before]  # … and the last end of these
        beside |= (log["engine"] == engine.number) & (latest > log["begin_s"])
    return np.asarray(slow & beside)
