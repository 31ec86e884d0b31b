"""A pipeline that was run: its bubble counted and by closed form, over the total and over the ideal; also that of a priced step."""

import math
from dataclasses import dataclass

import numpy as np

from commtax.cost.schedules import SCHEDULES, Schedule, virtual_layers
from commtax.sim.pipeline import Durations, run
from commtax.timeline import Timeline
from commtax.verbs.billing import StepBill


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A schedule that was run, with its question."""

    kind: Schedule
    p: int
    m: int
    v: int
    times: Durations
    timeline: Timeline

    @property
    def uniform(self) -> bool:
        """Whether the closed form speaks of this run: equal stages, no transfers, and times that it covers."""
        t = self.times
        plain_run = not (t.transfer or t.rank_factors or len(t.stage_factors) or len(t.microbatch_factors) or t.overlapped)
        return plain_run and (self.kind.any_times or t.forward == t.backward == t.weight)

    @property
    def idle_counted_s(self) -> float:
        """Mean idle time of a rank within the whole run, counted."""
        return float(np.mean(self.timeline.idle_s()))

    @property
    def idle_closed_form_s(self) -> float | None:
        t = self.times
        return float(self.kind.idle(self.p, t.forward, t.backward, t.weight)) if self.uniform else None

    @property
    def over_total(self) -> float:
        return self.idle_counted_s / self.timeline.span_s

    @property
    def over_ideal(self) -> float:
        return self.idle_counted_s / float(np.mean(self.timeline.busy_s()))

    @property
    def peaks(self) -> list[int]:
        return [int(self.kind.peak(self.p, self.m, self.v, i)) for i in range(self.p)]


def run_pipeline(kind: Schedule, p: int, m: int, v: int, times: Durations) -> PipelineRun:
    """A schedule of ``p`` stages, ``m`` microbatches and ``v`` chunks a rank, run."""
    return PipelineRun(kind, p, m, v, times, run(kind, p, m, times, v))


def step_pipeline(b: StepBill) -> PipelineRun:
    """The pipeline of a priced training step, in seconds."""
    plan, kind = b.question.plan, SCHEDULES[b.question.plan.schedule]
    v = int(plan.chunks)
    return run_pipeline(kind, int(plan.pp), int(plan.microbatches), v, _durations(b, kind.passes(v)))


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
