"""Clocks of ranks, aligned by what ends on all of them at one moment.

A collective that synchronises ends together on its ranks, so that the difference of its ends is the difference of two clocks. Of
many the median is taken, and a drift where they last long enough to show one. Ranks that share messages only (a pipeline) are
aligned by where most of their ends coincide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.thresholds import thresholds
from commtax.timeline import Column

Pair = tuple[int, int]
COUNT, LEVEL = thresholds(__name__)


@dataclass(frozen=True, slots=True)
class Clock:
    """What is added to a rank's own time: it grows by ``drift`` from ``at_s`` on."""

    offset_s: float = 0.0
    drift: float = 0.0
    at_s: float = 0.0

    def job_s(self, own_s: Column) -> Column:
        return own_s + self.offset_s + self.drift * (own_s - self.at_s)

    def own_s(self, job_s: Column) -> Column:
        return (job_s - self.offset_s + self.drift * self.at_s) / (1 + self.drift)


def clock_between(ours: Column, theirs: Column) -> tuple[Clock, float]:
    """The clock that moves their ends onto ours, and how far they then still are apart (median)."""
    apart = ours - theirs
    clock = Clock(float(np.median(apart)), 0.0, float(theirs[0]))
    rest = float(np.median(np.abs(apart - clock.offset_s)))
    third = len(apart) // 3
    if len(apart) < COUNT.drift_ends:
        return clock, rest
    order = np.argsort(theirs)
    early, late = order[:third], order[-third:]
    rise = float(np.median(apart[late]) - np.median(apart[early]))
    run = float(np.median(theirs[late]) - np.median(theirs[early]))
    if run <= 0 or abs(rise) < max(LEVEL.drift_s, 4 * rest / np.sqrt(third)):
        return clock, rest
    at = float(np.median(theirs[early]))
    drifting = Clock(float(np.median(apart[early])), rise / run, at)
    left = float(np.median(np.abs(drifting.job_s(theirs) - ours)))
    return (drifting, left) if left < rest else (clock, rest)


def align_clocks(ranks: int, together: Mapping[Pair, tuple[Column, Column]], loose: Sequence[Column]) -> list[Clock]:
    """A clock for each rank: by ends that two ranks share (each on its own clock), nearest first; else by ends that coincide."""
    links = sorted((clock_between(*ends)[1], pair) for pair, ends in together.items() if len(ends[0]))
    clocks: dict[int, Clock] = {0: Clock()}
    while len(clocks) < ranks:
        step = next((pair for _, pair in links if (pair[0] in clocks) != (pair[1] in clocks)), None)
        if step is None:
            rank, clock = _by_messages(clocks, loose)
            clocks[rank] = clock
            continue
        known, new = step if step[0] in clocks else step[::-1]
        ours, theirs = together[step] if step[0] == known else together[step][::-1]
        clocks[new] = clock_between(clocks[known].job_s(ours), theirs)[0]
    return [clocks[r] for r in range(ranks)]


def _by_messages(clocks: Mapping[int, Clock], loose: Sequence[Column]) -> tuple[int, Clock]:
    """The rank next to an aligned one, by messages between them; by its own clock where none coincide."""
    new = min(set(range(len(loose))) - set(clocks))
    near = new - 1 if new - 1 in clocks else min(clocks, key=lambda r: abs(r - new))
    usual = clocks[near].offset_s
    offset = coinciding_offset(clocks[near].job_s(loose[near]), loose[new], usual)
    return new, Clock(offset if offset is not None else usual)


def coinciding_offset(ours: Column, theirs: Column, usual: float = 0.0) -> float | None:
    """The offset at which most ends coincide, of those the least; None where too few do.

    Microbatches repeat, so that many offsets are nearly as good: the usual one stays unless another is far better.
    """
    a, b = ours[: COUNT.most_ends], theirs[: COUNT.most_ends]
    if len(a) < 4 or len(b) < 4:
        return None
    apart = np.sort((a[:, None] - b[None, :]).ravel())
    counts = np.searchsorted(apart, apart + LEVEL.coincide_s, side="right") - np.arange(len(apart))
    most = int(counts.max())
    finest = int((np.searchsorted(apart, apart + LEVEL.fine_s, side="right") - np.arange(len(apart))).max())
    for width, best_there in ((LEVEL.fine_s, finest), (LEVEL.coincide_s, most)):  # short messages lie closer than clocks may differ
        near = apart[np.abs(apart - usual) <= width / 2]
        if len(near) >= max(4, LEVEL.stay * best_there):
            return float(np.median(near))
    if most < LEVEL.coincide_share * min(len(a), len(b)) or most < 4:
        return None
    best = np.flatnonzero(counts >= 0.97 * most)
    at = best[np.argmin(np.abs(apart[best]))]
    return float(np.median(apart[at : at + counts[at]]))
