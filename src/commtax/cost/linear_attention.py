"""Layers of linear attention: projections, a convolution, a scan or an update of the state, a gated norm, an output projection.

Prompts are scanned in chunks, new tokens move the state on. Heads are split over tensor ranks; low-rank matrices are whole into
their rank. Not measured alone, and priced as small kernels: the norms of queries and keys, the gates, the gated norm.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.kernel import Kernel, Step
from commtax.cost.recurrence import convolved, convolved_further, delta_scanned, space_scanned, updated
from commtax.ledger import Place
from commtax.spec import DTYPE_BYTES, DeltaNet, Mamba2, Number

QKV_STREAMS = 3  # Kimi's queries, keys and values are convolved each by itself


def delta_kernels(s: Step, m: DeltaNet, count: int) -> Iterator[Kernel]:
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


def _delta_rule(s: Step, m: DeltaNet, count: int) -> Iterator[Kernel]:
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


def mamba_kernels(s: Step, m: Mamba2, count: int) -> Iterator[Kernel]:
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


def _moved_bytes(s: Step, m: DeltaNet | Mamba2) -> float:
    """Of an element of state: read once, and written for each drafted token, whose state is kept until it is accepted."""
    return (1 + s.work.rows_per_seq) * DTYPE_BYTES[m.state_dtype or s.plan.state_dtype]


def _prompts(s: Step) -> tuple[Number, Number]:
    """Prompts of the step and new tokens of each; one of one token where there is none, which no kernel counts."""
    seqs = np.maximum(1, s.work.prefill_seqs)
    return seqs, np.maximum(1, s.work.prefill_tokens / seqs)


def _placed(place: Place, tokens: Number, count: int, *kernels: Kernel) -> Iterator[Kernel]:
    """Kernels of so many tokens in so many layers; without any tokens there are none."""
    runs = pick(np.asarray(tokens) > 0, count, 0)
    for kernel in kernels:
        yield replace(kernel, count=kernel.count * runs, part="attention", place=place)
