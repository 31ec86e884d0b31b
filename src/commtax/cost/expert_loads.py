"""How unequally ranks that share experts are loaded: as routers choose, and as a layout by measured loads leaves it (EPLB)."""

from functools import lru_cache

import numpy as np

from commtax.arrays import Array
from commtax.records import dataclass
from commtax.spec import Engine, Experts, Number, Plan

LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 … 256 standard normal values (Harter 1961)."""
DRAWS = 8  # of popularities that a placement is judged by


@dataclass(frozen=True, slots=True)
class Placing:
    """How experts came to lie on their ranks."""

    popularity: float = float("inf")  # shape of their popularity (gamma); inf: all equally popular
    redundant: int = 0  # further copies of the most popular ones
    balanced: bool = False  # by measured loads; redundant copies always are
    drift: float = 0.0  # of a step's loads from the measured ones

    @classmethod
    def of(cls, engine: Engine, plan: Plan, balanced: bool) -> "Placing":
        return cls(engine.kernels.popularity, plan.redundant_experts, balanced or plan.redundant_experts > 0, engine.kernels.drift)


def busiest_rank(moe: Experts, tokens: Number, ep: Number, placing: Placing) -> Number:
    """Copies of the busiest of ``ep`` ranks over the mean, when experts lie whole on ranks: all wait for it.

    A rank's load is the sum of E/ep popularities of a gamma distribution of shape a, so its relative spread is sqrt(ep / (E a)),
    beside that of drawing n copies by chance, sqrt(ep / n); less what the fixed total takes, sqrt(1 - 1/ep). A layout by measured
    loads, with copies of popular experts, leaves what ``laid_out`` says instead of the first, and that loads of a step drift from
    those that were measured: each by a share of itself, so that popular experts weigh most.

    >>> moe = Experts(128, 8, 1)
    >>> routers, equal = Placing(0.3), Placing()
    >>> round(float(busiest_rank(moe, 1e9, 8, routers)), 2), round(float(busiest_rank(moe, 1e9, 8, equal)), 2)
    (1.61, 1.0)
    """
    popularity = placing.popularity
    chance: Number = ep / np.maximum(1.0, tokens * moe.top_k) * np.isfinite(popularity)
    placed: Number = 1.0
    uneven: Number = ep / (moe.num_experts * popularity)
    if placing.balanced:
        placed, squares = laid_out(moe.num_experts, ep, popularity, placing.redundant)
        uneven = placing.drift**2 * ep * squares
    return np.minimum(ep, placed + largest_load(ep) * np.sqrt((uneven + chance) * (1 - 1 / ep)))


def largest_load(ep: Number) -> Number:
    """Spreads that the busiest of so many ranks lies above the mean."""
    return np.interp(np.log2(ep * 1.0), np.arange(len(LARGEST)), LARGEST)


def laid_out(num_experts: int, ep: Number, popularity: float, redundant: int) -> tuple[Number, Number]:
    """Experts laid out by known loads, the most popular ones with ``redundant`` further copies (EPLB).

    Returned are the load of the busiest rank over the mean, and the sum of the squares of all copies' shares of it. Each copy in
    turn goes to the expert with the most tokens a copy, then copies go to the emptiest rank, largest first: means of a few draws
    of the popularities.

    >>> [round(x, 2) for x in laid_out(256, 72, 0.7, 32)]
    [1.03, 0.01]
    """
    if np.ndim(ep):
        found = [laid_out(num_experts, float(n), popularity, redundant) for n in np.ravel(ep)]
        busiest, squares = (np.reshape(x, np.shape(ep)) for x in zip(*found, strict=True))
        return busiest, squares
    return _mean_layout(num_experts, int(ep), popularity, redundant)


@lru_cache(maxsize=256)
def _mean_layout(num_experts: int, ep: int, popularity: float, redundant: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = rng.gamma(popularity, size=(DRAWS, num_experts)) if np.isfinite(popularity) else np.ones((1, num_experts))
    busiest, squares = np.mean([_layout(loads, ep, redundant) for loads in draws], axis=0)
    return float(busiest), float(squares)


def _layout(loads: Array, ep: int, redundant: int) -> tuple[float, float]:
    copies = np.ones_like(loads)
    for _ in range(redundant):
        copies[np.argmax(loads / copies)] += 1
    each = np.sort(np.repeat(loads / copies, copies.astype(int)))[::-1]
    ranks, room = np.zeros(ep), np.full(ep, -(-len(each) // ep))
    for load in each:
        place = np.argmin(np.where(room > 0, ranks, np.inf))
        ranks[place] += load
        room[place] -= 1
    return float(ranks.max() / ranks.mean()), float(np.sum((each / each.sum()) ** 2))
