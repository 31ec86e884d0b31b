"""The kernels of one step on one rank: shapes, FLOPs and bytes of every operation, for any mix of decode and prefill.

A step is a list of ``Kernel``s with the shapes that decide their time; ``kernels.py`` turns shapes into seconds. Layers of
one kind share their kernels, so the list stays short whatever the depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from commtax.arrays import pick
from commtax.cost.experts import busiest_rank, chosen_experts, expert_tp, experts_reach, tokens_split
from commtax.cost.memory import kv_bytes_per_token_layer
from commtax.cost.tensors import Tensor as Matrix
from commtax.cost.tensors import padded_vocab, quantisation, quantised_fraction
from commtax.spec import DTYPE_BYTES, Attention, Engine, Experts, Latent, Mlp, Model, Number, Plan, Workload

LOW_ARITHMETIC = ("fp8", "nvfp4")
"""Formats whose products quantise activations too, on chips that have the arithmetic; others only store weights small."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """``count`` launches of one shape. ``form``: gemm (m, n, k), decode or prefill attention, or small (bytes only).

    ``flops`` and ``nbytes`` are of one launch and are what physics charges at the least.
    """

    what: str
    form: str
    count: Number
    flops: Number
    nbytes: Number
    m: Number = 0
    n: Number = 0
    k: Number = 0
    dtype: str = "bf16"  # of the arithmetic
    weight_bytes: float = 2.0  # of one element of the matrix
    batch: Number = 0
    heads: Number = 0
    kv_heads: Number = 0
    head_dim: int = 128
    length: Number = 0  # keys a query sees (decode), new tokens a sequence (prefill)
    past: Number = 0
    grouped: float = 0.0  # a grouped product over experts: the share of a plain product's arithmetic rate that it attains
    fusable: bool = True  # a small kernel that an engine may run inside a neighbour
    fused: float = 0.0  # share of the launches that run inside a neighbour: their bytes move, their fixed time is gone
    static_scales: bool = False  # activations are quantised with known scales, inside the kernel before


def step_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> list[Kernel]:
    """Every kernel of one step, all pipeline stages in sequence."""
    kernels = [*layer_kernels(model, plan, work, rows, engine), head_kernel(model, plan, work.samples, engine)]
    if engine.key != "torch":
        kernels.append(_small("embedding and final norm", 2, rows * model.hidden * 4, plan))
    return [_as_run(k, engine) for k in kernels]


def _as_run(kernel: Kernel, engine: Engine) -> Kernel:
    """Engines fuse small kernels with their neighbours."""
    if kernel.form == "small" and kernel.fusable and engine.kernels.small_kernels != 1:
        return replace(kernel, fused=1 - engine.kernels.small_kernels)
    return kernel


def layer_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> list[Kernel]:
    """The kernels of all layers."""
    kernels: list[Kernel] = []
    for part, thing, count in _parts(model):
        kernels += _part(part, thing, count, model, plan, work, rows, engine)
    return kernels


def head_kernel(model: Model, plan: Plan, rows: Number, engine: Engine) -> Kernel:
    """Logits of ``rows`` rows over this rank's part of the vocabulary."""
    return _gemm("head", 1, rows, padded_vocab(model, plan, engine) / plan.tp, model.hidden, model, plan, "lm_head")


@lru_cache(maxsize=256)
def _parts(model: Model) -> tuple[tuple[str, object, int], ...]:
    """The different parts of the layers and how many layers have each: layers that differ in one part share the others."""
    groups: dict[tuple[str, object], int] = {}
    for index, block in enumerate(model.blocks):
        parts: tuple[tuple[str, object], ...] = (
            ("projections", replace(block.attention, window=0)),
            ("attention", block.attention),
            ("ffn", block.ffn),
            ("norms", block.num_norms),
        )
        for key in parts:
            groups[key] = groups.get(key, 0) + model.layers.count(index)
    return tuple((part, thing, count) for (part, thing), count in groups.items())


def _part(
    part: str, thing: object, count: int, model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine
) -> Iterator[Kernel]:
    if part == "norms":
        assert isinstance(thing, int)
        # residual add and norm: reads hidden and residual, writes both
        yield _small("norms", count * thing, rows * model.hidden * 4, plan)
    elif isinstance(thing, (Mlp, Experts)):
        yield from _ffn(thing, count, model, plan, rows, engine)
    elif isinstance(thing, Attention):
        if part == "projections":
            yield from _projections(thing, count, model, plan, work, rows, engine)
        else:
            yield from _attention(thing, count, plan, work)


