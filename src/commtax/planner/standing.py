"""Where a plan that somebody runs already stands beside the winner."""

from collections.abc import Callable, Mapping

import numpy as np

from commtax.planner.columns import SERVED, Columns, ServingPlans, Standing, TrainPlans, describe_kind, label, order, worth
from commtax.planner.disaggregated import BUSY
from commtax.planner.reasons import best_times
from commtax.planner.serving import best_first, figures, search, simulated
from commtax.planner.serving import columns as priced
from commtax.planner.space import Space
from commtax.planner.training import BUDGET, columns
from commtax.question import Question
from commtax.spec import SIZES
from commtax.statement import Refusal
from commtax.verbs.asking import describe_gpus, settled
from commtax.verbs.billing import price
from commtax.verbs.fitting import cache_tokens
from commtax.verbs.serving import serve

Sizes = Mapping[str, int]


def standing(answer: ServingPlans, sizes: Sizes, replicas: int, dtype: str = "", clients: int = 0) -> Standing:
    """``replicas`` copies of a plan (tp, pp, dp, ep) beside the answer's, at ``clients`` of the whole or at their best load."""
    name = (f"{replicas} replicas x " if replicas > 1 else "") + label(**sizes)
    gpus = replicas * sizes["tp"] * sizes["pp"] * sizes["dp"]
    return _placed(answer, name, gpus, lambda: _together(answer.question, sizes, replicas, dtype, clients))


def apart_standing(
    answer: ServingPlans, decode: tuple[int, int], prompts: tuple[int, int], dtype: str = "", clients: int = 0
) -> Standing:
    """Servers of their own for prompts: (tp, count) of both kinds, at ``clients`` of the whole or at their best load."""
    name = f"{prompts[1]} x TP {prompts[0]} for prompts + {decode[1]} x TP {decode[0]} to decode"
    gpus = decode[0] * decode[1] + prompts[0] * prompts[1]
    return _placed(answer, name, gpus, lambda: _apart(answer.question, decode, prompts, dtype, clients, gpus))


def _placed(answer: ServingPlans, name: str, gpus: int, loads: Callable[[], Columns]) -> Standing:
    """The best of a plan's loads beside the answer's plans, or why it cannot run."""
    q = answer.question
    if gpus > q.cluster.num_gpus:
        return _cannot(answer, name, f"needs {gpus} GPUs, and {q.cluster.key} has {q.cluster.num_gpus}")
    try:
        every = loads()
    except ValueError as error:
        return _cannot(answer, name, str(error))
    good, near = (rows.take(slice(1)) for rows in best_first(q, every))
    if not len(good):
        return Standing(answer.gpu_words(near, 0), near, reason=f"breaks the limit: {best_times(q, every)}")
    theirs, own = (order(q, rows) for rows in (answer.plans, good))
    better = theirs[0] > own[0]
    if q.goal.objective == "gpus":  # as many GPUs are no tie
        better |= (theirs[0] == own[0]) & (theirs[1] > own[1] * (1 + 1e-8))
    gain = float(worth(q, answer.plans)[0] / worth(q, good)[0]) if len(answer.plans) else 1.0
    return Standing(answer.gpu_words(good, 0), good, 1 + int(np.sum(better)), gain)


def _cannot(answer: ServingPlans | TrainPlans, name: str, reason: str) -> Standing:
    """A plan that no row can be made of."""
    return Standing(name, answer.plans.take(slice(0)), reason=reason)


def _together(q: Question, sizes: Sizes, replicas: int, dtype: str, clients: int) -> Columns:
    """Copies of one plan at their loads."""
    index = _index(q, dtype)
    base = q.but(weights_dtype=q.goal.dtypes[index])
    kv = float(np.max(cache_tokens(settled(base.but(**sizes)))))
    _check_room(q, kv)
    one = Space.of(1, **{axis: sizes[axis] for axis in SERVED}, replicas=replicas, codes=0, kv_tokens=kv)
    base = settled(base)
    if clients:  # at that load, whatever the cache holds
        load = np.array([max(1, round(clients / (replicas * sizes["dp"])))])
        return priced(one, load, simulated(base, one, load), index)
    every = search(base, one, index)
    return every.take(np.flatnonzero(every.mode == 0))


