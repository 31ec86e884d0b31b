"""The kernels of one step on one rank: shapes, FLOPs and bytes of every operation, for any mix of decode and prefill.

A step is a list of ``Kernel``s with the shapes that decide their time; ``kernels.py`` turns shapes into seconds. Layers of
one kind share their kernels, so the list stays short whatever the depth.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from commtax.arrays import pick
from commtax.cost.caches import kv_bytes_per_token_layer
from commtax.cost.kernel import Kernel, Step
from commtax.cost.placement import tokens_split
from commtax.cost.routed import routed
from commtax.cost.tensors import padded_vocab
from commtax.cost.tower import tower_kernels
from commtax.ledger import Part, Place
from commtax.spec import DTYPE_BYTES, Attention, Engine, Experts, Latent, Mixer, Mlp, Model, Number, Plan, Workload


def step_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> list[Kernel]:
    """Every kernel of one step, all pipeline stages in sequence."""
    kernels = [*layer_kernels(model, plan, work, rows, engine), head_kernel(model, plan, work.samples, engine)]
    kernels += tower_kernels(Step(model, plan, work, rows, engine))
    if engine.key != "torch":
        step = Step(model, plan, work, rows, engine)
        kernels.append(step.small("embedding and final norm", "embedding", "", 2, rows * model.hidden * 4))
    return kernels


def layer_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> list[Kernel]:
    """The kernels of all layers."""
    step = Step(model, plan, work, rows, engine)
    return [kernel for make, thing, count in _parts(model) for kernel in make(step, thing, count)]


def head_kernel(model: Model, plan: Plan, rows: Number, engine: Engine) -> Kernel:
    """Logits of ``rows`` rows over this rank's part of the vocabulary."""
    step, name = Step(model, plan, Workload(), rows, engine), "" if model.tied else "lm_head"
    return step.gemm("head", "head", "", 1, rows, padded_vocab(model, plan, engine) / plan.tp, model.hidden, name)


Maker = Callable[[Step, Any, int], Iterator[Kernel]]


@lru_cache(maxsize=256)
def _parts(model: Model) -> tuple[tuple[Maker, object, int], ...]:
    """The different parts of the layers and how many layers have each: layers that differ in one part share the others."""
    groups: dict[tuple[Maker, object], int] = {}
    for index, block in enumerate(model.blocks):
        for key in (*_mixing(block.mixer), *_widening(block.ffn), (_norms, block.num_norms)):
            groups[key] = groups.get(key, 0) + model.layers.count(index)
    return tuple((make, thing, count) for (make, thing), count in groups.items())


def _mixing(mixer: Mixer | None) -> Iterator[tuple[Maker, object]]:
    if isinstance(mixer, Attention):
        yield _projections, replace(mixer, window=0)
        yield _decode_attention, mixer
        yield _prefill_attention, mixer


def _widening(ffn: Mlp | Experts | None) -> Iterator[tuple[Maker, object]]:
    if ffn:
        yield _mlp if isinstance(ffn, Mlp) else _mixture, ffn


def _norms(s: Step, num_norms: int, count: int) -> Iterator[Kernel]:
    """Residual add and norm: reads hidden and residual, writes both."""
    yield s.small("norms", "norms", "", count * num_norms, s.rows * s.model.hidden * 4)


def _projections(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    if a.latent:
        yield from _latent_projections(s, a, a.latent, count)
    else:
        kv = a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
        width = a.num_heads * a.head_dim / tp + kv * (a.head_dim + a.v_head_dim)
        yield s.gemm("QKV projection", "projections", "qkv", count, rows, width, h, "self_attn.q_proj")
        yield s.small("rotary and KV write", "projections", "rotary", 2 * count, rows * width)
        if a.qk_norm and (launches := s.engine.kernels.head_norm_kernels):
            yield s.small("query and key norms", "projections", "query", launches * count, rows * width)
    width = a.num_heads * a.v_head_dim / tp
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, width, "self_attn.o_proj")


def _latent_projections(s: Step, a: Attention, m: Latent, count: int) -> Iterator[Kernel]:
    """Down-projections are whole on every rank. Decode folds the up-projection into query and output (absorbed)."""
    h, heads, rows, work = s.model.hidden, a.num_heads / s.plan.tp, s.rows, s.work
    low = m.q_rank + m.kv_rank + m.rope_dim
    yield s.gemm("latent down-projection", "projections", "down-projection", count, rows, low, h, "self_attn.q_a_proj")
    width = heads * (m.nope_dim + m.rope_dim)
    yield s.gemm("query up-projection", "projections", "query", count, rows, width, m.q_rank or h, "self_attn.q_b_proj")
    yield s.small("rotary, latent norms and KV write", "projections", "rotary", 3 * count, rows * low)
    decode = work.decode_seqs * work.rows_per_seq
    some = pick(np.asarray(decode) > 0, count, 0)
    yield s.gemm("absorbed key projection", "projections", "key", some, decode, heads * m.kv_rank, m.nope_dim)
    yield s.gemm("absorbed value projection", "projections", "value", some, decode, heads * a.v_head_dim, m.kv_rank)
    prompts = pick(np.asarray(work.prefill_tokens) > 0, count, 0)
    shape = (work.prefill_tokens, heads * (m.nope_dim + a.v_head_dim), m.kv_rank)
    yield s.gemm("key/value up-projection", "projections", "key", prompts, *shape, "self_attn.kv_b_proj")
    if a.indexer and a.indexer.own:
        width = a.indexer.num_heads * a.indexer.head_dim + a.indexer.head_dim + a.indexer.num_heads
        yield s.gemm("token selector", "projections", "", count, rows, width, m.q_rank or h, "self_attn.indexer.wq_b")


