"""``commtax measure``: live runs on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from commtax.cli.options import Bytes, Count, json_option
from commtax.cli.output import print_json, terminal
from commtax.files import Document, check_writable, write_text
from commtax.report import measuring
from commtax.statement import Refusal
from commtax.units import parse_count, parse_seconds


class Layers(Count):
    """How many of a model's layers; nobody asks for none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        layers = super().convert(value, param, ctx)
        if value != 0 and layers < 1:
            raise Refusal(f"layers={layers}: a whole number of at least 1 is needed")
        return layers


lost_option = click.option(
    "--lost-after",
    "lost_s",
    default="20s",
    show_default=True,
    metavar="TIME",
    callback=lambda _context, _parameter, value: parse_seconds(value, "lost_after"),
    help="End the run when a rank was stopped for this long.",
)
DEMONSTRATION = Path(__file__).parents[1] / "study" / "demonstration"
"""What a study runs when nobody names a model: a Llama of 110 million random weights, for minutes on two cores."""


@click.group("measure")
@click.pass_context
def measure_group(context: click.Context) -> None:
    """Run it for real on this machine: tensor parallelism, collectives, this box's own constants, and a whole study."""
    if context.invoked_subcommand != "experiment":  # which can also drive another engine, and merge what others measured
        _need_torch()


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise Refusal("measure: live runs need torch (pip install 'commtax[live]')")


@measure_group.command("tp")
@click.option("--model", "-m", default="", help="A folder with config.json and safetensors; with --random a catalogue name.")
@click.option("--random", "random_model", default="", metavar="MODEL", help="Random weights in the shape of a catalogue model.")
@click.option("--layers", type=Layers(), default=0, help="Only the first layers of it.")
@click.option("--tp", type=Count(), default=2, show_default=True, help="Ranks (-tp).")
@click.option("--batch", type=Count(), default=1, show_default=True, help="Sequences in a step.")
@click.option("--context", "input_len", type=Count(), default=128, show_default=True, help="Prompt tokens (--input-len).")
@click.option("--output-len", type=Count(), default=32, show_default=True, help="Tokens to answer with.")
@click.option("--dtype", default="", metavar="TYPE", help="fp32, bf16 or fp16.  [default: fp32 on CPU, bf16 on CUDA]")
@click.option("--device", default="", metavar="DEVICE", help="cpu or cuda.  [default: cuda where there is one]")
@click.option("--impl", default="", metavar="NAME", help="All-reduce: gloo, shm or nccl.  [default: nccl on CUDA, else shm]")
@click.option("--emulate-link", default="", metavar="LINK", help="Add the time of another link: 10gbe, ib-ndr …")
@click.option("--slow-rank", default="", metavar="RANK:FACTOR", help="Make one rank compute slower, such as 1:2.0.")
@click.option("--break-rank", type=int, default=-1, metavar="RANK", help="Damage one rank's shard: the check must catch it.")
@click.option("--repeats", type=Count(), default=1, show_default=True, help="Rounds of TP=1, replicas and TP=N, interleaved.")
@click.option("--reference/--no-reference", default=True, help="Run TP=1 and replicas of it beside.")
@click.option("--graphs/--no-graphs", default=True, help="Capture the decode step (CUDA).")
@click.option("--cluster", "-c", default="", help="Predict for this instead of this machine's chips.")
@click.option("--profile", default="", metavar="FILE", help="Predict with a profile of commtax measure calibrate.")
@lost_option
@json_option
def tp_command(model: str, random_model: str, lost_s: float, as_json: bool, **options: Any) -> None:
    """Run TP=1 and TP=N, prove them equal, count every collective, and put the bill beside the clock.

    commtax measure tp --random llama-3.2-1b --layers 2 -tp 2
    """
    from commtax.measure.job import Job
    from commtax.measure.reconcile import passed
    from commtax.measure.tp import run_all

    job = Job(**_weights(model, random_model), **options)
    with ranks_named(), bar("rounds", job.repeats, as_json) as advance:
        document = run_all([job], progress=advance, lost_s=lost_s)[0]
    _show(document, as_json, measuring.show_tp)
    sys.exit(0 if passed(document) else 1)


