"""``--emit``: the launch command of a priced plan, and what would check it."""

from __future__ import annotations

import click

from commtax.cli.order import Order
from commtax.question import Limits
from commtax.verbs.billing import StepBill


def emitted(order: Order, priced: StepBill, engine: str) -> dict[str, str]:
    """Commands by what they are for; none where no engine is asked for."""
    if not engine:
        return {}
    from commtax.emit import benchmark_command, launch_command, nccl_command
    from commtax.readers import filled

    q = priced.question
    if q.trains:
        return {"launch": launch_command(q, engine)}
    limits = filled(Limits, order.launch.options) if order.launch else q.limits
    batch = int(q.batch) * int(q.plan.dp) * int(q.plan.replicas)
    q = q.but(limits=limits, input_len=max(1, int(q.context)), concurrency=batch, spread=0.0)
    launch, bench = launch_command(q, engine, order.devices), benchmark_command(q, engine)
    commands = {"launch": launch, "benchmark": bench, "collective": nccl_command(priced)}
    return {name: text for name, text in commands.items() if text}


def show_emitted(commands: dict[str, str]) -> None:
    """Plain lines that can be copied."""
    titles = {"launch": "launch", "benchmark": "check the prediction", "collective": "check the collective that costs most"}
    for name, text in commands.items():
        click.echo(f"# {titles[name]}")
        click.echo(text)
