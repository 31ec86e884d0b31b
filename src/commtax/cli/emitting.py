"""``--emit``: the launch command of a priced plan, and what would check it."""

from __future__ import annotations

import click

from commtax.api.billing import StepBill
from commtax.api.train_billing import TrainBill
from commtax.cli.output import carried


def emitted(priced: StepBill | TrainBill, engine: str) -> dict[str, str]:
    """Commands by what they are for; none where no engine is asked for."""
    if not engine:
        return {}
    from commtax.emit import Limits, benchmark_command, launch_command, nccl_command

    asked = priced.setup
    if isinstance(priced, TrainBill):
        limits = Limits(micro_batch=int(priced.step.micro_batch), seq=int(priced.step.seq), async_axes=tuple(priced.async_axes))
        return {"launch": launch_command(asked.model, asked.plan, engine, asked.cluster, limits)}
    s = priced.settings
    limits = Limits(eager=s.eager, library=s.library, ep_backend=s.ep_backend, **carried())
    launch = launch_command(asked.model, asked.plan, engine, asked.cluster, limits)
    batch = int(priced.batch) * int(asked.plan.dp) * int(asked.plan.replicas)
    bench = benchmark_command(asked.model, engine, input_len=max(1, int(priced.context)), concurrency=batch, spread=0.0)
    found = {"launch": launch, "benchmark": bench, "collective": nccl_command(priced)}
    return {name: text for name, text in found.items() if text}


def show_emitted(commands: dict[str, str]) -> None:
    """Plain lines that can be copied."""
    titles = {"launch": "launch", "benchmark": "check the prediction", "collective": "check the collective that costs most"}
    for name, text in commands.items():
        click.echo(f"# {titles[name]}")
        click.echo(text)