def _cache(s: Step, a: Attention) -> tuple[Number, Number]:
    """KV heads of a rank, and the bytes that a token has in its cache (a selector's keys are read beside it)."""
    kv_heads = 1.0 if a.latent else a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)
    return kv_heads, kv_bytes_per_token_layer(replace(a, indexer=None), s.plan.tp, s.plan.kv_dtype)


def _decode_attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Decode reads every cached key and value."""
    seqs, work, heads = s.work.decode_seqs, s.work, a.num_heads / s.plan.tp
    kv_heads, per_token = _cache(s, a)
    k_dim = a.latent.kv_rank + a.latent.rope_dim if a.latent else a.head_dim
    v_dim = a.latent.kv_rank if a.latent else a.v_head_dim
    length = _seen(work.cached_tokens / np.maximum(1, seqs) + work.rows_per_seq, a)
    flops = 2 * seqs * work.rows_per_seq * heads * length * (k_dim + v_dim)
    shape = (seqs, heads * work.rows_per_seq, kv_heads, k_dim, length, 0)
    yield s.attention("decode", seqs, count, flops, seqs * length * per_token, shape, DTYPE_BYTES[s.plan.kv_dtype])


def _prefill_attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Prefill computes the causal half of new x (past + new)."""
    seqs, tokens, heads = s.work.prefill_seqs, s.work.prefill_tokens, a.num_heads / s.plan.tp
    kv_heads, per_token = _cache(s, a)
    new, past = tokens / np.maximum(1, seqs), s.work.past_tokens / np.maximum(1, seqs)
    width = a.head_dim + a.v_head_dim
    moved = tokens * (heads * width) * DTYPE_BYTES[s.plan.activations_dtype]
    flops = 2 * seqs * heads * _pairs(new, past, a) * width
    shape = (seqs, heads, kv_heads, a.head_dim, new, past)
    yield s.attention("prefill", tokens, count, flops, moved + seqs * (new + past) * per_token, shape)


def _seen(length: Number, a: Attention) -> Number:
    """Keys that a decoding query looks at: all, the window's, or those that a selector picks."""
    if a.window:
        length = np.minimum(length, a.window)
    return np.minimum(length, a.indexer.top_k) if a.indexer else length


def _pairs(new: Number, past: Number, a: Attention) -> Number:
    """Query-key pairs of one prompt: the causal half of the new tokens, all of the past, cut to the window."""
    full = new * (new + 1) / 2 + new * past
    limit = a.window or (a.indexer.top_k if a.indexer else 0)
    if not limit:
        return full
    head = np.maximum(0, np.minimum(new, limit - past))  # queries that still see everything
    return head * (head + 1) / 2 + head * past + (new - head) * limit


def _mlp(s: Step, f: Mlp, count: int) -> Iterator[Kernel]:
    yield from _dense(s, "feed-forward", f.intermediate / s.plan.tp, f.gated, count, s.rows, "mlp")


def _mixture(s: Step, f: Experts, count: int) -> Iterator[Kernel]:
    yield s.gemm("router", "router", "router", count, s.rows, f.num_experts, s.model.hidden)
    if f.latent:
        yield s.gemm("to the experts' width", "experts", "router", count, s.rows, f.latent, s.model.hidden, "mlp.fc1_latent_proj")
        yield s.gemm("from the experts' width", "experts", "output", count, s.rows, s.model.hidden, f.latent, "mlp.fc2_latent_proj")
    yield from routed(s, f, count)
    if f.shared_intermediate:
        split = np.asarray(tokens_split(s.model, s.plan, s.engine))
        rows = pick(split, np.ceil(s.rows / s.plan.tp), s.rows)
        width = f.shared_intermediate / pick(split, 1, s.plan.tp)
        yield from _dense(s, "shared expert", width, f.gated, count, rows, "mlp.shared_experts")


def _dense(s: Step, part: Part, width: Number, gated: bool, count: int, rows: Number, name: str) -> Iterator[Kernel]:
    both = (2 if gated else 1) * width
    up: tuple[str, Place] = ("gate and up", "gate") if gated else ("up", "up")
    yield s.gemm(f"{part} {up[0]}", part, up[1], count, rows, both, s.model.hidden, f"{name}.gate_proj")
    yield s.small(f"{part} activation", part, "activation", count, rows * (both + width))
    yield s.gemm(f"{part} down", part, "down", count, rows, s.model.hidden, width, f"{name}.down_proj")
