"""Published figures before and after a technique: how each row is read, and which of their sources are kept apart.

The table is a CSV (``id``, ``kind``, ``metric``, ``better``, ``baseline``, ``value``, ``source`` …). What its rows ask stands in
``techniques.toml`` beside this file, by id and without figures: every row has a reading there, or what it lacks for one.
"""

import csv
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import cast

from commtax.catalog.loader import plain_record
from commtax_lab import lab_table

HELD_SHARE = 3  # one source in so many is held out
READ_KINDS = ("end to end", "op", "ratio only")
"""Kinds of rows that are read: those with a figure before and one after, of serving."""
OWN = ("verb", "figure", "model", "cluster", "before", "after", "assumed", "fitted", "seen", "judged", "lines", "each")
"""What a row may say for itself instead of the reading that it belongs to; all else are options of both sides."""
TOLD = ("id", "technique", "engine", "model", "plan", "workload", "kind", "confidence", "metric", "source")
"""Columns that are taken as they are."""
Options = Mapping[str, object]


def held_out(source: str) -> bool:
    """Return whether a source was held out while techniques were modelled: its SHA-256 is in the lowest third.

    >>> held_out("https://github.com/vllm-project/vllm/pull/39080"), held_out("https://github.com/vllm-project/vllm/pull/19744")
    (True, False)
    """
    return int(hashlib.sha256(source.encode()).hexdigest(), 16) * HELD_SHARE < 2**256


def load_of(options: Options, name: str) -> float:
    """Return an option that is a number."""
    value = options[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"techniques.toml: {name} is no number")
    return value


@dataclass(frozen=True, slots=True)
class TechniqueReading:
    """The questions of one row, before and after."""

    id: str
    verb: str
    cluster: str
    model: str = ""
    figure: str = "step_s"
    both: Options = field(default_factory=dict)
    before: Options = field(default_factory=dict)
    after: Options = field(default_factory=dict)
    lines: tuple[str, ...] = ()  # of a bill, that are summed
    each: float = 1.0  # … and divided by this
    judged: str = "ratio"  # after: the figure after is compared by itself
    assumed: str = ""
    fitted: str = ""  # what was fitted on which of these rows
    seen: str = ""  # … before their source was held out

    @property
    def unseen(self) -> bool:
        """Whether no constant knows its figures."""
        return not self.fitted and not self.seen

    @property
    def sides(self) -> tuple[Options, Options]:
        """Options before and after."""
        return {**self.both, **self.before}, {**self.both, **self.after}

    def scaled(self, names: tuple[str, ...], factor: float) -> "TechniqueReading":
        """Return the same reading at another load, with sizes kept whole."""
        return replace(self, both={**self.both, **{name: max(1, round(load_of(self.both, name) * factor)) for name in names}})


@dataclass(frozen=True, slots=True)
class FlipGroup:
    """Rows of one technique at several loads, that win at some and lose at others."""

    title: str
    rows: tuple[str, ...]
    along: tuple[str, ...]  # options that say the load


@dataclass(frozen=True, slots=True)
class TechniqueBars:
    """The nearness that predictions need, and the share that must have it."""

    near: float
    factor: Mapping[str, float]  # by kind of row
    flip: float
    priced: int
    sign: float
    within: Mapping[str, float]
    flipped: float


@dataclass(frozen=True, slots=True)
class TechniqueReadings:
    """All that is read, by row."""

    by_row: Mapping[str, TechniqueReading]
    refused: Mapping[str, str]  # what is missing
    flips: tuple[FlipGroup, ...]
    anchors: tuple[str, ...]  # rows whose figures are compared by themselves
    anchored_within: float
    missed: Mapping[str, str]  # why predictions of rows miss
    bars: TechniqueBars
    units: Mapping[str, float]

    def unit(self, metric: str) -> float:
        """Return what a figure in seconds, or per second, is multiplied by to be in a metric's unit."""
        return next((factor for begin, factor in self.units.items() if metric.startswith(begin)), 1.0)


@lru_cache(maxsize=1)
def technique_readings() -> TechniqueReadings:
    """Read ``techniques.toml``. A row that is read twice is an error."""
    table = lab_table("published/techniques.toml")
    readings = [pair for group in table["reading"] for pair in _group_rows(group)]
    refused = [(row, entry["missing"]) for entry in table["refused"] for row in entry["rows"]]
    ids = [row for row, _ in (*readings, *refused)]
    if twice := {row for row in ids if ids.count(row) > 1}:
        raise ValueError(f"techniques.toml reads {', '.join(sorted(twice))} twice")
    return TechniqueReadings(
        by_row=dict(readings),
        refused=dict(refused),
        flips=tuple(FlipGroup(one["title"], tuple(one["rows"]), tuple(one["along"])) for one in table["flip"]),
        anchors=tuple(table["anchors"]["rows"]),
        anchored_within=float(table["anchors"]["within"]),
        missed=table["missed"],
        bars=TechniqueBars(**table["bars"]),
        units=table["units"],
    )


def _group_rows(group: Options) -> Iterator[tuple[str, TechniqueReading]]:
    common = {name: value for name, value in group.items() if name not in ("rows", "both")}
    shared, rows = (cast(Mapping[str, Options], group.get(name, {})) for name in ("both", "rows"))
    for row, row_settings in rows.items():
        settings = {**common, **{name: value for name, value in row_settings.items() if name in OWN}}
        both = {**shared, **{name: value for name, value in row_settings.items() if name not in OWN}}
        yield row, plain_record(TechniqueReading, {"id": row, "both": both, **settings}, "techniques.toml")


@dataclass(frozen=True, slots=True)
class TechniqueRow:
    """One row of the table. Of a source that is held out, figures are there only where they were asked for."""

    id: str
    technique: str
    engine: str
    model: str
    chip: str
    plan: str
    workload: str
    kind: str
    confidence: str
    metric: str
    source: str
    lower: bool  # whether less is better
    baseline: float
    value: float

    @property
    def held(self) -> bool:
        return held_out(self.source)

    @property
    def speedup(self) -> float:
        """Above 1 is better."""
        return self.baseline / self.value if self.lower else self.value / self.baseline


def read_technique_rows(path: Path, *, held: bool = False) -> list[TechniqueRow]:
    """Return the rows to read, those of held-out sources too with ``held``."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_row(cells, held) for cells in csv.DictReader(file) if cells["kind"] in READ_KINDS]


def _row(cells: Mapping[str, str], held: bool) -> TechniqueRow:
    shown = held or not held_out(cells["source"])
    words = {name: cells[name] for name in TOLD}
    chip = f"{cells['gpus']}x {cells['chip']}" if cells["gpus"] not in ("", "1") else cells["chip"]
    baseline, value = (float(cells[name]) if shown and cells[name] else math.nan for name in ("baseline", "value"))
    return TechniqueRow(chip=chip, lower=cells["better"] == "lower", baseline=baseline, value=value, **words)
