"""Serving plans, with one pool or two: price the grid of plans x concurrency at once, keep what meets the limits, rank, say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from commtax import counting
from commtax.arrays import Array, unique_values
from commtax.judgement.leading import bearable_ttft_s, depends_on_who_waits, latest_first_token_s, standing
from commtax.judgement.margins import margin
from commtax.planner import columns, money, ranking, reasons
from commtax.planner.columns import NO_SERVING, OperatingPoint, Rejected, ServingColumns, ServingPlans
from commtax.planner.exchanges import ExpertExchange, exchanges, refuse_unused
from commtax.planner.space import Roomy, Space, figures, most_each, sizes, space
from commtax.planner.splits import split, why_none
from commtax.question import INPUT_LEN, MAX_CONCURRENCY, OUTPUT_LEN, Question
from commtax.records import dataclass, replace
from commtax.rules.values import positive
from commtax.spec import NO_TECHNIQUES, SERVING_AXES, Number, Plan
from commtax.statement import Refusal
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.disaggregation import refuse_place, where_prompts_run
from commtax.verbs.fit_advice import check_lengths, starts, why_it_does_not_start
from commtax.verbs.fitting import state_places, state_tokens
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import settle

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
APART = "prompts on separate workers"
LISTED = 20  # plans whose best concurrency is found exactly; those behind them are known to be behind
PLACES = {  # to run at where no limit says, and when each is the one to choose
    "fastest": "each user's latency matters most",
    "balanced": "both latency and cost matter: many tokens/s at short request times",
    "most": "nobody waits for the answers: batch jobs, evaluation, synthetic data",
}
COARSE, FINE = 2, 8  # loads to a doubling on a plan's first grid: a fine one leaves less between where little is expected
DIP = 1.05  # a request may take up to this much less time when one more joins: steps are not smooth where collectives switch
BestScores = tuple[dict[tuple[int, ...], float], float]
"""What a score is known to reach: of each plan (type of weights, sizes), and what others must reach to be listed."""


def usual_lengths(workload: str) -> tuple[int, int]:
    """Return the input and output tokens of a workload, or the default lengths without one."""
    if workload and workload not in WORKLOADS:
        raise Refusal.of(f"one of {', '.join(WORKLOADS)}", tuple(WORKLOADS), workload=workload)
    return WORKLOADS.get(workload, (INPUT_LEN, OUTPUT_LEN))


def search_serving(put: Question) -> ServingPlans:
    """Return the plans of a question, best first, and which of them to run."""
    q = grounded(put)
    return rank_priced(q, search_ways(q))


def grounded(put: Question) -> Question:
    """Return the question of a search, checked, and settled as one GPU's."""
    wanted, goal = put.requests, put.goal
    if wanted.output_len == 1 and goal.limited:
        raise Refusal.about(tpot_s="with one output token there is no time between tokens; limit ttft_s")
    if goal.objective not in OBJECTIVES:
        raise Refusal.of(f"one of {', '.join(OBJECTIVES)}", OBJECTIVES, objective=goal.objective)
    if wanted.prefill_cluster and not wanted.disaggregated:
        raise refuse_place(wanted.prefill_cluster, "belongs to disaggregated plans, and disaggregated=False leaves those out")
    if wanted.prefill_cluster and wanted.output_len == 1:
        raise refuse_place(wanted.prefill_cluster, "one output token leaves nothing to decode elsewhere; output_len is at least 2")
    if goal.max_concurrency is not None:
        positive(max_concurrency=goal.max_concurrency)
    money.check(goal)
    return check_lengths(replace(columns.ground(put), plan=put.plan))


@dataclass(frozen=True, slots=True)
class PricedPlans:
    """All plans and loads that were priced, those that are none and why, and how many were looked at."""

    points: ServingColumns
    lost: tuple[Rejected, ...]
    count: int

    def beside(self, more: PricedPlans) -> PricedPlans:
        return PricedPlans(ServingColumns.joined([self.points, more.points]), (*self.lost, *more.lost), self.count + more.count)


def search_ways(q: Question, first: int = 0, earlier: ServingColumns = NO_SERVING) -> PricedPlans:
    """Search plans of all types of weights, over all exchanges or those from the ``first`` on, beside what is ``earlier``."""
    types = counting.counted(range(len(q.goal.dtypes)))
    points, lost, counts = zip(*(_points(q, index, first, earlier) for index in types), strict=True)
    return PricedPlans(ServingColumns.joined(list(points)), tuple(chain(*lost)), sum(counts))


