"""What binds a job's steps, who is to blame, what that costs, what to change, and what that would gain.

Suspects are links that became slow or are slower than their like, by the wire, which no rank waits for, and ranks that the others
wait for. Of all that is suspected the dearest is to blame, if it costs enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.catalog.hardware import chip, link, recognise
from commtax.cost.collectives import ring_factor
from commtax.files import table
from commtax.runs.evidence.finding import WHOLE, Cause, Culprit
from commtax.runs.traces.accounts import Accounts, TracedJob
from commtax.runs.traces.claim_check import has_sharded_weights, has_unbucketed_gradients, per_step
from commtax.runs.traces.meeting import MESSAGE, spans
from commtax.runs.traces.stages import LEVEL as SERIES
from commtax.runs.traces.stages import Suspect, is_pipeline, of_others, rise, slow_stages, stages, starved_stages
from commtax.runs.traces.trace import KINDS as WORK
from commtax.runs.traces.trace import Collective
from commtax.thresholds import counts, thresholds
from commtax.timeline import Column
from commtax.units import format_bytes, format_rate, format_seconds, plural

COUNT, LEVEL = thresholds(__name__)


def stragglers(accounts: Accounts, ranks: Sequence[int], peers: Sequence[int]) -> Iterator[Suspect]:
    """Yield the one of ranks with equal work that waits least, and why it comes last."""
    chosen = list(peers)
    step_s = accounts.step_s
    if len(chosen) < 2 or not step_s > 0:
        return
    wait = accounts.wait_s[chosen]
    late = (of_others(wait) - wait) / step_s
    rises = [(r.level, i, r.since) for i, r in enumerate(map(rise, late)) if r is not None]
    if not rises:
        return
    level, at, since = max(rises)
    if any(np.median(x[since:]) > LEVEL.alone * level for i, x in enumerate(late) if i != at):
        return
    whole = slice(-1 if np.all(accounts.total_s[:, -1] < LEVEL.cut * step_s) else None)
    computed, idle = (_excess(x[chosen], at, since)[whole] / step_s for x in (accounts.compute_s, accounts.host_s))
    exposed = level - np.median(computed) - np.median(idle)
    place, most = chosen[at], max(np.median(computed), np.median(idle), exposed)
    since_then = step_s / max(1e-12, float(np.median(accounts.total_s[chosen, since:])))  # a step is longer by then
    waits, theirs = f"the others wait for rank {ranks[place]}", "they do"
    if len(chosen) == 2:
        other = ranks[chosen[1 - at]]
        waits, theirs = f"rank {other} waits for rank {ranks[place]}", f"rank {other}"
    if most == exposed:  # as much wire as theirs, and more of it exposed
        wire = (accounts.wire_s + accounts.hidden_s)[chosen]
        if np.median(_excess(wire, at, since, relative=True)) <= LEVEL.same_wire:
            text = f"{waits}, whose communication hides less under its compute"
            yield Suspect("lost overlap", place, level, since, text)
    elif most == np.median(computed) and _is_steady(computed):
        longer = np.median(_excess(accounts.compute_s[chosen], at, since, relative=True))
        yield Suspect("slow rank", place, level, since, f"{waits}, which computes for {longer:.0%} longer than {theirs}")
    elif most == np.median(idle) and _is_steady(idle[1:-1]):  # a pause between steps may be in the one or the other
        text = f"{waits}, which computes as fast and is idle for {np.median(idle) * since_then:.0%} more of each step"
        yield Suspect("late rank", place, level, since, text)


def _excess(x: Column, row: int, since: int, relative: bool = False) -> Column:
    """Return how much more one row has than the median of the others, in each step since the given one."""
    mine, others = x[row, since:], of_others(x)[row, since:]
    return np.asarray(mine / np.maximum(others, 1e-12) - 1 if relative else mine - others)


def _is_steady(excess: Column) -> bool:
    """Return whether nearly every step shows an excess. Work that moves between ranks strikes one often, but not always."""
    return not len(excess) or bool(np.mean(excess > 0.4 * np.median(excess)) >= LEVEL.steady)


def lost_overlap(accounts: Accounts) -> Iterator[Suspect]:
    """Yield communication of all ranks that used to be hidden, though it takes as long as before."""
    step_s = accounts.step_s
    if not step_s > 0:
        return
    # Of the ranks the one that still hides most: where a single one has lost it, the others wait for that one.
    exposed, hidden = np.min(accounts.wire_s, axis=0) / step_s, np.max(accounts.hidden_s, axis=0) / step_s
    risen = rise(exposed, changed=True)
    if risen is None:
        return
    before, after = slice(0, risen.since), slice(risen.since, None)
    grown = float(np.median(exposed[after]) - np.median(exposed[before]))
    fallen = float(np.median(hidden[before]) - np.median(hidden[after]))
    wire = exposed + hidden
    longer = float(np.median(wire[after]) / max(1e-9, np.median(wire[before])) - 1)
    if fallen >= LEVEL.lost * grown and longer <= LEVEL.same_wire:
        was, now = float(np.median(hidden[before])), float(np.median(hidden[after]))
        text = f"communication takes as long as before, but {now:.0%} of a step of it hides under compute instead of {was:.0%}"
        yield Suspect("lost overlap", None, grown, risen.since, text)


def unhidden_gathers(job: TracedJob, accounts: Accounts) -> Iterator[Suspect]:
    """Yield gathers and scatters of sharded weights on a stream of their own that hide on no rank. Serving has none."""
    trace = job.traces[0]
    line, counts = trace.timeline, Counter(c.op for c in trace.collectives)
    sending, computing = (set(line.lane[line.kind == WORK.index(kind)].tolist()) for kind in ("comm", "compute"))
    sharded = counts["reduce-scatter"] >= 2 * len(trace.steps) and counts["all-gather"] >= 1.5 * counts["reduce-scatter"]
    if not (trace.training and sharded and accounts.step_s > 0) or sending & computing:
        return
    exposed, hidden = float(np.median(accounts.wire_s)), float(np.max(np.median(accounts.hidden_s, axis=1)))
    if hidden <= LEVEL.never * (exposed + hidden) and exposed >= LEVEL.much * accounts.step_s:
        share = exposed / accounts.step_s
        text = f"gathers and scatters of weights take {share:.0%} of each step, and none of it hides under compute"
        yield Suspect("lost overlap", None, share, 0, text)


LEAST = SERIES.least / 2  # of a step, in the wires of one kind and group


@dataclass(frozen=True, slots=True)
class LikeCollectives:
    """Collectives alike of one group: what each takes on the wire, and how much of it is exposed, in each step."""

    like: tuple[object, ...]  # kind, size and number of ranks: what may be compared
    places: tuple[int, ...]
    wire_s: Column
    exposed_s: Column


def slow_links(job: TracedJob, accounts: Accounts, first: Column) -> Iterator[Suspect]:
    """Yield groups whose wire became slow or is slower than that of like groups. ``first`` begins each stretch of steps."""
    wires, step_s = list(wires_of(job, first)), accounts.step_s
    if not wires or not step_s > 0:
        return
    slow = {}
    for at, wire in enumerate(wires):
        evidence = _slower_than_before(wire, step_s) or _slower_than_others(wire, wires, step_s)
        if evidence:
            slow[at] = evidence
    if not slow:
        return
    groups = {wires[at].places for at in slow}
    cost, since = max((cost, -since) for cost, since, _ in slow.values())
    # The one rank that all slow groups share, where others are well.
    shared = set.intersection(*map(set, groups))
    place = shared.pop() if len(groups) > 1 and len(shared) == 1 and ({w.places for w in wires} - groups) else None
    dearest = max(slow, key=lambda at: slow[at][0])
    text = slow[dearest][2] + (f", in {len(groups)} of {len({w.places for w in wires})} groups" if len(wires) > len(slow) else "")
    if place is None and len(groups) == 1 and wires[dearest].like[0] == MESSAGE:
        place = min(groups.pop())
        text += ", which it sends"
    yield Suspect("slow link", place, cost, -since, text)


def _slower_than_before(wire: LikeCollectives, step_s: float) -> tuple[float, int, str] | None:
    """Return cost, step and words where collectives take longer than they did."""
    share = wire.exposed_s / step_s
    risen = rise(share, LEAST, changed=True)
    if risen is None:
        return None
    before, after = float(np.median(wire.wire_s[: risen.since])), float(np.median(wire.wire_s[risen.since :]))
    if after < LEVEL.slower * before:
        return None
    grown = float(np.median(share[risen.since :]) - np.median(share[: risen.since]))
    return grown, risen.since, f"{wire.like[0]} takes {_times(after, before)}"


def _times(now: float, usual: float) -> str:
    instead = f"of each step on the wire instead of {format_seconds(usual)}"
    return f"{format_seconds(now)} {instead} ({now / max(usual, 1e-12):.1f} times)"


def _slower_than_others(wire: LikeCollectives, wires: list[LikeCollectives], step_s: float) -> tuple[float, int, str] | None:
    """Return cost, step and words where collectives take longer than in other groups of the same kind."""
    others = [w for w in wires if w.like == wire.like and w.places != wire.places]
    if not others:
        return None
    usual = np.median([w.wire_s for w in others], axis=0) if len(others) > 1 else others[0].wire_s
    risen = rise((wire.wire_s - usual) / step_s, LEAST)
    if risen is None or np.median(wire.wire_s[risen.since :]) < LEVEL.slower * np.median(usual[risen.since :]):
        return None
    exposed = float(np.median(wire.exposed_s[risen.since :] / np.maximum(wire.wire_s[risen.since :], 1e-12)))
    text = f"{wire.like[0]} takes {_times(float(np.median(wire.wire_s[risen.since :])), float(np.median(usual[risen.since :])))}"
    return (risen.level * exposed, risen.since, text) if risen.level * exposed >= LEAST else None


def wires_of(job: TracedJob, first: Column) -> Iterator[LikeCollectives]:
    """Yield collectives of complete groups by kind, size and group, summed over each stretch of steps."""
    met = job.meetings
    if met is None or not len(met.first):
        return
    exposed = _exposed_wire(job)
    at = np.zeros(len(met.first), dtype=int)
    lead_place, lead_index = met.place[met.first], met.index[met.first]
    for place in np.unique(lead_place).tolist():
        mine = lead_place == place
        step = job.step_of(place, spans(job.traces[place])[0][lead_index[mine]])
        at[mine] = _stretch(step, job.common[place], first)
    by_kind: dict[tuple[tuple[object, ...], tuple[int, ...]], list[int]] = {}
    sizes, ends = met.sizes.tolist(), np.append(met.first, len(met.place)).tolist()
    for m, call in enumerate(met.calls):
        if at[m] >= 0 and (job.synchronised if call.op == MESSAGE else call.ranks in (0, sizes[m])):
            lane = 0 if call.op == MESSAGE or call.nbytes is not None else met.lanes[m]
            places = tuple(met.place[ends[m] : ends[m + 1]].tolist())
            by_kind.setdefault(((call.op, call.nbytes, sizes[m], lane), places), []).append(m)
    for (like, places), rows in by_kind.items():
        index = np.array(rows)
        wire, shown = (np.bincount(at[index], weights=x[index], minlength=len(first)) for x in (met.wire_s, exposed))
        counts = np.bincount(at[index], minlength=len(first))
        if counts.min() > 0:
            yield LikeCollectives((*like, int(np.median(counts))), places, wire, shown)


def _stretch(step: Column, common: Column, first: Column) -> Column:
    """Return the stretch that each step lies in, or -1 for none."""
    where = np.searchsorted(common, step)
    if not len(common):
        return np.full(len(step), -1)
    inside = (where < len(common)) & (common[np.minimum(where, len(common) - 1)] == step)
    return np.where(inside, np.searchsorted(first, where, side="right") - 1, -1)


def _exposed_wire(job: TracedJob) -> Column:
    """Return the wire of each collective that compute does not cover, on the rank where that is most."""
    met = job.meetings
    assert met is not None
    shown = np.zeros(len(met.place))
    for place, trace in enumerate(job.traces):
        mine = met.place == place
        start, end = (x[met.index[mine]] for x in spans(trace))
        waited = end - start - met.wire_s[met.of[mine]]
        shown[mine] = end - start - job.covered[place].compute.within(start, end) - waited
    return np.maximum(0.0, np.maximum.reduceat(shown, met.first))


BEATS = counts("runs.traces.accounts").most_beats


def suspects(job: TracedJob, most: int) -> list[Suspect]:
    """Return all that may be at fault, dearest first, judged in at most so many stretches of steps."""
    accounts, first = job.accounts.together(most)
    if accounts.total_s.shape[1] < COUNT.fewest or (is_pipeline(job) and not (job.named or job.synchronised)):
        return []
    ranks = [t.rank for t in job.traces]
    links = list(slow_links(job, accounts, first))
    possible = [*lost_overlap(accounts), *unhidden_gathers(job, accounts), *links]
    if is_pipeline(job):
        possible += slow_stages(job, accounts)
        possible += starved_stages(job, accounts, first, explained=bool(possible))
        for peers in stages(job):
            possible += stragglers(accounts, ranks, peers)
    else:
        possible += stragglers(accounts, ranks, range(len(ranks)))
    return sorted((s for s in possible if s.cost >= SERIES.least), key=lambda s: -s.cost)


def blame(job: TracedJob) -> tuple[Culprit | None, float]:
    """Return the dearest suspect, with its beginning on the job's clock, and what it costs a step in seconds."""
    for most in (BEATS,) if job.named else (BEATS, COUNT.stretches):
        if possible := suspects(job, most):
            break
    else:
        return None, 0.0
    accounts, first = job.accounts.together(most)
    worst = possible[0]
    step = first[worst.since]
    if job.synchronised:
        begins = np.asarray(job.accounts.begin_s[:, step])
    else:  # on each rank's own clock
        ranks = zip(job.windows, job.common, job.traces, strict=True)
        begins = np.array([begin[common[step]] - trace.begin_s for (begin, _), common, trace in ranks])
    alone = worst.place is not None and worst.kind != "late rank"  # which is late in a step that the others have begun
    since = float(begins[worst.place] if alone else np.min(begins))
    rank = job.traces[worst.place].rank if worst.place is not None else None
    steps = max(1, round(job.accounts.total_s.shape[1] / len(first)))
    return Culprit(worst.kind, rank, max(0.0, since), worst.text), worst.cost * accounts.step_s / steps


