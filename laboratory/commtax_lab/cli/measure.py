"""``commtax measure``: live runs on this machine."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import click
from rich.console import Console

from commtax import catalog
from commtax.catalog.profile_files import parse, write_profile
from commtax.cli.help import VerbGroup
from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.files import check_writable, write_text
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax_lab.cli import measuring
from commtax_lab.cli.measuring import show_lessons, show_serving

if TYPE_CHECKING:
    from commtax_lab.measure.job import LiveJob
    from commtax_lab.measure.study.driving import StudyOrder
    from commtax_lab.measure.study.live_lessons import ServedLoads
    from commtax_lab.measure.study.live_loads import LiveLoad


class WeightsChoice(TypedDict):
    model: str
    random: bool


class EngineOptions(TypedDict, total=False):
    layers: int
    dtype: str
    device: str
    impl: str


class FaultyRunOptions(EngineOptions, total=False):
    tp: int
    batch: int
    input_len: int
    output_len: int
    emulate_link: str
    slow_rank: str
    break_rank: int
    repeats: int
    reference: bool
    graphs: bool
    cluster: str
    profile: str
    trace: str


class ServerOptions(EngineOptions, total=False):
    tp: int
    seed: int


class StudyOptions(EngineOptions, total=False):
    recipe: str
    engine: str
    quick: bool
    cluster: str
    profile: str
    dataset: str
    vllm: str
    vllm_args: str
    name: str


DEMONSTRATION = Path(__file__).parents[1] / "measure" / "study" / "demonstration"
"""What a study runs when nobody names a model: a Llama of 110 million random weights, for minutes on two cores."""


@click.group("measure", cls=VerbGroup)
@click.pass_context
def measure_command(context: click.Context) -> None:
    """Run it for real on this machine: tensor parallelism, collectives, this box's own constants, and a whole study."""
    if context.invoked_subcommand != "experiment":  # which can also drive another engine, and merge what others measured
        need_torch()


def need_torch() -> None:
    if find_spec("torch") is None:
        raise Refusal("measure: live runs need torch (pip install 'commtax[live]')")


@measure_command.command("tp", cls=Verb)
@add_verb_options("measure-tp")
def tp_command(model: str, random_model: str, lost_after: float, as_json: bool, **options: Unpack[FaultyRunOptions]) -> None:
    """Run TP=1 and TP=N, prove them equal, count every collective, and put the bill beside the clock."""
    from commtax_lab.measure.job import LiveJob
    from commtax_lab.measure.reconcile import is_reconciled
    from commtax_lab.measure.tp import run_all

    job = LiveJob(**weights_of(model, random_model), **options)
    with report_dead_ranks(), bar("rounds", job.repeats, as_json) as advance:
        document = run_all([job], progress=advance, lost_s=lost_after)[0]
    code = 0 if is_reconciled(document) else 1
    Output(as_json).answer(dict, measuring.show_tp, document, code=code)


@measure_command.command("collectives", cls=Verb)
@add_verb_options("measure-collectives")
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
    """Measure collectives over sizes, as nccl-tests does, and fit latency and bandwidth."""
    from commtax_lab.measure.collective_sweep import doubling_sizes, measure

    sizes = doubling_sizes(int(least), int(most))
    for place, what in ((output, "output"), (plot, "plot")):
        if place:
            check_writable(place, what)
    with report_dead_ranks(), bar("sizes", len(sizes) * len(ranks), as_json) as advance:
        document = measure(impl, ranks, sizes, lost_s=lost_after, progress=advance, **options)
    if output:
        write_text(output, "".join(json.dumps(row) + "\n" for row in document["rows"]), "output")
    if plot:
        measuring.plot_collectives(document, Path(plot))
    code = 1 if any(row["wrong"] for row in document["rows"]) else 0
    Output(as_json).answer(dict, measuring.show_collectives, document, code=code)


@measure_command.command("calibrate", cls=Verb)
@add_verb_options("measure-calibrate")
def calibrate_command(output: str, ranks: int, dtype: str, impl: list[str], name: str, lost_after: float, as_json: bool) -> None:
    """Measure this box (memory, matrix products, fixed costs, collectives) and write a profile for --profile."""
    from commtax_lab.measure.own_constants import STAGES, calibrate

    check_writable(output, "output")
    with report_dead_ranks(), bar("stages", STAGES, as_json) as advance:
        profile = calibrate(ranks, dtype, name, impl, lost_after, advance)
    write_profile(output, replace(parse(profile), written=date.today().isoformat()), what="output")
    Output(as_json).answer(lambda made, _: made, measuring.show_profile, profile, output)


