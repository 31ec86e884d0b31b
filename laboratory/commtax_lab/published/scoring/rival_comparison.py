"""Ours against another predictor's figures on the rows that both priced: errors of each, and who is nearer how often.

Theirs are a CSV with the rows' ``id`` and columns such as ``ttft`` and ``tpot``. A column's name tells its unit (``ttft_ms``,
``tpot_s``). Where it does not, milliseconds and seconds are both tried against what was measured, a factor of 1,000 apart: the
nearer one is meant, and the answer says so.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commtax.arrays import Array
from commtax.statement import Refusal
from commtax_lab.published.metrics import Metric, metric
from commtax_lab.published.rows import MOST, Row, cell
from commtax_lab.published.scoring.prediction_columns import Records
from commtax_lab.published.tables import dicts, read

SAID = re.compile(r"_(ms|us|s|sec|seconds)(_mean|_avg)?$")
PREDICTED = re.compile(r"^(predicted|pred|estimated|estimate|est|simulated|sim|rival)_")
TIMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Rival:
    """Figures by kind and id. ``unsaid`` kinds have times whose column names no unit, kept as they are."""

    name: str
    figures: Mapping[str, Mapping[str, float]]
    unsaid: frozenset[str]
    ids: int  # rows with an id
    unread: int  # figures that are no number above 0


def read_rival(path: Path) -> Rival:
    header, lines = read(path, what="compare")
    plain = [re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") for column in header]
    if "id" not in plain:
        raise Refusal(
            f"compare '{path}': has no column id, which says what row a figure is of ({_column_words(header)})", "compare"
        )
    columns = {name: measured for name in plain if (measured := metric(PREDICTED.sub("", name))) and not measured.per_gpu}
    if not columns:
        raise Refusal(f"compare '{path}': has no figure, such as ttft_ms or tpot_ms ({_column_words(header)})", "compare")
    rows = {cell(row, "id"): row for row in dicts(plain, lines) if cell(row, "id")}
    if not rows:
        raise Refusal(f"compare '{path}': no row has an id", "compare")
    figures = {measured.kind: _column(rows, name, measured) for name, measured in columns.items()}
    filled = sum(1 for row in rows.values() for name in columns if cell(row, name))
    unsaid = frozenset(measured.kind for name, measured in columns.items() if measured.kind in TIMES and not SAID.search(name))
    return Rival(path.name, figures, unsaid, len(rows), filled - sum(map(len, figures.values())))


def _column(rows: Mapping[str, Row], name: str, measured: Metric) -> dict[str, float]:
    figures = {key: _number(cell(row, name)) * measured.unit for key, row in rows.items()}
    return {key: value for key, value in figures.items() if 0 < value <= MOST}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _column_words(header: list[str]) -> str:
    return (
        f"its columns: {', '.join(name[:30] for name in header[:8])}{' …' if len(header) > 8 else ''}" if header else "it is empty"
    )


BY = ("where", "mode", "library", "chip")
ALIKE = 1e-9  # errors that differ by less are a draw


@dataclass(frozen=True, slots=True)
class PredictorErrors:
    """Errors of one predictor: absolute ones of predicted over measured, and the bias as a geometric mean."""

    median_ape: float
    p90_ape: float
    bias: float


@dataclass(frozen=True, slots=True)
class Duel:
    """Both on the same rows of one kind, that agree in ``value`` of the column ``by``."""

    kind: str
    by: str
    value: str
    n: int
    ours: PredictorErrors
    rival: PredictorErrors
    wins: int  # rows on which ours is nearer
    draws: int


@dataclass(frozen=True, slots=True)
class RivalComparison:
    """``units`` are those that columns without one were taken in."""

    name: str
    ids: int
    matched: int  # ids of the rival that are rows of ours, with a price
    unknown: int  # … that are no row of the tables
    unpriced: int  # … whose row has no price of ours
    unread: int  # figures that are no number
    units: Mapping[str, str]
    duels: tuple[Duel, ...]


def compare_with_rival(records: Records, rival: Rival) -> RivalComparison:
    ours = set(records.id.tolist()) - {""}
    theirs = {key for figures in rival.figures.values() for key in figures}
    if not ours:
        raise Refusal(f"compare '{rival.name}': no row of these tables has an id to be told by", "compare")
    if not ours & theirs:
        few = f"theirs {min(theirs, default='none')}, ours {min(ours)}"
        raise Refusal(f"compare '{rival.name}': none of its {rival.ids:,} ids is a row of these tables ({few})", "compare")
    priced = records.where_true(records.timed)
    both = set(priced.id.tolist()) & theirs
    units: dict[str, str] = {}
    duels = [duel for kind, figures in rival.figures.items() for duel in _rows_of_kind(kind, figures, priced, rival, units)]
    if not duels:
        raise Refusal(f"compare '{rival.name}': no figure of its rows was measured and priced here", "compare")
    unknown, unpriced = len(theirs - ours), len((theirs & ours) - both)
    return RivalComparison(rival.name, rival.ids, len(both), unknown, unpriced, rival.unread, units, tuple(duels))


def _rows_of_kind(kind: str, figures: Mapping[str, float], priced: Records, rival: Rival, units: dict[str, str]) -> Iterator[Duel]:
    """Yield all rows of a kind, those that nothing was fitted on, and those that agree in a column."""
    alike = priced.where_true(priced.kind == kind)
    rows = alike.where_true(np.array([key in figures for key in alike.id], dtype=bool))
    if not len(rows):
        return
    theirs = np.array([figures[key] for key in rows.id])
    if kind in rival.unsaid:
        unit, units[kind] = (1e-3, "ms") if np.median(np.log(theirs / rows.measured)) > np.log(1e3) / 2 else (1.0, "s")
        theirs = theirs * unit
    yield duel(rows, theirs, kind, "", "all")
    if np.any(rows.fitted):
        yield duel(rows.where_true(~rows.fitted), theirs[~rows.fitted], kind, "", "not fitted")
    for column in BY:
        values = rows.columns[column].astype(str)
        if len(set(values)) > 1:
            for value in sorted(set(values)):
                yield duel(rows.where_true(values == value), theirs[values == value], kind, column, value)


def duel(rows: Records, theirs: Array, kind: str, by: str, value: str) -> Duel:
    ours, other = rows.log_error, np.log(theirs / rows.measured)
    near = np.abs(np.expm1(ours)) - np.abs(np.expm1(other))
    wins, draws = int(np.sum(near < -ALIKE)), int(np.sum(np.abs(near) <= ALIKE))
    return Duel(kind, by, value, len(rows), _predictor_errors(ours), _predictor_errors(other), wins, draws)


def _predictor_errors(logs: Array) -> PredictorErrors:
    if not len(logs):
        return PredictorErrors(np.nan, np.nan, np.nan)
    errors = np.abs(np.expm1(logs))
    return PredictorErrors(float(np.median(errors)), float(np.quantile(errors, 0.9)), float(np.expm1(np.mean(logs))))
