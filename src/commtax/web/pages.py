"""What the page asks for and ``--html`` writes: questions of its controls priced and fitted, and drawn by ``report.view``."""

from contextlib import suppress
from dataclasses import replace

from commtax.catalog.techniques import changes_of
from commtax.judgement.gains import GAINS, SAME
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.question import AS_IT_IS
from commtax.report.bills import why_view
from commtax.report.documents import Record, Value
from commtax.report.exact_bytes import fit_document, fit_words, lack_sentence, resident_parts
from commtax.report.pipelines import page_pipeline
from commtax.report.view import Patch, glance, view
from commtax.report.view.pictures import served_patch, serving_front, training_front
from commtax.report.view.slider_moves import GRIDS, PARTS, Cell, HeatGrid, grid, nearest_legal_plan
from commtax.report.view.state import SHORT, SHOWN, State, arguments, command_line, on_page, refusal, short_keys, state_of
from commtax.report.worths import pays_text, worth_document, worth_row
from commtax.verbs.billing import price
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.fit_advice import add_advice
from commtax.verbs.fitting import Fit, holds
from commtax.verbs.settling import settle
from commtax.verbs.train_fitting import TrainFit, train_holds
from commtax.verbs.why import every_why
from commtax.verbs.worth import Worth, worth_of


def fit_answer(state: State) -> Record:
    return fit_document(_judge(state))


def memory_answer(state: State) -> Record:
    """Return whether the plan fits, as ``fit`` prints it and as the page shows it, beside every other TP size."""
    judged = _judge(state)
    lack = "" if judged.fits else f". {lack_sentence(judged)}"
    length = "" if judged.trains else f", for requests of up to {judged.question.limits.max_model_len:,.0f} tokens"
    words = arguments(state)
    if not judged.trains:
        for name in ("--batch", "--context", "--phase"):
            if name in words:
                at = words.index(name)
                del words[at : at + 2]
        words += ["--max-model-len", str(state.longest), *(["-tp", "1"] if state["tp"] == 1 else [])]  # else the smallest is found
    powers = {2**i for i in range(state.question.cluster.num_gpus.bit_length())}
    weights = len(judged.weights) if isinstance(judged, Fit) else 0  # these come first, and are one part of the bar
    parts = enumerate(resident_parts(judged))
    return {
        **fit_document(judged),
        "sentence": f"{fit_words(judged)}{length}{lack}.",
        "advised": [on_page(line) for line in judged.advice],
        "parts": [{"name": x, "of": "weights" if i < weights else x, "nbytes": n, "note": note} for i, (x, n, note) in parts],
        "capacity_bytes": float(judged.question.cluster.chip.visible_bytes),
        "sizes": [_size(state, tp) for tp in sorted(powers | {int(state["tp"])})],
        "command": command_line(state, "fit", *words),
    }


def _judge(state: State) -> Fit | TrainFit:
    q = state.question
    if q.trains:
        return train_holds(settle(q))
    return add_advice(holds(q.but(what_if=AS_IT_IS, sequence_parallel=False, max_model_len=state.longest)))


def _size(state: State, tp: int) -> Record:
    patch: Patch = {"tp": tp} if tp == state["tp"] else {"tp": tp, "rep": 1}  # so many need not have room
    try:
        judged = _judge(state.but(patch))
    except (ValueError, OverflowError) as error:
        return {"tp": tp, "refused": str(refusal(error) if isinstance(error, ValueError) else error), "patch": None}
    row: Record = {"tp": tp, "refused": "", "fits": judged.fits, "patch": patch}
    if judged.trains:
        free = float(judged.budget_bytes) - float(judged.memory.total)
        return row | {"weights_bytes": float(judged.memory.parameters), "free_bytes": free}
    row |= {"weights_bytes": judged.weights_bytes, "kv_bytes": max(0.0, judged.kv_bytes)}
    return row | {"kv_tokens": max(0, judged.kv_tokens), "requests": max(0.0, judged.max_concurrency)}


def state_view(state: State, command: str = "") -> Record:
    return view(ExplainedStep(price(settle(state.question))), state, command)


def state_glance(state: State) -> Record:
    """Return as much of a view as a moving slider waits for."""
    return glance(ExplainedStep(price(settle(state.question))), state)


