"""The pipeline bubble in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from commtax.spec import Number, Plan


def bubble_fraction(num_stages: Number, num_microbatches: Number) -> Number:
    """Idle share of the total time of a fill-drain pipeline with equal stages: (p-1)/(p+m-1).

    >>> bubble_fraction(4, 12)
    0.2
    """
    return (num_stages - 1) / (num_stages + num_microbatches - 1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A training schedule in closed form.

    ``idle(p, F, B, W)``: idle seconds of a rank in a step, for forward, input-gradient and weight-gradient seconds of one
    microbatch on one stage (all its chunks). ``kept(p, m)``: microbatches whose activations the first stage holds.
    """

    idle: Callable[[Number, Number, Number, Number], Number]
    kept: Callable[[Number, Number], Number]
    least: Callable[[Number], Number]  # microbatches it needs
    chunks: int = 1  # chunks a rank; 0: as the plan says


SCHEDULES: dict[str, Schedule] = {
    "1f1b": Schedule(lambda p, f, b, w: (p - 1) * (f + b + w), np.minimum, lambda p: 1 + 0 * p),
    "gpipe": Schedule(lambda p, f, b, w: (p - 1) * (f + b + w), lambda p, m: m + 0 * p, lambda p: 1 + 0 * p),
    "interleaved": Schedule(lambda p, f, b, w: (p - 1) * (f + b + w), np.minimum, lambda p: p, chunks=0),
    "zb-h1": Schedule(lambda p, f, b, w: (p - 1) * (f + np.maximum(0, b - w)), np.minimum, lambda p: p),
    "zb-h2": Schedule(
        lambda p, f, b, w: (p - 1) * (f + np.maximum(0, b - 2 * w)), lambda p, m: np.minimum(2 * p - 1, m), lambda p: 2 * p - 1
    ),
    "zb-v": Schedule(lambda p, _f, b, w: (p - 1) * np.maximum(b, 2 * (b - w)), np.minimum, lambda p: 2 * p - 1, chunks=2),
}
"""Schedules that a training step is priced with; ``interleaved`` with v chunks idles 1/v as long, ``zb-v`` half as long."""


def chunks_of(plan: Plan) -> int:
    """Chunks a rank: the schedule's own, or the plan's."""
    return SCHEDULES[plan.schedule].chunks or plan.chunks


def idle_s(schedule: str, num_stages: Number, chunks: int, forward_s: Number, input_s: Number, weight_s: Number) -> Number:
    """Seconds that a rank idles in one step, from the times of one microbatch on one stage.

    >>> float(idle_s("interleaved", 4, 2, 1.0, 1.0, 1.0))
    4.5
    """
    kind = SCHEDULES[schedule]
    return kind.idle(num_stages, forward_s, input_s, weight_s) / (kind.chunks or chunks)


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
