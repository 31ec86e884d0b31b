"""The command line that searches the plans which a state asks for."""

import shlex

from commtax.report.view.state import FLAGS, KEYS, State, config_text


def global_batch(state: State) -> int:
    """Sequences per training step: as asked, else those of the step that is shown."""
    return int(state["gb"] or state["b"] * state["n"] * state["dp"])


def plan_command(state: State, rate: bool = False) -> str:
    """The line, and the file before it where the model is not of the catalogue."""
    line = shlex.join(["commtax", "plan", *_words(state, rate)])
    return f"echo {shlex.quote(config_text(state))} > {state.file}\n{line}" if state.file else line


def _words(state: State, rate: bool) -> list[str]:
    """Options by the flags of their keys; "" where nothing needs to be said."""
    trains = state.question.trains
    places = [
        state["c"],
        *({} if trains else dict.fromkeys(name for name in state["cs"].split(",") if name and name != state["c"])),
    ]
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
