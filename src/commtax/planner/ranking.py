"""Serving plans in order: the best of each family first, those that others beat in every way left out."""

from __future__ import annotations

import numpy as np

from commtax.arrays import Array
from commtax.catalog.techniques import changes_of
from commtax.judgement.margins import ratio_error
from commtax.planner import columns
from commtax.planner.columns import NO_SERVING, ServingColumns
from commtax.planner.exchanges import exchanges
from commtax.question import PARTS, Question
from commtax.rules.drafts import accepted_width, with_accepted_tokens

LEAST = 0.01  # share of its worth that each technique must add to a plan to be turned on: what adds less is not worth a flag
FAMILY = tuple(name for name in ServingColumns.names() if name in ("mode", "dtype", *PARTS["plan"], *PARTS["requests"][1:]))
"""Columns that make a family …"""


def family(c: ServingColumns) -> Array:
    """A number a family: everything but the concurrency, how experts are reached, and the copies and prompt workers it needs."""
    key, sizes = np.zeros(len(c), dtype=np.int64), 1
    for name in FAMILY:
        column = np.asarray(getattr(c, name), dtype=np.int64) * (1 if name != "replicas" else c.mode.astype(np.int64))
        base = int(column.max(initial=0)) + 1
        if sizes * base > 2**62:  # digits in a mixed base, renumbered only where they would not fit
            key = np.unique(key, return_inverse=True)[1]
            sizes = int(key.max(initial=0)) + 1
        key, sizes = key * base + column, sizes * base
    return np.asarray(np.unique(key, return_inverse=True)[1])


def passed_over_plan(q: Question, keys: list[Array], every: ServingColumns) -> ServingColumns:
    """Return the plan that would be the best, were it not for what stands against it; ``keys`` rank what it is taken from.

    Of the loads at which it is surely ahead, that with least against it: as rankings list the plan.
    """
    stands, worth = keys[:2]
    first, lead = _first_by_keys(keys[1:]), np.max(worth, where=stands == np.max(stands), initial=-np.inf)
    ahead = np.flatnonzero(worth >= min(worth[first], lead + np.log1p(ratio_error(q))))
    families = family(every.take(ahead))
    same = ahead[families == families[np.searchsorted(ahead, first)]]
    chosen = same[_rank_by_keys([key[same] for key in keys])[:1]]
    return every.take(chosen if stands[first] < np.max(stands) else chosen[:0])


def best_first(q: Question, every: ServingColumns) -> tuple[ServingColumns, ServingColumns]:
    """The best point of each family that meets the limits, in the objective's order; without any, the nearest ones."""
    good = every.take(np.flatnonzero(columns.worst_limit_ratio(q, every) <= 1))
    if len(good) or not len(every):
        least = least_gains(q)[good.exchange.astype(int)]
        best = best_rows(columns.order(q, good), family(good), least) if len(good) else slice(0)
        return good.take(best), NO_SERVING
    near = [np.zeros(len(every)), -columns.worst_limit_ratio(q, every)]
    return NO_SERVING, every.take(best_rows(near, family(every), np.zeros(len(every)))[:5])


def least_gains(q: Question) -> Array:
    """What the techniques of each way must add to the logarithm of a plan's worth to be turned on."""
    return np.asarray([least_gain(q, one.techniques) for one in exchanges(q)])


def least_gain(q: Question, techniques: str) -> float:
    """What some must add to it: drafts more than it varies by with the acceptance that nobody measured here."""
    if not techniques:
        return 0.0
    accepted = with_accepted_tokens(q.but(**changes_of(techniques)))
    return float(np.log1p(LEAST) * len(techniques.split(","))) + accepted_width(accepted)


def best_rows(keys: list[Array], families: Array, least: Array) -> Array:
    """The best row of each family by ``keys``, the second of them less what techniques must add; families by the keys alone."""
    ranked = _rank_by_keys([keys[0], keys[1] - least, *keys[2:]])
    first: Array = ranked[np.sort(np.unique(families[ranked], return_index=True)[1])]
    return np.asarray(first[_rank_by_keys([key[first] for key in keys])]) if np.any(least) else first


def _rank_by_keys(keys: list[Array]) -> Array:
    """Indices, the largest first by the first key, then by the others."""
    return np.lexsort([-key for key in reversed(keys)])


def _first_by_keys(keys: list[Array]) -> int:
    """The first index of such a ranking, which needs no sorting."""
    rows = np.arange(len(keys[0]))
    for key in keys:
        rows = rows[key[rows] == np.max(key[rows])]
    return int(rows[0])


def front_of(c: ServingColumns) -> Array:
    """Points that no other beats in both tokens/s/GPU and tokens/s/user."""
    user, gpu = c.tokens_per_s_per_user, c.tokens_per_s_per_gpu
    ranked = np.lexsort((-gpu, -user))
    best = np.maximum.accumulate(gpu[ranked])
    keep = np.ones(len(ranked), dtype=bool)
    keep[1:] = gpu[ranked][1:] > best[:-1]
    return np.asarray(ranked[keep])