def hosts_of(job: TracedJob) -> Mapping[int, str]:
    """Return the host of each rank where all traces name one, else a guess from the number of devices in a host."""
    if all(t.host for t in job.traces):
        return {t.rank: t.host for t in job.traces}
    device = job.traces[0].device
    if device is None or device.count < 2:
        return {}
    ranks = {r for t in job.traces for c in t.collectives[:1000] for r in c.members} | {t.rank for t in job.traces}
    return {r: f"host {r // device.count}" for r in ranks}


def crossing_causes(job: TracedJob) -> Iterator[Cause]:
    """Yield groups with many collectives a step whose ranks lie on several hosts, so that each goes over the network."""
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
            text = f"{number} of a group of {size} ranks cross {over}: {format_seconds(cost)} on the wire"
            # What helps depends on what the collectives are of: gradients, shards of weights, or else layers.
            sharded = "sharded" if has_sharded_weights(per_step(job)) else "inside"
            change = "buckets" if has_unbucketed_gradients(trace) else sharded
            yield Cause("crosses hosts", text, cost, cost / step_s, CHANGES[change])


def utilisation(job: TracedJob) -> Iterator[Cause]:
    """Yield large messages inside a host that use little of the links' rate."""
    device = job.traces[0].device
    chips = recognise(device.name, device.memory_bytes, device.num_sms) if device and device.memory_bytes else ()
    links = {chip(key).intra for key in chips}
    fabric, trace, step_s = link(links.pop()) if len(links) == 1 else None, job.traces[0], job.typical.usual_s
    if fabric is None or step_s <= 0:
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
        lost = np.maximum(0.0, wire[rows] - sent / (LEVEL.usual * fabric.bandwidth_Bps))
        cost = float(lost.sum()) / max(1, len(trace.steps))
        if rate < LEVEL.poor * fabric.bandwidth_Bps and cost >= LEVEL.small * step_s:
            size = format_bytes(float(np.median([calls[i].nbytes or 0.0 for i in rows])))
            reached = f"{rate / fabric.bandwidth_Bps:.0%} of {fabric.name} ({format_rate(fabric.bandwidth_Bps)})"
            text = f"{op} of {size} moves {format_rate(rate)} per rank, {reached}"
            gain = f"at {LEVEL.usual:.0%} of the link a step takes {format_seconds(cost)} less on the wire (-{cost / step_s:.0%})"
            yield Cause("link", text, cost, cost / step_s, CHANGES["link"], gain)


