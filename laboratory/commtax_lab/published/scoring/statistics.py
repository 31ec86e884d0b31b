"""Median, tail, bias, coverage and width of errors, by whatever rows share; and the stated bounds on them (``bounds.toml``).

The scoreboard (``scoreboard.toml``) has a line for each thing that people ask, on rows that nothing was fitted on. For
``transfer.toml`` whole engines, chips or families of models were left out of the fits.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict

import numpy as np

from commtax.arrays import Array
from commtax.records import record_from
from commtax_lab import lab_table
from commtax_lab.published.open_loop import VERDICTS
from commtax_lab.published.scoring.prediction_columns import Records
from commtax_lab.published.sweep import SOURCE

BY = ("kind", "source", "system", "library", "version", "mode", "dtype", "tp", "fitted")
WORST = 10
SLOW = 1.5  # measured over predicted from which a launch may be the reason …
LAUNCH_BOUND_S = 3e-5  # … of times shorter than this
RATES = {
    "decode-rate": "tok/s",
    "throughput": "tok/s",
    "total-rate": "tok/s",
    "input-rate": "tok/s",
    "interactivity": "tok/s",
    "request-rate": "requests/s",
}
"""Kinds of rows that are so much a second, and of what; all others are seconds."""
ROUNDING = 1e-9  # a prediction may fall below its floor by no more than this share
APART = 0.2  # rows of a file that may be no test
UNPRICED = 0.05  # rows of a file that may have no price
Limit = float | tuple[float, float]
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


def _absolute_errors(r: Records) -> Array:
    return np.asarray(np.abs(np.expm1(r.log_error)))


FIGURES: dict[str, Callable[[Records], float]] = {
    "median": lambda r: float(np.median(_absolute_errors(r))),
    "mean": lambda r: float(np.mean(_absolute_errors(r))),
    "p90": lambda r: float(np.quantile(_absolute_errors(r), 0.9)),
    "bias": lambda r: float(np.expm1(np.mean(r.log_error))),
    "covered": lambda r: float(np.mean(r.covered)),
    "uncovered": lambda r: float(1 - np.mean(r.covered)),
    "width": lambda r: float(np.median(r.half_width)),
}


def figures(records: Records) -> Figures | None:
    """Return the error figures of the priced times and rates, or None where there are none."""
    priced = records.where_true(records.timed)
    shown = ("median", "p90", "bias", "covered", "width")
    return Figures(len(priced), *(FIGURES[name](priced) for name in shown)) if len(priced) else None


def parts(records: Records, by: tuple[str, ...] = BY) -> Iterator[tuple[Key, Records]]:
    """Yield the records of each combination of values, in their order."""
    codes: dict[tuple[object, ...], int] = {}
    keys = zip(*(records.columns[name] for name in by), strict=True)
    index = np.fromiter((codes.setdefault(key, len(codes)) for key in keys), dtype=np.int64, count=len(records))
    order = np.argsort(index, kind="stable")
    edges = np.searchsorted(index[order], np.arange(len(codes) + 1))
    for key, code in sorted(codes.items(), key=lambda item: tuple(map(str, item[0]))):
        yield dict(zip(by, key, strict=True)), records.where_true(order[edges[code] : edges[code + 1]])


def groups(records: Records, by: tuple[str, ...] = BY) -> list[tuple[Key, Figures]]:
    return [(key, figured) for key, part in parts(records, by) if (figured := figures(part))]


def skipped_reasons(records: Records) -> list[tuple[str, int]]:
    return Counter(str(reason) for reason in records.skipped if reason).most_common()


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Yes or no, predicted against measured: how many of those that were, and of those that were not, are called so."""

    kind: str
    yes: int
    yes_right: int
    no: int
    no_right: int


