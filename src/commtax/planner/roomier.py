"""Where memory binds: the engine limits that let the recommended plan serve more, and what the search answers with them."""

from collections.abc import Callable
from dataclasses import replace

from commtax.judgement.engine_limits import Changes, memory_binds
from commtax.planner.columns import NO_SERVING, ServingColumns, ServingPlans, objective_value
from commtax.question import Question
from commtax.statement import Note
from commtax.units import format_seconds, plural
from commtax.verbs.fit_advice import changed_limits, limit_costs, limits_worth_changing, room_words
from commtax.verbs.fitting import Fit, holds, judged_by_memory
from commtax.words import words

Loads = Callable[[ServingPlans, ServingColumns, int], ServingColumns]
"""The good loads of one row's plan as an answer's question has it, best first."""


def answer_with_room(answer: ServingPlans, loads: Loads, search: Callable[[Question], ServingPlans]) -> ServingPlans | None:
    """Return the answer with the engine limits that gain most; None where memory does not bind, or no limit gains enough.

    Limits are sought for the recommended plan alone; what they bring is what the whole search answers with them.
    """
    rows, own, q = answer.plans, answer.recommended, answer.question
    if rows.mode[own] or not memory_binds(float(rows.kv_headroom[own])):
        return None

    def worth(changes: Changes) -> float:
        found = loads(replace(answer, question=q.but(**changes)), rows, own) if changes else rows.take(slice(own, own + 1))
        return float(max(objective_value(q, found), default=0.0))

    changes = limits_worth_changing(recommended_fit(answer), worth)
    found = search(q.but(**changes)) if changes else replace(answer, plans=NO_SERVING)
    return found if len(found.plans) else None


def recommended_fit(answer: ServingPlans) -> Fit:
    """Return what a replica of the recommended plan holds, as ``fit`` judges it."""
    return holds(judged_by_memory(answer.put(answer.plans, answer.recommended)).but(disaggregated=False))


def roomier_words(answer: ServingPlans) -> list[Note]:
    """Return what engine limits bring where memory binds, and what they cost; nothing where none were found."""
    found = answer.roomier
    if not found:
        return []
    now, then, i, j = answer.plans, found.plans, answer.recommended, found.recommended
    fits = recommended_fit(found), recommended_fit(answer)
    where = "" if found.layout(then, j) == answer.layout(now, i) else f"{found.gpu_words(then, j)}, "
    gain = float(then.tokens_per_s[j] / now.tokens_per_s[i]) - 1
    ttft, tpot = (format_seconds(float(seconds[j])) for seconds in (then.ttft_s, then.tpot_s))
    figures = f"{plural(int(then.concurrency[j]), 'client')}, {then.tokens_per_s[j]:,.0f} tokens/s ({gain:+.0%})"
    told = {"room": room_words(*fits), "settings": changed_limits(*fits), "costs": limit_costs(*fits)}
    return [words("roomier", where=where, figures=figures, ttft=ttft, tpot=tpot, **told)]
