"""Where a plan that somebody runs already stands beside the winner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from commtax.planner.answers import NO_SERVING, NO_TRAINING, ServingPlans, Standing, TrainPlans
from commtax.planner.columns import SERVED, Array, Columns, label, order, worth
from commtax.planner.disaggregated import BUSY
from commtax.planner.reasons import best_times
from commtax.planner.rows import describe_kind, describe_training, words
from commtax.planner.serving import columns as priced
from commtax.planner.serving import figures, search, simulated
from commtax.planner.space import Space
from commtax.planner.training import BUDGET, columns
from commtax.question import Question
from commtax.spec import SIZES
from commtax.verbs.asking import settled
from commtax.verbs.billing import price
from commtax.verbs.fitting import cache_tokens
from commtax.verbs.serving import Simulation, serve

Sizes = Mapping[str, int]


def standing(answer: ServingPlans, sizes: Sizes, replicas: int, dtype: str = "", clients: int = 0) -> Standing:
    """``replicas`` copies of a plan (tp, pp, dp, ep) beside the answer's, at ``clients`` of the whole or at their best load."""
    q, index = answer.question, _index(answer.question, dtype)
    name = (f"{replicas} replicas x " if replicas > 1 else "") + label(**sizes)
    total = replicas * sizes["tp"] * sizes["pp"] * sizes["dp"]
    if total > q.cluster.num_gpus:
        return Standing(name, NO_SERVING, reason=f"needs {total} GPUs, and {q.cluster.key} has {q.cluster.num_gpus}")
    base = q.but(weights_dtype=q.goal.dtypes[index])
    try:
        kv = float(np.max(cache_tokens(settled(base.but(**sizes)))))
    except ValueError as error:
        return Standing(name, NO_SERVING, reason=str(error))
    if kv < q.requests.tokens:
        return Standing(name, NO_SERVING, reason=_too_small(kv))
    one = Space.of(1, **{axis: sizes[axis] for axis in SERVED}, replicas=replicas, codes=0)
    base = settled(base)
    if clients:  # at that load, whatever the cache holds
        load = np.array([max(1, round(clients / (replicas * sizes["dp"])))])
        every = priced(one, load, simulated(base, one, load, np.array([kv])), index)
    else:
        every = search(base, one, np.array([kv]), index)
        every = every.take(np.flatnonzero(every.mode == 0))
    return _placed(answer, every)


def _too_small(kv: float) -> str:
    return f"does not fit: a copy's KV cache holds {kv:,.0f} tokens, less than one request"


def _placed(answer: ServingPlans, every: Columns) -> Standing:
    """The best of a plan's loads beside the answer's plans."""
    q = answer.question
    row, good = _best(q, every)
    if not good:
        return Standing(words(answer, row, 0), row, reason=f"breaks the limit: {best_times(q, every)}")
    theirs, own = (order(q, rows) for rows in (answer.plans, row))
    better = theirs[0] > own[0]
    if q.goal.objective == "gpus":  # as many GPUs are no tie
        better |= (theirs[0] == own[0]) & (theirs[1] > own[1] * (1 + 1e-8))
    gain = float(worth(q, answer.plans)[0] / worth(q, row)[0]) if len(answer.plans) else 1.0
    return Standing(words(answer, row, 0), row, 1 + int(np.sum(better)), gain)


