"""Serving plans: price the whole grid of plans x concurrency at once, keep what meets the limits, rank, and say why.

Splits of a cluster into workers for prompts and workers that decode are plans beside the others.
"""

from dataclasses import replace
from itertools import chain

import numpy as np

from commtax.arrays import different
from commtax.planner import money, reasons
from commtax.planner.columns import (
    NO_SERVING,
    SERVED,
    Array,
    Columns,
    Rejected,
    ServingPlans,
    cached,
    family,
    ground,
    order,
    over,
    request_s,
)
from commtax.planner.space import Space, space
from commtax.planner.splits import figures, split, why_none
from commtax.question import Question
from commtax.statement import Refusal
from commtax.verbs import checking
from commtax.verbs.asking import laid
from commtax.verbs.checking import positive
from commtax.verbs.fitting import cache_tokens, state_places, state_tokens, step_limits
from commtax.verbs.serving import Simulation, serve

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
APART = "prompts on workers of their own"
LISTED = 20
"""Plans whose best concurrency is found exactly; those behind them are known to be behind."""
PIECES = 16
"""Of two neighbouring intervals of the coarse grid, in which a knee is looked for."""
Grid = tuple[Array, Array, Array, Columns]
"""Plan, clients, whether these are the plan's last, and what they are priced as."""
DIP = 1.05
"""A request may take up to this much less time when one more joins: steps are not smooth where collectives switch."""


def searched(put: Question) -> ServingPlans:
    """The plans of a question, best first."""
    _check(put)
    q = replace(ground(put), plan=put.plan)
    if q.requests.tokens > q.model.max_len:
        longest = f"the {q.model.max_len:,} positions of {q.model.key}"
        raise Refusal(f"input_len + output_len = {q.requests.tokens:,}: more than {longest}", "input_len")
    points, lost, counts = zip(*(_points(q, index) for index in range(len(q.goal.dtypes))), strict=True)
    answer = ServingPlans(q, sum(counts), rejected=tuple(dict.fromkeys(chain(*lost))))
    return _ranked(answer, Columns.joined(list(points)))


def _check(q: Question) -> None:
    wanted, goal = q.requests, q.goal
    for value, name in ((wanted.input_len, "input_len"), (wanted.output_len, "output_len")):
        positive(value, name)
    if wanted.output_len == 1 and goal.limited:
        raise Refusal("tpot_s: with one output token there is no time between tokens; limit ttft_s", "tpot_s")
    if goal.objective not in OBJECTIVES:
        raise Refusal(f"objective '{goal.objective}': one of {', '.join(OBJECTIVES)}", "objective", OBJECTIVES)
    checking.spread(wanted.spread)
    positive(goal.max_concurrency, "max_concurrency")
    money.check(goal)


def _points(q: Question, index: int) -> tuple[Columns, list[Rejected], int]:
    """Every (plan, concurrency) that fits, priced; families that are illegal or do not fit."""
    base, roomy, lost, count = having_room(q, index)
    if not len(roomy):
        return NO_SERVING, lost, count
    if q.goal.objective == "gpus":  # copies add throughput, not an answer
        roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
    points = search(base, roomy, index)
    if q.requests.disaggregated and not np.any(points.mode == 1):
        lost.append(Rejected(APART + reasons.in_type(q, index), why_none(base, roomy)))
    return points, lost, count


def having_room(q: Question, index: int) -> tuple[Question, Space, list[Rejected], int]:
    """The question in a type, plans that hold a request of it, families that are illegal or do not fit, how many were looked at."""
    put = q.but(weights_dtype=q.goal.dtypes[index])
    base = ground(put)
    whole = space(base.model, base.cluster, base.plan, base.engine)
    lost = list(reasons.illegal(base, whole))
    legal = whole.take((whole.codes == 0) & (whole.replicas > 0))
    if not len(legal):
        return base, legal, lost, len(whole)
    every = base.but(**sizes(legal))
    legal = replace(legal, kv_tokens=np.asarray(cache_tokens(every)))
    fits = (legal.kv_tokens >= q.requests.tokens + state_tokens(every)) & (state_places(every, legal.kv_tokens) >= 1)
    lost += reasons.too_large(put, legal, fits, index)
    return base, legal.take(fits), lost, len(whole) * q.goal.max_concurrency


