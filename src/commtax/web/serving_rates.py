"""Requests at a rate as the page asks for them: the plan of its controls, served in time at several rates."""

import math
from collections.abc import Mapping
from math import isfinite

import numpy as np

from commtax.files import table
from commtax.options import taken_by
from commtax.report.documents import Record
from commtax.report.requests import STATISTICS, TIMES, fleet_words, rate_words, sweep_document, tail_words
from commtax.report.view.state import USUAL, RefusedError, State, command_line, flag_of
from commtax.sim.serving.figures import weighted_quantile
from commtax.units import format_seconds
from commtax.verbs import requests
from commtax.verbs.examining import NEEDED, RequestSweep, Slo, question_at, sweep, timeline_of
from commtax.verbs.keywords import ServeOptions
from commtax.verbs.loads import LOADS
from commtax.verbs.requests import RequestsInTime, requests_question
from commtax.verbs.settling import settle

SHOWN = table("report/view/traffic.toml")
CURVES: Mapping[str, Mapping[str, str]] = SHOWN["curves"]
RATE = LOADS[0]


def traffic_answer(state: State) -> Record:
    """Return what ``commtax simulate --sweep --json`` prints, and how the page shows it."""
    q = state.question
    if q.trains:
        raise RefusedError("ph: requests come to a model that is served", "ph", malformed=False)
    taken = taken_by("serve()")
    options = {name: value for name, value in state.options.items() if name in taken and value not in ("", None, False)}
    options.pop("cp", None)  # which the page has for training alone
    if state["pw"]:  # servers for prompts, and others that decode
        options |= ServeOptions(disaggregated=True, decode_workers=state["rep"], replicas=1)
        options |= ServeOptions(prefill_workers=state["pw"], prefill_tp=state["ptp"], prefill_dp=state["pdp"])
    options |= ServeOptions(input_len=state["il"], output_len=state["ol"])
    one = requests_question(q.model, q.cluster, {**options, RATE: state["rps"] or 1.0})
    rates = rates_of(requests.run_requests(settle(one)).capacity, state["rps"])
    swept = sweep(RATE, rates, [question_at(one, RATE, rate) for rate in rates])
    slo = Slo(**{f"{name}_s": state[name] / 1e3 or math.inf for name in ("ttft", "tpot")})
    words = [state.file or state["m"], "--cluster", state["c"]]
    for name, value in ({name: state[name] for name in ("intra", "inter") if state[name]} | options).items():
        if value != USUAL.get(name):
            words += [flag_of(name), *([] if value is True else [str(value)])]
    words += ["--sweep", f"request-rate={','.join(f'{rate:g}' for rate in rates)}"]
    words += [word for name in ("ttft", "tpot") if state[name] for word in (f"--{name}", f"{state[name]:g}ms")]
    return traffic_view(swept, state["rps"], slo) | {"command": command_line(state, "simulate", *words)}


def rates_of(capacity: float, chosen: float) -> tuple[float, ...]:
    """Return the rates to simulate: shares of the capacity, and the chosen one."""
    return tuple(sorted({float(f"{share * capacity:.3g}") for share in SHOWN["loads"]} | ({chosen} if chosen else set())))


def traffic_view(s: RequestSweep, chosen: float, slo: Slo) -> Record:
    """Return a sweep as the command line prints it, pictures of it, and one run in detail: at the chosen rate or the knee."""
    at = s.values.index(chosen) if chosen in s.values else (0 if s.knee is None else s.knee)
    sentences = [f"{fleet_words(s.outcomes[0])} can answer up to {rate_words(s.capacity)}."]
    if s.knee is not None:
        sentences.append(f"Throughput and latency are best balanced at {rate_words(s.values[s.knee])}, the knee.")
    if slo.limits:
        most, kept = s.most(slo), f"{NEEDED:.0%} of the requests keep to the limits"
        sentences.append(f"At no rate do {kept}." if most is None else f"{kept} up to {rate_words(s.values[most])}.")
    return {
        **sweep_document(s, slo),
        "fleet": fleet_words(s.outcomes[0]),
        "sentence": " ".join(sentences),
        "rates": list(s.values),
        "overloaded": [o.overloaded for o in s.outcomes],
        "curves": [
            {"key": name, **curve, "values": [x if isfinite(x := o.statistic(name)) else None for o in s.outcomes]}
            for name, curve in CURVES.items()
        ],
        "detail": _detail(s.outcomes[at], s.values[at], at == s.knee),
    }


