"""What the page asks for and ``--html`` writes: questions of its controls priced, and drawn by ``report.view``."""

from dataclasses import replace

from commtax.catalog.techniques import changes_of
from commtax.judgement.gains import GAINS, SAME
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.report.bills import why_view
from commtax.report.documents import Record, Value
from commtax.report.pipelines import page_pipeline
from commtax.report.view import Patch, glance, view
from commtax.report.view.pictures import served_patch, serving_front, training_front
from commtax.report.view.state import SHORT, SHOWN, State, short_keys, state_of
from commtax.report.worths import pays_text, worth_document, worth_row
from commtax.verbs.billing import StepBill, price
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.settling import settle
from commtax.verbs.slider_moves import GRIDS, PARTS, Cell, HeatGrid, grid, nearest_legal_plan
from commtax.verbs.why import every_why
from commtax.verbs.worth import Worth, worth_of


def state_view(state: State, command: str = "") -> Record:
    return view(ExplainedStep(price(settle(state.question))), state, command)


def state_glance(state: State) -> Record:
    """As much of a view as a moving slider waits for."""
    return glance(ExplainedStep(price(settle(state.question))), state)


def legal_alternative(state: State) -> Record | None:
    """What a refused state could be with other sizes; none where its sizes are not what is wrong."""
    try:
        alone = price(settle(state.but({SHORT[name]: 1 for name in PARTS}).question)).question
    except (ValueError, OverflowError):
        return None
    near = nearest_legal_plan(alone, {name: state[SHORT[name]] for name in PARTS})
    return {"patch": short_keys(near[0]), "text": near[1]} if near else None


def state_grid(state: State, kind: str) -> HeatGrid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn, cells = grid(price(settle(state.but({"rep": 1}).question)), kind), list[Cell]()  # of one server, which may grow
    for cell in drawn.cells:
        patch = None if cell.patch is None else {n: v for n, v in short_keys(cell.patch).items() if v != state[n]}
        patch = patch | {"rep": 1} if patch and "tp" in patch else patch
        cells.append(replace(cell, patch=patch))
    return replace(drawn, cells=cells)


def state_worth(state: State) -> Record:
    """What ``commtax worth --json`` prints, each technique with the keys that turn it on."""
    return _weighed(worth_of(state.question))


def _weighed(w: Worth) -> Record:
    """Techniques of a step, what each of them says in words, and the keys that turn it on beside those that are."""
    told = worth_document(w)
    told["weighed"] = [
        worth_row(row)
        | {"same": row.verdict == SAME, "gains": row.verdict == GAINS, "words": pays_text(row, bool(w.swept))}
        | {"patch": None if row.refused else _patch(row.asked, w)}
        for row in w.rows
    ]
    return told


def _patch(technique: str, w: Worth) -> Patch:
    now, on = state_of(w.question), state_of(w.question.vary(**changes_of(technique)))
    return {key: value for key, value in on.keys.items() if value != now[key]}


def worth_page(w: Worth, command: str) -> Record:
    """Techniques on the bill of a step."""
    return _page("worth", view(ExplainedStep(w.bill), state_of(w.question), command), worth=_weighed(w))


def _page(kind: str, shown: Record | None, **pictures: object) -> Record:
    """One answer of the command line as the page's scripts find it in a file that needs no server, null where there is none."""
    return {"kind": kind, "view": shown, **dict.fromkeys(("grids", "pipeline", "plan", "whys", "worth")), **pictures}


def bill_page(step: ExplainedStep, command: str) -> Record:
    """A bill with all its pictures; heat maps only where the page's own controls can say the same question."""
    b, state = step.bill, state_of(step.bill.question)
    grids = {kind: state_grid(state, kind) for kind in GRIDS} if _prices_alike(b, state) else None
    pipeline = page_pipeline(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return _page("bill", view(step, state, command), grids=grids, pipeline=pipeline, whys=[why_view(w) for w in every_why(b)])


def _prices_alike(b: StepBill, state: State) -> bool:
    """Whether the state prices to this bill: then its neighbours are this bill's too."""
    try:
        return bool(abs(float(price(settle(state.question)).step_s) / float(b.step_s) - 1) < 1e-9) and state["ph"] in SHOWN
    except ValueError:
        return False


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Record:
    """The plans as points, and the winner's bill."""
    if not plans.trains:
        return _page("plan", _best_plan_step(plans, command), plan=serving_front(plans))
    best = ExplainedStep(plans.step_of(plans.plans, plans.recommended)) if len(plans.plans) else None
    shown = view(best, state_of(best.bill.question), command) if best else None
    return _page("plan", shown, plan=training_front(plans))


def _best_plan_step(plans: ServingPlans, command: str) -> Record | None:
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
