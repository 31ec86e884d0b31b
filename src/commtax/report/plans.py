"""Plans side by side: table, heat maps in the terminal and in a file, break-evens in words, CSV and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from commtax.report.documents import Record, facts
from commtax.report.plots import no_formula, picture
from commtax.report.tables import csv_text, new_table, notes, say
from commtax.units import format_rate, format_seconds
from commtax.verbs.comparing import BreakEven, PlanRow, PlanTable

BLOCKS = " ░▒▓█"
MOST_LINES = 12


PRICED = ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction")


def _record(row: PlanRow) -> Record:
    """One flat record a cell, its figures null where it has none."""
    figures: Record = dict.fromkeys((*PRICED, "tokens_per_s", "tokens_per_s_per_gpu", "fits"))
    if row.bill is not None:
        figures |= {name: float(getattr(row.bill, name)) for name in PRICED} | facts(row, "tokens_per_s", "fits")
        figures["tokens_per_s_per_gpu"] = row.tokens_per_s / row.gpus
    return facts(row, "plan", "link", "batch", "gpus") | figures | {"refused": row.refused}


def plans_document(compared: PlanTable) -> Record:
    """``compare --plans --json``."""
    flips = [
        {"axis": f.axis, "below": f.first, "from": f.then, "at": f.at, "earliest": f.earliest, "link": f.link, "batch": f.batch}
        for f in compared.break_evens
    ]
    head = {"schema": "commtax.compare-plans/1", "phase": compared.phase, "context": compared.context}
    return {**head, "rows": [_record(row) for row in compared.rows], "break_even": flips, "notes": compared.notes}


def plans_csv(compared: PlanTable) -> str:
    return csv_text([_record(row) for row in compared.rows])


def show_plans(console: Console, compared: PlanTable) -> None:
    table = new_table(
        "plan", "link", ">batch", ">GPUs", ">step", ">compute", ">exposed comm", ">share", ">tokens/s", ">a GPU", "fits", ""
    )
    for row in compared.rows:
        head = (row.plan, row.link, f"{row.batch:,}", str(row.gpus))
        b = row.bill
        if b is None:
            table.add_row(*head, *[""] * 7, Text("not legal", style="red"))
            continue
        times = [format_seconds(float(getattr(b, n))) for n in ("step_s", "compute_s", "exposed_comm_s")]
        rates = (f"{row.tokens_per_s:,.0f}", f"{row.tokens_per_s / row.gpus:,.0f}")
        beside = [r for r in compared.beside(row) if r.fits]  # what does not fit wins nothing
        first = "fastest" if row.fits and len(beside) > 1 and row.tokens_per_s == max(r.tokens_per_s for r in beside) else ""
        table.add_row(
            *head, *times, f"{float(b.comm_fraction):.0%}", *rates, "yes" if row.fits else "no", Text(first, style="green")
        )
    console.print(table)
    _heat_maps(console, compared)
    _say_flips(console, compared)
    notes(console, (*_refusals(compared), *compared.notes))


def _refusals(compared: PlanTable) -> list[str]:
    """Why plans are not legal, each reason once."""
    return list(dict.fromkeys(f"{row.plan}: {row.refused}" for row in compared.rows if row.refused))


def _say_flips(console: Console, compared: PlanTable) -> None:
    if compared.phase == "train":
        return
    lines = [flip_words(f) for f in compared.break_evens]
    if not lines:
        say(console, "break-even: no batch up to 1,024, length or bandwidth (1/256 to 256 times) changes the order of these plans")
    for line in lines[:MOST_LINES]:
        say(console, f"break-even: {line}")
    if len(lines) > MOST_LINES:
        say(console, f"… and {len(lines) - MOST_LINES} more (--json has all)", "dim")


def flip_words(f: BreakEven) -> str:
    """One swap in words."""
    where = f", on {f.link}" if f.link else ""
    if f.axis == "bandwidth":
        return f"bandwidth of collectives: {f.first} is faster below {format_rate(f.at)}, {f.then} above (batch {f.batch}{where})"
    fixed = f" at batch {f.batch}" if f.batch else ""
    unclear = f"; in turn from {f.earliest:,.0f}" if f.earliest < f.at else ""
    return f"{f.axis}: {f.first} is faster below {f.at:,.0f}, {f.then} from there on{fixed}{where}{unclear}"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Plans against one axis; on the other axis ``fixed`` (name and value), where there is one."""

    title: str
    axis: str
    columns: list[Any]
    fixed: tuple[str, Any] | None = None

    def cells(self, compared: PlanTable, column: Any) -> dict[str, PlanRow]:
        """The rows of a column by plan; where links are the plans' own, whatever each has."""
        rows = [r for r in compared.rows if getattr(r, self.axis) == column]
        return {r.plan: r for r in reversed(rows) if self.fixed is None or getattr(r, self.fixed[0]) == self.fixed[1]}


