"""Serving plans in order, those that others beat in every way left out; and which of them to run: the simplest near the best."""

from __future__ import annotations

import numpy as np

from commtax.arrays import Array
from commtax.catalog.techniques import changes_of
from commtax.judgement.margins import margin, ratio_error
from commtax.planner import columns
from commtax.planner.columns import NO_SERVING, ServingColumns, TrainColumns, objective_value, paid_rate, standing_of
from commtax.planner.exchanges import exchanges
from commtax.question import PARTS, Question
from commtax.records import replace
from commtax.rules.drafts import accepted_width, with_accepted_tokens
from commtax.spec import Cluster, Plan

LEAST = 0.01  # share of its worth that each technique must add to a plan to be turned on: what adds less is not worth a flag
FAMILY = tuple(name for name in ServingColumns.names() if name in ("mode", "dtype", *PARTS["plan"], *PARTS["requests"][1:]))
KINDS = (
    "replicas with TP inside a host",
    "stages or expert parallelism inside a host",
    "attention DP with experts spread inside a host",
    "stages across hosts",
    "experts across hosts",
    "TP across hosts",
    "two pools",
)
"""Kinds of plans, simplest first. A host is a fast domain: the GPUs that NVLink joins, a rack where it joins that."""
INSIDE, SPREAD_INSIDE, STAGES, EXPERTS, TENSORS, POOLS = range(1, len(KINDS))
ACROSS = ("experts or context across hosts", "TP across hosts")
TRAINED = ("data parallelism", "TP, experts or context inside a host", "stages", *ACROSS)  # kinds of training, simplest first
UNEVEN = len(TRAINED)  # plans that leave GPUs idle come behind all that do not


def family(c: ServingColumns) -> Array:
    """Number the families: plans alike but for concurrency, exchange of experts, copies and prompt workers."""
    key, sizes = np.zeros(len(c), dtype=np.int64), 1
    for name in FAMILY:
        column = np.asarray(getattr(c, name), dtype=np.int64) * (1 if name != "replicas" else c.mode.astype(np.int64))
        base = int(column.max(initial=0)) + 1
        if sizes * base > 2**62:  # digits in a mixed base, renumbered only where they would not fit
            key = np.unique(key, return_inverse=True)[1]
            sizes = int(key.max(initial=0)) + 1
        key, sizes = key * base + column, sizes * base
    return np.asarray(np.unique(key, return_inverse=True)[1])


def passed_over_plan(q: Question, keys: list[Array], every: ServingColumns) -> ServingColumns:
    """Return the plan that would be the best without the objections to it, at the load with least against it. ``keys`` rank all."""
    (stands, worth), rows = keys[:2], np.arange(len(keys[0]))
    for key in keys[1:]:  # the first of such a ranking needs no sorting
        rows = rows[key[rows] == np.max(key[rows])]
    first, lead = int(rows[0]), np.max(worth, where=stands == np.max(stands), initial=-np.inf)
    ahead = np.flatnonzero(worth >= min(worth[first], lead + np.log1p(ratio_error(q))))
    families = family(every.take(ahead))
    same = ahead[families == families[np.searchsorted(ahead, first)]]
    chosen = same[_rank_by_keys([key[same] for key in keys])[:1]]
    return every.take(chosen if stands[first] < np.max(stands) else chosen[:0])


def best_first(q: Question, every: ServingColumns) -> tuple[ServingColumns, ServingColumns]:
    """Return the best point of each family within the limits, in the objective's order. Without any, return the nearest ones."""
    good = every.take(np.flatnonzero(columns.worst_limit_ratio(q, every) <= 1))
    if len(good) or not len(every):
        least = least_gains(q)[good.exchange.astype(int)]
        return good.take(best_rows(columns.order(q, good), family(good), least) if len(good) else slice(0)), NO_SERVING
    near = [np.zeros(len(every)), -columns.worst_limit_ratio(q, every)]
    return NO_SERVING, every.take(best_rows(near, family(every), np.zeros(len(every)))[:5])


