"""A priced step to the terminal, as JSON and as a page; ``--emit``: its launch command, and what would check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commtax.api.train_billing import TrainBill
from commtax.cli.output import carried, print_json, terminal
from commtax.cli.pages import write_bill_page

if TYPE_CHECKING:
    from commtax.api.explained import Priced


def show_priced(
    priced: Priced, emit: str, html: str, as_json: bool, *, num_tokens: float = 0.0, measured_mfu: float | None = None
) -> None:
    """One step with all that was asked for beside it; what follows from it is computed once."""
    from commtax.api.explained import Explained
    from commtax.report import bills

    step, commands = Explained(priced), emitted(priced, emit)
    write_bill_page(html, step)
    if as_json:
        print_json(bills.bill_document(step, num_tokens, measured_mfu), **({"emit": commands} if emit else {}))
    else:
        bills.show_bill(terminal(), step, num_tokens, measured_mfu)
        show_emitted(commands)


def emitted(priced: Priced, engine: str) -> dict[str, str]:
    """Commands by what they are for; none where no engine is asked for."""
    if not engine:
        return {}
    from commtax.emit import Limits, benchmark_command, launch_command, nccl_command

    asked = priced.setup
    if isinstance(priced, TrainBill):
        limits = Limits(
            micro_batch=int(priced.step.micro_batch), seq=int(priced.step.seq), async_axes=tuple(priced.settings.async_axes)
        )
        return {"launch": launch_command(asked.model, asked.plan, engine, asked.cluster, limits)}
    s = priced.settings
    limits = Limits(eager=s.eager, library=s.library, ep_backend=s.ep_backend, **carried())
    launch = launch_command(asked.model, asked.plan, engine, asked.cluster, limits)
    batch = int(priced.batch) * int(asked.plan.dp) * int(asked.plan.replicas)
    bench = benchmark_command(asked.model, engine, input_len=max(1, int(priced.context)), concurrency=batch, spread=0.0)
    commands = {"launch": launch, "benchmark": bench, "collective": nccl_command(priced)}
    return {name: text for name, text in commands.items() if text}


def show_emitted(commands: dict[str, str]) -> None:
    """Plain lines that can be copied."""
    titles = {"launch": "launch", "benchmark": "check the prediction", "collective": "check the collective that costs most"}
    for name, text in commands.items():
        click.echo(f"# {titles[name]}")
        click.echo(text)
