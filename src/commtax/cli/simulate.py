"""``commtax simulate``."""

from math import isfinite
from pathlib import Path
from typing import NoReturn

import click
import numpy as np

from commtax.cli.options import GivenOptions, Verb, VerbSubject
from commtax.cli.order import Order, options_beside, refuse, verb_command
from commtax.cli.progress import count_questions, watch_requests
from commtax.files import check_writable, write_text
from commtax.question import Question
from commtax.report import closed_loop
from commtax.sim import arrivals
from commtax.statement import Note, Refusal
from commtax.units import parse_seconds
from commtax.verbs import requests
from commtax.verbs.checking import number, positive
from commtax.verbs.closed_loop import ClosedLoop, serve
from commtax.verbs.disaggregation import check_pools
from commtax.verbs.requests import PROMPTS, RequestsInTime
from commtax.verbs.settling import settle
from commtax.verbs.sweeping import SPELLED, Slo, points, question_at, slo_of, sweep
from commtax.verbs.timed_serving import check_single_load


@click.command("simulate", cls=Verb)
@verb_command("simulate", VerbSubject.LOOP)
def simulate_command(order: Order) -> None:
    """Serving as users see it: TTFT, TPOT, ITL and throughput. Exit code 1: overloaded or an SLO missed.

    Requests in time, step by step, at a rate, from a trace, or a benchmark of so many requests:

    commtax simulate llama-3.1-70b --cluster 8xh100-sxm -tp 4 --request-rate 8 --input-len 512 --output-len 128

    The steady state of a closed loop, in closed form:

    commtax simulate llama-3.1-8b --cluster 8xh100-sxm -tp 1 --concurrency 32 --input-len 1024 --output-len 256
    """
    given, q = order.given, order.question
    if given.num_prompts is not None and given.prompts_per_client is not None:
        raise Refusal.about(prompts_per_client="give it or num_prompts, not both")
    counted = given.num_prompts, given.prompts_per_client, given.duration
    if any(x is not None for x in (given.request_rate, given.trace, *counted, given.sweep)):
        refuse(given, ("images",), "priced in steps and in the steady state of a closed loop, not for requests in time")
        _in_time(order, _with_prompts_per_client(q, given))
    rule = "belongs to requests in time: --request-rate, --trace, or --concurrency with --num-prompts"
    refuse(given, options_beside("simulate", "time"), rule)
    if q.offered.inputs or q.offered.outputs:
        raise Refusal.about(input_len="the steady state has one mean length; add --num-prompts to draw from a distribution")
    simulated = serve(settle(q))
    if q.requests.disaggregated:
        _check_gpus(simulated)
    show = closed_loop.show_simulations if np.ndim(q.requests.concurrency) else closed_loop.show_simulation
    order.output.answer(closed_loop.simulation_document, show, simulated, code=0 if closed_loop.holds_one(simulated) else 1)


def _with_prompts_per_client(q: Question, given: GivenOptions) -> Question:
    """As many prompts for each client, where that was said."""
    each, clients = given.prompts_per_client, q.requests.concurrency
    if each is None or np.ndim(clients) or given.sweep is not None:
        return q
    if q.offered.request_rate or q.offered.trace is not None:
        raise Refusal.about(prompts_per_client="belongs to the clients of a closed loop")
    return q.but(num_prompts=positive(prompts_per_client=each) * clients)


def _check_gpus(simulated: ClosedLoop) -> None:
    """Workers that were asked for, and at least one of each kind, must be there; "enough" of both is a what-if."""
    plan, apart = simulated.question.plan, simulated.apart
    given = simulated.requests.prefill_workers, simulated.requests.decode_workers
    if apart is None or given == (None, None):
        return
    clients = int(np.min(simulated.requests.concurrency))
    if given[1] and given[1] * plan.dp > clients:
        raise Refusal.of(f"more than there are clients, {clients}, for each of their replicas", decode_workers=given[1])
    check_pools(simulated.question, apart.plan, given)


