"""A pipeline for a terminal (the grid), as a picture (SVG), as a document, and for the page (boxes)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commtax import napkin
from commtax.cost.schedules import SCHEDULES
from commtax.files import table
from commtax.report.documents import Record, record
from commtax.report.drawing import Console, Sketch, telling
from commtax.report.manners import Manner
from commtax.report.plots import no_formula, picture
from commtax.report.tables import ANSWER, notes, say, show_table
from commtax.sim.pipeline import PipelineRun, step_pipeline
from commtax.statement import Refusal
from commtax.timeline import Timeline
from commtax.units import plural
from commtax.verbs.billing import StepBill

if TYPE_CHECKING:
    from commtax.report.plots import Figure

KINDS = table("report/words.toml")["pipeline"]
NAMES, MOST_ROWS = 9, 64  # signs of a rank's name, and lines of a grid: a long one goes on below, while there are fewer
MAX_SVG_BOXES, MOST_BOXES = 40_000, 8_000  # of a picture in a file, and on the page


def show_pipeline(console: Console, ran: PipelineRun) -> None:
    """Show the bubble, what each rank keeps, and the grid. That the closed form agrees is shown with details alone."""
    kind, t = ran.kind, ran.timeline
    batches = "1 microbatch" if ran.m == 1 else f"{ran.m} microbatches"
    whole = f"{kind.name}: {plural(ran.p, 'stage')}, {batches}, {t.span_s:g} time units"
    say(console, f"{whole}; bubble {ran.over_total:.2%}: each rank is idle for {ran.idle_counted_s:g} of them on average", ANSWER)
    keeps = ran.peaks
    unit = "chunks of microbatches" if (kind.chunks or ran.v) > 1 else "microbatches"
    shown = ", ".join(map(str, keeps[:16])) + (" …" if len(keeps) > 16 else "")
    say(console, f"in flight at most, by rank: {shown} {unit}" if kind.backward else "forward only: no activations are stored")
    console.print()
    _grid(console, t)
    wait = ", and the others wait for it"
    slow = ran.times.rank_factors.items()
    remarks = [f"straggler: rank {rank} takes {factor:g} times as long{wait * (factor > 1)}" for rank, factor in slow]
    derived = telling(console).details
    if derived:
        closed, ideal = ran.idle_closed_form_s, float(np.mean(ran.timeline.busy_s()))
        idle = {"counted": ran.idle_counted_s, **({} if closed is None else {"closed form": closed})}
        rows = [(how, f"{s:g}", f"{s / (s + ideal):.2%}", f"{s / ideal:.2%}") for how, s in idle.items()]
        show_table(console, ("bubble", ">idle per rank", ">over total", ">over ideal"), rows)
        if closed is None:
            notes(console, ["no closed form for these times: counted only"])
    notes(console, remarks, () if derived else ["the bubble by its closed form"])


def _grid(console: Console, t: Timeline) -> None:
    """Draw one character a time unit: forwards as the microbatch's last digit, backwards as a letter, a dot where a rank idles."""
    unit = max(float(np.min(t.end_s - t.start_s)), t.span_s * 1e-6)  # beside a long one, a short length may round to nothing
    if np.any(np.abs(t.start_s / unit - np.round(t.start_s / unit)) > 1e-6):
        unit /= 4  # starts between the units: finer columns, so that nothing is drawn over
    columns = max(1, round(t.span_s / unit))
    room, names = console.width - NAMES - 1, t.lanes[:MOST_ROWS]
    shown = min(columns, max(1, MOST_ROWS // len(names)) * room)
    rows = [_cells(t, rank, unit, shown) for rank in range(len(names))]
    for start in range(0, shown, room):
        if start:
            console.print(Sketch(f"from time {start * unit:g} on", style="dim"))
        for name, cells in zip(names, rows, strict=True):
            row = Sketch(f"{name:<{NAMES}}", style="dim")
            for character, style in cells[start : start + room]:
                row.append(character, style=style)
            if columns > shown and start + room >= shown:
                row.append("…", style="dim")
            console.print(row)
    legend = Sketch("by the last digit of the microbatch: ", style="dim")
    for index in sorted(set(t.kind.tolist())):
        signs, name, style, _ = KINDS[t.kinds[index]]
        legend.append(f"{signs} {name}, ", style=style)
    console.print(legend.append("· idle", style="dim"))


def _cells(t: Timeline, rank: int, unit: float, shown: int) -> list[tuple[str, str]]:
    """Return the signs of one rank, a time unit each, and their styles."""
    numbers = np.asarray(t.number)
    cells: list[tuple[str, str]] = [("·", "dim")] * shown
    for i in np.flatnonzero(t.lane == rank).tolist():
        first, last = round(float(t.start_s[i]) / unit), round(float(t.end_s[i]) / unit)
        kind, digit = t.kinds[int(t.kind[i])], int(numbers[i]) % 10
        sign = {"F": str(digit), "W": "w", "F&B": "ABCDEFGHIJ"[digit]}.get(kind, "abcdefghij"[digit])
        for column in range(first, min(max(last, first + 1), shown)):
            cells[column] = (sign, KINDS[kind][2])
    return cells


def pipeline_document(ran: PipelineRun) -> Record:
    times, chunks, idle_s = ran.times, ran.kind.chunks or ran.v, ran.timeline.idle_s()
    passes, slow = [times.forward, times.backward, times.weight], {str(rank): x for rank, x in times.rank_factors.items()}
    return record("pipeline", ran=ran, chunks=chunks, times=passes, straggler=slow, idle_by_rank_s=idle_s)


def pipeline_rows(ran: PipelineRun) -> list[Record]:
    """Return one row for each pass of a microbatch on a rank, in words."""
    t, names = ran.timeline, ("rank", "pass", "microbatch", "start", "end")
    passes = ([t.lanes[i] for i in t.lane], [KINDS[t.kinds[i]][1] for i in t.kind], np.asarray(t.number), t.start_s, t.end_s)
    return [dict(zip(names, row, strict=True)) for row in zip(*passes, strict=True)]


def to_svg(t: Timeline, ground: str = "white") -> str:
    """Draw the timeline as boxes to scale, kinds differing in hue and letter. On no ground text has the colour around it."""
    if len(t.lane) > MAX_SVG_BOXES:
        raise Refusal(f"svg: {len(t.lane):,} boxes are more than the {MAX_SVG_BOXES:,} that are drawn; use --chrome-trace")
    wide, high, left = 1200.0, 26, 70
    scale, height = wide / t.span_s, len(t.lanes) * high + 40
    ink, style = "black" if ground == "white" else "currentColor", "font-family:sans-serif;font-size:11px"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 10:.0f} {height}" style="{style}">']
    parts.append(f'<rect width="100%" height="{height}" fill="{ground}"/>')
    parts += [f'<text x="4" y="{i * high + 18}" fill="{ink}">{name}</text>' for i, name in enumerate(t.lanes)]
    for i in range(len(t.lane)):
        x, width = left + float(t.start_s[i] - t.begin_s) * scale, float(t.end_s[i] - t.start_s[i]) * scale
        y, name = int(t.lane[i]) * high + 2, t.name[i].replace("&", "&amp;")
        box = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{high - 4}"'
        parts.append(f'<rect {box} fill="{KINDS[t.kinds[int(t.kind[i])]][3]}" stroke="white" stroke-width="0.5"/>')
        if width > 7 * len(t.name[i]):
            parts.append(f'<text x="{x + width / 2:.2f}" y="{y + 15}" text-anchor="middle">{name}</text>')
    legend = f"0 to {t.span_s:g} time units; F forward, B input gradient, W weight gradient; empty: idle"
    parts.append(f'<text x="{left}" y="{height - 14}" fill="{ink}">{legend}</text>')
    return "".join([*parts, "</svg>"])


def _drawing_record(note: str, **drawn: object) -> Record:
    return {"lanes": [], "bars": [], "total": 0.0, "bubble_fraction": 0.0, "formula": "", "note": note, **drawn}


def page_pipeline(b: StepBill) -> Record:
    """Return the schedule's boxes by stage, or why there is no pipeline."""
    plan = b.question.plan
    p, m = int(plan.pp), int(plan.microbatches)
    if not b.question.trains or p == 1:
        note = "one stage: no pipeline" if p == 1 else "served batches are in flight on all stages together: no bubble is drawn"
        return _drawing_record(note)
    boxes = p * m * SCHEDULES[plan.schedule].passes(int(plan.chunks)) * 3
    if boxes > MOST_BOXES:
        return _drawing_record(f"{boxes:,} boxes are more than the {MOST_BOXES:,} that are drawn: fewer microbatches or stages")
    ran = step_pipeline(b.question, b)
    t, idle = ran.timeline, ran.over_total
    columns = (t.lane, t.start_s, t.end_s, [t.kinds[kind] for kind in t.kind], np.asarray(t.number))
    names = ("stage", "start", "end", "kind", "microbatch")
    note = f"{idle:.1%} idle as simulated; {b.bubble_fraction:.1%} of the whole step, which has taxes and an update too"
    lanes, bars = [f"stage {i}" for i in range(p)], [dict(zip(names, box, strict=True)) for box in zip(*columns, strict=True)]
    formula = f"(pp−1)/(M+pp−1) = {p - 1}/({m}+{p}−1) = {napkin.bubble_fraction(p, m):.1%} for 1F1B"
    return _drawing_record(note, lanes=lanes, bars=bars, total=t.span_s, bubble_fraction=idle, formula=formula)


def plot_pipeline(ran: PipelineRun, path: Path | None) -> Figure:
    """Plot the schedule as boxes, a row for each rank."""
    t = ran.timeline

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for code, kind in enumerate(t.kinds):
            mine = [i for i in range(len(t.lane)) if int(t.kind[i]) == code]
            _, label, _, colour = KINDS[kind]
            left, width = [float(t.start_s[i]) for i in mine], [float(t.end_s[i] - t.start_s[i]) for i in mine]
            if lanes := [int(t.lane[i]) for i in mine]:
                axes.barh(lanes, width, left=left, color=colour, label=label, edgecolor="white", linewidth=0.4)
        axes.set_yticks(range(len(t.lanes)), t.lanes, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("time units")
        axes.set_title(no_formula(f"{ran.kind.name}: {ran.over_total:.1%} idle"), loc="left", fontsize=10)
        axes.legend(fontsize=8, ncols=3)

    return picture(path, draw, (9, 1.4 + 0.3 * len(t.lanes)))


MANNERS = {
    "PipelineRun": Manner[PipelineRun](
        show_pipeline, pipeline_document, pipeline_rows, plot_pipeline, lambda ran: to_svg(ran.timeline, ground="none")
    ),
}
