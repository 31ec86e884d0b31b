"""One layout at its loads: a plan that somebody runs, and a listed one with something of its question changed."""

from collections.abc import Mapping

import numpy as np

from commtax.planner.columns import ServingColumns, ServingPlans
from commtax.planner.ranking import best_first
from commtax.planner.serving_search import search
from commtax.planner.space import Roomy, Space, figures, most_each
from commtax.question import Question
from commtax.spec import SERVING_AXES, Number, Plan
from commtax.statement import Refusal
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.fit_advice import why_it_does_not_start
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import settle


def best_load(answer: ServingPlans, i: int, changes: Mapping[str, object]) -> ServingColumns:
    """Row ``i``'s layout with its question changed, at the best load within the limits; none where it cannot be had."""
    rows = answer.plans
    run = answer.put(rows, i).but(replicas=int(rows.replicas[i]), **changes)
    prompts = rows.prompter(i) if rows.mode[i] else None
    try:
        every = at_loads(run, prompts, 0, int(rows.dtype[i]), int(rows.exchange[i]))
    except ValueError:
        return rows.take(slice(0))
    return best_first(answer.question, every)[0].take(slice(1))


def at_loads(run: Question, prompts: Plan | None, clients: int, index: int, by: int) -> ServingColumns:
    """Copies of a plan at ``clients`` of the whole, or at all their loads; ``prompts``: with workers of their own for those."""
    if prompts:
        plan, copies = run.plan, int(run.plan.replicas)
        ranks = copies * int(plan.dp)
        loads = np.array([clients]) if clients else np.arange(1, int(most_each(run, ranks)) + 1) * ranks
        tp, dp, workers = int(prompts.tp), int(prompts.dp), int(prompts.replicas)
        put = run.but(replicas=1, concurrency=loads, prefill_tp=tp, prefill_dp=dp, prefill_workers=workers, decode_workers=copies)
        put = put.but(disaggregated=True)
        s = price_closed_loop(settle(put))
        held = min(float(s.kv_tokens), float(s.apart.kv_tokens) if s.apart else np.inf)
        _check_room(put, held)
        sizes: dict[str, Number] = {axis: getattr(plan, axis) for axis in SERVING_AXES}
        sizes |= {"mode": 1, "exchange": by, "prefill_replicas": workers}
        sizes |= {"gpus": plan.num_gpus * copies + prompts.all_gpus, "tokens_per_s": s.tokens_per_s, **figures(s, held)}
        return ServingColumns.of(len(loads), dtype=index, replicas=copies, prefill_tp=tp, prefill_dp=dp, concurrency=loads, **sizes)
    return _of_one_pool(run, clients, index, by)


def _of_one_pool(run: Question, clients: int, index: int, by: int) -> ServingColumns:
    base = settle(run).plain()
    kv = float(np.max(cache_tokens(base)))
    _check_room(base.but(disaggregated=False), kv)
    copies = int(run.plan.replicas)
    one = Space.of(1, **{axis: getattr(run.plan, axis) for axis in SERVING_AXES}, replicas=copies, codes=0, kv_tokens=kv)
    of = Roomy(base.but(replicas=1, max_concurrency=None), one, index, by)
    if clients:  # at that load, whatever the cache holds
        return of.at(np.array([0]), np.array([max(1, round(clients / (copies * int(run.plan.dp))))]))
    every, most = search(of), run.goal.max_concurrency
    return every if most is None else every.take(np.flatnonzero(every.concurrency <= max(most, copies * run.plan.dp)))


def _check_room(q: Question, kv: float) -> None:
    if kv < q.requests.tokens:
        raise Refusal(f"does not fit: the KV cache of a replica holds {kv:,.0f} tokens, less than one request")
    if why := why_it_does_not_start(q):
        raise Refusal(f"does not fit: {why}")
