"""``commtax pipeline``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from commtax import napkin
from commtax.cli.options import Count, Fraction, json_option
from commtax.cli.output import print_json, terminal
from commtax.report import pipelines
from commtax.sim.pipeline import Durations, run
from commtax.sim.schedules import SCHEDULES

MAX_CELLS = 2_000_000


@click.command("pipeline")
@click.option("--stages", "-p", "stages", type=Count(), required=True, help="Pipeline stages.")
@click.option("--microbatches", "-m", "microbatches", type=Count(), default=None, help="Microbatches in one run.")
@click.option("--schedule", default="1f1b", show_default=True, metavar="KIND", help=f"One of {', '.join(SCHEDULES)}.")
@click.option("--chunks", type=Count(), default=1, help="Chunks a rank holds (interleaved).")
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
    if budget is not None:
        _budget(stages, microbatches, budget, as_json)
        return
    if microbatches is None:
        raise ValueError("microbatches: give -m, or --budget to be told how many are needed")
    _pipeline(stages, microbatches, as_json, **options)


def _budget(stages: int, microbatches: int | None, budget: float, as_json: bool) -> None:
    if microbatches is not None:
        raise ValueError("budget: give it or -m, not both")
    needed = napkin.min_microbatches_for_bubble(stages, budget)
    bubble = napkin.bubble_fraction(stages, needed)
    if as_json:
        answer = {"stages": stages, "budget": budget, "microbatches": needed, "bubble": bubble}
        print_json({"schema": "commtax.pipeline-budget/1", **answer})
    else:
        click.echo(f"{stages} stages within a bubble of {budget:.1%} of the total need {needed} microbatches ({bubble:.2%})")


def _pipeline(
    stages: int, microbatches: int, as_json: bool, schedule: str, chunks: int, svg: str, chrome_trace: str, **times: Any
) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule '{schedule}': one of {', '.join(SCHEDULES)}")
    cells = stages * microbatches * chunks
    if cells > MAX_CELLS:
        raise ValueError(f"microbatches={microbatches}: {cells:,} cells are more than the {MAX_CELLS:,} that are simulated")
    durations = parse_durations(stages=stages, **times)
    timeline = run(SCHEDULES[schedule], stages, microbatches, durations, chunks)
    found = pipelines.Pipeline(SCHEDULES[schedule], stages, microbatches, chunks, durations, timeline)
    if svg:
        Path(svg).write_text(pipelines.to_svg(timeline), encoding="utf-8")
    if chrome_trace:
        Path(chrome_trace).write_text(timeline.to_chrome(), encoding="utf-8")
    if as_json:
        print_json(pipelines.pipeline_document(found))
    else:
        pipelines.show_pipeline(terminal(), found)


def parse_durations(times: str, transfer: float, straggler: str, stages: int) -> Durations:
    """``F:B:W``, a transfer time and ``RANK:FACTOR`` as durations of a pipeline."""
    try:
        forward, backward, weight = (float(x) for x in times.split(":"))
    except ValueError:
        raise ValueError(f"times '{times}': write three numbers F:B:W, such as 1:1:1") from None
    if not all(0 < x < 1e6 for x in (forward, backward, weight)) or not 0 <= transfer < 1e6:
        raise ValueError(f"times '{times}', transfer {transfer}: times are above 0, a transfer at least 0, both below 1e6")
    slow: dict[int, float] = {}
    if straggler:
        match = re.fullmatch(r"(\d{1,9}):(\d+(?:\.\d+)?)", straggler)
        if not match or int(match[1]) >= stages or float(match[2]) <= 0:
            raise ValueError(
                f"straggler '{straggler}': write RANK:FACTOR with a rank from 0 to {stages - 1}, such as {stages - 1}:1.5"
            )
        slow[int(match[1])] = float(match[2])
    return Durations(forward, backward, weight, transfer=transfer, rank_factors=slow)
