"""Training plans: every legal split of a cluster, or of a part of it, for a global batch, priced in groups of one kind each."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from commtax.api.setup import positive, setup
from commtax.api.train_billing import TrainBill, train_bill
from commtax.cost.schedules import SCHEDULES
from commtax.cost.stages import most_chunks
from commtax.cost.train_memory import RECOMPUTE
from commtax.planner.columns import Rejected
from commtax.planner.space import Array
from commtax.spec import Cluster, Engine, Model, Profile
from commtax.statement import Refusal
from commtax.units import plural

MICRO = (1, 2, 4, 8)
CHUNKS = (2, 4)
BUDGET = 0.95  # share of a rank's memory that a step may take
LONG = 8192  # tokens a rank from which sequences are cut over context-parallel ranks


@dataclass(frozen=True, slots=True)
class Kind:
    """What is one for all plans of a group."""

    zero: int
    recompute: str
    schedule: str
    chunks: int

    def __str__(self) -> str:
        piped = f", interleaved in {self.chunks}" if self.chunks > 1 else ""
        return f"ZeRO {self.zero}, recompute {self.recompute}{piped}"


@dataclass(frozen=True, slots=True)
class TrainColumns:
    """One row a plan."""

    kind: Array  # index in ``kinds``
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    cp: Array
    micro_batch: Array
    step_s: Array
    mfu: Array
    memory_bytes: Array
    bubble_fraction: Array
    exposed_comm_fraction: Array

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, where: Array) -> TrainColumns:
        return TrainColumns(*(np.asarray(getattr(self, f.name)[where]) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class TrainPlans:
    """Plans that fit, fastest first; where none fits, the nearest."""

    model: Model
    cluster: Cluster
    engine: Engine
    global_batch: int
    seq: int
    dtype: str
    kinds: tuple[Kind, ...]
    candidates: int
    plans: TrainColumns
    near: TrainColumns
    rejected: tuple[Rejected, ...]
    profile: Profile | None = None

    def words(self, rows: TrainColumns, i: int) -> str:
        """GPUs reconciled: ``512 GPUs = DP 16 x 4 stages x TP 8``, and those that idle."""
        sizes = [(int(getattr(rows, axis)[i]), name) for axis, name in (("dp", "DP"), ("cp", "CP"), ("tp", "TP"))]
        parts = [f"{name} {n}" for n, name in sizes if n > 1 or name == "TP"]
        if rows.pp[i] > 1:
            parts.insert(-1, f"{int(rows.pp[i])} stages")
        experts = f", experts over {int(rows.ep[i])}" if rows.ep[i] > 1 else ""
        total = int(rows.tp[i] * rows.pp[i] * rows.dp[i] * rows.cp[i])
        idle = self.cluster.num_gpus - total
        left = f" ({idle:,} of {self.cluster.num_gpus:,} GPUs idle)" if idle else ""
        return f"{plural(total, 'GPU')} = {' x '.join(parts)}{experts}{left}"

    def bill(self, rows: TrainColumns, i: int) -> TrainBill:
        """The priced step of row ``i``, line by line."""
        kind = self.kinds[int(rows.kind[i])]
        sizes = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep", "cp", "micro_batch")}
        return priced(self, kind, batch=self.global_batch // sizes["dp"], **sizes)

    def splits(self) -> Array:
        """Index of the fastest plan of each split of the GPUs, fastest first."""
        p = self.plans
        return np.sort(np.unique(np.stack([p.tp, p.pp, p.dp, p.ep, p.cp]), axis=1, return_index=True)[1])

    def explain(self, i: int) -> list[str]:
        from commtax.planner.explain import explain_training

        return explain_training(self, i)

    def to_frame(self) -> Any:
        try:
            import pandas as pd
        except ImportError:
            raise Refusal("to_frame: needs pandas (pip install pandas)") from None
        return pd.DataFrame({f.name: getattr(self.plans, f.name) for f in fields(self.plans)})


def plan_training(
    model: str | Model,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int = 4096,
    engine: str | Engine = "",
    dtype: str = "",
    profile: str | Profile | None = None,
) -> TrainPlans:
    """Price tp x pp x dp x ep x cp x microbatch for each ZeRO stage, recomputation and schedule; GPUs may idle."""
    positive(global_batch, "global_batch")
    positive(seq, "seq")
    base = setup(model, cluster, engine=engine, dtype=dtype, phase="train", profile=profile, sequence_parallel=True)
    known, place, runs = base.model, base.cluster, base.engine
    kinds, none = tuple(_kinds(runs)), _empty()
    question = TrainPlans(known, place, runs, global_batch, seq, base.plan.weights_dtype, kinds, 0, none, none, (), base.profile)
    budget = BUDGET * place.chip.visible_bytes
    every = _searched(question, _grid(known, place, runs, global_batch, seq), budget)
    order = np.argsort(every.step_s, kind="stable")
    fits = every.memory_bytes[order] <= budget
    near = np.argsort(every.memory_bytes, kind="stable")[:5] if not fits.any() else np.array([], dtype=int)
    good = every.take(order[fits])
    rejected = tuple(_lost(question, every, good, budget))
    return replace(question, candidates=len(every), plans=good, near=every.take(near), rejected=rejected)


def _searched(question: TrainPlans, grid: dict[str, Array], budget: float) -> TrainColumns:
    """The widest data parallelism of each split, then what could still be faster although it leaves GPUs idle.

    No plan takes less time than its GPUs need at their peak, so whatever is left out is slower than the fastest found.
    """
    split = np.unique(np.stack([grid[axis] for axis in ("tp", "pp", "cp")]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(int(split.max(initial=0)) + 1, dtype=int)
    np.maximum.at(most, split, grid["dp"])
    widest = grid["dp"] == most[split]
    first = _priced(question, {name: column[widest] for name, column in grid.items()})
    fastest = float(first.step_s[first.memory_bytes <= budget].min(initial=np.inf))
    gpus = grid["tp"] * grid["pp"] * grid["cp"] * grid["dp"]
    hopeful = ~widest & (_least_s(question) <= fastest * gpus)
    return _joined([first, _priced(question, {name: column[hopeful] for name, column in grid.items()})])


def _least_s(question: TrainPlans) -> float:
    """GPU-seconds of a step at the chip's peak, causal pairs only."""
    one = priced(question, question.kinds[0], batch=question.global_batch)
    return float(one.model_flops("causal") / one.peak_flops_per_s)


