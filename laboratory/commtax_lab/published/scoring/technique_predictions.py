"""What is predicted for a published technique: one figure before and one after, by the verbs that users have."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from commtax import catalog
from commtax.cost.pricing import Pricer
from commtax.cost.traffic import expected_destinations
from commtax.options import check_taken
from commtax.rules.drafts import need_accepted
from commtax.statement import Refusal
from commtax.verbs import closed_loop, requests
from commtax.verbs.billing import StepBill, price
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.expecting import expect
from commtax.verbs.requests import RequestsInTime, requests_question
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published.collective_rows import Curve
from commtax_lab.published.scoring.predicting import curve_seconds
from commtax_lab.published.technique_rows import Options, TechniqueReading, load_of

PER_GPU, PER_HOST = "_per_gpu", "_per_host"
Answer = StepBill | ClosedLoop | RequestsInTime


def predict_technique(reading: TechniqueReading) -> tuple[float, float]:
    """Predict the figure before and after, in seconds or per second. ``Refusal`` where one side has no price."""
    before, after = (VERBS[reading.verb](reading, options) for options in reading.sides)
    return before, after


def is_time(reading: TechniqueReading) -> bool:
    """Return whether less is better."""
    return "per_s" not in reading.figure


def predicted_speedup(reading: TechniqueReading) -> float:
    """Above 1 is better."""
    before, after = predict_technique(reading)
    return before / after if is_time(reading) else after / before


def _bill(reading: TechniqueReading, options: Options) -> StepBill:
    question = settle(resolve_question(reading.model, reading.cluster, check_taken("bill", options)))
    need_accepted(question)
    return price(question)


def _step(reading: TechniqueReading, options: Options) -> float:
    return _figure(_bill(reading, options), reading.figure)


def _loop(reading: TechniqueReading, options: Options) -> float:
    question = resolve_question(reading.model, reading.cluster, check_taken("simulate", options))
    return _figure(closed_loop.price_closed_loop(settle(question)), reading.figure)


def _requests(reading: TechniqueReading, options: Options) -> float:
    ran = requests.run_requests(settle(requests_question(reading.model, reading.cluster, check_taken("serve", options))))
    return _figure(ran, reading.figure) if "per_s" in reading.figure else ran.statistic(reading.figure)


def _figure(answer: Answer, name: str) -> float:
    """Return a figure of an answer, rates also per GPU and per host of the GPUs in use."""
    for suffix, gpus in ((PER_GPU, 1), (PER_HOST, answer.question.cluster.gpus_per_host)):
        if name.endswith(suffix):
            return _figure(answer, name.removesuffix(suffix)) * gpus / float(answer.num_gpus or math.nan)
    if name == "total_tokens_per_s":
        return _figure(answer, "requests_per_s") * float(answer.question.requests.tokens)
    return float(getattr(answer, name))


def _lines(reading: TechniqueReading, options: Options) -> float:
    """Return the seconds of some lines of a bill that are not hidden."""
    items = _bill(reading, options).items
    chosen = [x for x in items if {x.item.part, f"{x.item.part}/{x.item.place}"}.intersection(reading.lines)]
    if not chosen:
        raise Refusal(f"row {reading.id}: no line of the bill is of {', '.join(reading.lines)}", "lines")
    return float(sum(line.exposed_s for line in chosen)) / reading.each


def _slope(reading: TechniqueReading, options: Options) -> float:
    """Return the seconds that a step grows by with each token of context."""
    contexts = cast(tuple[int, int], options["contexts"])
    rest = {name: value for name, value in options.items() if name != "contexts"}
    first, last = (float(_bill(reading, {**rest, "context": length}).step_s) for length in contexts)
    return (last - first) / (contexts[1] - contexts[0])


def _collective(reading: TechniqueReading, options: Options) -> float:
    """Price one collective inside a host, by a library's own choice or by the best of some algorithms at any size."""
    place, ranks, size = catalog.cluster(reading.cluster), int(load_of(options, "ranks")), np.array([load_of(options, "nbytes")])
    algorithms = cast(tuple[str, ...], options.get("algorithms", ("",)))
    curves = [Curve(str(options["op"]), ranks, place.domain, str(options["library"]), place, name) for name in algorithms]
    return min(float(np.asarray(curve_seconds(curve, size)[0]).item()) for curve in curves)


def _expect(reading: TechniqueReading, options: Options) -> float:
    """Price one collective, fused or not, as ``commtax expect`` does."""
    op, library, technique = (str(options.get(name, "")) for name in ("op", "library", "technique"))
    size, ranks = (int(load_of(options, name)) if name in options else 0 for name in ("nbytes", "ranks"))
    return float(expect(op, reading.cluster, nbytes=size, ranks=ranks, library=library, technique=technique).seconds)


def _exchange(reading: TechniqueReading, options: Options) -> float:
    """Price one dispatch of a layer's tokens to their experts, each to ``copies`` ranks whatever its router would choose."""
    named = {name: value for name, value in options.items() if name != "copies"}
    q = settle(resolve_question(reading.model, reading.cluster, check_taken("bill", named)))
    [line] = [x.item for x in price(q).items if (x.item.part, x.item.place) == ("experts", "dispatch") and np.any(x.item.count)]
    reached = expected_destinations(q.model.experts, q.plan.ep) if q.model.experts else math.nan
    nbytes = line.nbytes * load_of(options, "copies") / reached
    return float(Pricer(terms_of(q)).price(replace(line, nbytes=nbytes, count=1)).seconds)


VERBS: Mapping[str, Callable[[TechniqueReading, Options], float]] = {
    "step": _step,
    "loop": _loop,
    "requests": _requests,
    "lines": _lines,
    "slope": _slope,
    "expect": _expect,
    "exchange": _exchange,
    "collective": _collective,
}
