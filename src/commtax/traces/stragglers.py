"""Ranks that the others wait for: they compute longer (slow), idle (late), or have their communication exposed (lost overlap)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from commtax.thresholds import levels
from commtax.timeline import Column
from commtax.traces.accounts import Accounts, TracedJob
from commtax.traces.series import Suspect, of_others, rise
from commtax.traces.trace import KINDS as WORK

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
        said = (
            f"gathers and scatters of weights take {exposed / accounts.step_s:.0%} of each step, and none of it hides under compute"
        )
        yield Suspect("lost overlap", None, exposed / accounts.step_s, 0, said)
