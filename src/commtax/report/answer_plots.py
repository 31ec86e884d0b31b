"""Figures of answers that no command draws: bars, latencies over clients, the boxes of a pipeline."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from commtax.report import plots
from commtax.report.pipelines import KINDS
from commtax.report.plots import COLOURS, LIGHT, entitle, no_formula, picture, style
from commtax.report.request_sweeps import format_time_axis
from commtax.statement import Refusal
from commtax.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from commtax.sim.pipeline import PipelineRun

MOST_BARS = 15
BarRow = tuple[str, float] | tuple[str, float, float, float]
"""A label, a number, and the ends of its range where it has one."""
WRITTEN: dict[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes, "%": lambda share: f"{share:.1%}"}
"""How a number is written, by its unit."""


def plot_bars(rows: Sequence[BarRow], unit: str, title: str, path: Path | None, colours: Sequence[str] = ()) -> "plots.Figure":
    """Bars to one scale, their numbers behind them, from the top down; a range is a line across a bar's end."""
    shown, write = rows[:MOST_BARS], WRITTEN.get(unit, "{:,.3g}".format)
    if not shown:
        raise Refusal("plot: there is nothing to draw in this answer", "plot")

    def draw(figure: "plots.Figure") -> None:
        axes, places = figure.subplots(), range(len(shown))
        values = [float(row[1]) for row in shown]
        axes.barh(places, values, color=colours[:MOST_BARS] or [LIGHT["hot" if value < 0 else "accent"] for value in values])
        for place, (_, value, *ends) in enumerate(shown):
            if ends:
                axes.plot(ends, [place, place], color=LIGHT["quiet"], linewidth=1.5, marker="|")
            axes.annotate(
                write(value), (max(0.0, *ends, value), place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks(places, [no_formula(str(row[0])) for row in shown], fontsize=8)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda value, _: write(value))
        axes.tick_params(axis="x", labelsize=8)
        axes.margins(x=0.12)
        axes.grid(True, axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        more = f" (the first {MOST_BARS} of {len(rows):,})" if len(rows) > MOST_BARS else ""
        entitle(axes, title + more)
        axes.set_xlabel("" if unit in WRITTEN else unit)

    return picture(path, draw, (8, 1.2 + 0.3 * len(shown)))


def plot_latencies(runs: Sequence[Mapping[str, float]], title: str, path: Path | None) -> "plots.Figure":
    """TTFT and TPOT with their ranges over clients; bars where there is one number of them."""
    if len(runs) == 1:
        run = runs[0]
        times = (("TTFT", "ttft"), ("TPOT", "tpot"))
        rows = [(name, run[f"{key}_s"], run[f"{key}_low_s"], run[f"{key}_high_s"]) for name, key in times]
        return plot_bars([row for row in rows if row[1] == row[1]], "s", title, path)  # without a second token there is no TPOT

    def draw(figure: "plots.Figure") -> None:
        clients = [run["concurrency"] for run in runs]
        for index, (axes, key) in enumerate(zip(figure.subplots(1, 2), ("ttft", "tpot"), strict=True)):
            axes.plot(clients, [run[f"{key}_s"] for run in runs], **style(index))
            ends = ([run[f"{key}_{end}_s"] for run in runs] for end in ("low", "high"))
            axes.fill_between(clients, *ends, color=COLOURS[index], alpha=0.18, linewidth=0)
            axes.set(xlabel="clients", ylabel=key.upper(), xscale="log")
            format_time_axis(axes, "y")
            axes.set_xticks(clients, [f"{x:g}" for x in clients])
            axes.minorticks_off()
            axes.grid(True, alpha=0.3)
        figure.suptitle(no_formula(fill(title, 110)), fontsize=10)

    return picture(path, draw, (9, 4))


def plot_pipeline(ran: "PipelineRun", path: Path | None) -> "plots.Figure":
    """The schedule as boxes: a row for each rank."""
    t = ran.timeline

    def draw(figure: "plots.Figure") -> None:
        axes = figure.subplots()
        for code, kind in enumerate(t.kinds):
            mine = [i for i in range(len(t.lane)) if int(t.kind[i]) == code]
            _, label, _, colour = KINDS[kind]
            left, width = [float(t.start_s[i]) for i in mine], [float(t.end_s[i] - t.start_s[i]) for i in mine]
            if mine:
                axes.barh(
                    [int(t.lane[i]) for i in mine], width, left=left, color=colour, label=label, edgecolor="white", linewidth=0.4
                )
        axes.set_yticks(range(len(t.lanes)), t.lanes, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("time units")
        axes.set_title(no_formula(f"{ran.kind.name}: {ran.over_total:.1%} idle"), loc="left", fontsize=10)
        axes.legend(fontsize=8, ncols=3)

    return picture(path, draw, (9, 1.4 + 0.3 * len(t.lanes)))