def least_gains(q: Question) -> Array:
    """Return what the techniques of each way must add to the logarithm of a plan's worth to be turned on."""
    return np.asarray([least_gain(q, one.techniques) for one in exchanges(q)])


def least_gain(q: Question, techniques: str) -> float:
    """Return what some must add to it: drafts more than it varies by with the acceptance that nobody measured here."""
    if not techniques:
        return 0.0
    accepted = with_accepted_tokens(q.but(**changes_of(techniques)))
    return float(np.log1p(LEAST) * len(techniques.split(","))) + accepted_width(accepted)


def best_rows(keys: list[Array], families: Array, least: Array) -> Array:
    """Return the best row of each family by ``keys``, the second less what techniques must add. Families rank by the keys alone."""
    ranked = _rank_by_keys([keys[0], keys[1] - least, *keys[2:]])
    first: Array = ranked[np.sort(np.unique(families[ranked], return_index=True)[1])]
    return np.asarray(first[_rank_by_keys([key[first] for key in keys])]) if np.any(least) else first


def _rank_by_keys(keys: list[Array]) -> Array:
    """Return the indices, the largest first by the first key, then by the others."""
    return np.lexsort([-key for key in reversed(keys)])


def front_of(c: ServingColumns) -> Array:
    """Return the points that no other beats in both tokens/s/GPU and tokens/s/user."""
    user, gpu = c.tokens_per_s_per_user, c.tokens_per_s_per_gpu
    ranked = np.lexsort((-gpu, -user))
    best, keep = np.maximum.accumulate(gpu[ranked]), np.ones(len(ranked), dtype=bool)
    keep[1:] = gpu[ranked][1:] > best[:-1]
    return np.asarray(ranked[keep])


def kinds(rows: ServingColumns, cluster: Cluster) -> Array:
    """Return the kind of each plan: index in ``KINDS``."""
    return np.where(rows.mode == 1, POOLS, _worker_kinds(rows.tp, rows.pp, rows.dp, rows.ep, cluster))


def complexity(rows: ServingColumns, cluster: Cluster, prompts: Cluster | None = None) -> Array:
    """Return what there is to set up: a plan's kind, the fast domains of a copy or what its pools are made of, and shared hosts."""
    kind, spread = _worker_kinds(rows.tp, rows.pp, rows.dp, rows.ep, cluster), (rows.prefill_dp > 1) | (rows.ep > 1)
    ranks = np.where(spread, rows.prefill_tp * rows.prefill_dp, 1)
    ahead = _worker_kinds(rows.prefill_tp, 1, rows.prefill_dp, ranks, prompts or cluster)
    spanned = np.ceil(np.log2(np.maximum(1.0, rows.tp * rows.pp * rows.dp / cluster.domain)))
    both = ((rows.dp > 1) & (rows.pp > 1)) / 2  # attention ranks in stages are both
    made_of = np.where(rows.mode == 1, POOLS + np.maximum(kind, ahead) / 100, kind + both + spanned / 100)
    return np.asarray(made_of + share_hosts(rows, cluster, prompts) / 1000)


def share_hosts(rows: ServingColumns, cluster: Cluster, prompts: Cluster | None = None) -> Array:
    """Count the pools of each plan whose workers are neither whole hosts nor an even part of one: DP 9 on hosts of four GPUs."""
    groups, places = (rows.tp * rows.pp * rows.dp, rows.prefill_tp * rows.prefill_dp), (cluster, prompts or cluster)
    pools = zip(groups, (place.gpus_per_host for place in places), strict=True)
    return np.asarray(sum(np.minimum(n % host, host % np.maximum(1, n)) > 0 for n, host in pools))


