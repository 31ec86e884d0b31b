"""Links of a job beside the catalogue: groups that cross hosts, and how much of a link's rate large messages reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from commtax.catalog.hardware import chip, link, recognise
from commtax.cost.collectives import ring_factor
from commtax.evidence.finding import Cause
from commtax.files import table
from commtax.spec import Link
from commtax.thresholds import thresholds
from commtax.traces.accounts import TracedJob
from commtax.traces.layers import has_sharded_weights, has_unbucketed_gradients, per_step
from commtax.traces.meeting import spans
from commtax.traces.trace import Collective
from commtax.units import format_bytes, format_rate, format_seconds

COUNT, LEVEL = thresholds(__name__)
CHANGES = table("traces/changes.toml")


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
        if crosses and len(rows) / steps >= COUNT.many:
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
    known, trace, step_s = host_link(job), job.traces[0], job.typical.usual_s
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


def host_link(job: TracedJob) -> Link | None:
    """The link inside a host of the device that ran it, where the catalogue knows the device."""
    device = job.traces[0].device
    found = recognise(device.name, device.memory_bytes, device.num_sms) if device and device.memory_bytes else ()
    links = {chip(key).intra for key in found}
    return link(links.pop()) if len(links) == 1 else None
