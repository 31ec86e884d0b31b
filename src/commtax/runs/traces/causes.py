"""What binds a job's steps, its links beside the catalogue among it; what that costs, what to change, and what that would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from commtax.catalog.hardware import chip, link, recognise
from commtax.cost.collectives import ring_factor
from commtax.files import table
from commtax.runs.evidence.finding import Cause, Culprit
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.layers import has_sharded_weights, has_unbucketed_gradients, per_step
from commtax.runs.traces.meeting import MESSAGE, spans
from commtax.runs.traces.repetition import WHOLE
from commtax.runs.traces.stages import is_pipeline, stages
from commtax.runs.traces.trace import Collective
from commtax.thresholds import thresholds
from commtax.timeline import Column
from commtax.units import format_bytes, format_rate, format_seconds, plural

COUNT, LEVEL = thresholds(__name__)


def hosts_of(job: TracedJob) -> Mapping[int, str]:
    """Host of each rank, where all traces tell one; else what counting devices tells, where that is known."""
    if all(t.host for t in job.traces):
        return {t.rank: t.host for t in job.traces}
    device = job.traces[0].device
    if device is None or device.count < 2:
        return {}
    ranks = {r for t in job.traces for c in t.collectives[:1000] for r in c.members} | {t.rank for t in job.traces}
    return {r: f"host {r // device.count}" for r in ranks}


def crossing_causes(job: TracedJob) -> Iterator[Cause]:
    """Groups of many collectives a step whose ranks lie on several hosts: each of them goes over the network."""
    hosts, trace = hosts_of(job), job.traces[0]
    steps, step_s = max(1, len(trace.steps)), job.typical.usual_s
    count = trace.device.count if trace.device else 0
    start, end = spans(trace)
    wire = end - start - np.nan_to_num(job.waiting[0])
    groups: dict[tuple[int, ...] | int, list[int]] = {}
    for i, c in enumerate(trace.collectives):
        if c.op in ("all-reduce", "all-gather", "reduce-scatter") and (c.members or c.ranks):
            groups.setdefault(c.members or c.ranks, []).append(i)
    for group, rows in groups.items():
        size = group if isinstance(group, int) else len(group)
        places = {hosts[r] for r in group if r in hosts} if not isinstance(group, int) else set()
        crosses = len(places) > 1 or (not places and 1 < count < size)
        if crosses and len(rows) / steps >= COUNT.many_calls:
            cost = float(wire[rows].sum()) / steps
            over = f"{len(places)} hosts" if places else f"hosts of {count} devices"
            number = f"{len(rows) / steps:.0f} collectives per step"
            said = f"{number} of a group of {size} ranks cross {over}: {format_seconds(cost)} on the wire"
            yield Cause("crosses hosts", said, cost, cost / step_s, CHANGES[_change_to_stay_inside(job)])


def _change_to_stay_inside(job: TracedJob) -> str:
    """Which change helps, by what the collectives are of: gradients, shards of weights, or else layers."""
    if has_unbucketed_gradients(job.traces[0]):
        return "buckets"
    return "sharded" if has_sharded_weights(per_step(job)) else "inside"


def utilisation(job: TracedJob) -> Iterator[Cause]:
    """Large messages inside a host beside the rate of the device's links."""
    device = job.traces[0].device
    found = recognise(device.name, device.memory_bytes, device.num_sms) if device and device.memory_bytes else ()
    links = {chip(key).intra for key in found}
    known, trace, step_s = link(links.pop()) if len(links) == 1 else None, job.traces[0], job.typical.usual_s
    if known is None or step_s <= 0:
        return
    start, end = spans(trace)
    wire = np.maximum(1e-9, end - start - np.nan_to_num(job.waiting[0]))
    inside = _inside_test(job)
    for op in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        calls = trace.collectives
        rows = [i for i, c in enumerate(calls) if c.op == op and (c.nbytes or 0) >= COUNT.large_bytes and inside(c)]
        if not rows:
            continue
        sent = np.array([float(ring_factor(op, calls[i].ranks)) * (calls[i].nbytes or 0.0) for i in rows])
        rate = float(np.median(sent / wire[rows]))
        lost = np.maximum(0.0, wire[rows] - sent / (LEVEL.usual * known.bandwidth_Bps))
        cost = float(lost.sum()) / max(1, len(trace.steps))
        if rate < LEVEL.poor * known.bandwidth_Bps and cost >= LEVEL.small * step_s:
            size = format_bytes(float(np.median([calls[i].nbytes or 0.0 for i in rows])))
            reached = f"{rate / known.bandwidth_Bps:.0%} of {known.name} ({format_rate(known.bandwidth_Bps)})"
            said = f"{op} of {size} moves {format_rate(rate)} per rank, {reached}"
            gain = f"at {LEVEL.usual:.0%} of the link a step takes {format_seconds(cost)} less on the wire (-{cost / step_s:.0%})"
            yield Cause("link", said, cost, cost / step_s, CHANGES["link"], gain)


