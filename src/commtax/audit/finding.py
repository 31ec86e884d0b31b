"""One line of an audit: what was predicted, what a run left behind, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from commtax.api import StepBill, bill
from commtax.api.setup import positive
from commtax.readers.usage import Usage
from commtax.spec import Cluster, Model
from commtax.statement import Refusal

AGREE, DISAGREE, UNKNOWN = "agree", "disagree", "unknown"
SECONDS_TOLERANCE = 0.25
"""Relative, for seconds: the project's own bar for a calibrated machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``difference`` is relative to the prediction, or to ``base`` where the prediction is what that leaves.

    ``unit`` is s, bytes, tokens, share or "" for a count.
    """

    item: str
    predicted: float | None
    measured: float | None
    unit: str = ""
    tolerance: float = 0.0
    verdict: str = UNKNOWN
    reason: str = ""
    base: float | None = None

    @property
    def difference(self) -> float | None:
        if self.predicted is None or self.measured is None:
            return None
        base = self.predicted if self.base is None else self.base
        if base == 0:
            return 0.0 if self.measured == 0 else math.inf
        return (self.measured - self.predicted) / base


def compare(
    item: str,
    predicted: float | None,
    measured: float | None,
    unit: str = "",
    tolerance: float = 0.0,
    reason: str = "",
    base: float | None = None,
) -> Finding:
    """Agree within the tolerance, else disagree for ``reason``; unknown where one side is missing.

    >>> compare("weights", 7.5, 15.0, "bytes", 0.02, "as if not split").verdict
    'disagree'
    """
    found = Finding(item, predicted, measured, unit, tolerance, UNKNOWN, reason, base)
    if found.difference is None:
        return found
    near = abs(found.difference) <= tolerance * (1 + 1e-9)
    return replace(found, verdict=AGREE if near else DISAGREE, reason="" if near else reason)


def undecided(found: Finding, why: str) -> Finding:
    """The same figures without a verdict."""
    return replace(found, verdict=UNKNOWN, reason=why)


PHASES = ("decode", "prefill", "mixed")
"""Steps of a trace that can be compared."""


@dataclass(frozen=True)
class Question:
    """What the user says ran: names, plan, and the workload where the file does not tell it."""

    model: Model
    cluster: Cluster
    plan: Mapping[str, Any] = field(default_factory=dict)  # tp, pp, engine, dtype … as ``commtax.bill`` takes them
    limits: Mapping[str, Any] = field(default_factory=dict)  # max_model_len … as ``commtax.fit`` takes them
    phase: str = "decode"
    batch: int | None = None
    context: int | None = None
    output_len: int | None = None
    eager: bool = False
    pricing: Mapping[str, Any] = field(default_factory=dict)  # what changes seconds only: library …
    tolerance: float = SECONDS_TOLERANCE

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise Refusal(f"phase '{self.phase}': one of {', '.join(PHASES)}", "phase")
        for name in ("batch", "context", "output_len"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)

    @property
    def tp(self) -> int:
        return int(self.plan.get("tp", 1))

    @property
    def pp(self) -> int:
        return int(self.plan.get("pp", 1))

    @property
    def dp(self) -> int:
        return int(self.plan.get("dp", 1))

    def bill(self, phase: str = "decode", batch: int = 1, context: int = 1024, **changes: Any) -> StepBill:
        """The priced step of this plan; each is priced once, however many results are held against it."""
        key = (phase, batch, context, *sorted(changes.items()))
        if key not in self._priced:
            settings = {"eager": self.eager, **self.pricing, **self.plan, **changes}
            self._priced[key] = bill(self.model, self.cluster, phase=phase, batch=batch, context=context, **settings)
        return self._priced[key]

    @cached_property
    def _priced(self) -> dict[tuple[Any, ...], StepBill]:
        return {}

    @cached_property
    def distrust(self) -> str:
        """Why seconds of this cluster are no yardstick; "" where they are calibrated."""
        lines = [x for x in self.bill().lines if x.kind in ("compute", "comm") and x.source.kind == "assumed"]
        weak = dict.fromkeys(x.source.detail for x in lines)
        return f"seconds of {self.cluster.chip.key} are assumed ({'; '.join(weak)}): calibrate first" if weak else ""

    def seconds(
        self, item: str, predicted: float | None, measured: float | None, reason: str = "", base: float | None = None
    ) -> Finding:
        """A comparison of times, decided only where the prediction rests on measurements."""
        found = compare(item, predicted, measured, "s", self.tolerance, reason, base)
        return undecided(found, self.distrust) if self.distrust else found


@dataclass(frozen=True, slots=True)
class Section:
    """What one file (or the ranks of one job) says."""

    kind: str  # log | trace | bench
    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    usage: tuple[tuple[int, Usage], ...] = ()  # rank, and how its mean step was spent


@dataclass(frozen=True, slots=True)
class Audit:
    question: Question
    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(f for s in self.sections for f in s.findings)

    def count(self, verdict: str) -> int:
        return sum(f.verdict == verdict for f in self.findings)

    @property
    def verdict(self) -> str:
        """Disagree if anything does; agree if something does; else unknown."""
        return next((v for v in (DISAGREE, AGREE) if self.count(v)), UNKNOWN)
