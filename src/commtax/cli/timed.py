"""``commtax simulate`` of requests in time: a rate, a trace, or a closed loop of so many requests."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import NoReturn

import numpy as np

from commtax.cli.options import Given
from commtax.cli.order import Order
from commtax.cli.progress import counted, watched
from commtax.files import check_writable, write_text
from commtax.question import Question
from commtax.sim import arrivals
from commtax.statement import Note, Refusal
from commtax.units import parse_seconds
from commtax.verbs.goodput import SPELLED, Slo, slo_of
from commtax.verbs.loads import number
from commtax.verbs.offering import checked
from commtax.verbs.requests import PROMPTS, Outcome, serve
from commtax.verbs.sweeping import at, points, sweep

ASKED = ("request_rate", "trace", "num_prompts", "prompts_per_client", "duration", "sweep")
"""What makes it a question of time."""
ONLY = (
    *("burstiness", "unique_prompts", "shared_prefix", "ramp_up", "warmup", "router", "seed", "goodput"),
    *("ttft", "tpot", "plot", "timeline", "save"),
)
"""What belongs to such a question alone."""
FILES = ("plot", "timeline", "save")


def is_timed(given: Mapping[str, object]) -> bool:
    return any(given[name] is not None for name in ASKED)


def answer(order: Order, q: Question) -> NoReturn:
    """One run, or several beside each other."""
    given = order.given
    slo = _slo(given)
    for name in FILES:
        if given[name]:
            check_writable(given[name], name)
    if given["plot"]:
        from commtax.report.plots import check_plot

        check_plot(Path(given["plot"]))
    swept = _swept(given, q)
    if swept:
        _sweep(order, q, slo, *swept)
    if not q.offered.request_rate and q.offered.trace is None and np.isinf(q.requests.num_prompts):
        raise Refusal("num_prompts: a closed loop in time has an end; say how many requests, such as 1000", "num_prompts")
    _one(order, q, slo)


def _slo(given: Given) -> Slo:
    """Limits in either spelling."""
    limits = {}
    for name in ("ttft", "tpot"):
        if given[name]:
            limits[SPELLED[name]] = number(parse_seconds(given[name], name), name, 0, 1e6, " s")
    words = [word for text in given["goodput"] for word in text.replace(",", " ").split()]
    return slo_of(words, Slo(**limits))


def _swept(given: Given, q: Question) -> tuple[str, tuple[float, ...]] | None:
    """What is swept: as was said, or several numbers of clients."""
    if given["sweep"] is not None:
        name, values = points(given["sweep"])
        if given[name] is not None or q.offered.trace is not None:
            raise Refusal(
                f"sweep: goes over {name.replace('_', '-')}; give it or --{name.replace('_', '-')} or --trace, not both", "sweep"
            )
        return name, values
    if np.ndim(q.requests.concurrency):
        return points(f"concurrency={','.join(map(str, np.asarray(q.requests.concurrency).tolist()))}")
    return None


def _one(order: Order, q: Question, slo: Slo) -> NoReturn:
    from commtax.report.requests import outcome_document, show_outcome

    with watched(_expected(q)) as watch:
        o = serve(checked(q), watch)
    _write(order, o)
    order.output.answer(outcome_document, show_outcome, o, slo, code=1 if o.overloaded or not slo.kept(o) else 0)


def _expected(q: Question) -> float:
    if q.offered.trace is not None:
        return len(q.offered.trace)
    if np.isfinite(q.requests.num_prompts):
        return float(q.requests.num_prompts)
    return q.offered.request_rate * q.offered.duration_s if isfinite(q.offered.duration_s) else PROMPTS


def _write(order: Order, o: Outcome) -> None:
    """The files that were asked for."""
    given = order.given
    if given["save"]:
        arrivals.write(o.as_sent, given["save"], o.results, "save")
    if given["timeline"]:
        from commtax.verbs.lanes import timeline_of

        shown, left_out = timeline_of(o)
        write_text(given["timeline"], shown.to_chrome(), "timeline")
        if left_out:
            text = f"{given['timeline']}: the first {len(shown.lane):,} slices; {left_out:,} later ones are left out"
            order.output.remarks.append(Note("timeline", text))
    if given["plot"]:
        from commtax.report.request_sweeps import plot_outcome

        plot_outcome(o, Path(given["plot"]))


def _sweep(order: Order, q: Question, slo: Slo, name: str, values: tuple[float, ...]) -> NoReturn:
    from commtax.report.request_sweeps import plot_sweep, show_sweep
    from commtax.report.requests import sweep_document

    given = order.given
    for file in ("timeline", "save"):
        if given[file]:
            raise Refusal(f"{file}: is of one run, and a sweep has several", file)
    questions = [at(q, name, value, given["prompts_per_client"]) for value in values]
    swept = sweep(name, values, counted(questions, name))
    if given["plot"]:
        plot_sweep(swept, Path(given["plot"]))
    code = 1 if swept.most(slo) is None else 0
    order.output.answer(sweep_document, show_sweep, swept, slo, code=code)
