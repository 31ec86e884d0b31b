"""Lengths of requests as a table of runs tells them: by a data set beside it, by a bundled one, or by mean and percentiles.

A row names its data set (``mlperf_lengths/llama2-70b``); the table's folder may hold the lengths themselves. Where it does not,
the catalogue's distribution of the same name is used; where there is none, a lognormal through mean, median and 90th percentile.
"""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from commtax.catalog.distributions import Side, data_set
from commtax.catalog.distributions import lengths as spelled
from commtax.catalog.loader import stems
from commtax.spec.stream import Lengths, lognormal_with_mean
from commtax_lab.published.rows import Row, cell, mix, number

SIDES: tuple[Side, Side] = ("inputs", "outputs")
ANSWER_SIGMA = 0.9  # of answers known by their mean alone: MLPerf's reference answers have 0.6 to 1.1
MIXED_POINTS = 400  # of a mix: shares are kept to a quarter of a percent
ALIKE = ("constant", "shared_prefix")
"""What a row calls lengths that hardly differ: then the mean alone tells them."""


def lengths_of_row(row: Row, folder: Path | None) -> tuple[Lengths, Lengths]:
    """Return the inputs and outputs of a row's requests."""
    inputs, outputs = (_side(row, side, folder) for side in SIDES)
    return inputs, outputs


def _side(row: Row, side: Side, folder: Path | None) -> Lengths:
    column = side.removesuffix("s")
    spelled_as, mean_cell = cell(row, f"{column}_dist"), cell(row, f"{column}_mean_tokens")
    if parts := mix(spelled_as) or mix(mean_cell):
        return _mix_lengths(parts)
    mean = number(row, f"{column}_mean_tokens")
    named = re.match(r"mlperf_lengths/([\w.-]+)", spelled_as)
    samples = named and _samples(named[1], side, folder)
    if samples:
        return scale_to_mean(samples, mean)
    middle, tail = (number(row, name) if cell(row, name) else None for name in (f"{column}_p50_tokens", f"{column}_p90_tokens"))
    if middle is None and tail is None:
        drawn = Lengths("lognormal", mean, sigma=0.0 if spelled_as.startswith(ALIKE) else ANSWER_SIGMA)
    else:
        drawn = lognormal_with_mean(mean, middle, tail)
    least = re.search(r"\(min (\d{1,9})\)", spelled_as)
    kind = drawn.kind if drawn.sigma else "constant"
    return replace(drawn, kind=kind, low=float(least[1]) if least else 1.0)


def _mix_lengths(parts: tuple[tuple[float, float], ...]) -> Lengths:
    """Return a few lengths, each with its share of the requests."""
    edges = np.cumsum([share for _, share in parts])
    levels = (np.arange(MIXED_POINTS) + 0.5) / MIXED_POINTS
    points = [parts[i][0] for i in np.minimum(np.searchsorted(edges, levels), len(parts) - 1)]
    return Lengths("quantiles", sum(length * share for length, share in parts), quantiles=tuple(points))


def _samples(name: str, side: Side, folder: Path | None) -> Lengths | None:
    """Return a data set's lengths, from the folder or as shipped, or None where neither has this side."""
    path = folder / "mlperf_lengths" / f"{name}.csv.gz" if folder else None
    if path and path.is_file():
        return _lengths_of_file(path, side)
    stem = f"mlperf-{name}"
    return spelled(stem, side) if stem in stems("lengths") and getattr(data_set(stem), side) else None


@lru_cache(maxsize=32)
def _lengths_of_file(path: Path, side: Side) -> Lengths | None:
    try:
        return spelled(f"file:{path}", side, "data")
    except ValueError:  # such as a data set of inputs alone
        return None


@lru_cache(maxsize=1024)
def scale_to_mean(lengths: Lengths, mean: float) -> Lengths:
    """Scale a data set to a run's mean with lengths cut at its longest, so that the others make up for the cut.

    Reference answers are shorter than what a model writes (MLPerf's Llama-2-70B: 219 tokens against 271 to 301).

    >>> scale_to_mean(Lengths("quantiles", 2.0, quantiles=(1.0, 2.0, 3.0)), 2.5).quantiles
    (1.4, 2.8, 3.0)
    """
    levels = np.maximum(1.0, np.array(lengths.quantiles))
    longest = max(float(levels[-1]), mean)
    low, high = 0.0, longest / float(levels[0])  # at the lower end all are shortest, at the upper one all are longest
    for _ in range(40):
        factor = (low + high) / 2
        scaled = np.clip(levels * factor, 1.0, longest)
        low, high = (factor, high) if np.mean((scaled[1:] + scaled[:-1]) / 2) < mean else (low, factor)
    return replace(lengths, mean=mean, quantiles=tuple(np.round(scaled, 3).tolist()))
