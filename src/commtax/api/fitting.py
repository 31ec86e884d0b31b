"""What fits, by name: ``commtax.fit("llama-3.1-70b", "8xh100-sxm")``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from commtax import catalog
from commtax.api.sending import check_lengths, microbatches
from commtax.api.setup import AUTO_EP, Setup, positive, setup
from commtax.cost import legality, memory
from commtax.cost.tensors import stage_layers
from commtax.cost.train_memory import TrainMemory, training_memory
from commtax.spec import Cluster, Model, Number, TrainStep
from commtax.statement import Refusal
from commtax.units import plural


@dataclass(frozen=True, slots=True)
class Serving:
    """Limits that decide how much memory an engine leaves for KV."""

    max_model_len: int
    max_seqs: int
    max_batched_tokens: int
    block_size: int
    utilization: float
    kv_cache_bytes: float = 0.0  # a fixed KV budget a rank; 0: what is left


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a plan fits, and what each rank of the tightest stage holds."""

    setup: Setup
    serving: Serving
    stage: int
    weights: tuple[memory.WeightLine, ...]
    budget_bytes: float
    activation_bytes: float
    other_bytes: float
    graph_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    kv_blocks: int
    kv_tokens: int
    max_concurrency: float
    needed_kv_bytes: float
    over_bytes: float = 0.0  # by how much a fixed KV cache exceeds the chip
    chosen: bool = False
    advice: tuple[str, ...] = field(default=())

    @property
    def weights_bytes(self) -> float:
        return float(sum(w.nbytes for w in self.weights))

    @property
    def kv_tokens_range(self) -> tuple[int, int]:
        """Four of five start-ups show KV tokens between these two; a fixed cache is exact."""
        spread = 0.0 if self.serving.kv_cache_bytes else self.setup.engine.memory.kv_spread_bytes
        each = self.kv_tokens / self.kv_bytes if self.kv_bytes > 0 else 0.0
        return max(0, int(self.kv_tokens - spread * each)), int(self.kv_tokens + spread * each)

    @property
    def fits(self) -> bool:
        return self.max_concurrency >= 1

    @property
    def shortfall_bytes(self) -> float:
        """Bytes a rank lacks to keep one request of full length."""
        return 0.0 if self.fits else max(self.over_bytes, self.needed_kv_bytes - self.kv_bytes)


def fit(
    model: str | Model,
    cluster: str | Cluster,
    *,
    tp: int | None = None,
    pp: int | None = None,
    dp: int = 1,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    kv_cache_memory_bytes: float = 0.0,
    advise: bool = True,
    **plan: Any,
) -> Fit:
    """Judge the given plan, or find the smallest legal TP (x PP) that fits one request of ``max_model_len`` tokens.

    Where none fits, ``advise`` looks for the nearest changes that would.
    """
    if "phase" in plan:
        raise Refusal("phase: fit is about serving; train_fit is about training", "phase")
    known = catalog.model(model) if isinstance(model, str) else model
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    asked = setup(known, place, tp=1 if tp is None else tp, pp=1 if pp is None else pp, dp=dp, **plan)
    _check_memory(asked)
    if any(np.ndim(x) for x in (asked.plan.tp, asked.plan.pp, asked.plan.dp, asked.plan.ep)):
        raise Refusal("tp: fit judges one plan at a time, not arrays of them", "tp")
    serving = _serving(
        asked, max_model_len, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization, block_size, kv_cache_memory_bytes
    )
    found = judge(asked, serving) if tp is not None else _smallest(asked, serving, plan, pp)
    return replace(found, advice=tuple(_advice(found))) if advise and not found.fits else found


def _smallest(asked: Setup, serving: Serving, plan: dict[str, Any], pp: int | None) -> Fit:
    """The first candidate that fits; else the nearest of those without a pipeline (or with the one that was asked for)."""
    may, nearest = _screen(asked, serving, plan.get("ep") == AUTO_EP), None
    words = asked.model, asked.cluster, int(asked.plan.dp), plan, pp
    for candidate in _candidates(*words, lambda t, p: p == (pp or 1) or may(t, p)):
        judged = judge(candidate, serving)
        if judged.fits:
            return replace(judged, chosen=True)
        if candidate.plan.pp == (pp or 1) and (nearest is None or judged.shortfall_bytes < nearest.shortfall_bytes):
            nearest = judged
    if nearest is None:  # no tp is legal without a pipeline, or with the rest of the plan: judging says which rule forbids tp 1
        nearest = judge(next(_candidates(*words), asked), serving)
    return replace(nearest, chosen=True)


