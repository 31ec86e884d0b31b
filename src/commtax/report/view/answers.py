"""One function a question of the API, each from a state to a document; the command line's own documents where it has one."""

from __future__ import annotations

import math
from typing import Any

from commtax.api.fitting import fit, train_fit
from commtax.api.train_billing import TrainBill
from commtax.planner import plan, plan_training
from commtax.report.bills import bill_document
from commtax.report.documents import Document, fit_document, train_fit_document
from commtax.report.training import training_document
from commtax.report.view import priced, view, words_of
from commtax.report.view.front import serving_front, training_front
from commtax.report.view.grids import GRIDS, grid
from commtax.report.view.pipeline import pipeline_of
from commtax.report.view.state import Key, RefusedError, State, cluster_of, model_of
from commtax.report.view.tour import catalogue

GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)
PLAN_GPUS = 512
"""GPUs up to which the page searches plans."""


def view_answer(state: State) -> Document:
    """Everything for one repaint."""
    return view(state)


def bill_answer(state: State) -> Document:
    """What ``commtax bill --json`` prints for this state."""
    b = priced(state)
    return training_document(b) if isinstance(b, TrainBill) else bill_document(b)


def fit_answer(state: State) -> Document:
    """What ``commtax fit --json`` prints for this state."""
    model, place = model_of(state.model, state.hidden, state.layers, state.config), cluster_of(state)
    words = words_of(state)
    names = ("tp", "pp", "dp", "ep", "cp", "engine", "dtype")
    if not state.training:
        kept = {name: words[name] for name in (*names, "kv_dtype")}
        return fit_document(fit(model, place, max_model_len=min(model.max_len, state.length + 1), **kept))
    more = ("batch", "micro_batch", "context", "zero", "recompute", "schedule", "chunks", "sequence_parallel")
    return train_fit_document(train_fit(model, place, **{name: words[name] for name in (*names, *more)}))


def compare_answer(asked: tuple[State, str]) -> Document:
    """TP against links or batches around this state."""
    return grid(*asked)


def pipeline_answer(state: State) -> Document:
    """The pipeline's grid and its bubble, in the times of this step."""
    return pipeline_of(priced(state))


def plan_answer(state: State) -> Document:
    """What ``commtax plan --json`` prints, and its front with the state that each point is."""
    model, place = model_of(state.model, state.hidden, state.layers, state.config), cluster_of(state)
    if place.num_gpus > PLAN_GPUS:
        rule = f"c: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
        raise RefusedError(rule, "c", malformed=False)
    words: dict[str, Any]
    if state.training:
        words = {"global_batch": state.batch * state.microbatches * state.dp, "seq": state.length}
        found = plan_training(model, place, engine=state.engine or "megatron", dtype=state.dtype, **words)
        return training_front(found)
    words = {"ttft_s": state.ttft_ms / 1e3 or math.inf, "tpot_s": state.tpot_ms / 1e3 or math.inf}
    words |= {"input_len": state.input_len, "output_len": state.output_len}
    words |= {"objective": state.objective, "engine": state.engine or "vllm", "dtypes": (state.dtype,)}
    return serving_front(plan(model, place, **words, kv_dtype=state.kv_dtype))


def catalog_answer(_: None) -> Document:
    """Names for the page's fields, presets and the tour."""
    return catalogue()
