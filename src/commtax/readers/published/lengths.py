"""Lengths of requests as a table of runs tells them: by a data set beside it, by a bundled one, or by mean and percentiles.

A row names its data set (``mlperf_lengths/llama2-70b``); the table's folder may hold the lengths themselves. Where it does not,
the catalogue's distribution of the same name is used; where there is none, a lognormal through mean, median and 90th percentile.
"""

import math
import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from commtax.files import TABLE_BYTES, read_text
from commtax.readers.published.rows import Row, cell, number
from commtax.spec.stream import Array, Lengths
from commtax.statement import Refusal

SIDES = ("input", "output")
LEVELS = 257  # quantiles that stand for a data set: the last 1 % still has several
Z90 = 1.2815515655446004  # standard normal quantile of 90 %
ANSWER_SIGMA = 0.9  # of answers known by their mean alone: MLPerf's reference answers have 0.6 to 1.1
ALIKE = ("constant", "shared_prefix")
"""What a row calls lengths that hardly differ: then the mean alone tells them."""


def of_row(row: Row, folder: Path | None) -> tuple[Lengths, Lengths]:
    """Inputs and outputs of a row's requests."""
    inputs, outputs = (_side(row, side, folder) for side in SIDES)
    return inputs, outputs


def _side(row: Row, side: str, folder: Path | None) -> Lengths:
    mean, said = number(row, f"{side}_mean_tokens"), cell(row, f"{side}_dist")
    data_set = re.match(r"mlperf_lengths/([\w.-]+)", said)
    if data_set and folder and (path := folder / "mlperf_lengths" / f"{data_set[1]}.csv.gz").is_file():
        lengths, correlation = data_set_lengths(path)
        if side in lengths:
            return quantiled(lengths[side], mean, data_set[1], correlation)
    middle, tail = (number(row, name) if cell(row, name) else None for name in (f"{side}_p50_tokens", f"{side}_p90_tokens"))
    least = re.search(r"\(min (\d{1,9})\)", said)
    if middle is None and tail is None:
        sigma = 0.0 if said.startswith(ALIKE) or not said else ANSWER_SIGMA
    else:
        sigma = lognormal_sigma(mean, middle, tail)
    kind = "lognormal" if sigma else "constant"
    return Lengths(kind, mean, low=float(least[1]) if least else 1.0, sigma=sigma)


def lognormal_sigma(mean: float, median: float | None, p90: float | None) -> float:
    """Sigma of the lognormal that has the mean, and comes nearest to median and 90th percentile in their logarithms.

    ln(p50) = ln(mean) - s^2/2 and ln(p90) = ln(mean) - s^2/2 + 1.28 s; least squares over a fine grid of s, as three figures
    of a real data set never agree. Equal figures give 0.

    >>> round(lognormal_sigma(100.0, 100.0 * math.exp(-0.125), None), 3), lognormal_sigma(128.0, 128.0, 128.0)
    (0.5, 0.0)
    """
    sigma = np.linspace(0.0, 3.0, 3001)
    middle = math.log(mean) - sigma**2 / 2
    error = np.zeros_like(sigma)
    if median is not None:
        error = error + (middle - math.log(median)) ** 2
    if p90 is not None:
        error = error + (middle + Z90 * sigma - math.log(p90)) ** 2
    return float(sigma[int(np.argmin(error))])


@lru_cache(maxsize=16)
def data_set_lengths(path: Path) -> tuple[dict[str, Array], float]:
    """Sorted lengths of each side that a file of samples has, and the rank correlation of both sides."""
    header, *lines = read_text(path, "data", most=TABLE_BYTES).splitlines()
    try:
        samples = np.array([[float(text) for text in line.split(",")] for line in lines if line])
    except ValueError:
        raise Refusal(f"data '{path}': a cell is not a number", "data") from None
    columns = [name.strip().removesuffix("_tokens") for name in header.split(",")]
    if samples.ndim != 2 or samples.shape[1] != len(columns) or not np.all(np.isfinite(samples)) or np.any(samples < 0):
        raise Refusal(f"data '{path}': every line needs {len(columns)} numbers of at least 0", "data")
    correlation = 0.0
    if set(SIDES) <= set(columns):
        ranks = [np.argsort(np.argsort(samples[:, columns.index(side)])) for side in SIDES]
        correlation = float(np.corrcoef(ranks)[0, 1]) if len(samples) > 1 else 0.0
    return {side: np.sort(samples[:, columns.index(side)]) for side in SIDES if side in columns}, correlation


def quantiled(samples: Array, mean: float, source: str, correlation: float) -> Lengths:
    """A data set as evenly spaced quantiles, scaled to a run's own mean and cut at its longest: models are cut off there.

    Reference answers are shorter than what a model writes, so outputs are stretched; those at the limit stay there.
    """
    levels = np.quantile(samples, np.linspace(0.0, 1.0, LEVELS))
    longest, factor = float(levels[-1]), mean / float(np.mean(samples))
    for _ in range(8):  # what the cut takes away, the others make up for
        scaled = np.clip(levels * factor, 1.0, longest * max(1.0, mean / longest))
        factor *= mean / float(np.mean((scaled[1:] + scaled[:-1]) / 2))
    return Lengths("quantiles", mean, quantiles=tuple(np.round(scaled, 3).tolist()), source=source, correlation=correlation)
