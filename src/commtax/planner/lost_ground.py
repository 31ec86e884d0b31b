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
from commtax.statement import Note
from commtax.units import format_seconds, plural
from commtax.verbs.billing import StepBill
from commtax.words import words

TELLING = 1 / 3  # the share of a loss that a reason has to explain
BUSIER = np.array([2, 3, 4, 6, 8, 12, 16])
"""Times the clients of a plan: whether its throughput has peaked is seen by whether any of these loads has more …"""
GROWS = 1.01  # … by more than next to nothing
IT = "it "  # the subject of a reason that can follow "which"


class LossReason(NamedTuple):
    """A cause of a plan's loss, and the share of the other's figure that it loses by that alone."""

    effect: float
    note: Note


def telling_reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> list[Note]:
    """Return why plan ``i`` is behind ``first``, the largest effect first. ``share`` and ``usual`` are of communication."""
    rows, value = answer.plans, objective_value(answer.question, answer.plans)
    loss = max(0.0, 1 - float(value[i] / value[first]))
    losses = sorted((one for one in _reasons(answer, i, share, usual, first) if one.effect > 0), reverse=True)
    telling = [one.note for one in losses if one.effect >= TELLING * loss] or [one.note for one in losses[:1]]
    stages = [_stage_words(answer, i)] if rows.pp[i] > rows.pp[first] else []
    return [*stages, *telling] or [words("loss-unknown")]


def waited_links(step: StepBill) -> list[str]:
    """Return the links that a step waits for."""
    return sorted({str(x.link) for x in step.items if x.kind == "comm" and float(x.exposed_s) > 0})


def _reasons(answer: ServingPlans, i: int, share: float, usual: float, first: int) -> Iterator[LossReason]:
    rows, q = answer.plans, answer.question
    whole = request_s(q, rows)
    if share > usual + 0.02:
        links = waited_links(answer.step_of(rows, i))
        exposed = {"share": share, "usual": usual, "links": ", ".join(links)}
        across = q.cluster.inter.key in links
        yield LossReason(share - usual, words("loss-links-across", it=IT, **exposed) if across else words("loss-links", **exposed))
    if q.goal.objective != "latency":
        yield from _fewer_clients(answer, i, first)
    if rows.gpus[i] < rows.gpus[first] and q.goal.objective in ("throughput", "latency"):
        idle = q.gpus_there - int(rows.gpus[i])
        note = words("loss-idle", gpus=plural(idle, "GPU"), are="is" if idle == 1 else "are")
        yield LossReason(1 - float(rows.gpus[i] / rows.gpus[first]), note)
    wait, usual_wait = (format_seconds(float(rows.ttft_s[j])) for j in (i, first))
    if wait != usual_wait:
        where = "its workers for prompts fall behind, and " if rows.mode[i] and rows.mode[first] else ""
        effect = float((rows.ttft_s[i] - rows.ttft_s[first]) / whole[i])
        yield LossReason(effect, words("loss-first-token", where=where, wait=wait, usual=usual_wait))
    effect = float((q.requests.output_len - 1) * (rows.tpot_s[i] - rows.tpot_s[first]) / whole[i])
    if effect > 0 and (slower := _token_words(answer, i, first)):
        yield LossReason(effect, slower)


def _stage_words(answer: ServingPlans, i: int) -> Note:
    rows = answer.plans
    stages, running = int(rows.pp[i]), int(rows.running[i])
    idle = f"{plural(stages - running, 'stage')} {'idles' if stages - running == 1 else 'idle'}"
    cut = f" in microbatches of {running / stages:.0f}" if running >= stages else f", so {idle}"
    return words("loss-stages", stages=str(stages), requests=plural(running, "request"), cut=cut)


def _fewer_clients(answer: ServingPlans, i: int, first: int) -> Iterator[LossReason]:
    """Yield that it has fewer clients (per GPU, where its price counts), and what keeps more from it."""
    rows, goal = answer.plans, answer.question.goal
    gpus = np.asarray(paid(goal, rows.gpus, rows.prefill_gpus)) if goal.objective != "throughput" else np.ones(len(rows))
    each = rows.concurrency / gpus
    if each[i] >= each[first]:
        return
    clients = f"{plural(int(rows.concurrency[i]), 'client')} instead of {int(rows.concurrency[first]):,}"
    if gpus[i] != gpus[first]:
        fewer, other = (f"{float(each[j]):{',.0f' if each[j] >= 10 else '.2g'}}" for j in (i, first))
        clients = f"{fewer} clients {'for the price of a GPU' if goal.prefill_usd_per_gpu_hour else 'per GPU'} instead of {other}"
    yield LossReason(1 - float(each[i] / each[first]), _client_limit(answer, i, clients))


def _client_limit(answer: ServingPlans, i: int, few: str) -> Note:
    """Return why plan ``i`` has no more clients: a full cache, no more requested, a limit, or no gain from more."""
    rows, goal = answer.plans, answer.question.goal
    if rows.kv_headroom[i] < 0.05:
        return words("loss-cache", clients=few)
    clients, ranks = int(rows.concurrency[i]), int(rows.replicas[i] * rows.dp[i])
    if goal.max_concurrency is not None and clients + ranks > goal.max_concurrency:
        return words("loss-limit-of-clients", clients=few)
    busier = answer.simulation(rows, i, unique_values(np.r_[clients + ranks, clients * BUSIER // ranks * ranks]))
    rate = np.asarray(busier.tokens_per_s)
    if not np.any(rate > rows.tokens_per_s[i] * GROWS):
        return words("loss-peak", clients=few)
    over = {name: np.asarray(surely(busier, name)) / limit for name, limit in goal.times}
    worst = np.max([np.ones(len(rate)), *over.values()], axis=0)
    if not np.any(worst > 1):
        return words("loss-tried", it=IT, clients=few)
    first = int(np.argmax(worst > 1))
    name = max(over, key=lambda name: float(over[name][first]))
    return words("loss-limit", it=IT, limit=name.removesuffix("_s").upper(), clients=few)


def _token_words(answer: ServingPlans, i: int, first: int) -> Note | None:
    """Return why a token takes longer, whichever adds more: its step, or prompts that are computed between steps."""
    rows = answer.plans
    slow_step, other = (answer.step_of(rows, j) for j in (i, first))
    slower = float(slow_step.step_s - other.step_s)
    each, least = (format_seconds(float(rows.tpot_s[j])) for j in (i, first))
    if each == least:
        return None
    takes, instead = (format_seconds(float(step.step_s)) for step in (slow_step, other))
    if slower < float(rows.tpot_s[i] - rows.tpot_s[first]) / 2 or takes == instead:
        between = "with prompts in between " if rows.mode[i] == 0 else ""
        return words("loss-token", between=between, takes=each, usual=least)
    seqs, others = (int(answer.decoding(rows.take(slice(j, j + 1)))[0] * rows.dp[j]) for j in (i, first))  # of a replica
    if seqs == others:
        return words("loss-step", requests=plural(seqs, "request"), takes=takes, usual=instead)
    return words("loss-larger-step", requests=plural(seqs, "request"), takes=takes, usual=instead, others=others)
