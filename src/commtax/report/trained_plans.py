"""Training plans for a terminal and as rows: their splits, steps, days and dollars."""

import math

import numpy as np

from commtax.planner.columns import SIZED, TrainColumns, TrainPlans
from commtax.planner.money import training_money
from commtax.planner.training_search import BUDGET
from commtax.report.documents import Record, facts
from commtax.report.drawing import Console
from commtax.report.money import price_notes
from commtax.report.plan_tables import EXPENDABLE, NEAREST, facts_at, places, rows_to_show, show_ranked
from commtax.report.tables import Remarks
from commtax.spec import KINDS
from commtax.statement import Note
from commtax.units import DAY_S, format_bytes, format_duration, format_money, format_seconds, format_tokens
from commtax.words import words

TRAINED = (*SIZED, "gpus", "step_s", "mfu", "memory_bytes", "bubble_fraction", "exposed_comm_fraction")
"""Sizes of a plan, and its figures."""


def show_training_plans(console: Console, a: TrainPlans, top: int) -> Remarks:
    """The ranking of splits, or the nearest plans; what is left to remark."""
    if not len(a.plans):
        if len(a.near):
            _show_ranked_training(console, a, a.near, NEAREST)
        return tuple(run_notes(a) if len(a.near) else ()), ()
    splits = a.splits()
    _show_ranked_training(console, a, a.plans.take(splits), top, int(np.flatnonzero(splits == a.recommended)[0]))
    listed = f"--top N --json lists the first N of all {len(a.plans):,} that fit"
    best = f"the best microbatch, recomputation and schedule of each split; {listed}"
    return (best, *run_notes(a)), ()


def _show_ranked_training(console: Console, a: TrainPlans, rows: TrainColumns, top: int, recommended: int | None = None) -> None:
    first = rows_to_show(rows, top, recommended)
    columns = {"": places(first, recommended), **ranked_columns(a, rows, first)}
    show_ranked(console, columns, [int(rows.gpus[i]) for i in first], EXPENDABLE, a.question.gpus_there)


def untrained_words(a: TrainPlans) -> list[str]:
    """What is missing; a rank's share shrinks with the GPUs, or a little slower."""
    if not len(a.near):
        return ["No plan is legal."]
    least, budget = float(a.near.memory_bytes[0]), BUDGET * a.question.cluster.chip.visible_bytes
    gpus = math.ceil(int(a.near.gpus[0]) * least / budget)
    short = f"{format_bytes(least)} per rank at least, of {format_bytes(budget)}"
    return [f"No plan fits in memory: {short}.", f"It would take about {gpus:,} GPUs."]


def ranked_columns(a: TrainPlans, rows: TrainColumns, first: list[int]) -> dict[str, list[str]]:
    steps = [a.step_of(rows, i) for i in first]
    rates = [a.tokens_per_s(rows, i) for i in first]
    runs = [training_money(a.question, int(rows.gpus[i]), rate) for i, rate in zip(first, rates, strict=True)]
    return {
        "plan": [a.layout(rows, i) for i in first],
        ">microbatch": [str(int(rows.micro_batch[i])) for i in first],
        "kind": [a.kind_words(rows, i) for i in first],
        ">step": [format_seconds(rows.step_s[i]) for i in first],
        ">80% range": [f"{format_seconds(b.low_s)}-{format_seconds(b.high_s)}" for b in steps],
        ">tokens/s": [f"{rate:,.0f}" for rate in rates],
        ">takes": [format_duration(run.days * DAY_S) for run in runs],
        ">costs": ["" if run.usd is None else format_money(run.usd) for run in runs],
        ">MFU": [f"{rows.mfu[i]:.1%}" for i in first],
        ">bubble": [f"{rows.bubble_fraction[i]:.1%}" for i in first],
        ">comm": [f"{rows.exposed_comm_fraction[i]:.1%}" for i in first],
        ">memory": [format_bytes(rows.memory_bytes[i]) for i in first],
    }


def run_words(a: TrainPlans) -> str:
    """The run's tokens: ``15T``.

    >>> from types import SimpleNamespace as Any
    >>> run_words(Any(question=Any(goal=Any(train_tokens=1.5e12))))
    '1.5T'
    """
    return format_tokens(a.question.goal.train_tokens)


def run_notes(a: TrainPlans) -> list[Note]:
    """Return the run that time and dollars are of, and the price of a GPU-hour."""
    return [words("run-tokens", tokens=run_words(a), prices=price_notes([a.question]))]


def trained_row(a: TrainPlans, rows: TrainColumns, i: int) -> Record:
    b, rate = a.step_of(rows, i), a.tokens_per_s(rows, i)
    run = training_money(a.question, int(rows.gpus[i]), rate)
    figures = trained_figures(rows, i)
    figures |= {"step_low_s": b.low_s, "step_high_s": b.high_s, "tokens_per_s": rate, "tokens_per_s_per_gpu": rate / rows.gpus[i]}
    figures |= {"days": run.days, "usd": run.usd, "usd_per_gpu_hour": run.usd_per_gpu_hour or None}
    return figures | facts(a.kinds[int(rows.kind[i])].plan, *KINDS) | {"verdict": a.gpu_words(rows, i)}


def trained_figures(rows: TrainColumns, i: int) -> Record:
    return facts_at(rows, i, *TRAINED) | {"memory_bytes": round(float(rows.memory_bytes[i]))}
