"""``commtax pipeline``."""

from __future__ import annotations

import re
from typing import Any

import click

from commtax.cli.options import Count, Fraction, json_option
from commtax.cli.output import print_json, terminal
from commtax.cost.schedules import DEFAULT, SCHEDULES, Schedule, fewest_microbatches
from commtax.files import write_text
from commtax.report import pipelines
from commtax.sim.bubble import run_pipeline
from commtax.sim.pipeline import Durations
from commtax.statement import Refusal

MAX_CELLS = 150_000
"""Cells that are simulated: a few seconds and a few hundred megabytes."""


@click.command("pipeline")
@click.option("--stages", "-p", "stages", type=Count(), required=True, help="Pipeline stages.")
@click.option("--microbatches", "-m", "microbatches", type=Count(), default=None, help="Microbatches in one run.")
@click.option("--schedule", default=DEFAULT, show_default=True, metavar="KIND", help=f"One of {', '.join(SCHEDULES)}.")
@click.option("--chunks", type=Count(), default=None, help="Chunks a rank holds (interleaved).  [default: 2]")
@click.option("--times", default="1:1:1", show_default=True, metavar="F:B:W", help="Forward, input gradient, weight gradient.")
@click.option("--transfer", type=float, default=0.0, help="Time from one stage to the next.")
@click.option("--straggler", default="", metavar="RANK:FACTOR", help="One slow rank, such as 3:1.5.")
@click.option("--budget", type=Fraction(), default=None, help="Instead of -m: how many microbatches keep the bubble within this?")
@click.option("--svg", default="", metavar="FILE", help="Write a picture.")
@click.option("--chrome-trace", default="", metavar="FILE", help="Write a trace that Perfetto opens.")
@json_option
def pipeline_command(stages: int, microbatches: int | None, budget: float | None, as_json: bool, **options: Any) -> None:
    """A pipeline schedule on its grid: the bubble counted and by closed form, and what each rank must keep.

    commtax pipeline -p 8 -m 32 --schedule zb-h1
    """
    name = options.pop("schedule")
    if name not in SCHEDULES:
        raise Refusal(f"schedule '{name}': one of {', '.join(SCHEDULES)}", "schedule")
    kind = SCHEDULES[name]
    options["chunks"] = (1 if kind.chunks else 2) if options["chunks"] is None else options["chunks"]
    if budget is not None:
        _budget(kind, stages, microbatches, budget, as_json, options)
        return
    if microbatches is None:
        raise Refusal("microbatches: give -m, or --budget to be told how many are needed", "microbatches")
    _pipeline(kind, stages, microbatches, as_json, **options)


def _budget(kind: Schedule, p: int, microbatches: int | None, budget: float, as_json: bool, options: dict[str, Any]) -> None:
    """The fewest microbatches whose bubble is within the budget, by the schedule's closed form."""
    if microbatches is not None:
        raise Refusal("budget: give it or -m, not both")
    given = [name for name in ("transfer", "straggler", "svg", "chrome_trace") if options[name]]
    if given:
        raise Refusal(f"{given[0]}: a budget is answered by algebra, for equal stages")
    if not 1e-4 <= budget <= 1 or not 1 <= p <= 4096:
        raise Refusal(f"budget={budget:g}, stages={p}: a share from 0.0001 to 1, and 1 to 4,096 stages")
    times = parse_durations(p, options["times"], 0.0, "")
    f, b, w = times.forward, times.backward, times.weight
    if not kind.any_times and not f == b == w:
        raise Refusal(f"times '{options['times']}': the closed form of {kind.name} holds for equal times only")
    v = options["chunks"]
    needed = fewest_microbatches(kind, p, v, (f, b, w), budget)
    bubble = float(kind.idle(p, f, b, w)) / kind.total(p, needed, v, f, b, w)
    if as_json:
        answer = {"schedule": kind.name, "stages": p, "budget": budget, "microbatches": needed, "bubble": bubble}
        print_json({"schema": "commtax.pipeline-budget/1", **answer})
    else:
        share = f"{budget * 100:.3g}% of the total"
        click.echo(f"{kind.name}: {p} stages within a bubble of {share} need {needed:,} microbatches ({bubble:.2%})")


def _pipeline(
    kind: Schedule, stages: int, microbatches: int, as_json: bool, chunks: int, svg: str, chrome_trace: str, **times: Any
) -> None:
    each = stages * max(chunks, kind.chunks)
    if each * microbatches > MAX_CELLS:
        most = f"{MAX_CELLS // each:,} microbatches" if each <= MAX_CELLS else f"{MAX_CELLS * stages // each:,} stages"
        rule = f"{each * microbatches:,} cells, more than the {MAX_CELLS:,} that are simulated; at most {most}"
        raise Refusal(f"microbatches={microbatches}: {rule} (--budget needs no simulation)", "microbatches")
    durations = parse_durations(stages=stages, **times)
    ran = run_pipeline(kind, stages, microbatches, chunks, durations)
    if svg:
        write_text(svg, pipelines.to_svg(ran.timeline), "svg")
    if chrome_trace:
        write_text(chrome_trace, ran.timeline.to_chrome(), "chrome_trace")
    if as_json:
        print_json(pipelines.pipeline_document(ran))
    else:
        pipelines.show_pipeline(terminal(), ran)


def parse_durations(stages: int, times: str, transfer: float, straggler: str) -> Durations:
    """``F:B:W``, a transfer time and ``RANK:FACTOR`` as durations of a pipeline."""
    try:
        forward, backward, weight = (float(x) for x in times.split(":"))
    except ValueError:
        raise Refusal(f"times '{times}': write three numbers F:B:W, such as 1:1:1") from None
    if not all(1e-6 <= x <= 1e6 for x in (forward, backward, weight)) or not 0 <= transfer <= 1e6:
        raise Refusal(f"times '{times}', transfer {transfer}: times are 1e-6 to 1e6, a transfer 0 to 1e6")
    slow: dict[int, float] = {}
    if straggler:
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)", straggler)
        if not match or int(match[1]) >= stages or not 1e-3 <= float(match[2]) <= 1e3:
            raise Refusal(
                f"straggler '{straggler}': write RANK:FACTOR with a rank from 0 to {stages - 1} and a factor from 0.001 to 1000, "
                f"such as {stages - 1}:1.5"
            )
        slow[int(match[1])] = float(match[2])
    return Durations(forward, backward, weight, transfer=transfer, rank_factors=slow)