def verdicts(records: Records) -> list[Verdicts]:
    """Count the right verdicts of each kind that is not a time."""
    every = []
    for kind in VERDICTS:
        some = records.where_true(records.priced & (records.kind == kind))
        was, called = some.measured > 0, some.predicted > 0
        if len(some):
            every.append(Verdicts(kind, *(int(np.sum(x)) for x in (was, was & called, ~was, ~was & ~called))))
    return every


@dataclass(frozen=True, slots=True)
class Miss:
    """One row far from its prediction, and what may explain it."""

    kind: str
    source: str
    what: str
    measured: float
    predicted: float
    reason: str


def worst_misses(records: Records) -> list[Miss]:
    """Return the largest errors on rows that were not fitted, one for each source, system and library."""
    tested = records.where_true(records.timed & ~records.fitted)
    if not len(tested):
        return []
    size = np.abs(tested.log_error)
    heads: dict[tuple[str, ...], int] = {}
    for i in np.argsort(-size):
        key = tuple(str(tested.columns[name][i]) for name in ("kind", "source", "system", "library"))
        heads.setdefault(key, int(i))
        if len(heads) == WORST:
            break
    return [_miss(tested, i) for i in heads.values()]


def _miss(records: Records, i: int) -> Miss:
    what = " ".join(filter(None, (str(records.columns[name][i]) for name in ("what", "dtype", "library", "version"))))
    measured, predicted = float(records.measured[i]), float(records.predicted[i])
    return Miss(str(records.kind[i]), str(records.source[i]), what, measured, predicted, reason(records, i))


def reason(records: Records, i: int) -> str:
    """Return the reason that the row states, else what its figures suggest."""
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


class StatedBound(TypedDict):
    """A row of ``bounds.toml``."""

    name: str
    figure: str
    limit: float | list[float]
    by_tp: NotRequired[bool]
    rows: dict[str, bool | float | str | list[bool | float | str]]


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on a figure: ``value`` must not exceed ``limit`` (or lie between two). Without rows there is no verdict."""

    name: str
    limit: Limit
    value: float | None
    n: int
    is_count: bool = False  # else a share
    why: str = ""  # it has no rows, or which of them stand behind its value

    @property
    def ok(self) -> bool | None:
        if self.value is None:
            return None
        low, high = self.limit if isinstance(self.limit, tuple) else (-np.inf, self.limit)
        return bool(low <= self.value <= high)


Wanted = bool | float | str | list[bool | float | str]
"""A value that rows must have, or several of which they have one."""
CHOICES: dict[str, Callable[[Records, Any], Array]] = {
    "size": lambda r, ends: (r.size >= ends[0]) & (r.size <= ends[1]),
    "source": lambda r, part: np.array([part in source.lower() for source in r.source], dtype=bool),
    "ours": lambda r, wanted: np.array([(source == SOURCE) is wanted for source in r.source], dtype=bool),
    "versioned": lambda r, wanted: np.array([bool(version) is wanted for version in r.version], dtype=bool),
}
"""How rows are chosen by keys that are no list of a column's values."""


def share_unpriced(records: Records) -> tuple[float, int]:
    """Return the share of a file's fully described rows that have no price, and how many such rows it has."""
    rows, priced = set(records.row.tolist()), set(records.row[records.priced].tolist())
    untold = set(records.row[(~records.sound & (records.skipped != "")) | (records.apart != "")].tolist())
    return len(rows - priced - untold) / max(1, len(rows)), len(rows)


Shares = Mapping[str, tuple[float, int]]
"""Of each file: a share of its rows, and how many rows it has."""


def judge(records: Records, unpriced: Shares, apart: Shares = MappingProxyType({})) -> list[Bound]:
    """Judge all bounds on rows that were priced and not fitted, the last three on all rows."""
    tested = records.where_true(records.timed & ~records.fitted)
    stated = lab_table("published/scoring/bounds.toml")["bound"]
    return [
        *(_bound(one, tested) for one in stated),
        _worst_file("rows not priced, in the worst file", UNPRICED, unpriced),
        *([_worst_file("rows set apart, in the worst file", APART, apart)] if apart else []),
        Bound("predictions below their physical floor", 0.0, _floor_breaches(records), int(np.sum(records.priced)), is_count=True),
    ]


