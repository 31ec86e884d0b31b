"""``commtax validate``."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.report.documents import facts
from commtax.report.drawing import Console
from commtax.report.plots import COLOURS, check_plot, picture, style
from commtax.statement import Refusal
from commtax.units import format_seconds
from commtax_lab.published.scoring import Report, check
from commtax_lab.published.scoring.prediction_columns import Records
from commtax_lab.published.scoring.rival_comparison import PredictorErrors, RivalComparison
from commtax_lab.published.scoring.statistics import (
    RATES,
    Bound,
    Figures,
    figures,
    groups,
    score_lines,
    skipped_reasons,
    verdicts,
    worst_misses,
)
from commtax_lab.published.tables import KINDS


@click.command("validate", cls=Verb)
@add_verb_options("validate", only={"help": f"One kind of table: {', '.join(KINDS)}."})
def validate_command(
    data: Path | None, only: str, rows: Path | None, compare: Path | None, plot: Path | None, as_json: bool
) -> None:
    """Compare predictions with published figures that nothing was fitted on. Exit 1 if a stated bound is exceeded."""
    if plot:
        check_plot(plot)
    report = check(data, only=only, rows_to=rows, rival=compare)
    reasons = report.records.skipped.tolist()
    if all(reasons):
        why = next(iter(reasons), "the files have no rows")
        raise Refusal(f"data '{data}': nothing could be priced; first reason: {why}", "data")
    if plot:
        plot_kinds(report, plot)
    code = 0 if report.ok else 1
    Output(as_json).answer(validation_document, show_validation, report, code=code)


SHOWN = ("kind", "system", "library", "mode")
MOST_POINTS = 120  # of one panel in a picture


def validation_document(report: Report) -> dict[str, object]:
    kinds: dict[str, type] = {"tp": int, "fitted": bool}  # of columns that are not text
    return {
        "schema": "commtax.validate/1",
        "ok": report.ok,
        "files": [{"name": name, "rows": rows, "priced": priced} for name, (rows, priced) in report.files.items()],
        "bounds": [facts(b, "name", "limit", "value", "n", "ok", "why") for b in report.bounds],
        "groups": [
            {**{name: kinds.get(name, str)(value) for name, value in key.items()}, **asdict(figured)}
            for key, figured in groups(report.records)
        ],
        "scoreboard": [
            {"part": line.part, "name": line.name, **asdict(line.errors)} for line in score_lines(report.records) if line.errors
        ],
        "apart": [{"rule": rule, "n": n} for rule, n in report.apart],
        "verdicts": [asdict(one) for one in verdicts(report.records)],
        "skipped": [{"reason": reason, "n": n} for reason, n in skipped_reasons(report.records)],
        "worst": [asdict(miss) for miss in worst_misses(report.records)],
        **({"compared": asdict(report.compared)} if report.compared else {}),
    }


def show_validation(console: Console, report: Report) -> None:
    records = report.records
    judged = [_verdicts_table(records)] if verdicts(records) else []
    for table in (_bounds_table(report), _scoreboard_table(records), _errors_table(records), *judged, _worst_table(records)):
        console.print(table)
    if report.compared:
        _show_compared(console, report.compared)
    for bound in report.bounds:
        if bound.ok is False and bound.why:
            console.print(f"{bound.name}: {bound.why}")
    for why, names in Counter(b.why for b in report.bounds if b.ok is None).most_common():
        console.print(f"{names} {'bound has' if names == 1 else 'bounds have'} no rows: {why}")
    rows, priced = (sum(x) for x in zip(*report.files.values(), strict=True))
    fitted = int(np.sum(report.records.fitted))
    console.print(f"{priced:,} of {rows:,} rows priced; constants were fitted on {fitted:,} of the figures")
    for rule, n in report.apart:
        console.print(f"  {n:,} set apart: {rule}")
    for reason, n in skipped_reasons(report.records):
        console.print(f"  {n:,} not priced: {reason}")
    console.print(Text("every stated bound holds", "bold") if report.ok else Text("a stated bound is exceeded", "bold red"))


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str | Text]], caption: str | None = None) -> Table:
    """Return a framed table whose columns that start with '>' are right-aligned."""
    table = Table(title=title, title_justify="left", caption=caption)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _bounds_table(report: Report) -> Table:
    holds: dict[bool | None, str | Text] = {False: Text("NO", "red"), True: "yes", None: "no rows"}
    rows = [(b.name, limit_text(b), value_text(b), f"{b.n:,}", holds[b.ok]) for b in report.bounds]
    return _table("Stated bounds, on rows that nothing was fitted on", ("bound", ">limit", ">value", ">rows", ">holds"), rows)


def _show_compared(console: Console, c: RivalComparison) -> None:
    cells = [(*_error_cells(d.ours), *_error_cells(d.rival), f"{d.wins / d.n:.0%}" if d.n else "-") for d in c.duels]
    rows = [(d.kind, f"{d.by} {d.value}".strip(), f"{d.n:,}", *errors) for d, errors in zip(c.duels, cells, strict=True)]
    columns = ("kind", "rows of", ">rows", ">median", ">p90", ">bias", ">its median", ">its p90", ">its bias", ">nearer")
    console.print(_table(f"Beside {c.name}, on the rows that both priced", columns, rows, "nearer: rows on which ours is"))
    units = "".join(f"; {kind} read as {unit}, which is nearer to what was measured" for kind, unit in c.units.items())
    counts = f"{c.matched:,} of its {c.ids:,} ids are compared; {c.unknown:,} are no row here, {c.unpriced:,} have no price of ours"
    console.print(f"{counts}, {c.unread:,} figures are no number{units}")


def _error_cells(o: PredictorErrors) -> tuple[str, ...]:
    return tuple("-" if x != x else f"{x:{form}}" for x, form in ((o.median_ape, ".1%"), (o.p90_ape, ".1%"), (o.bias, "+.1%")))


def _verdicts_table(records: Records) -> Table:
    """Tabulate how many yes-or-no verdicts of each kind are right."""
    rows = [(v.kind, _share_text(v.yes_right, v.yes), _share_text(v.no_right, v.no)) for v in verdicts(records)]
    return _table("Verdicts that are right", ("kind", ">where it was so", ">where it was not"), rows)


def _share_text(right: int, every: int) -> str:
    return f"{right:,} of {every:,}" if every else "-"


def _scoreboard_table(records: Records) -> Table:
    rows = [(line.part, line.name, *figure_cells(line.errors)) for line in score_lines(records) if line.errors]
    columns = ("", "what", ">rows", ">median", ">p90", ">bias", ">in range", ">half-width")
    return _table("At one look, on rows that nothing was fitted on", columns, rows)


def _errors_table(records: Records) -> Table:
    """Tabulate errors by kind, system and library, on rows that were not fitted."""
    tested = groups(records.where_true(~records.fitted), SHOWN)
    rows = [(*(_shorten(str(key[name])) for name in SHOWN), *figure_cells(figured)) for key, figured in tested]
    columns = (*SHOWN, ">rows", ">median", ">p90", ">bias", ">in range", ">half-width")
    return _table("Errors", columns, rows, "bias: geometric mean of predicted over measured; range: 80 %")


def _worst_table(records: Records) -> Table:
    rows = [(m.kind, m.what, quantity(m.kind, m.measured), quantity(m.kind, m.predicted), m.reason) for m in worst_misses(records)]
    columns = ("kind", "row", ">measured", ">predicted", "likely reason")
    return _table("The worst rows (one a source, system and library)", columns, rows)


def limit_text(bound: Bound) -> str:
    if isinstance(bound.limit, tuple):
        return f"{bound.limit[0]:.0%} - {bound.limit[1]:.0%}"
    return f"{bound.limit:.0f}" if bound.is_count else f"{bound.limit:.0%}"


def value_text(bound: Bound) -> str:
    return "-" if bound.value is None else f"{bound.value:.0f}" if bound.is_count else f"{bound.value:.1%}"


def _shorten(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:33]}…"


def figure_cells(f: Figures) -> tuple[str, ...]:
    return (f"{f.n:,}", f"{f.median_ape:.1%}", f"{f.p90_ape:.1%}", f"{f.bias:+.1%}", f"{f.covered:.0%}", f"{f.width:.1%}")


def quantity(kind: str, value: float) -> str:
    return f"{value:,.3g} {RATES[kind]}" if kind in RATES else format_seconds(value)


def plot_kinds(report: Report, path: Path, kinds: tuple[str, ...] = ()) -> None:
    """Plot predicted over measured, log-log, one panel per kind: circles were not fitted, crosses were."""
    records = report.records
    shown = kinds or tuple(k for k in dict.fromkeys(records.kind.tolist()) if figures(records.where_true(records.kind == k)))
    if not shown:
        raise Refusal("plot: no row was priced", "plot")
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)

    def draw(figure: Any) -> None:
        import matplotlib as mpl

        mpl.rcParams["svg.fonttype"] = "none"
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for panel, kind in zip(panels, shown, strict=False):
            _draw_panel(panel, records.where_true((records.kind == kind) & records.timed), kind)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()

    picture(path, draw, (4.2 * columns, 4.0 * lines), 110)


def _draw_panel(panel: Any, records: Records, kind: str) -> None:
    factor = 1.0 if kind in RATES else 1e3
    ends = np.array([records.measured.min(), records.measured.max()]) * factor
    panel.plot(ends, ends, color="grey", linewidth=0.8)
    for band in (0.8, 1.25):
        panel.plot(ends, ends * band, color="grey", linewidth=0.5, linestyle=":")
    systems = list(dict.fromkeys(records.where_true(~records.fitted).system.tolist()))[: len(COLOURS)]
    for index, system in enumerate(systems):
        drawn = _thin_out(records.where_true((records.system == system) & ~records.fitted), MOST_POINTS // len(systems))
        signs = style(index, linestyle="-", label=_shorten(str(system))[:24])
        panel.scatter(drawn.measured * factor, drawn.predicted * factor, alpha=0.6, s=7, linewidths=0, **signs)
    fitted = _thin_out(records.where_true(records.fitted), MOST_POINTS // 4)
    if len(fitted):
        cross = {"color": "black", "marker": "x", "s": 5, "linewidths": 0.4}
        panel.scatter(fitted.measured * factor, fitted.predicted * factor, label="fitted", **cross)
    unit = RATES.get(kind, "ms")
    panel.set(xscale="log", yscale="log", title=kind, xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    panel.legend(fontsize=6, loc="upper left")


def _thin_out(records: Records, most: int) -> Records:
    """Choose evenly spaced rows, to keep the picture small."""
    return records if len(records) <= most else records.where_true(np.linspace(0, len(records) - 1, most).astype(int))
