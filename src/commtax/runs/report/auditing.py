"""An audit for a terminal (one screen in words, then tables, then small print), and as an answer in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commtax.report.documents import record
from commtax.report.drawing import Console, Text, telling
from commtax.report.tables import TableCells, drop_empty_columns, notes, say, say_hidden, show_table
from commtax.runs.evidence.finding import (
    AGREE,
    DISAGREE,
    FAULT,
    STEP_PARTS,
    UNKNOWN,
    Audit,
    Finding,
    Section,
    Usage,
    by_rank,
    typical_of_ranks,
)
from commtax.runs.report import audit_words as words
from commtax.units import format_bytes, format_seconds, plural

if TYPE_CHECKING:
    from commtax.report.manners import Manner, Rows
    from commtax.report.plots import Figure

MOST_ROWS = 500  # of a table on the screen
MOST_RANKS = 8  # whose steps are told one by one
MOST_KERNELS = 8
MOST_COLLECTIVES = 12
MOST_SIGNS = 52  # of a kernel's name
NAME_SIGNS = 1000  # of which a name is told
_COMMON = re.compile(r"^void |at::native::|\(anonymous namespace\)::|std::|c10::")
NOTHING = 0.0005  # of a step
BAR = 20  # signs of a step
SIGNS = {"compute": "█", "exposed": "▓", "copies": "▒", "idle": "░"}
STYLES = {AGREE: "green", DISAGREE: "bold red", UNKNOWN: "", FAULT: "bold red"}
EXPENDABLE = (
    *("hidden", "▒ copies", "algorithm", "group", "ranks", "kind", "to scale", "steps", "tolerance", "count"),
    *("difference", "░ idle", "bytes", "waiting", "per step", "expected", "predicted"),
)
"""Columns that a narrow screen can do without, the least important first, of all tables of an audit."""
Cell = str | Text


def show_audit(console: Console, audited: Audit) -> None:
    """Show the verdict first, then tables for each file."""
    first = words.headline(audited)
    say(console, first, "bold red" if audited.verdict in (DISAGREE, FAULT) else "bold")
    for line in (*words.missing_lines(audited), *words.job_lines(audited)):
        say(console, line)
    if audited.culprit:
        cause = words.blamed_cause(audited)
        lines = [words.cost_words(cause), *words.change_lines(cause)] if cause else []
        if lines or audited.culprit.said:
            _say_all(console, words.to_blame(audited.culprit, audited), lines, "red")
    show_causes(console, audited)
    for section in audited.sections:
        show_section(console, section, audited.claim is not None)
        remarks = [note for note in words.remarks(section) if note not in first]
        notes(console, (*remarks, *(words.fact_lines(section) if telling(console).details else ())))
    notes(console, audited.notes)
    say_hidden(console, sum(len(words.fact_lines(section)) for section in audited.sections))


def show_section(console: Console, section: Section, claimed: bool) -> None:
    """Show the findings of one kind of file, under its name."""
    name = words.title(section)
    for columns, rows in tables(section, claimed):
        shown = rows[:MOST_ROWS]
        below = reasons_below(columns, shown, console.width // 4)
        show_table(console, columns, shown, EXPENDABLE, name)
        name = ""
        if len(rows) > len(shown):
            say(console, f"and {plural(len(rows) - len(shown), 'more row')} (--json)", "dim")
        for number, reason in enumerate(below, 1):
            say(console, f"[{number}] {reason}", "dim")
    if name:
        say(console, name, "bold")


def reasons_below(columns: Sequence[str], rows: list[list[Cell]], most: int) -> list[str]:
    """Move reasons too long for a table below it, each once, and leave their numbers in the rows."""
    if columns[-1] != "why" or max(len(str(row[-1])) for row in rows) <= most:
        return []
    reasons: dict[str, int] = {}
    for row in rows:
        row[-1] = f"[{reasons.setdefault(str(row[-1]), len(reasons) + 1)}]" if str(row[-1]) else ""
    return list(reasons)


def tables(section: Section, claimed: bool) -> list[TableCells]:
    """Return tables of findings, typical steps, collectives and kernels, those that are not empty."""
    columns = ("collective", "algorithm", "group", ">ranks", ">count", ">bytes", ">wire", ">waiting", ">hidden")
    dearest = sorted(section.collectives, key=lambda r: -(r.wire_s + r.wait_s))
    rows: list[tuple[Cell, ...]] = []
    for r in dearest[:MOST_COLLECTIVES]:
        size = "-" if r.nbytes is None else format_bytes(r.nbytes)
        times = (format_seconds(s) if s > 0 else "-" for s in (r.wire_s, r.wait_s, r.hidden_s))
        rows.append((r.op, r.algorithm, r.group, f"{r.ranks}" if r.ranks else "", f"{r.count:,}", size, *times))
    collectives = drop_empty_columns(columns, rows)
    dear = section.kernels[:MOST_KERNELS]
    cells = ((short_kernel_name(r.name), r.kind, f"{r.count:,.4g}", format_seconds(r.seconds)) for r in dear)
    rest = _steps(section), collectives, drop_empty_columns(("kernel", "kind", ">per step", ">time per step"), cells)
    return [table for table in (*_findings(section.findings, claimed), *rest) if table[1]]


def show_causes(console: Console, audited: Audit) -> None:
    """Show what costs most, from the dearest on."""
    all_of_them = words.other_causes(audited)
    for number, cause in enumerate(all_of_them[: words.MOST_CAUSES], 1):
        _say_all(console, f"{number}. {cause.said}", [words.cost_words(cause), *words.change_lines(cause)])
    if len(all_of_them) > words.MOST_CAUSES:
        say(console, f"   and {plural(len(all_of_them) - words.MOST_CAUSES, 'cheaper cause')} (--json)", "dim")


def _say_all(console: Console, first: str, rest: Sequence[str], style: str = "") -> None:
    """Say a sentence with its price, and below it what to change and what that gains, on one line if they fit."""
    price, *others = rest or [""]
    joined = f"{first}: {price}" if price else first
    fits = len(joined) <= console.width
    say(console, joined if fits else first, style)
    below = others if fits or not price else [price, *others]
    one = f"   {' · '.join(below)}"
    for line in [one] if len(one) <= console.width else [f"   {part}" for part in below]:
        if below:
            say(console, line)


def _findings(findings: Sequence[Finding], claimed: bool) -> Iterator[TableCells]:
    """Yield what was compared, or without a claim what files contradict or confirm by themselves after what they measured."""
    heads = ["item", ">predicted" if claimed else ">expected", ">measured", ">difference", ">tolerance", "verdict", "why"]
    alone = (f for f in findings if not claimed and f.verdict == UNKNOWN)
    cells = ((f.item, words.value_text(f.measured, f.unit), f.reason) for f in alone)
    yield drop_empty_columns(("item", ">measured", "why"), cells)
    compared = [f for f in findings if claimed or f.verdict != UNKNOWN]
    whole = claimed and any(f.predicted is not None for f in compared)
    yield (heads, [list(_cells(f)) for f in compared]) if whole else drop_empty_columns(heads, map(_cells, compared))


def _cells(f: Finding) -> tuple[Cell, ...]:
    allowed = words.share_text(f.tolerance) if f.predicted is not None else ""
    figures = (words.value_text(value, f.unit) for value in (f.predicted, f.measured))
    difference = words.difference_text(f.difference, f.base, f.unit) if f.tolerance != math.inf else ""  # a bound may be far off
    return (f.item, *figures, difference, allowed, Text(f.verdict, style=STYLES[f.verdict]), f.reason)


def _steps(section: Section) -> TableCells:
    """Return a typical step of the first ranks, and of all, as bars to one scale."""
    ranks, whole = by_rank(section), typical_of_ranks(section)
    if whole is None:
        return [], []
    rows = [(f"rank {rank}", steps, used) for rank, steps, used in ranks[:MOST_RANKS]]
    if len(ranks) > MOST_RANKS:
        rows.append((f"mean of {len(ranks)}", sum(s for _, s, _ in ranks), whole))
    longest = max(used.total_s for _, _, used in rows)
    columns = ("typical step", ">steps", ">length", "to scale", *(f">{sign} {part}" for part, sign in SIGNS.items()), ">hidden")
    cells: list[tuple[Cell, ...]] = []
    for name, steps, used in rows:
        length, spent = used.total_s, (used.compute_s, used.exposed_s, used.copy_s, used.idle_s, used.hidden_s)
        parts = (f"{seconds / length:.1%}" if length > 0 and seconds >= NOTHING * length else "-" for seconds in spent)
        cells.append((name, f"{steps:,}" if steps else "", format_seconds(length), bar(used, longest), *parts))
    return drop_empty_columns(columns, cells)


def bar(used: Usage, longest: float, signs: int = BAR) -> str:
    """Draw a step as a bar to the scale of ``longest``. Hidden communication counts as compute.

    >>> bar(Usage(10.0, 5.0, 2.5, 0.0, 0.0), 10.0, 8)
    '████▓▓░░'
    """
    parts = (used.compute_s, used.exposed_s, used.copy_s, used.idle_s)
    drawn, so_far = "", 0.0
    for sign, seconds in zip(SIGNS.values(), parts, strict=True):
        so_far += seconds
        drawn += sign * max(0, round(signs * so_far / longest) - len(drawn)) if longest > 0 else ""
    return drawn[:signs]


def short_kernel_name(name: str, most: int = MOST_SIGNS) -> str:
    """Shorten a kernel's name by what most of them have in common.

    >>> short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 44)
    'vectorized_elementwise_kernel<4, CUDAFuncto…'
    """
    if len(name) <= most:
        return name
    short = _COMMON.sub("", name[:NAME_SIGNS])
    return short if len(short) <= most else f"{short[: most - 1]}…"


def manner() -> Manner[Audit]:
    """Return how an audit shows itself: on a screen, as a document, as rows, as a figure."""
    from commtax.report.manners import Manner  # not for those who see a terminal alone

    def rows(audited: Audit) -> Rows:
        return [{"file": ", ".join(s.files)} | record("audit-finding", finding=f) for s in audited.sections for f in s.findings]

    return Manner(show_audit, words.audit_document, rows, plot_audit)


def plot_audit(audited: Audit, path: Path | None) -> Figure:
    """Plot how far each figure lies from its prediction, or without a claim the parts of each file's typical step."""
    from commtax.report.plots import plot_bars

    off = [(f.item, f.difference) for f in audited.findings if f.difference is not None and math.isfinite(f.difference)]
    if audited.claim and off:
        return plot_bars(off, "%", "measured against predicted", path)
    used = [u for s in audited.sections if (u := typical_of_ranks(s)) is not None]
    names = ("compute", "exposed communication", "copies", "idle")
    rows = [(name, getattr(u, part)) for u in used[:1] for name, part in zip(names, STEP_PARTS, strict=True)]
    return plot_bars(rows, "s", "a typical step", path)
