"""Two runs beside each other: what changed in their typical steps, and what that has to do with how long a step takes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.files import table
from commtax.runs.evidence.finding import Audit, CollectiveRow, Finding, SentCollectives, typical_of_ranks
from commtax.thresholds import levels

LEVEL = levels(__name__)

PARTS = {"compute": "compute_s", "exposed communication": "exposed_s", "copies": "copy_s", "idle": "idle_s"}
"""Of a step, each second once."""
LESS_IS_WORSE = frozenset(code for codes in table("judgement/less_is_worse.toml").values() for code in codes)
STEPS = "trace"  # the kind of sections that list steps, whose other figures are parts of the step
COURSE = ("steps", "algorithms", "pid", "py", "running", "waiting", "kv usage", "preemptions")
"""Facts that follow from a run's course: they are no reason for it, and are compared elsewhere."""
SAME_S = 1e-9  # what a profiler's clock resolves


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of both runs, None where a run has none. ``unit`` is as in ``Finding``."""

    item: str
    before: float | None
    after: float | None
    unit: str = "s"
    less_is_worse: bool = False
    inside: bool = False  # of a step, which is judged as a whole

    @property
    def delta(self) -> float:
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def relative(self) -> float | None:
        """Relative to the first run, or None where one side is missing or the first is 0."""
        if self.before is None or self.after is None or not self.before:
            return None if self.delta else 0.0
        return self.delta / self.before

    def is_worse(self, tolerance: float) -> bool:
        """Return whether it is longer, or a lower rate or less room, by more than the tolerance. Others have no direction."""
        if self.relative is None or not math.isfinite(self.relative):
            return False
        return self.relative < -tolerance if self.less_is_worse else self.unit == "s" and self.relative > tolerance

    @property
    def reversed(self) -> FigureChange:
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class FactChange:
    """A version, a flag, a host …, "" where a run does not state it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SentChange:
    op: str
    ranks: int
    before: SentCollectives
    after: SentCollectives

    @property
    def exposed_s(self) -> float:
        """How much more of it is exposed."""
        return self.after.exposed_s - self.before.exposed_s


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that changed. ``per_step``: collectives are those of one step."""

    before: Audit
    after: Audit
    tolerance: float
    facts: tuple[FactChange, ...]
    shared_facts: int  # facts that both state
    step: FigureChange | None  # None where one of the runs has no step
    parts: tuple[FigureChange, ...]
    hidden: FigureChange | None
    metrics: tuple[FigureChange, ...]
    collectives: tuple[SentChange, ...]
    kernels: tuple[FigureChange, ...]  # most moved first
    per_step: bool

    @property
    def worse(self) -> tuple[FigureChange, ...]:
        """Steps and metrics that are worse in the second run by more than the tolerance."""
        judged = (self.step, *(m for m in self.metrics if not m.inside)) if self.step else self.metrics
        return tuple(c for c in judged if c.is_worse(self.tolerance))

    @property
    def noteworthy(self) -> list[FigureChange]:
        """Parts of the step that moved most, the dearest first."""
        moved = sum(abs(p.delta) for p in self.parts)
        kept = [p for p in self.parts if abs(p.delta) >= max(SAME_S, LEVEL.noteworthy * moved)]
        return sorted(kept, key=lambda p: -abs(p.delta))


def difference(before: Audit, after: Audit, tolerance: float = LEVEL.tolerance) -> Difference:
    """Compare the second run with the first."""
    a, b = (next((used for s in run.sections if (used := typical_of_ranks(s))), None) for run in (before, after))
    ours, theirs = _facts(before), _facts(after)
    facts = [FactChange(name, ours.get(name, ""), theirs.get(name, "")) for name in dict.fromkeys((*ours, *theirs))]
    both = a is not None and b is not None
    return Difference(
        before,
        after,
        tolerance,
        tuple(f for f in facts if ours.get(f.name) != theirs.get(f.name)),
        len(ours.keys() & theirs.keys()),
        FigureChange("step", a.total_s, b.total_s) if a and b else None,
        tuple(FigureChange(name, getattr(a, field), getattr(b, field)) for name, field in PARTS.items()) if both else (),
        FigureChange("hidden communication", a.hidden_s, b.hidden_s) if a and b else None,
        tuple(_metrics(before, after)),
        tuple(_collectives(before, after, (_steps(before), _steps(after)) if both else (1, 1))),
        tuple(_kernels(before, after)),
        both,
    )


def _steps(audited: Audit) -> int:
    """Return the steps of one rank, or 1 where they are not listed."""
    steps = next((s.steps for s in audited.sections if s.steps), ())
    return max(Counter(row.rank for row in steps).values(), default=1)


def _facts(audited: Audit) -> dict[str, str]:
    """Return facts by name, joining the values of several files that differ."""
    values_by_name: dict[str, dict[str, None]] = {}
    for section in audited.sections:
        for name, value in section.facts.items():
            if name not in COURSE:
                values_by_name.setdefault(name, {})[value] = None
    return {name: ", ".join(values) for name, values in values_by_name.items()}


def _metrics(before: Audit, after: Audit) -> Iterator[FigureChange]:
    """Yield measured figures that both runs have, matched by kind of file, code, subject and order."""
    ours, theirs = _measured_findings(before), _measured_findings(after)
    for key, finding in ours.items():
        if other := theirs.get(key):
            figures = finding.measured, other.measured
            yield FigureChange(str(finding.item), *figures, finding.unit, finding.code in LESS_IS_WORSE, key[0] == STEPS)


def _measured_findings(audited: Audit) -> dict[tuple[str, str, str, int], Finding]:
    by_key: dict[tuple[str, str, str, int], Finding] = {}
    met: Counter[tuple[str, str, str]] = Counter()
    for section in audited.sections:
        for finding in section.findings:
            key = section.kind, finding.code, finding.of
            if finding.measured is not None and math.isfinite(finding.measured):
                by_key[*key, met[key]] = finding
            met[key] += 1
    return by_key


def _collectives(before: Audit, after: Audit, steps: tuple[int, int]) -> Iterator[SentChange]:
    """Yield changes by kind and group size, since names of groups differ from run to run."""
    ours, theirs = (_sent_by_kind(run, count) for run, count in zip((before, after), steps, strict=True))
    nothing = SentCollectives()
    changes = (SentChange(*key, ours.get(key, nothing), theirs.get(key, nothing)) for key in dict.fromkeys((*ours, *theirs)))
    yield from sorted(changes, key=lambda c: -abs(c.exposed_s))


def _sent_by_kind(audited: Audit, steps: int) -> dict[tuple[str, int], SentCollectives]:
    """Return what a step sends as its sections state it, else the rows of all steps over their number."""
    if sent := [s.sent for s in audited.sections if s.sent is not None]:
        return dict(sent[0])
    rows: dict[tuple[str, int], list[CollectiveRow]] = defaultdict(list)
    for section in audited.sections:
        for row in section.collectives:
            rows[row.op, row.ranks].append(row)
    by_kind: dict[tuple[str, int], SentCollectives] = {}
    for key, alike in rows.items():
        sizes = [r.nbytes for r in alike]
        nbytes = None if any(n is None for n in sizes) else float(sum(n for n in sizes if n is not None)) / steps
        figures = ("count", "wire_s", "wait_s", "hidden_s")
        count, wire, wait, hidden = (sum(getattr(r, name) for r in alike) / steps for name in figures)
        algorithms = tuple(dict.fromkeys(r.algorithm for r in sorted(alike, key=lambda r: -r.wire_s) if r.algorithm))
        by_kind[key] = SentCollectives(count, nbytes, wire, wait, hidden, algorithms)
    return by_kind


def _kernels(before: Audit, after: Audit) -> Iterator[FigureChange]:
    """Yield the seconds a step under each name, most moved first, None where a run has no such kernel."""
    ours, theirs = _by_name(before), _by_name(after)
    if not ours or not theirs:
        return
    changes = (FigureChange(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys((*ours, *theirs)))
    yield from sorted((c for c in changes if abs(c.delta) >= SAME_S), key=lambda c: -abs(c.delta))


def _by_name(audited: Audit) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for row in (row for section in audited.sections for row in section.kernels):
        seconds[row.name] += row.seconds
    return dict(seconds)
