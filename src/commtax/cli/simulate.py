"""``commtax simulate``."""

import click
import numpy as np

from commtax.cli import timed
from commtax.cli.options import About, Given, Verb
from commtax.cli.order import Order, beside, ordered, refuse
from commtax.question import Question
from commtax.report import closed_loop
from commtax.statement import Refusal
from commtax.verbs.apart import check_pools
from commtax.verbs.asking import settle
from commtax.verbs.checking import positive
from commtax.verbs.serving import Simulation, serve


@click.command("simulate", cls=Verb)
@ordered("simulate", About.LOOP)
def simulate_command(order: Order) -> None:
    """Serving as users see it: TTFT, TPOT, ITL and throughput. Exit code 1: overloaded or an SLO missed.

    Requests in time, step by step, at a rate, from a trace, or a benchmark of so many requests:

    commtax simulate llama-3.1-70b --cluster 8xh100-sxm -tp 4 --request-rate 8 --input-len 512 --output-len 128

    The steady state of a closed loop, in closed form:

    commtax simulate llama-3.1-8b --cluster 8xh100-sxm -tp 1 --concurrency 32 --input-len 1024 --output-len 256
    """
    given, q = order.given, order.question
    if given.num_prompts is not None and given.prompts_per_client is not None:
        raise Refusal("prompts_per_client: give it or num_prompts, not both", "prompts_per_client")
    if timed.is_timed(given):
        refuse(given, ("images",), "priced in steps and in the steady state of a closed loop, not for requests in time")
        timed.answer(order, _counted(q, given))
    refuse(
        given,
        beside("simulate", "time"),
        "belongs to requests in time: --request-rate, --trace, or --concurrency with --num-prompts",
    )
    if q.offered.inputs or q.offered.outputs:
        raise Refusal("input_len: the steady state has one mean length; add --num-prompts to draw from a distribution", "input_len")
    simulated = serve(settle(q))
    if q.requests.disaggregated:
        _check_gpus(simulated)
    show = closed_loop.show_simulations if np.ndim(q.requests.concurrency) else closed_loop.show_simulation
    order.output.answer(closed_loop.simulation_document, show, simulated, code=0 if closed_loop.holds_one(simulated) else 1)


def _counted(q: Question, given: Given) -> Question:
    """As many prompts for each client, where that was said."""
    each, clients = given.prompts_per_client, q.requests.concurrency
    if each is None or np.ndim(clients) or given.sweep is not None:
        return q
    if q.offered.request_rate or q.offered.trace is not None:
        raise Refusal("prompts_per_client: belongs to the clients of a closed loop", "prompts_per_client")
    return q.but(num_prompts=positive(each, "prompts_per_client") * clients)


def _check_gpus(simulated: Simulation) -> None:
    """Workers that were asked for, and at least one of each kind, must be there; "enough" of both is a what-if."""
    plan, apart = simulated.question.plan, simulated.apart
    given = simulated.requests.prefill_workers, simulated.requests.decode_workers
    if apart is None or given == (None, None):
        return
    clients = int(np.min(simulated.requests.concurrency))
    if given[1] and given[1] * plan.dp > clients:
        raise Refusal.of(f"more than there are clients, {clients}, for each of their replicas", decode_workers=given[1])
    check_pools(simulated.question, apart.plan, given)
