"""How many copies of tokens the busiest rank gets, and how many of its experts, in the published tables of routed experts.

Their collector draws the experts' loads from a power law, gives no expert more copies than there are tokens, and times the rank
with the most copies; times are means of a few draws (ai-dynamo/aiconfigurator, collector/helper.py). Here are the means of some.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commtax.arrays import Array

DRAWS = 8
FEW, MANY = (0.01, 2.0), (1.0, 0.8)  # least and largest load: as drawn, and of many copies 1 and a share of the tokens
HALVINGS = 22  # of a range of half a million copies: to less than one


@dataclass(frozen=True, slots=True)
class BusiestRankLoad:
    """On the busiest rank: copies, experts with a copy at least, and tokens with a copy at least."""

    copies: float
    active: float
    reached: float


@lru_cache(maxsize=65536)
def load(tokens: int, experts: int, top_k: int, ep: int, skew: float) -> BusiestRankLoad:
    """Return loads with ``skew`` for the power law's exponent, equal ones for 0."""
    local = _draw_loads(tokens, experts, top_k, ep, skew) if skew else _equal_loads(tokens, experts, top_k)[:, : experts // ep]
    missed = np.prod(1 - np.minimum(1, local / tokens), axis=1)
    return BusiestRankLoad(float(local.sum(1).mean()), float((local > 0).sum(1).mean()), float(tokens * (1 - missed.mean())))


def _equal_loads(tokens: int, experts: int, top_k: int) -> Array:
    """Count copies by expert when each token's experts are equally spaced and tokens begin one after the other."""
    stride = -(-experts // top_k)
    rounds, rest = divmod(tokens, experts) if tokens >= stride else (0, tokens)
    first = np.arange(rest) if tokens >= stride else np.arange(tokens) * stride / tokens
    chosen = (first[:, None] + stride * np.arange(top_k)).astype(int) % experts
    return rounds * top_k + np.bincount(chosen.ravel(), minlength=experts).astype(float)[None]


def _draw_loads(tokens: int, experts: int, top_k: int, ep: int, skew: float) -> Array:
    """Draw copies by expert of the busiest rank, one line a draw. Expert i is rank i mod ep's, so that levelled counts go round."""
    copies, power = tokens * top_k, 1 - skew
    low, high = (MANY[0], MANY[1] * tokens) if copies > experts else FEW
    uniform = np.random.default_rng([tokens, experts, top_k, ep, round(1000 * skew)]).random((DRAWS, experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    counts = np.minimum(tokens, np.rint(drawn / drawn.sum(1, keepdims=True) * copies))
    ranks = _level_counts(counts, copies, tokens).reshape(DRAWS, experts // ep, ep)
    return ranks[np.arange(DRAWS), :, ranks.sum(1).argmax(1)]


def _level_counts(counts: Array, total: int, most: int) -> Array:
    """Level counts to a sum of ``total`` by raising the smallest, or cutting the largest."""
    short = counts.sum(1, keepdims=True) < total
    low, high = np.zeros((len(counts), 1)), np.full((len(counts), 1), float(most))
    for _ in range(HALVINGS):
        level = (low + high) / 2
        above = _clip_to_level(counts, level, short).sum(1, keepdims=True) >= total
        low, high = np.where(above, low, level), np.where(above, level, high)
    near = _clip_to_level(counts, np.floor(low), short)
    left = total - near.sum(1, keepdims=True)
    place = np.argsort(np.argsort(np.where(short, near, -counts), axis=1, kind="stable"), axis=1)
    return np.asarray(near + ((place < left) & (near < most)))


def _clip_to_level(counts: Array, level: Array, short: Array) -> Array:
    return np.asarray(np.where(short, np.maximum(counts, level), np.minimum(counts, level)))