def _worst_file(name: str, limit: float, of_files: Shares) -> Bound:
    shares = {file: share for file, (share, rows) in of_files.items() if rows}
    worst = max(shares, key=lambda file: shares[file], default="")
    return Bound(name, limit, shares.get(worst), sum(rows for _, rows in of_files.values()), why=worst)


def choose(records: Records, rows: Mapping[str, Wanted]) -> tuple[Records, str]:
    """Return the rows that match the keys of a bound and, where none is left, the key after which none was."""
    chosen, words, why = records, list[str](), ""
    for key, wanted in rows.items():
        mask = CHOICES[key](chosen, wanted) if key in CHOICES else np.isin(chosen.columns[key].astype(object), wanted)
        left = chosen.where_true(mask)
        if not len(left) and not why:
            why = f"no tested row{' of ' + ' and '.join(words) if words else ''} has {_choice_words(key, wanted)}"
        chosen, words = left, [*words, _choice_words(key, wanted)]
    return chosen, why


def _bound(stated: StatedBound, tested: Records) -> Bound:
    chosen, why = choose(tested, stated["rows"])
    figure, limit = FIGURES[stated["figure"]], stated["limit"]
    parts = [chosen.where_true(chosen.tp == tp) for tp in np.unique(chosen.tp)] if stated.get("by_tp") else [chosen]
    value = max(abs(figure(part)) for part in parts) if len(chosen) else None
    return Bound(stated["name"], (limit[0], limit[1]) if isinstance(limit, list) else limit, value, len(chosen), why=why)


def _choice_words(key: str, wanted: Wanted) -> str:
    """Say in words what chooses rows."""
    if key in ("ours", "versioned", "sound"):
        words = {"ours": ("our own sweep (which ships here)", "others' tables"), "versioned": ("a version", "no version")}
        return words.get(key, ("what its source tells whole", "what its source leaves open"))[0 if wanted in (True, [True]) else 1]
    if key == "size" and isinstance(wanted, list):
        return f"size {wanted[0]:,.0f} to {wanted[1]:,.0f}"
    return f"{key} {' or '.join(map(str, wanted)) if isinstance(wanted, list) else wanted}"


def _floor_breaches(records: Records) -> float | None:
    """Count the predictions below the floor. A rate's floor is the least time of a token."""
    if not np.any(records.priced):
        return None
    rates = np.array([kind in RATES for kind in records.kind], dtype=bool)
    with np.errstate(all="ignore"):
        seconds = np.where(rates, 1 / records.predicted, records.predicted)
    return float(np.sum(records.priced & (seconds < records.floor * (1 - ROUNDING))))


TRANSFER = "published/scoring/transfer.toml"


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A line of the scoreboard at home, None where it has no rows."""

    part: str
    name: str
    errors: Figures | None


@dataclass(frozen=True, slots=True)
class Fold:
    """Errors of a metric on models of one kind, with something left out of the fits in turn ("": nothing was)."""

    metric: str
    models: str
    left_out: str
    n: int
    median: float
    covered: float
    half_width: float


def score_lines(records: Records) -> list[ScoreLine]:
    tested = records.where_true(records.timed & ~records.fitted)
    lines = lab_table("published/scoring/scoreboard.toml")["line"]
    return [ScoreLine(one["part"], one["name"], figures(choose(tested, one["rows"])[0])) for one in lines]


def transfer_folds() -> list[Fold]:
    """Return the folds of ``transfer.toml`` in its order, none where the file is missing."""
    if not (Path(__file__).parents[2] / TRANSFER).is_file():
        return []
    return [record_from(Fold, one) for one in lab_table(TRANSFER)["fold"]]
