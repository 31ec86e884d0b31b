"""Plans that the page asks for: of a closed loop, for a request rate, or to train, on one cluster or several."""

import math
from collections.abc import Sequence
from typing import Any, cast

from commtax.planner import plan, plan_training
from commtax.planner.fleets import plan_fleet
from commtax.planner.several_clusters import plan_several
from commtax.report.documents import Record
from commtax.report.view.pictures import fleet_front, serving_front, several_front, training_front
from commtax.report.view.state import FLAGS, KEYS, RefusedError, State, command_line
from commtax.spec import Cluster
from commtax.verbs.keywords import PlanFleetOptions, PlanOptions

PLAN_GPUS = 512  # GPUs up to which the page searches plans


def plan_answer(state: State) -> Record:
    """What ``commtax plan --json`` prints, and how the page shows it. Plans are those of one cluster."""
    q = state.question
    _check_sizes(state, [q.cluster])
    command, usd = {"command": plan_command(state.but({"cs": ""}))}, state["usd"] or None
    if q.trains:
        usual = {"engine": q.engine, "dtype": state["dt"], "train_tokens": 1e9 * state["tok"], "usd_per_gpu_hour": usd}
        trained = plan_training(q.model, q.cluster, global_batch=global_batch(state), seq=state.length, **usual)
        return training_front(trained) | command
    found = plan(q.model, q.cluster, objective=state["obj"], usd_per_gpu_hour=usd, **_loop_options(state))
    return serving_front(found) | command


def several_answer(state: State) -> Record:
    """The same on several clusters: their plans ranked together."""
    q, places = state.question, state.places
    _check_sizes(state, places)
    if q.trains or len(places) < 2:
        raise RefusedError("cs: serving on further clusters, such as 8xh200-sxm,16xl40s", "cs", malformed=False)
    asked = {"objective": objective(state, rate=False), "usd_per_gpu_hour": _prices(state), **_loop_options(state)}
    return several_front(plan_several(q.model, places, **asked)) | {"command": plan_command(state)}


def _loop_options(state: State) -> dict[str, Any]:
    """What plans of a closed loop are asked for, on one cluster as on several."""
    ttft_s, tpot_s = (state[name] / 1e3 or math.inf for name in ("ttft", "tpot"))
    limits = {"ttft_s": ttft_s, "tpot_s": tpot_s, "confidence": state["sure"] / 100}
    return {"dtypes": (state["dt"],), "techniques": state["try"], **limits, **_wanted(state)}


def fleet_answer(state: State) -> Record:
    """What ``commtax plan --request-rate --json`` prints, and how the page shows it."""
    q, places = state.question, state.places
    _check_sizes(state, places)
    if q.trains:
        raise RefusedError("ph: a request rate belongs to serving", "ph", malformed=False)
    if not state["rps"]:
        raise RefusedError("rps=0: requests per second, above 0", "rps", [1], malformed=False)
    slo = {("" if "-" in name else "mean_") + name.replace("-", "_"): limit for name, limit in limits(state, rate=True).items()}
    found = plan_fleet(
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
    return fleet_front(found) | {"command": plan_command(state, rate=True)}


def _check_sizes(state: State, places: Sequence[Cluster]) -> None:
    for place in places:
        if place.num_gpus > PLAN_GPUS:
            key = "c" if place is state.question.cluster else "cs"
            rule = f"{key}: plans are searched on up to {PLAN_GPUS} GPUs here; commtax plan takes more"
            raise RefusedError(rule, key, malformed=False)


def _prices(state: State) -> list[float | None] | None:
    """The price that was said is that of the first cluster."""
    return [state["usd"], *[None] * (len(state.places) - 1)] if state["usd"] else None


def _wanted(state: State) -> PlanOptions:
    wanted = PlanOptions(engine=state.question.engine, input_len=state["il"], output_len=state["ol"], kv_dtype=state["kv"])
    if state.question.model.experts:
        wanted |= PlanOptions(redundant_experts=state["red"])
    if state.question.model.experts and state["imb"]:
        wanted |= PlanOptions(imbalance=state["imb"])
    return wanted


def global_batch(state: State) -> int:
    """Sequences per training step: as asked, else those of the step that is shown."""
    return int(state["gb"] or state["b"] * state["n"] * state["dp"])


def plan_command(state: State, rate: bool = False) -> str:
    """The line, and the file before it where the model is not of the catalogue."""
    return command_line(state, "plan", *_words(state, rate))


def _words(state: State, rate: bool) -> list[str]:
    """Options by the flags of their keys; "" where nothing needs to be said."""
    trains = state.question.trains
    others = dict.fromkeys(name for name in state["cs"].split(",") if name and name != state["c"])
    places = [state["c"], *({} if trains else others)]
    said: dict[str, object] = {key: state[key] for key in ("intra", "inter", "e", "dt")}
    if trains:
        said |= {"ph": "train", "gb": global_batch(state), "il": state.length, "tok": f"{state['tok']:.12g}B", "usd": state["usd"]}
    else:
        said |= {"il": state["il"], "ol": state["ol"], "kv": state["kv"], "sure": f"{state['sure']:g}%"}
        said |= {"obj": objective(state, rate), "rps": f"{state['rps']:g}" if rate else "", "try": "" if rate else state["try"]}
        said |= {"usd": f"{state['usd']:g}" + "," * (len(places) - 1) if state["usd"] else ""}
        said |= {"red": state["red"], "imb": state["imb"]} if state.question.model.experts else {}
    words = [word for key, value in said.items() if value for word in (_flag(key), str(value))]
    times = [] if trains else [word for name, limit in limits(state, rate).items() for word in (f"--{name}", limit)]
    return [state.file or state["m"], *(word for place in places for word in ("--cluster", place)), *words, *times]


def _flag(key: str) -> str:
    option = next(one.option for one in KEYS if one.name == key)
    return FLAGS.get(option, f"--{option.replace('_', '-')}")


def limits(state: State, rate: bool) -> dict[str, str]:
    """Limits on request times by the names of their options: means, or the statistic that is chosen for a rate."""
    which = f"{state['stat']}-" if rate and state["stat"] != "mean" else ""
    return {f"{which}{name}": f"{state[name]:g}ms" for name in ("ttft", "tpot") if state[name]}


def objective(state: State, rate: bool) -> str:
    """What is best, where a search knows it: several clusters are compared by dollars unless something else is asked for."""
    asked = str(state["obj"])
    if rate:
        return asked if asked in ("cost", "gpus") else ""
    return "" if asked == "throughput" and state["cs"] else asked