@measure_group.command("collectives")
@click.option("--impl", default="", metavar="NAMES", help="gloo, shm or both, or nccl.  [default: all that CPU ranks have here]")
@click.option("--ranks", default="2", show_default=True, metavar="N,N", help="Group sizes.")
@click.option("--op", default="all-reduce", show_default=True, metavar="NAME", help="all-reduce or all-gather.")
@click.option("--min", "least", type=Bytes(binary=True), default="8", show_default=True, help="Smallest tensor.")
@click.option(
    "--max", "most", type=Bytes(binary=True), default="64M", show_default=True, help="Largest; M is 2^20, as in nccl-tests."
)
@click.option("--emulate-link", default="", metavar="LINK", help="Add the time of another link: 10gbe, ib-ndr …")
@click.option("--output", default="", metavar="FILE", help="Write JSON lines, one row a size.")
@click.option("--plot", default="", metavar="FILE", help="Draw it: .svg, .png or .pdf.")
@lost_option
@json_option
def collectives_command(
    impl: str, ranks: str, least: float, most: float, output: str, plot: str, as_json: bool, **options: Any
) -> None:
    """Time collectives over sizes, as nccl-tests does, and fit latency and bandwidth.

    commtax measure collectives --impl gloo,shm --ranks 2 --max 1M
    """
    from commtax.measure.collectives import doubling, measure

    groups = _counts(ranks, "ranks")
    sizes = doubling(int(least), int(most))
    for place, what in ((output, "output"), (plot, "plot")):
        if place:
            check_writable(place, what)
    with ranks_named(), bar("sizes", len(sizes) * len(groups), as_json) as advance:
        document = measure(_names(impl), groups, sizes, progress=advance, **options)
    if output:
        write_text(output, "".join(json.dumps(row) + "\n" for row in document["rows"]), "output")
    if plot:
        measuring.plot_collectives(document, Path(plot))
    _show(document, as_json, measuring.show_collectives)
    sys.exit(1 if any(row["wrong"] for row in document["rows"]) else 0)


@measure_group.command("calibrate")
@click.option("--output", "-o", default="this-box.json", show_default=True, metavar="FILE", help="Where the profile goes.")
@click.option("--ranks", type=Count(), default=2, show_default=True, help="Ranks that will run side by side.")
@click.option("--dtype", default="", metavar="TYPE", help="fp32 or bf16: the type that will run.  [default: fp32]")
@click.option("--impl", default="", metavar="NAMES", help="Collectives by gloo, shm or both.  [default: all that are here]")
@click.option("--name", default="", help="The profile's name.  [default: this host's]")
@lost_option
@json_option
def calibrate_command(output: str, ranks: int, dtype: str, impl: str, name: str, lost_s: float, as_json: bool) -> None:
    """Measure this box (memory, matrix products, fixed costs, collectives) and write a profile for --profile.

    commtax measure calibrate -o this-box.json
    """
    from commtax.measure.box import STAGES, calibrate

    check_writable(output, "output")
    with ranks_named(), bar("stages", STAGES, as_json) as advance:
        profile = calibrate(ranks, dtype, name, _names(impl), lost_s, advance)
    write_text(output, json.dumps(profile, indent=2) + "\n", "output")
    _show(profile, as_json, partial(measuring.show_profile, path=output))


