"""An audit as a document of numbers that are all finite."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields

from commtax.evidence.finding import AGREE, DISAGREE, UNKNOWN, Audit, Cause, CollectiveRow, KernelRow, Section, StepRow
from commtax.evidence.lacking import missing
from commtax.report.audit_words import causes, culprit_sentence, summary
from commtax.report.documents import Record, facts

SCHEMA = "commtax.audit/2"
FINDING = (
    "code",
    "item",
    "unit",
    "predicted",
    "measured",
    "difference",
    "base",
    "tolerance",
    "verdict",
    "reason",
    "evidence",
    "low",
    "high",
)

STEP = tuple(f.name for f in fields(StepRow))


def audit_document(audited: Audit) -> Record:
    """``audit --json``."""
    asked = audited.claim.question if audited.claim else None
    document: Record = {
        "schema": SCHEMA,
        "model": asked.model.key if asked else None,
        "cluster": asked.cluster.key if asked else None,
        "profile": asked.profile.name if asked and asked.profile else None,
        "tp": audited.claim.tp if audited.claim else None,
        "verdict": audited.verdict,
        "missing": missing(audited),
        "summary": summary(audited),
        "culprit": culprit_record(audited),
        "causes": [cause_record(c) for c in causes(audited)],
        "counts": {v: audited.count(v) for v in (AGREE, DISAGREE, UNKNOWN)},
        "steps": [step_record(r) for s in audited.sections for r in s.steps],
        "collectives": [collective_record(r) for s in audited.sections for r in s.collectives],
        "facts": merged(s.facts for s in audited.sections),
        "sections": [_section(s) for s in audited.sections],
        "notes": list(audited.notes),
    }
    return finite(document)  # type: ignore[return-value]


def culprit_record(audited: Audit) -> Record | None:
    found = audited.culprit
    return asdict(found) | {"said": found.said or culprit_sentence(found)} if found else None


def cause_record(cause: Cause) -> Record:
    return asdict(cause)


def step_record(row: StepRow) -> Record:
    return facts(row, *STEP)  # of a hundred thousand steps asdict would copy each figure


def collective_record(row: CollectiveRow) -> Record:
    """In the order of its fields, bytes under their own name."""
    return {"bytes" if name == "nbytes" else name: value for name, value in asdict(row).items()}


def kernel_record(row: KernelRow) -> Record:
    return {"name": row.name, "kind": row.kind, "count_per_step": row.count, "seconds_per_step": row.seconds}


def _section(s: Section) -> Record:
    usage = [{"rank": rank, **asdict(u), "busy_s": u.busy_s, "idle_s": u.idle_s} for rank, u in s.usage]
    return {
        **facts(s, "kind", "files"),
        "findings": [facts(f, *FINDING) for f in s.findings],
        "notes": list(s.notes),
        "usage": usage,
        "causes": [cause_record(c) for c in s.causes],
        "culprit": asdict(s.culprit) if s.culprit else None,
        "steps": [step_record(r) for r in s.steps],
        "collectives": [collective_record(r) for r in s.collectives],
        "kernels": [kernel_record(r) for r in s.kernels],
        "facts": dict(s.facts),
    }


def merged(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Facts of several files under one name each; those that differ stand beside each other."""
    found: dict[str, list[str]] = {}
    for of_file in each:
        for name, value in of_file.items():
            found.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in found.items()}


def finite(value: object) -> object:
    """The same with null for numbers that are none, or endless."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
