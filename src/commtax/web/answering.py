"""One question of the API, from its name and query to the bytes of its answer or refusal, without any web package."""

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from urllib.parse import parse_qsl

from commtax import catalog
from commtax.catalog.models import bundled_model
from commtax.cost.inventory import num_params
from commtax.cost.schedules import TRAINING
from commtax.files import table
from commtax.report.bills import bill_document, why_view
from commtax.report.documents import Record, facts, to_json
from commtax.report.pipelines import page_pipeline
from commtax.report.view.slider_moves import GRIDS
from commtax.report.view.state import Key, RefusedError, State, parse, refusal
from commtax.verbs.billing import price
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.settling import settle
from commtax.verbs.why import why
from commtax.web.guard import HTTP, problem
from commtax.web.pages import fit_answer, legal_alternative, memory_answer, state_glance, state_grid, state_view, state_worth
from commtax.web.planning import fleet_answer, plan_answer, several_answer
from commtax.web.serving_rates import traffic_answer

Answer = Callable[[State], object]
Written = tuple[int, bytes]  # a status and a body of JSON
LINE = Key("line", "line", 1, "The number of a line of the bill, the costliest being 1.", low=1, high=1000)
GRID = Key("grid", "grid", "tp-link", "Which heat map.", words=GRIDS)


@lru_cache(maxsize=1)
def catalogue() -> Record:
    start = table("report/view/tour.toml")
    hosts, models = (*catalog.keys("clusters"), *start["usual_clusters"]), list[Record]()
    for key, model in ((key, bundled_model(key)) for key in catalog.keys("models")):
        assert model is not None
        name = next((a.split("/")[1] for a in model.aliases if "/" in a), key)
        sizes = {"params": num_params(model), "family": model.architecture, "experts": model.experts is not None}
        models.append({"key": key, "name": name, **sizes})
    return {
        "models": models,
        "clusters": [{"key": key, "name": catalog.cluster(key).name} for key in hosts],
        "chips": [{"key": key, "name": catalog.chip(key).name} for key in catalog.keys("chips")],
        "links": [{**facts(x, "key", "name"), "kind": x.scope} for x in map(catalog.link, catalog.keys("links"))],
        "engines": [facts(x, "key", "name", "phases") for x in map(catalog.engine, catalog.keys("engines"))],
        "schedules": list(TRAINING),
        "presets": start["presets"],
        "tour": start["tour"],
    }


# What answers each question of ``http.toml``, and the keys that it takes beside the state's
ANSWERS: dict[str, tuple[Answer, tuple[Key, ...]]] = {
    "view": (state_view, ()),
    "glance": (state_glance, ()),
    "bill": (lambda x: bill_document(ExplainedStep(price(settle(x.question)))), ()),
    "why": (lambda x: why_view(why(price(settle(x.question)), str(x["line"]))), (LINE,)),
    "fit": (fit_answer, ()),
    "memory": (memory_answer, ()),
    "compare": (lambda x: state_grid(x, x["grid"]), (GRID,)),
    "pipeline": (lambda x: page_pipeline(price(settle(x.question))), ()),
    "worth": (state_worth, ()),
    "plan": (plan_answer, ()),
    "several": (several_answer, ()),
    "fleet": (fleet_answer, ()),
    "traffic": (traffic_answer, ()),
    "catalog": (lambda _: catalogue(), ()),
}
DROPPED = "audit"  # the one question that has a body: a file, behind its query and a zero byte


def write_answer(name: str, query: bytes) -> Written:
    """Read the state, answer it, or say which rule it breaks."""
    state = None
    try:
        if name == DROPPED:
            return 200, _written(_dropped()(query))
        answer, extra = ANSWERS[name]
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if name == "catalog" and pairs:
            raise RefusedError(f"unknown key '{pairs[0][0][:40]}': the catalogue takes none", pairs[0][0][:40])
        state = State() if name == "catalog" else parse(pairs, extra)
        return 200, _written(answer(state))
    except (ValueError, OverflowError) as error:
        refused = refusal(error if isinstance(error, ValueError) else ValueError(str(error)))
        instead = legal_alternative(state) if name in ("view", "glance") and state and not refused.malformed else None
        status = 400 if refused.malformed else 422  # it cannot be read, or breaks a rule of the model, the cluster or the engine
        return status, problem(str(refused), refused.argument, "", refused.nearest, to_json(instead))
    except (MemoryError, RecursionError):
        return 422, problem(f"{name}: too large for the page; the commtax command line takes it", name)


@lru_cache(maxsize=1)
def _dropped() -> Callable[[bytes], Record]:
    """Return what judges files that are dropped on the page. It lies above, among the readers of real runs."""
    module, _, name = HTTP["homes"][DROPPED].partition(":")
    answer: Callable[[bytes], Record] = getattr(import_module(module), name)
    return answer


def _written(answer: object) -> bytes:
    return json.dumps(to_json(answer), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