def _screen(asked: Setup, serving: Serving, auto_ep: bool) -> Callable[[int, int], bool]:
    """Whether (tp, pp) may fit, from one look a tp; false only where judging would find too few blocks.

    The fullest of pp stages holds at least 1 / pp of what a single one would, the last one samples, and a block has the bytes
    of at least one layer: of all of a stage's, where they share one window.
    """
    model, engine = asked.model, asked.engine
    windows = {block.attention.window for block in model.blocks}
    pools = (memory.KvPool(0.0, 0.0, 1, (window,)) for window in windows)
    wanted = min(p.blocks_per_request(serving.max_model_len, serving.block_size, serving.max_batched_tokens) for p in pools)
    total, fixed = asked.cluster.chip.visible_bytes, serving.kv_cache_bytes

    @cache
    def look(tp: int) -> tuple[Setup, float, float, float, float]:
        plan = replace(asked.plan, tp=tp, pp=1, ep=tp * asked.plan.dp if auto_ep else asked.plan.ep)
        loaded = float(sum(w.nbytes for w in memory.weights(model, plan, engine, 0, 1))) * (1 - 1e-9)
        limits = serving.max_batched_tokens, serving.max_seqs
        inner, last = (float(memory.activation_bytes(model, plan, engine, *limits, end)) for end in (False, True))
        layer = min(float(memory.kv_bytes_per_token_layer(b.attention, tp, plan.kv_dtype)) for b in model.blocks)
        return replace(asked, plan=plan), loaded, inner, last, layer * serving.block_size

    def may(tp: int, pp: int) -> bool:
        one, loaded, inner, last, page = look(tp)
        most = page * (math.ceil(model.num_layers / pp) if len(windows) == 1 else 1)
        if fixed:
            free = total - max(loaded / pp + inner, last) - float(memory.other_bytes(one.plan, engine))
            return free * (1 + 1e-9) >= fixed and fixed // most >= wanted
        fullest, end, deepest = (
            _left(one, held, peak, serving.utilization) for held, peak in ((loaded / pp, inner), (0.0, last), (0.0, inner))
        )
        return bool(min(fullest, end) >= wanted * page and deepest >= wanted * most)

    return may


def _check_memory(asked: Setup) -> None:
    """A profile without memory changes nothing here, and is refused rather than ignored."""
    if asked.profile and not {"memory_bytes", "visible_bytes"} & set(asked.profile.chip):
        raise Refusal(
            f"profile '{asked.profile.name}': says nothing of memory (chip.memory_bytes), and fit needs no seconds", "profile"
        )


def _serving(
    asked: Setup,
    length: int | None,
    seqs: int | None,
    tokens: int | None,
    utilization: float | None,
    block: int | None,
    kv_bytes: float,
) -> Serving:
    engine = asked.engine
    most = engine.serves.max_batched_tokens if tokens is None else int(positive(tokens, "max_num_batched_tokens"))
    share = memory.default_utilization(asked.cluster.chip, asked.plan, engine, most) if utilization is None else utilization
    check_utilization(share)
    if kv_bytes < 0:
        raise Refusal(f"kv_cache_memory_bytes={kv_bytes}: a size of at least 0 is needed", "kv_cache_memory_bytes")
    longest = asked.model.max_len if length is None else int(positive(length, "max_model_len"))
    return Serving(
        max_model_len=longest,
        max_seqs=engine.serves.max_seqs if seqs is None else int(positive(seqs, "max_num_seqs")),
        max_batched_tokens=most,
        block_size=engine.memory.block_size if block is None else int(positive(block, "block_size")),
        utilization=share,
        kv_cache_bytes=kv_bytes,
    )