def apart_standing(
    answer: ServingPlans, decode: tuple[int, int], prompts: tuple[int, int], dtype: str = "", clients: int = 0
) -> Standing:
    """Servers of their own for prompts: (tp, count) of both kinds, at ``clients`` of the whole or at their best load."""
    q, index = answer.question, _index(answer.question, dtype)
    name = f"{prompts[1]} x TP {prompts[0]} for prompts + {decode[1]} x TP {decode[0]} to decode"
    total = decode[0] * decode[1] + prompts[0] * prompts[1]
    if total > q.cluster.num_gpus:
        return Standing(name, NO_SERVING, reason=f"needs {total} GPUs, and {q.cluster.key} has {q.cluster.num_gpus}")
    loads = np.array([clients]) if clients else np.arange(1, q.goal.max_concurrency + 1) * decode[1]
    workers = {"prefill_tp": prompts[0], "prefill_workers": prompts[1], "decode_workers": decode[1], "disaggregated": True}
    try:
        s = serve(q.but(weights_dtype=q.goal.dtypes[index], tp=decode[0], concurrency=loads, **workers))
    except ValueError as error:
        return Standing(name, NO_SERVING, reason=str(error))
    held = min(float(s.kv_tokens), float(s.apart.kv_tokens) if s.apart else np.inf)
    if held < q.requests.tokens:
        return Standing(name, NO_SERVING, reason=_too_small(held))
    every = _split_columns(s, loads, index, total, held)
    if not clients:  # up to what prompt servers keep up with, and without a limit to the knee
        busy = np.asarray(s.offered) <= BUSY * prompts[1]
        last = len(loads) if q.goal.limited else 1 + int(np.argmax(loads / np.asarray(s.e2e_s) ** 2))
        place = np.arange(len(loads))
        every = every.take(np.flatnonzero((busy & (place < last)) | (place == 0)))
    return _placed(answer, every)


def _split_columns(s: Simulation, loads: Array, index: int, gpus: int, held: float) -> Columns:
    """Disaggregated servers at each load, as the search lists them."""
    asked = s.requests
    workers = {"replicas": asked.decode_workers or 1, "prefill_tp": asked.prefill_tp or 1}
    workers |= {"prefill_replicas": asked.prefill_workers or 1, "gpus": gpus, "mode": 1, "dtype": index}
    sizes = {"tp": int(s.question.plan.tp), "pp": 1, "dp": 1, "ep": 1}
    return Columns.of(len(loads), **workers, **sizes, concurrency=loads, tokens_per_s=s.tokens_per_s, **figures(s, held))


def _index(q: Question, dtype: str) -> int:
    """The type among those that were searched, the checkpoint's own where the command says none; else the first."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    wanted = (dtype,) if dtype else ("", stored)
    return next((i for i, name in enumerate(q.goal.dtypes) if name in wanted), 0)


def _best(q: Question, every: Columns) -> tuple[Columns, bool]:
    """The best row that meets the limits, else the nearest; and whether it meets them."""
    good = (every.ttft_s <= q.goal.ttft_s) & (every.tpot_s <= q.goal.tpot_s)
    over = np.maximum(every.ttft_s / q.goal.ttft_s, every.tpot_s / q.goal.tpot_s)
    if not good.any():
        return every.take(np.array([int(np.argmin(over))])), False
    met = every.take(np.flatnonzero(good))
    return met.take(np.lexsort([-key for key in reversed(order(q, met))])[:1]), True


def training_standing(answer: TrainPlans, run: Question) -> Standing:
    """A training plan of some kind beside the answer's, for the same global batch."""
    plan, micro, total = run.plan, int(run.micro_batch), answer.question.goal.global_batch
    sizes = ", ".join(f"{axis} {getattr(plan, axis)}" for axis in (*SIZES[:3], *reversed(SIZES[3:])))
    name = f"{sizes}, {describe_kind(plan)}"
    if total % (plan.dp * micro):
        cut = f"{plan.dp} replicas and microbatches of {micro}"
        return Standing(name, NO_TRAINING, reason=f"{cut} do not divide {total} sequences")
    try:
        b = price(run.but(batch=total // plan.dp))
    except ValueError as error:
        return Standing(name, NO_TRAINING, reason=str(error))
    row = columns(b, 0, {**{axis: np.array([getattr(plan, axis)]) for axis in SIZES}, "micro_batch": np.array([micro])})
    budget = BUDGET * run.cluster.chip.visible_bytes
    if row.memory_bytes[0] > budget:
        need = f"{float(row.memory_bytes[0]) / 2**30:.1f} GiB a rank of {budget / 2**30:.1f}"
        return Standing(describe_training(b.question), row, reason=f"does not fit: {need}")
    better = answer.plans.step_s < float(row.step_s[0]) * (1 - 1e-9)
    gain = float(row.step_s[0] / answer.plans.step_s[0]) if len(answer.plans) else 1.0
    return Standing(describe_training(b.question), row, 1 + int(np.sum(better)), gain)
