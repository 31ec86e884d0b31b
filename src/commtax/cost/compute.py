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
from commtax.cost.adapters import adapter_kernels
from commtax.cost.caches import kv_bytes_per_token_layer
from commtax.cost.entries import Makers, causal_pairs, chosen_pairs, projections
from commtax.cost.kernel import Kernel, Step
from commtax.cost.placement import tokens_split
from commtax.cost.routed import routed
from commtax.cost.streams import quantising, stream_kernels
from commtax.cost.tensors import padded_vocab
from commtax.ledger import Part, Place
from commtax.spec import DTYPE_BYTES, Attention, DeltaNet, Engine, Experts, Mixer, Mlp, Model, Number, Plan, Workload


def step_kernels(
    model: Model,
    plan: Plan,
    work: Workload,
    rows: Number,
    engine: Engine,
    exchange: str = "",
    imbalance: float = 0.0,
    sorts: bool = False,
) -> list[Kernel]:
    """Every kernel of one step, all pipeline stages in sequence; ``exchange`` and ``imbalance`` as in ``Step``.

    ``sorts``: tokens are drawn from the most likely ones.
    """
    step = Step(model, plan, work, rows, engine, exchange, imbalance)
    kernels = [*_layers(step), head_kernel(model, plan, work.samples, engine), *_tower(step)]
    if engine.key != "torch":
        kernels.append(step.small("embedding and final norm", "embedding", "", 2, rows * model.hidden * 4))
    if sorts and engine.kernels.sort_launches:
        kernels.append(_sampler(step))
    return kernels


def _sampler(s: Step) -> Kernel:
    """Tokens drawn from the most likely ones by an engine that sorts the logits of each row: many passes over all of them."""
    runs, logits = s.engine.kernels, s.work.samples * s.model.vocab
    moved = logits * runs.sort_bytes / runs.sort_launches / DTYPE_BYTES[s.plan.activations_dtype]
    return s.small("sampling", "head", "", runs.sort_launches, moved, fusable=False)


def layer_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine, training: bool = False) -> list[Kernel]:
    """The kernels of all layers. ``training`` absorbs nothing: keys and values of every head are made."""
    return _layers(Step(model, plan, work, rows, engine), training)


def _layers(step: Step, training: bool = False) -> list[Kernel]:
    layers = (kernel for make, thing, count in _parts(step.model, training) for kernel in make(step, thing, count))
    return [*layers, *adapter_kernels(step)]


def head_kernel(model: Model, plan: Plan, rows: Number, engine: Engine) -> Kernel:
    """Logits of ``rows`` rows over this rank's part of the vocabulary."""
    step, name = Step(model, plan, Workload(), rows, engine), "" if model.tied else "lm_head"
    return step.gemm("head", "head", "", 1, rows, padded_vocab(model, plan, engine) / plan.tp, model.hidden, name)


Maker = Callable[[Step, Any, int], Iterator[Kernel]]


@lru_cache(maxsize=256)
def _parts(model: Model, training: bool) -> tuple[tuple[Maker, object, int], ...]:
    """The different parts of the layers and how many layers have each: layers that differ in one part share the others."""
    groups: dict[tuple[Maker, object], int] = {}
    for index, block in enumerate(model.blocks):
        halves = (block.mixer is not None) + (block.ffn is not None)
        for key in (*_mixing(block.mixer, training), *_widening(block.ffn), (_norms, block.num_norms), (stream_kernels, halves)):
            groups[key] = groups.get(key, 0) + model.layers.count(index)
    return tuple((make, thing, count) for (make, thing), count in groups.items())


def _mixing(mixer: Mixer | None, training: bool) -> Iterator[tuple[Maker, object]]:
    """Projections are the same whatever the window. Training makes keys and values of every head."""
    if isinstance(mixer, Attention):
        kind = _makers(mixer)
        if kind is None:
            yield projections, replace(mixer, window=0)
            yield decode_attention, mixer
            yield prefill_attention, mixer
        elif training:
            yield kind.trained, replace(mixer, window=0)
            yield prefill_attention, mixer
        else:
            yield kind.projections, replace(mixer, window=0)
            yield kind.attention, mixer
    elif mixer:
        from commtax.cost.linear_attention import delta_kernels, mamba_kernels

        yield (delta_kernels if isinstance(mixer, DeltaNet) else mamba_kernels), mixer


