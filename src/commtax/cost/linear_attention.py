"""Layers of linear attention (gated delta net, Kimi delta attention, Mamba-2), and passes over activations that are no products.

A layer: projections, a convolution, a chunked scan over prompts or an update of the state for new tokens, a gated norm, an output
projection. What a prompt reads was just written; states and the last activations of each sequence come from memory (``cold``),
unless a benchmark repeats one kernel. Heads are split over tensor ranks; low-rank matrices are whole into their rank. Not measured
alone, and priced as small kernels: the norms of queries and keys, the gates, the gated norm. The passes: quantisation, and the
mixing of residual streams (hyper-connections).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.forms.linear import ChunkedScan, Convolution, MemoryPass
from commtax.cost.kernel import Kernel, KernelStep
from commtax.ledger import Place
from commtax.spec import DTYPE_BYTES, DeltaNet, Mamba2, Number

ACTIVATION_BYTES, NARROW_BYTES = 2.0, 1.0  # bf16 in, fp8 out


def quantise_kernel(form: str, rows: Number, columns: Number) -> Kernel:
    """Rows of bf16 brought to fp8 (form ``quantise``), or the pass that finds their scales first (``scales``).

    A block takes a row, so that few long rows take as long as one.
    """
    elements = rows * columns
    nbytes = (ACTIVATION_BYTES + (NARROW_BYTES if form == "quantise" else 0.0)) * elements
    return Kernel("quantisation", form, 1, 2.0 * elements, nbytes, dtype="fp32", shape=MemoryPass(columns, rows))


def quantised_before(product: Kernel) -> Kernel:
    """The kernel that brings a product's input to fp8 with a known scale, where an engine has one of its own for that."""
    one = quantise_kernel("quantise", product.m, product.k)
    return replace(one, what=f"quantisation before {product.what}", count=product.count, part=product.part, place=product.place)


def streams_read(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """What a hyper-connection does before a layer: n streams mixed into the layer's input (Xie et al. 2025, 2512.24880).

    Their n h values a token give, by one product, the 2 n + n^2 weights of reading, writing and mixing, which Sinkhorn
    iterations balance; n + 1 vectors of h move.
    """
    flops = 2.0 * tokens * streams * hidden * (2 * streams + streams**2)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (streams + 1)
    return Kernel("streams read", "mhc-pre", 1, flops, nbytes, dtype="fp32", shape=MemoryPass(hidden, tokens))


def streams_written(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """What a hyper-connection does behind a layer: its output added to n streams, mixed with each other: 2 n + 1 vectors."""
    flops = 2.0 * tokens * streams * hidden * (streams + 1)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (2 * streams + 1)
    return Kernel("streams written", "mhc-post", 1, flops, nbytes, dtype="fp32", shape=MemoryPass(hidden, tokens))


STATE_BYTES = 4.0  # an element of a recurrent state: fp32
CHUNK = 64.0  # tokens that a scan takes at a time
UPDATE_FLOPS = 6.0  # an element of state and token: decay, correction, key times value, query


def convolved(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number) -> Kernel:
    """A causal convolution of whole prompts: 2 taps FLOPs and an activation in and out for each token and channel."""
    elements = sequences * tokens * channels
    shape = Convolution(sequences, tokens, channels)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, 2 * ACTIVATION_BYTES * elements, dtype="fp32", shape=shape)


def convolved_further(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number, cold: bool = True) -> Kernel:
    """The convolution of a few new tokens: the last activations of each sequence are read and written beside."""
    elements, kept = sequences * tokens * channels, 2 * ACTIVATION_BYTES * sequences * channels * (taps - 1)
    nbytes = 2 * ACTIVATION_BYTES * elements + kept
    shape = MemoryPass(tokens, sequences, kept if cold else 0.0)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, nbytes, dtype="fp32", shape=shape)


def delta_scanned(
    form: str, sequences: Number, tokens: Number, key_heads: Number, heads: Number, key_dim: Number, dim: Number
) -> Kernel:
    """A delta rule over whole prompts in chunks of C tokens, ``heads`` states of K x V each (Yang et al. 2024, 2412.06464).

    A token and head cost 2 C (3 K + 2 V) FLOPs inside its chunk (two triangles of keys and queries, their products with keys and
    values) and 6 K V with the state.
    """
    each = 2 * CHUNK * (3 * key_dim + 2 * dim) + 6 * key_dim * dim
    return _scanned(form, each, (sequences, tokens, key_heads, heads, key_dim, dim))


def space_scanned(
    form: str, sequences: Number, tokens: Number, groups: Number, heads: Number, state: Number, dim: Number
) -> Kernel:
    """A state space over whole prompts in chunks (Dao and Gu 2024, 2405.21060): 2 C (N + P) FLOPs inside, 4 N P with the state."""
    each = 2 * CHUNK * (state + dim) + 4 * state * dim
    return _scanned(form, each, (sequences, tokens, groups, heads, state, dim))


def _scanned(form: str, each_flops: Number, sizes: tuple[Number, Number, Number, Number, Number, Number]) -> Kernel:
    """Keys and queries, values and output move once, states in and out; a chain of kernels hands on two of each beside states."""
    sequences, tokens, key_heads, heads, key_dim, dim = sizes
    rows = sequences * tokens
    state_bytes = 2 * STATE_BYTES * sequences * heads * key_dim * dim
    between = 2 * ACTIVATION_BYTES * rows * heads * (2 * key_dim + 2 * dim + key_dim * dim / CHUNK)
    nbytes = ACTIVATION_BYTES * rows * 2 * (key_heads * key_dim + heads * dim) + state_bytes
    return Kernel(
        "scan", form, 1, rows * heads * each_flops, nbytes, shape=ChunkedScan(sequences, tokens, CHUNK, state_bytes, between)
    )