def _maps(compared: PlanTable) -> list[HeatMap]:
    """Each map worth drawing."""
    links, batches = list(compared.links), compared.values("batch")
    maps = []
    if len(batches) > 1:
        name, fixed = (f", {links[0]}", ("link", links[0])) if links else ("", None)
        maps.append(HeatMap(f"plan x batch{name}", "batch", batches, fixed))
    if len(links) > 1:
        maps.append(HeatMap(f"plan x link, batch {batches[0]}", "link", links, ("batch", batches[0])))
    return maps


def _heat_maps(console: Console, compared: PlanTable) -> None:
    """Tokens a second against the best of each column: the fuller the block, the nearer."""
    maps = _maps(compared)
    for drawn in maps:
        cells = {c: drawn.cells(compared, c) for c in drawn.columns}
        best = {c: max((r.tokens_per_s for r in cells[c].values()), default=0.0) for c in drawn.columns}
        table = new_table(drawn.title, *(f">{c}" for c in drawn.columns))
        for name in compared.values("plan"):
            table.add_row(name, *(_heat(cells[c].get(name), best[c]) for c in drawn.columns))
        console.print(table)
    if maps:
        say(console, "tokens/s; ████ within 5 % of the column's best, ▓▓▓ 80 %, ▒▒ half, ░ less, · not legal", "dim")


def _heat(row: PlanRow | None, best: float) -> Text:
    if row is None or row.bill is None or best <= 0:
        return Text("·", style="dim")
    share = row.tokens_per_s / best
    level = 4 if share >= 0.95 else 3 if share >= 0.8 else 2 if share >= 0.5 else 1
    style = ("", "blue", "cyan", "yellow", "bold green")[level]
    return Text(f"{row.tokens_per_s:,.0f} {BLOCKS[level] * level:<4}", style=style)


def plot_plans(compared: PlanTable, title: str, path: Path) -> None:
    """The heat maps as a picture: colour, and the figure in every cell."""
    maps = _maps(compared) or [HeatMap("plan x batch", "batch", compared.values("batch"))]

    def draw(figure: Any) -> None:
        import numpy as np

        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        names = compared.values("plan")
        for panel, drawn in zip(panels, maps, strict=True):
            cells = [[drawn.cells(compared, c).get(p) for c in drawn.columns] for p in names]
            rates = np.array([[r.tokens_per_s if r and r.bill is not None else np.nan for r in row] for row in cells])
            panel.imshow(rates / np.nanmax(rates, axis=0), cmap="cividis", vmin=0, vmax=1, aspect="auto")
            for (i, j), value in np.ndenumerate(rates):
                dark = np.isnan(value) or value / np.nanmax(rates[:, j]) < 0.6
                text = "not legal" if np.isnan(value) else f"{value:,.0f}"
                panel.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
            panel.set_xticks(range(len(drawn.columns)), [str(c) for c in drawn.columns])
            panel.set_yticks(range(len(names)), names)
            panel.set_title(f"{drawn.title}: tokens/s, shade = share of the column's best", fontsize=9)
        figure.suptitle(no_formula(title), fontsize=11)

    picture(path, draw, (6.5 * len(maps), 1.5 + 0.6 * len(compared.values("plan"))))
