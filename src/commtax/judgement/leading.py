"""Which plans may lead, as the recommended one or the best: others rank behind them, with what stands against them."""

from math import inf

import numpy as np

from commtax.arrays import Array
from commtax.judgement.margins import margin, ratio_error
from commtax.question import Question
from commtax.spec import Number
from commtax.thresholds import levels

LEVEL = levels(__name__)
BATCH = "batch"  # the workload without users who wait for first tokens
UNCHECKED, LATE, SLOW = "unchecked", "late", "slow"
"""Objections to a plan: predictions of its kind were never compared with runs; its first tokens, or all, come too late."""


def depends_on_who_waits(q: Question) -> bool:
    """Return whether nothing says where between short requests and many tokens/s to run."""
    waits = q.goal.workload != BATCH and q.requests.output_len > 1
    return bool(waits and not q.goal.times and q.goal.objective in ("throughput", "cost"))


def bearable_ttft_s(q: Question) -> float:
    """Return the mean TTFT that interactive use bears. It is infinite where a limit is set, or where nobody waits."""
    if q.goal.ttft_s < inf or q.goal.workload == BATCH:
        return inf
    return float(LEVEL.first_token_s + LEVEL.prompt_token_s * q.requests.input_len)


def latest_first_token_s(q: Question) -> float:
    """Return the same for a ranking: where the answer depends on who waits, what is ranked is for those who do not."""
    return inf if depends_on_who_waits(q) else bearable_ttft_s(q)


def standing(q: Question, pools: Number, ttft_s: Number, latest_s: float) -> Array:
    """Return what ranks plans first: 2 where their kind is checked (``pools``: 1 where they have two), 1 where TTFT is in time."""
    checked = (np.asarray(pools) == 0) | (margin(q, pools=True) < inf)
    return np.asarray(2 * checked + (np.asarray(ttft_s) <= latest_s))


def against(q: Question, pools: float, ttft_s: float, latest_s: float) -> list[str]:
    """Return the codes of the objections to a plan."""
    met = int(standing(q, pools, ttft_s, latest_s))
    return [UNCHECKED] * (met < 2) + [LATE] * (met % 2 == 0)


def bearable_token_s(q: Question) -> float:
    """Return the mean TPOT that interactive use bears. It is infinite where a limit is set, or where nobody waits."""
    return inf if q.goal.tpot_s < inf or q.goal.workload == BATCH else float(LEVEL.token_s)


def late_codes(q: Question, ttft_s: float, tpot_s: float) -> list[str]:
    """Return the codes of what interactive use does not bear at a request rate, where no limit is on a statistic of it."""
    limited = {name.split("_")[0] for name, _ in q.goal.slo}
    late = not limited & {"ttft", "e2e"} and ttft_s > bearable_ttft_s(q)
    return [LATE] * late + [SLOW] * (not limited & {"tpot", "itl", "e2e"} and tpot_s > bearable_token_s(q))


def waits_mostly(q: Question, ttft_s: float, tpot_s: float) -> bool:
    """Return whether requests wait for first tokens longer than they take to be answered, and no limit forbids it."""
    return bool(q.goal.ttft_s == inf and q.requests.output_len > 1 and ttft_s > tpot_s * q.requests.output_len)


def training_leads(q: Question, gpus: Array, step_s: Array) -> Array:
    """Return the training plans that use all GPUs that any plan uses, and those that are faster by more than predictions err."""
    whole = gpus == np.max(gpus, initial=0)
    return np.asarray(whole | (step_s * (1 + ratio_error(q)) < np.min(step_s, where=whole, initial=inf)))
