"""Serving plans: price the whole grid of plans x concurrency at once, keep what meets the limits, rank, and say why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from commtax import catalog
from commtax.api.fitting import cache_tokens, fit
from commtax.api.serving import Simulation, simulate
from commtax.api.setup import Setup, positive, setup
from commtax.cost import memory
from commtax.cost.legality import RULES, Case
from commtax.planner import disaggregated
from commtax.planner.columns import Columns, Goal, Rejected, empty, joined, label
from commtax.planner.space import Array, Space, space
from commtax.spec import Cluster, Engine, Model

OBJECTIVES = ("throughput", "latency", "cost", "gpus")
WORKLOADS = {"chat": (1024, 256), "rag": (8192, 512), "code": (2048, 128), "batch": (1024, 1024)}
"""Input and output tokens of usual workloads."""
MAX_CONCURRENCY = 1024
LISTED = 20
"""Plans whose best concurrency is found exactly; those behind them are known to be behind."""


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

    def usd_per_million_tokens(self, rows: Columns) -> Array:
        return np.asarray(self.usd_per_gpu_hour * rows.gpus / 3600 / rows.tokens_per_s * 1e6)

    def setup(self, rows: Columns, i: int) -> Setup:
        """Row ``i`` as a plan of one copy."""
        sizes: dict[str, Any] = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
        return setup(self.model, self.cluster, engine=self.engine, dtype=self.dtypes[int(rows.dtype[i])], **sizes)

    def words(self, rows: Columns, i: int) -> str:
        """GPUs reconciled: ``16 GPUs = 4 replicas x TP 4``."""
        return " ".join(_words(self, rows, i))

    def range_of(self, rows: Columns, i: int, name: str = "tpot_s") -> tuple[float, float]:
        """The 80 % range of a figure of row ``i``, from the errors on published runs that were not fitted."""
        kind = "_moe" if self.model.experts else ""
        base = "ttft" if name == "ttft_s" else "tpot"
        factor = math.exp(1.2816 * getattr(self.engine, f"sigma_{base}{kind}"))
        value = float(getattr(rows, name)[i])
        return value / factor, value * factor

    def explain(self, i: int) -> list[str]:
        """Why plan ``i`` stands where it stands."""
        from commtax.planner.explain import explain

        return explain(self, i)

    def to_frame(self) -> Any:
        """The good plans as a pandas table, where pandas is there."""
        try:
            import pandas as pd
        except ImportError:
            raise ValueError("to_frame: needs pandas (pip install pandas)") from None
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
    engine: str | Engine = "vllm",
    dtypes: tuple[str, ...] = ("",),
    max_concurrency: int = MAX_CONCURRENCY,
    usd_per_gpu_hour: float | None = None,
) -> ServingPlans:
    """Price all legal plans at every concurrency up to ``max_concurrency`` a copy and rank those that fit and meet the limits."""
    goal = _goal(input_len, output_len, ttft_s, tpot_s, objective)
    positive(max_concurrency, "max_concurrency")
    known = catalog.model(model) if isinstance(model, str) else model
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    runs = catalog.engine(engine) if isinstance(engine, str) else engine
    price = place.chip.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    if not 0 <= price < 1e6:
        raise ValueError(f"price={price}: dollars a GPU-hour, at least 0")
    if goal.input_len + goal.output_len > known.max_len:
        longest = f"the {known.max_len:,} positions of {known.key}"
        raise ValueError(f"input_len + output_len = {goal.input_len + goal.output_len:,}: more than {longest}")
    points, rejected, candidates = [], [], 0
    dtypes = tuple(dict.fromkeys(dtypes))
    for index, dtype in enumerate(dtypes):
        found, lost, count = _points(known, place, runs, dtype, goal, max_concurrency, index)
        points.append(found)
        rejected += lost
        candidates += count
    every = joined(points)
    answer = ServingPlans(known, place, runs, goal, dtypes, price, candidates, every, every, every, tuple(rejected))
    return _ranked(answer, every)


def _goal(input_len: int, output_len: int, ttft_s: float, tpot_s: float, objective: str) -> Goal:
    for value, name in ((input_len, "input_len"), (output_len, "output_len")):
        positive(value, name)
    for limit, name in ((ttft_s, "ttft_s"), (tpot_s, "tpot_s")):
        if not limit > 0:
            raise ValueError(f"{name}={limit}: a time above 0 is needed")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective '{objective}': one of {', '.join(OBJECTIVES)}")
    return Goal(int(input_len), int(output_len), float(ttft_s), float(tpot_s), objective)


def _points(
    model: Model, cluster: Cluster, engine: Engine, dtype: str, goal: Goal, most: int, index: int
) -> tuple[Columns, list[Rejected], int]:
    """Every (plan, concurrency) that fits, priced; families that are illegal or do not fit."""
    base = setup(model, cluster, engine=engine, dtype=dtype)
    whole = space(model, cluster, base.plan, engine)
    lost = list(_illegal(base, whole))
    legal = whole.only((whole.codes == 0) & (whole.replicas > 0))
    if not len(legal):
        return empty(), lost, len(whole)
    tokens, seqs = memory.default_limits(cluster.chip, engine)
    sizes: dict[str, Any] = {"tp": legal.tp, "pp": legal.pp, "dp": legal.dp, "ep": legal.ep}
    kv = np.asarray(cache_tokens(replace(base, plan=replace(base.plan, **sizes)), tokens, seqs))
    fits = kv >= goal.input_len + goal.output_len
    lost += _too_large(base, legal, fits, goal, dtype)
    roomy, kv = legal.only(fits), kv[fits]
    if not len(roomy):
        return empty(), lost, len(whole) * most
    if goal.objective == "gpus":  # copies add throughput, not an answer
        roomy = replace(roomy, replicas=np.ones(len(roomy), dtype=int))
    room = np.clip(kv // _kept(goal, engine), 1, most).astype(int)
    found = _search(base, roomy, kv, room, goal, index)
    return found, lost, len(whole) * most


def _search(base: Setup, roomy: Space, kv: Array, room: Array, goal: Goal, index: int) -> Columns:
    """Every concurrency that can matter: a coarse grid of all plans, then all of the intervals that may hold a good plan's best.

    A request takes no less time when others join, so between two grid points tokens/s is at most the next point's clients
    over this point's time. Intervals whose bound lies below the best plans', or that break a limit at both ends, are left out.
    """
    rows, load, last = _coarse(room)
    priced = _simulated(base, roomy.only(rows), load, kv[rows], goal)
    coarse = _columns(roomy.only(rows), load, priced, goal, index)
    ahead = np.where(last, load, np.append(load[1:], 1))
    rate = coarse.tokens_per_s if goal.objective == "throughput" else coarse.tokens_per_s_per_gpu
    good = (coarse.ttft_s <= goal.ttft_s) & (coarse.tpot_s <= goal.tpot_s)
    near = good | (~last & np.append(good[1:], False))  # good at either end: TPOT may dip a little inside
    bar = _listed(rows, np.where(good, rate, -np.inf))
    open_ = np.flatnonzero(near & (ahead - load > 1) & (rate * ahead / load >= bar))
    gaps = (ahead - load - 1)[open_]
    inner = np.repeat(open_, gaps)
    step = np.arange(len(inner)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + 1
    fine_rows, fine_load = rows[inner], load[inner] + step
    more = _simulated(base, roomy.only(fine_rows), fine_load, kv[fine_rows], goal)
    fine = _columns(roomy.only(fine_rows), fine_load, more, goal, index)
    first = load == 1
    prompt_s = np.asarray(priced.prompt_s * priced.chunks)[first]
    apart = disaggregated.columns(base, roomy, prompt_s, kv, room, goal, index)
    return joined([coarse, fine, apart])


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


def _simulated(base: Setup, s: Space, concurrency: Array, kv: Array, goal: Goal) -> Simulation:
    return simulate(
        base.model,
        base.cluster,
        engine=base.engine,
        dtype=base.plan.weights_dtype,
        tp=s.tp,
        pp=s.pp,
        dp=s.dp,
        ep=s.ep,
        concurrency=concurrency * s.dp,
        input_len=goal.input_len,
        output_len=goal.output_len,
        kv_tokens=kv,
    )


def _columns(grid: Space, load: Array, priced: Simulation, goal: Goal, index: int) -> Columns:
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
    return goal.input_len + goal.output_len * (1.0 if engine.kv_reserved else 0.5)


def _ranked(answer: ServingPlans, every: Columns) -> ServingPlans:
    """The best point of each family that meets the limits, in the objective's order; without any, the nearest ones."""
    goal = answer.goal
    good = (every.ttft_s <= goal.ttft_s) & (every.tpot_s <= goal.tpot_s)
    score = _score(answer, every)
    best = _best(every, np.where(good, score, -np.inf))
    plans = every.take(best[np.isfinite(np.where(good, score, -np.inf)[best])])
    over = np.maximum(every.ttft_s / goal.ttft_s, every.tpot_s / goal.tpot_s) if len(every) else np.array([])
    near = _best(every, -over)[:5] if len(every) and not len(plans) else np.array([], dtype=int)
    front = every.take(_front(every, good))
    slow = [] if not len(every) else list(_too_slow(answer, every, good))
    found = replace(answer, plans=plans, near=every.take(near), front=front, rejected=(*answer.rejected, *slow))
    return replace(found, rejected=(*found.rejected, *_behind(found))) if len(plans) else found