def effort(q: Question, rows: ServingColumns) -> Array:
    """Return the same of a search's plans, and last how many techniques are turned on."""
    turned_on = np.array([len(way.techniques.split(",")) if way.techniques else 0 for way in exchanges(q)])
    return np.asarray(complexity(rows, q.cluster, q.requests.prefill_cluster) + turned_on[rows.exchange.astype(int)] / 10_000)


def complexity_of(plan: Plan, prompts: Plan | None, cluster: Cluster) -> float:
    """Return the same of one plan, and of the workers of their own that prompts may have."""
    ahead = prompts or Plan(tp=0, dp=0)
    unknown = ServingColumns.of(1, **dict.fromkeys(ServingColumns.names(), 0))
    tp, pp, dp, ep, prefill_tp, prefill_dp = np.array([[plan.tp, plan.pp, plan.dp, plan.ep, ahead.tp, ahead.dp]]).T
    row = replace(unknown, mode=unknown.mode + (prompts is not None), tp=tp, pp=pp, dp=dp, ep=ep)
    return float(complexity(replace(row, prefill_tp=prefill_tp, prefill_dp=prefill_dp), cluster)[0])


def _worker_kinds(tp: Array, pp: Array | int, dp: Array, ep: Array, cluster: Cluster) -> Array:
    staged = (pp > 1) & (tp * pp * dp > cluster.domain)
    spread = [tp > cluster.domain, tp * dp > cluster.domain, staged, dp > 1, (pp > 1) | (ep > 1)]
    return np.select([np.asarray(x, dtype=bool) for x in spread], [TENSORS, EXPERTS, STAGES, SPREAD_INSIDE, INSIDE], 0)


def training_kinds(rows: TrainColumns, q: Question) -> Array:
    """Return the kind of each training plan: index in ``TRAINED``, and ``UNEVEN`` more where GPUs idle that others use."""
    domain, ranks = q.cluster.domain, rows.tp * np.maximum(rows.cp, np.where(rows.ep > 1, rows.ep, 1))
    kind = np.select([rows.tp > domain, ranks > domain, rows.pp > 1, ranks > 1], [4, 3, 2, 1], 0)
    return np.asarray(kind + UNEVEN * (rows.gpus < np.max(rows.gpus, initial=0)))


def simplest(complex_: Array, worth: Array, within: float) -> int:
    """Return the first of the simplest plans within the margin of the best. Plans are in order."""
    near = np.flatnonzero(_is_near(worth, within))
    return int(near[np.argmin(complex_[near])])


def _is_near(worth: Array, within: float) -> Array:
    return np.asarray(worth[0] <= worth * (1 + within) * (1 + 1e-12))


def recommended_row(q: Question, rows: ServingColumns) -> int:
    """Return the recommended plan of a search. Plans are in order, those without objections first."""
    rows = rows.take(slice(leading_count(standing_of(q, rows))))
    complex_, worth = effort(q, rows), objective_value(q, rows)
    first = simplest_served(q, complex_, worth)
    if not q.requests.prefill_cluster or q.goal.objective != "throughput":
        return first
    # Workers on a cluster of their own are as many as are worth their price; GPUs that idle on one are there all the same.
    alike = np.flatnonzero((complex_ == complex_[first]) & _is_near(worth, margin(q)))
    return int(alike[np.argmax(paid_rate(q, rows)[alike])])


def leading_count(stands: Array) -> int:
    """Count the plans at the head of a ranking that stand as well as the first."""
    return int(np.sum(stands == stands[0]))


def simplest_served(q: Question, complex_: Array, worth: Array, power: int = 1) -> int:
    """Return the same of serving plans, two pools only where they surely beat all others. ``worth`` is a ``power`` of figures."""
    one_pool, surely = np.flatnonzero(complex_ < POOLS), (1 + margin(q, pools=True)) ** power
    left = one_pool if len(one_pool) and worth[0] <= worth[one_pool[0]] * surely * (1 + 1e-12) else np.arange(len(worth))
    return int(left[simplest(complex_[left], worth[left], (1 + margin(q)) ** power - 1)])