def _inside_test(job: TracedJob) -> Callable[[Collective], bool]:
    """Return a test whether a collective stays in one host, by its ranks or by their number where one host holds the job."""
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
    """Return all that costs a step something, dearest first. ``cost_s`` is what the culprit costs."""
    if not job.typical.usual_s > 0:
        return ()
    of_culprit = (*_culprit_causes(job, culprit, cost_s), *_waiting_causes(job, culprit))
    plain = (*_exposed_causes(job), *_idle(job), *_bubble(job), *_late_gathers(job), *crossing_causes(job), *utilisation(job))
    return tuple(sorted((*of_culprit, *plain), key=lambda c: -(c.cost_s or 0.0)))


def cause(code: str, text: str, cost_s: float, step_s: float, span: str = "a step", change: str = "") -> Cause:
    """Return a cause with its share of the step (at most all of it), and the step without it in words."""
    cost_s = min(cost_s, step_s)
    left = format_seconds(step_s - cost_s) if step_s - cost_s > ROUNDING * step_s else "nothing"
    gain = f"without this, {span} would take {left} instead of {format_seconds(step_s)} (-{cost_s / step_s:.0%})"
    return Cause(code, text, cost_s, cost_s / step_s, change or CHANGES[code], gain)


def span_of(job: TracedJob) -> str:
    """Return what seconds are of, in words."""
    return "the trace" if job.traces[0].steps[0].name == WHOLE else "a step"


