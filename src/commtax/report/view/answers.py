"""One function a question of the API, each from a state to a document; the command line's own documents where it has one."""

from __future__ import annotations

import math
from dataclasses import replace

from commtax.planner import plan, plan_training
from commtax.report.bills import StepDocument, TrainDocument, bill_document
from commtax.report.documents import FitDocument, TrainFitDocument, fit_document
from commtax.report.view import arguments_of, priced
from commtax.report.view.front import ServedFront, TrainedFront, serving_front, training_front
from commtax.report.view.state import Key, RefusedError, State, cluster_of, model_of, shortened
from commtax.spec import SIZES
from commtax.verbs.explained import Explained
from commtax.verbs.fitting import fit, train_fit
from commtax.verbs.grids import GRIDS, Cell, Grid, grid

GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)
PLAN_GPUS = 512
"""GPUs up to which the page searches plans."""


def bill_answer(state: State) -> StepDocument | TrainDocument:
    """What ``commtax bill --json`` prints for this state."""
    return bill_document(Explained(priced(state)))


def fit_answer(state: State) -> FitDocument | TrainFitDocument:
    """What ``commtax fit --json`` prints for this state."""
    model, place, given = model_of(state), cluster_of(state), arguments_of(state)
    names = (*SIZES, "engine", "dtype")
    if not state.training:
        kept = {name: given[name] for name in (*names, "kv_dtype")}
        return fit_document(fit(model, place, max_model_len=min(model.max_len, state.length + 1), **kept))
    more = ("batch", "micro_batch", "context", "zero", "recompute", "schedule", "chunks", "sequence_parallel")
    return fit_document(train_fit(model, place, **{name: given[name] for name in (*names, *more)}))


def grid_of(state: State, kind: str) -> Grid:
    """A heat map whose cells set the keys in which they differ from the state."""
    drawn = grid(priced(state), kind)
    return replace(drawn, cells=[_keyed(cell, state) for cell in drawn.cells])


def _keyed(cell: Cell, state: State) -> Cell:
    if cell.patch is None:
        return cell
    return replace(cell, patch=shortened({n: value for n, value in cell.patch.items() if value != getattr(state, n)}))


def plan_answer(state: State) -> ServedFront | TrainedFront:
    """What ``commtax plan --json`` prints, and its front with the state that each point is."""
    model, place = model_of(state), cluster_of(state)
    if place.num_gpus > PLAN_GPUS:
        rule = f"c: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
        raise RefusedError(rule, "c", malformed=False)
    if state.training:
        batch = state.batch * state.microbatches * state.dp
        engine = state.engine or "megatron"
        return training_front(plan_training(model, place, global_batch=batch, seq=state.length, engine=engine, dtype=state.dtype))
    return serving_front(
        plan(
            model,
            place,
            ttft_s=state.ttft_ms / 1e3 or math.inf,
            tpot_s=state.tpot_ms / 1e3 or math.inf,
            input_len=state.input_len,
            output_len=state.output_len,
            objective=state.objective,
            engine=state.engine or "vllm",
            dtypes=(state.dtype,),
            kv_dtype=state.kv_dtype,
        )
    )
