"""Prompts on one cluster and decoding on another, beside each of the two by itself: is it a good idea?

Clusters that each serve whole requests in one pool can share the requests between them: two pools have to beat the sum of both.
"""

from collections.abc import Iterator
from dataclasses import replace

from commtax.cost.memory import on_chip
from commtax.judgement.margins import is_close
from commtax.planner.columns import ServingColumns, ServingPlans, request_s
from commtax.planner.money import counted_tokens_per_s, paid, per_million
from commtax.question import Question
from commtax.units import format_money, format_seconds


def questions_alone(put: Question) -> Iterator[Question]:
    """The same question of each of two clusters, without pools: that for prompts first; none where there is one cluster."""
    ahead, goal = put.requests.prefill_cluster, put.goal
    if not ahead:
        return
    alone = put.but(prefill_cluster=None, prefill_usd_per_gpu_hour=0.0, disaggregated=False)
    yield replace(alone, cluster=ahead, engine=on_chip(put.engine, ahead.chip)).but(usd_per_gpu_hour=goal.prefill_usd_per_gpu_hour)
    yield alone


def alone_words(answer: ServingPlans, place: str = "") -> Iterator[str]:
    """What each cluster gives by itself, and both, beside what is recommended with two pools: of the whole or of a point."""
    if not answer.alone:
        return
    said = "; ".join(_one_alone(one, place) for one in answer.alone)
    good = [one for one in answer.alone if len(one.plans)]
    sums = f": {_together(answer, good, place)}" if good and answer.question.goal.objective in ("throughput", "cost") else ""
    yield f"each cluster by itself, in one pool: {said}{sums}"


def row_at(answer: ServingPlans, place: str) -> tuple[ServingColumns, int]:
    """The recommended row of an operating point, or of the whole where it has no such point."""
    point = next((one for one in answer.places if one.name == place), None)
    return (point.plans, point.recommended) if point else (answer.plans, answer.recommended)


def _one_alone(one: ServingPlans, place: str) -> str:
    q = one.question
    if not len(one.plans):
        return f"{q.cluster.key} has no good plan"
    rows, i = row_at(one, place)
    times = f", TTFT {format_seconds(rows.ttft_s[i])}, TPOT {format_seconds(rows.tpot_s[i])}" if not q.goal.times else ""
    request = f"requests of {format_seconds(request_s(q, rows)[i])}, " if q.goal.objective == "latency" else ""
    usd = f" ({_usd(one.usd_per_million_tokens(rows)[i])})" if q.goal.usd_per_gpu_hour else ""
    return f"{q.cluster.key} {request}{rows.tokens_per_s[i]:,.0f} tokens/s{usd} with {one.workers(rows, i)}{times}"


def _together(answer: ServingPlans, good: list[ServingPlans], place: str) -> str:
    """All that the clusters give by themselves, and whether two pools give more for the money; of GPUs where no price is known."""
    goal = answer.question.goal
    (rows, own), each = row_at(answer, place), [row_at(one, place) for one in good]
    rate = sum(float(rows.tokens_per_s[i]) for rows, i in each)
    prices = [one.question.goal.usd_per_gpu_hour or 1.0 for one in good]
    spent = sum(price * float(rows.gpus[i]) for price, (rows, i) in zip(prices, each, strict=True))
    pools = (goal.usd_per_gpu_hour or 1.0) * float(paid(goal, rows.gpus[own], rows.prefill_gpus[own]))
    lead = rate / spent * pools / float(rows.tokens_per_s[own])
    unit = "tokens per dollar" if goal.usd_per_gpu_hour else "tokens/s per GPU"
    close = "; too close to call, measure both" if is_close(answer.question, lead, pools=True) else ""
    usd = f" ({_usd(_million(answer, spent, rate))})" if goal.usd_per_gpu_hour else ""
    said = f"{rate:,.0f} tokens/s{usd} together, " if len(good) > 1 else ""
    return f"{said}{abs(lead - 1):.0%} {'more' if lead > 1 else 'fewer'} {unit} than these two pools{close}"


def _million(answer: ServingPlans, usd_per_hour: float, tokens_per_s: float) -> float:
    return float(per_million(usd_per_hour, counted_tokens_per_s(answer.question, tokens_per_s)))


def _usd(per_million_tokens: float) -> str:
    return f"{format_money(per_million_tokens)} per million"