def _culprit_causes(job: TracedJob, culprit: Culprit | None, cost_s: float) -> Iterator[Cause]:
    """Yield what the culprit costs of a typical step since it began."""
    if culprit is None:
        return
    accounts = job.accounts
    struck = np.median(accounts.begin_s, axis=0) >= (culprit.since_s or 0.0) - 0.5 * accounts.step_s
    step_s = (float(np.median(accounts.total_s[:, struck])) if struck.any() else 0.0) or accounts.step_s
    if struck.all() and job.typical.usual_s > 0:  # all steps are like that: described by the same steps as all else
        cost_s, step_s = _typical_cost_s(job, culprit, cost_s / accounts.step_s), job.typical.usual_s
    where = f" at rank {culprit.rank}" if culprit.rank is not None else ""
    text = f"{culprit.kind}{where}: {culprit.said}"
    yield cause(culprit.kind, text, min(cost_s, 0.99 * step_s), step_s)


def _typical_cost_s(job: TracedJob, culprit: Culprit, share: float) -> float:
    """Return the culprit's cost in a usual step: what the others wait for it, or the same share as of all steps."""
    places = [place for place, trace in enumerate(job.traces) if trace.rank == culprit.rank]
    if culprit.kind not in ("slow rank", "late rank") or len(places) != 1 or is_pipeline(job):
        return share * job.typical.usual_s
    waited = job.typical.usual("wait_s")
    return float(np.median(np.delete(waited, places)) - waited[places[0]])