def rank_priced(q: Question, priced: PricedPlans) -> ServingPlans:
    """Return the good plans, best first, with which to run, where, and why the others lost."""
    plain, bare = None, q.but(technique_sets=(), technique_layouts=())
    if q.goal.technique_sets:
        points = priced.points.take(np.flatnonzero(priced.points.exchange < len(exchanges(bare))))
        plain = rank_briefly(bare, replace(priced, points=points))
    answer = ServingPlans(q, priced.count, plain=plain, rejected=tuple(dict.fromkeys(priced.lost)))
    if q.techniques != NO_TECHNIQUES or q.plan.dcp > 1:
        every = priced.points  # of each kind the first is looked at, narrow ones first
        kinds = np.stack([every.ep, every.tp, every.dp, every.mode, every.exchange, every.prefill_tp, every.prefill_dp], axis=1)
        first = np.unique(kinds, axis=0, return_index=True)[1].tolist() if len(every) else list[int]()
        refuse_unused(q, [answer.workers_of(every, i) for i in first])
    met = columns.worst_limit_ratio(q, priced.points) <= 1
    good = priced.points.take(np.flatnonzero(met))
    plans, near = ranking.best_first(q, priced.points)
    slow = reasons.too_slow(answer, priced.points, met) if len(priced.points) else ()
    lost = reasons.with_unique_names([*answer.rejected, *slow])
    answer = replace(answer, plans=plans, near=near, front=good.take(ranking.front_of(good)), rejected=lost)
    if not len(plans):
        return answer
    first, passed_over = ranking.recommended_row(q, plans), ranking.passed_over_plan(q, columns.order(q, good), good)
    places = tuple(_places(q, priced.points)) if depends_on_who_waits(q) else ()
    answer = replace(answer, recommended=first, passed_over=passed_over, places=places)
    return replace(answer, rejected=reasons.with_unique_names([*answer.rejected, *reasons.families_behind(answer)]))


def _points(q: Question, index: int, first: int, earlier: ServingColumns) -> tuple[ServingColumns, list[Rejected], int]:
    """Price every (plan, concurrency) that fits, and list families that are illegal or do not fit."""
    pools, lost, count = list[Roomy](), list[Rejected](), 0
    for by, exchange in list(enumerate(exchanges(q)))[first:]:
        try:
            base, roomy, reasons_, several = having_room(q, index, exchange, _layouts_of(q, by % first) if first else None)
        except ValueError:
            if not exchange.techniques:
                raise
            continue  # they cannot be had this way, whatever the plan
        if q.goal.objective == "gpus":  # copies add throughput, not an answer
            roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
        lost, count = lost + reasons_, count + several
        if len(roomy):
            pools.append(Roomy(base, roomy, index, by))
    if q.requests.prefill_cluster and not first:
        ahead = having_room(where_prompts_run(q), index, exchanges(q)[0])[2]
        both = [r for r in dict.fromkeys([*lost, *ahead]) if r.rule or (r in lost and r in ahead)]
        named = ((r, work) for rows, work in ((lost, "for decoding"), (ahead, "for prompts")) for r in rows if r not in both)
        lost = [*both, *(replace(r, family=f"{r.family} {work}") for r, work in named)]
    ways = exchanges(q)
    alike = [] if q.requests.prefill_cluster else [one for one in pools if ways[one.exchange].shared]  # GPUs of one kind
    apart = [one for one in pools if ways[one.exchange].apart]
    if first:
        alike, apart = (_among_layouts(q, kind, mode, first) for mode, kind in enumerate((alike, apart)))
    with counting.part(0.0, 0.5):
        counted = np.exp(-ranking.least_gains(q))
        shared = list(search_beside(alike, earlier, counted) if len(earlier) else map(search, counting.counted(alike)))
    with counting.part(0.5, 1.0):
        points = ServingColumns.joined([*shared, split(apart)])
    if pools and q.requests.disaggregated and not first and not np.any(points.mode == 1):
        lost.append(Rejected(APART + reasons.dtype_words(q, index), why_none(pools[0].question, pools[0].plans)))
    return points, lost, count