def _candidates(
    model: Model,
    cluster: Cluster,
    dp: int,
    plan: dict[str, Any],
    pp: int | None = None,
    may: Callable[[int, int], bool] | None = None,
) -> Iterator[Setup]:
    """Legal plans that ``may`` fit, in the order in which people try them: tp in a fast domain, then the widest with a pipeline."""
    heads = model.attention.num_heads
    degrees = [t for t in range(1, min(cluster.domain, heads) + 1) if heads % t == 0]
    groups = dp * int(plan.get("replicas", 1))
    stages = range(2, min(model.num_layers, cluster.num_gpus // groups) + 1)
    pairs = [(t, p) for t in reversed(degrees) for p in stages if t * p * groups <= cluster.num_gpus]
    for t, p in [(t, pp) for t in degrees] if pp else [(t, 1) for t in degrees] + pairs:
        if may and not may(t, p):
            continue
        try:
            yield setup(model, cluster, tp=t, pp=p, dp=dp, **plan)
        except ValueError:  # a rule that joins tp with another axis
            continue


def judge(asked: Setup, serving: Serving) -> Fit:
    """Memory of the tightest pipeline stage of a legal plan: the one that leaves the fewest KV blocks."""
    pp = int(asked.plan.pp)
    stages = _different_stages(asked, pp)
    return min((_stage(asked, serving, stage, pp) for stage in stages), key=lambda f: (f.kv_blocks, f.kv_bytes))


def judge_length(asked: Setup, length: int) -> Fit:
    """A legal plan judged for requests of one length, the engine's own limits otherwise; no advice is looked for."""
    return judge(asked, _serving(asked, length, None, None, None, None, 0.0))


def _different_stages(asked: Setup, pp: int) -> list[int]:
    """One of each kind of stage: those that hold the same are judged once."""
    model, alike = asked.model, dict[tuple[object, ...], int]()
    for stage, layers in enumerate(stage_layers(model, pp, asked.engine.sends.odd_layers)):
        kinds = tuple(sum(model.layers[i] == kind for i in layers) for kind in range(len(model.blocks)))
        alike.setdefault((kinds, stage == 0, stage == pp - 1), stage)
    return list(alike.values())


def check_utilization(share: float | None) -> None:
    if share is not None and not 0 < share <= 1:
        raise Refusal(f"gpu_memory_utilization={share}: a fraction above 0 and at most 1 is needed", "gpu_memory_utilization")


def cache_tokens(asked: Setup, tokens: int, seqs: int, utilization: float | None = None) -> Number:
    """KV tokens of one replica for arrays of plans at once: ``judge(...).kv_tokens`` of each; 0 where a plan is illegal."""
    check_utilization(utilization)
    plan, engine, chip = asked.plan, asked.engine, asked.cluster.chip
    shape = np.broadcast_shapes(*(np.shape(x) for x in (plan.tp, plan.pp, plan.dp, plan.ep)))
    axes = [np.broadcast_to(x, shape).ravel() for x in (plan.tp, plan.pp, plan.dp, plan.ep)]
    legal = np.broadcast_to(np.asarray(asked.codes) == 0, shape).ravel()
    table, where = np.unique(np.stack([*axes, legal], axis=-1), axis=0, return_inverse=True)
    found = np.zeros(len(table))
    groups = table[:, 0] * table[:, 1] if engine.memory.reserve else 0 * table[:, 0]  # a reserve may grow with a copy's ranks
    for pp, ranks in np.unique(np.stack([table[:, 1], groups], axis=-1)[table[:, 4] == 1], axis=0).astype(int).tolist():
        mine = (table[:, 1] == pp) & (groups == ranks) & (table[:, 4] == 1)
        tp, _, dp, ep, _ = table[mine].T
        part = replace(plan, tp=tp, pp=pp, dp=dp, ep=ep)
        share = memory.default_utilization(chip, part, engine, tokens) if utilization is None else utilization
        one = replace(asked, plan=part)
        least = [_stage_tokens(one, tokens, seqs, share, stage, pp) for stage in _different_stages(asked, pp)]
        found[mine] = np.minimum.reduce(least)
    spread = found[where.ravel()].reshape(shape)
    return spread if shape else float(spread)


def _stage_tokens(asked: Setup, tokens: int, seqs: int, utilization: float, stage: int, pp: int) -> Number:
    model, plan, engine = asked.model, asked.plan, asked.engine
    loaded = sum((w.nbytes for w in memory.weights(model, plan, engine, stage, pp)), start=0.0)
    peak = memory.activation_bytes(model, plan, engine, tokens, seqs, stage == pp - 1)
    left = _left(asked, loaded, peak, utilization)
    pool = memory.kv_pool(model, plan, stage_layers(model, pp, engine.sends.odd_layers)[stage], engine.memory.block_size)
    blocks = np.maximum(0, left // pool.bytes_per_block)
    return blocks // pool.num_groups * engine.memory.block_size


def _left(asked: Setup, loaded: Number, peak: Number, utilization: float) -> Number:
    """Bytes that weights and activations leave for the cache, by the engine's own rule."""
    engine, total = asked.engine, asked.cluster.chip.visible_bytes
    other = memory.other_bytes(asked.plan, engine)
    if engine.memory.utilization_of == "free":
        return (total - loaded - peak - other) * utilization
    return total * utilization - loaded - (0 if engine.memory.utilization_of == "static" else peak + other)


def _stage(asked: Setup, serving: Serving, stage: int, pp: int) -> Fit:
    model, plan, engine = asked.model, asked.plan, asked.engine
    total = asked.cluster.chip.visible_bytes
    lines = memory.weights(model, plan, engine, stage, pp)
    loaded = float(sum(w.nbytes for w in lines))
    tokens, seqs = serving.max_batched_tokens, serving.max_seqs
    peak = float(memory.activation_bytes(model, plan, engine, tokens, seqs, stage == pp - 1))
    other = float(memory.other_bytes(plan, engine))
    budget = total if engine.memory.utilization_of == "free" else total * serving.utilization
    left = float(_left(asked, loaded, peak, serving.utilization))
    available = serving.kv_cache_bytes or left
    pool = memory.kv_pool(model, plan, stage_layers(model, pp, engine.sends.odd_layers)[stage], serving.block_size)
    blocks = max(0, int(available // float(pool.bytes_per_block)))
    wanted = pool.blocks_per_request(serving.max_model_len, serving.block_size, serving.max_batched_tokens)
    over = max(0.0, loaded + peak + other + serving.kv_cache_bytes - total) if serving.kv_cache_bytes else 0.0
    if over:
        blocks = 0  # a fixed KV budget does not create memory
    return Fit(
        setup=asked,
        serving=serving,
        stage=stage,
        weights=tuple(lines),
        budget_bytes=budget,
        activation_bytes=peak,
        other_bytes=other,
        graph_bytes=engine.memory.graph_bytes,
        kv_bytes=available,
        kv_bytes_per_token=float(pool.bytes_per_token),
        kv_blocks=blocks,
        kv_tokens=blocks // pool.num_groups * serving.block_size,
        max_concurrency=blocks / wanted,
        needed_kv_bytes=wanted * float(pool.bytes_per_block),
        over_bytes=over,
    )


def _advice(failed: Fit) -> list[str]:
    """The nearest changes that would make it fit, each tried; written as options to add to the command."""
    asked, serving = failed.setup, failed.serving
    if failed.over_bytes:
        room = serving.kv_cache_bytes - failed.over_bytes
        return [f"--kv-cache-memory-bytes {room:.0f} (what the chip has left)"] if room > 0 else _more_gpus(failed)
    found = []
    longest = _longest(failed)
    if longest:
        found.append(f"--max-model-len {longest} (the longest request that fits as it is)")
    if not asked.plan.weights_dtype and not asked.model.quant:
        for dtype in ("fp8", "int4"):
            if judge(replace(asked, plan=replace(asked.plan, weights_dtype=dtype)), serving).fits:
                found.append(f"--dtype {dtype} (smaller weights)")
                break
    if asked.plan.kv_dtype != "fp8" and judge(replace(asked, plan=replace(asked.plan, kv_dtype="fp8")), serving).fits:
        found.append("--kv-dtype fp8")
    return found + _more_gpus(failed)


def _longest(failed: Fit) -> int:
    """The longest request whose blocks are there; 0 if not even a short one."""
    low, high = 0, failed.serving.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if judge(failed.setup, replace(failed.serving, max_model_len=middle)).fits:
            low = middle
        else:
            high = middle - 1
    return low // failed.serving.block_size * failed.serving.block_size


def _more_gpus(failed: Fit) -> list[str]:
    """The first larger plan that fits: on this cluster, on a full host of this chip, or on more such hosts."""
    asked, base, plan = failed.setup, failed.setup.cluster, failed.setup.plan
    now, dp = int(plan.tp) * int(plan.pp), int(plan.dp)
    wanted = {"engine": asked.engine, "dtype": plan.weights_dtype, "kv_dtype": plan.kv_dtype, "ep": AUTO_EP if plan.ep > 1 else 1}
    full = max(base.gpus_per_host, base.chip.gpus_per_host)
    screen = _screen(asked, failed.serving, bool(plan.ep > 1))
    for place in [base] + [_hosts(base, n, full) for n in (1, 2, 4, 8, 16, 32, 64)]:
        if place.num_gpus <= now * dp:
            continue
        for candidate in _candidates(asked.model, place, dp, wanted, may=lambda t, p: t * p > now and screen(t, p)):
            if judge(candidate, failed.serving).fits:
                size = int(candidate.plan.tp) * int(candidate.plan.pp)
                where = "" if place.key == base.key else f" --cluster {place.key}"
                pipeline = f" -pp {candidate.plan.pp}" if candidate.plan.pp != 1 or plan.pp != 1 else ""
                return [f"-tp {candidate.plan.tp}{pipeline}{where} ({plural(size * dp, 'GPU')})"]
    return []


def _hosts(base: Cluster, count: int, gpus: int) -> Cluster:
    """``count`` full hosts of the same kind, under the name that a user would type."""
    named = base.key if base.num_hosts == 1 else base.key.split("x", 1)[1]
    if named in catalog.keys("clusters"):
        return catalog.cluster(named if count == 1 else f"{count}x{named}")
    key = f"{count}x{gpus}x{base.chip.key}" if count > 1 else f"{gpus}x{base.chip.key}"
    return replace(base, key=key, num_hosts=count, gpus_per_host=gpus)


@dataclass(frozen=True, slots=True)
class TrainFit:
    """Whether a training plan fits in a rank's memory."""

    setup: Setup
    step: TrainStep
    memory: TrainMemory
    budget_bytes: float
    advice: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return bool(self.memory.total <= self.budget_bytes)

    @property
    def shortfall_bytes(self) -> float:
        return max(0.0, float(self.memory.total) - self.budget_bytes)


def train_fit(
    model: str | Model,
    cluster: str | Cluster,
    *,
    batch: int = 1,
    micro_batch: int = 1,
    context: int = 4096,
    gpu_memory_utilization: float = 0.95,
    **plan: Any,
) -> TrainFit:
    """Training memory of one rank of the first stage against the share of the chip that a run can use."""
    for value, name in ((batch, "batch"), (micro_batch, "micro_batch"), (context, "context")):
        positive(value, name)
    check_utilization(gpu_memory_utilization)
    plan.setdefault("microbatches", microbatches(batch, micro_batch))
    asked = setup(model, cluster, phase="train", **plan)
    _check_memory(asked)
    check_lengths(context, asked)
    step = TrainStep(micro_batch, context)
    judged = _train_judge(asked, step, asked.cluster.chip.visible_bytes * gpu_memory_utilization)
    return judged if judged.fits else replace(judged, advice=tuple(_train_advice(judged)))


def _train_judge(asked: Setup, step: TrainStep, budget: float) -> TrainFit:
    return TrainFit(asked, step, training_memory(asked.model, asked.plan, step, asked.engine), budget)


def _train_advice(failed: TrainFit) -> list[str]:
    """The first changes that would make it fit: recomputation, sharding, wider tp, then a pipeline too."""
    asked, plan = failed.setup, failed.setup.plan
    sharded = 3 if asked.engine.trains.master_is_parameter or plan.pp == 1 else 1
    tries: list[tuple[str, dict[str, Any]]] = [("--recompute full", {"recompute": "full"})]
    if plan.dp > 1 and plan.zero < sharded:
        tries += [(f"--zero {z}", {"zero": z}) for z in range(plan.zero + 1, sharded + 1)]
    degrees = legality.legal_values("tp", asked.model, asked.cluster, plan, asked.engine)
    wide = {"sequence_parallel": True, "recompute": "full"}
    tries += [(f"-tp {t} --sequence-parallel --recompute full", {"tp": t, **wide}) for t in degrees if t > plan.tp]
    widest = max((t for t in degrees if t <= asked.cluster.domain), default=1)
    room = asked.cluster.num_gpus // (widest * int(plan.dp))
    for stages in range(2, min(room, asked.model.num_layers) + 1):
        if plan.zero <= 1 and asked.model.num_layers % stages == 0:
            words = f"-tp {widest} -pp {stages} --sequence-parallel --recompute full"
            tries.append((words, {"tp": widest, "pp": stages, **wide}))
    for words, change in tries:
        other = replace(asked, plan=replace(plan, **change))
        if _train_judge(other, failed.step, failed.budget_bytes).fits:
            return [words]
    return []