def _gemm(what: str, count: Number, m: Number, n: Number, k: Number, model: Model, plan: Plan, name: str = "") -> Kernel:
    """A matrix product with the weight as it is stored; quantised activations where the arithmetic is fp8 or fp4."""
    quant = quantisation(model, plan)
    stored, dtype, static = DTYPE_BYTES[plan.activations_dtype], plan.activations_dtype, False
    if quant and name != "lm_head":
        probe = Matrix(f"model.layers.N.{name}.weight", (1, 1), "full", 0, "", True)
        if quantised_fraction(model, probe, quant) > 0:
            stored = DTYPE_BYTES[quant.dtype] + _scale_bytes(quant.block, quant.scale_bytes)
            dtype = quant.dtype if quant.dtype in LOW_ARITHMETIC and not quant.weight_only else dtype
            static = dtype == "fp8" and quant.block == (0, 0)  # one scale a tensor is known ahead, tiles and rows need theirs
    nbytes = m * k * _input_bytes(dtype, plan) + n * k * stored + m * n * DTYPE_BYTES[plan.activations_dtype]
    return Kernel(what, "gemm", count, 2 * m * n * k, nbytes, m, n, k, dtype, stored, static_scales=static)


def _input_bytes(dtype: str, plan: Plan) -> float:
    """Bytes of one activation as a product reads it: fp4 products take plain ones and quantise them themselves."""
    return DTYPE_BYTES["fp8" if dtype == "fp8" else plan.activations_dtype]


def _scale_bytes(block: tuple[int, int], scale: float) -> float:
    """Bytes of scales an element, where tiles are small enough to matter."""
    return scale / (block[0] * block[1]) if block[0] and block[1] else 0.0


def _small(what: str, count: Number, elements: Number, plan: Plan) -> Kernel:
    return Kernel(what, "small", count, 0.0, elements * DTYPE_BYTES[plan.activations_dtype])


def _projections(
    a: Attention, count: int, model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine
) -> Iterator[Kernel]:
    h, tp = model.hidden, plan.tp
    if a.latent:
        yield from _latent_projections(a, a.latent, count, model, plan, work, rows)
    else:
        kv = a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
        width = a.num_heads * a.head_dim / tp + kv * (a.head_dim + a.v_head_dim)
        yield _gemm("QKV projection", count, rows, width, h, model, plan, "self_attn.q_proj")
        yield _small("rotary and KV write", 2 * count, rows * width, plan)
        if a.qk_norm and engine.kernels.head_norm_kernels:
            yield _small("query and key norms", engine.kernels.head_norm_kernels * count, rows * width, plan)
    yield _gemm("output projection", count, rows, h, a.num_heads * a.v_head_dim / tp, model, plan, "self_attn.o_proj")


def _latent_projections(
    a: Attention, m: Latent, count: int, model: Model, plan: Plan, work: Workload, rows: Number
) -> Iterator[Kernel]:
    """Down-projections are whole on every rank. Decode folds the up-projection into query and output (absorbed)."""
    h, heads = model.hidden, a.num_heads / plan.tp
    yield _gemm("latent down-projection", count, rows, m.q_rank + m.kv_rank + m.rope_dim, h, model, plan, "self_attn.q_a_proj")
    yield _gemm(
        "query up-projection", count, rows, heads * (m.nope_dim + m.rope_dim), m.q_rank or h, model, plan, "self_attn.q_b_proj"
    )
    yield _small("rotary, latent norms and KV write", 3 * count, rows * (m.q_rank + m.kv_rank + m.rope_dim), plan)
    decode = work.decode_seqs * work.rows_per_seq
    some = pick(np.asarray(decode) > 0, count, 0)
    yield _gemm("absorbed key projection", some, decode, heads * m.kv_rank, m.nope_dim, model, plan, "lm_head")
    yield _gemm("absorbed value projection", some, decode, heads * a.v_head_dim, m.kv_rank, model, plan, "lm_head")
    prompts = pick(np.asarray(work.prefill_tokens) > 0, count, 0)
    up = heads * (m.nope_dim + a.v_head_dim)
    yield _gemm("key/value up-projection", prompts, work.prefill_tokens, up, m.kv_rank, model, plan, "self_attn.kv_b_proj")
    if a.indexer:
        width = a.indexer.num_heads * a.indexer.head_dim + a.indexer.head_dim + a.indexer.num_heads
        yield _gemm("token selector", count, rows, width, m.q_rank or h, model, plan, "self_attn.indexer.wq_b")


