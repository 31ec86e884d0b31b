"""A pipeline for a terminal (the grid), for a page (SVG) and as a document: the bubble by both roads and conventions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.text import Text

from commtax.cost.schedules import Schedule
from commtax.report.documents import Record, plain
from commtax.report.tables import new_table, notes, say
from commtax.sim.pipeline import Durations
from commtax.statement import Refusal
from commtax.timeline import Timeline
from commtax.units import plural

STYLES = {"F": "blue", "B": "green", "W": "yellow", "BW": "green", "F&B": "magenta"}
FILLS = {"F": "#56B4E9", "B": "#009E73", "W": "#E69F00", "BW": "#009E73", "F&B": "#CC79A7"}
MAX_SVG_BOXES = 40_000


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule that was run, with its question."""

    kind: Schedule
    p: int
    m: int
    v: int
    times: Durations
    timeline: Timeline

    @property
    def uniform(self) -> bool:
        """Whether the closed form speaks of this run: equal stages, no transfers, and times that it covers."""
        t = self.times
        plain_run = not (t.transfer or t.rank_factors or len(t.stage_factors) or len(t.microbatch_factors) or t.overlapped)
        return plain_run and (self.kind.any_times or t.forward == t.backward == t.weight)

    @property
    def idle_counted_s(self) -> float:
        """Mean idle time of a rank within the whole run, counted."""
        return float(np.mean(self.timeline.idle_s()))

    @property
    def idle_closed_form_s(self) -> float | None:
        t = self.times
        return float(self.kind.idle(self.p, t.forward, t.backward, t.weight)) if self.uniform else None

    @property
    def over_total(self) -> float:
        return self.idle_counted_s / self.timeline.span_s

    @property
    def over_ideal(self) -> float:
        return self.idle_counted_s / float(np.mean(self.timeline.busy_s()))

    @property
    def peaks(self) -> list[int]:
        return [int(self.kind.peak(self.p, self.m, self.v, i)) for i in range(self.p)]


def show_pipeline(console: Console, found: Pipeline) -> None:
    """The grid, then the bubble twice, then what each rank keeps."""
    kind, t = found.kind, found.timeline
    batches = "1 microbatch" if found.m == 1 else f"{found.m} microbatches"
    say(console, f"{kind.name}: {plural(found.p, 'stage')}, {batches}, {t.span_s:g} time units", "bold")
    _grid(console, t)
    closed = found.idle_closed_form_s
    table = new_table("bubble", ">idle a rank", ">over total", ">over ideal")
    table.add_row("counted", f"{found.idle_counted_s:g}", f"{found.over_total:.2%}", f"{found.over_ideal:.2%}")
    if closed is not None:
        ideal = float(np.mean(t.busy_s()))
        table.add_row("closed form", f"{closed:g}", f"{closed / (closed + ideal):.2%}", f"{closed / ideal:.2%}")
    console.print(table)
    keeps = found.peaks
    unit = "chunks of microbatches" if (kind.chunks or found.v) > 1 else "microbatches"
    shown = ", ".join(map(str, keeps[:16])) + (" …" if len(keeps) > 16 else "")
    say(console, f"in flight at most, by rank: {shown} {unit}" if kind.backward else "forward only: no activations are kept")
    remarks = [] if closed is not None else ["no closed form for these times: counted only"]
    if found.times.rank_factors:
        rank, factor = next(iter(found.times.rank_factors.items()))
        remarks.append(f"straggler: rank {rank} takes {factor:g} times as long" + (", and all wait for it" if factor > 1 else ""))
    notes(console, remarks)


