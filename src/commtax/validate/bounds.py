"""The stated bounds (``bounds.toml``): what the tool promises of its accuracy, each with its figure, and whether it holds."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TypedDict

import numpy as np

from commtax.validate.records import Array, Records

RATES = ("decode-rate", "throughput")
"""Kinds of rows in tokens a second; all others are seconds."""
ROUNDING = 1e-9  # a prediction may fall below its floor by no more than this share
UNPRICED = 0.05  # rows of a file that may have no price
Limit = float | tuple[float, float]


class Stated(TypedDict, total=False):
    name: str
    figure: str
    by_tp: bool
    limit: float | list[float]
    rows: dict[str, bool | str | list[float | str | bool]]


@dataclass(frozen=True, slots=True)
class Bound:
    """``value`` must not exceed ``limit`` (or lie between two); without rows there is no verdict."""

    name: str
    limit: Limit
    value: float | None
    n: int
    is_count: bool = False  # else a share

    @property
    def ok(self) -> bool | None:
        if self.value is None:
            return None
        low, high = self.limit if isinstance(self.limit, tuple) else (-np.inf, self.limit)
        return bool(low <= self.value <= high)


def _off(r: Records) -> Array:
    return np.abs(np.expm1(r.log_error))


FIGURES: dict[str, Callable[[Records], float]] = {
    "median": lambda r: float(np.median(_off(r))),
    "mean": lambda r: float(np.mean(_off(r))),
    "p90": lambda r: float(np.quantile(_off(r), 0.9)),
    "bias": lambda r: float(abs(np.expm1(np.mean(r.log_error)))),
    "covered": lambda r: float(np.mean(r.covered)),
    "uncovered": lambda r: float(1 - np.mean(r.covered)),
    "width": lambda r: float(np.median(r.half_width)),
}
CHOICES: dict[str, Callable[[Records, Array], Array]] = {
    "size": lambda r, ends: (r.size >= ends[0]) & (r.size <= ends[1]),
    "source": lambda r, part: np.array([part in source.lower() for source in r.source], dtype=bool),
    "versioned": lambda r, wanted: np.array([bool(version) is wanted for version in r.version], dtype=bool),
}
"""How rows are chosen by keys that are no list of a column's values."""


def judge(records: Records, tables: Mapping[str, tuple[int, int]]) -> list[Bound]:
    """All bounds, on rows that were priced and not fitted; the last two on all rows."""
    tested = records.where_true(records.priced & ~records.fitted)
    stated: list[Stated] = tomllib.loads((files("commtax.validate") / "bounds.toml").read_text())["bound"]
    shares = [1 - priced / rows for rows, priced in tables.values() if rows]
    every = sum(rows for rows, _ in tables.values())
    return [
        *(_bound(one, tested) for one in stated),
        Bound("rows not priced, in the worst file", UNPRICED, max(shares, default=None), every),
        Bound("predictions below their physical floor", 0.0, _below(records), int(np.sum(records.priced)), is_count=True),
    ]


def _bound(stated: Stated, tested: Records) -> Bound:
    chosen = tested
    for key, wanted in stated["rows"].items():
        if len(chosen):
            mask = CHOICES[key](chosen, wanted) if key in CHOICES else np.isin(chosen.column(key).astype(object), wanted)
            chosen = chosen.where_true(mask)
    figure, limit = FIGURES[stated["figure"]], stated["limit"]
    parts = [chosen.where_true(chosen.tp == tp) for tp in np.unique(chosen.tp)] if stated.get("by_tp") else [chosen]
    value = max(figure(part) for part in parts) if len(chosen) else None
    return Bound(stated["name"], (limit[0], limit[1]) if isinstance(limit, list) else limit, value, len(chosen))


def _below(records: Records) -> float | None:
    """How many; a rate's floor is the least time of a token."""
    if not np.any(records.priced):
        return None
    rates = np.array([kind in RATES for kind in records.kind], dtype=bool)
    with np.errstate(all="ignore"):
        seconds = np.where(rates, 1 / records.predicted, records.predicted)
    return float(np.sum(records.priced & (seconds < records.floor * (1 - ROUNDING))))
