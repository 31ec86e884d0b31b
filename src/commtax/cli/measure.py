"""``commtax measure``: live runs on this machine."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from commtax.cli.options import taking
from commtax.cli.output import Output
from commtax.files import Document, check_writable, write_text
from commtax.report import measuring
from commtax.statement import Refusal


@click.group("measure")
@click.pass_context
def measure_command(context: click.Context) -> None:
    """Run it for real on this machine: tensor parallelism, collectives, this box's own constants, and a whole study."""
    if context.invoked_subcommand != "experiment":  # which can also drive another engine, and merge what others measured
        need_torch()


def need_torch() -> None:
    if find_spec("torch") is None:
        raise Refusal("measure: live runs need torch (pip install 'commtax[live]')")


@measure_command.command("tp")
@taking("measure-tp")
def tp_command(model: str, random_model: str, lost_after: float, as_json: bool, **options: Any) -> None:
    """Run TP=1 and TP=N, prove them equal, count every collective, and put the bill beside the clock.

    commtax measure tp --random llama-3.2-1b --layers 2 -tp 2
    """
    from commtax.measure.job import Job
    from commtax.measure.reconcile import passed
    from commtax.measure.tp import run_all

    job = Job(**weights_of(model, random_model), **options)
    with ranks_named(), bar("rounds", job.repeats, as_json) as advance:
        document = run_all([job], progress=advance, lost_s=lost_after)[0]
    code = 0 if passed(document) else 1
    Output(as_json).answer(dict, measuring.show_tp, document, code=code)


@measure_command.command("collectives")
@taking("measure-collectives")
def collectives_command(
    impl: list[str],
    ranks: list[int],
    least: float,
    most: float,
    output: str,
    plot: str,
    lost_after: float,
    as_json: bool,
    **options: str,
) -> None:
    """Time collectives over sizes, as nccl-tests does, and fit latency and bandwidth.

    commtax measure collectives --impl gloo,shm --ranks 2 --max 1M
    """
    from commtax.measure.collectives import doubling, measure

    sizes = doubling(int(least), int(most))
    for place, what in ((output, "output"), (plot, "plot")):
        if place:
            check_writable(place, what)
    with ranks_named(), bar("sizes", len(sizes) * len(ranks), as_json) as advance:
        document = measure(impl, ranks, sizes, lost_s=lost_after, progress=advance, **options)
    if output:
        write_text(output, "".join(json.dumps(row) + "\n" for row in document["rows"]), "output")
    if plot:
        measuring.plot_collectives(document, Path(plot))
    code = 1 if any(row["wrong"] for row in document["rows"]) else 0
    Output(as_json).answer(dict, measuring.show_collectives, document, code=code)


@measure_command.command("calibrate")
@taking("measure-calibrate")
def calibrate_command(output: str, ranks: int, dtype: str, impl: list[str], name: str, lost_after: float, as_json: bool) -> None:
    """Measure this box (memory, matrix products, fixed costs, collectives) and write a profile for --profile.

    commtax measure calibrate -o this-box.json
    """
    from commtax.measure.box import STAGES, calibrate

    check_writable(output, "output")
    with ranks_named(), bar("stages", STAGES, as_json) as advance:
        profile = calibrate(ranks, dtype, name, impl, lost_after, advance)
    write_text(output, json.dumps(profile, indent=2) + "\n", "output")
    Output(as_json).answer(lambda made, _: made, measuring.show_profile, profile, output)


def weights_of(model: str, random_model: str) -> Document:
    """Whose weights run: a checkpoint's, or random ones in the shape of a model."""
    if bool(model) == bool(random_model):
        raise Refusal.about(model="give --model FOLDER, or --random NAME for random weights")
    return {"model": model or random_model, "random": bool(random_model)}


@contextmanager
def ranks_named() -> Iterator[None]:
    """A rank that died: its number, how, and the end of its traceback; exit code 3."""
    from commtax.measure.launch import RankError

    try:
        yield
    except RankError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(3)


@contextmanager
def bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[object], None]]:
    """A progress bar on standard error, where somebody looks at it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _news: None
        return
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda _news: shown.advance(task)
