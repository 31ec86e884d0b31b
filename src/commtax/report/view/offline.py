"""The page's pictures of one answer of the command line, as data for a file that needs no server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from commtax.planner.answers import ServingPlans, TrainPlans
from commtax.planner.rows import train_bill_of
from commtax.report.view import View, priced, view_of
from commtax.report.view.answers import grid_of
from commtax.report.view.front import ServedFront, TrainedFront, served_patch, serving_front, training_front
from commtax.report.view.pipeline import Pipeline, pipeline_of
from commtax.report.view.state import State, patched
from commtax.spec import SIZES
from commtax.verbs.billing import StepBill
from commtax.verbs.explained import Explained
from commtax.verbs.grids import GRIDS, Grid


@dataclass(frozen=True, slots=True)
class Page:
    """What the page's scripts find in the file, null where there is none."""

    kind: Literal["bill", "plan"]
    view: View | None
    grids: dict[str, Grid] | None = None
    pipeline: Pipeline | None = None
    plan: ServedFront | TrainedFront | None = None


def bill_page(step: Explained, command: str) -> Page:
    """A bill with all its pictures; heat maps only where the page's own controls can say the same question."""
    b, state = step.bill, state_of(step.bill)
    grids = {kind: grid_of(state, kind) for kind in GRIDS} if _same(b, state) else None
    pipeline = pipeline_of(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return Page("bill", view_of(step, state, command), grids, pipeline)


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Page:
    """The plans as points, and the winner's bill."""
    if not isinstance(plans, TrainPlans):
        q = plans.question
        names = State(model=q.model.key, cluster=q.cluster.key, engine=q.engine.key)
        state = replace(names, input_len=int(q.requests.input_len), output_len=int(q.requests.output_len))
        return Page("plan", _served(plans, state, command), plan=serving_front(plans))
    best = Explained(train_bill_of(plans, plans.plans, 0)) if len(plans.plans) else None
    shown = view_of(best, state_of(best.bill), command) if best else None
    return Page("plan", shown, plan=training_front(plans))


def _served(plans: ServingPlans, state: State, command: str) -> View | None:
    """The decode step of one server of the best plan, where there is one."""
    if not len(plans.plans):
        return None
    asked = patched(state, served_patch(plans, plans.plans, 0))
    try:
        return view_of(Explained(priced(asked)), asked, command)
    except ValueError:  # a model that is not of the catalogue, links that are not of the cluster's name
        return None


def state_of(b: StepBill) -> State:
    """The page's controls as a bill would have them."""
    asked, plan, s = b.question, b.question.plan, b.question.what_if
    common: Any = {
        "model": asked.model.key,
        "cluster": asked.cluster.key,
        "intra": "" if asked.cluster.bridge or asked.cluster.intra.key == asked.cluster.chip.intra else asked.cluster.intra.key,
        "inter": "" if asked.cluster.inter.key == asked.cluster.chip.inter else asked.cluster.inter.key,
        "engine": f"{asked.engine.key}@{asked.engine.version}" if asked.engine.note else asked.engine.key,
        **{axis: int(getattr(plan, axis)) for axis in SIZES},
        "dtype": plan.weights_dtype,
        "sequence_parallel": int(plan.sequence_parallel),
        "eager": int(s.eager),
        "library": s.library.partition("@")[0],
    }
    if not b.question.trains:
        kv = "" if plan.kv_dtype == plan.activations_dtype else plan.kv_dtype
        return State(**common, phase=b.question.phase, batch=int(b.question.batch), context=int(b.question.context), kv_dtype=kv)
    return State(
        **common,
        phase="train",
        batch=int(b.question.micro_batch),
        microbatches=int(plan.microbatches),
        context=int(b.question.context),
        zero=str(plan.zero),
        recompute=plan.recompute,
        schedule=plan.schedule,
        chunks=max(2, int(plan.chunks)),
        async_axes=",".join(b.async_axes) or "none",
    )


def _same(b: StepBill, state: State) -> bool:
    """Whether the state prices to this bill: then its neighbours are this bill's too."""
    try:
        return bool(abs(float(priced(state).step_s) / float(b.step_s) - 1) < 1e-9) and state.phase in ("decode", "prefill", "train")
    except ValueError:
        return False
