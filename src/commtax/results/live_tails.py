"""Percentiles of a server's histograms: each lies somewhere in a bucket, and is told as that range, never as a number."""

import math
from collections.abc import Iterator

from commtax.evidence.finding import Finding
from commtax.results.expected_figures import ExpectedFigures, Figure
from commtax.results.exposition import Exposition, quantile_bounds
from commtax.results.prometheus import LEVEL, METRICS, bounds_text
from commtax.statement import Note
from commtax.units import format_seconds

TITLES = {"ttft": "TTFT", "itl": "ITL", "e2el": "E2E"}
TAIL = "p99"


def tail_bounds(page: Exposition) -> dict[str, tuple[float, float]]:
    """The bucket that holds the tail of each time, by metric."""
    found: dict[str, tuple[float, float]] = {}
    for name, metric in METRICS.items():
        bounds = quantile_bounds(page.buckets.get(name, {}), LEVEL.tail)
        if bounds[1] > 0 and metric in TITLES:
            found.setdefault(metric, bounds)
    return found


def tail_findings(page: Exposition, predicted: ExpectedFigures | None) -> Iterator[Finding]:
    """Each tail as its bucket, beside the range of its prediction; a range is told and not judged."""
    for metric, (low, high) in tail_bounds(page).items():
        item = Note(f"{metric}_{TAIL}", f"{TITLES[metric]} ({TAIL}): {bounds_text(low, high)}")
        figure = predicted.of(metric, TAIL) if predicted else None
        if figure is None:
            yield Finding(item, None, None, "s", reason="bounds of its bucket", told=True)
        else:
            said = f"bounds of its bucket, {_place_words(low, high, figure)}"
            yield Finding(item, figure.value, None, "s", math.inf, said, low=figure.low, high=figure.high, told=True)


def _place_words(low: float, high: float, figure: Figure) -> str:
    """Where a bucket lies beside the range of a prediction."""
    place = "above" if low > figure.high else "below" if high < figure.low else "which meets"
    return f"{place} the 80% range {format_seconds(figure.low)} to {format_seconds(figure.high)}"