def _waiting_causes(job: TracedJob, culprit: Culprit | None) -> Iterator[Cause]:
    """Yield the time in collectives before the last rank comes, with who waits for whom."""
    step_s = job.typical.usual_s
    waited = job.typical.usual("wait_s")
    cost = float(np.median(waited))
    named = culprit is not None and culprit.kind in ("slow rank", "late rank", "starved stage")
    if cost < LEVEL.small * step_s or named or len(job.traces) < 2:
        return
    least, most = int(np.argmin(waited)), int(np.argmax(waited))
    ranks = [t.rank for t in job.traces]
    text = f"ranks wait {format_seconds(cost)} of {span_of(job)} in collectives for those that come later: rank {ranks[most]} most"
    text += f" ({format_seconds(float(waited[most]))}), rank {ranks[least]} least ({format_seconds(float(waited[least]))})"
    change = ""
    if waited[least] < LEVEL.hardly * np.median(np.delete(waited, least)):
        change = f"look at what rank {ranks[least]} does before its collectives: it waits least, in too few steps to blame it"
    yield cause("waiting", text, cost, step_s, span_of(job), change)


def _exposed_causes(job: TracedJob) -> Iterator[Cause]:
    """Yield communication that nothing hides, without waiting, and the kind of most of it."""
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
    text = f"communication takes {format_seconds(cost)} of {span_of(job)} with nothing beside it ({under}){most}"
    each = op == "all-reduce" and has_unbucketed_gradients(trace)
    text += f", one for each gradient ({trace.gradients:,} of both in the trace)" if each else ""
    absent = trace.world - len(job.traces)
    waits = f"; waiting for the {plural(absent, 'rank')} that are not here included" if absent > 1 else ""
    waits = waits if len(job.traces) > 1 else "; one rank alone: waiting included"
    yield cause("exposed", text + waits, cost, step_s, span_of(job), CHANGES["buckets"] if each else "")


