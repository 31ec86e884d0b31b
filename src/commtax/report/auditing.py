"""An audit for a terminal, line by line, and as a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from commtax.audit.finding import AGREE, DISAGREE, UNKNOWN, Audit, Finding, Section
from commtax.report.documents import Record, plain
from commtax.report.tables import new_table, notes, say
from commtax.units import format_bytes, format_seconds

MOST_RANKS = 8  # whose times are told one by one
FINDING = ("item", "unit", "predicted", "measured", "difference", "base", "tolerance", "verdict", "reason")
_FORMATS: Mapping[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes, "share": "{:.1%}".format}
_STYLES = {AGREE: "green", DISAGREE: "bold red", UNKNOWN: "yellow"}


def show_audit(console: Console, found: Audit) -> None:
    """The verdict first, then a table for each file."""
    asked, own = found.claim.question, found.claim.question.profile
    counts = ", ".join(f"{found.count(v)} {v}" for v in (AGREE, DISAGREE, UNKNOWN))
    words = {AGREE: "the run agrees", DISAGREE: "the run disagrees", UNKNOWN: "nothing could be decided"}
    place = f"{asked.cluster.key}, profile {own.name}" if own else asked.cluster.key
    say(console, f"{asked.model.key} on {place}, TP {found.claim.tp}: {words[found.verdict]} ({counts})", "bold")
    for section in found.sections:
        say(console, f"{section.kind}: {', '.join(section.files)}", "dim")
        table = new_table("item", ">predicted", ">measured", ">difference", ">tolerance", "verdict", "why")
        for f in section.findings:
            allowed = _share(f.tolerance) if f.predicted is not None else ""
            cells = (_value(f.predicted, f.unit), _value(f.measured, f.unit), _share(f.difference, "+"), allowed)
            table.add_row(f.item, *cells, Text(f.verdict, style=_STYLES[f.verdict]), f.reason)
        console.print(table)
        notes(console, [*section.notes, *_spent(section)])


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


def audit_document(found: Audit) -> Record:
    """``audit --json``."""
    asked = found.claim.question
    return {
        "schema": "commtax.audit/1",
        "model": asked.model.key,
        "cluster": asked.cluster.key,
        "profile": asked.profile.name if asked.profile else None,
        "tp": found.claim.tp,
        "verdict": found.verdict,
        "counts": {v: found.count(v) for v in (AGREE, DISAGREE, UNKNOWN)},
        "sections": [
            {
                "kind": s.kind,
                "files": list(s.files),
                "findings": [_finding(f) for f in s.findings],
                "notes": list(s.notes),
                "usage": [{"rank": rank, **asdict(u), "busy_s": u.busy_s, "idle_s": u.idle_s} for rank, u in s.usage],
            }
            for s in found.sections
        ],
    }


def _finding(f: Finding) -> Record:
    shares = {"difference": _finite(f.difference), "tolerance": _finite(f.tolerance)}
    return {name: shares[name] if name in shares else plain(getattr(f, name)) for name in FINDING}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