FILES = ("plot", "timeline", "save")


def _in_time(order: Order, q: Question) -> NoReturn:
    """One run, or several beside each other."""
    given = order.given
    slo = _slo(given)
    for name in FILES:
        if given[name]:
            check_writable(given[name], name)
    if given.plot:
        from commtax.report.plots import check_plot

        check_plot(Path(given.plot))
    swept = _swept(given, q)
    if swept:
        _sweep(order, q, slo, *swept)
    if not q.offered.request_rate and q.offered.trace is None and np.isinf(q.requests.num_prompts):
        raise Refusal.about(num_prompts="a closed loop in time has an end; say how many requests, such as 1000")
    _one(order, q, slo)


def _slo(given: GivenOptions) -> Slo:
    """Limits in either spelling."""
    limits = {}
    for name in ("ttft", "tpot"):
        if given[name]:
            limits[SPELLED[name]] = number(parse_seconds(given[name], name), name, 0, 1e6, " s")
    words = [word for text in given.goodput for word in text.replace(",", " ").split()]
    return slo_of(words, Slo(**limits))


def _swept(given: GivenOptions, q: Question) -> tuple[str, tuple[float, ...]] | None:
    """What is swept: as was said, or several numbers of clients."""
    if given.sweep is not None:
        name, values = points(given.sweep)
        if given[name] is not None or q.offered.trace is not None:
            swept = name.replace("_", "-")
            raise Refusal.about(sweep=f"goes over {swept}; give it or --{swept} or --trace, not both")
        return name, values
    if np.ndim(q.requests.concurrency):
        return points(f"concurrency={','.join(map(str, np.asarray(q.requests.concurrency).tolist()))}")
    return None


def _one(order: Order, q: Question, slo: Slo) -> NoReturn:
    from commtax.report.requests import outcome_document, show_outcome

    with watch_requests(_expected(q)) as watch:
        o = requests.serve(settle(check_single_load(q)), watch)
    _write(order, o)
    order.output.answer(outcome_document, show_outcome, o, slo, code=1 if o.overloaded or not slo.kept(o) else 0)


def _expected(q: Question) -> float:
    if q.offered.trace is not None:
        return len(q.offered.trace)
    if np.isfinite(q.requests.num_prompts):
        return float(q.requests.num_prompts)
    return q.offered.request_rate * q.offered.duration_s if isfinite(q.offered.duration_s) else PROMPTS


def _write(order: Order, o: RequestsInTime) -> None:
    """The files that were asked for."""
    given = order.given
    if given.save:
        arrivals.write(o.as_sent, given.save, o.results, "save")
    if given.timeline:
        from commtax.verbs.usage import timeline_of

        shown, left_out = timeline_of(o)
        write_text(given.timeline, shown.to_chrome(), "timeline")
        if left_out:
            text = f"{given.timeline}: the first {len(shown.lane):,} slices; {left_out:,} later ones are left out"
            order.output.remarks.append(Note("timeline", text))
    if given.plot:
        from commtax.report.request_sweeps import plot_outcome

        plot_outcome(o, Path(given.plot))


def _sweep(order: Order, q: Question, slo: Slo, name: str, values: tuple[float, ...]) -> NoReturn:
    from commtax.report.request_sweeps import plot_sweep, show_sweep
    from commtax.report.requests import sweep_document

    given = order.given
    for file in ("timeline", "save"):
        if given[file]:
            raise Refusal(f"{file}: is of one run, and a sweep has several", file)
    questions = [question_at(q, name, value, given.prompts_per_client) for value in values]
    swept = sweep(name, values, count_questions(questions, name))
    if given.plot:
        plot_sweep(swept, Path(given.plot))
    code = 1 if swept.most(slo) is None else 0
    order.output.answer(sweep_document, show_sweep, swept, slo, code=code)
