"""Sizes that a fleet of one layout may have, and the first of them that holds."""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from commtax.planner.layouts import SLACK, Layout
from commtax.planner.space import workers_beside

Size = tuple[int, int]
"""Copies, and workers of prompts beside them."""


def first_count(able: list[Size], holds: Callable[[int], bool]) -> int:
    """The index of the first fleet of one kind that holds, the last where none does.

    More copies never do worse: steps that double find one that holds, and halving the first.
    """
    low, step = 0, 1
    while not holds(low + step - 1):
        low, step = low + step, step * 2
        if low + step > len(able):
            step = len(able) - low
        if not step:
            return len(able) - 1
    return low + bisect_left(range(step - 1), True, key=lambda at: holds(low + at))


def first_pair(able: list[Size], holds: Callable[[int], bool]) -> int:
    """The index of the first fleet of two kinds that holds, the last where none does.

    More workers of either kind never do worse. So none holds unless one of the largest does, and one that has no more workers
    of either kind than one that failed is not tried.
    """
    failed: list[Size] = []

    def fails(at: int) -> bool:
        if not any(no_more(able[at], other) for other in failed) and holds(at):
            return False
        failed.append(able[at])
        return True

    largest = [at for at, size in enumerate(able) if not any(no_more(size, other) for other in able[at + 1 :])]
    if fails(0) and all(fails(at) for at in largest):
        return len(able) - 1
    return next(at for at in range(len(able)) if not fails(at))


def no_more(size: Size, other: Size) -> bool:
    """Whether a fleet has no more workers of either kind than another."""
    return size[0] <= other[0] and size[1] <= other[1]


def able_sizes(layout: Layout, rate: float, most_gpus: int) -> list[Size]:
    """Fleets whose throughput may be above the rate, fewest GPUs first, of as many those with most throughput."""
    if not layout.apart:
        first = int(rate / layout.answers / SLACK) + 1
        return [(n, 0) for n in range(first, min(layout.most, most_gpus // layout.group) + 1)]
    cluster, tp, ahead = layout.question.cluster, layout.group, layout.prefill_tp
    copies = np.arange(1, layout.most + 1)
    room = workers_beside(copies, tp, ahead, cluster)
    every = [(n, p) for n, most in zip(copies.tolist(), room.tolist(), strict=True) for p in range(1, most + 1)]
    able = [size for size in every if layout.gpus(*size) <= most_gpus and layout.throughput(*size) * SLACK > rate]
    return sorted(able, key=lambda size: (layout.gpus(*size), -layout.throughput(*size)))