def _inside_test(job: TracedJob) -> Callable[[Collective], bool]:
    """Whether a collective stays in one host: by its ranks, else by their number, where one host holds the whole job."""
    hosts, trace = hosts_of(job), job.traces[0]
    most = trace.device.count if trace.device else 0
    alone = max(trace.world, len(job.traces)) <= most

    def inside(c: Collective) -> bool:
        if c.members and all(r in hosts for r in c.members):
            return c.ranks > 1 and len({hosts[r] for r in c.members}) == 1
        return alone and 1 < c.ranks <= most

    return inside


CHANGES = table("runs/traces/changes.toml")
ROUNDING = 1e-9


def causes(job: TracedJob, culprit: Culprit | None, cost_s: float) -> tuple[Cause, ...]:
    """All that costs a step something, dearest first; ``cost_s`` is what the culprit costs."""
    if not job.typical.usual_s > 0:
        return ()
    found = [
        *_culprit_causes(job, culprit, cost_s),
        *_waiting_causes(job, culprit),
        *_exposed_causes(job),
        *_idle(job),
        *_bubble(job),
    ]
    found += [*_late_gathers(job), *crossing_causes(job), *utilisation(job)]
    return tuple(sorted(found, key=lambda c: -(c.cost_s or 0.0)))


def cause(code: str, said: str, cost_s: float, step_s: float, span: str = "a step", change: str = "") -> Cause:
    """A cause with its share of the step, which is all of it at most, and the step without it in words."""
    cost_s = min(cost_s, step_s)
    left = format_seconds(step_s - cost_s) if step_s - cost_s > ROUNDING * step_s else "nothing"
    gain = f"without this, {span} would take {left} instead of {format_seconds(step_s)} (-{cost_s / step_s:.0%})"
    return Cause(code, said, cost_s, cost_s / step_s, change or CHANGES[code], gain)


def span_of(job: TracedJob) -> str:
    """What seconds are of, in words."""
    return "the trace" if job.traces[0].steps[0].name == WHOLE else "a step"


def _culprit_causes(job: TracedJob, culprit: Culprit | None, cost_s: float) -> Iterator[Cause]:
    """What the culprit costs of a typical step since it is there."""
    if culprit is None:
        return
    accounts = job.accounts
    struck = np.median(accounts.begin_s, axis=0) >= (culprit.since_s or 0.0) - 0.5 * accounts.step_s
    step_s = (float(np.median(accounts.total_s[:, struck])) if struck.any() else 0.0) or accounts.step_s
    if struck.all() and job.typical.usual_s > 0:  # all steps are like that: it is told of those that all else is told of
        cost_s, step_s = _typical_cost_s(job, culprit, cost_s / accounts.step_s), job.typical.usual_s
    where = f" at rank {culprit.rank}" if culprit.rank is not None else ""
    said = f"{culprit.kind}{where}: {culprit.said}"
    yield cause(culprit.kind, said, min(cost_s, 0.99 * step_s), step_s)


