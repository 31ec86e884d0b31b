"""How steady the steps of a run were: their usual time, those that took longer, and since when all of them do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from commtax.logs.training_log import TrainedStep
from commtax.thresholds import thresholds
from commtax.timeline import Column

COUNT, LEVEL = thresholds(__name__)
DEVIATION = 1.4826  # of a normal distribution over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Shift:
    """Since this iteration steps take longer than before."""

    since: int
    before_s: float
    after_s: float

    @property
    def factor(self) -> float:
        return self.after_s / self.before_s


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of steps at the usual batch. ``deviation`` is relative; ``slow`` are single steps, with their excess."""

    usual_s: float
    deviation: float
    counted: int
    warm_up: tuple[TrainedStep, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()  # iteration and its seconds
    shift: Shift | None = None
    slow_share: float = 0.0  # of all time that slow steps took beyond the usual
    period: int = 0  # iterations between slow steps, where they come regularly


def pace(steps: Sequence[TrainedStep]) -> Pace | None:
    """The pace of the steps whose time is known; None where there is none."""
    timed = [s for s in steps if s.step_s]
    if not timed:
        return None
    seconds = _seconds_at_usual_batch(timed)
    first = _warm(seconds)
    indices, kept = [s.index for s in timed[first:]], seconds[first:]
    usual = median(kept)
    shift, split = _shift(indices, kept)
    sides = [kept[:split], kept[split:]] if shift else [kept]
    usuals = [each for each, side in [(median(side), side) for side in sides] for _ in side]
    slow = [(i, s, u) for i, s, u in zip(indices, kept, usuals, strict=True) if s >= LEVEL.slow * u]
    deviation = DEVIATION * median(abs(s / u - 1) for s, u in zip(kept, usuals, strict=True))
    return Pace(
        usual_s=usual,
        deviation=deviation,
        counted=len(kept),
        warm_up=tuple(timed[:first]),
        slow=tuple((i, s) for i, s, _ in slow),
        shift=shift,
        slow_share=sum(s - u for _, s, u in slow) / sum(kept),
        period=_period([i for i, _, _ in slow]),
    )


def _seconds_at_usual_batch(steps: Sequence[TrainedStep]) -> list[float]:
    """Seconds as they would be at the usual batch: some runs raise theirs as they go."""
    batches = [s.batch for s in steps if s.batch]
    usual = median(batches) if batches else 0.0
    return [float(s.step_s or 0.0) * (usual / s.batch if s.batch and usual else 1.0) for s in steps]


def _warm(seconds: Sequence[float]) -> int:
    """How many of the first steps are warm-up."""
    usual, first = median(seconds), 0
    while first < len(seconds) * LEVEL.most_warm_up - 1 and seconds[first] > LEVEL.warm_up * usual:
        first += 1
    return first


def _shift(indices: Sequence[int], seconds: Sequence[float]) -> tuple[Shift | None, int]:
    """The one place from which on steps take longer, by least squares of smoothed logarithms; judged by medians."""
    n = len(seconds)
    if n < 2 * COUNT.least_side:
        return None, n
    logs = np.log(_running_medians(seconds))
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    at = np.arange(COUNT.least_side, n - COUNT.least_side + 1)
    left = squares[at - 1] - sums[at - 1] ** 2 / at
    right = (squares[-1] - squares[at - 1]) - (sums[-1] - sums[at - 1]) ** 2 / (n - at)
    split = int(at[int(np.argmin(left + right))])
    before, after = seconds[:split], seconds[split:]
    low, high = median(before), median(after)
    noise = max(DEVIATION * median(abs(s - m) for s in side) / m for side, m in ((before, low), (after, high)))
    if high / low < LEVEL.shifted or math.log(high / low) < LEVEL.shift_noise * noise:
        return None, n
    return Shift(indices[split], low, high), split


def _running_medians(seconds: Sequence[float]) -> Column:
    """Running medians, where there are steps enough."""
    given = np.array(seconds, dtype=float)
    if len(given) < 2 * COUNT.smoothed:
        return given
    half = COUNT.smoothed // 2
    padded = np.concatenate([given[:half], given, given[-half:]])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, COUNT.smoothed), axis=1))


def _period(indices: Sequence[int]) -> int:
    """Iterations between slow steps that come at whole multiples of one number; 0 where they do not."""
    gaps = [b - a for a, b in pairwise(indices)]
    common = math.gcd(*gaps) if len(gaps) > 1 else 0
    return common if common > 1 and common == min(gaps) else 0
