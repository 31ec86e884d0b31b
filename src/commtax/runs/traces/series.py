"""Whether something in a row of steps is above nothing, always or from some step on, beyond what chance does; and who is then
suspected of what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from commtax.thresholds import thresholds
from commtax.timeline import Column

COUNT, LEVEL = thresholds(__name__)
TO_MEDIAN = 1.2533  # standard error of a median, in those of a mean


@dataclass(frozen=True, slots=True)
class Rise:
    """A level, the step since which it is there (0: always), and the level before it."""

    level: float
    since: int
    before: float

    @property
    def grown(self) -> float:
        return self.level - self.before


def rise(x: Column, least: float = LEVEL.least, changed: bool = False) -> Rise | None:
    """The level of a series where it is at least so much above nothing; with ``changed`` above what it was before, and not always.

    >>> found = rise(np.array([0.0, 0.01, 0.0, 0.3, 0.31, 0.3]), 0.05)
    >>> (found.level, found.since, found.before) if found else None
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
    """How far values are from their median on average, as a standard deviation; a tenth (of five or more one) is left out."""
    apart = np.sort(np.abs(x - np.median(x)))
    strange = max(len(apart) // 10, int(len(apart) >= COUNT.enough))
    return float(TO_MEDIAN * np.mean(apart[: len(apart) - strange]))


def _split(x: Column) -> int:
    """The step from which on the series is another: where two means fit best, without steps that stand alone; 0: nowhere."""
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
    """A culprit's kind, its place among the ranks (None: nobody's), cost as a share of a step, first step, and the evidence."""

    kind: str
    place: int | None
    cost: float
    since: int
    said: str


def of_others(x: Column) -> Column:
    """For each row the median of the other rows."""
    rows = np.arange(len(x))
    return np.array([np.median(x[rows != r], axis=0) for r in rows]) if len(x) > 1 else np.zeros_like(x)


def dearest(rises: Iterable[Rise | None]) -> tuple[int, Rise] | None:
    """Of rises the one that grew most, with its place."""
    found = [(r.grown, place, r) for place, r in enumerate(rises) if r is not None]
    return max(found, key=lambda f: f[:2])[1:] if found else None
