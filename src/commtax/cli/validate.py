"""``commtax validate``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from commtax.cli.options import json_option
from commtax.cli.output import print_json, terminal
from commtax.readers.published.tables import KINDS
from commtax.report import validation
from commtax.report.plots import check_plot
from commtax.statement import Refusal
from commtax.validate import check

FILE = click.Path(path_type=Path)


@click.command("validate")
@click.option("--data", default=None, metavar="DIR", type=FILE, help="A folder of tables instead of ours.")
@click.option("--only", default="", metavar="KIND", help=f"One kind of table: {', '.join(KINDS)}.")
@click.option("--rows", default=None, metavar="CSV", type=FILE, help="Write every input row with its prediction.")
@click.option("--plot", default=None, metavar="FILE", type=FILE, help="Predicted against measured: .svg, .png, .pdf.")
@json_option
def validate_command(data: Path | None, only: str, rows: Path | None, plot: Path | None, as_json: bool) -> None:
    """Predicted against published figures, on rows that nothing was fitted on; exit 1 when a stated bound is exceeded.

    commtax validate --data DIR --rows all.csv
    """
    if plot:
        check_plot(plot)
    report = check(data, only=only, rows_to=rows)
    reasons = report.records.skipped.tolist()
    if all(reasons):
        why = next(iter(reasons), "the files have no rows")
        raise Refusal(f"data '{data}': nothing could be priced; first reason: {why}", "data")
    if plot:
        validation.plot_kinds(report, plot)
    if as_json:
        print_json(validation.validation_document(report))
    else:
        validation.show_validation(terminal(), report)
    sys.exit(0 if report.ok else 1)
