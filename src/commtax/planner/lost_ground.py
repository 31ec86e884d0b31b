"""Why one plan is behind another: what it has too little of or takes too long for, and how much of the loss that explains.

Clients of a closed loop get tokens at the rate ``clients x output / request``. So a plan that gives fewer has fewer clients, waits
longer for first tokens, or takes longer for each of the others: of the three, one explains a third of the loss or more.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from commtax.arrays import unique_values
from commtax.planner.columns import ServingPlans, objective_value, request_s
from commtax.planner.money import paid
from commtax.planner.space import surely
from commtax.units import format_seconds, plural
from commtax.verbs.billing import StepBill

TELLING = 1 / 3  # the share of a loss that a reason has to explain
BUSIER = np.array([2, 3, 4, 6, 8, 12, 16])
"""Times the clients of a plan: whether its throughput has peaked is seen by whether any of these loads has more …"""
GROWS = 1.01  # … by more than next to nothing
NOTHING = "nothing that is predicted tells them apart"


class LossReason(NamedTuple):
    """What a plan suffers from, and the share of the other's figure that it loses by that alone."""

    effect: float
    words: str


def telling_reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> list[str]:
    """Why plan ``i`` is behind ``first``, the largest effect before others; ``share`` and ``usual`` are of communication."""
    rows, value = answer.plans, objective_value(answer.question, answer.plans)
    loss = max(0.0, 1 - float(value[i] / value[first]))
    found = sorted((one for one in _reasons(answer, i, share, usual, first) if one.effect > 0), reverse=True)
    told = [one.words for one in found if one.effect >= TELLING * loss] or [one.words for one in found[:1]]
    stages = [_stage_words(answer, i)] if rows.pp[i] > rows.pp[first] else []
    return [*stages, *told] or [NOTHING]


def waited_links(step: StepBill) -> list[str]:
    """The links that a step waits for."""
    return sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})


def _reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> Iterator[LossReason]:
    rows, q = answer.plans, answer.question
    whole = request_s(q, rows)
    if share > usual + 0.02:
        links = waited_links(answer.step_of(rows, i))
        across = "it spans hosts, and " if q.cluster.inter.key in links else ""
        sent = f"{across}{share:.0%} of its decode step, not {usual:.0%}, is exposed communication over {', '.join(links)}"
        yield LossReason(share - usual, sent)
    if q.goal.objective != "latency":
        yield from _fewer_clients(answer, i, first)
    if rows.gpus[i] < rows.gpus[first] and q.goal.objective in ("throughput", "latency"):
        idle = plural(q.gpus_there - int(rows.gpus[i]), "GPU")
        yield LossReason(1 - float(rows.gpus[i] / rows.gpus[first]), f"{idle} {'is' if idle == '1 GPU' else 'are'} idle")
    wait, usual_wait = (format_seconds(float(rows.ttft_s[j])) for j in (i, first))
    if wait != usual_wait:
        where = "its workers for prompts fall behind, and " if rows.mode[i] and rows.mode[first] else ""
        effect = float((rows.ttft_s[i] - rows.ttft_s[first]) / whole[i])
        yield LossReason(effect, f"{where}requests wait {wait} for a first token instead of {usual_wait}")
    effect = float((q.requests.output_len - 1) * (rows.tpot_s[i] - rows.tpot_s[first]) / whole[i])
    if effect > 0 and (words := _token_words(answer, i, first)):
        yield LossReason(effect, words)


def _stage_words(answer: ServingPlans, i: int) -> str:
    rows = answer.plans
    stages, running = int(rows.pp[i]), int(rows.running[i])
    idle = f"{plural(stages - running, 'stage')} {'idles' if stages - running == 1 else 'idle'}"
    cut = f" in microbatches of {running / stages:.0f}" if running >= stages else f", so {idle}"
    return f"{stages} stages share {plural(running, 'request')}{cut}"


def _fewer_clients(answer: ServingPlans, i: int, first: int) -> Iterator[LossReason]:
    """Fewer clients (of a GPU, where its price counts), and what keeps more from it."""
    rows, goal = answer.plans, answer.question.goal
    gpus = np.asarray(paid(goal, rows.gpus, rows.prefill_gpus)) if goal.objective != "throughput" else np.ones(len(rows))
    each = rows.concurrency / gpus
    if each[i] >= each[first]:
        return
    held = f"{plural(int(rows.concurrency[i]), 'client')} instead of {int(rows.concurrency[first]):,}"
    if gpus[i] != gpus[first]:
        own, other = (f"{float(each[j]):{',.0f' if each[j] >= 10 else '.2g'}}" for j in (i, first))
        held = f"{own} clients {'for the price of a GPU' if goal.prefill_usd_per_gpu_hour else 'per GPU'} instead of {other}"
    yield LossReason(1 - float(each[i] / each[first]), f"{_what_ends_it(answer, i)} {held}")


def _what_ends_it(answer: ServingPlans, i: int) -> str:
    """Why plan ``i`` has no more clients: the cache is full, no more are asked for, a limit is reached, or more do not help."""
    rows, goal = answer.plans, answer.question.goal
    if rows.kv_headroom[i] < 0.05:
        return "its KV cache has room for"
    clients, ranks = int(rows.concurrency[i]), int(rows.replicas[i] * rows.dp[i])
    if goal.max_concurrency is not None and clients + ranks > goal.max_concurrency:
        return "--max-concurrency leaves it"
    busier = answer.simulation(rows, i, unique_values(np.r_[clients + ranks, clients * BUSIER // ranks * ranks]))
    rate = np.asarray(busier.tokens_per_s)
    if not np.any(rate > rows.tokens_per_s[i] * GROWS):
        return "its throughput peaks at"
    over = {name: np.asarray(surely(busier, name)) / limit for name, limit in goal.times}
    worst = np.max([np.ones(len(rate)), *over.values()], axis=0)
    if not np.any(worst > 1):
        return "it is tried with no more than"
    first = int(np.argmax(worst > 1))
    name = max(over, key=lambda name: float(over[name][first]))
    return f"it reaches the {name.removesuffix('_s').upper()} limit at"


def _token_words(answer: ServingPlans, i: int, first: int) -> str:
    """Why a token takes longer: its step does, or prompts that are computed between steps; whichever adds more."""
    rows = answer.plans
    own, other = (answer.step_of(rows, j) for j in (i, first))
    slower = float(own.step_s - other.step_s)
    each, least = (format_seconds(float(rows.tpot_s[j])) for j in (i, first))
    if each == least:
        return ""
    takes, instead = (format_seconds(float(step.step_s)) for step in (own, other))
    if slower < float(rows.tpot_s[i] - rows.tpot_s[first]) / 2 or takes == instead:
        between = "with prompts in between " if rows.mode[i] == 0 else ""
        return f"{between}each token takes {each} instead of {least}"
    seqs, others = (int(answer.decoding(rows.take(slice(j, j + 1)))[0] * rows.dp[j]) for j in (i, first))  # of a replica
    if seqs == others:
        return f"a decode step of {plural(seqs, 'request')} takes {takes} instead of {instead}"
    return f"a decode step takes {takes} for {plural(seqs, 'request')} instead of {instead} for {others:,}"
