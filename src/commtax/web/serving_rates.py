"""Requests at a rate as the page asks for them: the plan of its controls, served in time at several rates."""

import math
import shlex

from commtax.options import taken_by
from commtax.report.documents import Record
from commtax.report.view.state import FLAGS, USUAL, RefusedError, State, config_text
from commtax.report.view.traffic import rates_of, traffic_view
from commtax.verbs import requests
from commtax.verbs.keywords import ServeOptions
from commtax.verbs.loads import LOADS
from commtax.verbs.settling import settle
from commtax.verbs.sweeping import Slo, question_at, sweep
from commtax.verbs.timed_serving import requests_question

RATE = LOADS[0]


def traffic_answer(state: State) -> Record:
    """What ``commtax simulate --sweep --json`` prints, and how the page shows it."""
    q = state.question
    if q.trains:
        raise RefusedError("ph: requests come to a model that is served", "ph", malformed=False)
    known = taken_by("serve()")
    said = {name: value for name, value in state.options.items() if name in known and value not in ("", None, False)}
    said.pop("cp", None)  # which the page has for training alone
    if state["pw"]:  # servers for prompts, and others that decode
        said |= ServeOptions(disaggregated=True, decode_workers=state["rep"], replicas=1)
        said |= ServeOptions(prefill_workers=state["pw"], prefill_tp=state["ptp"], prefill_dp=state["pdp"])
    asked = {**said, **ServeOptions(input_len=state["il"], output_len=state["ol"])}
    one = requests_question(q.model, q.cluster, {**asked, RATE: state["rps"] or 1.0})
    rates = rates_of(requests.serve(settle(one)).capacity, state["rps"])
    swept = sweep(RATE, rates, [question_at(one, RATE, rate) for rate in rates])
    slo = Slo(**{f"{name}_s": state[name] / 1e3 or math.inf for name in ("ttft", "tpot")})
    words = [state.file or state["m"], "--cluster", state["c"]]
    links = {"intra": state["intra"], "inter": state["inter"]}
    for name, value in {**{n: v for n, v in links.items() if v}, **asked}.items():
        if value != USUAL.get(name):
            words += [FLAGS.get(name, f"--{name.replace('_', '-')}"), *([] if value is True else [str(value)])]
    words += ["--sweep", f"request-rate={','.join(f'{rate:g}' for rate in rates)}"]
    words += [word for name in ("ttft", "tpot") if state[name] for word in (f"--{name}", f"{state[name]:g}ms")]
    line = shlex.join(["commtax", "simulate", *words])
    command = f"echo {shlex.quote(config_text(state))} > {state.file}\n{line}" if state.file else line
    return traffic_view(swept, state["rps"], slo) | {"command": command}
