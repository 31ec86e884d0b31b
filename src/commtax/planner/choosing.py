"""Which plan to run: the simplest within a margin of the best.

The best plan is the first of a ranking. Nobody runs two pools of workers, or tensor parallelism over a network, for a gain that
predictions cannot tell from none: so plans are ranked by how much there is to set up and to go wrong, and of the simplest that
stay within the margin the best is recommended. In training the margin is 0 unless somebody asks for one.
"""

from dataclasses import replace

import numpy as np

from commtax.arrays import Array
from commtax.judgement.margins import margin
from commtax.planner.columns import ServingColumns, TrainColumns, objective_value, paid_rate, standing_of
from commtax.planner.exchanges import exchanges
from commtax.question import Question
from commtax.spec import Cluster, Plan

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
TRAINED = (
    "data parallelism",
    "TP, experts or context inside a host",
    "stages",
    "experts or context across hosts",
    "TP across hosts",
)
"""Kinds of training plans, simplest first."""
UNEVEN = len(TRAINED)  # plans that leave GPUs idle come behind all that do not


def kinds(rows: ServingColumns, cluster: Cluster) -> Array:
    """The kind of each plan: index in ``KINDS``."""
    return np.where(rows.mode == 1, POOLS, _worker_kinds(rows.tp, rows.pp, rows.dp, rows.ep, cluster))


def complexity(rows: ServingColumns, cluster: Cluster, prompts: Cluster | None = None) -> Array:
    """What there is to set up: a plan's kind, the fast domains of a copy or what its pools are made of, and shared hosts."""
    own, spread = _worker_kinds(rows.tp, rows.pp, rows.dp, rows.ep, cluster), (rows.prefill_dp > 1) | (rows.ep > 1)
    ranks = np.where(spread, rows.prefill_tp * rows.prefill_dp, 1)
    ahead = _worker_kinds(rows.prefill_tp, 1, rows.prefill_dp, ranks, prompts or cluster)
    spanned = np.ceil(np.log2(np.maximum(1.0, rows.tp * rows.pp * rows.dp / cluster.domain)))
    both = ((rows.dp > 1) & (rows.pp > 1)) / 2  # attention ranks in stages are both
    made_of = np.where(rows.mode == 1, POOLS + np.maximum(own, ahead) / 100, own + both + spanned / 100)
    return np.asarray(made_of + share_hosts(rows, cluster, prompts) / 1000)


def share_hosts(rows: ServingColumns, cluster: Cluster, prompts: Cluster | None = None) -> Array:
    """How many pools of each plan have workers that are neither whole hosts nor an even part of one: DP 9 on hosts of four GPUs."""
    groups, places = (rows.tp * rows.pp * rows.dp, rows.prefill_tp * rows.prefill_dp), (cluster, prompts or cluster)
    pools = zip(groups, (place.gpus_per_host for place in places), strict=True)
    return np.asarray(sum(np.minimum(n % host, host % np.maximum(1, n)) > 0 for n, host in pools))


def effort(q: Question, rows: ServingColumns) -> Array:
    """The same of a search's plans, and last how many techniques are turned on."""
    turned_on = np.array([len(way.techniques.split(",")) if way.techniques else 0 for way in exchanges(q)])
    return np.asarray(complexity(rows, q.cluster, q.requests.prefill_cluster) + turned_on[rows.exchange.astype(int)] / 10_000)


def complexity_of(plan: Plan, prompts: Plan | None, cluster: Cluster) -> float:
    """The same of one plan, and of the workers of their own that prompts may have."""
    ahead = prompts or Plan(tp=0, dp=0)
    unknown = ServingColumns.of(1, **dict.fromkeys(ServingColumns.names(), 0))
    tp, pp, dp, ep, prefill_tp, prefill_dp = np.array([[plan.tp, plan.pp, plan.dp, plan.ep, ahead.tp, ahead.dp]]).T
    row = replace(unknown, mode=unknown.mode + (prompts is not None), tp=tp, pp=pp, dp=dp, ep=ep)
    return float(complexity(replace(row, prefill_tp=prefill_tp, prefill_dp=prefill_dp), cluster)[0])


def _worker_kinds(tp: Array, pp: Array | int, dp: Array, ep: Array, cluster: Cluster) -> Array:
    """The kind of plans of one pool."""
    spread = [
        (tp > cluster.domain, TENSORS),
        (tp * dp > cluster.domain, EXPERTS),
        ((pp > 1) & (tp * pp * dp > cluster.domain), STAGES),
        (dp > 1, SPREAD_INSIDE),
        ((pp > 1) | (ep > 1), INSIDE),
    ]
    return np.select([np.asarray(condition, dtype=bool) for condition, _ in spread], [kind for _, kind in spread], 0)


def training_kinds(rows: TrainColumns, q: Question) -> Array:
    """The kind of each training plan: index in ``TRAINED``, and ``UNEVEN`` more where GPUs idle that others use."""
    domain = q.cluster.domain
    ranks = rows.tp * np.maximum(rows.cp, np.where(rows.ep > 1, rows.ep, 1))
    spread = [(rows.tp > domain, 4), (ranks > domain, 3), (rows.pp > 1, 2), (ranks > 1, 1)]
    kind = np.select([np.asarray(condition, dtype=bool) for condition, _ in spread], [kind for _, kind in spread], 0)
    idle = rows.gpus < np.max(rows.gpus, initial=0)
    return np.asarray(kind + UNEVEN * idle)


def simplest(complex_: Array, worth: Array, within: float) -> int:
    """The first of the simplest plans whose worth the best exceeds by no more than the margin; plans are in order."""
    near = np.flatnonzero(_is_near(worth, within))
    return int(near[np.argmin(complex_[near])])


def _is_near(worth: Array, within: float) -> Array:
    return np.asarray(worth[0] <= worth * (1 + within) * (1 + 1e-12))


def recommended_row(q: Question, rows: ServingColumns) -> int:
    """Which of a search's plans to run; they are in order, first those that nothing stands against.

    Workers on a cluster of their own are as many as are worth their price: of the simplest plans whose tokens/s predictions cannot
    tell apart, the one with most for it. On one cluster GPUs that no plan uses are there all the same.
    """
    rows = rows.take(slice(leading_count(standing_of(q, rows))))
    complex_, worth = effort(q, rows), objective_value(q, rows)
    first = simplest_served(q, complex_, worth)
    if not q.requests.prefill_cluster or q.goal.objective != "throughput":
        return first
    alike = np.flatnonzero((complex_ == complex_[first]) & _is_near(worth, margin(q)))
    return int(alike[np.argmax(paid_rate(q, rows)[alike])])


def leading_count(stands: Array) -> int:
    """Of how many plans at the head of a ranking as much stands for them as for the first."""
    return int(np.sum(stands == stands[0]))


def simplest_served(q: Question, complex_: Array, worth: Array, power: int = 1) -> int:
    """The same of serving plans: those with two pools only where they beat all others by more than predictions of them err.

    ``power``: what ``worth`` is a power of.
    """
    one_pool = np.flatnonzero(complex_ < POOLS)
    surely = (1 + margin(q, pools=True)) ** power
    left = one_pool if len(one_pool) and worth[0] <= worth[one_pool[0]] * surely * (1 + 1e-12) else np.arange(len(worth))
    return int(left[simplest(complex_[left], worth[left], (1 + margin(q)) ** power - 1)])
