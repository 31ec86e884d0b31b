"""Where a plan that somebody runs already stands beside the winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commtax.api.fitting import cache_tokens
from commtax.api.serving import simulate
from commtax.api.setup import describe_gpus, setup
from commtax.planner.columns import Columns, Goal, empty, label, order, worth
from commtax.planner.disaggregated import BUSY
from commtax.planner.reasons import best_times
from commtax.planner.serving import ServingPlans, search, simulated, start
from commtax.planner.serving import columns as priced
from commtax.planner.space import Space
from commtax.planner.training import BUDGET, Kind, TrainPlans, columns
from commtax.planner.training import priced as trained


@dataclass(frozen=True, slots=True)
class Standing:
    """A plan at its best load, and its place among the good plans."""

    words: str
    rows: Any  # ``Columns`` or ``TrainColumns`` of one row; none where it cannot run
    rank: int = 0  # 0: it is not good
    gain: float = 1.0  # the winner's worth over its own
    reason: str = ""  # why it is not good


def standing(answer: ServingPlans, sizes: dict[str, Any], replicas: int, dtype: str = "", clients: int = 0) -> Standing:
    """``replicas`` copies of a plan (tp, pp, dp, ep) beside the answer's, at ``clients`` of the whole or at their best load."""
    goal, index = answer.goal, _index(answer, dtype)
    name = (f"{replicas} replicas x " if replicas > 1 else "") + label(**sizes)
    run, total = answer.run, replicas * sizes["tp"] * sizes["pp"] * sizes["dp"]
    if total > answer.cluster.num_gpus:
        return Standing(name, empty(), reason=f"needs {total} GPUs, and {answer.cluster.key} has {answer.cluster.num_gpus}")
    base, tokens, seqs = start(answer, index)
    words: dict[str, Any] = {"dtype": answer.dtypes[index], "kv_dtype": run.kv_dtype, "profile": run.profile}
    try:
        asked = setup(answer.model, answer.cluster, engine=answer.engine, **words, **sizes)
    except ValueError as error:
        return Standing(name, empty(), reason=str(error))
    kv = float(np.max(cache_tokens(asked, tokens, seqs, run.gpu_memory_utilization)))
    if kv < goal.input_len + goal.output_len:
        return Standing(name, empty(), reason=f"does not fit: a copy's KV cache holds {kv:,.0f} tokens, less than one request")
    one = Space(*(np.array([n]) for n in (*(sizes[axis] for axis in ("tp", "pp", "dp", "ep")), replicas, 0)))
    if clients:  # at that load, whatever the cache holds
        load = np.array([max(1, round(clients / (replicas * sizes["dp"])))])
        every = priced(one, load, simulated(answer, base, one, load, np.array([kv])), goal, index)
    else:
        every = search(answer, base, one, np.array([kv]), index)
        every = every.take(np.flatnonzero(every.mode == 0))
    return _placed(answer, every)


def _placed(answer: ServingPlans, every: Columns) -> Standing:
    """The best of a plan's loads beside the answer's plans."""
    goal = answer.goal
    row, good = _best(goal, every)
    if not good:
        return Standing(answer.words(row, 0), row, reason=f"breaks the limit: {best_times(goal, every)}")
    theirs, mine = (order(goal, rows) for rows in (answer.plans, row))
    better = theirs[0] > mine[0]
    if goal.objective == "gpus":  # as many GPUs are no tie
        better |= (theirs[0] == mine[0]) & (theirs[1] > mine[1] * (1 + 1e-8))
    gain = float(worth(goal, answer.plans)[0] / worth(goal, row)[0]) if len(answer.plans) else 1.0
    return Standing(answer.words(row, 0), row, 1 + int(np.sum(better)), gain)


