"""Serving plans: price the whole grid of plans x concurrency at once, keep what meets the limits, rank, and say why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from commtax.api.fitting import cache_tokens
from commtax.api.serving import RANGE, Simulation, check_spread, simulate
from commtax.api.setup import Setup, positive, setup
from commtax.cost.serving import SPREAD
from commtax.planner import disaggregated as apart
from commtax.planner import reasons
from commtax.planner.columns import Columns, Goal, Rejected, Run, empty, family, joined, order
from commtax.planner.space import Array, Space, space
from commtax.spec import Cluster, Engine, Model, Profile
from commtax.statement import Refusal

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
MAX_CONCURRENCY = 1024
LISTED = 20
"""Plans whose best concurrency is found exactly; those behind them are known to be behind."""
PIECES = 16
"""Of two neighbouring intervals of the coarse grid, in which a knee is looked for."""
DIP = 1.05
"""A request may take up to this much less time when one more joins: steps are not smooth where collectives switch."""


@dataclass(frozen=True, slots=True)
class ServingPlans:
    """The answer: good plans best first, rejected families, the nearest plans where none is good, the Pareto front."""

    model: Model
    cluster: Cluster
    engine: Engine
    goal: Goal
    dtypes: tuple[str, ...]
    usd_per_gpu_hour: float
    candidates: int
    plans: Columns
    near: Columns
    front: Columns
    rejected: tuple[Rejected, ...]
    run: Run = field(default_factory=Run)
    max_concurrency: int = MAX_CONCURRENCY  # clients a copy

    def usd_per_million_tokens(self, rows: Columns) -> Array:
        return np.asarray(self.usd_per_gpu_hour * rows.gpus / 3600 / rows.tokens_per_s * 1e6)

    def setup(self, rows: Columns, i: int) -> Setup:
        """Row ``i`` as a plan of one copy."""
        sizes: dict[str, Any] = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
        sizes |= {"dtype": self.dtypes[int(rows.dtype[i])], "kv_dtype": self.run.kv_dtype, "profile": self.run.profile}
        return setup(self.model, self.cluster, engine=self.engine, **sizes)

    def longest(self, rows: Columns, i: int) -> int:
        """Tokens of the longest request that row ``i`` should take: 0, the model's own length, where a copy's cache holds it.

        Else what requests of varied lengths may need, in whole 256s, as far as the cache holds it.
        """
        _, tokens, seqs = start(self, int(rows.dtype[i]))
        asked = self.setup(rows, i)
        degrees = {int(asked.plan.tp), int(rows.prefill_tp[i]) or int(asked.plan.tp)}
        kinds = [replace(asked, plan=replace(asked.plan, tp=tp)) for tp in degrees]
        kv = int(min(float(cache_tokens(kind, tokens, seqs, self.run.gpu_memory_utilization)) for kind in kinds))
        if kv >= self.model.max_len:
            return 0
        wanted = math.ceil((1 + self.goal.spread) * (self.goal.input_len + self.goal.output_len) / 256) * 256
        return max(self.goal.input_len + self.goal.output_len, min(wanted, kv, self.model.max_len))

    def words(self, rows: Columns, i: int) -> str:
        """GPUs reconciled: ``16 GPUs = 4 replicas x TP 4``."""
        return " ".join(_words(self, rows, i))

    def simulation(self, rows: Columns, i: int) -> Simulation:
        """Row ``i`` as ``simulate`` has it: one copy, or all workers of a split."""
        apart, copies, run = bool(rows.mode[i]), int(rows.replicas[i]), self.run
        words: dict[str, Any] = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
        if apart:
            words |= {"disaggregated": True, "decode_workers": copies, "prefill_tp": int(rows.prefill_tp[i])}
            words["prefill_workers"] = int(rows.prefill_replicas[i])
        return simulate(
            self.model,
            self.cluster,
            engine=self.engine,
            dtype=self.dtypes[int(rows.dtype[i])],
            concurrency=int(rows.concurrency[i]) // (1 if apart else copies),
            input_len=self.goal.input_len,
            output_len=self.goal.output_len,
            spread=self.goal.spread,
            **{**run.words, **words},
        )

    def range_of(self, rows: Columns, i: int, name: str = "tpot_s") -> tuple[float, float]:
        """The 80 % range of a figure of row ``i``; priced for the rows that are shown alone."""
        value, factor = float(getattr(rows, name)[i]), math.exp(RANGE * float(self.simulation(rows, i).sigma_of(name)))
        return value / factor, value * factor

    def explain(self, i: int) -> list[str]:
        """Why plan ``i`` stands where it stands."""
        from commtax.planner.explain import explain

        return explain(self, i)

    def changes(self) -> list[str]:
        """Where no plan is good: what would have to change."""
        from commtax.planner.explain import changes

        return changes(self)

    def to_frame(self) -> Any:
        """The good plans as a pandas table, where pandas is there."""
        try:
            import pandas as pd
        except ImportError:
            raise Refusal("to_frame: needs pandas (pip install pandas)") from None
        names = [f.name for f in fields(self.plans)] + ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]
        return pd.DataFrame({name: getattr(self.plans, name) for name in names})


def plan(
    model: str | Model,
    cluster: str | Cluster,
    *,
    input_len: int = 512,
    output_len: int = 128,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    objective: str = "throughput",
    spread: float = SPREAD,
    disaggregated: bool = True,
    engine: str | Engine = "",
    dtypes: tuple[str, ...] = ("",),
    max_concurrency: int = MAX_CONCURRENCY,
    usd_per_gpu_hour: float | None = None,
    profile: str | Profile | None = None,
    **run: Any,
) -> ServingPlans:
    """Price all legal plans at every concurrency up to ``max_concurrency`` a copy and rank those that fit and meet the limits.

    ``disaggregated=False`` leaves out plans with workers of their own for prompts.
    ``run`` is what a launch command says for all of them: kv_dtype, max_num_batched_tokens, max_num_seqs,
    gpu_memory_utilization. A ``profile``'s constants are laid over the catalogue's.
    """
    goal = replace(_goal(input_len, output_len, ttft_s, tpot_s, objective, spread), disaggregated=disaggregated)
    positive(max_concurrency, "max_concurrency")
    dtypes = tuple(dict.fromkeys(dtypes))
    base = setup(model, cluster, engine=engine, dtype=dtypes[0], kv_dtype=run.get("kv_dtype", ""), profile=profile)
    known, place, runs = base.model, base.cluster, base.engine
    price = place.chip.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    if not 0 <= price < 1e6:
        raise Refusal(f"price={price}: dollars a GPU-hour, at least 0", "price")
    if goal.input_len + goal.output_len > known.max_len:
        longest = f"the {known.max_len:,} positions of {known.key}"
        raise Refusal(f"input_len + output_len = {goal.input_len + goal.output_len:,}: more than {longest}", "input_len")
    none = empty()
    how = Run(profile=base.profile, **run)
    question = ServingPlans(known, place, runs, goal, dtypes, price, 0, none, none, none, (), how, int(max_concurrency))
    points, rejected, candidates = [], [], 0
    for index in range(len(dtypes)):
        found, lost, count = _points(question, index)
        points.append(found)
        rejected += lost
        candidates += count
    return _ranked(replace(question, candidates=candidates, rejected=tuple(dict.fromkeys(rejected))), joined(points))


def _goal(input_len: int, output_len: int, ttft_s: float, tpot_s: float, objective: str, spread: float) -> Goal:
    for value, name in ((input_len, "input_len"), (output_len, "output_len")):
        positive(value, name)
    for limit, name in ((ttft_s, "ttft_s"), (tpot_s, "tpot_s")):
        if not limit > 0:
            raise Refusal(f"{name}={limit}: a time above 0 is needed", name)
    if output_len == 1 and tpot_s < math.inf:
        raise Refusal("tpot_s: with one output token there is no time between tokens; limit ttft_s", "tpot_s")
    if objective not in OBJECTIVES:
        raise Refusal(f"objective '{objective}': one of {', '.join(OBJECTIVES)}", "objective")
    return Goal(int(input_len), int(output_len), float(ttft_s), float(tpot_s), objective, float(check_spread(spread)))


def start(question: ServingPlans, index: int) -> tuple[Setup, int, int]:
    """The plan of one GPU in a type, and the engine's limits: tokens and requests of a step."""
    run = question.run
    words: dict[str, Any] = {"dtype": question.dtypes[index], "kv_dtype": run.kv_dtype, "profile": run.profile}
    engine = question.engine
    tokens = engine.serves.max_batched_tokens if run.max_num_batched_tokens is None else run.max_num_batched_tokens
    seqs = engine.serves.max_seqs if run.max_num_seqs is None else run.max_num_seqs
    for value, name in ((tokens, "max_num_batched_tokens"), (seqs, "max_num_seqs")):
        positive(value, name)
    return setup(question.model, question.cluster, engine=question.engine, **words), tokens, seqs


