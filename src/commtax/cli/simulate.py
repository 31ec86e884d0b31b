"""``commtax simulate``."""

import click
import numpy as np

from commtax.cli.options import LAID, LIMITS, PASTED, WHERE, About, Verb, taking
from commtax.cli.order import Order, ordered
from commtax.report import serving
from commtax.statement import Refusal
from commtax.verbs.serving import Simulation, serve

REQUESTS = ("concurrency", "input_len", "output_len", "num_prompts", "prompts_per_client", "spread")
WORKERS = ("disaggregated", "prefill_workers", "prefill_tp", "decode_workers")


@click.command("simulate", cls=Verb)
@taking(*WHERE, *PASTED, *LAID, *REQUESTS, *LIMITS, *WORKERS, "profile", "as_json")
@ordered(About.LOOP)
def simulate_command(order: Order) -> None:
    """TPOT and TTFT of a closed loop: clients that each send a request when the last one is answered. Exit code 1: it does not fit.

    commtax simulate llama-3.1-8b --cluster 8xh100-sxm -tp 1 --concurrency 32 --input-len 1024 --output-len 256
    """
    given, q = order.given, order.question
    if given["num_prompts"] is not None and given["prompts_per_client"] is not None:
        raise Refusal("prompts_per_client: give it or num_prompts, not both", "prompts_per_client")
    if given["prompts_per_client"] is not None:
        q = q.but(num_prompts=given["prompts_per_client"] * given["concurrency"])
    simulated = serve(q)
    if q.requests.disaggregated:
        _check_gpus(simulated)
    show = serving.show_simulations if np.ndim(q.requests.concurrency) else serving.show_simulation
    order.output.answer(serving.simulation_document, show, simulated, code=0 if serving.holds_one(simulated) else 1)


def _check_gpus(simulated: Simulation) -> None:
    """Workers that were asked for, and at least one of each kind, must be there; "enough" of both is a what-if."""
    plan, cluster, apart = simulated.question.plan, simulated.question.cluster, simulated.apart
    given = simulated.requests.prefill_workers, simulated.requests.decode_workers
    if apart is None or given == (None, None):
        return
    clients = int(np.min(simulated.requests.concurrency))
    if given[1] and given[1] * plan.dp > clients:
        rule = f"more than there are clients, {clients}, for each of their replicas"
        raise Refusal(f"decode_workers={given[1]}: {rule}", "decode_workers")
    each = int(apart.plan.num_gpus), int(plan.num_gpus)
    count = given[0] or 1, given[1] or 1
    total = count[0] * each[0] + count[1] * each[1]
    if total > cluster.num_gpus:
        name = "prefill_workers" if given[0] else "decode_workers"
        needed = f"{count[0]} x {each[0]} GPUs for prompts + {count[1]} x {each[1]} to decode = {total}"
        raise Refusal(f"{name}={given[0] or given[1]}: {needed}, and {cluster.key} has {cluster.num_gpus}", name)