def _score(answer: ServingPlans, c: Columns) -> Array:
    """Larger is better. Ties go to fewer GPUs, then to the lower TPOT."""
    goal = answer.goal
    tie = 1e-9 * c.gpus + 1e-12 * c.tpot_s
    if goal.objective == "throughput":
        return np.asarray(c.tokens_per_s * (1 - tie))
    if goal.objective == "latency":
        return np.asarray(-(c.ttft_s + (goal.output_len - 1) * c.tpot_s) * (1 + tie))
    if goal.objective == "cost":
        return np.asarray(c.tokens_per_s_per_gpu * (1 - tie))
    return np.asarray(-c.gpus * 1.0 + 1e-9 * c.tokens_per_s_per_gpu)


def _family(c: Columns) -> Array:
    """A number a family: everything but the concurrency."""
    key = np.zeros(len(c))
    for name in ("mode", "dtype", "tp", "pp", "dp", "ep", "replicas", "prefill_tp", "prefill_replicas"):
        key = key * 4099 + getattr(c, name)
        key = np.unique(key, return_inverse=True)[1].astype(float)
    return key


def _best(c: Columns, score: Array) -> Array:
    """Index of the best row of each family, best family first."""
    if not len(c):
        return np.array([], dtype=int)
    order = np.lexsort((-score, _family(c)))
    first = np.ones(len(order), dtype=bool)
    keys = _family(c)[order]
    first[1:] = keys[1:] != keys[:-1]
    heads = order[first]
    return np.asarray(heads[np.argsort(-score[heads], kind="stable")])