@measure_command.command("serve", cls=Verb)
@add_verb_options("measure-serve")
def serve_command(
    model: str,
    random_model: str,
    request_rate: tuple[float, ...],
    num_prompts: int,
    max_num_seqs: int,
    input_len: str,
    output_len: str,
    lost_after: float,
    as_json: bool,
    calibrate: int,
    profile: str,
    out: str,
    output: str,
    engine: str,
    vllm: str,
    vllm_args: str,
    **options: Unpack[ServerOptions],
) -> None:
    """Serve requests that come at random for real, and hold their times against the simulator's."""
    from commtax_lab.measure.job import LiveJob
    from commtax_lab.measure.study import live
    from commtax_lab.measure.study.live import serving_document

    inputs, outputs = catalog.lengths(input_len, "inputs", "input_len"), catalog.lengths(output_len, "outputs", "output_len")
    builtin = is_builtin(engine)
    if calibrate:
        if request_rate:
            raise Refusal("request_rate: --calibrate serves closed loops, whose clients wait for their answers", "request_rate")
        lesson = LoadLesson((max_num_seqs, inputs.mean, outputs.mean), calibrate, profile, out, output, lost_after, as_json)
        if builtin:
            job = LiveJob(**weights_of(model, random_model or ("" if model else str(DEMONSTRATION))), **options)
            learn_from_loads(job, lesson)
        else:
            learn_from_vllm(vllm_order(model, random_model, vllm, vllm_args, options), lesson)
        return
    calibrate_only = (("profile", profile), ("out", out), ("output", output), ("engine", "" if builtin else engine))
    job = LiveJob(**weights_of(model, random_model or ("" if model else str(DEMONSTRATION))), **options)
    for name, value in (*calibrate_only, ("vllm", vllm), ("vllm_args", vllm_args)):
        if value:
            raise Refusal(f"{name}: belongs to --calibrate N", name)
    service = live.Service(job, inputs, outputs, request_rate, num_prompts, max_num_seqs).settle()
    with report_dead_ranks(), bar("sweeps and runs", live.stages(service), as_json) as advance:
        seen = live.run(service, progress=advance, lost_s=lost_after)
    Output(as_json).answer(dict, show_serving, serving_document(service, seen))


class LoadLesson(NamedTuple):
    """Loads around one, how many of them calibrate, and what is read and written."""

    load: tuple[int, float, float]  # requests at once, mean prompt and output tokens
    shown: int
    profile: str
    out: str
    output: str
    lost_s: float
    as_json: bool

    def loads(self, seed: int) -> "tuple[tuple[LiveLoad, ...], int]":
        """Return the loads to serve and their rounds, after refusing files that cannot be written."""
        from commtax_lab.measure.study import live_lessons, live_loads

        for place, what in ((self.out, "out"), (self.output, "output")):
            if place:
                check_writable(place, what)
        loads, rounds = live_loads.usual_loads(*self.load, seed=seed)
        live_lessons.check_shown(self.shown, len(loads))
        return loads, rounds

    def tell(self, served: "ServedLoads", before: Profile) -> None:
        """Learn from some loads, predict the others, and write and print it."""
        from commtax_lab.measure.study import live_lessons

        document, learnt = live_lessons.lessons_document(served, self.shown, before)
        if self.out:
            write_profile(self.out, replace(learnt, written=date.today().isoformat()))
        if self.output:
            write_text(self.output, "".join(json.dumps(row) + "\n" for row in document["results"]), "output")
        Output(self.as_json).answer(lambda made, _: made, show_lessons, document, self.out)


def learn_from_loads(job: "LiveJob", lesson: LoadLesson) -> None:
    """Calibrate on loads that the small engine serves."""
    from commtax_lab.measure.study import live_lessons, live_loads

    series = live_loads.LoadSeries(job, *lesson.loads(job.seed)).settle()
    with report_dead_ranks(), bar("loads", live_loads.stages(series), lesson.as_json) as advance:
        before = live_lessons.machine_profile(series, lesson.profile, lesson.lost_s)
        seen = live_loads.run(series, progress=advance, lost_s=lesson.lost_s)
    lesson.tell(live_lessons.served_loads(series, seen), before)