def _idle(job: TracedJob) -> Iterator[Cause]:
    """Yield idle time of the device: many short pauses mean slow launches, and few long ones a stall of host or data."""
    step_s, places = job.typical.usual_s, job.typical.usual("idle_s")
    place = int(np.argsort(places)[len(places) // 2])
    cost, trace = float(places[place]), job.traces[place]
    if cost < LEVEL.small * step_s or not trace.on_device:
        return
    whole_s = float(job.typical.usual("total_s")[place])  # ranks' steps may differ, and what idles is a part of this rank's
    since, gap = job.covered[place].anything.gaps
    at = job.step_of(place, since)
    lasts = np.minimum(gap, job.windows[place][1][np.maximum(at, 0)] - since)
    length, steps = np.asarray(lasts[(at >= 0) & (lasts > 0)]), max(1, len(trace.steps))
    span = f"{span_of(job)} of rank {trace.rank}" if len(job.traces) > 1 else span_of(job)
    short = length[length < LEVEL.short_s]
    whose = f"the device of rank {trace.rank}" if len(job.traces) > 1 else "the device"
    text = f"{whose} idles {format_seconds(cost)} of {span_of(job)}"
    enough = min(COUNT.many * steps, LEVEL.mostly * len(trace.timeline.start_s))  # a step may be a layer, of few kernels
    if len(short) >= enough and short.sum() >= LEVEL.mostly * length.sum():
        each = float(np.median(short))
        pauses = f"{len(short) / steps:.0f} pauses of {format_seconds(each)}"
        graphs = trace.replayed >= LEVEL.mostly
        if each >= LEVEL.launch_s and not graphs:
            yield cause("launch-bound", f"{text} in {pauses}: the host launches kernels too slowly", cost, whole_s, span)
        else:
            why = "between the kernels of graphs" if graphs else "between kernels that were launched in time"
            yield cause("between kernels", f"{text} in {pauses} {why}", cost, whole_s, span)
        return
    longest = format_seconds(float(length.max())) if len(length) else "its whole length"
    text = f"{text}, in pauses of up to {longest}: it waits for the host or for data"
    yield cause("stall", text, cost, whole_s, span)


def _bubble(job: TracedJob) -> Iterator[Cause]:
    """Yield the idle time of pipeline stages, beside what filling and draining explains."""
    if not is_pipeline(job):
        return
    step_s, order = job.typical.usual_s, stages(job)
    share = float(np.median(1 - job.typical.usual("compute_s") / step_s))
    depth, micro = len(order), microbatches(job, order)
    least = (depth - 1) / (micro + depth - 1)
    if share < LEVEL.small or job.traces[0].steps[0].name == WHOLE:
        return
    counted = f"{plural(depth, 'stage')} and {micro} {'microbatch' if micro == 1 else 'microbatches'}"
    text = f"stages do not compute for {share:.0%} of each step; {counted} explain up to {least:.0%} (filling and draining)"
    yield cause("bubble", text, share * step_s, step_s)


def microbatches(job: TracedJob, order: list[list[int]]) -> int:
    """Return the microbatches of a step, by the messages of the first and the last stage.

    In training each goes forth and back, but where one forward and one backward alternate, both ways may share a kernel: then the
    first stage has one for each and one for each stage behind it, and the last has one more than microbatches.
    """
    first, last = (job.traces[places[0]] for places in (order[0], order[-1]))
    sent, taken = (sum(c.op == MESSAGE for c in t.collectives) / max(1, len(t.steps)) for t in (first, last))
    if first.training and len(order) > 2 and round(sent - taken) == len(order) - 2:
        return max(1, round(taken) - 1)
    return max(1, round(sent / (2 if first.training else 1)))


def _late_gathers(job: TracedJob) -> Iterator[Cause]:
    """Yield gathers of sharded weights that begin only when compute has nothing left to do."""
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
        text = f"{number} all-gathers per step begin only when compute waits for them"
        yield cause("prefetch", text, cost, job.typical.usual_s)
