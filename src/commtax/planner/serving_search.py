"""Serving plans: price the whole grid of plans x concurrency at once, keep what meets the limits, rank, and say why.

Splits of a cluster into workers for prompts and workers that decode are plans beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from commtax.arrays import unique_values
from commtax.planner import columns, money, reasons
from commtax.planner.asked_techniques import refuse_unused
from commtax.planner.choosing import complexity, margin, simplest
from commtax.planner.columns import NO_SERVING, Array, OperatingPoint, Rejected, ServingColumns, ServingPlans
from commtax.planner.exchanges import ExpertExchange, exchanges
from commtax.planner.space import Roomy, Space, most_each, sizes, space
from commtax.planner.splits import split, why_none
from commtax.question import MAX_CONCURRENCY, Question
from commtax.records import dataclass
from commtax.spec import NO_TECHNIQUES
from commtax.statement import Refusal
from commtax.verbs.checking import positive
from commtax.verbs.disaggregation import refuse_place, where_prompts_run
from commtax.verbs.fitting import cache_tokens, state_places, state_tokens

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
APART = "prompts on separate workers"
LISTED = 20
"""Plans whose best concurrency is found exactly; those behind them are known to be behind."""
PLACES = {
    "fastest": "the wait of one user matters most",
    "balanced": "users wait and GPUs cost money: highest ratio of tokens/s to request time",
    "most": "no user waits: batch jobs, evaluation, synthetic data",
}
"""Places to run at where no limit says, and when each is the one to choose."""
DIP = 1.05
"""A request may take up to this much less time when one more joins: steps are not smooth where collectives switch."""


def search_serving(put: Question) -> ServingPlans:
    """The plans of a question, best first, and which of them to run."""
    q = grounded(put)
    return rank_found(q, search_ways(q))


def grounded(put: Question) -> Question:
    """The question of a search, checked, and settled as one GPU's."""
    _check(put)
    q = replace(columns.ground(put), plan=put.plan)
    if q.requests.tokens > q.model.max_len:
        longest = f"the {q.model.max_len:,} positions of {q.model.key}"
        raise refuse_length(f" = {q.requests.tokens:,}: more than {longest}")
    return q


@dataclass(frozen=True, slots=True)
class FoundPlans:
    """All plans and loads that were priced, those that are none and why, and how many were looked at."""

    points: ServingColumns
    lost: tuple[Rejected, ...]
    count: int

    def beside(self, more: FoundPlans) -> FoundPlans:
        return FoundPlans(ServingColumns.joined([self.points, more.points]), (*self.lost, *more.lost), self.count + more.count)


def search_ways(q: Question, first: int = 0) -> FoundPlans:
    """Plans of all types of weights, in all ways that are tried or in those from the ``first`` on."""
    points, lost, counts = zip(*(_points(q, index, first) for index in range(len(q.goal.dtypes))), strict=True)
    return FoundPlans(ServingColumns.joined(list(points)), tuple(chain(*lost)), sum(counts))


def rank_found(q: Question, found: FoundPlans) -> ServingPlans:
    answer = ServingPlans(q, found.count, rejected=tuple(dict.fromkeys(found.lost)))
    if q.techniques != NO_TECHNIQUES or q.plan.dcp > 1:
        _check_techniques(answer, found.points)
    return _rank_answer(answer, found.points)


def _check_techniques(answer: ServingPlans, every: ServingColumns) -> None:
    """What is asked of all plans must be possible with one of them; of each kind the first is looked at, narrow ones first."""
    kinds = np.stack([every.ep, every.tp, every.dp, every.mode, every.exchange, every.prefill_tp, every.prefill_dp], axis=1)
    first = np.unique(kinds, axis=0, return_index=True)[1].tolist() if len(every) else list[int]()
    refuse_unused(answer.question, [answer.workers_of(every, i) for i in first])


def refuse_length(rule: str) -> Refusal:
    """Requests that are too long for a model."""
    return Refusal(f"input_len + output_len{rule}", "input_len")


def _check(q: Question) -> None:
    wanted, goal = q.requests, q.goal
    if wanted.output_len == 1 and goal.limited:
        raise Refusal.about(tpot_s="with one output token there is no time between tokens; limit ttft_s")
    if goal.objective not in OBJECTIVES:
        raise Refusal.of(f"one of {', '.join(OBJECTIVES)}", OBJECTIVES, objective=goal.objective)
    if wanted.prefill_cluster:
        _check_pools(q)
    if goal.max_concurrency is not None:
        positive(max_concurrency=goal.max_concurrency)
    money.check(goal)


def _check_pools(q: Question) -> None:
    """A cluster for prompts belongs to plans with workers of their own for them, and to requests that decode."""
    wanted, ahead = q.requests, q.requests.prefill_cluster
    if not wanted.disaggregated:
        raise refuse_place(ahead, "belongs to disaggregated plans, and disaggregated=False leaves those out")
    if wanted.output_len == 1:
        raise refuse_place(ahead, "one output token leaves nothing to decode elsewhere; output_len is at least 2")


