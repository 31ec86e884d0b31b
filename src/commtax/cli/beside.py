"""What an answer writes beside itself: the page's pictures (``--html``), the launch and what checks it (``--emit``)."""

import shlex
from collections.abc import Callable
from typing import TypeVar

import click

from commtax.cli.order import Order
from commtax.files import write_text
from commtax.question import Limits
from commtax.verbs.billing import StepBill

Shown = TypeVar("Shown")


def write_page(path: str, draw: Callable[[Shown, str], object], shown: Shown) -> None:
    """The pictures of an answer, in one file that needs no server."""
    from commtax.web.assets import offline

    write_text(path, offline(draw(shown, _command())), "html")


def _command() -> str:
    """The running command as it was typed, without the file that it writes."""
    context = click.get_current_context(silent=True)
    typed = context.obj if context and isinstance(context.obj, list) else []
    kept = [w for before, w in zip(["", *typed], typed, strict=False) if before != "--html" and not w.startswith("--html")]
    return shlex.join(["commtax", *kept])


def emitted(order: Order, priced: StepBill) -> dict[str, str]:
    """Commands by what they are for."""
    from commtax.emit import benchmark_command, launch_command, nccl_command
    from commtax.readers import filled

    q, engine = priced.question, order.given["emit"]
    if q.trains:
        return {"launch": launch_command(q, engine)}
    limits = filled(Limits, order.launch.options) if order.launch else q.limits
    batch = int(q.batch) * int(q.plan.dp) * int(q.plan.replicas)
    q = q.but(limits=limits, input_len=max(1, int(q.context)), concurrency=batch, spread=0.0)
    launch, bench = launch_command(q, engine, order.devices), benchmark_command(q, engine)
    commands = {"launch": launch, "benchmark": bench, "collective": nccl_command(priced)}
    return {name: text for name, text in commands.items() if text}
