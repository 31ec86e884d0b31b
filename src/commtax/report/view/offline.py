"""The page's pictures of one answer of the command line, as data for a file that needs no server."""

from dataclasses import dataclass, replace
from typing import Literal

from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.report.documents import Value
from commtax.report.pipelines import Pipeline, page_pipeline
from commtax.report.view import View, priced, view_of
from commtax.report.view.front import ServedFront, TrainedFront, served_patch, serving_front, training_front
from commtax.report.view.state import SHOWN, State, shortened, written
from commtax.verbs.billing import StepBill
from commtax.verbs.explained import Explained
from commtax.verbs.grids import GRIDS, Cell, Grid, grid


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
    b, state = step.bill, written(step.bill.question)
    grids = {kind: grid_of(state, kind) for kind in GRIDS} if _same(b, state) else None
    pipeline = page_pipeline(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return Page("bill", view_of(step, state, command), grids, pipeline)


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Page:
    """The plans as points, and the winner's bill."""
    if not plans.trains:
        return Page("plan", _served(plans, command), plan=serving_front(plans))
    best = Explained(plans.step_of(plans.plans, 0)) if len(plans.plans) else None
    shown = view_of(best, written(best.bill.question), command) if best else None
    return Page("plan", shown, plan=training_front(plans))


def _served(plans: ServingPlans, command: str) -> View | None:
    """The decode step of one server of the best plan, where there is one."""
    if not len(plans.plans):
        return None
    q, lengths = plans.question, plans.question.requests
    keys: dict[str, Value] = {
        "m": q.model.key,
        "c": q.cluster.key,
        "e": q.engine.key,
        "il": int(lengths.input_len),
        "ol": int(lengths.output_len),
    }
    asked = State().but(keys | served_patch(plans, plans.plans, 0))
    try:
        return view_of(Explained(priced(asked)), asked, command)
    except ValueError:  # a model that is not of the catalogue, links that are not of the cluster's name
        return None


def _same(b: StepBill, state: State) -> bool:
    """Whether the state prices to this bill: then its neighbours are this bill's too."""
    try:
        return bool(abs(float(priced(state).step_s) / float(b.step_s) - 1) < 1e-9) and state["ph"] in SHOWN
    except ValueError:
        return False


def grid_of(state: State, kind: str) -> Grid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn = grid(priced(state), kind)
    return replace(drawn, cells=[_keyed(cell, state) for cell in drawn.cells])


def _keyed(cell: Cell, state: State) -> Cell:
    patch = None if cell.patch is None else {n: v for n, v in shortened(cell.patch).items() if v != state[n]}
    return replace(cell, patch=patch)
