"""Which plans there are: tensor x pipeline x attention-data x expert parallelism, how tokens reach experts, and how many copies a
cluster holds."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from commtax.arrays import Array
from commtax.cost.traffic import backend_called
from commtax.judgement.confidence import Estimate
from commtax.planner.columns import ColumnTable, ServingColumns, mean_cached_tokens
from commtax.planner.exchanges import ExpertExchange
from commtax.question import EVEN, MAX_CONCURRENCY, Question
from commtax.records import dataclass, replace
from commtax.rules import legality
from commtax.spec import SERVING_AXES, Cluster, Number, Plan
from commtax.verbs.closed_loop import ClosedLoop, price_closed_loop
from commtax.verbs.fitting import state_places, state_tokens
from commtax.verbs.settling import replan, settle

WIDE = 8  # ranks that share experts, from which exchanges of their own and redundant experts are tried


@dataclass(frozen=True, slots=True)
class Space(ColumnTable):
    """Plans as columns: ``codes`` is 0 where legal, else 1 + the index in ``legality.RULES``, and ``replicas`` fill the cluster."""

    tp: Array
    pp: Array
    dp: Array
    ep: Array
    replicas: Array
    codes: Array
    kv_tokens: Array  # that the cache of a copy holds; 0 before it is judged

    @property
    def group(self) -> Array:
        """GPUs of one copy."""
        return np.asarray(self.tp * self.pp * self.dp)

    def among(self, layouts: Sequence[Sequence[int]]) -> Array:
        """Return which rows are one of these (tp, pp, dp, ep)."""
        rows = np.stack([getattr(self, axis) for axis in SERVING_AXES], axis=1)
        return np.asarray((rows[:, None, :] == np.array(layouts, dtype=int).reshape(-1, len(SERVING_AXES))).all(axis=2).any(axis=1))

    @property
    def legal(self) -> "Space":
        return self.take((self.codes == 0) & (self.replicas > 0))


def space(q: Question, exchange: ExpertExchange) -> Space:
    """Return every plan on at most the cluster's GPUs, with experts reached by an exchange."""
    if exchange.dcp > 1:
        kept = {1 if a.latent or a.compressed else a.num_kv_heads for a in q.model.attentions}
        return _all_plans(q, exchange.dcp, exchange.dcp * max(kept, default=1)).legal  # tp keeps each key dcp times or more
    return _wide_expert_plans(q, exchange) if exchange.wide else _all_plans(q)


