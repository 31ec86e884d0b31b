"""Predictions against published measurements: how far each answer is off, and whether the stated bounds hold.

``check(folder)`` prices every row of a folder of tables (or of the table that ships here), judges, and writes them if asked.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commtax import counting
from commtax.files import refuse_overwriting, replace_when_written
from commtax.statement import Refusal
from commtax_lab.published import collective_rows as curves
from commtax_lab.published import inference, step_rows, sweep, training
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.rows import read
from commtax_lab.published.scoring import excluded_rows, kernel_scores, open_loop, serving_scores
from commtax_lab.published.scoring.predicting import (
    predict_curve,
    predict_inference,
    predict_mixed_step,
    predict_sweep_row,
    predict_training,
)
from commtax_lab.published.scoring.prediction_columns import Records, answers, join_records
from commtax_lab.published.scoring.rival_comparison import RivalComparison, compare_with_rival, read_rival
from commtax_lab.published.scoring.statistics import Bound, judge, share_unpriced
from commtax_lab.published.tables import ADDED, KINDS, Table, folder_tables, headers, paths, shipped_tables, usual_columns

APART = ("serving_runs", "steps")
"""Kinds of tables of which rows may be set apart."""
SWEPT_CHIP = "h200-sxm"  # that our own sweep ran on


@dataclass(frozen=True, slots=True)
class Report:
    records: Records
    files: Mapping[str, tuple[int, int]]  # rows, and how many of them were priced
    bounds: tuple[Bound, ...]
    apart: tuple[tuple[str, int], ...] = ()  # rules by which rows are no test, and how many
    compared: RivalComparison | None = None  # with another predictor, on the same rows

    @property
    def ok(self) -> bool:
        return all(bound.ok is not False for bound in self.bounds)


def check(folder: Path | None = None, *, only: str = "", rows_to: Path | None = None, rival: Path | None = None) -> Report:
    """Price all rows, or those of ``only`` one kind of table. ``rows_to`` is a CSV of every input row with what was added.

    ``rival``: a CSV of another predictor's figures for the same rows, by their ids.
    """
    other = read_rival(rival) if rival else None
    if only and only not in KINDS:
        raise Refusal(f"only '{only}': one of {', '.join(KINDS)}", "only", KINDS)
    if folder is not None and not folder.is_dir():
        raise Refusal(f"data '{folder}': no such folder", "data")
    if folder and rows_to:
        refuse_overwriting(rows_to, (path for _, path in paths(folder)), "rows")
    parts, files, unpriced, away = [], {}, {}, {}
    runs: dict[str, bool] = {}
    rules = Counter[str]()
    with _rows_file(rows_to, headers(folder, only)) if rows_to else nullcontext() as write:
        for table in _counted(list(folder_tables(folder, only) if folder else shipped_tables(only))):
            part = excluded_rows.exclude_repeated(ANSWERS[table.kind](table), runs)
            files[table.name] = (len(table.rows), len(set(part.row[part.priced].tolist())))
            unpriced[table.name] = share_unpriced(part)
            rules += excluded_rows.count_by_rule(part)
            if table.kind in APART:
                away[table.name] = excluded_rows.excluded_share(part)
            if write:
                write(table, part)
            parts.append(part)
    if not parts:
        of = f" of {only}" if only else ""
        raise Refusal(f"data '{folder}': no table{of} is here; a CSV with columns such as {usual_columns(only)} is one", "data")
    records = join_records(parts)
    bounds = tuple(judge(records, unpriced, away))
    return Report(records, files, bounds, tuple(rules.most_common()), compare_with_rival(records, other) if other else None)


def _counted(tables: Sequence[Table]) -> Iterator[Table]:
    """Yield one table after the other, each counted as so much of the work as it has rows."""
    whole, before = sum(len(table.rows) for table in tables) or 1, 0
    for table in tables:
        with counting.part(before / whole, (before + len(table.rows)) / whole):
            yield table
        before += len(table.rows)


def _kernel_answers(table: Table) -> Records:
    """Answer a folder's file of one kind of kernel on one chip, or the rows of several that ship here."""
    if not table.ships:
        files = kernel_tables.tables_of_file(table.name, table.columns, table.rows)
        return join_records([_with_places(kernel_scores.answers(part, table.name), index) for index, part in files])
    rows = table.dicts()
    parts = []
    for index, part in kernel_tables.tables_of_rows(rows):
        source = np.array([rows[i]["source"] for i in index], dtype=object)
        parts.append(_with_places(kernel_scores.answers(part, source), index))
    return join_records(parts)


def _with_places(part: Records, index: list[int]) -> Records:
    """Add to the rows of a part of a file their places in that file."""
    return Records({**part.columns, "row": np.array(index, dtype=int)})


ANSWERS: dict[str, Callable[[Table], Records]] = {
    "collectives": lambda table: answers(read(table.dicts(), curves.describe, curves.ask), predict_curve, same=lambda c: c),
    "serving_runs": serving_scores.score_table,
    "inference": lambda table: answers(read(table.dicts(), inference.describe, inference.ask), predict_inference),
    "training_runs": lambda table: answers(training.row_questions(table.dicts()), predict_training),
    "steps": lambda table: excluded_rows.exclude_impossible(
        answers(read(table.dicts(), step_rows.describe, step_rows.ask), predict_mixed_step)
    ),
    "open_loop_runs": open_loop.score_table,
    "kernels": _kernel_answers,
    "h200": lambda table: answers(sweep.read([sweep.row_of_cells(row) for row in table.dicts()], SWEPT_CHIP), predict_sweep_row),
}


@contextmanager
def _rows_file(path: Path, header: Sequence[str]) -> Iterator[Callable[[Table, Records], None]]:
    """Return a writer of every input row with its predictions to a file that appears only when complete."""
    columns = ["file", *(c for c in header if c not in ("file", *ADDED)), *ADDED]

    def write(table: Table, part: Records) -> None:
        place = {name: i for i, name in enumerate(table.header)}
        copied = [place.get(name, -1) for name in columns[1 : -len(ADDED)]]  # -1: the empty cell that each row gets
        added = zip(*(map(_cell_text, part.columns[name].tolist()) for name in ADDED), strict=True)
        for index, values in zip(part.row.tolist(), added, strict=True):
            cells = [*table.rows[index][: len(place)], ""]
            lines.writerow([table.name, *(cells[i] for i in copied), *values])

    with (
        replace_when_written(path, "rows") as place,
        gzip.open(place, "wt", newline="") if path.suffix == ".gz" else place.open("w", newline="") as file,
    ):
        lines = csv.writer(file)
        lines.writerow(columns)
        yield write


def _cell_text(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if value == value else ""
    return str(value)