def _typical_cost_s(job: TracedJob, culprit: Culprit, share: float) -> float:
    """Of a usual step: what the others wait for a rank, or as large a share as of all steps."""
    places = [place for place, trace in enumerate(job.traces) if trace.rank == culprit.rank]
    if culprit.kind not in ("slow rank", "late rank") or len(places) != 1 or is_pipeline(job):
        return share * job.typical.usual_s
    waited = job.typical.usual("wait_s")
    return float(np.median(np.delete(waited, places)) - waited[places[0]])


def _waiting_causes(job: TracedJob, culprit: Culprit | None) -> Iterator[Cause]:
    """Time in collectives before the last rank comes: who waits for whom."""
    step_s = job.typical.usual_s
    waited = job.typical.usual("wait_s")
    cost = float(np.median(waited))
    named = culprit is not None and culprit.kind in ("slow rank", "late rank", "starved stage")
    if cost < LEVEL.small * step_s or named or len(job.traces) < 2:
        return
    least, most = int(np.argmin(waited)), int(np.argmax(waited))
    ranks = [t.rank for t in job.traces]
    said = f"ranks wait {format_seconds(cost)} of {span_of(job)} in collectives for those that come later: rank {ranks[most]} most"
    said += f" ({format_seconds(float(waited[most]))}), rank {ranks[least]} least ({format_seconds(float(waited[least]))})"
    change = ""
    if waited[least] < LEVEL.hardly * np.median(np.delete(waited, least)):
        change = f"look at what rank {ranks[least]} does before its collectives: it waits least, in too few steps to blame it"
    yield cause("waiting", said, cost, step_s, span_of(job), change)


def _exposed_causes(job: TracedJob) -> Iterator[Cause]:
    """Communication that nothing hides, but for waiting, and which kind most of it is."""
    accounts, step_s = job.typical, job.typical.usual_s
    cost = float(np.median(accounts.usual("wire_s")))
    if cost < LEVEL.small * step_s:
        return
    by_op: dict[str, float] = {}
    trace, ran = job.traces[0], job.covered[0]
    start, end = spans(trace)
    shown = np.maximum(0.0, end - start - ran.compute.within(start, end) - np.nan_to_num(job.waiting[0]))
    for c, seconds in zip(trace.collectives, shown.tolist(), strict=True):
        by_op[c.op] = by_op.get(c.op, 0.0) + seconds
    op = max(by_op, key=lambda name: by_op[name], default="")
    most = f", {by_op[op] / max(1e-12, sum(by_op.values())):.0%} of it {op}" if op else ""
    hidden = float(np.median(accounts.usual("hidden_s")))
    under = f"{format_seconds(hidden)} more hides under compute" if hidden > ROUNDING * step_s else "none of it hides under compute"
    said = f"communication takes {format_seconds(cost)} of {span_of(job)} with nothing beside it ({under}){most}"
    each = op == "all-reduce" and has_unbucketed_gradients(trace)
    said += f", one for each gradient ({trace.gradients:,} of both in the trace)" if each else ""
    absent = trace.world - len(job.traces)
    waits = f"; waiting for the {plural(absent, 'rank')} that are not here included" if absent > 1 else ""
    waits = waits if len(job.traces) > 1 else "; one rank alone: waiting included"
    yield cause("exposed", said + waits, cost, step_s, span_of(job), CHANGES["buckets"] if each else "")


