"""``commtax pipeline``."""

import re
from typing import NoReturn

import click

from commtax.cli.options import CommandOptions, Verb, add_verb_options
from commtax.cli.order import refuse
from commtax.cli.output import Output
from commtax.cost.schedules import DEFAULT, SCHEDULES, Schedule, fewest_microbatches
from commtax.files import write_text
from commtax.report import pipelines
from commtax.sim.pipeline import Durations, PipelineRun
from commtax.statement import Refusal
from commtax.verbs.pipelining import check_cells, durations


@click.command("pipeline", cls=Verb)
@add_verb_options("pipeline", schedule={"help": f"One of {', '.join(SCHEDULES)}.  [default: {DEFAULT}]"})
def pipeline_command(as_json: bool, **flags: object) -> None:
    """Draw a pipeline schedule on its grid: the bubble counted and by closed form, and what each rank must keep."""
    options = CommandOptions(flags)
    if options.schedule not in SCHEDULES:
        raise Refusal.of(f"one of {', '.join(SCHEDULES)}", schedule=options.schedule)
    kind, output = SCHEDULES[options.schedule], Output(as_json)
    if options.chunks is None:
        options.chunks = 1 if kind.chunks else 2
    if options.budget is not None:
        _budget(kind, options, output)
    if options.microbatches is None:
        raise Refusal.about(microbatches="give -m, or --budget to be told how many are needed")
    stages, microbatches, chunks = options.stages, options.microbatches, options.chunks
    check_cells(stages, microbatches, max(chunks, kind.chunks))
    ran = PipelineRun(kind, stages, microbatches, chunks, parse_durations(options))
    if options.svg:
        write_text(options.svg, pipelines.to_svg(ran.timeline), "svg")
    if options.chrome_trace:
        write_text(options.chrome_trace, ran.timeline.to_chrome(), "chrome_trace")
    output.answer(pipelines.pipeline_document, pipelines.show_pipeline, ran)


def _budget(kind: Schedule, options: CommandOptions, output: Output) -> NoReturn:
    if options.microbatches is not None:
        raise Refusal("budget: give it or -m, not both")
    refuse(options, ("transfer", "straggler", "svg", "chrome_trace"), "a budget is answered by algebra, for equal stages")
    p, v, budget = options.stages, options.chunks, options.budget
    if not 1e-4 <= budget <= 1 or not 1 <= p <= 4096:
        raise Refusal(f"budget={budget:g}, stages={p}: a share from 0.0001 to 1, and 1 to 4,096 stages")
    times = parse_durations(options)
    f, b, w = times.forward, times.backward, times.weight
    if not kind.any_times and not f == b == w:
        raise Refusal(f"times '{options.times}': the closed form of {kind.name} holds for equal times only")
    needed = fewest_microbatches(kind, p, v, (f, b, w), budget)
    bubble = float(kind.idle(p, f, b, w)) / kind.total(p, needed, v, f, b, w)
    answer = {"schedule": kind.name, "stages": p, "budget": budget, "microbatches": needed, "bubble": bubble}
    within = f"{p} stages within a bubble of {budget * 100:.3g}% of the total"
    output.answer(
        lambda: {"schema": "commtax.pipeline-budget/1", **answer},
        lambda _console: click.echo(f"{kind.name}: {within} need {needed:,} microbatches ({bubble:.2%})"),
    )


def parse_durations(options: CommandOptions) -> Durations:
    """Read ``F:B:W``, a transfer time and ``RANK:FACTOR`` as durations of a pipeline."""
    stages, times, transfer, straggler = (options[name] for name in ("stages", "times", "transfer", "straggler"))
    try:
        forward, backward, weight = (float(x) for x in times.split(":"))
    except ValueError:
        raise Refusal(f"times '{times}': write three numbers F:B:W, such as 1:1:1") from None
    slow: dict[int, float] = {}
    if straggler:
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)", straggler)
        if not match:
            ranks = f"a rank from 0 to {stages - 1} and a factor from 0.001 to 1000, such as {stages - 1}:1.5"
            raise Refusal(f"straggler '{straggler}': write RANK:FACTOR with {ranks}")
        slow[int(match[1])] = float(match[2])
    return durations(stages, (forward, backward, weight), transfer, slow)
