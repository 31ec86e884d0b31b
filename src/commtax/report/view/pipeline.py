"""The pipeline of a priced training step, run: its boxes in seconds, and the bubble counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from commtax import napkin
from commtax.cost.schedules import SCHEDULES, virtual_layers
from commtax.sim.pipeline import Durations, run
from commtax.verbs.billing import StepBill

MOST_BOXES = 8_000


@dataclass(frozen=True, slots=True)
class Box:
    stage: int
    start: float
    end: float
    kind: Literal["F", "B", "W", "BW", "F&B"]
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Boxes on the stages' lanes, in seconds."""

    lanes: list[str] = field(default_factory=list)
    bars: list[Box] = field(default_factory=list)
    total: float = 0.0
    bubble_fraction: float = 0.0
    formula: str = ""
    note: str


def pipeline_of(b: StepBill) -> Pipeline:
    """The schedule's boxes by stage; none where there is no pipeline, with the reason."""
    plan = b.question.plan
    p, m = int(plan.pp), int(plan.microbatches)
    if not b.question.trains or p == 1:
        note = "one stage: no pipeline" if p == 1 else "served batches are in flight on all stages together: no bubble is drawn"
        return Pipeline(note=note)
    kind, chunks = SCHEDULES[plan.schedule], int(plan.chunks)
    boxes = p * m * kind.passes(chunks) * 3
    if boxes > MOST_BOXES:
        return Pipeline(note=f"{boxes:,} boxes are more than the {MOST_BOXES:,} that are drawn: fewer microbatches or stages")
    timeline = run(kind, p, m, _durations(b, kind.passes(chunks)), chunks)
    spans = zip(timeline.lane, timeline.start_s, timeline.end_s, timeline.kind, np.asarray(timeline.number), strict=True)
    kinds: Any = timeline.kinds
    bars = [Box(int(lane), float(start), float(end), kinds[int(kind)], int(number)) for lane, start, end, kind, number in spans]
    idle = float(timeline.idle_s().mean()) / timeline.span_s
    closed_form = f"(pp−1)/(M+pp−1) = {p - 1}/({m}+{p}−1) = {napkin.bubble_fraction(p, m):.1%} for 1F1B"
    note = f"{idle:.1%} idle as simulated; {float(b.bubble_fraction):.1%} of the whole step, which has taxes and an update too"
    return Pipeline(
        lanes=[f"stage {i}" for i in range(p)],
        bars=bars,
        total=timeline.span_s,
        bubble_fraction=idle,
        formula=closed_form,
        note=note,
    )


def _durations(b: StepBill, chunks: int) -> Durations:
    """Forward, input and weight gradients of one microbatch on one of a rank's chunks, as the bill has them."""
    m = float(b.question.plan.microbatches) * chunks

    def total(*stages: str) -> float:
        return sum(float(x.total_s) for x in b.items if x.kind == "compute" and x.item.stage in stages) / m

    times = (total("forward"), total("backward", "recompute"), max(total("weight-gradient"), 1e-12))
    return Durations(*times, stage_factors=_depths(b, chunks))


def _depths(b: StepBill, chunks: int) -> tuple[float, ...]:
    """Layers of each virtual stage over the mean of the fullest rank's, where interleaved stages are unequal."""
    plan, layers = b.question.plan, b.question.model.num_layers
    pp = int(plan.pp)
    if plan.schedule != "interleaved" or layers % (pp * chunks) == 0:
        return ()
    most = math.ceil(layers / pp) / chunks
    return tuple(size / most for chunk in virtual_layers(layers, pp, chunks) for size in chunk)