def _points(question: ServingPlans, index: int) -> tuple[Columns, list[Rejected], int]:
    """Every (plan, concurrency) that fits, priced; families that are illegal or do not fit."""
    base, tokens, seqs = start(question, index)
    goal, most = question.goal, question.max_concurrency
    whole = space(base.model, base.cluster, base.plan, base.engine)
    lost = list(reasons.illegal(base, whole))
    legal = whole.only((whole.codes == 0) & (whole.replicas > 0))
    if not len(legal):
        return empty(), lost, len(whole)
    sizes: dict[str, Any] = {"tp": legal.tp, "pp": legal.pp, "dp": legal.dp, "ep": legal.ep}
    asked = replace(base, plan=replace(base.plan, **sizes))
    kv = np.asarray(cache_tokens(asked, tokens, seqs, question.run.gpu_memory_utilization))
    fits = kv >= goal.input_len + goal.output_len
    lost += reasons.too_large(question, legal, fits, index)
    roomy, kv = legal.only(fits), kv[fits]
    if not len(roomy):
        return empty(), lost, len(whole) * most
    if goal.objective == "gpus":  # copies add throughput, not an answer
        roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
    return search(question, base, roomy, kv, index), lost, len(whole) * most


def search(question: ServingPlans, base: Setup, roomy: Space, kv: Array, index: int) -> Columns:
    """Every concurrency that can matter: a coarse grid of all plans, then all of the intervals that may hold a good plan's best.

    A request takes no less time when others join, but for a dip where a collective changes its algorithm, so between two
    grid points tokens/s is at most the next point's clients over this point's time. Intervals whose bound lies below the
    best plans', or that break a limit at both ends, are left out; ``DIP`` leaves room for the dips.
    """
    goal = question.goal
    held = np.clip(kv // _kept(goal, base.engine), 1, question.max_concurrency).astype(int)
    room = held if goal.limited else knees(question, base, roomy, kv, held)
    rows, load, last = _coarse(room)
    priced = simulated(question, base, roomy.only(rows), load, kv[rows])
    coarse = columns(roomy.only(rows), load, priced, goal, index)
    ahead = np.where(last, load, np.append(load[1:], 1))
    rate = coarse.tokens_per_s if goal.objective == "throughput" else coarse.tokens_per_s_per_gpu
    good = (coarse.ttft_s <= goal.ttft_s) & (coarse.tpot_s <= goal.tpot_s)
    hopeful = (coarse.ttft_s <= goal.ttft_s * DIP) & (coarse.tpot_s <= goal.tpot_s * DIP)
    near = hopeful | (~last & np.append(hopeful[1:], False))
    bar = _listed(rows, np.where(good, rate, -np.inf))
    open_ = np.flatnonzero(near & (ahead - load > 1) & (rate * ahead / load * DIP >= bar))
    gaps = (ahead - load - 1)[open_]
    inner = np.repeat(open_, gaps)
    step = np.arange(len(inner)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + 1
    fine_rows, fine_load = rows[inner], load[inner] + step
    more = simulated(question, base, roomy.only(fine_rows), fine_load, kv[fine_rows])
    fine = columns(roomy.only(fine_rows), fine_load, more, goal, index)
    first = load == 1
    prompt_s = np.asarray(priced.prompt_s * priced.chunks)[first]
    split = apart.columns(base, roomy, prompt_s, kv, np.minimum(held, start(question, index)[2]), goal, index)
    return joined([coarse, fine, split])


def knees(question: ServingPlans, base: Setup, roomy: Space, kv: Array, room: Array) -> Array:
    """The load of each plan at which tokens/s over the time of a request are most (Kleinrock's power): its knee.

    Found on the coarse grid, then on ``PIECES`` of the two intervals around its best point. A plan's own: no limit moves it.
    """
    rows, load, last = _coarse(room)
    before, after = np.where(load == 1, 1, np.append(1, load[:-1])), np.where(last, load, np.append(load[1:], 1))
    top = _most_powerful(rows, _power(question, base, roomy, kv, rows, load))
    loads = np.unique(np.linspace(before[top], after[top], PIECES + 1).round().astype(int) + 0 * top, axis=0).T
    fine_rows = np.repeat(rows[top], loads.shape[1])
    best = _most_powerful(fine_rows, _power(question, base, roomy, kv, fine_rows, loads.ravel()))
    return np.asarray(loads.ravel()[best])


def _power(question: ServingPlans, base: Setup, roomy: Space, kv: Array, rows: Array, load: Array) -> Array:
    """Clients over the square of a request's seconds: tokens/s over that time, but for a constant."""
    priced = simulated(question, base, roomy.only(rows), load, kv[rows])
    return np.asarray(load / np.asarray(priced.e2e_s) ** 2)


def _most_powerful(rows: Array, power: Array) -> Array:
    """The first index of each plan's largest value; ``rows`` ascend."""
    ranked = np.lexsort((-power, rows))
    return np.asarray(ranked[np.unique(rows[ranked], return_index=True)[1]])


def _coarse(room: Array) -> tuple[Array, Array, Array]:
    """(plan, clients, whether it is the plan's last) of the coarse grid: powers of the root of two up to each plan's room."""
    steps = np.unique(np.round(2 ** (np.arange(0, 41) / 2)).astype(int))
    rows, load = [], []
    for plan_, most in enumerate(room.tolist()):
        mine = np.append(steps[steps < most], most)
        rows.append(np.full(len(mine), plan_))
        load.append(mine)
    flat, clients = np.concatenate(rows), np.concatenate(load)
    return flat, clients, np.append(flat[1:] != flat[:-1], True)


def _listed(rows: Array, score: Array) -> float:
    """The score that a plan must reach to be listed: the LISTED-th best plan's on the coarse grid."""
    best = np.full(int(rows.max()) + 1, -np.inf)
    np.maximum.at(best, rows, score)
    kept = np.sort(best[np.isfinite(best)])[::-1]
    return float(kept[min(LISTED, len(kept)) - 1]) if len(kept) else np.inf


def simulated(question: ServingPlans, base: Setup, s: Space, concurrency: Array, kv: Array) -> Simulation:
    run = question.run
    return simulate(
        base.model,
        base.cluster,
        engine=base.engine,
        dtype=base.plan.weights_dtype,
        kv_dtype=run.kv_dtype,
        profile=run.profile,
        max_num_batched_tokens=run.max_num_batched_tokens,
        max_num_seqs=run.max_num_seqs,
        tp=s.tp,
        pp=s.pp,
        dp=s.dp,
        ep=s.ep,
        concurrency=concurrency * s.dp,
        input_len=question.goal.input_len,
        output_len=question.goal.output_len,
        spread=question.goal.spread,
        kv_tokens=kv,
    )


def columns(grid: Space, load: Array, priced: Simulation, goal: Goal, index: int) -> Columns:
    n = np.ones(len(grid), dtype=int)
    running = np.asarray(priced.running) * n
    held = running * _kept(goal, priced.setup.engine)
    return Columns(
        mode=0 * n,
        dtype=index * n,
        tp=grid.tp,
        pp=grid.pp,
        dp=grid.dp,
        ep=grid.ep,
        replicas=grid.replicas,
        gpus=grid.group * grid.replicas,
        concurrency=load * grid.dp * grid.replicas,
        running=running,
        ttft_s=np.asarray(priced.ttft_s) * n,
        tpot_s=np.asarray(priced.tpot_s) * n,
        tokens_per_s=np.asarray(priced.tokens_per_s) * grid.replicas,
        kv_headroom=1 - held / np.asarray(priced.kv_tokens),
        prefill_tp=0 * n,
        prefill_replicas=0 * n,
    )


def _kept(goal: Goal, engine: Engine) -> float:
    """Cached tokens of a request on average: all it may need where the engine reserves them, else half of its output."""
    return goal.input_len + goal.output_len * (1.0 if engine.serves.kv_reserved else 0.5)


def _ranked(answer: ServingPlans, every: Columns) -> ServingPlans:
    """The best point of each family that meets the limits, in the objective's order; without any, the nearest ones."""
    goal = answer.goal
    good = np.flatnonzero((every.ttft_s <= goal.ttft_s) & (every.tpot_s <= goal.tpot_s))
    plans = _best(every.take(good), order(goal, every.take(good)))
    near = empty()
    if len(every) and not len(plans):
        closest = _best(every, [-np.maximum(every.ttft_s / goal.ttft_s, every.tpot_s / goal.tpot_s)])
        near = closest.take(np.arange(min(5, len(closest))))
    front = every.take(good[_front(every.take(good))])
    slow = [] if not len(every) else list(reasons.too_slow(answer, every, np.isin(np.arange(len(every)), good)))
    found = replace(answer, plans=plans, near=near, front=front, rejected=(*answer.rejected, *slow))
    return replace(found, rejected=(*found.rejected, *reasons.behind(found))) if len(plans) else found


def _best(c: Columns, keys: list[Array]) -> Columns:
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


def _words(answer: ServingPlans, rows: Columns, i: int) -> Iterator[str]:
    copies, gpus = int(rows.replicas[i]), int(rows.gpus[i])
    group = [f"{int(rows.pp[i])} stages"] if rows.pp[i] > 1 else []
    group += [f"attention DP {int(rows.dp[i])}"] if rows.dp[i] > 1 else []
    group += [f"TP {int(rows.tp[i])}"]
    one = " x ".join(group) + (f", experts over {int(rows.ep[i])}" if rows.ep[i] > 1 else "")
    decode = f"{copies} replica{'s' * (copies > 1)} x {one}" if copies > 1 else one
    if int(rows.mode[i]):
        pre, tp = int(rows.prefill_replicas[i]), int(rows.prefill_tp[i])
        yield f"{gpus:,} GPUs = {pre} x TP {tp} for prompts + {decode} to decode"
    else:
        yield f"{gpus:,} GPU{'s' * (gpus > 1)} = {decode}"
    idle = answer.cluster.num_gpus - gpus
    if idle:
        yield f"({idle:,} of {answer.cluster.num_gpus:,} GPUs idle)"
