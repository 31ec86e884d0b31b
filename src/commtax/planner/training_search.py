"""Training plans: every legal split of a cluster, or of a part of it, for a global batch, priced in groups of one kind each."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from commtax import counting
from commtax.arrays import Array
from commtax.cost.memory import LIGHT, RECOMPUTE
from commtax.cost.schedules import SCHEDULES, most_chunks
from commtax.judgement.leading import training_leads
from commtax.judgement.margins import margin
from commtax.planner.columns import DEGREES, SIZED, Rejected, TrainColumns, TrainPlans
from commtax.planner.ranking import simplest, training_kinds
from commtax.question import Question
from commtax.records import replace
from commtax.rules.values import positive
from commtax.verbs.billing import StepBill, price
from commtax.verbs.settling import settle

MICRO = (1, 2, 4, 8)
CHUNKS = (2, 4)
WITHIN = 1.1  # plans that without any bubble would take at most this many times as long as the fastest are tried in other chunks
BUDGET = 0.95  # share of a rank's memory that a step may take
LONG = 8192  # tokens a rank from which sequences are cut over context-parallel ranks


def search_training(put: Question) -> TrainPlans:
    """Return the training plans of a question, fastest first, and behind them those whose gain from idle GPUs is not certain."""
    positive(global_batch=put.goal.global_batch)
    positive(seq=put.context)
    base = settle(put).plain()
    answer, budget = TrainPlans(base, kinds=tuple(_kinds(base))), BUDGET * base.cluster.chip.visible_bytes
    answer, every = _in_other_chunks(answer, _widest_first(answer, _grid(base), budget), budget)
    fits = every.memory_bytes <= budget
    near = np.argsort(every.memory_bytes, kind="stable")[:5] if not fits.any() else np.array([], dtype=int)
    good = every.take(fits)
    leads = training_leads(base, good.gpus, good.step_s)
    good, head = good.take(np.lexsort((good.step_s, ~leads))), slice(int(np.sum(leads)))
    answer = replace(answer, candidates=len(every), plans=good, near=every.take(near))
    first = simplest(training_kinds(good, base)[head], 1 / good.step_s[head], margin(base)) if len(good) else 0
    return replace(answer, recommended=first, rejected=tuple(_rejected_families(answer, every, good, budget)))


def _widest_first(answer: TrainPlans, grid: TrainColumns, budget: float) -> TrainColumns:
    """Return the widest data parallelism of each split, then what at its GPUs' peak could still be faster although some idle."""
    split = np.unique(np.stack([grid.tp, grid.pp, grid.cp]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(int(split.max(initial=0)) + 1, dtype=int)
    np.maximum.at(most, split, grid.dp)
    widest = grid.dp == most[split]
    with counting.part(0.0, 0.5):
        first = _price_grid(answer, grid.take(widest))
    fastest = float(first.step_s[first.memory_bytes <= budget].min(initial=np.inf))
    one = price(settle(answer.kinds[0].but(batch=answer.question.goal.global_batch)))
    hopeful = ~widest & (float(one.model_flops("causal") / one.peak_flops_per_s) <= fastest * grid.gpus)
    with counting.part(0.5, 1.0):
        more = _price_grid(answer, grid.take(hopeful))
    return TrainColumns.joined([part for part in (first, more) if len(part)])


def _price_grid(answer: TrainPlans, grid: TrainColumns) -> TrainColumns:
    kinds = counting.counted(list(enumerate(answer.kinds)))
    return TrainColumns.joined([_priced(i, kind, able) for i, kind in kinds if len(able := _rows_of_kind(grid, kind))])


def _priced(index: int, kind: Question, able: TrainColumns) -> TrainColumns:
    b = price(settle(kind.but(batch=kind.goal.global_batch // able.dp, **{name: getattr(able, name) for name in SIZED})))
    rows = columns(b, index, able)
    return rows.take(np.flatnonzero(b.legal * np.ones(len(rows))))


def _in_other_chunks(answer: TrainPlans, every: TrainColumns, budget: float) -> tuple[TrainPlans, TrainColumns]:
    """Return all rows, and those whose bubble alone may keep them behind the fastest in other counts of chunks."""
    fits = every.take(every.memory_bytes <= budget)
    unhindered = fits.step_s * (1 - fits.bubble_fraction)
    hopeful = fits.take((fits.pp > 1) & (unhindered <= WITHIN * fits.step_s.min(initial=np.inf)))
    kinds, parts = list(answer.kinds), [every]
    ways = [(kinds[int(k)].plan.zero, kinds[int(k)].plan.recompute) for k in hopeful.kind]
    for zero, recompute in dict.fromkeys(ways):
        rows = hopeful.take(np.array([one == (zero, recompute) for one in ways]))
        sizes = np.unique(np.stack([getattr(rows, name) for name in SIZED]), axis=1)
        layers = answer.question.model.num_layers + np.arange(3)[:, None]  # embedding and head are a layer each or none
        most = int(np.max(most_chunks(int(layers[0, 0]), rows.pp)))
        for chunks in (n for n in range(2, most + 1) if n not in CHUNKS and not np.all(layers % (n * rows.pp))):
            kind = answer.question.but(zero=zero, recompute=recompute, schedule="interleaved", chunks=chunks)
            if len(able := _rows_of_kind(unpriced(*sizes), kind)):
                parts.append(_priced(len(kinds), kind, able))
                kinds.append(kind)
    return replace(answer, kinds=tuple(kinds)), TrainColumns.joined([part for part in parts if len(part)] or parts)


def _kinds(base: Question) -> Iterator[Question]:
    trains = base.engine.trains
    stages = (trains.zero,) if trains.master_is_parameter else (0, 1, 3) if trains.zero == 3 else (0, 1)
    partly = ["selective"] if trains.selective else []
    if base.model.experts and trains.selective == "attention":  # modules whose recomputation takes next to no time, by name
        partly.append(LIGHT[bool(base.model.attention.latent)])
    for zero, recompute in itertools.product(stages, ["none", "full", *partly]):
        yield base.but(zero=zero, recompute=recompute)
        yield from (base.but(zero=zero, recompute=recompute, schedule="interleaved", chunks=chunks) for chunks in CHUNKS)


def _grid(base: Question) -> TrainColumns:
    """Return all sizes that fit on the cluster and divide batch and sequence: a larger cluster only adds to them."""
    model, engine, gpus, rows = base.model, base.engine, base.cluster.num_gpus, []
    global_batch, seq = base.goal.global_batch, int(base.context)
    degrees = [t for t in (1, 2, 4, 8, 16, 32) if t <= gpus and model.attention.num_heads % t == 0]
    contexts = [c for c in (1, 2, 4, 8, 16) if c == 1 or (engine.trains.context_parallel and seq / c >= LONG // 2)]
    replicas = [d for d in range(1, min(global_batch, gpus) + 1) if global_batch % d == 0]
    spread = model.experts.num_experts if model.experts and engine.sends.ep_backends else 1
    experts = [e for e in (2**i for i in range(10)) if spread % e == 0]
    for tp, cp in itertools.product(degrees, contexts):
        if seq % (tp if cp == 1 else 2 * cp * tp):  # two pieces a rank balance causal attention
            continue
        stages = min(model.num_layers, gpus // (tp * cp)) if engine.trains.has_stages else 1
        for pp in range(1, stages + 1):
            for dp in replicas[: bisect_right(replicas, gpus // (tp * cp * pp))]:
                micros = [m for m in MICRO if (global_batch // dp) % m == 0]
                rows += [(tp, pp, dp, ep, cp, m) for m in micros for ep in experts if (dp * cp) % ep == 0]
    return unpriced(*np.array(rows, dtype=int).reshape(-1, 6).T)


def unpriced(*sizes: Array) -> TrainColumns:
    return TrainColumns.of(len(sizes[0]), **dict.fromkeys(TrainColumns.names(), 0.0) | dict(zip(SIZED, sizes, strict=True)))


def _rows_of_kind(grid: TrainColumns, kind: Question) -> TrainColumns:
    """Return the rows that a kind can run: other schedules than the plain one need stages, and chunks a layer each."""
    pp, plan = grid.pp, kind.plan
    keep = np.ones(len(pp), dtype=bool)
    if plan.schedule != "1f1b":
        chunks = SCHEDULES[plan.schedule].passes(plan.chunks)
        keep = (pp > 1) & ((chunks <= most_chunks(kind.model.num_layers, pp)) | (chunks == 1))
    if plan.zero in (0, 1):
        keep &= (plan.zero == 0) == (grid.dp == 1)  # with replicas the optimiser is sharded, alone there is nothing to shard
    if plan.zero == 3 and not kind.engine.trains.master_is_parameter:  # gradients of all microbatches are kept
        keep &= pp == 1
    return grid.take(keep)


def columns(b: StepBill, index: int, sizes: TrainColumns) -> TrainColumns:
    row = (index, *(getattr(sizes, name) for name in SIZED), b.step_s, b.mfu, b.memory_bytes_per_rank)
    values = (*row, b.bubble_fraction, b.comm_fraction)
    return TrainColumns.of(len(sizes), **dict(zip(TrainColumns.names(), values, strict=True)))


def _rejected_families(a: TrainPlans, every: TrainColumns, good: TrainColumns, budget: float) -> Iterator[Rejected]:
    for name, column, values in _families(a, every, len(good) > 0):
        of_all, of_good = (np.isin(getattr(rows, column), values) for rows in (every, good))
        if np.any(of_all) and not np.any(of_good):
            least = float(every.memory_bytes[of_all].min())
            yield Rejected(name, f"does not fit: at least {least / 2**30:.1f} GiB per rank of {budget / 2**30:.1f}")
        elif np.any(of_good) and (slower := float(good.step_s[of_good][0] / good.step_s[0]) - 1) > 0.05:  # good plans are in order
            bubble, comm = good.bubble_fraction, good.exposed_comm_fraction
            losses = f"bubble {float(bubble[of_good][0]):.0%}, exposed communication {float(comm[of_good][0]):.0%}"
            yield Rejected(name, f"{slower:.0%} slower at best ({losses}; the best: {float(bubble[0]):.0%}, {float(comm[0]):.0%})")
    if not any(a.kinds[int(k)].plan.chunks > 1 for k in np.unique(every.kind)) and np.any(every.pp > 1):
        few = f"{a.question.model.num_layers} layers are too few for stages x {' or '.join(map(str, CHUNKS))} chunks"
        yield Rejected("interleaved", few)


def _families(a: TrainPlans, every: TrainColumns, some_good: bool) -> Iterator[tuple[str, str, list[int]]]:
    """Yield the families of one degree or one recomputation: a name, a column and its values."""
    for name, axis in DEGREES.items():
        sizes = np.unique(getattr(every, axis)).tolist()
        for size in sizes if axis == "tp" or (len(sizes) > 1 and some_good) else ():
            if name in ("TP", "microbatch") or (size & (size - 1)) == 0:
                yield f"{name} {size}", axis, [size]
    for kind in RECOMPUTE if some_good else ():
        yield f"recompute {kind}", "kind", [i for i, k in enumerate(a.kinds) if k.plan.recompute == kind]