def _apart(q: Question, decode: tuple[int, int], prompts: tuple[int, int], dtype: str, clients: int, gpus: int) -> Columns:
    """Servers of both kinds at their loads, as the search lists them."""
    index = _index(q, dtype)
    loads = np.array([clients]) if clients else np.arange(1, q.goal.max_concurrency + 1) * decode[1]
    workers = {"prefill_tp": prompts[0], "prefill_workers": prompts[1], "decode_workers": decode[1], "disaggregated": True}
    s = serve(q.but(weights_dtype=q.goal.dtypes[index], tp=decode[0], concurrency=loads, **workers))
    held = min(float(s.kv_tokens), float(s.apart.kv_tokens) if s.apart else np.inf)
    _check_room(q, held)
    kinds = {"replicas": decode[1], "prefill_tp": prompts[0], "prefill_replicas": prompts[1], "gpus": gpus}
    sizes = {"mode": 1, "dtype": index, "tp": decode[0], "pp": 1, "dp": 1, "ep": 1}
    every = Columns.of(len(loads), **kinds, **sizes, concurrency=loads, tokens_per_s=s.tokens_per_s, **figures(s, held))
    if clients:
        return every
    # Up to what prompt servers keep up with, and without a limit to the knee.
    busy, place = np.asarray(s.offered) <= BUSY * prompts[1], np.arange(len(loads))
    last = len(loads) if q.goal.limited else 1 + int(np.argmax(loads / np.asarray(s.e2e_s) ** 2))
    return every.take(np.flatnonzero((busy & (place < last)) | (place == 0)))


def _check_room(q: Question, kv: float) -> None:
    if kv < q.requests.tokens:
        raise Refusal(f"does not fit: a copy's KV cache holds {kv:,.0f} tokens, less than one request")


def _index(q: Question, dtype: str) -> int:
    """The type among those that were searched, the checkpoint's own where the command says none; else the first."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    wanted = (dtype,) if dtype else ("", stored)
    return next((i for i, name in enumerate(q.goal.dtypes) if name in wanted), 0)


def training_standing(answer: TrainPlans, run: Question) -> Standing:
    """A training plan of some kind beside the answer's, for the same global batch."""
    plan, micro, total = run.plan, int(run.micro_batch), answer.question.goal.global_batch
    sizes = ", ".join(f"{axis} {getattr(plan, axis)}" for axis in (*SIZES[:3], *reversed(SIZES[3:])))
    name = f"{sizes}, {describe_kind(plan)}"
    if total % (plan.dp * micro):
        return _cannot(answer, name, f"{plan.dp} replicas and microbatches of {micro} do not divide {total} sequences")
    try:
        b = price(run.but(batch=total // plan.dp))
    except ValueError as error:
        return _cannot(answer, name, str(error))
    row = columns(b, 0, {**{axis: np.array([getattr(plan, axis)]) for axis in SIZES}, "micro_batch": np.array([micro])})
    described = f"{describe_gpus(b.question.plan)}, microbatch {micro}, {describe_kind(b.question.plan)}"
    budget = BUDGET * run.cluster.chip.visible_bytes
    if row.memory_bytes[0] > budget:
        need = f"{float(row.memory_bytes[0]) / 2**30:.1f} GiB a rank of {budget / 2**30:.1f}"
        return Standing(described, row, reason=f"does not fit: {need}")
    better = answer.plans.step_s < float(row.step_s[0]) * (1 - 1e-9)
    gain = float(row.step_s[0] / answer.plans.step_s[0]) if len(answer.plans) else 1.0
    return Standing(described, row, 1 + int(np.sum(better)), gain)
