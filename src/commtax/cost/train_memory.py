"""What one rank must hold to train: parameters, gradients, optimiser state, and the activations in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commtax.arrays import pick
from commtax.cost.schedules import SCHEDULES, first_layers, kept_layers, passes_of
from commtax.cost.tensors import padded_vocab
from commtax.cost.train_traffic import by_pp, fullest_layers, holders, stage_params
from commtax.spec import DTYPE_BYTES, Engine, Experts, Mlp, Model, Number, Plan, TrainStep

OPTIMIZER_BYTES = 12  # Adam: fp32 master copy, first and second moment
LOGIT_BYTES = 6  # bf16 as the head writes them, and fp32 for the loss
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class TrainMemory:
    """Bytes of one rank of the first pipeline stage, which keeps the most activations."""

    parameters: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number

    @property
    def total(self) -> Number:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def training_memory(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> TrainMemory:
    """ZeRO 1 divides the optimiser state over the data-parallel ranks, 2 the gradients too, 3 the parameters too.

    With a pipeline the parameters of ZeRO 3 stay gathered while microbatches pass, and gradients of ZeRO 2 and 3 add up whole
    until the last of them has passed a chunk.
    """
    params = stage_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine)
    ends = _beside(model, plan, params)
    dense, experts = params["layers"] + ends, params["experts"]
    piped = np.asarray(plan.pp) > 1

    def divided(nbytes: float, stage: int) -> Number:
        if plan.zero < stage:
            return (dense + experts) * nbytes
        return dense * nbytes / ranks + experts * nbytes / same_experts

    # Where the sharded parameter is the fp32 master copy, no other master is kept.
    whole, grads = DTYPE_BYTES[plan.activations_dtype], DTYPE_BYTES[plan.grads_dtype]
    mastered = engine.trains.master_is_parameter and plan.zero == 3
    weights = divided(4 if mastered else whole, 3)
    if plan.zero == 3:
        # one layer is whole while it is used, the next is on its way; with a pipeline all of the stage is
        some = np.minimum(1, pick(piped, 1, 2 / fullest_layers(model, plan)))
        weights = weights + some * (_gathered(params["layers"], ranks) + _gathered(experts, same_experts)) * whole
        weights = weights + pick(piped, _gathered(ends, ranks), 0) * whole
    rows = step.micro_batch * plan.share(step.seq)
    return TrainMemory(
        parameters=weights,
        gradients=np.minimum((dense + experts) * grads, divided(grads, 2) + _unreduced(plan) * (dense + experts) * grads),
        optimizer=divided(OPTIMIZER_BYTES - (4 if mastered else 0), 1),
        activations=activations(model, plan, step, engine) * in_flight(model, plan) + _working_set(model, plan, step, engine),
        logits=pick(np.asarray(plan.pp) == 1, rows * padded_vocab(model, plan, engine) / plan.tp * LOGIT_BYTES, 0),
    )


def _beside(model: Model, plan: Plan, params: Mapping[str, Number]) -> Number:
    """Parameters of embedding (and head) beyond those of the layers that their stage has less than the fullest one."""
    fullest = fullest_layers(model, plan)
    short = fullest - by_pp(plan.pp, lambda pp: first_layers(model.num_layers, pp, plan.chunks))
    return np.maximum(0, params["ends"] - short * (params["layers"] + params["experts"]) / fullest)


def _unreduced(plan: Plan) -> Number:
    """The share of a stage's gradients that microbatches still add to, under ZeRO 2 and 3.

    With a pipeline all of them; one chunk's where all microbatches pass a chunk before any passes the one before it.
    """
    if plan.zero < 2:
        return 0.0
    one = 1 / passes_of(plan) if plan.schedule == "interleaved" else 1.0
    return pick(np.asarray(plan.pp) > 1, pick(np.asarray(plan.microbatches) <= plan.pp, one, 1.0), 0.0)


def _gathered(params: Number, ranks: Number) -> Number:
    """Parameters that exist whole beside their shard: none where one rank has all of them."""
    return pick(np.asarray(ranks) > 1, params, 0)


def in_flight(model: Model, plan: Plan) -> Number:
    """Microbatches whose activations the first stage keeps: all under gpipe, at most pp under 1f1b, 2 pp - 1 under zb-h2.

    Interleaving v chunks keeps (p - 1)/(p v) more, as Narayanan et al. 2021 count it, where there are as many; where chunks
    have unequal layers it is the rank that keeps most, counted in stages of mean depth.
    """
    if plan.chunks > 1:
        return kept_layers(model.num_layers, plan.pp, plan.chunks, plan.microbatches) * plan.pp / model.num_layers
    return SCHEDULES[plan.schedule].kept(plan.pp, plan.microbatches, plan.chunks)


def activations(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> Number:
    """Activations that one stage keeps for one microbatch: s b h (8 + 24/t) bytes a layer of the GPT shape.

    That is Korthikanti et al. 2022, eq. 2 (s b h (10 + 24/t + 5 a s/(h t))) without dropout masks (2 of the 34); fused
    attention keeps no score matrix, and where it is not fused, selective recomputation drops it. An engine that keeps
    every other product drops about half. Sequence parallelism divides the 8 by t as well (eq. 4), less the inputs of
    the products where they are kept gathered. Full recomputation keeps a layer's input only.
    """
    rows = step.micro_batch * plan.share(step.seq)
    kept: Number = 0.0
    for index in range(len(model.blocks)):
        whole, split = _layer_bytes(model, index)
        if plan.recompute == "full":
            each = 2.0 * model.hidden / (plan.tp if plan.sequence_parallel else 1)
        else:
            each = _kept(whole, split + _scores(model, index, plan, step, engine), model, plan, engine)
        kept = kept + each * rows * model.layers.count(index) / plan.pp
    return kept


def _kept(whole: float, split: Number, model: Model, plan: Plan, engine: Engine) -> Number:
    """Bytes a row keeps in one layer on one rank."""
    gathered = 0 if engine.trains.regathers_inputs or not plan.sequence_parallel else 4 * model.hidden
    every = split / plan.tp + gathered + (whole - gathered) / (plan.tp if plan.sequence_parallel else 1)
    half = plan.recompute == "selective" and engine.trains.selective == "matmuls"
    return every / 2 if half else every


def _scores(model: Model, index: int, plan: Plan, step: TrainStep, engine: Engine) -> Number:
    """Bytes of the score matrix a row: softmax output, dropout mask and dropout output (2 + 1 + 2 a head and key)."""
    dropped = engine.trains.attention != "unfused" or plan.recompute == "selective"
    return 0.0 if dropped else 5.0 * model.blocks[index].attention.num_heads * step.seq


def _layer_bytes(model: Model, index: int) -> tuple[float, float]:
    """Bytes a row keeps in one layer: (norm and projection inputs, what tensor parallelism always splits).

    Fused attention is assumed: queries, keys, values and the output are kept, the score matrix is not.
    """
    block = model.blocks[index]
    a, f, h = block.attention, block.ffn, model.hidden
    qkv = 2 * (a.num_heads * a.head_dim + a.num_kv_heads * (a.head_dim + a.v_head_dim) + a.num_heads * a.v_head_dim)
    whole = 2 * h * (block.num_norms + 2)  # inputs of the norms, of the first attention and the first feed-forward matrix
    if isinstance(f, Mlp):
        return whole, qkv + 2 * f.intermediate * (3 if f.gated else 2)
    return whole, qkv + _expert_bytes(f, h)


def _expert_bytes(f: Experts, hidden: int) -> float:
    each = 2 * f.intermediate * (3 if f.gated else 2) + 2 * hidden
    return f.top_k * each + 2 * f.shared_intermediate * 3


def _working_set(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> Number:
    """Full recomputation rebuilds one layer at a time: its activations exist once beside the kept inputs."""
    if plan.recompute != "full":
        return 0.0
    rows = step.micro_batch * plan.share(step.seq)
    index = max(range(len(model.blocks)), key=lambda i: sum(_layer_bytes(model, i)))
    whole, split = _layer_bytes(model, index)
    return rows * _kept(whole, split + _scores(model, index, plan, step, engine), model, plan, engine)
