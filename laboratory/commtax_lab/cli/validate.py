"""``commtax validate``."""

from pathlib import Path

import click

from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.report.plots import check_plot
from commtax.statement import Refusal
from commtax_lab.published.tables import KINDS
from commtax_lab.report import validation
from commtax_lab.scoring import check


@click.command("validate", cls=Verb)
@add_verb_options("validate", only={"help": f"One kind of table: {', '.join(KINDS)}."})
def validate_command(
    data: Path | None, only: str, rows: Path | None, compare: Path | None, plot: Path | None, as_json: bool
) -> None:
    """Predicted against published figures, on rows that nothing was fitted on; exit 1 when a stated bound is exceeded."""
    if plot:
        check_plot(plot)
    report = check(data, only=only, rows_to=rows, rival=compare)
    reasons = report.records.skipped.tolist()
    if all(reasons):
        why = next(iter(reasons), "the files have no rows")
        raise Refusal(f"data '{data}': nothing could be priced; first reason: {why}", "data")
    if plot:
        validation.plot_kinds(report, plot)
    code = 0 if report.ok else 1
    Output(as_json).answer(validation.validation_document, validation.show_validation, report, code=code)
