"""Robust fitting on the logarithm of times, with NumPy alone.

Errors of timings are factors, not seconds, so residuals are ln(measured / predicted). A few rows are simply wrong (a busy
machine, a cold first call): Huber's weights find the bulk, Tukey's then leave what is far outside it out altogether.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from commtax.arrays import Array

HUBER, TUKEY = 1.345, 4.685  # standard tuning: 95 % efficiency where errors are normal
LEAST_SCALE = 0.003  # clocks are not better than this
MOST_LEFT_OUT = 0.2  # more rows than this are not outliers, but a form that does not fit
LEAST_OUTLIER = 0.1  # rows nearer than this are none
LEAST_WIDTH = 0.02  # no range is narrower
NORMAL = 1.4826  # standard deviation over the median of absolute residuals, where they are normal
Z80 = 1.2816  # standard deviations to either side that hold 80 % of a normal distribution


@dataclass(frozen=True, slots=True)
class RobustFit:
    """Constants, what is left of the rows, and how well the rows tell each constant."""

    values: Array
    residuals: Array  # ln(measured / predicted)
    weights: Array
    sigma: float  # standard deviation of the bulk's residuals
    information: Array  # of the values: the inverse of their covariance


def scale(residuals: Array) -> float:
    """Return the standard deviation by the median of absolute residuals, without ``np.median``, which is slower on few."""
    ordered, middle = np.sort(np.abs(residuals)), len(residuals) // 2
    median = ordered[middle] if len(residuals) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return max(LEAST_SCALE, NORMAL * float(median))


def weigh(residuals: Array, last: bool) -> Array:
    """Return Huber's weights, or in the last rounds Tukey's, unless those would leave out more than outliers."""
    far = np.abs(residuals) / scale(residuals)
    if last:
        tukey: Array = np.maximum(1 - (far / TUKEY) ** 2, 0) ** 2
        if np.count_nonzero(tukey == 0) / len(tukey) <= MOST_LEFT_OUT:
            return tukey
    return np.asarray(np.minimum(1.0, HUBER / np.maximum(far, 1e-12)))


def outliers(residuals: Array) -> Array:
    """Return which rows lie far outside the bulk, and by more than a tenth."""
    far: Array = np.abs(residuals) > np.maximum(TUKEY * scale(residuals), np.log(1 + LEAST_OUTLIER))
    return far if np.mean(far) <= MOST_LEFT_OUT else far & False


def linear(columns: Array, times: Array, base: Array | float = 0.0, rounds: int = 24) -> RobustFit:
    """Fit times = base + columns @ values, with values of at least 0, by Gauss-Newton on logarithms."""
    columns, times = np.asarray(columns, float), np.asarray(times, float)
    base = np.broadcast_to(np.asarray(base, float), times.shape)
    values = nonnegative(columns / times[:, None], 1 - base / times)
    least = 1e-3 * times  # a prediction of nothing has no logarithm
    weights = np.ones(len(times))
    for turn in range(rounds):
        predicted = np.maximum(base + columns @ values, least)
        residuals = np.log(times / predicted)
        weights = weigh(residuals, turn >= rounds // 2)
        root = np.sqrt(weights) / predicted
        target = (predicted - base + predicted * np.minimum(np.maximum(residuals, -1), 1)) * root
        values = nonnegative(columns * root[:, None], target)
    predicted = np.maximum(base + columns @ values, least)
    return _make_fit(values, np.log(times / predicted), columns / predicted[:, None])


def nonnegative(rows: Array, target: Array) -> Array:
    """Solve least squares with values of at least 0, dropping the most negative first."""
    kept = list(range(rows.shape[1]))
    size = np.maximum(np.sqrt((rows * rows).sum(axis=0)), 1e-300)
    while kept:
        part, *_ = np.linalg.lstsq(rows[:, kept] / size[kept], target, rcond=None)
        if part.min() >= 0:
            values = np.zeros(rows.shape[1])
            values[kept] = part / size[kept]
            return values
        kept.pop(int(np.argmin(part)))
    return np.zeros(rows.shape[1])


def curve(predict: Callable[[Array], Array], start: Array, times: Array, most: Array, rounds: int = 30) -> RobustFit:
    """Fit constants of any form by damped Gauss-Newton on logarithms of constants and times, each at most ``most``."""
    logs, most = np.log(np.asarray(start, float)), np.log(np.asarray(most, float))
    damping = 1e-2
    for turn in range(rounds):
        residuals = np.log(times / predict(np.exp(logs)))
        weights = weigh(residuals, turn >= rounds // 2)
        slope = log_slopes(predict, logs)
        normal = slope.T @ (slope * weights[:, None])
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope.T @ (weights * residuals))
        tried = np.minimum(logs + np.clip(step, -1, 1), most)
        after = np.log(times / predict(np.exp(tried)))
        better = np.sum(weights * after**2) <= np.sum(weights * residuals**2) * (1 + 1e-12)
        logs, damping = (tried, damping / 3) if better else (logs, damping * 4)
    residuals = np.log(times / predict(np.exp(logs)))
    return _make_fit(np.exp(logs), residuals, slopes(predict, np.exp(logs)))


def log_slopes(predict: Callable[[Array], Array], logs: Array, step: float = 1e-4) -> Array:
    """Return d ln(predicted) / d ln(constant), by central differences."""

    def log_s(at: Array) -> Array:
        return np.asarray(np.log(predict(np.exp(at))))

    moves = step * np.eye(len(logs))
    return np.stack([(log_s(logs + move) - log_s(logs - move)) / (2 * step) for move in moves], axis=1)


def _make_fit(values: Array, residuals: Array, slope: Array) -> RobustFit:
    weights = weigh(residuals, last=True)
    spare = max(1, len(residuals) - int(np.count_nonzero(values)))
    sigma = scale(residuals) * float(np.sqrt(len(residuals) / spare))
    return RobustFit(values, residuals, weights, sigma, slope.T @ (slope * weights[:, None]) / sigma**2)


def half_width(residuals: Array, constants: int) -> float:
    """Return the half-width of the 80 % range as a factor: that percentile of residuals, widened for what was fitted.

    Of n rows the ceil(0.8 (n + 1))-th holds the next one with 80 % (as conformal prediction has it): few rows, a wide range.
    """
    count = len(residuals)
    share = min(1.0, float(np.ceil(0.8 * (count + 1))) / count)
    widened = float(np.quantile(np.abs(residuals), share)) * float(np.sqrt(count / max(1, count - constants)))
    return max(LEAST_WIDTH, float(np.expm1(widened)))


def width(sigma: float) -> float:
    """Return the half-width of the 80 % range as a factor, from the standard deviation of logarithms, capped at e^3."""
    return float(np.expm1(min(3.0, Z80 * sigma)))


def sigma_of(half: float) -> float:
    """Return the standard deviation of logarithms whose 80 % range has this half-width."""
    return float(np.log1p(half) / Z80)


def covariance(information: Array, prior: Array) -> Array:
    """Return the constants' covariance from the rows' information and prior deviations, scaled since units differ by 1e12."""
    inside = information * np.outer(prior, prior) + np.eye(len(prior))
    return np.linalg.inv(inside) * np.outer(prior, prior)


def slopes(predict: Callable[[Array], Array], values: Array) -> Array:
    """Return d ln(predicted) / d constant."""
    return np.asarray(log_slopes(predict, np.log(values)) / values)
