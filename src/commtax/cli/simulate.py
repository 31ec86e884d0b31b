"""``commtax simulate``."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from commtax.cli.options import (
    Count,
    Fraction,
    axis_options,
    json_option,
    paste_options,
    profile_option,
    replicas_option,
    spread_option,
    where_options,
)
from commtax.cli.order import Order, ordered
from commtax.report import serving
from commtax.statement import Refusal
from commtax.units import parse_count
from commtax.verbs.serving import Simulation, serve

MAX_VALUES = 1_024
LENGTHS = ("--input-len", "--context", "--random-input-len"), ("--output-len", "--osl", "--random-output-len")


class Counts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A whole number, or several: ``1,8,64``."""

    name = "N[,N…]"

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> Any:
        name = param.name if param and param.name else "value"
        parts = str(value).split(",")
        if len(parts) > MAX_VALUES:
            raise Refusal(f"{name}: {len(parts):,} values, more than the {MAX_VALUES:,} that are shown", name)
        found = [parse_count(part, name) for part in parts]
        return found[0] if len(found) == 1 else np.array(found)


@click.command("simulate")
@click.argument("model", required=False)
@where_options
@paste_options
@click.option("--tp", type=Count(), default=1, help="Tensor-parallel size (-tp).")
@click.option("--pp", type=Count(), default=1, help="Pipeline stages (-pp).")
@axis_options
@replicas_option
@click.option("--concurrency", "--max-concurrency", "concurrency", type=Counts(), default=1, help="Clients: 32, or 1,8,64.")
@click.option(*LENGTHS[0], "input_len", type=Count(), default=1024, show_default=True, help="Mean prompt length.")
@click.option(*LENGTHS[1], "output_len", type=Count(), default=128, show_default=True, help="Mean output length.")
@click.option("--num-prompts", type=Count(), default=None, help="Requests of the whole benchmark.  [default: the steady state]")
@click.option("--prompts-per-client", type=Count(), default=None, help="The same for each client (10 is usual).")
@spread_option
@click.option("--max-num-batched-tokens", type=Count(), default=None, help="Tokens a step.  [default: the engine's]")
@click.option("--max-num-seqs", type=Count(), default=None, help="Requests that run at once.  [default: the engine's]")
@click.option("--gpu-memory-utilization", type=Fraction(), default=None, help="Share of memory.  [default: the engine's]")
@click.option("--disaggregated", is_flag=True, help="Prompts run on workers of their own.")
@click.option("--prefill-workers", type=Count(), default=None, help="Disaggregated: how many.  [default: enough]")
@click.option("--prefill-tp", type=Count(), default=None, help="Disaggregated: their tensor-parallel size.  [default: --tp]")
@click.option("--decode-workers", type=Count(), default=None, help="Disaggregated: workers that decode.  [default: enough]")
@profile_option
@json_option
@ordered()
def simulate_command(order: Order) -> None:
    """TPOT and TTFT of a closed loop: clients that each send a request when the last one is answered. Exit code 1: it does not fit.

    commtax simulate llama-3.1-8b --cluster 8xh100-sxm -tp 1 --concurrency 32 --input-len 1024 --output-len 256
    """
    given, q = order.given, order.question
    if given["num_prompts"] is not None and given["prompts_per_client"] is not None:
        raise Refusal("prompts_per_client: give it or num_prompts, not both", "prompts_per_client")
    if given["prompts_per_client"] is not None:
        q = q.but(num_prompts=given["prompts_per_client"] * given["concurrency"])
    found = serve(q)
    if q.requests.disaggregated:
        _check_gpus(found)
    several = np.ndim(q.requests.concurrency) > 0
    order.output.answer(
        lambda: serving.simulation_document(found),
        lambda console: (serving.show_simulations if several else serving.show_simulation)(console, found),
        code=0 if serving.holds_one(found) else 1,
    )


def _check_gpus(found: Simulation) -> None:
    """Workers that were asked for, and at least one of each kind, must be there; "enough" of both is a what-if."""
    plan, cluster, apart = found.question.plan, found.question.cluster, found.apart
    given = found.requests.prefill_workers, found.requests.decode_workers
    if apart is None or given == (None, None):
        return
    clients = int(np.min(found.requests.concurrency))
    if given[1] and given[1] * plan.dp > clients:
        raise Refusal(
            f"decode_workers={given[1]}: more than there are clients, {clients}, for each of their replicas", "decode_workers"
        )
    each = int(apart.plan.num_gpus), int(plan.num_gpus)
    count = given[0] or 1, given[1] or 1
    total = count[0] * each[0] + count[1] * each[1]
    if total > cluster.num_gpus:
        name = "prefill_workers" if given[0] else "decode_workers"
        words = f"{count[0]} x {each[0]} GPUs for prompts + {count[1]} x {each[1]} to decode = {total}"
        raise Refusal(f"{name}={given[0] or given[1]}: {words}, and {cluster.key} has {cluster.num_gpus}", name)
