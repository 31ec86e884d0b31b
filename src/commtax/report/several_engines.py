"""One training job with several engines: each engine's recommended plan, fastest first."""

from collections.abc import Sequence

from commtax.planner.columns import TrainPlans
from commtax.report.documents import Record
from commtax.report.drawing import Console
from commtax.report.plan_tables import EXPENDABLE
from commtax.report.planning import plans_document
from commtax.report.tables import ANSWER, notes, say, show_table, sized_places
from commtax.report.trained_plans import ranked_columns, run_notes
from commtax.units import plural

SHOWN = (">step", ">80% range", ">tokens/s", ">takes", ">costs", ">MFU", ">comm", ">memory")
"""Columns of plans that are shown; the plans themselves stand in the sentences above."""


def show_engines(console: Console, answers: Sequence[TrainPlans], _top: int) -> None:
    """Which engine, with which plan, and by how much; then each engine's own plan in a row."""
    q, able = answers[0].question, fastest_first(answers)
    if able:
        best = able[0]
        say(console, f"Recommended: {_name(best)}, {best.whole_words(best.plans, best.recommended)}.", ANSWER)
        for other in able[1:]:
            say(console, f"  {_against(best, other)}")
    for answer in answers:
        if not len(answer.plans):
            say(console, f"{_name(answer)}: no plan fits in memory.", "bold red")
    work = f"{plural(q.goal.global_batch, 'sequence')} of {q.context:,} tokens per step"
    say(console, f"{q.model.key} on {sized_places(q)}, {' or '.join(_name(a) for a in answers)}: {work}", "dim")
    if able:
        shown = [ranked_columns(a, a.plans, [a.recommended]) for a in able]
        columns = {"engine": [_name(a) for a in able]} | {name: [one[name][0] for one in shown] for name in SHOWN}
        show_table(console, list(columns), zip(*columns.values(), strict=True), EXPENDABLE)
    notes(console, [*(run_notes(able[0]) if able else []), "why other plans of an engine lost: name it alone"])


def fastest_first(answers: Sequence[TrainPlans]) -> list[TrainPlans]:
    """Answers that have a plan, by the speed of the one that is recommended."""
    return sorted((a for a in answers if len(a.plans)), key=_rate, reverse=True)


def engines_document(answers: Sequence[TrainPlans], top: int) -> Record:
    able = fastest_first(answers)
    return {
        "schema": "commtax.plan-engines/1",
        "engines": [_name(a) for a in answers],
        "recommended": _name(able[0]) if able else None,
        "answers": [plans_document(a, top) for a in answers],
    }


def _against(best: TrainPlans, other: TrainPlans) -> str:
    """By how much the first is faster, and whether the ranges of both can tell."""
    ours, theirs = (a.step_of(a.plans, a.recommended) for a in (best, other))
    sure = "" if float(ours.high_s) < float(theirs.low_s) else "; their 80% ranges overlap: measure both"
    gain, plan = _rate(best) / _rate(other) - 1, other.whole_words(other.plans, other.recommended)
    return f"{gain:.1%} more tokens/s than {_name(other)}, {plan}{sure}"


def _rate(a: TrainPlans) -> float:
    return a.tokens_per_s(a.plans, a.recommended)


def _name(a: TrainPlans) -> str:
    return a.question.engine.key