def _attention(a: Attention, count: int, plan: Plan, work: Workload) -> Iterator[Kernel]:
    """Decode reads every cached key and value; prefill computes the causal half of new x (past + new)."""
    tp = plan.tp
    kv_heads = 1.0 if a.latent else a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
    heads = a.num_heads / tp
    per_token = kv_bytes_per_token_layer(replace(a, indexer=None), tp, plan.kv_dtype)
    k_dim = a.latent.kv_rank + a.latent.rope_dim if a.latent else a.head_dim
    v_dim = a.latent.kv_rank if a.latent else a.v_head_dim
    seqs = work.decode_seqs
    length = _seen(work.cached_tokens / np.maximum(1, seqs) + work.rows_per_seq, a)
    flops = 2 * seqs * work.rows_per_seq * heads * length * (k_dim + v_dim)
    some = pick(np.asarray(seqs) > 0, count, 0)
    yield Kernel(
        "decode attention",
        "decode",
        some,
        flops,
        seqs * length * per_token,
        dtype=plan.activations_dtype,
        weight_bytes=DTYPE_BYTES[plan.kv_dtype],
        batch=seqs,
        heads=heads * work.rows_per_seq,
        kv_heads=kv_heads,
        head_dim=k_dim,
        length=length,
    )
    new = work.prefill_tokens / np.maximum(1, work.prefill_seqs)
    past = work.past_tokens / np.maximum(1, work.prefill_seqs)
    pairs = _pairs(new, past, a)
    flops = 2 * work.prefill_seqs * heads * pairs * (a.head_dim + a.v_head_dim)
    moved = work.prefill_tokens * (heads * (a.head_dim + a.v_head_dim)) * DTYPE_BYTES[plan.activations_dtype]
    moved = moved + work.prefill_seqs * (new + past) * per_token
    prompts = pick(np.asarray(work.prefill_tokens) > 0, count, 0)
    yield Kernel(
        "prefill attention",
        "prefill",
        prompts,
        flops,
        moved,
        dtype=plan.activations_dtype,
        batch=work.prefill_seqs,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=a.head_dim,
        length=new,
        past=past,
    )


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


def _ffn(f: Mlp | Experts, count: int, model: Model, plan: Plan, rows: Number, engine: Engine) -> Iterator[Kernel]:
    h = model.hidden
    if isinstance(f, Mlp):
        yield from _mlp("feed-forward", f.intermediate / plan.tp, f.gated, count, rows, model, plan, "mlp")
        return
    yield _gemm("router", count, rows, f.num_experts, h, model, plan, "lm_head")
    yield from _routed(f, count, model, plan, rows, engine)
    if f.shared_intermediate:
        split = np.asarray(tokens_split(model, plan, engine))
        mine = pick(split, np.ceil(rows / plan.tp), rows)
        width = f.shared_intermediate / pick(split, 1, plan.tp)
        yield from _mlp("shared expert", width, f.gated, count, mine, model, plan, "mlp.shared_experts")


def _mlp(what: str, width: Number, gated: bool, count: int, rows: Number, model: Model, plan: Plan, name: str) -> Iterator[Kernel]:
    both = (2 if gated else 1) * width
    up = f"{what} gate and up" if gated else f"{what} up"
    yield _gemm(up, count, rows, both, model.hidden, model, plan, f"{name}.gate_proj")
    yield _small(f"{what} activation", count, rows * (both + width), plan)
    yield _gemm(f"{what} down", count, rows, model.hidden, width, model, plan, f"{name}.down_proj")


def _routed(f: Experts, count: int, model: Model, plan: Plan, rows: Number, engine: Engine) -> Iterator[Kernel]:
    """Grouped products: as one product whose matrix is the experts that some token chose.

    Under expert parallelism across replicas a rank works on the tokens of the whole group that chose its experts.
    """
    tokens = rows * experts_reach(plan, engine)
    chosen = chosen_experts(f, tokens, engine.kernels.popularity) / plan.ep
    copies = tokens * f.top_k / plan.ep * busiest_rank(f, plan.ep, engine.kernels.popularity)
    inner = f.intermediate / expert_tp(plan, engine)
    each = copies / np.maximum(1e-9, chosen)
    both = (2 if f.gated else 1) * inner
    up = _gemm("experts gate and up", count, each, both * chosen, model.hidden, model, plan, "mlp.experts.gate_proj")
    yield replace(up, grouped=engine.kernels.grouped_efficiency)
    # Tokens are read and written once; a copy is written, read by the activation, written and read back.
    moved = 2 * tokens * model.hidden + copies * (2 * model.hidden + both + inner)
    moved = moved + engine.kernels.routing_passes * tokens * f.top_k * model.hidden
    launches = engine.kernels.routing_kernels
    routing = _small("routing, permutation and activation", launches * count, moved / launches, plan)
    yield replace(routing, fusable=False)
    down = _gemm("experts down", count, each, model.hidden * chosen, inner, model, plan, "mlp.experts.down_proj")
    moved = copies * inner * _input_bytes(down.dtype, plan) + chosen * model.hidden * inner * down.weight_bytes
    yield replace(down, nbytes=moved, grouped=engine.kernels.grouped_efficiency)
