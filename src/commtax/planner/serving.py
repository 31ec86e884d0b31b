"""Serving plans: price the whole grid of plans x concurrency at once, keep what meets the limits, rank, and say why.

Splits of a cluster into workers for prompts and workers that decode are plans beside the others.
"""

from dataclasses import replace
from itertools import chain

import numpy as np

from commtax.arrays import different
from commtax.cost.serving import Load, Served, Steps, closed_loop, prompts_apart
from commtax.planner import reasons
from commtax.planner.columns import NO_SERVING, SERVED, Array, Columns, Rejected, ServingPlans, cached, family, order, over
from commtax.planner.space import Space, beside, space
from commtax.question import EVEN, Goal, Question
from commtax.spec import Number
from commtax.statement import Refusal
from commtax.verbs import checking
from commtax.verbs.asking import settled
from commtax.verbs.checking import positive
from commtax.verbs.confidence import Estimate
from commtax.verbs.fitting import cache_tokens, state_places, state_tokens, step_limits
from commtax.verbs.serving import Simulation, decoding, moved_s, serve, step_bill

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
LISTED = 20
"""Plans whose best concurrency is found exactly; those behind them are known to be behind."""
PIECES = 16
"""Of two neighbouring intervals of the coarse grid, in which a knee is looked for."""
DIP = 1.05
"""A request may take up to this much less time when one more joins: steps are not smooth where collectives switch."""
COPIES = np.r_[1:65, (64 * 2 ** (np.arange(1, 129) / 8)).astype(int)]
"""Decode workers that are tried: all up to 64, then eight to a doubling. The same on every cluster, so that more GPUs only add."""
BUSY = 0.9  # prompts that are offered to a worker, were there no waiting and moving: clients beyond only wait
SAME = 1e-3  # prompt workers that shorten requests by less than this are left out
SMALL = 32  # GPUs of a split that is tried for the price of its tokens: larger ones have the same shares of both kinds


def searched(put: Question) -> ServingPlans:
    """The plans of a question, best first."""
    _check(put)
    q = replace(settled(put), plan=put.plan)
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
    if not 0 <= goal.usd_per_gpu_hour < 1e6:
        raise Refusal(f"price={goal.usd_per_gpu_hour}: dollars a GPU-hour, at least 0", "price")


def _points(q: Question, index: int) -> tuple[Columns, list[Rejected], int]:
    """Every (plan, concurrency) that fits, priced; families that are illegal or do not fit."""
    base, roomy, lost, count = having_room(q, index)
    if not len(roomy):
        return NO_SERVING, lost, count
    if q.goal.objective == "gpus":  # copies add throughput, not an answer
        roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
    return search(base, roomy, index), lost, count


def having_room(q: Question, index: int) -> tuple[Question, Space, list[Rejected], int]:
    """The question in a type, plans that hold a request of it, families that are illegal or do not fit, how many were looked at."""
    put = q.but(weights_dtype=q.goal.dtypes[index])
    base = settled(put)
    whole = space(base.model, base.cluster, base.plan, base.engine)
    lost = list(reasons.illegal(base, whole))
    legal = whole.take((whole.codes == 0) & (whole.replicas > 0))
    if not len(legal):
        return base, legal, lost, len(whole)
    laid = base.but(**sizes(legal))
    legal = replace(legal, kv_tokens=np.asarray(cache_tokens(laid)))
    fits = (legal.kv_tokens >= q.requests.tokens + state_tokens(laid)) & (state_places(laid, legal.kv_tokens) >= 1)
    lost += reasons.too_large(put, legal, fits, index)
    return base, legal.take(fits), lost, len(whole) * q.goal.max_concurrency


