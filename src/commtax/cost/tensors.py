"""The part of each tensor that one rank holds, and the bytes that it is stored in."""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from commtax.arrays import pick
from commtax.cost.inventory import FIRST, Tensor, copies, formats, inventory
from commtax.cost.placement import expert_ranks, padded_vocab, tokens_split
from commtax.cost.schedules import SCHEDULES
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan, Quant

ROWWISE = "fp8-rowwise"
"""fp8 with a scale a row of either factor (torchao's recipe), which is cast anew for each of the three products."""
SCALES: dict[str, tuple[tuple[int, int], float]] = {
    ROWWISE: ((1, 0), 4.0),
    "mxfp8": ((1, 32), 1.0),
    "mxfp4": ((1, 32), 1.0),
    "nvfp4": ((1, 16), 1.0),
    "fp4": ((1, 32), 1.0),
    "int4": ((1, 128), 2.0),
}
"""Values that share a scale, and its bytes: OCP Microscaling formats 1.0, NVFP4, GPTQ and AWQ groups; others one fp32 a tensor."""


def share(split: str, model: Model, plan: Plan, engine: Engine, units: int = 1) -> Number:
    """The part of a tensor that one rank holds, by its split.

    heads, ffn, shared: 1/tp. kv: 1/tp until every rank has one of ``units`` heads, then copies. expert: 1/ep of the experts and of
    their copies, each split over the ranks that share it. vocab: 1/tp of the table padded to the engine's multiple.
    """
    tp = plan.tp
    if split == "full":
        return tp * 0 + 1.0
    if split == "tower":
        return tp * 0 + 1.0 if plan.tower == "data" else 1.0 / tp
    if split == "kv":
        return 1.0 / np.minimum(tp, units)
    if split == "vocab":
        return np.ceil(padded_vocab(model, plan, engine) / tp) / model.vocab
    if split == "shared":
        return pick(tokens_split(model, plan, engine), 1.0, 1.0 / tp)
    if split == "expert":
        return _replication_factor(model, plan) / (plan.ep * expert_ranks(plan, engine).inside)
    if split == "expert_bias":
        return tp * 0 + _replication_factor(model, plan) / plan.ep
    return 1.0 / tp


def _replication_factor(model: Model, plan: Plan) -> Number:
    """Experts that all ranks hold together, copies of popular ones among them, over the model's own."""
    return 1.0 + plan.redundant / model.experts.num_experts if model.experts and plan.redundant_experts else 1.0


def weight_bytes(model: Model, tensor: Tensor, plan: Plan) -> float:
    """Stored bytes of one whole copy of a tensor, scales and zero points included, averaged over its layers."""
    wanted = plan.weights_dtype
    plain = tensor.size * DTYPE_BYTES[wanted if wanted and DTYPE_BYTES[wanted] >= 2 else model.dtype]
    quant = quantisation(model, plan)
    stored = formats(model, tensor, quant) if quant else ()
    left = 1 - sum(fraction for _, fraction in stored)
    return sum(fraction * _quantised_bytes(tensor, q) for q, fraction in stored) + left * plain


def total_bytes(model: Model, plan: Plan) -> float:
    """Stored bytes of the whole model, once."""
    return sum(weight_bytes(model, t, plan) * copies(model, t) for t in inventory(model))


def quantisation(model: Model, plan: Plan) -> Quant | None:
    """The checkpoint's own, unless the plan asks for other weights."""
    if not plan.weights_dtype:
        return model.quant
    if DTYPE_BYTES[plan.weights_dtype] >= 2:
        return None
    if model.quant and any(q.dtype == plan.weights_dtype for q in model.quant.formats):
        return model.quant
    stored = "fp8" if plan.weights_dtype in (ROWWISE, "mxfp8") else plan.weights_dtype
    return Quant(plan.weights_dtype, stored, *SCALES.get(plan.weights_dtype, ((0, 0), 4.0)))


