"""How good the predictions are: bounds, errors by source, the worst rows; tables, JSON and log-log pictures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from commtax.report.documents import Record, facts
from commtax.report.plots import COLOURS, MARKERS, SUFFIXES, save
from commtax.statement import Refusal
from commtax.units import format_seconds
from commtax.validate import Report
from commtax.validate.records import Records
from commtax.validate.statistics import RATES, Bound, Figures, figures, groups, skipped, worst

SHOWN = ("kind", "system", "library", "mode")
MOST_POINTS = 120  # of one panel in a picture


def validation_document(report: Report) -> Record:
    kinds: dict[str, type] = {"tp": int, "fitted": bool}  # of columns that are not text
    return {
        "schema": "commtax.validate/1",
        "ok": report.ok,
        "files": [{"name": name, "rows": rows, "priced": priced} for name, (rows, priced) in report.files.items()],
        "bounds": [facts(b, "name", "limit", "value", "n", "ok") for b in report.bounds],
        "groups": [
            {**{name: kinds.get(name, str)(value) for name, value in key.items()}, **asdict(figured)}
            for key, figured in groups(report.records)
        ],
        "skipped": [{"reason": reason, "n": n} for reason, n in skipped(report.records)],
        "worst": [asdict(miss) for miss in worst(report.records)],
    }


def show_validation(console: Any, report: Report) -> None:
    console.print(bounds_table(report))
    console.print(groups_table(report.records))
    console.print(worst_table(report))
    rows, priced = (sum(x) for x in zip(*report.files.values(), strict=True))
    fitted = int(np.sum(report.records.fitted))
    console.print(f"{priced:,} of {rows:,} rows priced; constants were fitted on {fitted:,} of the figures")
    for reason, n in skipped(report.records):
        console.print(f"  {n:,} not priced: {reason}")
    console.print(Text("every stated bound holds", "bold") if report.ok else Text("a stated bound is exceeded", "bold red"))


def _table(title: str, *columns: str) -> Table:
    """Columns that start with '>' are right-aligned."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return table


def bounds_table(report: Report) -> Table:
    table = _table("Stated bounds, on rows that nothing was fitted on", "bound", ">limit", ">value", ">rows", ">holds")
    for b in report.bounds:
        verdict = Text("NO", "red") if b.ok is False else "yes" if b.ok else "no rows"
        table.add_row(b.name, limit_text(b), value_text(b), f"{b.n:,}", verdict)
    return table


def limit_text(bound: Bound) -> str:
    if isinstance(bound.limit, tuple):
        return f"{bound.limit[0]:.0%} - {bound.limit[1]:.0%}"
    return f"{bound.limit:.0f}" if bound.is_count else f"{bound.limit:.0%}"


def value_text(bound: Bound) -> str:
    return "-" if bound.value is None else f"{bound.value:.0f}" if bound.is_count else f"{bound.value:.1%}"


def groups_table(records: Records) -> Table:
    """Errors by kind, system and library, on rows that were not fitted."""
    table = _table("Errors", *SHOWN, ">rows", ">median", ">p90", ">bias", ">in range", ">half-width")
    table.caption = "bias: geometric mean of predicted over measured; range: 80 %"
    for key, value in groups(records.where_true(~records.fitted), SHOWN):
        table.add_row(*(_short(str(key[name])) for name in SHOWN), *figure_cells(value))
    return table


def _short(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:33]}…"


def figure_cells(f: Figures) -> tuple[str, ...]:
    return (f"{f.n:,}", f"{f.median_ape:.1%}", f"{f.p90_ape:.1%}", f"{f.bias:+.1%}", f"{f.covered:.0%}", f"{f.width:.1%}")


def worst_table(report: Report) -> Table:
    title = "The worst rows (one a source, system and library)"
    table = _table(title, "kind", "row", ">measured", ">predicted", "likely reason")
    for miss in worst(report.records):
        table.add_row(miss.kind, miss.what, quantity(miss.kind, miss.measured), quantity(miss.kind, miss.predicted), miss.reason)
    return table


def quantity(kind: str, value: float) -> str:
    return f"{value:,.3g} tok/s" if kind in RATES else format_seconds(value)


def check_plot(path: Path) -> None:
    """Before hours of rows: can this picture be drawn at all?"""
    if path.suffix not in SUFFIXES:
        raise Refusal(f"plot '{path}': the name must end in one of {', '.join(SUFFIXES)}", "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Refusal("plot: pictures need matplotlib (pip install 'commtax[plot]')", "plot") from None


def plot_kinds(report: Report, path: Path, kinds: tuple[str, ...] = ()) -> None:
    """Predicted over measured, log-log, one panel a kind: circles were not fitted, crosses were."""
    check_plot(path)
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    records = report.records
    shown = kinds or tuple(k for k in dict.fromkeys(records.kind.tolist()) if figures(records.where_true(records.kind == k)))
    if not shown:
        raise Refusal("plot: no row was priced", "plot")
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 4.0 * lines), squeeze=False, constrained_layout=True)
    for panel, kind in zip(axes.ravel(), shown, strict=False):
        _panel(panel, records.where_true((records.kind == kind) & records.priced), kind)
    for panel in axes.ravel()[len(shown) :]:
        panel.set_axis_off()
    save(figure, path, 110)


def _panel(panel: Any, records: Records, kind: str) -> None:
    factor = 1.0 if kind in RATES else 1e3
    ends = np.array([records.measured.min(), records.measured.max()]) * factor
    panel.plot(ends, ends, color="grey", linewidth=0.8)
    for band in (0.8, 1.25):
        panel.plot(ends, ends * band, color="grey", linewidth=0.5, linestyle=":")
    systems = list(dict.fromkeys(records.where_true(~records.fitted).system.tolist()))[: len(COLOURS)]
    for index, system in enumerate(systems):
        drawn = _few(records.where_true((records.system == system) & ~records.fitted), MOST_POINTS // len(systems))
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "s": 7, "linewidths": 0}
        panel.scatter(drawn.measured * factor, drawn.predicted * factor, alpha=0.6, label=_short(str(system))[:24], **style)
    fitted = _few(records.where_true(records.fitted), MOST_POINTS // 4)
    if len(fitted):
        style = {"color": "black", "marker": "x", "s": 5, "linewidths": 0.4}
        panel.scatter(fitted.measured * factor, fitted.predicted * factor, label="fitted", **style)
    unit = "tokens/s" if kind in RATES else "ms"
    panel.set(xscale="log", yscale="log", title=kind, xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    panel.legend(fontsize=6, loc="upper left")


def _few(records: Records, most: int) -> Records:
    """An even choice of rows, so that a picture stays small."""
    return records if len(records) <= most else records.where_true(np.linspace(0, len(records) - 1, most).astype(int))