def at_once(base: Question, plans: Space) -> Array:
    """Requests that the cache of a copy has room for, with their states."""
    every = base.but(**sizes(plans))
    return np.asarray(np.minimum(plans.kv_tokens // (cached(base) + state_tokens(every)), state_places(every, plans.kv_tokens)))


def search(base: Question, roomy: Space, index: int) -> Columns:
    """Every concurrency that can matter: a coarse grid of all plans, then all of the intervals that may hold a good plan's best.

    A request takes no less time when others join, but for a dip where a collective changes its algorithm, so between two
    grid points tokens/s is at most the next point's clients over this point's time. Intervals whose bound lies below the
    best plans', or that break a limit at both ends, are left out; ``DIP`` leaves room for the dips.
    """
    goal = base.goal
    held = np.clip(at_once(base, roomy), 1, goal.max_concurrency).astype(int)
    rows, load, last = grid_of(held)
    coarse = _columns_at(base, roomy.take(rows), load, index)
    if not goal.limited:
        rows, load, last, coarse = _up_to_knees(base, roomy, (rows, load, last, coarse))
    ahead = np.where(last, load, np.append(load[1:], 1))
    rate = coarse.tokens_per_s if goal.objective == "throughput" else coarse.tokens_per_s_per_gpu
    hopeful = over(base, coarse) <= DIP
    near = hopeful | (~last & np.append(hopeful[1:], False))
    bar = _listed(rows, np.where(over(base, coarse) <= 1, rate, -np.inf))
    open_ = np.flatnonzero(near & (ahead - load > 1) & (rate * ahead / load * DIP >= bar))
    gaps = (ahead - load - 1)[open_]
    inner = np.repeat(open_, gaps)
    step = np.arange(len(inner)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + 1
    between, clients = roomy.take(rows[inner]), load[inner] + step
    fine = _columns_at(base, between, clients, index)
    alone = load == 1
    apart = split(base, roomy, (coarse.sure_ttft_s / coarse.ttft_s)[alone], np.minimum(held, step_limits(base)[1]), index)
    return Columns.joined([coarse, fine, apart])


def _up_to_knees(base: Question, roomy: Space, grid: Grid) -> Grid:
    """The coarse grid up to the load of each plan at which tokens/s over the time of a request are most (Kleinrock's power): its
    knee, the plan's last.

    Found on the grid, then on ``PIECES`` of the two intervals around its best point. A plan's own: no limit moves it.
    """
    rows, load, last, coarse = grid
    before, after = np.where(load == 1, 1, np.append(1, load[:-1])), np.where(last, load, np.append(load[1:], 1))
    top = _most_powerful(rows, _power(base, coarse))
    loads = different(np.linspace(before[top], after[top], PIECES + 1).round().astype(int) + 0 * top, axis=0).T
    fine_rows = np.repeat(rows[top], loads.shape[1])
    fine = _columns_at(base, roomy.take(fine_rows), loads.ravel(), int(coarse.dtype[0]))
    best = _most_powerful(fine_rows, _power(base, fine))
    knees = loads.ravel()[best]
    below = np.flatnonzero(load < knees[rows])
    both = np.append(rows[below], rows[top]), np.append(load[below], knees)
    ranked = np.lexsort(both[::-1])
    flat, clients = (part[ranked] for part in both)
    return flat, clients, _ends(flat), Columns.joined([coarse.take(below), fine.take(best)]).take(ranked)


def _power(base: Question, priced: Columns) -> Array:
    """Clients over the square of a request's seconds: tokens/s over that time, but for a constant."""
    return np.asarray(priced.concurrency / priced.replicas / priced.dp / request_s(base, priced) ** 2)


def _most_powerful(rows: Array, power: Array) -> Array:
    """The first index of each plan's largest value; ``rows`` ascend."""
    ranked = np.lexsort((-power, rows))
    return np.asarray(ranked[np.unique(rows[ranked], return_index=True)[1]])


def grid_of(room: Array) -> tuple[Array, Array, Array]:
    """(plan, clients, whether it is the plan's last) of the coarse grid: powers of the root of two up to each plan's room."""
    steps = different(np.round(2 ** (np.arange(0, 41) / 2)).astype(int))
    rows, load = [], []
    for plan_, most in enumerate(room.tolist()):
        clients = np.append(steps[steps < most], most)
        rows.append(np.full(len(clients), plan_))
        load.append(clients)
    flat = np.concatenate(rows)
    return flat, np.concatenate(load), _ends(flat)


def _ends(rows: Array) -> Array:
    """Whether each is the last of its plan."""
    return np.append(rows[1:] != rows[:-1], True)


def _listed(rows: Array, score: Array) -> float:
    """The score that a plan must reach to be listed: the LISTED-th best plan's on the coarse grid."""
    best = np.full(int(rows.max()) + 1, -np.inf)
    np.maximum.at(best, rows, score)
    kept = np.sort(best[np.isfinite(best)])[::-1]
    return float(kept[min(LISTED, len(kept)) - 1]) if len(kept) else np.inf


def simulated(base: Question, s: Space, clients: Array) -> Simulation:
    """One copy of each plan under its load."""
    return serve(laid(base, **sizes(s), concurrency=clients * s.dp, kv_tokens=s.kv_tokens, disaggregated=False))


def sizes(s: Space) -> dict[str, Array]:
    return {axis: getattr(s, axis) for axis in SERVED}


def _columns_at(base: Question, grid: Space, load: Array, index: int) -> Columns:
    return columns(grid, load, simulated(base, grid, load), index)


def columns(grid: Space, load: Array, priced: Simulation, index: int) -> Columns:
    return Columns.of(
        len(grid),
        mode=0,
        dtype=index,
        **sizes(grid),
        replicas=grid.replicas,
        gpus=grid.group * grid.replicas,
        concurrency=load * grid.dp * grid.replicas,
        **figures(priced, priced.kv_tokens),
        tokens_per_s=np.asarray(priced.tokens_per_s) * grid.replicas,
        prefill_tp=0,
        prefill_replicas=0,
    )


def _ranked(answer: ServingPlans, every: Columns) -> ServingPlans:
    """The answer with the best of all points, the front of the good ones, and why others lost."""
    q, met = answer.question, over(answer.question, every) <= 1
    good = every.take(np.flatnonzero(met))
    plans, near = best_first(q, every)
    slow = reasons.too_slow(answer, every, met) if len(every) else ()
    answer = replace(answer, plans=plans, near=near, front=good.take(_front(good)), rejected=(*answer.rejected, *slow))
    return replace(answer, rejected=(*answer.rejected, *reasons.behind(answer))) if len(plans) else answer


def best_first(q: Question, every: Columns) -> tuple[Columns, Columns]:
    """The best point of each family that meets the limits, in the objective's order; without any, the nearest ones."""
    good = every.take(np.flatnonzero(over(q, every) <= 1))
    if len(good) or not len(every):
        return _first(good, order(q, good)), NO_SERVING
    return NO_SERVING, _first(every, [-over(q, every)]).take(slice(5))


def _first(c: Columns, keys: list[Array]) -> Columns:
    """The best row of each family by ``keys``, best family first."""
    if not len(c):
        return c
    ranked = np.lexsort([-key for key in reversed(keys)])
    _, first = np.unique(family(c)[ranked], return_index=True)
    return c.take(ranked[np.sort(first)])


def _front(c: Columns) -> Array:
    """Points that no other beats in both tokens/s/GPU and tokens/s/user."""
    user, gpu = c.tokens_per_s_per_user, c.tokens_per_s_per_gpu
    ranked = np.lexsort((-gpu, -user))
    best = np.maximum.accumulate(gpu[ranked])
    keep = np.ones(len(ranked), dtype=bool)
    keep[1:] = gpu[ranked][1:] > best[:-1]
    return np.asarray(ranked[keep])