def _priced(question: TrainPlans, grid: dict[str, Array]) -> TrainColumns:
    parts = []
    for index, kind in enumerate(question.kinds):
        mine = _fitting(grid, question.model, kind, question.engine)
        if len(mine["tp"]):
            parts.append(_group(question, kind, index, mine))
    return _joined(parts)


def _kinds(engine: Engine) -> Iterator[Kind]:
    """ZeRO stages, recomputation and schedules that the engine has."""
    stages = (engine.trains.zero,) if engine.trains.master_is_parameter else (0, 1, 3) if engine.trains.zero == 3 else (0, 1)
    recompute = ["none", "full"] + (["selective"] if engine.trains.selective else [])
    for zero in stages:
        for kind in recompute:
            yield Kind(zero, kind, "1f1b", 1)
            for chunks in CHUNKS:
                yield Kind(zero, kind, "interleaved", chunks)


def _grid(model: Model, cluster: Cluster, engine: Engine, global_batch: int, seq: int) -> dict[str, Array]:
    """All sizes that fit on the cluster and divide batch and sequence: a larger cluster only adds to them."""
    gpus, rows = cluster.num_gpus, []
    degrees = [t for t in (1, 2, 4, 8, 16, 32) if t <= gpus and model.attention.num_heads % t == 0]
    contexts = [c for c in (1, 2, 4, 8, 16) if c == 1 or (engine.trains.context_parallel and seq / c >= LONG // 2)]
    replicas = [d for d in range(1, min(global_batch, gpus) + 1) if global_batch % d == 0]
    for tp, cp in itertools.product(degrees, contexts):
        if seq % (tp if cp == 1 else 2 * cp * tp):  # two pieces a rank balance causal attention
            continue
        for pp in range(1, min(model.num_layers, gpus // (tp * cp)) + 1):
            for dp in replicas[: bisect_right(replicas, gpus // (tp * cp * pp))]:
                micros = [m for m in MICRO if (global_batch // dp) % m == 0]
                rows += [(tp, pp, dp, ep, cp, m) for m in micros for ep in _expert_sizes(model, engine, dp * cp)]
    names = ("tp", "pp", "dp", "ep", "cp", "micro_batch")
    return dict(zip(names, np.array(rows, dtype=int).reshape(-1, 6).T, strict=True))


def _expert_sizes(model: Model, engine: Engine, ranks: int) -> list[int]:
    if model.experts is None or not engine.sends.ep_backends:
        return [1]
    sizes = [2**i for i in range(10)]
    return [e for e in sizes if ranks % e == 0 and model.experts.num_experts % e == 0]


def _fitting(grid: dict[str, Array], model: Model, kind: Kind, engine: Engine) -> dict[str, Array]:
    """Rows that a kind can run: a schedule other than the plain one needs stages, and chunks a layer each.

    Where gradients of all microbatches are kept, ZeRO 3 has no stages.
    """
    pp = grid["pp"]
    keep = np.ones(len(pp), dtype=bool)
    if kind.schedule != "1f1b":
        chunks = SCHEDULES[kind.schedule].passes(kind.chunks)
        keep = (pp > 1) & ((chunks <= most_chunks(model.num_layers, pp)) | (chunks == 1))
    if kind.zero in (0, 1):
        keep &= (kind.zero == 0) == (grid["dp"] == 1)  # with replicas the optimiser is sharded, alone there is nothing to shard
    if kind.zero == 3 and not engine.trains.master_is_parameter:
        keep &= pp == 1
    return {name: column[keep] for name, column in grid.items()}


def priced(question: TrainPlans, kind: Kind, **words: Any) -> TrainBill:
    """Plans of one kind, with sequence parallelism unless ``words`` say otherwise."""
    return train_bill(
        question.model,
        question.cluster,
        engine=question.engine,
        context=question.seq,
        dtype=question.dtype,
        profile=question.profile,
        zero=kind.zero,
        recompute=kind.recompute,
        schedule=kind.schedule,
        chunks=kind.chunks,
        **{"sequence_parallel": True, **words},
    )


def _group(question: TrainPlans, kind: Kind, index: int, sizes: dict[str, Array]) -> TrainColumns:
    b = priced(question, kind, batch=question.global_batch // sizes["dp"], **sizes)
    rows = columns(b, index, sizes)
    return rows.take(np.flatnonzero(b.legal * np.ones(len(rows))))


def columns(b: TrainBill, index: int, sizes: dict[str, Array]) -> TrainColumns:
    """Priced steps as columns."""
    n = np.ones(len(sizes["tp"]))
    return TrainColumns(
        kind=(index * n).astype(int),
        **{name: sizes[name] for name in ("tp", "pp", "dp", "ep", "cp", "micro_batch")},
        step_s=np.asarray(b.step_s) * n,
        mfu=np.asarray(b.mfu) * n,
        memory_bytes=np.asarray(b.memory_bytes_per_rank) * n,
        bubble_fraction=np.asarray(b.bubble_fraction) * n,
        exposed_comm_fraction=np.asarray(b.comm_fraction) * n,
    )


def _lost(a: TrainPlans, every: TrainColumns, good: TrainColumns, budget: float) -> Iterator[Rejected]:
    """One line a degree and a kind: does it fit, and how far behind is its best plan?"""
    for name, axis in (("TP", "tp"), ("PP", "pp"), ("CP", "cp"), ("EP", "ep"), ("microbatch", "micro_batch")):
        sizes = np.unique(getattr(every, axis)).tolist()
        for size in sizes if axis == "tp" or (len(sizes) > 1 and len(good)) else ():
            if axis in ("tp", "micro_batch") or (size & (size - 1)) == 0:
                yield from _judged(every, good, f"{name} {size}", getattr(every, axis) == size, getattr(good, axis) == size, budget)
    for kind in RECOMPUTE if len(good) else ():
        mine = [i for i, k in enumerate(a.kinds) if k.recompute == kind]
        yield from _judged(every, good, f"recompute {kind}", np.isin(every.kind, mine), np.isin(good.kind, mine), budget)
    if not any(a.kinds[int(k)].chunks > 1 for k in np.unique(every.kind)) and np.any(every.pp > 1):
        yield Rejected(
            "interleaved", f"{a.model.num_layers} layers are too few for stages x {' or '.join(map(str, CHUNKS))} chunks"
        )


def _judged(every: TrainColumns, good: TrainColumns, name: str, all_: Array, mine: Array, budget: float) -> Iterator[Rejected]:
    """A family's line where it does not fit, or is a twentieth slower at best."""
    if not np.any(all_):
        return
    if not np.any(mine):
        least = float(every.memory_bytes[all_].min())
        yield Rejected(name, f"does not fit: at least {least / 2**30:.1f} GiB a rank of {budget / 2**30:.1f}")
        return
    i = int(np.argmax(mine))  # good plans are in order
    slower = float(good.step_s[i] / good.step_s[0]) - 1
    if slower > 0.05:
        told = f"bubble {float(good.bubble_fraction[i]):.0%}, exposed communication {float(good.exposed_comm_fraction[i]):.0%}"
        first = f"the first: {float(good.bubble_fraction[0]):.0%}, {float(good.exposed_comm_fraction[0]):.0%}"
        yield Rejected(name, f"{slower:.0%} slower at best ({told}; {first})")


def _joined(parts: list[TrainColumns]) -> TrainColumns:
    parts = [p for p in parts if len(p)] or [_empty()]
    return TrainColumns(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(TrainColumns)))


def _empty() -> TrainColumns:
    return TrainColumns(*(np.array([]) for _ in fields(TrainColumns)))
