"""Answers to several questions at once, as arrays of sizes ask them: a row for each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from commtax.options import options
from commtax.report import plots
from commtax.report.documents import Record, engine_name
from commtax.report.drawing import Console
from commtax.report.plots import no_formula, picture, style
from commtax.report.tables import model_words, say, show_table
from commtax.units import format_bytes, format_rate, format_seconds

FIGURES = {
    "StepBill": ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s"),
    "Traffic": ("sent_bytes_per_rank",),
    "ClosedLoop": ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s", "requests_per_s"),
    "Expectation": ("seconds", "low_s", "high_s", "busbw_Bps"),
}
"""What each row tells; the first is drawn."""
EXPENDABLE = ("compute", "requests/s", "high", "low", "exposed comm", "e2e")
"""Columns that a narrow screen can do without, the least important first."""
UNITS: dict[str, Callable[[float], str]] = {
    "_s": format_seconds,
    "seconds": format_seconds,
    "_rank": format_bytes,
    "nbytes": format_bytes,
    "_Bps": format_rate,
}
"""How figures are written, by the ends of their names."""


def _axes(answer: object) -> Record:
    """What was asked for as an array, by the names of the options."""
    if (q := getattr(answer, "question", None)) is None:
        sizes: Record = {"nbytes": getattr(answer, "nbytes", 0)}
    else:
        parted = {name: option for name, option in options().items() if option.field and option.type.startswith("Number")}
        sizes = {name: getattr(getattr(q, option.part) if option.part else q, option.key) for name, option in parted.items()}
    return {name: value for name, value in sizes.items() if isinstance(value, np.ndarray)}


def is_grid(answer: object) -> bool:
    """Whether sizes are arrays; clients of a closed loop alone are listed as the command lists them."""
    name = type(answer).__name__
    return name in FIGURES and bool(_axes(answer).keys() - ({"concurrency"} if name == "ClosedLoop" else set()))


def grid_rows(answer: object) -> list[Record]:
    legal = {"legal": answer.legal} if hasattr(answer, "legal") else {}
    columns = _axes(answer) | {name: getattr(answer, name) for name in FIGURES[type(answer).__name__]} | legal
    wide = np.broadcast_arrays(*map(np.asarray, columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*(column.ravel().tolist() for column in wide), strict=True)]


def grid_document(answer: object) -> Record:
    return {"schema": "commtax.grid/1", "rows": grid_rows(answer)}


def show_grid(console: Console, answer: object) -> None:
    rows = grid_rows(answer)
    if (q := getattr(answer, "question", None)) is not None:
        say(console, f"{model_words(q.model)} on {q.cluster.key}, {engine_name(q)}, {q.phase}: {len(rows):,} questions", "bold")
    columns = [f">{_name(name)}" for name in rows[0] if name != "legal"]
    show_table(
        console, columns, [[_cell(name, value) for name, value in row.items() if name != "legal"] for row in rows], EXPENDABLE
    )


def _name(figure: str) -> str:
    """A figure's name in words.

    >>> _name("tokens_per_s"), _name("exposed_comm_s")
    ('tokens/s', 'exposed comm')
    """
    return figure.replace("_per_s", "/s").removesuffix("_s").replace("_", " ")


def _cell(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_fraction"):
        return f"{value:.1%}"
    told = next((write for end, write in UNITS.items() if name.endswith(end) and not name.endswith("per_s")), None)
    return told(value) if told else f"{value:,.10g}" if isinstance(value, int) else f"{value:,.1f}"


def plot_grid(answer: object, path: Path | None) -> "plots.Figure":
    """The first figure over the first size, a line for each value of the others."""
    rows, axes = grid_rows(answer), list(_axes(answer))
    figure = FIGURES[type(answer).__name__][0]

    def draw(canvas: "plots.Figure") -> None:
        axis, lines = canvas.subplots(), dict[tuple[object, ...], list[Record]]()
        for row in rows:
            lines.setdefault(tuple(row[name] for name in axes[1:]), []).append(row)
        for index, (key, points) in enumerate(lines.items()):
            label = ", ".join(f"{name} {value}" for name, value in zip(axes[1:], key, strict=True))
            axis.plot(*(np.array([p[name] for p in points]) for name in (axes[0], figure)), **style(index, label=label))
        axis.set(
            xlabel=axes[0].replace("_", " "),
            ylabel=figure.removesuffix("_s").replace("_", " ") + ", s" * figure.endswith("_s"),
            xscale="log",
            yscale="log",
        )
        axis.grid(True, alpha=0.3)
        axis.set_title(no_formula(type(answer).__name__), loc="left", fontsize=10)
        if len(axes) > 1:
            axis.legend(fontsize=8)

    return picture(path, draw)
