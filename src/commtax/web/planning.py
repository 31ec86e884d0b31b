"""Plans that the page asks for: of a closed loop, for a request rate, or to train, on one cluster or several."""

import math
from collections.abc import Sequence
from typing import Any, cast

from commtax.planner import plan, plan_training
from commtax.planner.fleets import plan_fleet
from commtax.planner.several_clusters import plan_several
from commtax.report.documents import Record
from commtax.report.view.pictures import fleet_front, serving_front, several_front, training_front
from commtax.report.view.state import KEYS, RefusedError, State, command_line, flag_of
from commtax.spec import Cluster
from commtax.verbs.keywords import PlanFleetOptions, PlanOptions

PLAN_GPUS = 512  # GPUs up to which the page searches plans


def plan_answer(state: State) -> Record:
    """Return what ``commtax plan --json`` prints of one cluster, and how the page shows it."""
    q = state.question
    _check_sizes(state, [q.cluster])
    command, usd = {"command": plan_command(state.but({"cs": ""}))}, state["usd"] or None
    if q.trains:
        usual = {"engine": q.engine, "dtype": state["dt"], "train_tokens": 1e9 * state["tok"], "usd_per_gpu_hour": usd}
        trained = plan_training(q.model, q.cluster, global_batch=global_batch(state), seq=state.length, **usual)
        return training_front(trained) | command
    return serving_front(plan(q.model, q.cluster, objective=state["obj"], usd_per_gpu_hour=usd, **_loop_options(state))) | command


def several_answer(state: State) -> Record:
    """Return the same of several clusters, whose plans are ranked together."""
    q, places = state.question, state.places
    _check_sizes(state, places)
    if q.trains or len(places) < 2:
        raise RefusedError("cs: serving on further clusters, such as 8xh200-sxm,16xl40s", "cs", malformed=False)
    goal = {"objective": objective(state, rate=False), "usd_per_gpu_hour": _prices(state), **_loop_options(state)}
    return several_front(plan_several(q.model, places, **goal)) | {"command": plan_command(state)}


def _loop_options(state: State) -> dict[str, Any]:
    ttft_s, tpot_s = (state[name] / 1e3 or math.inf for name in ("ttft", "tpot"))
    limits = {"ttft_s": ttft_s, "tpot_s": tpot_s, "confidence": state["sure"] / 100}
    return {"dtypes": (state["dt"],), "techniques": state["try"], **limits, **_wanted(state)}


def fleet_answer(state: State) -> Record:
    """Return what ``commtax plan --request-rate --json`` prints, and how the page shows it."""
    q, places = state.question, state.places
    _check_sizes(state, places)
    if q.trains:
        raise RefusedError("ph: a request rate belongs to serving", "ph", malformed=False)
    if not state["rps"]:
        raise RefusedError("rps=0: requests per second, above 0", "rps", [1], malformed=False)
    slo = {("" if "-" in name else "mean_") + name.replace("-", "_"): limit for name, limit in limits(state, rate=True).items()}
    fleet_plans = plan_fleet(
        q.model,
        places,
        request_rate=state["rps"],
        slo=slo,
        objective=objective(state, rate=True),
        dtypes=(state["dt"],),
        usd_per_gpu_hour=_prices(state),
        confidence=state["sure"] / 100,
        processes=1,
        **cast("PlanFleetOptions", _wanted(state)),
    )
    return fleet_front(fleet_plans) | {"command": plan_command(state, rate=True)}


def _check_sizes(state: State, places: Sequence[Cluster]) -> None:
    for place in places:
        if place.num_gpus > PLAN_GPUS:
            key = "c" if place is state.question.cluster else "cs"
            rule = f"{key}: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
            raise RefusedError(rule, key, malformed=False)


def _prices(state: State) -> list[float | None] | None:
    """Return the price that was set as that of the first cluster."""
    return [state["usd"], *[None] * (len(state.places) - 1)] if state["usd"] else None


def _wanted(state: State) -> PlanOptions:
    wanted = PlanOptions(engine=state.question.engine, input_len=state["il"], output_len=state["ol"], kv_dtype=state["kv"])
    if state.question.model.experts:
        wanted |= PlanOptions(redundant_experts=state["red"])
    if state.question.model.experts and state["imb"]:
        wanted |= PlanOptions(imbalance=state["imb"])
    return wanted


def global_batch(state: State) -> int:
    """Return the sequences of a training step, those of the step that is shown unless the goal names them."""
    return int(state["gb"] or state["b"] * state["n"] * state["dp"])


def plan_command(state: State, rate: bool = False) -> str:
    """Return the line with its options by the flags of their keys, behind the file of a model that is not of the catalogue."""
    trains = state.question.trains
    others = dict.fromkeys(name for name in state["cs"].split(",") if name and name != state["c"])
    places = [state["c"], *({} if trains else others)]
    values: dict[str, object] = {key: state[key] for key in ("intra", "inter", "e", "dt")}
    if trains:
        values |= {"ph": "train", "gb": global_batch(state), "il": state.length}
        values |= {"tok": f"{state['tok']:.12g}B", "usd": state["usd"]}
    else:
        values |= {"il": state["il"], "ol": state["ol"], "kv": state["kv"], "sure": f"{state['sure']:g}%"}
        values |= {"obj": objective(state, rate), "rps": f"{state['rps']:g}" if rate else "", "try": "" if rate else state["try"]}
        values |= {"usd": f"{state['usd']:g}" + "," * (len(places) - 1) if state["usd"] else ""}
        values |= {"red": state["red"], "imb": state["imb"]} if state.question.model.experts else {}
    flags = {one.name: flag_of(one.option) for one in KEYS}
    words = [word for key, value in values.items() if value for word in (flags[key], str(value))]
    times = [] if trains else [word for name, limit in limits(state, rate).items() for word in (f"--{name}", limit)]
    named = [word for place in places for word in ("--cluster", place)]
    return command_line(state, "plan", state.file or state["m"], *named, *words, *times)


def limits(state: State, rate: bool) -> dict[str, str]:
    """Return limits on request times by the names of their options: means, or the statistic that is chosen for a rate."""
    which = f"{state['stat']}-" if rate and state["stat"] != "mean" else ""
    return {f"{which}{name}": f"{state[name]:g}ms" for name in ("ttft", "tpot") if state[name]}


def objective(state: State, rate: bool) -> str:
    """Return the objective, where a search has it. Several clusters are compared by dollars unless another one is set."""
    goal = str(state["obj"])
    if rate:
        return goal if goal in ("cost", "gpus") else ""
    return "" if goal == "throughput" and state["cs"] else goal
