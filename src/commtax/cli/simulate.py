"""``commtax simulate``."""

import click
import numpy as np

from commtax.cli import timed
from commtax.cli.options import COPIES, LAID, LENGTH, LIMITS, LORA, PASTED, PICTURES, POOLS, WHERE, About, Given, Verb, taking
from commtax.cli.order import Order, ordered, refuse
from commtax.question import INPUT_LEN, OUTPUT_LEN, Question
from commtax.report import closed_loop
from commtax.statement import Refusal
from commtax.verbs.apart import check_pools
from commtax.verbs.checking import positive
from commtax.verbs.serving import Simulation, serve

DIST = "512, uniform:256-1024, lognormal:mean=512,p90=1200, sharegpt, file:PATH …"
OFFERED = (
    *("request_rate", "trace", "concurrency", "num_prompts", "prompts_per_client", "duration", "input_len", "output_len", "spread"),
    *("burstiness", "unique_prompts", "shared_prefix", "prefix_cache", "ramp_up", "warmup", "router", "seed", "goodput"),
    *("ttft", "tpot", "sweep"),
)
WORKERS = ("disaggregated", "prefill_workers", "prefill_tp", "prefill_dp", "decode_workers", *POOLS)


@click.command("simulate", cls=Verb)
@taking(
    *(
        *WHERE,
        *PASTED,
        *LAID,
        *COPIES,
        *LORA,
        "imbalance",
        "ep_backend",
        *OFFERED,
        *PICTURES,
        *LIMITS,
        "kv_tokens",
        *WORKERS,
        "profile",
        "plot",
        "timeline",
        "save",
        "as_json",
    ),
    concurrency={"default": None, "help": "Clients: 32, or 1,8,64; beside a rate: requests in flight at most."},
    num_prompts={"help": "Requests, simulated in time.  [default: 1000, a closed loop: the steady state]"},
    input_len={"kind": LENGTH, "default": None, "help": f"Prompt tokens: {DIST}  [default: {INPUT_LEN}]"},
    output_len={"kind": LENGTH, "default": None, "help": f"Output tokens.  [default: {OUTPUT_LEN}]"},
    ttft={"help": "Each request's time to the first token, at most: 500ms."},
    tpot={"help": "Each request's time an output token, at most: 30ms."},
    plot={"help": "Draw times and their tails, or latency against rate: .svg, .png or .pdf."},
)
@ordered(About.LOOP)
def simulate_command(order: Order) -> None:
    """Serving as users see it: TTFT, TPOT, ITL and throughput. Exit code 1: overloaded or an SLO missed.

    Requests in time, step by step, at a rate, from a trace, or a benchmark of so many requests:

    commtax simulate llama-3.1-70b --cluster 8xh100-sxm -tp 4 --request-rate 8 --input-len 512 --output-len 128

    The steady state of a closed loop, in closed form:

    commtax simulate llama-3.1-8b --cluster 8xh100-sxm -tp 1 --concurrency 32 --input-len 1024 --output-len 256
    """
    given, q = order.given, order.question
    if given["num_prompts"] is not None and given["prompts_per_client"] is not None:
        raise Refusal("prompts_per_client: give it or num_prompts, not both", "prompts_per_client")
    if timed.is_timed(given):
        refuse(given, ("images",), "priced in steps and in the steady state of a closed loop, not for requests in time")
        timed.answer(order, _counted(q, given))
    refuse(given, timed.ONLY, "belongs to requests in time: --request-rate, --trace, or --concurrency with --num-prompts")
    if q.offered.inputs or q.offered.outputs:
        raise Refusal("input_len: the steady state has one mean length; add --num-prompts to draw from a distribution", "input_len")
    simulated = serve(q)
    if q.requests.disaggregated:
        _check_gpus(simulated)
    show = closed_loop.show_simulations if np.ndim(q.requests.concurrency) else closed_loop.show_simulation
    order.output.answer(closed_loop.simulation_document, show, simulated, code=0 if closed_loop.holds_one(simulated) else 1)


def _counted(q: Question, given: Given) -> Question:
    """As many prompts for each client, where that was said."""
    each, clients = given["prompts_per_client"], q.requests.concurrency
    if each is None or np.ndim(clients) or given["sweep"] is not None:
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
        rule = f"more than there are clients, {clients}, for each of their replicas"
        raise Refusal(f"decode_workers={given[1]}: {rule}", "decode_workers")
    check_pools(simulated.question, apart.plan, given)
