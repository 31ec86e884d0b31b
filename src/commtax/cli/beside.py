"""What an answer writes beside itself: the page's pictures (``--html``), the launch and what checks it (``--emit``)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from commtax.cli.order import Order
from commtax.files import write_text
from commtax.question import Limits
from commtax.verbs.billing import StepBill

if TYPE_CHECKING:
    from commtax.planner.columns import ServingPlans, TrainPlans
    from commtax.report.view.pictures import Page
    from commtax.verbs.explained import Explained


def write_bill_page(path: str, step: Explained) -> None:
    if path:
        from commtax.report.view.pictures import bill_page

        _write(path, bill_page(step, _command()))


def write_plan_page(path: str, plans: ServingPlans | TrainPlans) -> None:
    if path:
        from commtax.report.view.pictures import plan_page

        _write(path, plan_page(plans, _command()))


def _write(path: str, page: Page) -> None:
    from commtax.web.assets import offline

    write_text(path, offline(page), "html")


def _command() -> str:
    """The running command as it was typed, without the file that it writes."""
    context = click.get_current_context(silent=True)
    typed = context.obj if context and isinstance(context.obj, list) else []
    kept = [w for before, w in zip(["", *typed], typed, strict=False) if before != "--html" and not w.startswith("--html")]
    return shlex.join(["commtax", *kept])


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
