"""A running server on a terminal, drawn anew at every look: verdict, load, each figure beside its predicted range, what to do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from commtax.runs.evidence.finding import AGREE, DISAGREE, UNKNOWN, Finding
from commtax.runs.report.audit_words import value_text
from commtax.runs.report.server_words import STYLES, WORDS, answer_sentence, load_sentence, next_lines, range_text, state_of
from commtax.runs.results.live import ServerAudit, tail_bounds
from commtax.runs.results.prometheus import bounds_text

SCALE = 11  # signs of the picture of a range
SPARKS = "▁▂▃▄▅▆▇█"
MOST_SPARKS = 16
WITH_PICTURE, WITH_HISTORY = 80, 100  # columns from which on a table has them
VERDICTS = {AGREE: "green", DISAGREE: "bold red", UNKNOWN: ""}


@dataclass(frozen=True, slots=True)
class DashboardLine:
    """Where metrics come from, when they were last seen, and what went wrong since."""

    url: str
    clock: str
    every: str
    trouble: str = ""
    exported: str = ""  # where the band is served


def dashboard(history: Sequence[ServerAudit], line: DashboardLine, width: int) -> RenderableType:
    """The last look, with what it shows of those before, on so many columns."""
    seen = history[-1]
    style = "dim" if line.trouble else STYLES[state_of(seen)]  # what was seen before nobody answered
    parts: list[RenderableType] = [Styled(answer_sentence(seen), style=style), Styled(load_sentence(seen))]
    if not seen.window.idle:
        parts += [Styled(""), _table(history, width), Styled("")]
    if now := " · ".join(f"{seen.run.facts[fact]} {name}" for fact, name in WORDS["facts"].items() if fact in seen.run.facts):
        parts.append(Styled(f"now: {now}"))
    parts += [Styled(text) for text in next_lines(seen)]
    if line.trouble:
        parts.append(Styled(line.trouble, style="bold red"))
    serves = f" · band at {line.exported}" if line.exported else ""
    parts.append(Styled(f"{line.clock} · every {line.every} · {line.url}{serves} · Ctrl-C ends", style="dim"))
    return Group(*parts)


def _table(history: Sequence[ServerAudit], width: int) -> Table:
    """A row for each figure that is measured, or whose bucket is known; what is least needed is left out of a narrow one."""
    seen, claimed = history[-1], history[-1].audited.claim is not None
    columns = {"": True, "measured": True, "80% range": claimed, "verdict": claimed}
    columns |= {"where it lies": claimed and width >= WITH_PICTURE, "so far": width >= WITH_HISTORY}
    drawn = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name in (name for name, shown in columns.items() if shown):
        drawn.add_column(name, justify="right" if name in ("measured", "80% range") else "left", no_wrap=True)
    tails = tail_bounds(seen.window.page)
    found = {f.code: f for f in reversed(seen.findings)}
    for code, name in WORDS["rows"].items():
        if f := found.get(code):
            bounds = tails.get(code.partition("_")[0]) if f.measured is None else None
            figure_cells = {
                "measured": bounds_text(*bounds) if bounds else value_text(f.measured, f.unit),
                "80% range": range_text(f) if f.predicted is not None else "",
                "verdict": Styled(f.verdict if f.evidence else "", style=VERDICTS[f.verdict]),
                "where it lies": _scale(f, bounds),
            }
            windows = (seen for seen in history if seen.window.seconds is not None)
            measured_so_far = [next((f.measured for f in seen.findings if f.code == code), None) for seen in windows]
            cells = {"": name, **figure_cells, "so far": sparkline(measured_so_far)}
            drawn.add_row(*(cells[column] for column, shown in columns.items() if shown))
    return drawn


def _scale(f: Finding, bounds: tuple[float, float] | None) -> str:
    """The range of a prediction in the middle, and where the measured figure lies: by factors, from half to twice the range."""
    if f.low is None or f.high is None or not 0 < f.low <= f.high:
        return ""
    low, high = math.log(f.low / 2), math.log(f.high * 2)

    def place(value: float) -> int:
        share = (math.log(value) - low) / (high - low) if value > 0 else 0.0
        return min(SCALE - 1, max(0, round(share * (SCALE - 1)))) if math.isfinite(share) else SCALE - 1

    signs = ["·"] * SCALE
    signs[place(f.low) : place(f.high) + 1] = "─" * (place(f.high) + 1 - place(f.low))
    first, last = (f.measured, f.measured) if bounds is None else bounds
    if first is None or last is None:
        return "".join(signs)
    for at in range(place(first), place(last) + 1):
        signs[at] = "●" if bounds is None else "○"
    return "".join(signs)


def sparkline(values: Sequence[float | None]) -> str:
    """The last figures, from the least to the most of them; nothing of a single one.

    >>> sparkline([1.0, 2.0, None, 4.0])
    '▁▃ █'
    """
    shown = list(values)[-MOST_SPARKS:]
    known = [v for v in shown if v is not None]
    if len(known) < 2:
        return ""
    least, span = min(known), max(known) - min(known)
    top = len(SPARKS) - 1
    return "".join(" " if v is None else SPARKS[round((v - least) / span * top) if span > 0 else top // 2] for v in shown)
