"""One question of the API, from its name and its query to the bytes of its answer or of its refusal. No web package is needed."""

import json
import math
from collections.abc import Callable
from urllib.parse import parse_qsl

from commtax.planner import plan, plan_training
from commtax.question import AS_IT_IS
from commtax.report.bills import bill_document
from commtax.report.documents import Record, to_json
from commtax.report.exact_bytes import fit_document
from commtax.report.pipelines import page_pipeline
from commtax.report.view.pictures import serving_front, training_front
from commtax.report.view.state import Key, RefusedError, State, parse, refusal
from commtax.report.view.tour import catalogue
from commtax.report.whys import why_view
from commtax.verbs.billing import price
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.fitting import add_advice, holds
from commtax.verbs.grids import GRIDS
from commtax.verbs.keywords import PlanOptions
from commtax.verbs.settling import settle
from commtax.verbs.train_fitting import train_holds
from commtax.verbs.why import why
from commtax.web.guard import problem
from commtax.web.pages import legal_alternative, state_grid, state_view, state_worth

Answer = Callable[[State], object]
Written = tuple[int, bytes]
"""A status and a body of JSON."""
LINE = Key("line", "line", 1, "The number of a line of the bill, the costliest being 1.", low=1, high=1000)
GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)
PLAN_GPUS = 512
"""GPUs up to which the page searches plans."""


def fit_answer(state: State) -> Record:
    """What ``commtax fit --json`` prints for this state."""
    q = state.question
    if q.trains:
        return fit_document(train_holds(settle(q)))
    longest = min(q.model.max_len, state.length + 1)
    return fit_document(add_advice(holds(q.but(what_if=AS_IT_IS, sequence_parallel=False, max_model_len=longest))))


def plan_answer(state: State) -> Record:
    """What ``commtax plan --json`` prints, and its front with the state that each point is."""
    q = state.question
    if q.cluster.num_gpus > PLAN_GPUS:
        rule = f"c: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
        raise RefusedError(rule, "c", malformed=False)
    if q.trains:
        batch = state["b"] * state["n"] * state["dp"]
        plans = plan_training(q.model, q.cluster, global_batch=batch, seq=state.length, engine=q.engine, dtype=state["dt"])
        return training_front(plans)
    ttft_s, tpot_s = (state[name] / 1e3 or math.inf for name in ("ttft", "tpot"))
    wanted = PlanOptions(engine=q.engine, input_len=state["il"], output_len=state["ol"], kv_dtype=state["kv"])
    if q.model.experts:
        wanted |= PlanOptions(redundant_experts=state["red"])
    if q.model.experts and state["imb"]:
        wanted |= PlanOptions(imbalance=state["imb"])
    limits = {"ttft_s": ttft_s, "tpot_s": tpot_s, "confidence": state["sure"] / 100}
    return serving_front(plan(q.model, q.cluster, dtypes=(state["dt"],), objective=state["obj"], **limits, **wanted))


ANSWERS: dict[str, tuple[Answer, tuple[Key, ...]]] = {
    "view": (state_view, ()),
    "bill": (lambda x: bill_document(ExplainedStep(price(settle(x.question)))), ()),
    "why": (lambda x: why_view(why(price(settle(x.question)), str(x["line"]))), (LINE,)),
    "fit": (fit_answer, ()),
    "compare": (lambda x: state_grid(x, x["grid"]), (GRID,)),
    "pipeline": (lambda x: page_pipeline(price(settle(x.question))), ()),
    "worth": (state_worth, ()),
    "plan": (plan_answer, ()),
    "catalog": (lambda _: catalogue(), ()),
}
"""What answers each question of ``http.toml``, and the keys that it takes beside the state's."""


def write_answer(name: str, query: bytes) -> Written:
    """Read the state, answer it, or say which rule it breaks."""
    answer, extra = ANSWERS[name]
    state = None
    try:
        state = _read_state(name, query, extra)
        return 200, json.dumps(to_json(answer(state)), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, OverflowError) as error:
        refused = refusal(error if isinstance(error, ValueError) else ValueError(str(error)))
        instead = legal_alternative(state) if name == "view" and state and not refused.malformed else None
        status = 400 if refused.malformed else 422  # it cannot be read, or breaks a rule of the model, the cluster or the engine
        return status, problem(str(refused), refused.argument, "", refused.nearest, to_json(instead))
    except (MemoryError, RecursionError):
        return 422, problem(f"{name}: too large for the page; the commtax command line takes it", name)


def _read_state(name: str, query: bytes, extra: tuple[Key, ...]) -> State:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if name == "catalog":
        if pairs:
            raise RefusedError(f"unknown key '{pairs[0][0][:40]}': the catalogue takes none", pairs[0][0][:40])
        return State()
    return parse(pairs, extra)