def _quantised_bytes(tensor: Tensor, quant: Quant) -> float:
    *stack, out, into = tensor.shape
    groups_out = math.ceil(out / quant.block[0]) if quant.block[0] else 1
    groups_in = math.ceil(into / quant.block[1]) if quant.block[1] else 1
    each = out * into * DTYPE_BYTES[quant.dtype] + groups_out * groups_in * (quant.scale_bytes + quant.zero_point_bits / 8)
    if quant.group_index:
        each += 4 * into
    return math.prod(stack) * each


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor as one rank of one stage holds it. ``ideal_bytes`` is an equal share; the rest is replication."""

    tensor: Tensor
    copies: int
    bytes_per_rank: Number
    ideal_bytes: Number


def stage_layers(model: Model, pp: int, odd: str = "before-last") -> list[range]:
    """Layers of each pipeline stage; an uneven split gives the odd layers to the stages that ``odd`` names.

    vLLM: those before the last. SGLang: the last ones. TensorRT-LLM: the first ones.

    >>> from commtax.catalog import model
    >>> [len(r) for r in stage_layers(model("llama-3.1-8b"), 5)]
    [6, 6, 7, 7, 6]
    """
    base, rest = divmod(model.num_layers, pp)
    sizes = [base] * pp
    start = {"before-last": pp - 1 - rest, "last": pp - rest, "first": 0}[odd]
    for i in range(start, start + rest):
        sizes[i] += 1
    ends = np.cumsum(sizes)
    return [range(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]


def held_tensors(model: Model, plan: Plan, engine: Engine, stage: int, pp: int) -> list[HeldTensor]:
    """What one rank of ``stage`` (of ``pp``) holds. The last stage of a tied model keeps its own copy of the table."""
    layers = stage_layers(model, pp, engine.sends.odd_layers)[stage]
    rows = []
    for tensor in inventory(model):
        if tensor.where >= 0:
            count = sum(model.layers[i] == tensor.where for i in layers)
        else:
            home = 0 if tensor.where == FIRST else pp - 1
            tied_copy = model.tied and tensor.split == "vocab" and stage == pp - 1
            count = int(stage == home or tied_copy)
        if count:
            whole = weight_bytes(model, tensor, plan) * count
            rows.append(HeldTensor(tensor, count, whole * share(tensor.split, model, plan, engine, tensor.units), whole / plan.tp))
    return rows


def by_pp(pp: Number, one: Callable[[int], float]) -> Number:
    """Apply a scalar function of pp to an array of them."""
    if np.ndim(pp) == 0:
        return float(one(int(pp)))
    values, back = np.unique(np.asarray(pp), return_inverse=True)
    results = np.array([one(int(v)) for v in values], dtype=float)
    return results[back].reshape(np.shape(pp))


def fullest_layers(model: Model, plan: Plan) -> Number:
    """Layers of the stage that has most."""
    return by_pp(plan.pp, lambda pp: sum(_fullest_stage_layers(model, pp)))


@lru_cache(maxsize=1024)
def _fullest_stage_layers(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of each kind on the first of the stages with the most layers."""
    stage = max(stage_layers(model, pp), key=len)
    return tuple(sum(model.layers[i] == where for i in stage) for where in range(len(model.blocks)))


def num_moe_layers(model: Model, plan: Plan) -> Number:
    """Layers with experts on the stage that has most of them."""
    return by_pp(plan.pp, partial(_most_moe_layers, model)) if model.experts else 0.0 * plan.pp


@lru_cache(maxsize=1024)
def _most_moe_layers(model: Model, pp: int) -> int:
    return max(sum(isinstance(model.blocks[model.layers[i]].ffn, Experts) for i in r) for r in stage_layers(model, pp))


def fullest_of(model: Model, plan: Plan) -> list[Number]:
    """Layers of each kind that a rank of the fullest stage holds: of two stages where microbatches enter at both ends."""
    both = pick(np.asarray(plan.pp) > 1, SCHEDULES[plan.schedule].directions, 1)

    def times(where: int) -> Number:
        return by_pp(plan.pp, lambda pp: _fullest_stage_layers(model, pp)[where])

    return [times(where) * both for where in range(len(model.blocks))]


def stage_params(model: Model, plan: Plan, engine: Engine) -> dict[str, Number]:
    """Parameters one rank of the fullest stage holds: of its layers, of their experts, and of embedding and head.

    Where microbatches enter at both ends a rank holds two stages: the first one's has the last beside it, head and all.
    """
    total: dict[str, Number] = {"layers": 0.0, "experts": 0.0, "ends": 0.0}
    directions = SCHEDULES[plan.schedule].directions
    alone = (np.asarray(plan.pp) == 1) | (directions > 1)
    layers = fullest_of(model, plan)
    for (split, units, group, where), size in _sizes(model).items():
        held = share(split, model, plan, engine, units) * size
        if where >= 0:
            held = held * layers[where]
        elif where != FIRST:  # head and final norm lie on the last stage: beside the embedding only without a pipeline
            held = pick(alone, held, 0)
        total[group] = total[group] + held
    return total


@lru_cache(maxsize=256)
def _sizes(model: Model) -> dict[tuple[str, int, str, int], int]:
    """Elements of all tensors that are split alike and lie alike: (split, units, whose, where)."""
    sizes: dict[tuple[str, int, str, int], int] = {}
    for t in inventory(model):
        group = "ends" if t.where < 0 else "experts" if t.part == "experts" else "layers"
        key = (t.split, t.units, group, t.where)
        sizes[key] = sizes.get(key, 0) + t.size
    return sizes
