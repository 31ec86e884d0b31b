"""The pipeline bubble in closed form."""

from __future__ import annotations

import math
from fractions import Fraction

from commtax.spec import Number


def bubble_fraction(num_stages: Number, num_microbatches: Number) -> Number:
    """Idle share of the total time of a fill-drain pipeline with equal stages: (p-1)/(p+m-1).

    >>> bubble_fraction(4, 12)
    0.2
    """
    return (num_stages - 1) / (num_stages + num_microbatches - 1)


def min_microbatches(num_stages: int, max_bubble: float) -> int:
    """The smallest m with ``bubble_fraction(p, m) <= max_bubble``, free of rounding: naive ceil gives 13 for (4, 0.2).

    >>> min_microbatches(4, 0.2), min_microbatches(8, 0.1)
    (12, 63)
    """
    if num_stages == 1:
        return 1
    budget = Fraction(max_bubble)
    m = max(1, math.ceil((num_stages - 1) * (1 - budget) / budget))
    while m > 1 and bubble_fraction(num_stages, m - 1) <= max_bubble:
        m -= 1
    while bubble_fraction(num_stages, m) > max_bubble:
        m += 1
    return m