def apart_standing(
    answer: ServingPlans, decode: tuple[int, int], prompts: tuple[int, int], dtype: str = "", clients: int = 0
) -> Standing:
    """Servers of their own for prompts: (tp, count) of both kinds, at ``clients`` of the whole or at their best load."""
    goal, index = answer.goal, _index(answer, dtype)
    name = f"{prompts[1]} x TP {prompts[0]} for prompts + {decode[1]} x TP {decode[0]} to decode"
    total = decode[0] * decode[1] + prompts[0] * prompts[1]
    if total > answer.cluster.num_gpus:
        return Standing(name, empty(), reason=f"needs {total} GPUs, and {answer.cluster.key} has {answer.cluster.num_gpus}")
    loads = np.array([clients]) if clients else np.arange(1, answer.max_concurrency + 1) * decode[1]
    try:
        s = simulate(
            answer.model,
            answer.cluster,
            engine=answer.engine,
            dtype=answer.dtypes[index],
            tp=decode[0],
            concurrency=loads,
            input_len=goal.input_len,
            output_len=goal.output_len,
            spread=goal.spread,
            disaggregated=True,
            prefill_tp=prompts[0],
            prefill_workers=prompts[1],
            decode_workers=decode[1],
            **answer.run.words,
        )
    except ValueError as error:
        return Standing(name, empty(), reason=str(error))
    held = min(float(s.kv_tokens), float(s.apart.kv_tokens) if s.apart else np.inf)
    if held < goal.input_len + goal.output_len:
        return Standing(name, empty(), reason=f"does not fit: a copy's KV cache holds {held:,.0f} tokens, less than one request")
    n = np.ones(len(loads), dtype=int)
    sizes = {"mode": 1, "dtype": index, "tp": decode[0], "pp": 1, "dp": 1, "ep": 1, "replicas": decode[1], "gpus": total}
    sizes |= {"prefill_tp": prompts[0], "prefill_replicas": prompts[1]}
    kept = goal.input_len + goal.output_len * (1.0 if answer.engine.serves.kv_reserved else 0.5)
    every = Columns(
        **{axis: size * n for axis, size in sizes.items()},
        concurrency=loads,
        running=np.asarray(s.running) * n,
        ttft_s=np.asarray(s.ttft_s) * n,
        tpot_s=np.asarray(s.tpot_s) * n,
        tokens_per_s=np.asarray(s.tokens_per_s) * n,
        kv_headroom=1 - np.asarray(s.running) * kept / held,
    )
    if not clients:  # up to what prompt servers keep up with, and without a limit to the knee
        busy = np.asarray(s.offered) <= BUSY * prompts[1]
        last = len(loads) if goal.limited else 1 + int(np.argmax(loads / np.asarray(s.e2e_s) ** 2))
        every = every.take(np.flatnonzero((busy & (np.arange(len(loads)) < last)) | (n.cumsum() == 1)))
    return _placed(answer, every)


def _index(answer: ServingPlans, dtype: str) -> int:
    """The type among those that were searched, the checkpoint's own where the command says none; else the first."""
    stored = answer.model.quant.dtype if answer.model.quant else answer.model.dtype
    wanted = (dtype,) if dtype else ("", stored)
    return next((i for i, name in enumerate(answer.dtypes) if name in wanted), 0)


def _best(goal: Goal, every: Columns) -> tuple[Columns, bool]:
    """The best row that meets the limits, else the nearest; and whether it meets them."""
    good = (every.ttft_s <= goal.ttft_s) & (every.tpot_s <= goal.tpot_s)
    over = np.maximum(every.ttft_s / goal.ttft_s, every.tpot_s / goal.tpot_s)
    if not good.any():
        return every.take(np.array([int(np.argmin(over))])), False
    met = every.take(np.flatnonzero(good))
    return met.take(np.lexsort([-key for key in reversed(order(goal, met))])[:1]), True


def training_standing(answer: TrainPlans, sizes: dict[str, Any], kind: Kind, **words: Any) -> Standing:
    """A training plan (tp, pp, dp, ep, cp, micro_batch) of some kind beside the answer's, for the same global batch."""
    name = f"tp {sizes['tp']}, pp {sizes['pp']}, dp {sizes['dp']}, cp {sizes['cp']}, ep {sizes['ep']}, {kind}"
    if answer.global_batch % (sizes["dp"] * sizes["micro_batch"]):
        cut = f"{sizes['dp']} replicas and microbatches of {sizes['micro_batch']}"
        return Standing(
            name, answer.plans.take(np.array([], dtype=int)), reason=f"{cut} do not divide {answer.global_batch} sequences"
        )
    try:
        b = trained(answer, kind, batch=answer.global_batch // sizes["dp"], **sizes, **words)
    except ValueError as error:
        return Standing(name, answer.plans.take(np.array([], dtype=int)), reason=str(error))
    row = columns(b, 0, {axis: np.array([n]) for axis, n in sizes.items()})
    told = f"{describe_gpus(b.setup.plan)}, microbatch {sizes['micro_batch']}, {kind}"
    budget = BUDGET * answer.cluster.chip.visible_bytes
    if row.memory_bytes[0] > budget:
        need = f"{float(row.memory_bytes[0]) / 2**30:.1f} GiB a rank of {budget / 2**30:.1f}"
        return Standing(told, row, reason=f"does not fit: {need}")
    better = answer.plans.step_s < float(row.step_s[0]) * (1 - 1e-9)
    gain = float(row.step_s[0] / answer.plans.step_s[0]) if len(answer.plans) else 1.0
    return Standing(told, row, 1 + int(np.sum(better)), gain)
