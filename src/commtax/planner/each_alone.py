"""Prompts on one cluster and decoding on another, beside each of the two by itself: is it a good idea?

Clusters that each serve whole requests, in one pool or in two of their own, can share the requests between them: pools that span
both have to beat the sum of both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from commtax.cost.memory import on_chip
from commtax.judgement.leading import UNCHECKED
from commtax.judgement.margins import is_close
from commtax.planner.columns import ServingColumns, ServingPlans, objective_value, request_s
from commtax.planner.money import counted_tokens_per_s, paid, per_million
from commtax.planner.reasons import AGAINST, against_codes, more_words
from commtax.question import Question
from commtax.units import format_money, format_seconds, plural

Placed = tuple[ServingPlans, ServingColumns, int]
"""A row of some plans of an answer."""
CLOSE = "; too close to call, measure both"


def questions_alone(put: Question) -> Iterator[Question]:
    """The same question of each of two clusters: that for prompts first; none where there is one cluster."""
    ahead, goal = put.requests.prefill_cluster, put.goal
    if not ahead:
        return
    alone = put.but(prefill_cluster=None, prefill_usd_per_gpu_hour=0.0)
    yield replace(alone, cluster=ahead, engine=on_chip(put.engine, ahead.chip)).but(usd_per_gpu_hour=goal.prefill_usd_per_gpu_hour)
    yield alone


def alone_words(answer: ServingPlans, place: str = "") -> Iterator[str]:
    """What each cluster gives by itself, and both, beside what is recommended on the two: of the whole or of a point; and what they
    are predicted to give with two pools each, where those are unchecked."""
    if not answer.alone:
        return
    good = [(one, *row_at(one, place)) for one in answer.alone if len(one.plans)]
    lost = [f"{one.question.cluster.key} has no good plan" for one in answer.alone if not len(one.plans)]
    one_pool = ", in one pool" * all(rows.mode[i] == 0 for _, rows, i in good)
    yield f"each cluster by itself{one_pool}: {_sum_words(answer, good, place, lost)}"
    split = [(one, rows, _unchecked_place(one, rows, i)) for one, rows, i in good]
    if any(rows.mode[i] > own.mode[j] for (_, rows, i), (_, own, j) in zip(split, good, strict=True)):
        told = _sum_words(answer, split, place).removesuffix(CLOSE)
        yield f"each in two pools of its own, where they lead: {told}, but {AGAINST[UNCHECKED]}"


def _unchecked_place(one: ServingPlans, rows: ServingColumns, own: int) -> int:
    """The best row with two pools, where it is ahead of the recommended one; else that."""
    value, pools = objective_value(one.question, rows), np.flatnonzero(rows.mode == 1)[:1].tolist()
    return next((i for i in pools if UNCHECKED in against_codes(one.question, rows, i) and value[i] > value[own]), own)


def row_at(answer: ServingPlans, place: str) -> tuple[ServingColumns, int]:
    """The recommended row of an operating point, or of the whole where it has no such point."""
    point = next((one for one in answer.places if one.name == place), None)
    return (point.plans, point.recommended) if point else (answer.plans, answer.recommended)


def _sum_words(answer: ServingPlans, good: Sequence[Placed], place: str, lost: Sequence[str] = ()) -> str:
    """What each cluster gives, and all together."""
    sums = f": {_together(answer, good, place)}" if good and answer.question.goal.objective in ("throughput", "cost") else ""
    return "; ".join([*(_one_alone(*placed) for placed in good), *lost]) + sums


def _one_alone(one: ServingPlans, rows: ServingColumns, i: int) -> str:
    q = one.question
    times = f", TTFT {format_seconds(rows.ttft_s[i])}, TPOT {format_seconds(rows.tpot_s[i])}" if not q.goal.times else ""
    request = f"requests of {format_seconds(request_s(q, rows)[i])}, " if q.goal.objective == "latency" else ""
    usd = f" ({_usd(one.usd_per_million_tokens(rows)[i])})" if q.goal.usd_per_gpu_hour else ""
    return f"{q.cluster.key} {request}{rows.tokens_per_s[i]:,.0f} tokens/s{usd} with {one.workers(rows, i)}{times}"


def _together(answer: ServingPlans, good: Sequence[Placed], place: str) -> str:
    """All that the clusters give by themselves, and by how much it is more or fewer than these two pools give: in all, and for the
    money, or per GPU where no price is known."""
    goal, (rows, own) = answer.question.goal, row_at(answer, place)
    rate, gpus = (sum(float(getattr(each, name)[i]) for _, each, i in good) for name in ("tokens_per_s", "gpus"))
    spent = sum((one.question.goal.usd_per_gpu_hour or 1.0) * float(each.gpus[i]) for one, each, i in good)
    pools = (goal.usd_per_gpu_hour or 1.0) * float(paid(goal, rows.gpus[own], rows.prefill_gpus[own]))
    more = rate / float(rows.tokens_per_s[own])
    lead = more / spent * pools
    unit = "tokens per dollar" if goal.usd_per_gpu_hour else "tokens/s per GPU"
    close = CLOSE if is_close(answer.question, lead, pools=True) else ""
    usd = f" ({_usd(_million(answer, spent, rate))})" if goal.usd_per_gpu_hour else ""
    said = f"{rate:,.0f} tokens/s{usd} together on {gpus:.0f} GPUs, " if len(good) > 1 else f"on {plural(int(gpus), 'GPU')} "
    beside = f"than these two pools on {plural(int(rows.gpus[own]), 'GPU')}"
    return f"{said}{more_words(more)} tokens/s {beside} and {more_words(lead)} {unit}{close}"


def _million(answer: ServingPlans, usd_per_hour: float, tokens_per_s: float) -> float:
    return float(per_million(usd_per_hour, counted_tokens_per_s(answer.question, tokens_per_s)))


def _usd(per_million_tokens: float) -> str:
    return f"{format_money(per_million_tokens)} per million"
