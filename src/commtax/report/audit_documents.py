"""An audit as a document of numbers that are all finite."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from commtax.evidence.finding import AGREE, DISAGREE, UNKNOWN, Audit, Culprit, Section
from commtax.evidence.lacking import missing
from commtax.report.audit_words import causes, culprit_sentence, summary
from commtax.report.documents import Record, plain, record


def audit_document(audited: Audit) -> Record:
    """``audit --json``."""
    made = record(
        "audit",
        audited=audited,
        missing=missing(audited),
        summary=summary(audited),
        culprit=told_culprit(audited),
        causes=causes(audited),
        counts={v: audited.count(v) for v in (AGREE, DISAGREE, UNKNOWN)},
        steps=[row for s in audited.sections for row in s.steps],
        collectives=[row for s in audited.sections for row in s.collectives],
        facts=merged(s.facts for s in audited.sections),
        sections=[_section(s) for s in audited.sections],
    )
    return plain(made)  # type: ignore[no-any-return]


def told_culprit(audited: Audit) -> Culprit | None:
    """Who is to blame, in words where it has none."""
    found = audited.culprit
    return replace(found, said=found.said or culprit_sentence(found)) if found else None


def _section(s: Section) -> Record:
    return record(
        "audit-section",
        section=s,
        findings=[record("audit-finding", finding=f) for f in s.findings],
        usage=[{"rank": rank, **asdict(u), "busy_s": u.busy_s, "idle_s": u.idle_s} for rank, u in s.usage],
        kernels=[record("audit-kernel", row=row) for row in s.kernels],
    )


def merged(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Facts of several files under one name each; those that differ stand beside each other."""
    found: dict[str, list[str]] = {}
    for of_file in each:
        for name, value in of_file.items():
            found.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in found.items()}