def _idle(job: TracedJob) -> Iterator[Cause]:
    """A device with nothing to do: many short pauses are launches, few long ones a stall of the host or its data."""
    step_s, places = job.typical.usual_s, job.typical.usual("idle_s")
    place = int(np.argsort(places)[len(places) // 2])
    cost, trace = float(places[place]), job.traces[place]
    if cost < LEVEL.small * step_s or not trace.on_device:
        return
    own = float(job.typical.usual("total_s")[place])  # ranks' steps may differ: what idles is a part of its own
    length, steps = _pauses(job, place), max(1, len(trace.steps))
    span = f"{span_of(job)} of rank {trace.rank}" if len(job.traces) > 1 else span_of(job)
    short = length[length < LEVEL.short_s]
    whose = f"the device of rank {trace.rank}" if len(job.traces) > 1 else "the device"
    said = f"{whose} idles {format_seconds(cost)} of {span_of(job)}"
    enough = min(COUNT.many * steps, LEVEL.mostly * len(trace.timeline.start_s))  # a step may be a layer, of few kernels
    if len(short) >= enough and short.sum() >= LEVEL.mostly * length.sum():
        each = float(np.median(short))
        pauses = f"{len(short) / steps:.0f} pauses of {format_seconds(each)}"
        yield cause(*_between_kernels(f"{said} in {pauses}", each, trace.replayed), cost, own, span)
        return
    longest = format_seconds(float(length.max())) if len(length) else "its whole length"
    said = f"{said}, in pauses of up to {longest}: it waits for the host or for data"
    yield cause("stall", said, cost, own, span)


def _pauses(job: TracedJob, place: int) -> Column:
    """How long the pauses of a rank's device are, as far as they lie in steps."""
    since, length = job.covered[place].anything.gaps
    at = job.step_of(place, since)
    lasts = np.minimum(length, job.windows[place][1][np.maximum(at, 0)] - since)
    return np.asarray(lasts[(at >= 0) & (lasts > 0)])


def _between_kernels(said: str, each_s: float, replayed: float) -> tuple[str, str]:
    """Code and words of many short pauses: the host's, unless it launched graphs or they are a device's own."""
    if each_s >= LEVEL.launch_s and replayed < LEVEL.mostly:
        return "launch-bound", f"{said}: the host launches kernels too slowly"
    why = "between the kernels of graphs" if replayed >= LEVEL.mostly else "between kernels that were launched in time"
    return "between kernels", f"{said} {why}"


def _bubble(job: TracedJob) -> Iterator[Cause]:
    """Stages that wait for each other, beside what filling and draining the pipeline explains."""
    if not is_pipeline(job):
        return
    step_s, order = job.typical.usual_s, stages(job)
    share = float(np.median(1 - job.typical.usual("compute_s") / step_s))
    depth, micro = len(order), microbatches(job, order)
    least = (depth - 1) / (micro + depth - 1)
    if share < LEVEL.small or job.traces[0].steps[0].name == WHOLE:
        return
    told = f"{plural(depth, 'stage')} and {micro} {'microbatch' if micro == 1 else 'microbatches'}"
    said = f"stages do not compute for {share:.0%} of each step; {told} explain up to {least:.0%} (filling and draining)"
    yield cause("bubble", said, share * step_s, step_s)


def microbatches(job: TracedJob, order: list[list[int]]) -> int:
    """How many a step has, by the messages of the first and the last stage.

    In training each goes forth and back, but where one forward and one backward alternate, both ways may share a kernel: then the
    first stage has one for each and one for each stage behind it, and the last has one more than microbatches.
    """
    first, last = (job.traces[places[0]] for places in (order[0], order[-1]))
    sent, taken = (sum(c.op == MESSAGE for c in t.collectives) / max(1, len(t.steps)) for t in (first, last))
    if first.training and len(order) > 2 and round(sent - taken) == len(order) - 2:
        return max(1, round(taken) - 1)
    return max(1, round(sent / (2 if first.training else 1)))


def _late_gathers(job: TracedJob) -> Iterator[Cause]:
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
    late = gather & (shown > LEVEL.late_gathers * (end - start - waited)) & (ran.compute.within(start, start + 1e-6) < 0.5e-6)
    cost = float(shown[late].sum()) / len(trace.steps)
    if cost >= LEVEL.small * job.typical.usual_s:
        number = f"{late.sum() / len(trace.steps):.0f} of {gather.sum() / len(trace.steps):.0f}"
        said = f"{number} all-gathers per step begin only when compute waits for them"
        yield cause("prefetch", said, cost, job.typical.usual_s)