def _detail(o: RequestsInTime, rate: float, knee: bool) -> Record:
    overloaded = " More requests come than can be answered: queues grow as long as the run lasts." if o.overloaded else ""
    where = " (the knee)" if knee else ""
    text = f"At {rate_words(rate)}{where}, {o.tokens_per_s:,.0f} output tokens/s.{overloaded}"
    shown, _ = timeline_of(o, SHOWN["most_slices"] * max(1, len(o.ran.engines) + len(o.ran.prompt_engines)))
    first = shown.owners[0] if shown.owners else ""
    lanes = [i for i, owner in enumerate(shown.owners) if owner == first]
    slices = np.flatnonzero(np.isin(shown.lane, lanes))[: SHOWN["most_slices"]]
    until, inner = float(shown.end_s[slices].max()) if len(slices) else 0.0, "stage" if o.fleet.workers.stages > 1 else "rank"
    times, rows, counters = list[Record](), list[list[object]](), list[Record]()
    for metric, one in TIMES.items():
        values = {which: o.statistic(f"{metric}_{which}") for which in STATISTICS}
        finite = {which: value if isfinite(value) else None for which, value in values.items()}
        times.append({"metric": metric, "name": one["title"], **finite})
    for i in slices:  # short rows because there are many
        start_s, end_s = shown.start_s[i], shown.end_s[i]
        label = f"{shown.name[i]}, {format_seconds(end_s - start_s)}"
        ends = round(float(start_s), 6), round(float(end_s), 6)
        rows.append([lanes.index(int(shown.lane[i])), *ends, int(shown.kind[i]), label])
    for c in (c for c in shown.counters if c.owner == first):
        names, seen = {"name": c.figure, "short": SHOWN["counters"][c.figure]}, c.at_s <= until
        counters.append({**names, "at_s": c.at_s[seen], "values": c.value[seen]})
    titles = [f"{inner} {place}" if len(lanes) > 1 else "steps" for place in range(len(lanes))]
    drawn: Record = {"engine": first, "lanes": titles, "kinds": list(shown.kinds), "until_s": until, "slices": rows}
    detail: Record = {"rate": rate, "sentence": text, "words": tail_words(o), "times": times, "histogram": histogram(*o.gaps)}
    return detail | {"timeline": drawn | {"counters": counters}}


def histogram(times: np.ndarray, counts: np.ndarray) -> Record:
    """Return shares of the gaps between tokens in equal bins, and one of those beyond the last.

    >>> histogram(np.array([1.0, 2.0]), np.array([3, 1]))["shares"][0]
    0.75
    """
    total = float(counts.sum())
    if not total:
        return {"edges_s": [], "shares": [], "beyond": 0.0, "marks": []}
    end, start = weighted_quantile(times, counts, SHOWN["within"]), float(times[counts > 0].min())
    edges = np.linspace(start, max(end, start + 1e-9) * (1 + 1e-9), SHOWN["bins"] + 1)
    shares = np.histogram(times, bins=edges, weights=counts / total)[0]
    marks = [{"name": name, "value": weighted_quantile(times, counts, share)} for name, share in (("p50", 0.5), ("p99", 0.99))]
    return {"edges_s": edges.tolist(), "shares": shares.tolist(), "beyond": max(0.0, 1 - float(shares.sum())), "marks": marks}
