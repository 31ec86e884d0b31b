"""Figures of answers as tables show them; ``figures.toml`` says what each is and which tables list it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from math import isnan

from commtax.files import table
from commtax.judgement.confidence import percent
from commtax.records import dataclass, record_from, replace
from commtax.report.documents import Record, facts, look_up, value_of
from commtax.report.drawing import Console
from commtax.report.tables import show_table
from commtax.units import DAY_S, format_bytes, format_duration, format_mean, format_money, format_seconds


def million(usd: float | None) -> str:
    """Write dollars per million tokens, or nothing where no price is known."""
    return "" if usd is None else f"{usd:,.2f}" if usd >= 0.1 else f"{usd:.2g}"


# How a terminal writes a figure of each unit, from its value and digits, and what stands for none
UNITS: Mapping[str, tuple[Callable[..., str], str]] = {
    "seconds": (lambda value, _: format_seconds(value), "–"),
    "days": (lambda value, _: format_duration(value * DAY_S), "–"),
    "rate": (lambda value, digits: f"{value:,.{digits}f}", "–"),
    "count": (lambda value, _: f"{int(value):,}", "–"),
    "mean": (lambda value, _: format_mean(value), "–"),
    "share": (lambda value, digits: f"{value:.{digits}%}", ""),
    "growth": (lambda value, _: f"{value:+.0%}", ""),
    "odds": (lambda value, _: percent(value), ""),
    "bytes": (lambda value, _: format_bytes(value), ""),
    "usd": (lambda value, digits: f"{value:,.{digits}f}" if digits else million(value), ""),
    "money": (lambda value, _: format_money(value), ""),
    "yes": (lambda value, _: "yes" if value else "no", ""),
    "text": (lambda value, _: str(value), ""),
}
PAGE_UNITS = {"mean": "count", "odds": "share", "growth": "share", "money": "usd"}  # units that the page writes as others
Rows = Sequence[Mapping[str, object]]
NONE: Mapping[str, Sequence[object]] = {}
RANGE = ".range"  # behind a key: the 80% range of that figure


@dataclass(frozen=True, slots=True)
class AnswerFigure:
    """What a figure of an answer is."""

    key: str
    name: str
    unit: str
    help: str
    title: str = ""
    column: str = ""
    digits: int = 0
    less: bool = False
    none: str | None = None
    at: str = ""

    @property
    def page_unit(self) -> str:
        return PAGE_UNITS.get(self.unit, self.unit)

    @property
    def heading(self) -> str:
        return ("" if self.unit in ("text", "yes") else ">") + (self.column or self.title or self.name)

    def write(self, value: object) -> str:
        """Write a value as a terminal does, a range of two as one."""
        write, nothing = UNITS[self.unit]
        ends = value if isinstance(value, tuple) else (value,)
        if any(end is None or (isinstance(end, float) and isnan(end)) for end in ends):
            return nothing if self.none is None else self.none
        return "-".join(write(end, self.digits) for end in ends)


@dataclass(frozen=True, slots=True)
class FigureTable:
    """The figures that a table lists."""

    record: str = ""
    columns: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    page: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    minor: tuple[str, ...] = ()
    none: str | None = None
    but: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def figure(self, key: str) -> AnswerFigure:
        one = figures()[key]
        return replace(one, **{"none": one.none if self.none is None else self.none, **self.but.get(key, {})})

    def heading(self, key: str) -> str:
        if not key.endswith(RANGE):
            return self.figure(key).heading
        return ">80% range" if self.figure(key.removesuffix(RANGE)).unit == "seconds" else ">range"

    def cells(self, rows: Rows, left_out: Iterable[str] = (), ready: Mapping[str, Sequence[object]] = NONE) -> dict[str, list[str]]:
        """Return the columns of a terminal. Rows are what values are looked up in, but for ``ready`` figures, which have them."""
        columns = {key: ready.get(key) or [self._value(key, row) for row in rows] for key in self.columns if key not in left_out}
        return {self.heading(key): list(map(self.figure(key.removesuffix(RANGE)).write, x)) for key, x in columns.items()}

    def show(self, console: Console, rows: Rows) -> None:
        cells = ([self.figure(key.removesuffix(RANGE)).write(self._value(key, row)) for key in self.columns] for row in rows)
        show_table(console, list(map(self.heading, self.columns)), cells, self.spare_headings())  # headings may be alike

    def words(self, parts: Record) -> list[str]:
        """Return the figures as parts of a sentence, those that have a value."""
        figures = ((self.figure(key), self._value(key, parts)) for key in self.columns)
        return [f"{one.name} {one.write(value)}" for one, value in figures if value is not None]

    def large_figures(self, parts: Record) -> list[Record]:
        """Return the figures that the page shows above a table, and how it writes them."""
        figures = ((self.figure(key), self._value(key, parts)) for key in self.large)
        return [facts(one, "key", "name", "help") | {"kind": one.page_unit, "value": value} for one, value in figures]

    def spare_headings(self, left_out: Iterable[str] = ()) -> list[str]:
        """Return the names of columns that a narrow terminal does without."""
        return [self.heading(key).lstrip(">") for key in self.spare if key not in left_out]

    def _value(self, key: str, row: Mapping[str, object]) -> object:
        """Look a value up: by the record of the table, or in rows that are such records."""
        if key.endswith(RANGE):
            stem = key.removesuffix(RANGE).removesuffix("_s")
            return tuple(self._value(f"{stem}_{end}_s", row) for end in ("low", "high"))
        if not self.record:
            return row[key]
        path = figures()[key].at if key in figures() else ""
        return look_up(path, row) if path else value_of(self.record, key, row)


@cache
def figures() -> Mapping[str, AnswerFigure]:
    """Return every figure by its key."""
    return {key: record_from(AnswerFigure, {"key": key, **row}) for key, row in table("report/figures.toml")["figures"].items()}


@cache
def figure_table(name: str) -> FigureTable:
    row = table("report/figures.toml")["tables"][name]
    return record_from(FigureTable, {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