def learn_from_vllm(order: "StudyOrder", lesson: LoadLesson) -> None:
    """Calibrate on loads that vLLM serves. On CPUs the small engine measures the constants after vLLM has stopped."""
    from commtax_lab.measure.study import live_lessons, vllm_loads

    loads, _ = lesson.loads(0)
    with report_dead_ranks(), bar("loads", len(loads) * vllm_loads.rounds(), lesson.as_json) as advance:
        served = vllm_loads.serve_loads(order, loads, advance)
        before = live_lessons.prior_profile(lesson.profile, served, lesson.lost_s)
    lesson.tell(served, before)


def vllm_order(model: str, random_model: str, vllm: str, vllm_args: str, options: ServerOptions) -> "StudyOrder":
    """Return what vLLM is to serve, and refuse options that only the small engine has."""
    from commtax_lab.measure.study.driving import StudyOrder

    for name in ("layers", "device", "impl"):
        if options.get(name):
            raise Refusal(f"{name}: of the built-in engine alone", name)
    if random_model:
        raise Refusal(
            "random: of the built-in engine alone; vLLM gives a --model folder without weights random ones", "random_model"
        )
    served, degrees, dtype = model or str(DEMONSTRATION), (options["tp"],), options["dtype"]
    return StudyOrder(Path(), model=served, degrees=degrees, dtype=dtype, vllm=vllm, vllm_args=vllm_args)


def is_builtin(engine: str) -> bool:
    """Return whether the small engine serves, and not an installed vLLM."""
    if engine not in ("builtin", "vllm"):
        raise Refusal(f"engine '{engine}': builtin, or vllm", "engine")
    return engine == "builtin"


@measure_command.command("experiment", cls=Verb)
@add_verb_options("measure-experiment")
def experiment_command(
    model: str,
    random_model: str,
    tp: list[int],
    out: str,
    merged: tuple[str, ...],
    lost_after: float,
    as_json: bool,
    **options: Unpack[StudyOptions],
) -> None:
    """Run the whole TP study and report it: latency, serving, batch scaling, a profile, and the questions answered."""
    from commtax_lab.cli import experiment as reporting
    from commtax_lab.measure.study.driving import StudyOrder
    from commtax_lab.measure.study.experiment import experiment, merge

    folder, builtin = Path(out), options["engine"] == "builtin"
    if merged:
        boxes = merge([Path(m) for m in merged])
        folder.mkdir(parents=True, exist_ok=True)
    else:
        if not model and not random_model:  # for another engine it is a folder like any other
            model, random_model = ("", str(DEMONSTRATION)) if builtin else (str(DEMONSTRATION), "")
        weights = weights_of(model, random_model)
        if builtin:
            need_torch()
        order = StudyOrder(folder, degrees=tuple(tp), lost_s=lost_after, **weights, **options)
        try:
            with report_dead_ranks():
                boxes = [experiment(order, partial(click.echo, err=True))]  # a study takes minutes to hours
        except KeyboardInterrupt:
            click.echo(f"finished runs are kept in {folder}: the same command goes on with the others", err=True)
            raise
    try:
        charts = reporting.charts(boxes, folder)
        write_text(folder / "report.md", reporting.markdown(boxes, charts), "out")
        document = {"schema": "commtax.experiments/1", "boxes": boxes} if merged else boxes[0]
        code = 1 if any(box["failed"] for box in boxes) else 0
        Output(as_json).answer(lambda *_: document, reporting.show, boxes, folder, code=code)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if not merged:
            raise
        # documents that came from files: one with a part missing, or of another kind, is bad input and no fault of the report
        text = f"merge {', '.join(repr(m) for m in merged)}: an experiment.json has a part that is missing or of the wrong form"
        raise Refusal(f"{text} ({type(error).__name__}: {error}); run that experiment again, or leave it out") from None


def weights_of(model: str, random_model: str) -> WeightsChoice:
    """Return whose weights run: a checkpoint's, or random ones in the shape of a model."""
    if bool(model) == bool(random_model):
        raise Refusal.about(model="give --model FOLDER, or --random NAME for random weights")
    return {"model": model or random_model, "random": bool(random_model)}


@contextmanager
def report_dead_ranks() -> Iterator[None]:
    """Report a rank that died (its number, how, and the end of its traceback) and exit with code 3."""
    from commtax_lab.measure.launch import RankError

    try:
        yield
    except RankError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(3)


@contextmanager
def bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[object], None]]:
    """Show a progress bar on standard error, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _news: None
        return
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda _news: shown.advance(task)
