"""An audit for a terminal, line by line, and as a document."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from commtax.audit.finding import AGREE, DISAGREE, FAULT, UNKNOWN, Audit, Finding, Section
from commtax.report.documents import Record, facts
from commtax.report.tables import notes, say, show_table
from commtax.units import format_bytes, format_seconds

MOST_RANKS = 8  # whose times are told one by one
FINDING = ("item", "unit", "predicted", "measured", "difference", "base", "tolerance", "verdict", "reason")
_FORMATS: Mapping[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes, "share": "{:.1%}".format}
VERDICTS = {
    AGREE: ("the run agrees", "green"),
    DISAGREE: ("the run disagrees", "bold red"),
    UNKNOWN: ("nothing could be decided", "yellow"),
    FAULT: ("somebody is to blame", "bold red"),
}
"""Each in words, and its colour."""


def show_audit(console: Console, audited: Audit) -> None:
    """The verdict first, then a table for each file."""
    counts = ", ".join(f"{audited.count(v)} {v}" for v in (AGREE, DISAGREE, UNKNOWN))
    say(console, f"{_claimed(audited)}{VERDICTS[audited.verdict][0]} ({counts})", "bold")
    for section in audited.sections:
        say(console, f"{section.kind}: {', '.join(section.files)}", "dim")
        columns = ("item", ">predicted", ">measured", ">difference", ">tolerance", "verdict", "why")
        show_table(console, columns, map(_cells, section.findings))
        notes(console, [*section.notes, *_spent(section)])


def _claimed(audited: Audit) -> str:
    if audited.claim is None:
        return ""
    asked, own = audited.claim.question, audited.claim.question.profile
    place = f"{asked.cluster.key}, profile {own.name}" if own else asked.cluster.key
    return f"{asked.model.key} on {place}, TP {audited.claim.tp}: "


def _cells(f: Finding) -> tuple[str | Text, ...]:
    allowed = _share(f.tolerance) if f.predicted is not None else ""
    figures = (_value(f.predicted, f.unit), _value(f.measured, f.unit), _share(f.difference, "+"), allowed)
    return (f.item, *figures, Text(f.verdict, style=VERDICTS[f.verdict][1]), f.reason)


def _spent(section: Section) -> Iterator[str]:
    """Busy and idle time of a mean step, of the first ranks."""
    for rank, u in section.usage[:MOST_RANKS]:
        under = f" (and {format_seconds(u.hidden_s)} under compute)" if u.hidden_s > 0 else ""
        parts = (f"computes {format_seconds(u.compute_s)}", f"communicates {format_seconds(u.exposed_s)}{under}")
        rest = (f"copies {format_seconds(u.copy_s)}", f"idles {format_seconds(u.idle_s)} ({u.idle_share:.1%})")
        yield f"rank {rank}, a step of {format_seconds(u.total_s)}: {', '.join((*parts, *rest))}"
    if len(section.usage) > MOST_RANKS:
        shares = [u.idle_share for _, u in section.usage]
        yield f"{len(section.usage)} ranks idle {min(shares):.1%} to {max(shares):.1%} of a step"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _share(value: float | None, sign: str = "") -> str:
    if value is None or not math.isfinite(value):
        return ""
    return "exact" if value == 0 and not sign else f"{value:{sign}.1%}"


def audit_document(audited: Audit) -> Record:
    """``audit --json``."""
    asked = audited.claim.question if audited.claim else None
    return {
        "schema": "commtax.audit/1",
        "model": asked.model.key if asked else None,
        "cluster": asked.cluster.key if asked else None,
        "profile": asked.profile.name if asked and asked.profile else None,
        "tp": audited.claim.tp if audited.claim else None,
        "verdict": audited.verdict,
        "culprit": audited.culprit,
        "counts": {v: audited.count(v) for v in (AGREE, DISAGREE, UNKNOWN)},
        "sections": [_section(s) for s in audited.sections],
    }


def _section(s: Section) -> Record:
    usage = [{"rank": rank, **asdict(u), "busy_s": u.busy_s, "idle_s": u.idle_s} for rank, u in s.usage]
    return facts(s, "kind", "files") | {"findings": [facts(f, *FINDING) for f in s.findings], "notes": s.notes, "usage": usage}