def _points(q: Question, index: int, first: int) -> tuple[ServingColumns, list[Rejected], int]:
    """Every (plan, concurrency) that fits, priced; families that are illegal or do not fit."""
    found, lost, count = list[Roomy](), list[Rejected](), 0
    for by, exchange in list(enumerate(exchanges(q)))[first:]:
        try:
            base, roomy, reasons_, several = having_room(q, index, exchange)
        except ValueError:
            if not exchange.techniques:
                raise
            continue  # they cannot be had this way, whatever the plan
        if q.goal.objective == "gpus":  # copies add throughput, not an answer
            roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
        lost, count = lost + reasons_, count + several
        if len(roomy):
            found.append(Roomy(base, roomy, index, by))
    if q.requests.prefill_cluster and not first:
        lost = _rejected_on_either(q, index, lost)
    ways = exchanges(q)
    alike = [] if q.requests.prefill_cluster else [one for one in found if ways[one.exchange].shared]  # GPUs of one kind
    points = ServingColumns.joined([*(search(one) for one in alike), split([one for one in found if ways[one.exchange].apart])])
    if found and q.requests.disaggregated and not first and not np.any(points.mode == 1):
        lost.append(Rejected(APART + reasons.dtype_words(q, index), why_none(found[0].question, found[0].plans)))
    return points, lost, count


def _rejected_on_either(q: Question, index: int, lost: list[Rejected]) -> list[Rejected]:
    """Families that are illegal, and those without room, named by what they would do where only one of both clusters lacks it."""
    ahead = having_room(where_prompts_run(q), index, exchanges(q)[0])[2]
    both = [r for r in dict.fromkeys([*lost, *ahead]) if r.rule or (r in lost and r in ahead)]
    own = ((r, work) for rows, work in ((lost, "to decode"), (ahead, "for prompts")) for r in rows if r not in both)
    return [*both, *(replace(r, family=f"{r.family} {work}") for r, work in own)]


def having_room(q: Question, index: int, exchange: ExpertExchange) -> tuple[Question, Space, list[Rejected], int]:
    """The question in a type, plans that hold a request of it, families that are illegal or do not fit, how many were looked at."""
    put = q.but(weights_dtype=q.goal.dtypes[index], **exchange.asked)
    base = replace(columns.ground(put), what_if=put.what_if)
    whole = space(base, exchange)
    if exchange.techniques and q.goal.technique_layouts:
        whole = whole.take(whole.among(q.goal.technique_layouts))
    lost = [] if exchange.beside else list(reasons.illegal_families(base, whole))
    legal = whole.legal
    if not len(legal):
        return base, legal, lost, len(whole)
    every = base.but(**sizes(legal))
    legal = replace(legal, kv_tokens=np.asarray(cache_tokens(every)))
    fits = (legal.kv_tokens >= q.requests.tokens + state_tokens(every)) & (state_places(every, legal.kv_tokens) >= 1)
    lost += [] if exchange.beside else reasons.too_large(put, legal, fits, index)
    return base, legal.take(fits & (most_each(q, legal.dp) > 0)), lost, len(whole) * (q.goal.max_concurrency or MAX_CONCURRENCY)


