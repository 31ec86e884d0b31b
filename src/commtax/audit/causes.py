"""What binds a job's steps, what that costs, what to change, and what that would gain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commtax.audit.accounts import Job
from commtax.audit.fabrics import crossing, utilisation
from commtax.audit.finding import Cause, Culprit
from commtax.audit.stages import is_pipeline, stages
from commtax.readers.meeting import MESSAGE, spans
from commtax.readers.repetition import WHOLE
from commtax.units import format_seconds, plural

SMALL = 0.02  # of a step: what costs less binds nothing
SHORT_S = 50e-6  # pauses shorter than this are the host's, one for each launch
MANY = 20  # such pauses in a step
MOSTLY = 0.6
LATE_GATHERS = 0.5


def causes(job: Job, culprit: Culprit | None, cost_s: float) -> tuple[Cause, ...]:
    """All that costs a step something, dearest first; ``cost_s`` is what the culprit costs."""
    if not job.accounts.total_s.size or not job.accounts.step_s > 0:  # steps that take no time cost nothing
        return ()
    found = [*_blamed(job, culprit, cost_s), *_waiting(job, culprit), *_exposed(job), *_idle(job), *_bubble(job)]
    found += [*_late_gathers(job), *crossing(job), *utilisation(job)]
    return tuple(sorted(found, key=lambda c: -(c.cost_s or 0.0)))


def cause(code: str, said: str, cost_s: float, step_s: float, change: str) -> Cause:
    """A cause with its share of the step, and the step without it in words."""
    gain = f"without it a step takes {format_seconds(step_s - cost_s)} instead of {format_seconds(step_s)} (-{cost_s / step_s:.0%})"
    return Cause(code, said, cost_s, cost_s / step_s, change, gain)


CHANGES = {
    "slow rank": "look at its clocks, power, temperature and neighbours on the host, or give it less work",
    "late rank": "look at its host: data loading, other processes, pinning of threads",
    "slow link": "look at its cables, adapters and routes, and at what else uses them",
    "starved stage": "look at the host of the stage before it, and at how layers are spread over stages",
    "lost overlap": "look at what made communication wait for compute, or compute for it: a synchronisation, a stream, a bucket",
}


def _blamed(job: Job, culprit: Culprit | None, cost_s: float) -> Iterator[Cause]:
    """What the culprit costs a step since it is there."""
    if culprit is None:
        return
    step_s = _since(job, culprit)
    where = f" at rank {culprit.rank}" if culprit.rank is not None else ""
    yield cause(culprit.kind, f"{culprit.kind}{where}: {culprit.said}", min(cost_s, 0.99 * step_s), step_s, CHANGES[culprit.kind])


def _since(job: Job, culprit: Culprit) -> float:
    """A typical step since the fault began."""
    accounts = job.accounts
    struck = np.median(accounts.begin_s, axis=0) >= (culprit.since_s or 0.0) - 0.5 * accounts.step_s
    return (float(np.median(accounts.total_s[:, struck])) if struck.any() else 0.0) or accounts.step_s


def _waiting(job: Job, culprit: Culprit | None) -> Iterator[Cause]:
    """Time in collectives before the last rank comes: who waits for whom."""
    accounts, step_s = job.accounts, job.accounts.step_s
    waited = np.median(accounts.wait_s, axis=1)
    cost = float(np.median(waited))
    named = culprit is not None and culprit.kind in ("slow rank", "late rank", "starved stage")
    if cost < SMALL * step_s or named or len(job.traces) < 2:
        return
    least, most = int(np.argmin(waited)), int(np.argmax(waited))
    ranks = [t.rank for t in job.traces]
    said = f"ranks wait {format_seconds(cost)} of a step in collectives for those that come later: rank {ranks[most]} most"
    said += f" ({format_seconds(float(waited[most]))}), rank {ranks[least]} least ({format_seconds(float(waited[least]))})"
    yield cause("waiting", said, cost, step_s, "even out the work of the ranks: nobody comes last in every step")


def _exposed(job: Job) -> Iterator[Cause]:
    """Communication that nothing hides, but for waiting, and which kind most of it is."""
    accounts, step_s = job.accounts, job.accounts.step_s
    cost = float(np.median(accounts.wire_s))
    if cost < SMALL * step_s:
        return
    by_op: dict[str, float] = {}
    trace, ran = job.traces[0], job.covered[0]
    start, end = spans(trace)
    shown = np.maximum(0.0, end - start - ran.compute.within(start, end) - np.nan_to_num(job.waiting[0]))
    for c, seconds in zip(trace.collectives, shown.tolist(), strict=True):
        by_op[c.op] = by_op.get(c.op, 0.0) + seconds
    op = max(by_op, key=lambda name: by_op[name], default="")
    most = f", {by_op[op] / max(1e-12, sum(by_op.values())):.0%} of it {op}" if op else ""
    hidden = float(np.median(accounts.hidden_s))
    beside = f"nothing beside it ({format_seconds(hidden)} hides under compute)"
    said = f"communication takes {format_seconds(cost)} of a step with {beside}{most}"
    change = "a faster library path or link, fewer or smaller messages, or overlap with compute"
    waits = "" if len(job.traces) > 1 else "; one rank alone: waiting included"
    yield cause("exposed", said + waits, cost, step_s, change)


def _idle(job: Job) -> Iterator[Cause]:
    """A device with nothing to do: many short pauses are launches, few long ones a stall of the host or its data."""
    accounts, step_s = job.accounts, job.accounts.step_s
    places = np.median(accounts.idle_s, axis=1)
    place = int(np.argsort(places)[len(places) // 2])
    cost = float(places[place])
    if cost < SMALL * step_s or not job.traces[place].on_device:
        return
    begin, length = job.covered[place].anything.gaps
    inside = job.step_of(place, begin) >= 0
    length, steps = length[inside], max(1, len(job.traces[place].steps))
    short = length < SHORT_S
    number = float(short.sum()) / steps
    if number >= MANY and length[short].sum() >= MOSTLY * length.sum():
        pauses = f"{number:.0f} pauses of {format_seconds(float(np.median(length[short])))}"
        said = f"the device idles {format_seconds(cost)} of a step in {pauses}: the host launches kernels too slowly"
        yield cause("launch-bound", said, cost, step_s, "CUDA graphs, or fewer and larger kernels")
        return
    longest = format_seconds(float(length.max())) if len(length) else "its whole length"
    said = f"the device idles {format_seconds(cost)} of a step, in pauses of up to {longest}: it waits for the host or for data"
    yield cause("stall", said, cost, step_s, "look at the host: data loading, scheduling, synchronisation, copies")


def _bubble(job: Job) -> Iterator[Cause]:
    """Stages that wait for each other, beside what filling and draining the pipeline explains."""
    if not is_pipeline(job):
        return
    accounts, step_s = job.accounts, job.accounts.step_s
    depth = len(stages(job))
    share = float(np.median(1 - np.median(accounts.compute_s, axis=1) / step_s))
    first, steps = job.traces[0], max(1, len(job.traces[0].steps))
    messages = sum(c.op == MESSAGE for c in first.collectives) / steps
    micro = max(1, round(messages / (2 if first.training else 1)))
    least = (depth - 1) / (micro + depth - 1)
    if share < SMALL or first.steps[0].name == WHOLE:
        return
    told = f"{plural(depth, 'stage')} and {micro} {'microbatch' if micro == 1 else 'microbatches'}"
    said = f"stages do not compute {share:.0%} of a step; {told} explain {least:.0%} (filling and draining)"
    yield cause("bubble", said, share * step_s, step_s, "more microbatches, or layers spread more evenly over the stages")


def _late_gathers(job: Job) -> Iterator[Cause]:
    """Gathers of sharded weights that begin only when compute has nothing left to do."""
    trace, ran = job.traces[0], job.covered[0]
    if not trace.training or not trace.steps:
        return
    start, end = spans(trace)
    gather = np.array([c.op == "all-gather" for c in trace.collectives], dtype=bool)
    if not gather.any() or not any(c.op == "reduce-scatter" for c in trace.collectives):
        return
    waited = np.nan_to_num(job.waiting[0])
    shown = np.maximum(0.0, end - start - ran.compute.within(start, end) - waited)
    late = gather & (shown > LATE_GATHERS * (end - start - waited)) & (ran.compute.within(start - 1e-6, start) < 0.5e-6)
    cost = float(shown[late].sum()) / len(trace.steps)
    if cost >= SMALL * job.accounts.step_s:
        number = f"{late.sum() / len(trace.steps):.0f} of {gather.sum() / len(trace.steps):.0f}"
        said = f"{number} all-gathers of a step begin only when compute waits for them"
        yield cause("prefetch", said, cost, job.accounts.step_s, "gather a layer's weights while the one before it computes")
