"""The pipeline of a priced training step, run: its boxes in seconds, and the bubble counted."""

from __future__ import annotations

import math

import numpy as np

from commtax import napkin
from commtax.api.billing import StepBill
from commtax.api.train_billing import TrainBill
from commtax.cost.schedules import SCHEDULES
from commtax.cost.stages import virtual_layers
from commtax.report.documents import Document, plain
from commtax.sim.pipeline import Durations, run

MOST_BOXES = 8_000


def pipeline_of(b: StepBill | TrainBill) -> Document:
    """The schedule's boxes by stage; none where there is no pipeline, with the reason."""
    plan = b.setup.plan
    p, m = int(plan.pp), int(plan.microbatches)
    if not isinstance(b, TrainBill) or p == 1:
        note = "one stage: no pipeline" if p == 1 else "served batches are in flight on all stages together: no bubble is drawn"
        return _no_pipeline(note)
    kind, chunks = SCHEDULES[plan.schedule], int(plan.chunks)
    boxes = p * m * kind.passes(chunks) * 3
    if boxes > MOST_BOXES:
        return _no_pipeline(f"{boxes:,} boxes are more than the {MOST_BOXES:,} that are drawn: fewer microbatches or stages")
    timeline = run(kind, p, m, _durations(b, kind.passes(chunks)), chunks)
    bars = [
        {
            "stage": int(timeline.lane[i]),
            "start": float(timeline.start_s[i]),
            "end": float(timeline.end_s[i]),
            "kind": timeline.kinds[int(timeline.kind[i])],
            "microbatch": number,
        }
        for i, number in enumerate(np.asarray(timeline.number).tolist())
    ]
    idle = float(timeline.idle_s().mean()) / timeline.span_s
    words = f"(pp−1)/(M+pp−1) = {p - 1}/({m}+{p}−1) = {napkin.bubble_fraction(p, m):.1%} for 1F1B"
    note = f"{idle:.1%} idle as simulated; {float(b.bubble_fraction):.1%} of the whole step, which has taxes and an update too"
    return dict(
        plain(
            {
                "lanes": [f"stage {i}" for i in range(p)],
                "bars": bars,
                "total": timeline.span_s,
                "bubble_fraction": idle,
                "formula": words,
                "note": note,
            }
        )
    )


def _no_pipeline(note: str) -> Document:
    return {"lanes": [], "bars": [], "total": 0, "bubble_fraction": 0, "formula": "", "note": note}


def _durations(b: TrainBill, chunks: int) -> Durations:
    """Forward, input and weight gradients of one microbatch on one of a rank's chunks, as the bill has them."""
    m = float(b.setup.plan.microbatches) * chunks

    def total(*stages: str) -> float:
        return sum(float(x.total_s) for x in b.items if x.kind == "compute" and x.item.stage in stages) / m

    times = (total("forward"), total("backward", "recompute"), max(total("weight-gradient"), 1e-12))
    return Durations(*times, stage_factors=_depths(b, chunks))


def _depths(b: TrainBill, chunks: int) -> tuple[float, ...]:
    """Layers of each virtual stage over the mean of the fullest rank's, where interleaved stages are unequal."""
    plan, layers = b.setup.plan, b.setup.model.num_layers
    pp = int(plan.pp)
    if plan.schedule != "interleaved" or layers % (pp * chunks) == 0:
        return ()
    most = math.ceil(layers / pp) / chunks
    return tuple(size / most for chunk in virtual_layers(layers, pp, chunks) for size in chunk)
