"""Predictions beside measurements, as columns: 700,000 rows are a handful of arrays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from commtax.files import TABLE_BYTES, read_text

Row = Mapping[str, str]
Array = Any

WORDS = ("kind", "source", "system", "library", "version", "mode", "dtype", "where", "what", "hint", "skipped")
NUMBERS = ("tp", "size", "measured", "predicted", "low", "high", "floor", "row")
FIELDS = (*WORDS, *NUMBERS, "fitted")
LEAST, MOST = 1e-9, 1e18
"""Between them lies every time, size and rate that was ever published; beyond them ratios overflow."""


class UnpricedError(ValueError):
    """A row that no question can be made of, with the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One prediction of one input row. Seconds, or tokens/s where that is what was published."""

    kind: str
    source: str = ""
    system: str = ""
    library: str = ""
    version: str = ""
    mode: str = ""
    dtype: str = ""
    where: str = ""  # nvlink, pcie, xgmi …, or "across" hosts
    what: str = ""  # the row in words
    hint: str = ""  # what may explain an error
    skipped: str = ""  # why there is no prediction
    tp: float = 0
    size: float = 0.0  # bytes of a tensor, rows of a product, tokens of a prompt: what bounds are cut by
    measured: float = np.nan
    predicted: float = np.nan
    low: float = np.nan
    high: float = np.nan
    floor: float = 0.0  # what physics allows at the least (at the most for rates, and then as 1 / rate)
    row: int = 0
    fitted: bool = False


@dataclass(frozen=True)
class Records:
    """Columns of ``Answer``s."""

    columns: Mapping[str, Array] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Array:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(self.columns["row"]) if self.columns else 0

    @cached_property
    def priced(self) -> Array:
        return (self.skipped == "") & np.isfinite(self.measured) & np.isfinite(self.predicted)

    @cached_property
    def log_error(self) -> Array:
        """ln(predicted / measured); NaN where a row is not priced."""
        with np.errstate(all="ignore"):
            return np.where(self.priced, np.log(self.predicted / self.measured), np.nan)

    @cached_property
    def covered(self) -> Array:
        return (self.low <= self.measured) & (self.measured <= self.high)

    @cached_property
    def half_width(self) -> Array:
        with np.errstate(all="ignore"):
            return (self.high - self.low) / (2 * self.predicted)

    def where_true(self, mask: Array) -> Records:
        return Records({name: column[mask] for name, column in self.columns.items()})


@dataclass(frozen=True, slots=True)
class Table:
    """One file of rows, and who answers them."""

    name: str
    header: list[str]
    rows: Sequence[Sequence[str]]
    answer: Callable[[], Records]


def of_answers(answers: Iterable[Answer]) -> Records:
    found = list(answers)
    kinds: dict[str, Any] = dict.fromkeys(WORDS, object) | dict.fromkeys(NUMBERS, float) | {"fitted": bool, "row": int}
    return Records({name: np.array([getattr(a, name) for a in found], dtype=kinds[name]) for name in FIELDS})


def row_by_row(rows: Sequence[Row], answer: Callable[[int, Row], Sequence[Answer]]) -> Records:
    """Rows that share no price with their neighbours, one at a time; equal rows are answered once."""
    known: dict[tuple[tuple[str, str], ...], Sequence[Answer]] = {}
    found: list[Answer] = []
    for index, row in enumerate(rows):
        key = tuple(row.items())
        if key not in known:
            known[key] = answer(index, row)
        found += [replace(one, row=index) for one in known[key]]
    return of_answers(found)


def of_columns(count: int, **given: Any) -> Records:
    """Columns from arrays and single values; what is not given is as in an empty ``Answer``."""
    empty = Answer("")
    columns = {}
    for name in FIELDS:
        kind = object if name in WORDS else bool if name == "fitted" else float
        value = given.get(name, getattr(empty, name))
        columns[name] = np.broadcast_to(np.asarray(value, dtype=kind), (count,))
    columns["row"] = np.arange(count)
    return Records(columns)


def joined(parts: Sequence[Records]) -> Records:
    some = [p for p in parts if len(p)]
    if not some:
        return of_answers([])
    return Records({name: np.concatenate([p.columns[name] for p in some]) for name in FIELDS})


def read(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, plain or gzipped; short rows are filled with empty cells."""
    lines = csv.reader(StringIO(read_text(path, "data", most=TABLE_BYTES), newline=""))
    header = next(lines, [])
    return header, [line + [""] * (len(header) - len(line)) for line in islice(lines, most) if line]


def dicts(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(header, row, strict=False)) for row in rows]


def number(row: Row, name: str) -> float:
    """A figure of a row, above 0."""
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise UnpricedError(f"column {name} is {'empty' if not text else f'{text!r}, not a number'}") from None
    if not LEAST <= value <= MOST:
        raise UnpricedError(f"column {name} is {text[:40]}: a figure from {LEAST:g} to {MOST:g} is needed")
    return value


def whole(row: Row, name: str, default: int | None = None) -> int:
    if default is not None and not (row.get(name) or "").strip():
        return default
    return int(number(row, name))
