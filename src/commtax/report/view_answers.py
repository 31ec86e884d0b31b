"""One function a question of the API, each from a state to a document; the command line's own documents where it has one."""

from __future__ import annotations

import math
from typing import Any

from commtax.api.fitting import fit, train_fit
from commtax.api.train_billing import TrainBill
from commtax.planner import plan, plan_training
from commtax.report.bills import bill_document
from commtax.report.documents import Document, fit_document, plain, train_fit_document
from commtax.report.training import training_document
from commtax.report.view import priced, view, words_of
from commtax.report.view_front import serving_front, training_front
from commtax.report.view_grids import GRIDS, grid
from commtax.report.view_state import Key, RefusedError, State, cluster_of, model_of
from commtax.report.view_tour import catalogue
from commtax.sim.pipeline import Durations, run
from commtax.sim.schedules import SCHEDULES

GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)
PLAN_GPUS = 512
"""GPUs up to which the page searches plans."""
MOST_BOXES = 20_000


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
    b = priced(state)
    if not isinstance(b, TrainBill) or state.pp == 1:
        note = (
            "one stage: no pipeline" if state.pp == 1 else "served batches are in flight on all stages together: no bubble is drawn"
        )
        return _no_pipeline(note)
    kind, chunks = SCHEDULES[state.schedule], state.chunks if state.schedule == "interleaved" else 1
    boxes = state.pp * state.microbatches * max(chunks, kind.chunks) * 3
    if boxes > MOST_BOXES:
        return _no_pipeline(f"{boxes:,} boxes are more than the {MOST_BOXES:,} that are drawn: fewer microbatches or stages")
    timeline = run(kind, state.pp, state.microbatches, _durations(b), chunks)
    bars = [
        {
            "stage": int(timeline.lane[i]),
            "start": float(timeline.start_s[i]),
            "end": float(timeline.end_s[i]),
            "kind": timeline.kinds[int(timeline.kind[i])],
            "microbatch": _microbatch(timeline.name[i]),
        }
        for i in range(len(timeline.lane))
    ]
    idle = float(timeline.idle_s().mean()) / timeline.span_s
    p, m = state.pp, state.microbatches
    words = f"(pp−1)/(M+pp−1) = {p - 1}/({m}+{p}−1) = {(p - 1) / (m + p - 1):.1%} for 1F1B"
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


def _microbatch(name: str) -> int:
    """The number in ``F3``, ``B3.1`` or ``F3&B1``: of the first."""
    digits = name.split("&")[0].split(".")[0].lstrip("FBW")
    return int(digits) if digits.isdigit() else 0


def _durations(b: TrainBill) -> Durations:
    """Forward, input and weight gradients of one microbatch on a stage, as the bill has them."""
    m = float(b.setup.plan.microbatches)

    def total(ending: str, grads: bool | None = None) -> float:
        lines = [x for x in b.items if x.kind == "compute" and x.item.op.endswith(ending)]
        return sum(float(x.total_s) for x in lines if grads is None or ("weight gradient" in x.item.what) == grads) / m

    return Durations(total("forward"), total("backward", False) + total("recompute"), max(total("backward", True), 1e-12))


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
    return serving_front(plan(model, place, **words), state)


def catalog_answer(_: None) -> Document:
    """Names for the page's fields, presets and the tour."""
    return catalogue()