def _all_plans(q: Question, multiple: int = 1, least: int = 1) -> Space:
    """Return every plan, also illegal ones, whose tp divides the heads or is at most 8, a ``multiple``, and not below ``least``."""
    model, gpus, heads = q.model, q.cluster.num_gpus, q.model.attention.num_heads
    degrees = [t for t in range(1, min(gpus, max(8, heads)) + 1) if heads % t == 0 or t <= 8]
    rows, mixture = [], model.experts is not None
    for tp in (t for t in degrees if t >= least and t % multiple == 0):
        for dp in [2**i for i in range((gpus // tp).bit_length())] if mixture else [1]:  # attention in parallel, experts over all
            for pp in range(1, min(model.num_layers, gpus // (tp * dp)) + 1):
                spread = sorted({1, tp}) if dp == 1 else [tp * dp]
                rows += [(tp, pp, dp, ep) for ep in (spread if mixture else [1])]
    return _judged_space(q, rows)


def _wide_expert_plans(q: Question, exchange: ExpertExchange) -> Space:
    """Return attention data parallelism with experts over ``WIDE`` ranks or more, as many as divide them and their copies."""
    experts = q.model.experts
    assert experts
    slots, gpus, heads = experts.num_experts + exchange.redundant, q.cluster.num_gpus, q.model.attention.num_heads
    most = min(q.cluster.domain, gpus) if backend_called(exchange.backend).one_domain else gpus
    degrees = [n for n in range(WIDE, min(most, slots) + 1) if slots % n == 0]
    rows = [(tp, 1, ep // tp, ep) for ep in degrees for tp in range(1, min(8, ep // 2) + 1) if ep % tp == heads % tp == 0]
    return _judged_space(q, rows).legal


def _judged_space(q: Question, rows: list[tuple[int, int, int, int]]) -> Space:
    tp, pp, dp, ep = np.array(rows, dtype=int).reshape(-1, 4).T
    kinds = Plan(order=q.plan.order, weights_dtype=q.plan.weights_dtype, redundant_experts=q.plan.redundant_experts, dcp=q.plan.dcp)
    whole = replace(kinds, tp=tp, pp=pp, dp=dp, ep=ep)
    copies, codes = replicas(tp * pp * dp, tp, q.cluster), legality.codes(q.model, q.cluster, whole, q.engine)
    return Space(tp, pp, dp, ep, copies, codes * np.ones(len(rows), dtype=int), np.zeros(len(rows)))


def replicas(group: Array, tp: Array, cluster: Cluster) -> Array:
    """Count the copies that fit: several in a fast domain, or each on as many domains as it needs, whole tp groups in each."""
    domains, left = divmod(cluster.num_gpus, cluster.domain)  # what is left of the last domains holds copies, too
    inside = cluster.domain // group * domains + left // group
    used = np.where(tp <= cluster.domain, cluster.domain // tp * tp, cluster.domain)  # of a domain, by a copy of several
    each, last = -(-group // used), -(-group // used) - 1
    across = domains // each
    rest = (domains - across * each == last) & (group - last * used <= left)  # the part that a copy has on its last domain
    return np.asarray(np.where(group <= cluster.domain, inside, across + rest))


def workers_beside(copies: Array, group: int, other: int, cluster: Cluster) -> Array:
    """Count the workers of ``other`` GPUs that fit beside ``copies`` of ``group``. Below 0, not even those do.
    Workers no larger than a fast domain are inside one, others have whole domains. Of all ways to spread the copies, the best."""
    domains, left = divmod(cluster.num_gpus, cluster.domain)
    size, each = cluster.domain, -(-np.array([group, other]) // cluster.domain)
    if group > size:
        rest = domains - copies * each[0]
        room = rest // each[1] if other > size else rest * (size // other) + left // other
        return np.where(rest >= 0, room, -1)
    if other > size:
        inside = size // group
        taken = -(-np.maximum(0, copies - left // group) // inside)  # whole domains, once the part of one is full
        return np.where(taken <= domains, (domains - taken) // each[1], -1)
    most = np.full(len(copies), -1)
    for n in range(1, size // group + 1):
        full, rest = np.divmod(np.minimum(copies, n * domains), n)
        over = (copies - n * domains).clip(0)  # these go where no whole domain is left
        room = full * ((size - n * group) // other) + (rest > 0) * ((size - rest * group) // other)
        room = room + (domains - full - (rest > 0)) * (size // other) + (left - over * group) // other
        most = np.maximum(most, np.where(over * group <= left, room, -1))
    return most


@dataclass(frozen=True, slots=True)
class Roomy:
    """Plans that hold a request, of one type of weights and one way to reach experts."""

    question: Question
    plans: Space
    dtype: int  # index in ``dtypes`` …
    exchange: int  # … and in ``exchanges``

    @property
    def most_clients(self) -> Array:
        """Clients of a copy, or of a rank of its attention data parallelism, that a search goes up to."""
        room = np.clip(at_once(self.question, self.plans), 1, MAX_CONCURRENCY).astype(int)
        return np.asarray(np.minimum(room, most_each(self.question, self.plans.dp)))

    def at(self, rows: Array, load: Array) -> ServingColumns:
        """Price plans under so many clients each, of as many copies as there are clients for."""
        grid = self.plans.take(rows)
        if (most := self.question.goal.max_concurrency) is not None:
            grid = replace(grid, replicas=np.minimum(grid.replicas, most // (load * grid.dp)))
        priced = simulated(self.question, grid, load)
        kinds = {"mode": 0, "exchange": self.exchange, "gpus": grid.group * grid.replicas, "prefill_replicas": 0}
        shown = {**kinds, **sizes(grid), **figures(priced, priced.kv_tokens)}
        clients, rate = load * grid.dp * grid.replicas, np.asarray(priced.tokens_per_s) * grid.replicas
        one_pool = partial(ServingColumns.of, prefill_tp=0, prefill_dp=0)
        return one_pool(len(grid), dtype=self.dtype, replicas=grid.replicas, concurrency=clients, tokens_per_s=rate, **shown)


def most_each(q: Question, ranks: Number) -> Array:
    """Return the most clients of each of so many ranks."""
    most = q.goal.max_concurrency
    return np.asarray(MAX_CONCURRENCY + 0 * ranks if most is None else np.minimum(MAX_CONCURRENCY, most // ranks))


def sizes(s: Space) -> dict[str, Array]:
    return {axis: getattr(s, axis) for axis in SERVING_AXES}


def at_once(base: Question, plans: Space) -> Array:
    """Return the requests that the cache of a copy has room for, with their states."""
    every = base.but(**sizes(plans))
    cached = plans.kv_tokens // (mean_cached_tokens(base) + state_tokens(every))
    return np.asarray(np.minimum(cached, state_places(every, plans.kv_tokens)))


def simulated(base: Question, s: Space, clients: Array) -> ClosedLoop:
    """Price one copy of each plan under its load."""
    run = replan(base, **sizes(s), concurrency=clients * s.dp, kv_tokens=s.kv_tokens, disaggregated=False)
    return price_closed_loop(settle(run))


def figures(s: ClosedLoop, kv_tokens: Number) -> dict[str, Array]:
    """Return what a simulation tells of each load, with ``kv_tokens`` tokens of cache a copy."""
    headroom = 1 - s.running * (mean_cached_tokens(s.question) + s.state_tokens) / np.asarray(kv_tokens)
    times = {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "sure_ttft_s": surely(s, "ttft_s"), "sure_tpot_s": surely(s, "tpot_s")}
    return {name: np.asarray(value) for name, value in (times | {"running": s.running, "kv_headroom": headroom}).items()}


def surely(s: ClosedLoop, name: str) -> Number:
    """Return a limited time at the required confidence, else the central prediction. Only limited times need a range."""
    goal = s.question.goal
    value: Number = getattr(s, name)
    if goal.confidence == EVEN or getattr(goal, name) == np.inf:
        return value
    return Estimate(value, *s.range_of(name)).sure(goal.confidence)
