"""Median, tail, bias, coverage and width of errors, by whatever rows share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from commtax.validate.records import Records

BY = ("kind", "source", "system", "library", "version", "mode", "dtype", "tp", "fitted")
WORST = 10
SLOW = 1.5  # measured over predicted from which a launch may be the reason …
LAUNCH_BOUND_S = 3e-5  # … of times shorter than this
Key = Mapping[str, object]
"""What the rows of one group share, by column."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Fractions: absolute errors of predicted over measured, bias as a geometric mean, and the 80 % range."""

    n: int
    median_ape: float
    p90_ape: float
    bias: float
    covered: float
    width: float  # median half-width of the range over the prediction


def figures(records: Records) -> Figures | None:
    """Over the rows that were priced; None where there are none."""
    errors = records.log_error[records.priced]
    if not len(errors):
        return None
    off = np.abs(np.expm1(errors))
    return Figures(
        n=len(errors),
        median_ape=float(np.median(off)),
        p90_ape=float(np.quantile(off, 0.9)),
        bias=float(np.expm1(np.mean(errors))),
        covered=float(np.mean(records.covered[records.priced])),
        width=float(np.median(records.half_width[records.priced])),
    )


def parts(records: Records, by: tuple[str, ...] = BY) -> Iterator[tuple[Key, Records]]:
    """The records of each combination of values, in their order."""
    codes: dict[tuple[object, ...], int] = {}
    keys = zip(*(records.column(name) for name in by), strict=True)
    index = np.fromiter((codes.setdefault(key, len(codes)) for key in keys), dtype=np.int64, count=len(records))
    order = np.argsort(index, kind="stable")
    edges = np.searchsorted(index[order], np.arange(len(codes) + 1))
    for key, code in sorted(codes.items(), key=lambda item: tuple(map(str, item[0]))):
        yield dict(zip(by, key, strict=True)), records.where_true(order[edges[code] : edges[code + 1]])


def groups(records: Records, by: tuple[str, ...] = BY) -> list[tuple[Key, Figures]]:
    return [(key, figured) for key, part in parts(records, by) if (figured := figures(part))]


def skipped(records: Records) -> list[tuple[str, int]]:
    return Counter(str(reason) for reason in records.skipped if reason).most_common()


@dataclass(frozen=True, slots=True)
class Miss:
    """One row far from its prediction, and what may explain it."""

    kind: str
    source: str
    what: str
    measured: float
    predicted: float
    reason: str


def worst(records: Records) -> list[Miss]:
    """The largest errors on rows that were not fitted, one for each source, system and library, so that ten differ."""
    tested = records.where_true(records.priced & ~records.fitted)
    if not len(tested):
        return []
    size = np.abs(tested.log_error)
    heads: dict[tuple[str, ...], int] = {}
    for i in np.argsort(-size):
        key = tuple(str(tested.column(name)[i]) for name in ("kind", "source", "system", "library"))
        heads.setdefault(key, int(i))
        if len(heads) == WORST:
            break
    return [_miss(tested, i) for i in heads.values()]


def _miss(records: Records, i: int) -> Miss:
    what = " ".join(filter(None, (str(records.column(name)[i]) for name in ("what", "dtype", "library", "version"))))
    measured, predicted = float(records.measured[i]), float(records.predicted[i])
    return Miss(str(records.kind[i]), str(records.source[i]), what, measured, predicted, reason(records, i))


def reason(records: Records, i: int) -> str:
    """What the row itself says, else what its figures suggest."""
    causes = [str(records.hint[i])] if records.hint[i] else []
    slow = records.measured[i] / records.predicted[i]
    if records.kind[i] == "gemm" and str(records.dtype[i]) in ("fp8_block", "nvfp4") and slow > 2:
        causes.append("launch-bound: timed without a graph, the same time at every small size")
    elif str(records.mode[i]) in ("eager", "timer") and slow > SLOW:
        causes.append("launched from Python, waits for other ranks")
    elif slow > SLOW and records.measured[i] < LAUNCH_BOUND_S:
        causes.append("launch-bound")
    if records.measured[i] < records.floor[i]:
        causes.append("measured faster than the hardware allows: warm caches, or not all was timed")
    return ", ".join(dict.fromkeys(causes)) or "no reason known"
