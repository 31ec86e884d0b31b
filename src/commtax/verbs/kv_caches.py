"""KV caches of one plan or of arrays: the room that engines count beside weights and activations, and what carries them away."""

from collections.abc import Callable
from dataclasses import fields
from functools import reduce

import numpy as np

from commtax.arrays import cache_answers, pick, unique_values
from commtax.cost import memory
from commtax.cost.caches import KvPool
from commtax.cost.inventory import stage_layers
from commtax.question import Limits, Question
from commtax.records import replace
from commtax.rules.drafts import drafter_of, stage_pool
from commtax.spec import Cluster, Number


def limits_of(q: Question) -> Limits:
    """Return the limits of a question, the engine's own where it sets none."""
    engine, requested = q.engine, q.limits
    tokens = requested.max_num_batched_tokens or engine.serves.max_batched_tokens
    usual = memory.default_utilization(q.cluster.chip, q.plan, engine, tokens)
    defaults = Limits(q.model.max_len, engine.serves.max_seqs, tokens, usual, engine.memory.block_size)
    return replace(defaults, **{f.name: value for f in fields(requested) if (value := getattr(requested, f.name))})


def different_stages(q: Question, pp: int) -> list[int]:
    """Return one stage of each kind: equal stages are judged once."""
    model, alike = q.model, dict[tuple[object, ...], int]()
    for stage, layers in enumerate(stage_layers(model, pp, q.engine.sends.odd_layers)):
        kinds = tuple(sum(model.layers[i] == kind for i in layers) for kind in range(len(model.blocks)))
        alike.setdefault((kinds, stage == 0, stage == pp - 1), stage)
    return list(alike.values())


def cache_tokens(q: Question) -> Number:
    """Return the KV tokens that one replica has room for, as ``judge`` does, of arrays of plans at once, 0 where one is illegal."""
    return _of_plans(replace(q.normal(), limits=replace(q.limits, max_model_len=0), codes=q.codes), _stage_tokens)


def full_length_requests(q: Question) -> Number:
    """Return how many requests of ``max_model_len`` tokens (by default the model's own) one replica has room for, of arrays too."""
    return _of_plans(replace(q.normal(), limits=q.limits, codes=q.codes), _stage_requests)


@cache_answers
def _of_plans(q: Question, figure: Callable[[Question, int, int], Number]) -> Number:
    """Return a figure of a stage, by its number and how many there are: of the stage where it is least, of each plan."""
    plan, sizes = q.plan, (q.plan.tp, q.plan.pp, q.plan.dp, q.plan.ep)
    shape = np.broadcast_shapes(*map(np.shape, sizes))
    columns = [np.broadcast_to(x, shape).ravel() for x in (*sizes, np.asarray(q.codes) == 0)]
    table, where = np.unique(np.stack(columns, axis=-1), axis=0, return_inverse=True)
    figures = np.zeros(len(table))
    groups = table[:, 0] * table[:, 1] if q.engine.memory.reserve else 0 * table[:, 0]  # a reserve may grow with a copy's ranks
    for pp, ranks in unique_values(np.stack([table[:, 1], groups], axis=-1)[table[:, 4] == 1], axis=0).astype(int).tolist():
        alike = (table[:, 1] == pp) & (groups == ranks) & (table[:, 4] == 1)
        tp, _, dp, ep, _ = table[alike].T
        one = replace(q, plan=replace(plan, tp=tp, pp=pp, dp=dp, ep=ep))
        one = replace(one, limits=limits_of(one))
        figures[alike] = reduce(np.minimum, (figure(one, stage, pp) for stage in different_stages(q, pp)))
    spread = figures[where.ravel()].reshape(shape)
    return spread if shape else float(spread)


def _stage_tokens(q: Question, stage: int, pp: int) -> Number:
    blocks, pool = _stage_blocks(q, stage, pp)
    return pool.tokens(blocks)


def _stage_requests(q: Question, stage: int, pp: int) -> Number:
    blocks, pool = _stage_blocks(q, stage, pp)
    wanted = pool.blocks_per_request(q.limits.max_model_len, in_flight_tokens(q))
    return np.minimum(blocks / wanted, pool.places(pool.tokens(blocks)))


def in_flight_tokens(q: Question) -> int:
    """Return the tokens that may be scheduled and not yet computed, of one step or of all in flight, as windows keep them."""
    steps = int(q.plan.pp) + q.engine.serves.ahead if q.engine.states.windows_in_flight else 1
    return steps * q.limits.max_num_batched_tokens


def most_seqs_to_start(q: Question) -> Number:
    """Return the largest ``max_num_seqs`` that an engine starts with, of arrays too: infinite where states need no blocks."""
    return _of_plans(q, lambda *stage: _stage_blocks(*stage)[0]) if needs_blocks_for_states(q) else np.inf


def needs_blocks_for_states(q: Question) -> bool:
    """Return whether the engine starts only with a block for the state of each sequence."""
    return q.engine.states.block_per_state and bool(q.model.recurrent) and not q.what_if.eager


def _stage_blocks(q: Question, stage: int, pp: int) -> tuple[Number, KvPool]:
    lines, peak, pool = stage_contents(q, stage, pp)
    return cache_blocks(q, sum(w.nbytes for w in lines), peak, pool)[-1], pool


def stage_contents(q: Question, stage: int, pp: int) -> tuple[list[memory.WeightLine], Number, KvPool]:
    """Return what a rank of a stage holds: its weights, its activations at their peak, and how it keeps keys and values."""
    model, plan, engine, room, last = q.model, q.plan, q.engine, q.limits, stage == pp - 1
    sampled = room.max_num_seqs * (2 if q.speculative else 1)  # with a draft, in vLLM's dummy run of its rejection sampler
    peak = memory.activation_bytes(model, plan, engine, room.max_num_batched_tokens, sampled, last)
    drafting = memory.drafter_weights(drafter_of(q), plan, engine) if last else []
    return [*memory.weights(model, plan, engine, stage, pp), *drafting], peak, stage_pool(q, stage, pp, room.block_size)


def cache_blocks(q: Question, loaded: Number, peak: Number, pool: KvPool) -> tuple[Number, Number, Number]:
    """Return bytes of the blocks, bytes by which a fixed cache exceeds the chip, and blocks: a fixed one does not create memory."""
    fixed = q.limits.kv_cache_memory_bytes
    used = loaded + peak + memory.other_bytes(q.plan, q.engine) + fixed
    over = np.maximum(0.0, used - q.cluster.chip.visible_bytes) if fixed else 0.0
    available = (fixed or bytes_left_for_cache(q, loaded, peak)) / (1 + pool.share * np.any(pool.state_bytes))
    return available, over, pick(over > 0, 0.0, np.maximum(0.0, available // pool.bytes_per_block))


def bytes_left_for_cache(q: Question, loaded: Number, peak: Number) -> Number:
    """Return the bytes that weights and activations leave for the cache, by the engine's own rule."""
    engine, total, share = q.engine, q.cluster.chip.visible_bytes, q.limits.gpu_memory_utilization
    other = memory.other_bytes(q.plan, engine)
    if engine.memory.utilization_of == "free":
        return (total - loaded - peak - other) * share
    return total * share - loaded - (0 if engine.memory.utilization_of == "static" else peak + other)


def outside_Bps(cluster: Cluster, gpus: Number) -> Number:
    """Return the rate of a GPU that leaves its host, while so many of the cluster do."""
    nics, each = cluster.nics_per_host, cluster.gpus_per_host
    return cluster.inter.bandwidth_Bps * np.minimum(max(1.0, nics / each), nics / np.minimum(each, gpus))