def search(of: Roomy) -> ServingColumns:
    """Every concurrency that can matter: a coarse grid of all plans, then all of the intervals that may hold a good plan's best.

    A request takes no less time when others join, but for a dip where a collective changes its algorithm, so between two
    grid points tokens/s is at most the next point's clients over this point's time. Intervals whose bound lies below the
    best plans', or that break a limit at both ends, are left out; ``DIP`` leaves room for the dips.
    """
    base = of.question
    rows, load, last = grid_of(of.held)
    coarse = of.at(rows, load)
    ahead = np.where(last, load, np.append(load[1:], 1))
    past = columns.worst_limit_ratio(base, coarse)
    near = (past <= DIP) | (~last & np.append(past[1:] <= DIP, False))
    open_ = np.zeros(len(load), dtype=bool)
    for score, bound, listed in _scores(base, coarse, ahead / load):
        open_ |= bound >= _bar(rows, np.where(past <= 1, score, -np.inf), listed, (1 + margin(base)) ** 2 - 1)
    gaps = np.where(open_ & near, ahead - load - 1, 0).clip(0)
    inner = np.repeat(np.arange(len(load)), gaps)
    step = np.arange(len(inner)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + 1
    return ServingColumns.joined([coarse, of.at(rows[inner], load[inner] + step)]) if len(inner) else coarse


def _scores(q: Question, c: ServingColumns, ahead: Array) -> Iterator[tuple[Array, Array, int]]:
    """What points are chosen by, what it is at most until the next, and how many plans are listed by it."""
    if q.goal.objective == "latency":
        yield 1 / columns.request_s(q, c), DIP / columns.request_s(q, c), LISTED
    else:
        rate = c.tokens_per_s if q.goal.objective == "throughput" else c.tokens_per_s_per_gpu
        yield rate, rate * ahead * DIP, LISTED
    if not q.goal.times:
        yield columns.power(q, c), columns.power(q, c) * ahead * DIP**2, 1


def grid_of(room: Array) -> tuple[Array, Array, Array]:
    """(plan, clients, whether it is the plan's last) of the coarse grid: powers of the root of two up to each plan's room."""
    steps = unique_values(np.round(2 ** (np.arange(0, 41) / 2)).astype(int))
    rows, load = [], []
    for plan_, most in enumerate(room.tolist()):
        clients = np.append(steps[steps < most], most)
        rows.append(np.full(len(clients), plan_))
        load.append(clients)
    flat = np.concatenate(rows)
    return flat, np.concatenate(load), np.append(flat[1:] != flat[:-1], True)


def _bar(rows: Array, score: Array, listed: int, within: float) -> float:
    """The score that a plan must reach on the coarse grid: to be listed, or to be within the margin of the best."""
    best = np.full(int(rows.max()) + 1, -np.inf)
    np.maximum.at(best, rows, score)
    kept = np.sort(best[np.isfinite(best)])[::-1]
    return min(float(kept[min(listed, len(kept)) - 1]), float(kept[0]) / (1 + within)) if len(kept) else np.inf


def _rank_answer(answer: ServingPlans, every: ServingColumns) -> ServingPlans:
    """The answer with the best of all points, the front of the good ones, and why others lost."""
    q, met = answer.question, columns.worst_limit_ratio(answer.question, every) <= 1
    good = every.take(np.flatnonzero(met))
    plans, near = best_first(q, every)
    slow = reasons.too_slow(answer, every, met) if len(every) else ()
    answer = replace(answer, plans=plans, near=near, front=good.take(_front(good)), rejected=(*answer.rejected, *slow))
    if not len(plans):
        return answer
    first = simplest(complexity(plans, q.cluster, q.requests.prefill_cluster), columns.objective_value(q, plans), margin(q))
    # nothing says where between short requests and many tokens/s to run
    open_ended = not q.goal.times and q.goal.objective in ("throughput", "cost") and q.requests.output_len > 1
    answer = replace(answer, recommended=first, places=tuple(_places(q, every)) if open_ended else ())
    return replace(answer, rejected=(*answer.rejected, *reasons.families_behind(answer)))


def _places(q: Question, every: ServingColumns) -> Iterator[OperatingPoint]:
    """The shortest requests, the most tokens/s over the time of a request (Kleinrock's power), and most of the objective."""
    once, both = margin(q), (1 + margin(q)) ** 2 - 1  # both tokens/s and the time of a request are in the power
    scores = (1 / columns.request_s(q, every), once), (columns.power(q, every), both), (columns.objective_value(q, every), once)
    for name, (value, within) in zip(PLACES, scores, strict=True):
        ranked = _rank_by_keys([np.round(np.log(value), 11), *columns.order(q, every)])
        first = ranked[_firsts(columns.family(every)[ranked])]
        plans = every.take(first)
        effort = complexity(plans, q.cluster, q.requests.prefill_cluster)
        yield OperatingPoint(name, PLACES[name], plans, simplest(effort, value[first], within))


def best_first(q: Question, every: ServingColumns) -> tuple[ServingColumns, ServingColumns]:
    """The best point of each family that meets the limits, in the objective's order; without any, the nearest ones."""
    good = every.take(np.flatnonzero(columns.worst_limit_ratio(q, every) <= 1))
    if len(good) or not len(every):
        return _best_of_families(good, columns.order(q, good)), NO_SERVING
    return NO_SERVING, _best_of_families(every, [-columns.worst_limit_ratio(q, every)]).take(slice(5))


def _best_of_families(c: ServingColumns, keys: list[Array]) -> ServingColumns:
    """The best row of each family by ``keys``, best family first."""
    ranked = _rank_by_keys(keys)
    return c.take(ranked[_firsts(columns.family(c)[ranked])]) if len(c) else c


def _rank_by_keys(keys: list[Array]) -> Array:
    """Indices, the largest first by the first key, then by the others."""
    return np.lexsort([-key for key in reversed(keys)])


def _firsts(families: Array) -> Array:
    """The first place of each family, in their order."""
    return np.sort(np.unique(families, return_index=True)[1])


def _front(c: ServingColumns) -> Array:
    """Points that no other beats in both tokens/s/GPU and tokens/s/user."""
    user, gpu = c.tokens_per_s_per_user, c.tokens_per_s_per_gpu
    ranked = np.lexsort((-gpu, -user))
    best = np.maximum.accumulate(gpu[ranked])
    keep = np.ones(len(ranked), dtype=bool)
    keep[1:] = gpu[ranked][1:] > best[:-1]
    return np.asarray(ranked[keep])
