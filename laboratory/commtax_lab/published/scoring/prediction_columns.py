"""Predictions beside measurements, as columns: 700,000 rows are a handful of arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from commtax import counting
from commtax.arrays import Array
from commtax.catalog.foreign_names import find_chip_name
from commtax_lab.published.open_loop import VERDICTS
from commtax_lab.published.rows import PublishedFigure, Question, RowQuestion

NUMBERS = ("tp", "size", "measured", "predicted", "low", "high", "floor")
KINDS: dict[str, type] = {**dict.fromkeys(NUMBERS, float), "row": int, "fitted": bool, "sound": bool}
"""Of columns that are not text."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One prediction, its 80 % range, and what physics allows at the least (at the most for rates, and then as 1 / rate)."""

    predicted: float = np.nan
    low: float = np.nan
    high: float = np.nan
    floor: float = 0.0
    hint: str = ""  # what may explain an error, beside what the row itself says
    apart: str = ""  # the rule by which the row is no test, beside its own


def prediction_around(value: float, factor: float, floor: float) -> Prediction:
    """Return a prediction whose range extends by this factor to either side."""
    return Prediction(value, value / factor, value * factor, floor)


NONE = Prediction()
COLUMNS = tuple(dict.fromkeys(f.name for kind in (PublishedFigure, Prediction) for f in fields(kind)))


@dataclass(frozen=True)
class Records:
    """Columns of ``PublishedFigure`` and ``Prediction``, under their names."""

    columns: Mapping[str, Array]

    def __getattr__(self, name: str) -> Array:
        if name not in COLUMNS:
            raise AttributeError(name)
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def priced(self) -> Array:
        return np.asarray((self.skipped == "") & (self.apart == "") & np.isfinite(self.measured) & np.isfinite(self.predicted))

    @cached_property
    def timed(self) -> Array:
        """Priced, and a time or a rate: a yes or no has no error in per cent."""
        return self.priced & ~np.isin(self.kind, VERDICTS)

    @cached_property
    def log_error(self) -> Array:
        """The logarithm of predicted over measured, NaN where a row is not priced or is a verdict."""
        with np.errstate(all="ignore"):
            return np.where(self.timed, np.log(self.predicted / self.measured), np.nan)

    @cached_property
    def covered(self) -> Array:
        return (self.low <= self.measured) & (self.measured <= self.high)

    @cached_property
    def half_width(self) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray((self.high - self.low) / (2 * self.predicted))

    def where_true(self, mask: Array) -> Records:
        return Records({name: values[mask] for name, values in self.columns.items()})


def answers(
    questions: Iterable[RowQuestion[Question]],
    predict: Callable[[Question, Sequence[PublishedFigure]], Iterable[Prediction]],
    same: Callable[[Question], Hashable] = id,
) -> Records:
    """Price every row or give its reason, with the figures of all rows whose question is the ``same`` predicted at once."""
    groups: dict[Hashable, list[RowQuestion[Question]]] = {}
    for one in questions:
        groups.setdefault(None if one.question is None else same(one.question), []).append(one)
    rows: list[tuple[PublishedFigure, Prediction]] = []
    for group in counting.counted(groups.values()):
        entries = [entry for one in group for entry in one.entries]
        if (question := group[0].question) is None:
            rows += [(entry, NONE) for entry in entries]
            continue
        try:
            rows += zip(entries, predict(question, entries), strict=True)
        except ValueError as error:  # the question has no answer
            rows += [(replace(one.entries[-1], skipped=str(error), measured=np.nan), NONE) for one in group]
    return _columns_of_rows(sorted(rows, key=lambda pair: pair[0].row))


def _columns_of_rows(rows: Sequence[tuple[PublishedFigure, Prediction]]) -> Records:
    def column(name: str) -> Array:
        if name == "hint":
            values = [", ".join(filter(None, (entry.hint, predicted.hint))) for entry, predicted in rows]
        elif name == "apart":
            values = [entry.apart or predicted.apart for entry, predicted in rows]
        elif name == "chip":
            values = [entry.chip or find_chip_name(entry.system) for entry, _ in rows]
        else:
            values = [getattr(entry if hasattr(entry, name) else predicted, name) for entry, predicted in rows]
        return np.array(values, dtype=KINDS.get(name, object))

    return Records({name: column(name) for name in COLUMNS})


def records_of_columns(count: int, **values: Array | str) -> Records:
    """Build records from arrays and single values, with columns left out as in an empty row."""
    empty = PublishedFigure("")
    usual = {name: getattr(empty if hasattr(empty, name) else NONE, name) for name in COLUMNS} | {"row": np.arange(count)}
    arrays: dict[str, Array] = {name: np.asarray(value, dtype=KINDS.get(name, object)) for name, value in (usual | values).items()}
    return Records({name: np.broadcast_to(values, (count,)) for name, values in arrays.items()})


def join_records(parts: Sequence[Records]) -> Records:
    some = [part for part in parts if len(part)]
    if not some:
        return _columns_of_rows([])
    return Records({name: np.concatenate([part.columns[name] for part in some]) for name in COLUMNS})
