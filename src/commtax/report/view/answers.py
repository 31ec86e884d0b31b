"""One function a question of the API, each from a state to a document; the command line's own documents where it has one."""

from __future__ import annotations

import math
from dataclasses import replace

from commtax.planner import plan, plan_training
from commtax.question import AS_IT_IS
from commtax.report.bills import StepDocument, TrainDocument, bill_document
from commtax.report.documents import FitDocument, TrainFitDocument, fit_document
from commtax.report.view import priced
from commtax.report.view.front import ServedFront, TrainedFront, serving_front, training_front
from commtax.report.view.state import Key, RefusedError, State, shortened
from commtax.verbs.explained import Explained
from commtax.verbs.fitting import advised, holds, train_holds
from commtax.verbs.grids import GRIDS, Cell, Grid, grid

GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)
PLAN_GPUS = 512
"""GPUs up to which the page searches plans."""


def bill_answer(state: State) -> StepDocument | TrainDocument:
    """What ``commtax bill --json`` prints for this state."""
    return bill_document(Explained(priced(state)))


def fit_answer(state: State) -> FitDocument | TrainFitDocument:
    """What ``commtax fit --json`` prints for this state."""
    q = state.question
    if q.trains:
        return fit_document(train_holds(q))
    longest = min(q.model.max_len, state.length + 1)
    return fit_document(advised(holds(q.but(what_if=AS_IT_IS, sequence_parallel=False, max_model_len=longest))))


def grid_of(state: State, kind: str) -> Grid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn = grid(priced(state), kind)
    return replace(drawn, cells=[_keyed(cell, state) for cell in drawn.cells])


def _keyed(cell: Cell, state: State) -> Cell:
    patch = None if cell.patch is None else {n: v for n, v in shortened(cell.patch).items() if v != state[n]}
    return replace(cell, patch=patch)


def plan_answer(state: State) -> ServedFront | TrainedFront:
    """What ``commtax plan --json`` prints, and its front with the state that each point is."""
    q = state.question
    if q.cluster.num_gpus > PLAN_GPUS:
        rule = f"c: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
        raise RefusedError(rule, "c", malformed=False)
    if q.trains:
        batch = state["b"] * state["n"] * state["dp"]
        kinds = {"global_batch": batch, "seq": state.length, "engine": q.engine, "dtype": state["dt"]}
        return training_front(plan_training(q.model, q.cluster, **kinds))
    return serving_front(
        plan(
            q.model,
            q.cluster,
            ttft_s=state["ttft"] / 1e3 or math.inf,
            tpot_s=state["tpot"] / 1e3 or math.inf,
            input_len=state["il"],
            output_len=state["ol"],
            objective=state["obj"],
            engine=q.engine,
            dtypes=(state["dt"],),
            kv_dtype=state["kv"],
        )
    )