def updated(form: str, sequences: Number, tokens: Number, elements: Number, moved_bytes: Number, cold: bool = True) -> Kernel:
    """States of ``elements`` each moved on by a few tokens; an element moves so many bytes, read and written."""
    nbytes = sequences * elements * moved_bytes
    shape = MemoryPass(tokens, sequences, nbytes if cold else 0.0)
    return Kernel("state update", form, 1, UPDATE_FLOPS * sequences * tokens * elements, nbytes, dtype="fp32", shape=shape)


QKV_STREAMS = 3  # Kimi's queries, keys and values are convolved each by itself


def delta_kernels(s: KernelStep, m: DeltaNet, count: int) -> Iterator[Kernel]:
    """Gated delta net, or Kimi's, whose decay (one a channel) and gate come from matrices of low rank."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    keys, values = m.num_k_heads * m.k_dim / tp, m.num_v_heads * m.v_dim / tp
    wide = 2 * keys + values + (0 if m.gate_rank else values)
    yield s.gemm("QKV and gate projection", "projections", "qkv", count, rows, wide, h, "linear_attn.in_proj_qkv.q_proj")
    small = (m.num_v_heads + (0 if m.decay_rank else m.num_v_heads)) / tp
    yield s.gemm("decay and strength", "projections", "query", count, rows, small, h, "linear_attn.in_proj_b")
    for what, name, rank, out in (("decay", "a", m.decay_rank, keys), ("gate", "z", m.gate_rank, values)):
        if rank:
            down, up = f"linear_attn.in_proj_{name}.a_proj", f"linear_attn.in_proj_{name}.b_proj"
            yield s.gemm(f"{what} down-projection", "projections", "down-projection", count, rows, rank, h, down)
            yield s.gemm(f"{what} up-projection", "projections", "query", count, rows, out, rank, up)
    yield s.small("norms of queries and keys, gates", "projections", "rotary", count, 4 * rows * keys)
    yield from _delta_rule(s, m, count)
    yield s.small("gated norm", "projections", "value", count, 3 * rows * values)
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, values, "linear_attn.out_proj")


def _delta_rule(s: KernelStep, m: DeltaNet, count: int) -> Iterator[Kernel]:
    """Convolution and state: of the prompts, and of sequences that decode."""
    tp, own = s.plan.tp, "kda" if m.decay_rank else "gdn"
    channels, heads = m.channels / tp, m.num_v_heads / tp
    seqs, new = _prompts(s)
    apart = QKV_STREAMS if m.decay_rank else 1
    convolution = replace(convolved("conv", seqs, new, channels / apart, m.conv), count=apart)
    scan = delta_scanned(f"{own}-scan", seqs, new, m.num_k_heads / tp, heads, m.k_dim, m.v_dim)
    yield from _placed("prefill", s.work.prefill_tokens, count, convolution, scan)
    drafts = s.work.rows_per_seq
    further = "conv-update" if not m.decay_rank else "kda-conv-verify" if drafts > 1 else "kda-conv-update"
    update = f"{own}-{'verify' if m.decay_rank and drafts > 1 else 'update'}"
    decoding = s.work.decode_seqs
    state = updated(update, decoding, drafts, heads * m.k_dim * m.v_dim, _moved_bytes(s, m))
    yield from _placed("decode", decoding, count, convolved_further(further, decoding, drafts, channels, m.conv), state)


def mamba_kernels(s: KernelStep, m: Mamba2, count: int) -> Iterator[Kernel]:
    """Mamba-2: one projection for gate, input, B, C and time step. Groups of B and C are copied beyond as many ranks."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    inner, heads, groups = m.inner / tp, m.num_heads / tp, m.num_groups / np.minimum(tp, m.num_groups)
    both = 2 * groups * m.state
    wide = 2 * inner + both + heads
    yield s.gemm("input projection", "projections", "qkv", count, rows, wide, h, "mixer.in_proj.zx")
    seqs, new = _prompts(s)
    convolution = convolved("conv", seqs, new, inner + both, m.conv)
    scan = space_scanned("ssd-scan", seqs, new, groups, heads, m.state, m.head_dim)
    yield from _placed("prefill", s.work.prefill_tokens, count, convolution, scan)
    decoding, drafts = s.work.decode_seqs, s.work.rows_per_seq
    further = convolved_further("conv-update", decoding, drafts, inner + both, m.conv)
    state = updated("ssd-update", decoding, drafts, inner * m.state, _moved_bytes(s, m))
    yield from _placed("decode", decoding, count, further, state)
    yield s.small("gated norm", "projections", "value", count, 3 * rows * inner)
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, inner, "mixer.out_proj")


def _moved_bytes(s: KernelStep, m: DeltaNet | Mamba2) -> float:
    """Of an element of state: read once, and written for each drafted token, whose state is kept until it is accepted."""
    return (1 + s.work.rows_per_seq) * DTYPE_BYTES[m.state_dtype or s.plan.state_dtype]


def _prompts(s: KernelStep) -> tuple[Number, Number]:
    """Prompts of the step and new tokens of each; one of one token where there is none, which no kernel counts."""
    seqs = np.maximum(1, s.work.prefill_seqs)
    return seqs, np.maximum(1, s.work.prefill_tokens / seqs)


def _placed(place: Place, tokens: Number, count: int, *kernels: Kernel) -> Iterator[Kernel]:
    """Kernels of so many tokens in so many layers; without any tokens there are none."""
    runs = pick(np.asarray(tokens) > 0, count, 0)
    for kernel in kernels:
        yield replace(kernel, count=kernel.count * runs, part="attention", place=place)
