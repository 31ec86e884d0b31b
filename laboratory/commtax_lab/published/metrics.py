"""Figures of serving runs by the names of their columns: what is measured, in which unit, of one GPU or of all.

``mean_ttft_ms``, ``silicon_tpot_ms``, ``request_throughput``, ``tput_per_gpu``: a name says its statistic, what it is and its
unit, in this order. Times without a unit are seconds (InferenceX writes them so). The closed form gives means: a median stands
for the mean where that is not told, other percentiles and deviations are no figures of ours.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from commtax_lab.published.rows import Row, cell, names, number

UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
COLUMN = re.compile(
    r"(?:silicon_|measured_|actual_|real_)?(?P<statistic>mean_|avg_|average_|median_|p50_)?(?P<what>\w+?)"
    r"(?P<after>_mean|_avg|_median|_p50)?(?P<unit>_ms|_us|_s|_sec|_seconds)?(?P<each>_per_gpu|_gpu)?"
)
MIDDLE = ("median", "p50")


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric of a column: ``kind`` as records call it, its unit in seconds (of times), of one GPU or of all."""

    kind: str
    unit: float = 1.0
    per_gpu: bool = False
    middle: bool = False  # a median, not a mean


@lru_cache(maxsize=1024)
def metric(column: str) -> Metric | None:
    """Return what a column of a table of serving runs measures, or None where it is no figure of ours.

    >>> metric("mean_ttft_ms").unit, metric("tput_per_gpu"), metric("p99_ttft_ms")
    (0.001, Metric(kind='total-rate', unit=1.0, per_gpu=True, middle=False), None)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    kinds: dict[str, list[str]] = names()["serving_metrics"]
    whole = next((kind for kind, words in kinds.items() if plain in words), "")
    if whole:
        return Metric(whole, per_gpu=plain.endswith("_gpu"))
    match = COLUMN.fullmatch(plain)
    kind = match and next((kind for kind, words in kinds.items() if match["what"] in words), "")
    if not match or not kind:
        return None
    statistic = f"{match['statistic'] or ''}{match['after'] or ''}".strip("_")
    return Metric(kind, UNITS[(match["unit"] or "").strip("_")], bool(match["each"]), statistic in MIDDLE)


def figures(row: Row) -> Iterator[tuple[Metric, float]]:
    """Yield every figure of a row in seconds or per second: means first, and of all GPUs before per GPU."""
    by_kind: dict[str, list[tuple[Metric, str]]] = {}
    for column in row:
        if cell(row, column) and (measured := metric(column)):
            by_kind.setdefault(measured.kind, []).append((measured, column))
    for columns in by_kind.values():
        first, column = min(columns, key=lambda one: (one[0].middle, one[0].per_gpu))
        yield first, number(row, column) * first.unit
