"""How an audit is shown where it is an answer in Python: on a screen, as a document, as rows, as a figure."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from commtax.report.documents import record
from commtax.report.manners import Manner, Rows
from commtax.report.plots import plot_bars
from commtax.runs.evidence.finding import STEP_PARTS, Audit, typical_of_ranks
from commtax.runs.report.audit_words import audit_document
from commtax.runs.report.auditing import show_audit

if TYPE_CHECKING:
    from commtax.report.plots import Figure


def manner() -> Manner[Audit]:
    def rows(audited: Audit) -> Rows:
        return [{"file": ", ".join(s.files)} | record("audit-finding", finding=f) for s in audited.sections for f in s.findings]

    return Manner(show_audit, audit_document, rows, plot_audit)


def plot_audit(audited: Audit, path: Path | None) -> Figure:
    """How far each figure lies from its prediction; without one, what the typical step of each file is made of."""
    off = [(f.item, f.difference) for f in audited.findings if f.difference is not None and isfinite(f.difference)]
    if audited.claim and off:
        return plot_bars(off, "%", "measured against predicted", path)
    used = [u for s in audited.sections if (u := typical_of_ranks(s)) is not None]
    names = ("compute", "exposed communication", "copies", "idle")
    rows = [(name, getattr(u, part)) for u in used[:1] for name, part in zip(names, STEP_PARTS, strict=True)]
    return plot_bars(rows, "s", "a typical step", path)