def _tower(step: Step) -> Iterator[Kernel]:
    """Of a model that sees."""
    if step.model.tower:
        from commtax.cost.tower import tower_kernels

        yield from tower_kernels(step)


def _makers(mixer: Attention) -> Makers | None:
    """What makes kernels of an attention that is not plain; imported for models that have it."""
    if mixer.latent:
        from commtax.cost import latent

        return latent.MAKERS
    if mixer.compressed:
        from commtax.cost import compressed

        return compressed.MAKERS
    if mixer.indexer:
        from commtax.cost import blocks

        return blocks.MAKERS
    return None


def _widening(ffn: Mlp | Experts | None) -> Iterator[tuple[Maker, object]]:
    """Layers whose experts are chosen by a table or with a corrected score have the kernels of the others."""
    if isinstance(ffn, Mlp):
        yield _mlp, ffn
    elif ffn:
        yield _mixture, replace(ffn, hashed=0, correction_bias=False)


def _norms(s: Step, num_norms: int, count: int) -> Iterator[Kernel]:
    """Residual add and norm: reads hidden and residual, writes both."""
    yield s.small("norms", "norms", "", count * num_norms, s.rows * s.model.hidden * 4)


def _cache(s: Step, a: Attention) -> tuple[Number, Number]:
    """KV heads of a rank, and the bytes that a token has in its cache."""
    kv_heads = 1.0 if a.latent else a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)
    return kv_heads, kv_bytes_per_token_layer(replace(a, indexer=None), s.plan.tp, s.plan.kv_dtype)


def decode_attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Decode reads every cached key and value."""
    seqs, work, heads = s.work.decode_seqs, s.work, a.num_heads / s.plan.tp
    kv_heads, per_token = _cache(s, a)
    length = work.cached_tokens / np.maximum(1, seqs) + work.rows_per_seq
    length = np.minimum(length, a.window) if a.window else length
    flops = 2 * seqs * work.rows_per_seq * heads * length * (a.head_dim + a.v_head_dim)
    shape = (seqs, heads * work.rows_per_seq, kv_heads, a.head_dim, length, 0)
    stored, moved = DTYPE_BYTES[s.plan.kv_dtype], seqs * length * per_token
    yield s.attention("decode", seqs, count, flops, moved, shape, stored, a.window)


def prefill_attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Prefill computes the causal half of new x (past + new)."""
    seqs, tokens, heads = s.work.prefill_seqs, s.work.prefill_tokens, a.num_heads / s.plan.tp
    kv_heads, per_token = _cache(s, a)
    new, past = tokens / np.maximum(1, seqs), s.work.past_tokens / np.maximum(1, seqs)
    width = a.head_dim + a.v_head_dim
    moved = tokens * (heads * width) * DTYPE_BYTES[s.plan.activations_dtype]
    flops = 2 * seqs * heads * _pairs(new, past, a) * width
    shape = (seqs, heads, kv_heads, a.head_dim, new, past)
    yield s.attention("prefill", tokens, count, flops, moved + seqs * (new + past) * per_token, shape, window=a.window)


def _pairs(new: Number, past: Number, a: Attention) -> Number:
    """Query-key pairs of one prompt: the causal half of the new tokens, all of the past, cut to the window or to what is chosen."""
    if a.compressed:
        from commtax.cost import compressed

        return compressed.pairs(new, past, a, a.compressed)
    limit = a.window or (a.indexer.top_k if a.indexer else 0)
    return chosen_pairs(new, past, limit) if limit else causal_pairs(new, past)


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
    yield (widening := s.gemm(f"{part} {up[0]}", part, up[1], count, rows, both, s.model.hidden, f"{name}.gate_proj"))
    yield from quantising(s, widening)
    yield s.small(f"{part} activation", part, "activation", count, rows * (both + width))
    yield s.gemm(f"{part} down", part, "down", count, rows, s.model.hidden, width, f"{name}.down_proj")
