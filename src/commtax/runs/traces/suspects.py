"""Links that became slow or are slower than their like, by the wire, which no rank waits for; and ranks that the others wait for.

Such ranks compute longer (slow), idle (late), or have their communication exposed (lost overlap).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.runs.traces.accounts import Accounts, TracedJob
from commtax.runs.traces.meeting import MESSAGE, spans
from commtax.runs.traces.series import LEVEL as SERIES
from commtax.runs.traces.series import Suspect, of_others, rise
from commtax.runs.traces.trace import KINDS as WORK
from commtax.thresholds import levels
from commtax.timeline import Column
from commtax.units import format_seconds

LEVEL = levels(__name__)


def stragglers(accounts: Accounts, ranks: Sequence[int], peers: Sequence[int]) -> Iterator[Suspect]:
    """Of ranks that do the same work: the one that waits least, and why it comes last."""
    chosen = list(peers)
    step_s = accounts.step_s
    if len(chosen) < 2 or not step_s > 0:
        return
    wait = accounts.wait_s[chosen]
    late = (of_others(wait) - wait) / step_s
    found = [(r.level, i, r.since) for i, r in enumerate(map(rise, late)) if r is not None]
    if not found:
        return
    level, at, since = max(found)
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
            said = f"{waits}, whose communication hides less under its compute"
            yield Suspect("lost overlap", place, level, since, said)
    elif most == np.median(computed) and _is_steady(computed):
        longer = np.median(_excess(accounts.compute_s[chosen], at, since, relative=True))
        yield Suspect("slow rank", place, level, since, f"{waits}, which computes for {longer:.0%} longer than {theirs}")
    elif most == np.median(idle) and _is_steady(idle[1:-1]):  # a pause between steps may be in the one or the other
        said = f"{waits}, which computes as fast and is idle for {np.median(idle) * since_then:.0%} more of each step"
        yield Suspect("late rank", place, level, since, said)


def _excess(x: Column, row: int, since: int, relative: bool = False) -> Column:
    """How much more one row has than the median of the others, in each step since then."""
    own, others = x[row, since:], of_others(x)[row, since:]
    return np.asarray(own / np.maximum(others, 1e-12) - 1 if relative else own - others)


def _is_steady(excess: Column) -> bool:
    """Whether nearly every step shows it: work that moves from rank to rank strikes one of them often, but not always."""
    return not len(excess) or bool(np.mean(excess > 0.4 * np.median(excess)) >= LEVEL.steady)


def lost_overlap(accounts: Accounts) -> Iterator[Suspect]:
    """Communication of all ranks that was hidden and is not any more, though it takes as long as before."""
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
        said = f"communication takes as long as before, but {now:.0%} of a step of it hides under compute instead of {was:.0%}"
        yield Suspect("lost overlap", None, grown, risen.since, said)


def unhidden_gathers(job: TracedJob, accounts: Accounts) -> Iterator[Suspect]:
    """Gathers and scatters of sharded weights on a stream of their own, of which nothing hides on any rank; serving has none."""
    trace = job.traces[0]
    line, counts = trace.timeline, Counter(c.op for c in trace.collectives)
    sending, computing = (set(line.lane[line.kind == WORK.index(kind)].tolist()) for kind in ("comm", "compute"))
    sharded = counts["reduce-scatter"] >= 2 * len(trace.steps) and counts["all-gather"] >= 1.5 * counts["reduce-scatter"]
    if not (trace.training and sharded and accounts.step_s > 0) or sending & computing:
        return
    exposed, hidden = float(np.median(accounts.wire_s)), float(np.max(np.median(accounts.hidden_s, axis=1)))
    if hidden <= LEVEL.never * (exposed + hidden) and exposed >= LEVEL.much * accounts.step_s:
        share = exposed / accounts.step_s
        said = f"gathers and scatters of weights take {share:.0%} of each step, and none of it hides under compute"
        yield Suspect("lost overlap", None, share, 0, said)


LEAST = SERIES.least / 2  # of a step, in the wires of one kind and group


@dataclass(frozen=True, slots=True)
class LikeCollectives:
    """Collectives alike of one group: what each takes on the wire, and how much of it is exposed, in each step."""

    like: tuple[object, ...]  # kind, size and number of ranks: what may be compared
    places: tuple[int, ...]
    wire_s: Column
    exposed_s: Column


def slow_links(job: TracedJob, accounts: Accounts, first: Column) -> Iterator[Suspect]:
    """Groups whose wire is slow since some step, or beside groups of the same kind; ``first`` begins each stretch of steps."""
    wires, step_s = list(wires_of(job, first)), accounts.step_s
    if not wires or not step_s > 0:
        return
    slow = {}
    for at, wire in enumerate(wires):
        found = _slower_than_before(wire, step_s) or _slower_than_others(wire, wires, step_s)
        if found:
            slow[at] = found
    if not slow:
        return
    groups = {wires[at].places for at in slow}
    cost, since = max((cost, -since) for cost, since, _ in slow.values())
    # The one rank that all slow groups share, where others are well.
    shared = set.intersection(*map(set, groups))
    place = shared.pop() if len(groups) > 1 and len(shared) == 1 and ({w.places for w in wires} - groups) else None
    dearest = max(slow, key=lambda at: slow[at][0])
    said = slow[dearest][2] + (f", in {len(groups)} of {len({w.places for w in wires})} groups" if len(wires) > len(slow) else "")
    if place is None and len(groups) == 1 and wires[dearest].like[0] == MESSAGE:
        place = min(groups.pop())
        said += ", which it sends"
    yield Suspect("slow link", place, cost, -since, said)


def _slower_than_before(wire: LikeCollectives, step_s: float) -> tuple[float, int, str] | None:
    """Cost, step and words where it takes longer than it did."""
    share = wire.exposed_s / step_s
    found = rise(share, LEAST, changed=True)
    if found is None:
        return None
    before, after = float(np.median(wire.wire_s[: found.since])), float(np.median(wire.wire_s[found.since :]))
    if after < LEVEL.slower * before:
        return None
    grown = float(np.median(share[found.since :]) - np.median(share[: found.since]))
    return grown, found.since, f"{wire.like[0]} takes {_times(after, before)}"


def _times(now: float, usual: float) -> str:
    return (
        f"{format_seconds(now)} of each step on the wire instead of {format_seconds(usual)} ({now / max(usual, 1e-12):.1f} times)"
    )


def _slower_than_others(wire: LikeCollectives, wires: list[LikeCollectives], step_s: float) -> tuple[float, int, str] | None:
    """… or than it does in other groups of the same kind."""
    others = [w for w in wires if w.like == wire.like and w.places != wire.places]
    if not others:
        return None
    usual = np.median([w.wire_s for w in others], axis=0) if len(others) > 1 else others[0].wire_s
    found = rise((wire.wire_s - usual) / step_s, LEAST)
    if found is None or np.median(wire.wire_s[found.since :]) < LEVEL.slower * np.median(usual[found.since :]):
        return None
    exposed = float(np.median(wire.exposed_s[found.since :] / np.maximum(wire.wire_s[found.since :], 1e-12)))
    said = f"{wire.like[0]} takes {_times(float(np.median(wire.wire_s[found.since :])), float(np.median(usual[found.since :])))}"
    return (found.level * exposed, found.since, said) if found.level * exposed >= LEAST else None


def wires_of(job: TracedJob, first: Column) -> Iterator[LikeCollectives]:
    """Collectives of complete groups by kind, size and group, summed over each stretch of steps."""
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
    """The stretch that each step lies in; -1: in none."""
    where = np.searchsorted(common, step)
    if not len(common):
        return np.full(len(step), -1)
    known = (where < len(common)) & (common[np.minimum(where, len(common) - 1)] == step)
    return np.where(known, np.searchsorted(first, where, side="right") - 1, -1)


def _exposed_wire(job: TracedJob) -> Column:
    """Of each collective the wire that compute does not cover, on the rank where that is most: what is exposed but for waiting."""
    met = job.meetings
    assert met is not None
    shown = np.zeros(len(met.place))
    for place, trace in enumerate(job.traces):
        mine = met.place == place
        start, end = (x[met.index[mine]] for x in spans(trace))
        waited = end - start - met.wire_s[met.of[mine]]
        shown[mine] = end - start - job.covered[place].compute.within(start, end) - waited
    return np.maximum(0.0, np.maximum.reduceat(shown, met.first))
