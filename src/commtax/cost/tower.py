"""Kernels of encoders: vision and audio towers, whose tokens all see each other."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.kernel import Kernel, Step
from commtax.ledger import Item
from commtax.spec import DTYPE_BYTES, Model, Number, Plan, Tower, Workload

ACTIVATION_BYTES = 2.0  # bf16


def encoder_attention(batch: Number, length: Number, heads: Number, head_dim: Number) -> Kernel:
    """Attention of ``length`` tokens over each other: 4 length^2 FLOPs an element of each head; four tensors move."""
    flops, nbytes = 4.0 * batch * heads * length**2 * head_dim, 4 * ACTIVATION_BYTES * batch * length * heads * head_dim
    plain = Kernel("encoder attention", "encoder", 1, flops, nbytes, batch=batch, heads=heads, kv_heads=heads)
    return replace(plain, length=length, head_dim=head_dim)


def tower_kernels(s: Step) -> Iterator[Kernel]:
    """A vision tower over the pictures of a step: patches in, its layers, then what hands tokens to the decoder.

    Ranks share its weights, or each has it whole and looks at its own of the pictures.
    """
    t = s.model.tower
    if t is None or not np.any(s.work.pictures):
        return
    cut = 1 if s.plan.tower == "data" else s.plan.tp
    pictures = looked_at(s.plan, s.work)
    rows, first = pictures * s.work.patches, t.tensors[0][1]
    some = pick(np.asarray(pictures) > 0, 1, 0)
    yield s.gemm("tower patches", "tower", "", some, rows, t.hidden, int(np.prod(first)) // t.hidden)
    yield from _layer_kernels(s, t, rows, cut, some * t.num_layers)
    attention = encoder_attention(pictures, s.work.patches, t.num_heads / cut, t.head_dim)
    yield replace(attention, what="tower attention", count=some * t.num_layers, part="tower")
    for name, shape, copies in t.projector:
        if len(shape) > 1:
            out, into = shape[-2:]
            tokens = rows / t.patches_per_token
            yield s.gemm(f"tower {name.removesuffix('.weight')}", "tower", "", some * copies, tokens, out, into)


def _layer_kernels(s: Step, t: Tower, rows: Number, cut: Number, count: Number) -> Iterator[Kernel]:
    """Products, norms and activation of its layers."""
    width, wide, both = t.num_heads * t.head_dim / cut, t.intermediate / cut, 2 if t.gated else 1
    yield s.gemm("tower QKV projection", "tower", "", count, rows, 3 * width, t.hidden)
    yield s.gemm("tower output projection", "tower", "", count, rows, t.hidden, width)
    yield s.gemm("tower feed-forward up", "tower", "", count, rows, both * wide, t.hidden)
    yield s.gemm("tower feed-forward down", "tower", "", count, rows, t.hidden, wide)
    yield s.small("tower norms", "tower", "", 2 * count, rows * t.hidden * 4)
    yield s.small("tower activation", "tower", "", count, rows * (both + 1) * wide)


def looked_at(plan: Plan, work: Workload) -> Number:
    """Pictures that the busiest rank looks at: all, where ranks share the tower's weights."""
    return np.ceil(work.pictures / plan.tp) if plan.tower == "data" else work.pictures


def tower_items(model: Model, plan: Plan, work: Workload) -> list[Item]:
    """What the ranks of a tower send: two sums a layer where they share its weights; else every rank's tokens to all."""
    t = model.tower
    if t is None or not np.any(work.pictures):
        return []
    act, several = DTYPE_BYTES[plan.activations_dtype], np.asarray(plan.tp) > 1
    patches = work.pictures * work.patches
    sums, tokens = patches * t.hidden * act, patches / t.patches_per_token * model.hidden * act
    shared = plan.tower != "data"
    return [
        Item("tower output", "tp", "all-reduce", sums, plan.tp, pick(several & shared, 2 * t.num_layers, 0), part="tower"),
        Item("tower tokens", "tp", "all-gather", tokens, plan.tp, pick(several & (not shared), 1, 0), part="tower"),
    ]