def legal_alternative(state: State) -> Record | None:
    """Return what a refused state could be with other sizes, or None where its sizes are not what is wrong."""
    try:
        alone = price(settle(state.but({SHORT[name]: 1 for name in PARTS}).question)).question
    except (ValueError, OverflowError):
        return None
    near = nearest_legal_plan(alone, {name: state[SHORT[name]] for name in PARTS})
    return {"patch": short_keys(near[0]), "text": near[1]} if near else None


def state_grid(state: State, kind: str) -> HeatGrid:
    """Return a heat map whose cells set the keys in which they differ from the state."""
    drawn, cells = grid(price(settle(state.but({"rep": 1}).question)), kind), list[Cell]()  # of one server, which may grow
    for cell in drawn.cells:
        patch = None if cell.patch is None else {n: v for n, v in short_keys(cell.patch).items() if v != state[n]}
        patch = patch | {"rep": 1} if patch and "tp" in patch else patch
        cells.append(replace(cell, patch=patch))
    return replace(drawn, cells=cells)


def state_worth(state: State) -> Record:
    """Return what ``commtax worth --json`` prints, each technique with the keys that turn it on."""
    return _weighed(worth_of(state.question))


def _weighed(w: Worth) -> Record:
    """Return techniques of a step, what each of them says in words, and the keys that turn it on beside those that are."""
    weighed, now = list[Record](), state_of(w.question)
    for row in w.rows:
        patch: Patch | None = None
        if not row.refused:
            on = state_of(w.question.vary(**changes_of(row.asked)))
            patch = {key: value for key, value in on.keys.items() if value != now[key]}
        verdicts = {"same": row.verdict == SAME, "gains": row.verdict == GAINS}
        weighed.append({**worth_row(row), **verdicts, "words": pays_text(row, bool(w.swept)), "patch": patch})
    return {**worth_document(w), "weighed": weighed}


def worth_page(w: Worth, command: str) -> Record:
    return _page("worth", view(ExplainedStep(w.bill), state_of(w.question), command), worth=_weighed(w))


def _page(kind: str, shown: Record | None, **pictures: object) -> Record:
    """Return one answer of the command line as the page's scripts find it in a file, null where it lacks something."""
    return {"kind": kind, "view": shown, **dict.fromkeys(("grids", "pipeline", "plan", "whys", "worth")), **pictures}


def bill_page(step: ExplainedStep, command: str) -> Record:
    """Return a bill with all its pictures, with heat maps where the page's controls can ask the same question."""
    b, state = step.bill, state_of(step.bill.question)
    grids, alike = None, False
    with suppress(ValueError):  # where the state prices to this bill, its neighbours are this bill's too
        alike = bool(abs(float(price(settle(state.question)).step_s) / float(b.step_s) - 1) < 1e-9) and state["ph"] in SHOWN
    if alike:
        grids = {kind: state_grid(state, kind) for kind in GRIDS}
    pipeline = page_pipeline(b) if b.question.trains and int(b.question.plan.pp) > 1 else None
    return _page("bill", view(step, state, command), grids=grids, pipeline=pipeline, whys=[why_view(w) for w in every_why(b)])


def plan_page(plans: ServingPlans | TrainPlans, command: str) -> Record:
    """Return the plans as points, and the winner's bill."""
    if not plans.trains:
        return _page("plan", _best_plan_step(plans, command), plan=serving_front(plans))
    best = ExplainedStep(plans.step_of(plans.plans, plans.recommended)) if len(plans.plans) else None
    return _page("plan", view(best, state_of(best.bill.question), command) if best else None, plan=training_front(plans))


def _best_plan_step(plans: ServingPlans, command: str) -> Record | None:
    if not len(plans.plans):
        return None
    q, lengths = plans.question, plans.question.requests
    keys: dict[str, Value] = {"m": q.model.key, "c": q.cluster.key, "e": q.engine.key}
    keys |= {"il": int(lengths.input_len), "ol": int(lengths.output_len)}
    try:
        return state_view(State().but(keys | served_patch(plans, plans.plans, plans.recommended)), command)
    except ValueError:  # a model that is not of the catalogue, links that are not of the cluster's name
        return None
