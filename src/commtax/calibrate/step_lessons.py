"""Profiled steps into lessons: each part of a step beside what the catalogue says of the same work."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from commtax.calibrate.measurements import FLOOR_SLACK, STRANGE, MeasuredStep
from commtax.catalog.posterior import deployment_of
from commtax.cost.pricing import inference_bill
from commtax.ledger import Bill
from commtax.records import dataclass
from commtax.spec import KERNEL_PACES, STEP_PARTS, Profile, RunLesson
from commtax.thresholds import levels
from commtax.units import format_seconds
from commtax.verbs.settling import Settled, resolve_question, settle, terms_of
from commtax.verbs.slopes import step_seconds

LEVEL = levels(__name__)


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A profiled step as it is predicted: seconds of each part by the constants that it goes by, and in all."""

    question: Settled
    bill: Bill
    seconds: Mapping[str, float]
    by: Mapping[str, Mapping[str, float]]

    def slopes(self, part: str, prompts: bool) -> dict[str, float]:
        """How much each constant has to do with a part."""
        shares = {name: s / self.seconds[part] for name, s in self.by[part].items() if s > 0}
        return {**shares, "pace_prompt_steps": 1.0} if prompts else shares


def price_step(step: MeasuredStep, own: Profile) -> PricedStep:
    """With what a profile knows."""
    q = settle(resolve_question(step.model, step.cluster, {**step.options, "profile": own}))
    bill = inference_bill(terms_of(q), step.work, 1)
    prompts = bool(step.work.prefill_seqs)
    found = {name: float(s) for name, s in step_seconds(bill, q.engine, step.work.samples, prompts).items()}
    by = {part: {name: found.get(name, 0.0) for name in names} for part, names in STEP_PARTS.items()}
    seconds = {part: sum(held.values()) for part, held in by.items()}
    host = float(sum((x.exposed_s for x in bill.lines if x.kind == "host"), start=0.0))
    return PricedStep(q, bill, {**seconds, "host": host}, by)


def comparable(step: MeasuredStep, priced: PricedStep) -> Mapping[str, float]:
    """The parts that both have; kernels together where a kind that should be there is not: its name is not known."""
    measured, expected = step.parts, priced.seconds
    missing = [kind for kind in KERNEL_PACES if expected[kind] > LEVEL.least_part * expected["kernels"] and kind not in measured]
    if missing and "kernels" not in measured:
        others = {name: s for name, s in measured.items() if name not in KERNEL_PACES}
        measured = {"kernels": sum(s for name, s in measured.items() if name in KERNEL_PACES), **others}
    return {name: s for name, s in measured.items() if expected[name] > 0}


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A profiled step, and what is predicted of it before anything was learnt."""

    step: MeasuredStep
    base: PricedStep

    def reason_refused(self) -> str:
        """Why a profiled step cannot be of this deployment: kernels beat the hardware, or collectives are there for no reason."""
        step, q = self.step, self.base.question
        ran = sum(s for name, s in step.parts.items() if name in KERNEL_PACES or name == "kernels")
        least = float(self.base.bill.least_s(q.cluster.chip.memory_Bps))
        if ran < least * FLOOR_SLACK:
            beats = f"{format_seconds(ran)} of kernels per step beat the hardware, which needs {format_seconds(least)} at the least"
            where = f"{q.cluster.chip.key} at tp {q.plan.tp}"
            return f"{step.label}: {beats} on {where}; other hardware, weights or sizes than was said"
        sends = self.base.seconds["collectives"] > 0
        if sends is not ("collectives" in step.parts):
            found = "no collective in its steps" if sends else "its steps hold collectives"
            return f"{step.label}: {found}, and tp {q.plan.tp} {'has' if sends else 'needs'} {'some' if sends else 'none'}"
        return ""

    def without_strange(self) -> "tuple[AskedStep, list[str]]":
        """Without parts that are so far off that they are of something else, and what those are."""
        found = comparable(self.step, self.base)
        times = {part: s / self.base.seconds[part] for part, s in found.items()}
        strange = [part for part, x in times.items() if abs(np.log(x)) > STRANGE]
        said = [f"{self.step.label}: {part} take {times[part]:.3g} times what is expected, and are left out" for part in strange]
        parts = {part: s for part, s in found.items() if part not in strange}
        return AskedStep(replace(self.step, parts=parts), self.base), said

    def lessons(self, own: Profile) -> Iterable[RunLesson]:
        return part_lessons(self.step, self.base, price_step(self.step, own))


def part_lessons(step: MeasuredStep, base: PricedStep, now: PricedStep) -> Iterable[RunLesson]:
    """One for each part, with slopes where the constants have moved to."""
    q, work = now.question, step.work
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, step.disaggregated)
    logs = dict(q.engine.paces.learnt)
    seqs = float(work.samples)
    seen = float(work.cached_tokens + work.prefill_tokens + work.past_tokens) / max(1.0, seqs)
    for part, seconds in sorted(comparable(step, now).items()):
        slopes = now.slopes(part, bool(work.prefill_seqs))
        off = np.log(seconds / now.seconds[part]) + sum(slope * logs.get(name, 0.0) for name, slope in slopes.items())
        yield RunLesson(
            deployment=where,
            metric=part,
            clients=seqs * float(q.plan.dp),
            input_len=seen,
            output_len=float(bool(work.decode_seqs)),
            measured_s=seconds,
            catalogue_s=base.seconds[part],
            residual=float(off),
            slopes=slopes,
            noise=step.noise.get(part, 1.0) * (LEVEL.slowed if part == "host" and seconds > base.seconds[part] else 1.0),
            label=step.label,
        )