def _layouts_of(q: Question, exchange: int, *modes: int) -> list[tuple[int, ...]]:
    """Return the (tp, pp, dp, ep) that techniques are tried on, of one way to reach experts, and of these modes or any."""
    return [tuple(sizes) for by, mode, *sizes in q.goal.technique_layouts if by == exchange and (not modes or mode in modes)]


def _among_layouts(q: Question, pools: Sequence[Roomy], mode: int, first: int) -> list[Roomy]:
    taken = (replace(x, plans=x.plans.take(x.plans.among(_layouts_of(q, x.exchange % first, mode)))) for x in pools)
    return [one for one in taken if len(one.plans)]


def having_room(
    q: Question, index: int, exchange: ExpertExchange, layouts: Sequence[tuple[int, ...]] | None = None
) -> tuple[Question, Space, list[Rejected], int]:
    """Return the question in a type, plans with room for a request (of these (tp, pp, dp, ep)), rejected families, and points."""
    put = q.but(weights_dtype=q.goal.dtypes[index], **exchange.changes)
    base = replace(columns.ground(put), what_if=put.what_if)
    whole = space(base, exchange)
    whole = whole if layouts is None else whole.take(whole.among(layouts))
    lost = [] if exchange.beside else list(reasons.illegal_families(base, whole))
    legal = whole.legal
    if not len(legal):
        return base, legal, lost, len(whole)
    every = base.but(**sizes(legal))
    legal = replace(legal, kv_tokens=np.asarray(cache_tokens(every)))
    fits = (legal.kv_tokens >= q.requests.tokens + state_tokens(every)) & (state_places(every, legal.kv_tokens) >= 1)
    fits &= starts(every)
    lost += [] if exchange.beside else reasons.too_large(put, legal, fits, index)
    return base, legal.take(fits & (most_each(q, legal.dp) > 0)), lost, len(whole) * (q.goal.max_concurrency or MAX_CONCURRENCY)


def search(of: Roomy) -> ServingColumns:
    """Price every concurrency that can matter: a coarse grid of all plans, then all loads in intervals that may hold a good one."""
    grid = LoadGrid.of_plans(of, COARSE)
    return ServingColumns.joined([grid.points, *grid.between(grid.bars())])


def search_beside(pools: Sequence[Roomy], earlier: ServingColumns, counted: Array) -> Iterator[ServingColumns]:
    """Search other exchanges beside known plans, with the share of each way's scores that counts beside others."""
    grids = [LoadGrid.of_plans(of, FINE, float(counted[of.exchange])) for of in pools]
    best = list(_best_scores(pools[0].question, earlier)) if pools else []
    for grid in grids:
        grid.raise_bests(best, grid.rows, grid.points)
    ranked = sorted(range(len(grids)), key=lambda i: -grids[i].highest)  # the best first: it leaves little to the others
    inner = {i: list(grids[i].between(grids[i].bars_beside(best), best)) for i in ranked}
    for i, grid in enumerate(grids):
        yield from (grid.points, *inner[i])


def _best_scores(q: Question, priced: ServingColumns) -> Iterator[BestScores]:
    met, families = columns.worst_limit_ratio(q, priced) <= 1, ranking.family(priced)
    first = priced.take(np.unique(families, return_index=True)[1])
    shared = np.flatnonzero(first.mode == 0)
    keys = list(zip(*(getattr(first, name)[shared].astype(int).tolist() for name in ("dtype", *SERVING_AXES)), strict=True))
    for score, _, listed in _scores(q, priced, np.ones(len(priced))):
        best = _best_each(families, np.where(met, score, -np.inf), len(first))
        yield dict(zip(keys, best[shared].tolist(), strict=True)), _least(best, listed, power_margin(q))


