"""Requests as they come: lengths as distributions, and a stream of requests column by column."""

from dataclasses import replace
from math import exp, inf, log
from typing import Self

import numpy as np

from commtax.records import dataclass
from commtax.statement import Note

Array = np.ndarray
MOST_TOKENS = 10_000_000  # of one prompt or answer: the longest context that a model was ever sold with
MOST_REQUESTS = 10_000_000  # of one stream
Z90 = 1.2815515655446004  # standard deviations from a normal's mean to its 90th percentile


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens requests have: a distribution that is drawn from."""

    kind: str  # constant, uniform (low to high), lognormal (mean, sigma), quantiles (evenly spaced, low to high)
    mean: float  # before anything is cut
    low: float = 1.0
    high: float = inf  # what is drawn is cut to between low and high
    sigma: float = 0.0  # of a lognormal's logarithm
    quantiles: tuple[float, ...] = ()
    source: str = ""  # the data set's name, where it has one …
    correlation: float = 0.0  # … and the rank correlation of its inputs with its outputs

    def scaled(self, factor: float) -> Self:
        """Return the same shape with all lengths times a factor.

        >>> Lengths("uniform", 75, low=50, high=100).scaled(2)
        Lengths(kind='uniform', mean=150, low=100, high=200, sigma=0.0, quantiles=(), source='', correlation=0.0)
        """
        points = tuple(q * factor for q in self.quantiles)
        return replace(self, mean=self.mean * factor, low=max(1.0, self.low * factor), high=self.high * factor, quantiles=points)


@dataclass(frozen=True, slots=True, eq=False)
class RequestStream:
    """Requests in the order of their arrival, one column a fact."""

    arrival_s: Array  # float64, not decreasing, from 0 on
    input_len: Array  # int64, at least 1
    output_len: Array  # int64, at least 1
    prefixes: tuple[tuple[int, ...], ...] | None = None  # of each prompt: ids of its blocks, equal where text is; None: all differ
    block: int = 16  # tokens that an id stands for; blocks behind the last id of a prompt differ from all others
    in_flight: float = inf  # a client sends no more at once: the others wait before they are sent
    notes: tuple[Note, ...] = ()  # what was done to a file's requests on reading

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, places: Array) -> Self:
        prefixes = None if self.prefixes is None else tuple(self.prefixes[place] for place in places.tolist())
        arrived, prompts, answers = (column[places] for column in (self.arrival_s, self.input_len, self.output_len))
        return replace(self, arrival_s=arrived, input_len=prompts, output_len=answers, prefixes=prefixes)


def lognormal_with_mean(mean: float, p50: float | None = None, p90: float | None = None) -> Lengths:
    """Return the lognormal with this mean through the median or the 90th percentile, or nearest to both.

    The mean is kept exactly, for the sum of tokens is what loads a server: mu = ln mean - sigma^2 / 2. What is left is sigma, by
    least squares of the logarithms, whose derivative is a cubic::

        ln p50 = mu        ln p90 = mu + 1.2816 sigma

    A median above the mean, or a p90 above 2.27 means, has no lognormal: the nearest is taken. Of two that fit, the narrower.

    >>> told = {"p50": 100 * exp(-0.5)}, {"p90": 100 * exp(Z90 * 0.5 - 0.125)}
    >>> tuple(round(lognormal_with_mean(100, **known).sigma, 6) for known in told)
    (1.0, 0.5)
    """
    line = np.polynomial.Polynomial
    misses = [line([log(mean / at), z, -0.5]) for at, z in ((p50, 0.0), (p90, Z90)) if at is not None]
    loss = sum((miss**2 for miss in misses), line([0.0]))
    flat = [float(root.real) for root in loss.deriv().roots() if abs(root.imag) < 1e-6] if misses else []
    sigma = min((0.0, *(s for s in flat if s > 0)), key=lambda s: (round(float(loss(s)), 9), s))
    return Lengths("lognormal", float(mean), sigma=sigma)


def lognormal_of_quantiles(p50: float, p90: float) -> Lengths:
    """Return the lognormal through the median and the 90th percentile."""
    sigma = log(p90 / p50) / Z90
    return Lengths("lognormal", p50 * exp(sigma**2 / 2), sigma=sigma)
