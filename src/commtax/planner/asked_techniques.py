"""Techniques that a search is asked to use: which of them a plan cannot have, and why none can."""

from collections.abc import Iterable

from commtax.catalog.techniques import changes_of, techniques_on
from commtax.question import Question
from commtax.spec import NO_TECHNIQUES
from commtax.statement import Refusal, rule_of
from commtax.verbs.settling import settle

SEARCHED = "dcp"  # over how many ranks caches are split is searched, up to what is asked for


def dropped(asked: Question, workers: Iterable[Question]) -> tuple[str, ...]:
    """Techniques that none of a plan's workers can have, as they are written."""
    if asked.techniques == NO_TECHNIQUES:
        return ()
    on = {one.key for worker in workers for one, _ in techniques_on(worker)}
    return tuple(text for one, text in techniques_on(asked) if one.key not in {*on, SEARCHED})


def without(names: tuple[str, ...]) -> str:
    """The same behind a plan's name."""
    return f", without {', '.join(names)}" if names else ""


def refuse_unused(asked: Question, plans: list[tuple[Question, ...]]) -> None:
    """Refuse a technique that no plan can have; plans are the questions of their workers."""
    missing = set.intersection(*(set(dropped(asked, workers)) for workers in plans)) if plans else set()
    if asked.plan.dcp > 1 and all(worker.plan.dcp == 1 for workers in plans for worker in workers):
        missing.add(f"{SEARCHED}={asked.plan.dcp}")
    for text in sorted(missing):
        reasons = dict.fromkeys(why for workers in plans for worker in workers if (why := _refused(worker, text)))
        if reasons:
            told = list(reasons)[-1 if text.startswith(SEARCHED) else -2 :]  # those of the widest plans
            raise Refusal(f"technique '{text}': no plan here can have it: {'; others: '.join(told)}", "technique")


def _refused(worker: Question, text: str) -> str:
    """Return why a worker cannot have a technique; "" where it can."""
    try:
        settle(worker.but(**changes_of(text)))
    except ValueError as error:
        return rule_of(error)
    return ""