@dataclass(frozen=True, slots=True)
class LoadGrid:
    """All plans of one way on a grid of loads. Between two, tokens/s is at most the next one's clients over this one's time."""

    of: Roomy
    rows: Array
    load: Array
    last: Array
    points: ServingColumns
    counted: float = 1.0  # share of its scores that counts beside those of others

    @classmethod
    def of_plans(cls, of: Roomy, fineness: int, counted: float = 1.0) -> LoadGrid:
        rows, load, last = grid_of(of.most_clients, fineness)
        return cls(of, rows, load, last, of.at(rows, load), counted)

    @property
    def highest(self) -> float:
        """The best that any of its plans reaches by the first score."""
        score = next(_scores(self.of.question, self.points, np.ones(len(self.points))))[0]
        met = columns.worst_limit_ratio(self.of.question, self.points) <= 1
        return float(np.max(score, where=met, initial=-np.inf)) * self.counted

    @property
    def _keys(self) -> list[tuple[int, ...]]:
        sized = (getattr(self.of.plans, axis).astype(int).tolist() for axis in SERVING_AXES)
        return [(self.of.dtype, *one) for one in zip(*sized, strict=True)]

    def bars(self) -> list[float]:
        """Return, by each score, what plans of this exchange must reach to be listed, or to be within the margin of the best."""
        q, met = self.of.question, columns.worst_limit_ratio(self.of.question, self.points) <= 1
        scored = ((np.where(met, score, -np.inf), listed) for score, _, listed in _scores(q, self.points, self.load))
        return [_least(_best_each(self.rows, score, len(self.of.plans)), listed, power_margin(q)) for score, listed in scored]

    def bars_beside(self, best: Sequence[BestScores]) -> list[Array]:
        """Return what each plan must reach to beat its known best, and to be listed."""
        reached = ([by_plan.get(key, -np.inf) / self.counted for key in self._keys] for by_plan, _ in best)
        return [np.maximum(least, values)[self.rows] for (_, least), values in zip(best, reached, strict=True)]

    def raise_bests(self, best: Sequence[BestScores], rows: Array, points: ServingColumns) -> None:
        """Note what some points of these plans reach."""
        q, met = self.of.question, columns.worst_limit_ratio(self.of.question, points) <= 1
        for (by_plan, _), (score, _, _) in zip(best, _scores(q, points, np.ones(len(points))), strict=True):
            reached = (_best_each(rows, np.where(met, score, -np.inf), len(self.of.plans)) * self.counted).tolist()
            by_plan.update({key: max(value, by_plan.get(key, -np.inf)) for key, value in zip(self._keys, reached, strict=True)})

    def between(self, bars: Sequence[Array | float], best: Sequence[BestScores] = ()) -> Iterator[ServingColumns]:
        """Yield all loads inside intervals that may hold one above a bar, and record what they reach among the best."""
        q, load, last = self.of.question, self.load, self.last
        ahead = np.where(last, load, np.append(load[1:], 1))
        past = columns.worst_limit_ratio(q, self.points)
        near = (past <= DIP) | (~last & np.append(past[1:] <= DIP, False))
        open_ = np.zeros(len(load), dtype=bool)
        for (_, bound, _), bar in zip(_scores(q, self.points, ahead / load), bars, strict=True):
            open_ |= bound >= bar
        gaps = np.where(open_ & near, ahead - load - 1, 0).clip(0)
        inner = np.repeat(np.arange(len(load)), gaps)
        if len(inner):
            step = np.arange(len(inner)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + 1
            points = self.of.at(self.rows[inner], load[inner] + step)
            if best:
                self.raise_bests(best, self.rows[inner], points)
            yield points


def _scores(q: Question, c: ServingColumns, ahead: Array) -> Iterator[tuple[Array, Array, int]]:
    """Yield what points are chosen by, what it is at most until the next, and how many plans are listed by it."""
    if q.goal.objective == "latency":
        yield 1 / columns.request_s(q, c), DIP / columns.request_s(q, c), LISTED
    else:
        rate = c.tokens_per_s if q.goal.objective == "throughput" else c.tokens_per_s_per_gpu
        yield rate, rate * ahead * DIP, LISTED
        if (latest_s := latest_first_token_s(q)) < np.inf:
            early = np.where(c.ttft_s <= latest_s, rate, -np.inf)
            yield early, early * ahead * DIP, LISTED
    if not q.goal.times:
        yield columns.power(q, c), columns.power(q, c) * ahead * DIP**2, 1


def grid_of(room: Array, fineness: int = COARSE) -> tuple[Array, Array, Array]:
    """Return (plan, clients, whether it is the plan's last) of a grid of so many loads per doubling, up to each plan's room."""
    steps = unique_values(np.round(2 ** (np.arange(20 * fineness + 1) / fineness)).astype(int))
    loads = [np.append(steps[steps < most], most) for most in room.tolist()]
    rows = np.repeat(np.arange(len(loads)), list(map(len, loads)))
    return rows, np.concatenate(loads), np.append(rows[1:] != rows[:-1], True)


def _best_each(rows: Array, score: Array, count: int) -> Array:
    best = np.full(count, -np.inf)
    np.maximum.at(best, rows, score)
    return best


def _least(best: Array, listed: int, within: float) -> float:
    """Return the score that a plan must reach, given the best of each: to be listed, or to be within the margin of the best."""
    kept = np.sort(best[np.isfinite(best)])[::-1]
    return min(float(kept[min(listed, len(kept)) - 1]), float(kept[0]) / (1 + within)) if len(kept) else np.inf


def power_margin(q: Question) -> float:
    """Return the margin of power, which both tokens/s and the time of a request enter."""
    return (1 + margin(q)) ** 2 - 1


def rank_briefly(q: Question, priced: PricedPlans) -> ServingPlans:
    """Return the good or nearest plans, best first, and which to run."""
    plans, near = ranking.best_first(q, priced.points)
    answer = ServingPlans(q, priced.count, plans=plans, near=near)
    return replace(answer, recommended=ranking.recommended_row(q, plans)) if len(plans) else answer


def _places(q: Question, every: ServingColumns) -> Iterator[OperatingPoint]:
    """Yield the shortest requests, the most tokens/s over the time of a request (Kleinrock's power), and most of the objective."""
    scores = (1 / columns.request_s(q, every), 1), (columns.power(q, every), 2), (columns.objective_value(q, every), 1)
    for name, (value, power) in zip(PLACES, scores, strict=True):
        stands = standing(q, every.mode, every.ttft_s, bearable_ttft_s(q) if name != "most" else np.inf)
        keys = [stands, np.round(np.log(value), 11), *columns.order(q, every)[1:]]
        first = ranking.best_rows(keys, ranking.family(every), ranking.least_gains(q)[every.exchange.astype(int)])
        plans, lead = every.take(first), first[: ranking.leading_count(stands[first])]
        simplest = ranking.simplest_served(q, ranking.effort(q, every.take(lead)), value[lead], power)
        chosen = ranking.recommended_row(q, plans) if name == "most" else simplest
        yield OperatingPoint(name, PLACES[name], plans, chosen, ranking.passed_over_plan(q, keys, every))


def best_load(answer: ServingPlans, i: int, changes: Mapping[str, object]) -> ServingColumns:
    """Return row ``i``'s layout with its question changed, at the best load within the limits, or no row."""
    every = row_at_loads(answer.plans, i, answer.put(answer.plans, i).but(replicas=int(answer.plans.replicas[i]), **changes))
    return ranking.best_first(answer.question, every)[0].take(slice(1))


def row_at_loads(rows: ServingColumns, i: int, run: Question, clients: int = 0) -> ServingColumns:
    """Price row ``i`` as a question, at ``clients`` or all loads. There is no row where it cannot be run."""
    try:
        return at_loads(run, rows.prompter(i) if rows.mode[i] else None, clients, int(rows.dtype[i]), int(rows.exchange[i]))
    except ValueError:
        return rows.take(slice(0))


def at_loads(run: Question, prompts: Plan | None, clients: int, index: int, by: int) -> ServingColumns:
    """Price copies of a plan at ``clients`` of the whole, or at all their loads. ``prompts`` are separate workers for those."""
    if prompts:
        plan, copies = run.plan, int(run.plan.replicas)
        ranks = copies * int(plan.dp)
        loads = np.array([clients]) if clients else np.arange(1, int(most_each(run, ranks)) + 1) * ranks
        tp, dp, workers = int(prompts.tp), int(prompts.dp), int(prompts.replicas)
        put = run.but(replicas=1, concurrency=loads, prefill_tp=tp, prefill_dp=dp, prefill_workers=workers, decode_workers=copies)
        put = put.but(disaggregated=True)
        s = price_closed_loop(settle(put))
        room = min(float(s.kv_tokens), float(s.apart.kv_tokens) if s.apart else np.inf)
        _check_room(put, room)
        sizes: dict[str, Number] = {axis: getattr(plan, axis) for axis in SERVING_AXES}
        sizes |= {"mode": 1, "exchange": by, "prefill_replicas": workers}
        sizes |= {"gpus": plan.num_gpus * copies + prompts.all_gpus, "tokens_per_s": s.tokens_per_s, **figures(s, room)}
        return ServingColumns.of(len(loads), dtype=index, replicas=copies, prefill_tp=tp, prefill_dp=dp, concurrency=loads, **sizes)
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
