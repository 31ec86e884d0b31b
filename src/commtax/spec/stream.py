"""Requests as they come: lengths as distributions, and a stream of requests column by column."""

from dataclasses import dataclass
from math import inf

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens requests have: a distribution that is drawn from."""

    kind: str  # constant, uniform (low to high), lognormal (mean, sigma), quantiles (evenly spaced, low to high)
    mean: float
    low: float = 1.0
    high: float = inf  # what is drawn is cut to between low and high
    sigma: float = 0.0  # of a lognormal's logarithm
    quantiles: tuple[float, ...] = ()
    source: str = ""  # the data set's name, where it has one …
    correlation: float = 0.0  # … and the rank correlation of its inputs with its outputs


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests in the order of their arrival, one column a fact."""

    arrival_s: Array  # float64, not decreasing, from 0 on
    input_len: Array  # int64, at least 1
    output_len: Array  # int64, at least 1
    prefixes: tuple[tuple[int, ...], ...] | None = None  # of each prompt: ids of its blocks, equal where text is; None: all differ
    block: int = 16  # tokens that an id stands for
    in_flight: float = inf  # a client sends no more at once: the others wait before they are sent

    def __len__(self) -> int:
        return len(self.arrival_s)