def at_once(base: Question, plans: Space) -> Array:
    """Requests that the cache of a copy has room for, with their states."""
    laid = base.but(**sizes(plans))
    return np.asarray(np.minimum(plans.kv_tokens // (cached(base) + state_tokens(laid)), state_places(laid, plans.kv_tokens)))


def search(base: Question, roomy: Space, index: int) -> Columns:
    """Every concurrency that can matter: a coarse grid of all plans, then all of the intervals that may hold a good plan's best.

    A request takes no less time when others join, but for a dip where a collective changes its algorithm, so between two
    grid points tokens/s is at most the next point's clients over this point's time. Intervals whose bound lies below the
    best plans', or that break a limit at both ends, are left out; ``DIP`` leaves room for the dips.
    """
    goal = base.goal
    held = np.clip(at_once(base, roomy), 1, goal.max_concurrency).astype(int)
    rows, load, last = _coarse(held if goal.limited else knees(base, roomy, held))
    priced = simulated(base, roomy.take(rows), load)
    coarse = columns(roomy.take(rows), load, priced, index)
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
    fine = columns(between, clients, simulated(base, between, clients), index)
    alone = load == 1
    prompts = np.asarray(priced.steps.prompt_s * priced.steps.chunks)[alone], (coarse.sure_ttft_s / coarse.ttft_s)[alone]
    apart = split(base, roomy, prompts, np.minimum(held, step_limits(base)[1]), index)
    return Columns.joined([coarse, fine, apart])


def knees(base: Question, roomy: Space, room: Array) -> Array:
    """The load of each plan at which tokens/s over the time of a request are most (Kleinrock's power): its knee.

    Found on the coarse grid, then on ``PIECES`` of the two intervals around its best point. A plan's own: no limit moves it.
    """
    rows, load, last = _coarse(room)
    before, after = np.where(load == 1, 1, np.append(1, load[:-1])), np.where(last, load, np.append(load[1:], 1))
    top = _most_powerful(rows, _power(base, roomy.take(rows), load))
    loads = different(np.linspace(before[top], after[top], PIECES + 1).round().astype(int) + 0 * top, axis=0).T
    fine_rows = np.repeat(rows[top], loads.shape[1])
    best = _most_powerful(fine_rows, _power(base, roomy.take(fine_rows), loads.ravel()))
    return np.asarray(loads.ravel()[best])


def _power(base: Question, plans: Space, load: Array) -> Array:
    """Clients over the square of a request's seconds: tokens/s over that time, but for a constant."""
    return np.asarray(load / np.asarray(simulated(base, plans, load).e2e_s) ** 2)


def _most_powerful(rows: Array, power: Array) -> Array:
    """The first index of each plan's largest value; ``rows`` ascend."""
    ranked = np.lexsort((-power, rows))
    return np.asarray(ranked[np.unique(rows[ranked], return_index=True)[1]])


def _coarse(room: Array) -> tuple[Array, Array, Array]:
    """(plan, clients, whether it is the plan's last) of the coarse grid: powers of the root of two up to each plan's room."""
    steps = different(np.round(2 ** (np.arange(0, 41) / 2)).astype(int))
    rows, load = [], []
    for plan_, most in enumerate(room.tolist()):
        clients = np.append(steps[steps < most], most)
        rows.append(np.full(len(clients), plan_))
        load.append(clients)
    flat = np.concatenate(rows)
    return flat, np.concatenate(load), np.append(flat[1:] != flat[:-1], True)


def _listed(rows: Array, score: Array) -> float:
    """The score that a plan must reach to be listed: the LISTED-th best plan's on the coarse grid."""
    best = np.full(int(rows.max()) + 1, -np.inf)
    np.maximum.at(best, rows, score)
    kept = np.sort(best[np.isfinite(best)])[::-1]
    return float(kept[min(LISTED, len(kept)) - 1]) if len(kept) else np.inf


def simulated(base: Question, s: Space, clients: Array) -> Simulation:
    """One copy of each plan under its load."""
    return serve(base.but(**sizes(s), concurrency=clients * s.dp, kv_tokens=s.kv_tokens, disaggregated=False))


def sizes(s: Space) -> dict[str, Array]:
    return {axis: getattr(s, axis) for axis in SERVED}


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


def figures(s: Simulation, held: Number) -> dict[str, Array]:
    """What a simulation tells of each load, with ``held`` tokens of cache a copy."""
    headroom = 1 - s.running * (cached(s.question) + s.state_tokens) / np.asarray(held)
    times = {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "sure_ttft_s": surely(s, "ttft_s"), "sure_tpot_s": surely(s, "tpot_s")}
    return {"running": s.running, **times, "kv_headroom": headroom}


def surely(s: Simulation, name: str) -> Number:
    """A time as long as it is with the confidence that is wanted, where it has a limit; ranges are priced for those alone."""
    goal, value = s.question.goal, getattr(s, name)
    if goal.confidence == EVEN or getattr(goal, name) == np.inf:
        return value
    return Estimate(value, *s.range_of(name)).sure(goal.confidence)


def split(base: Question, roomy: Space, prompts: tuple[Array, Array], room: Array, index: int) -> Columns:
    """Prompt workers and decode copies of one tp degree each, inside a fast domain, with no more workers than help.

    Priced as ``commtax simulate --disaggregated`` prices one of them; steps are priced once for each degree. ``prompts``: the
    seconds of one, and how many times as long it takes with the confidence that is wanted. A single output token leaves nothing
    to decode.
    """
    wanted = base.requests
    if wanted.output_len == 1 or not wanted.disaggregated:
        return NO_SERVING
    plain = np.flatnonzero((roomy.pp == 1) & (roomy.dp == 1) & (roomy.ep == 1) & (roomy.tp <= base.cluster.domain))
    parts: list[Columns] = []
    for i in plain:
        seqs, kv = np.arange(1, room[i] + 1), float(roomy.kv_tokens[i])
        load = Load(seqs, wanted.input_len, wanted.output_len, spread=wanted.spread)
        one = base.but(tp=int(roomy.tp[i]))
        decode = step_bill(one, decoding(seqs, load))
        steps = Steps(decode.step_s, 0.0)
        quiet = closed_loop(load, steps, seqs, 0.0 * seqs, base.engine)
        longer = surely(Simulation(one, seqs, seqs, steps, kv, quiet, (decode, decode)), "tpot_s") / quiet.tpot_s
        for j in plain:
            degrees, prompt, surer = (int(roomy.tp[i]), int(roomy.tp[j])), float(prompts[0][j]), (prompts[1][j], longer)
            for split in _splits(base, *degrees, prompt, load, quiet):
                parts.append(_rows(base, *degrees, *split, prompt, load, quiet, surer, kv, index))
    return Columns.joined(parts)


def _splits(base: Question, tp: int, ahead: int, prompt_s: float, load: Load, quiet: Served) -> list[tuple[Array, Array]]:
    """(decode copies, prompt workers) of each load, as columns of one row a split.

    For tokens a GPU or for fewest GPUs every small split counts. Else more prompt workers are never worse, as long as they
    stay in the copies' own domain or have left it anyway: all that fit, and help.
    """
    cluster = base.cluster
    if base.goal.objective in ("cost", "gpus"):
        most = min(cluster.num_gpus, max(SMALL, 4 * max(tp, ahead)))
        pairs = np.mgrid[1 : most // tp + 1, 1 : most // ahead + 1].reshape(2, -1)
        copies, workers = pairs[:, pairs[0] * tp + pairs[1] * ahead <= most]
        fits = beside(copies, tp, ahead, cluster) >= workers
        return [(copies[fits, None], workers[fits, None])] if fits.any() else []
    splits = []
    one = replace(cluster, num_hosts=max(1, cluster.domain // cluster.gpus_per_host))
    for place in (cluster, one) if cluster.num_gpus > cluster.domain else (cluster,):
        fit = beside(COPIES, tp, ahead, place)
        copies = COPIES[fit > 0, None]
        if len(copies):
            splits.append((copies, np.minimum(fit[fit > 0, None], _enough(copies, prompt_s, load, quiet))))
    return splits


def _enough(copies: Array, prompt_s: float, load: Load, quiet: Served) -> Array:
    """The fewest prompt workers from which on further ones shorten no request by more than ``SAME`` of it.

    ``prompts_apart``'s queue solved for the workers at which a prompt waits that share of all else.
    """
    rest = _alone_s(prompt_s, load, quiet)
    others = 2 * SAME * (1 + SAME) * rest**2 / (prompt_s + 2 * SAME * rest)  # seconds of others' prompts on a worker
    return np.asarray(np.maximum(1, np.ceil((copies * load.concurrency - 1) * prompt_s / others))).astype(int)


def _alone_s(prompt_s: float, load: Load, quiet: Served) -> Array:
    """Seconds of a request whose prompt never waits and whose cache is there at once."""
    return np.asarray(quiet.ttft_s + (load.output_len - 1) * quiet.tpot_s + prompt_s)


def _rows(
    base: Question, tp: int, ahead: int, copies: Array, workers: Array, prompt_s: float, load: Load, quiet: Served,
    surer: tuple[float, Number], kv: float, index: int,
) -> Columns:  # fmt: skip
    """The loads of each split that may be listed, or drawn on the front."""
    goal, seqs, gpus = base.goal, np.asarray(load.concurrency), copies * tp + workers * ahead
    moved = moved_s(base, tp, ahead, load.input_len, gpus)
    served = prompts_apart(load, quiet, prompt_s, moved, seqs * copies, workers)
    request_s = served.ttft_s + (load.output_len - 1) * served.tpot_s
    requests_per_s = seqs * copies / request_s
    alone_s = _alone_s(prompt_s, load, quiet)
    last = seqs[-1 if goal.limited else np.argmax(seqs / alone_s**2)]  # clients come up to a copy's knee, but for limits
    open_ = (seqs * copies / alone_s * prompt_s <= BUSY * workers) & (seqs <= last)
    sure_ttft_s, sure_tpot_s = served.ttft_s * surer[0], served.tpot_s * surer[1]
    most = np.maximum(sure_ttft_s / goal.ttft_s, sure_tpot_s / goal.tpot_s)
    kept = np.nonzero(_kept(goal, most, request_s, requests_per_s, gpus, open_))
    columns = {"replicas": copies, "gpus": gpus, "prefill_replicas": workers, "concurrency": seqs * copies, "running": seqs}
    columns |= {"ttft_s": served.ttft_s, "tpot_s": served.tpot_s, "tokens_per_s": requests_per_s * load.output_len}
    columns |= {"sure_ttft_s": sure_ttft_s, "sure_tpot_s": sure_tpot_s, "kv_headroom": 1 - seqs * cached(base) / kv}
    flat = {name: np.broadcast_to(column, requests_per_s.shape)[kept] for name, column in columns.items()}
    return Columns.of(len(kept[0]), mode=1, dtype=index, tp=tp, pp=1, dp=1, ep=1, prefill_tp=ahead, **flat)


def _kept(goal: Goal, most: Array, request_s: Array, requests_per_s: Array, gpus: Array, open_: Array) -> Array:
    """Of the loads (columns) of splits (rows) that are open, whose times are at ``most`` so many of their limits: the best of each
    split that meets these, or the nearest, and of each load, which alone decides the tokens/s of a user, the split with most for
    each GPU."""
    over = np.where(open_, most, np.inf)
    good = over <= 1
    value = {"throughput": requests_per_s, "latency": 1 / request_s}.get(goal.objective, requests_per_s / gpus)
    rows, loads = np.arange(len(over)), np.arange(over.shape[1])
    kept = np.zeros(over.shape, dtype=bool)
    kept[rows, np.where(good.any(1), np.where(good, value, -np.inf).argmax(1), over.argmin(1))] = True
    kept[np.where(good, requests_per_s / gpus, -np.inf).argmax(0), loads] = True
    return np.asarray(kept & open_ & (good | ~good.any(1, keepdims=True)))


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