def _grid(console: Console, t: Timeline) -> None:
    """One character a time unit: forwards as the microbatch's last digit, backwards as a letter, a dot where a rank idles."""
    unit = max(float(np.min(t.end_s - t.start_s)), t.span_s * 1e-6)  # beside a long one, a short length may round to nothing
    if np.any(np.abs(t.start_s / unit - np.round(t.start_s / unit)) > 1e-6):
        unit /= 4  # starts between the units: finer columns, so that nothing is drawn over
    columns = max(1, round(t.span_s / unit))
    room = console.width - 12
    shown, numbers = min(columns, room), np.asarray(t.number).tolist()
    for rank, name in enumerate(t.lanes[:64]):
        cells: list[tuple[str, str]] = [("·", "dim")] * shown
        for i in np.flatnonzero(t.lane == rank).tolist():
            first, last = round(float(t.start_s[i]) / unit), round(float(t.end_s[i]) / unit)
            kind = t.kinds[int(t.kind[i])]
            digit = numbers[i] % 10
            sign = {"F": str(digit), "W": "w", "F&B": "ABCDEFGHIJ"[digit]}.get(kind, "abcdefghij"[digit])
            for column in range(first, min(max(last, first + 1), shown)):
                cells[column] = (sign, STYLES[kind])
        row = Text(f"{name:<9}", style="dim")
        for character, style in cells:
            row.append(character, style=style)
        if columns > shown:
            row.append("…", style="dim")
        console.print(row, soft_wrap=True)
    used = [k for k in t.kinds if t.kinds.index(k) in set(t.kind.tolist())]
    words = {
        "F": "0-9 forward",
        "B": "a-j input gradient",
        "W": "w weight gradient",
        "BW": "a-j backward",
        "F&B": "A-J forward and backward overlapped",
    }
    legend = Text("by the last digit of the microbatch: ", style="dim")
    for k in used:
        legend.append(f"{words[k]}, ", style=STYLES[k])
    console.print(legend.append("· idle", style="dim"), soft_wrap=True)


def pipeline_document(found: Pipeline) -> Record:
    """``pipeline --json``."""
    closed = found.idle_closed_form_s
    document = {
        "schema": "commtax.pipeline/1",
        "schedule": found.kind.name,
        "stages": found.p,
        "microbatches": found.m,
        "chunks": found.kind.chunks or found.v,
        "times": [found.times.forward, found.times.backward, found.times.weight],
        "transfer": found.times.transfer,
        "straggler": {str(rank): factor for rank, factor in found.times.rank_factors.items()},
        "total_s": found.timeline.span_s,
        "idle_counted_s": found.idle_counted_s,
        "idle_closed_form_s": closed,
        "bubble_over_total": found.over_total,
        "bubble_over_ideal": found.over_ideal,
        "idle_by_rank_s": found.timeline.idle_s(),
        "peak_in_flight_by_rank": found.peaks,
    }
    return dict(plain(document))


def to_svg(t: Timeline) -> str:
    """The timeline as boxes to scale; kinds differ in hue and in the letter that each box shows."""
    if len(t.lane) > MAX_SVG_BOXES:
        raise Refusal(f"svg: {len(t.lane):,} boxes are more than the {MAX_SVG_BOXES:,} that are drawn; use --chrome-trace")
    wide, high, left = 1200.0, 26, 70
    scale = wide / t.span_s
    height = len(t.lanes) * high + 40
    style = "font-family:sans-serif;font-size:11px"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 10:.0f} {height}" style="{style}">']
    parts.append(f'<rect width="100%" height="{height}" fill="white"/>')
    parts += [f'<text x="4" y="{i * high + 18}">{name}</text>' for i, name in enumerate(t.lanes)]
    for i in range(len(t.lane)):
        x, width = left + float(t.start_s[i] - t.begin_s) * scale, float(t.end_s[i] - t.start_s[i]) * scale
        y, name = int(t.lane[i]) * high + 2, t.name[i].replace("&", "&amp;")
        box = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{high - 4}"'
        parts.append(f'<rect {box} fill="{FILLS[t.kinds[int(t.kind[i])]]}" stroke="white" stroke-width="0.5"/>')
        if width > 7 * len(t.name[i]):
            parts.append(f'<text x="{x + width / 2:.2f}" y="{y + 15}" text-anchor="middle">{name}</text>')
    legend = f"0 to {t.span_s:g} time units; F forward, B input gradient, W weight gradient; white: idle"
    parts.append(f'<text x="{left}" y="{height - 14}">{legend}</text>')
    return "".join([*parts, "</svg>"])
