"""What culprits are weighed by: somebody suspected, what it costs of a step, and since which step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.evidence.thresholds import levels
from commtax.timeline import Column

LEVEL = levels(__name__)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit's kind, its place among the ranks (None: nobody's), cost as a share of a step, first step, and the evidence."""

    kind: str
    place: int | None
    cost: float
    since: int
    said: str


def of_others(x: Column) -> Column:
    """For each row the median of the other rows."""
    rows = np.arange(len(x))
    return np.array([np.median(x[rows != r], axis=0) for r in rows]) if len(x) > 1 else np.zeros_like(x)