def _front(c: Columns, good: Array) -> Array:
    """Points that no other beats in both tokens/s/GPU and tokens/s/user."""
    where = np.flatnonzero(good)
    if not len(where):
        return where
    user, gpu = c.tokens_per_s_per_user[where], c.tokens_per_s_per_gpu[where]
    order = np.lexsort((-gpu, -user))
    best = np.maximum.accumulate(gpu[order])
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = gpu[order][1:] > best[:-1]
    return np.asarray(where[order[keep]])


def _illegal(base: Setup, whole: Space) -> Iterator[Rejected]:
    """One line for each rule and tp degree that it forbids."""
    seen: set[tuple[int, int]] = set()
    for i in np.flatnonzero(whole.codes):
        key = (int(whole.tp[i]), int(whole.codes[i]))
        if key in seen:
            continue
        seen.add(key)
        sizes = {"tp": int(whole.tp[i]), "pp": int(whole.pp[i]), "dp": int(whole.dp[i]), "ep": int(whole.ep[i])}
        rule = RULES[int(whole.codes[i]) - 1]
        case = Case(base.model, base.cluster, replace(base.plan, **sizes), base.engine)  # type: ignore[arg-type]
        yield Rejected(label(**sizes), rule.says(case))


def _too_large(base: Setup, legal: Space, fits: Array, goal: Goal, dtype: str) -> Iterator[Rejected]:
    """Plans without room for one request: the largest of each tp degree stands for its smaller ones."""
    seen: dict[int, int] = {}
    for where in np.flatnonzero(~fits).tolist():
        tp = int(legal.tp[where])
        if tp not in seen or legal.group[where] > legal.group[seen[tp]]:
            seen[tp] = where
    for i in seen.values():
        sizes = {axis: int(getattr(legal, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
        length = min(base.model.max_len, goal.input_len + goal.output_len)
        judged = fit(base.model, base.cluster, engine=base.engine, dtype=dtype, max_model_len=length, **sizes)
        lack = max(judged.shortfall_bytes, 0.0) / 2**30
        yield Rejected(
            label(**sizes) + (f" {dtype}" if dtype else ""), f"does not fit: each rank lacks {lack:.1f} GiB for one request"
        )


def _too_slow(answer: ServingPlans, every: Columns, good: Array) -> Iterator[Rejected]:
    """Families that fit and break a limit at every concurrency."""
    goal, family = answer.goal, _family(every)
    for key in np.unique(family[~good]):
        mine = family == key
        if good[mine].any():
            continue
        rows = every.take(np.flatnonzero(mine))
        if int(rows.mode[0]):
            continue
        sizes = {axis: int(getattr(rows, axis)[0]) for axis in ("tp", "pp", "dp", "ep")}
        ttft, tpot = float(rows.ttft_s.min()), float(rows.tpot_s.min())
        words = [f"TPOT {tpot * 1e3:.1f} ms at best"] if tpot > goal.tpot_s else []
        words += [f"TTFT {ttft * 1e3:,.0f} ms at best"] if ttft > goal.ttft_s else []
        yield Rejected(label(**sizes), f"breaks the limit: {', '.join(words) or 'TTFT and TPOT never hold together'}")


def _behind(answer: ServingPlans) -> Iterator[Rejected]:
    """Degrees whose best plan meets the limits and still loses by a tenth or more: by how much, and to what."""
    from commtax.planner.explain import step_of

    rows = answer.plans
    score = rows.tokens_per_s if answer.goal.objective == "throughput" else rows.tokens_per_s_per_gpu
    for axis, name in (("tp", "TP"), ("pp", "PP"), ("ep", "EP")):
        for size in np.unique(getattr(rows, axis)).tolist():
            mine = np.flatnonzero((getattr(rows, axis) == size) & (rows.mode == 0) & ((rows.pp == 1) | (axis != "tp")))
            if not len(mine) or (axis != "tp" and size == 1) or int(size) & (int(size) - 1):
                continue
            i = int(mine[0])
            lost = 1 - float(score[i] / score[0])
            if lost < 0.1:
                continue
            step = step_of(answer, rows, i)
            links = sorted({str(x.link) for x in step.items if x.kind == "comm"})
            across = "crosses hosts, " if answer.cluster.inter.key in links else ""
            words = f"{across}{float(step.comm_fraction):.0%} of its decode step is exposed communication over {', '.join(links)}"
            if axis == "pp":
                each = int(rows.concurrency[i] / rows.replicas[i])
                words = f"wants {int(size)} microbatches in flight, and the limits allow {each:,} requests a copy; {words}"
            yield Rejected(f"{name} {int(size)}", f"{lost:.0%} behind: {words if links else 'holds fewer requests'}")


def _words(answer: ServingPlans, rows: Columns, i: int) -> Iterator[str]:
    copies, gpus = int(rows.replicas[i]), int(rows.gpus[i])
    group = [f"{int(rows.pp[i])} stages"] if rows.pp[i] > 1 else []
    group += [f"attention DP {int(rows.dp[i])}"] if rows.dp[i] > 1 else []
    group += [f"TP {int(rows.tp[i])}"]
    one = " x ".join(group) + (f", experts over {int(rows.ep[i])}" if rows.ep[i] > 1 else "")
    decode = f"{copies} replica{'s' * (copies > 1)} x {one}" if copies > 1 else one
    if int(rows.mode[i]):
        pre, tp = int(rows.prefill_replicas[i]), int(rows.prefill_tp[i])
        yield f"{gpus} GPUs = {pre} x TP {tp} for prompts + {decode} to decode"
    else:
        yield f"{gpus} GPU{'s' * (gpus > 1)} = {decode}"
    idle = answer.cluster.num_gpus - gpus
    if idle:
        yield f"({idle} idle)"