@measure_group.command("experiment")
@click.option("--recipe", default="tp-study", show_default=True, metavar="NAME", help="Which study.")
@click.option(
    "--engine", default="builtin", show_default=True, metavar="NAME", help="builtin, or vllm (an installed one is driven)."
)
@click.option("--model", "-m", default="", help="A folder with config.json and safetensors; with vLLM any name it knows.")
@click.option(
    "--random",
    "random_model",
    default="",
    metavar="MODEL",
    help="Built-in engine: random weights of a catalogue model.  [default: a Llama of 110 M weights]",
)
@click.option("--layers", type=Layers(), default=0, help="Built-in engine: only the first layers of it.")
@click.option("--tp", "degrees", default="1,2", show_default=True, metavar="N,N", help="Tensor-parallel degrees.")
@click.option("--quick", is_flag=True, help="Small counts and short lengths: minutes on a laptop.")
@click.option(
    "--out", default="experiment", show_default=True, metavar="DIR", help="Raw results, report and charts; goes on where it ended."
)
@click.option("--merge", "merged", multiple=True, metavar="DIR", help="No runs: one report of several --out folders (repeat it).")
@click.option("--dtype", default="", metavar="TYPE", help="fp32, bf16 or fp16.  [default: fp32 on CPU, else bf16]")
@click.option("--device", default="", metavar="DEVICE", help="Built-in engine: cpu or cuda.  [default: cuda where there is one]")
@click.option("--impl", default="", metavar="NAME", help="Built-in engine: all-reduce by gloo, shm or nccl.")
@click.option("--cluster", "-c", default="", help="Predict for this instead of this machine's chips.")
@click.option("--profile", default="", metavar="FILE", help="Predict with a profile of commtax measure calibrate.")
@click.option(
    "--dataset", default="", metavar="FILE", help="Serve requests as long as a ShareGPT-shaped file's.  [default: synthetic]"
)
@click.option("--vllm", default="", metavar="PATH", help="The vllm program.  [default: on PATH]")
@click.option("--vllm-args", default="", metavar="WORDS", help="More options for every vllm command, such as '--enforce-eager'.")
@click.option("--name", default="", help="This machine's name in the report.  [default: its device]")
@lost_option
@json_option
def experiment_command(
    model: str, random_model: str, degrees: str, out: str, merged: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """The whole TP study as one command: latency, serving, batch scaling, a profile; a report with the questions answered.

    commtax measure experiment --random llama-3.2-1b --layers 4 --quick --out study
    """
    from commtax.report import experiment as reporting
    from commtax.study.driving import Asked
    from commtax.study.experiment import experiment, merge

    folder, builtin = Path(out), options["engine"] == "builtin"
    if merged:
        boxes = merge([Path(m) for m in merged])
        folder.mkdir(parents=True, exist_ok=True)
    else:
        weights = _weights(model, random_model or (str(DEMONSTRATION) if builtin and not model else ""))
        if builtin:
            _need_torch()
        asked = Asked(folder, degrees=tuple(_counts(degrees, "tp")), **weights, **options)
        try:
            with ranks_named():
                boxes = [experiment(asked, partial(click.echo, err=True))]  # a study takes minutes to hours
        except KeyboardInterrupt:
            click.echo(f"finished runs are kept in {folder}: the same command goes on with the others", err=True)
            raise
    try:
        charts = reporting.charts(boxes, folder)
        write_text(folder / "report.md", reporting.markdown(boxes, charts), "out")
        document = {"schema": "commtax.experiments/1", "boxes": boxes} if merged else boxes[0]
        _show(document, as_json, lambda console, _: reporting.show(console, boxes, folder))
        code = 1 if any(box["failed"] for box in boxes) else 0
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if not merged:
            raise
        # documents that came from files: one with a part missing, or of another kind, is bad input and no fault of the report
        text = f"merge {', '.join(repr(m) for m in merged)}: an experiment.json has a part that is missing or of the wrong form"
        raise Refusal(f"{text} ({type(error).__name__}: {error}); run that experiment again, or leave it out") from None
    sys.exit(code)


def _weights(model: str, random_model: str) -> Document:
    """Whose weights run: a checkpoint's, or random ones in the shape of a model."""
    if bool(model) == bool(random_model):
        raise Refusal("model: give --model FOLDER, or --random NAME for random weights", "model")
    return {"model": model or random_model, "random": bool(random_model)}


def _names(listed: str) -> list[str]:
    return [name for name in listed.split(",") if name]


def _counts(listed: str, name: str) -> list[int]:
    return [parse_count(count, name) for count in listed.split(",")]


def _show(document: Document, as_json: bool, show: Callable[[Console, Document], None]) -> None:
    if as_json:
        print_json(document)
    else:
        show(terminal(), document)


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
