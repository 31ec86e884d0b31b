"""What the page asks for and ``--html`` writes: questions of its controls priced, and drawn by ``report.view``."""

from dataclasses import replace

from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.report.documents import Record, Value
from commtax.report.pipelines import page_pipeline
from commtax.report.view import view
from commtax.report.view.pictures import served_patch, serving_front, training_front
from commtax.report.view.state import SHOWN, State, shortened, written
from commtax.report.whys import why_view
from commtax.spec import SIZES
from commtax.verbs.billing import StepBill, price
from commtax.verbs.explained import Explained
from commtax.verbs.grids import GRIDS, Cell, Grid, grid
from commtax.verbs.moves import instead
from commtax.verbs.why import every_why


def state_view(state: State, command: str = "") -> Record:
    """All that is shown of a state at once."""
    return view(Explained(price(state.question)), state, command)


def legal_instead(state: State) -> Record | None:
    """What a refused state could be with other sizes; none where its sizes are not what is wrong."""
    try:
        alone = price(state.but(dict.fromkeys(SIZES, 1)).question).question
    except (ValueError, OverflowError):
        return None
    near = instead(alone, {axis: state[axis] for axis in SIZES})
    return {"patch": shortened(near[0]), "text": near[1]} if near else None


def state_grid(state: State, kind: str) -> Grid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn, cells = grid(price(state.question), kind), list[Cell]()
    for cell in drawn.cells:
        patch = None if cell.patch is None else {n: v for n, v in shortened(cell.patch).items() if v != state[n]}
        cells.append(replace(cell, patch=patch))
    return replace(drawn, cells=cells)


def _page(kind: str, shown: Record | None, **pictures: object) -> Record:
    """One answer of the command line as the page's scripts find it in a file that needs no server, null where there is none."""
    return {"kind": kind, "view": shown, **dict.fromkeys(("grids", "pipeline", "plan", "whys")), **pictures}


def bill_page(step: Explained, command: str) -> Record:
    """A bill with all its pictures; heat maps only where the page's own controls can say the same question."""
    b, state = step.bill, written(step.bill.question)
    grids = {kind: state_grid(state, kind) for kind in GRIDS} if _same(b, state) else None
    pipeline = page_pipeline(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return _page("bill", view(step, state, command), grids=grids, pipeline=pipeline, whys=[why_view(w) for w in every_why(b)])


def _same(b: StepBill, state: State) -> bool:
    """Whether the state prices to this bill: then its neighbours are this bill's too."""
    try:
        return bool(abs(float(price(state.question).step_s) / float(b.step_s) - 1) < 1e-9) and state["ph"] in SHOWN
    except ValueError:
        return False


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Record:
    """The plans as points, and the winner's bill."""
    if not plans.trains:
        return _page("plan", _served(plans, command), plan=serving_front(plans))
    best = Explained(plans.step_of(plans.plans, plans.recommended)) if len(plans.plans) else None
    shown = view(best, written(best.bill.question), command) if best else None
    return _page("plan", shown, plan=training_front(plans))


def _served(plans: ServingPlans, command: str) -> Record | None:
    """The decode step of one server of the best plan, where there is one."""
    if not len(plans.plans):
        return None
    q, lengths = plans.question, plans.question.requests
    keys: dict[str, Value] = {"m": q.model.key, "c": q.cluster.key, "e": q.engine.key}
    keys |= {"il": int(lengths.input_len), "ol": int(lengths.output_len)}
    try:
        return state_view(State().but(keys | served_patch(plans, plans.plans, plans.recommended)), command)
    except ValueError:  # a model that is not of the catalogue, links that are not of the cluster's name
        return None
