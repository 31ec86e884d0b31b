"""The kernels of attention of further kinds: compressed, of chosen blocks, and linear.

Compressed (DeepSeek-V4): one latent is key and value of all heads, the last tokens are seen as they are, older ones as entries that
several share, all of them (ratio 128) or those that a selector chose (ratio 4). Blocks (MiniMax-M3): index heads score blocks, and
all queries of a KV head see the best.

Linear (gated delta net, Kimi delta attention, Mamba-2): projections, a convolution, a chunked scan over prompts or an update of the
state for new tokens, a gated norm, an output projection. What a prompt reads was just written; states and the last activations of
each sequence come from memory (``cold``), unless a benchmark repeats one kernel. Heads are split over tensor ranks; low-rank
matrices are whole into their rank. Not measured alone, and priced as small kernels: the norms of queries and keys, the gates, the
gated norm. Beside them stand passes over activations that are no products: the mixing of residual streams (hyper-connections).
"""

from collections.abc import Iterator

import numpy as np

from commtax.arrays import pick
from commtax.cost.attention import (
    ACTIVATION_BYTES,
    choose,
    chosen_pairs,
    compressed_pairs,
    part_of_kind,
    projections,
    prompt_sizes,
    read,
    scans,
    selective_attention,
    visible_tokens,
)
from commtax.cost.caches import entry_bytes
from commtax.cost.kernel import Kernel, KernelStep
from commtax.cost.layer_forms import ChunkedScan, Convolution, MemoryPass, Reading
from commtax.ledger import Place
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Attention, Compressed, DeltaNet, Mamba2, Number

STATE_BYTES = 4.0  # an element of a recurrent state: fp32
CHUNK = 64.0  # tokens that a scan takes at a time
UPDATE_FLOPS = 6.0  # an element of state and token: decay, correction, key times value, query
QKV_STREAMS = 3  # Kimi's queries, keys and values are convolved each by itself


def _compressed_projections(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    m, h, heads, rows = part_of_kind(a.compressed), s.model.hidden, a.num_heads / s.plan.tp, s.rows
    low = m.q_rank + a.head_dim
    yield s.gemm("latent down-projection", "projections", "down-projection", count, rows, low, h, "attn.wq_a")
    yield s.gemm("query up-projection", "projections", "query", count, rows, heads * a.head_dim, m.q_rank, "attn.wq_b")
    yield s.small("rotary, norms and KV write", "projections", "rotary", 3 * count, rows * (low + heads * a.head_dim))
    if m.ratio:
        yield s.gemm("compressor", "projections", "", count, rows, 2 * m.overlap * a.head_dim, h)
    groups = np.maximum(1.0, m.out_groups / s.plan.tp)
    inner, each = groups * m.out_rank, heads * a.head_dim / groups
    yield s.gemm("output by groups", "projections", "output projection", count, rows, inner, each, "attn.wo_a")
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, inner, "attn.wo_b")


def _compressed_selector(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    if (x := a.indexer) and x.own:
        m, h, rows = part_of_kind(a.compressed), s.model.hidden, s.rows
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, m.q_rank, "attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.num_heads + 2 * m.overlap * x.head_dim, h)
        yield from scans(s, x, count, m.ratio, "compressed-selector")


def _compressed_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield decode attention over the latest tokens and over entries of the older ones."""
    m, heads, seen = part_of_kind(a.compressed), a.num_heads / s.plan.tp * s.work.rows_per_seq, visible_tokens(s)
    shape = Reading(s.work.decode_seqs, heads, _entries(seen, a, m), 2 * a.head_dim)
    yield read(s, "compressed-decode", count, shape, entry_bytes(a, m, s.plan.kv_dtype), s.plan.activations_dtype)


def _compressed_prefill(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    m, (seqs, new, past) = part_of_kind(a.compressed), prompt_sizes(s)
    chosen = (seqs * compressed_pairs(new, past, a, m), _entries(new + past, a, m))
    yield choose(s, "compressed-prefill", count, a, chosen, 2 * a.head_dim, entry_bytes(a, m, s.plan.kv_dtype), low=False)


def _entries(length: Number, a: Attention, m: Compressed) -> Number:
    older = length / m.ratio if m.ratio else length * 0.0
    return np.minimum(length, m.window) + (np.minimum(older, a.indexer.top_k) if a.indexer else older)


COMPRESSED = selective_attention(_compressed_projections, _compressed_selector, _compressed_decode, _compressed_prefill)


def _block_selector(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield index queries for a rank's KV heads, one index key, and their scores, with keys in the activations' format."""
    x = part_of_kind(a.indexer)
    width = (x.num_heads / np.minimum(s.plan.tp, x.num_heads) + 1) * x.head_dim
    yield s.gemm("selector", "projections", "", count, s.rows, width, s.model.hidden)
    yield from scans(s, x, count, 1, "block-selector", x.head_dim * DTYPE_BYTES[s.plan.activations_dtype])


def _block_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    kv_heads, width = _kv_heads(s, a), a.head_dim + a.v_head_dim
    heads = a.num_heads / s.plan.tp / kv_heads * s.work.rows_per_seq
    shape = Reading(s.work.decode_seqs * kv_heads, heads, np.minimum(visible_tokens(s), part_of_kind(a.indexer).top_k), width)
    yield read(s, "block-decode", count, shape, width * DTYPE_BYTES[s.plan.kv_dtype], s.plan.kv_dtype)


def _block_prefill(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    seqs, new, past = prompt_sizes(s)
    most, width = part_of_kind(a.indexer).top_k, a.head_dim + a.v_head_dim
    chosen = (seqs * chosen_pairs(new, past, most), np.minimum(new + past, most))
    group = a.num_heads / s.plan.tp / _kv_heads(s, a)
    yield choose(s, "block-prefill", count, a, chosen, width, width * DTYPE_BYTES[s.plan.kv_dtype], group)


def _kv_heads(s: KernelStep, a: Attention) -> Number:
    return a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)


BLOCKS = selective_attention(projections, _block_selector, _block_decode, _block_prefill)


def streams_read(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """Build the read of n residual streams into a layer's input (hyper-connections, Xie et al. 2025, 2512.24880): one product gives
    2 n + n^2 weights of reading, writing and mixing a token, and n + 1 vectors of h move."""
    flops = 2.0 * tokens * streams * hidden * (2 * streams + streams**2)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (streams + 1)
    return Kernel("streams read", "mhc-pre", 1, flops, nbytes, dtype="fp32", shape=MemoryPass(hidden, tokens))


def streams_written(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """Build the write-back of a layer's output to n residual streams, which mixes them: 2 n + 1 vectors move."""
    flops = 2.0 * tokens * streams * hidden * (streams + 1)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (2 * streams + 1)
    return Kernel("streams written", "mhc-post", 1, flops, nbytes, dtype="fp32", shape=MemoryPass(hidden, tokens))


def convolved(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number) -> Kernel:
    """Build a causal convolution of whole prompts: 2 taps FLOPs and an activation in and out per token and channel."""
    elements, shape = sequences * tokens * channels, Convolution(sequences, tokens, channels)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, 2 * ACTIVATION_BYTES * elements, dtype="fp32", shape=shape)


def convolved_further(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number, cold: bool = True) -> Kernel:
    """Build the convolution of a few new tokens, which also reads and writes each sequence's last activations."""
    elements, kept = sequences * tokens * channels, 2 * ACTIVATION_BYTES * sequences * channels * (taps - 1)
    nbytes = 2 * ACTIVATION_BYTES * elements + kept
    shape = MemoryPass(tokens, sequences, kept if cold else 0.0)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, nbytes, dtype="fp32", shape=shape)


def delta_scanned(form: str, seqs: Number, tokens: Number, groups: Number, heads: Number, key_dim: Number, dim: Number) -> Kernel:
    """Build a delta rule over whole prompts in chunks of C tokens, ``heads`` states of K x V each (Yang et al. 2024, 2412.06464): a
    token and head cost 2 C (3 K + 2 V) FLOPs inside its chunk and 6 K V with the state."""
    return _scanned(form, 2 * CHUNK * (3 * key_dim + 2 * dim) + 6 * key_dim * dim, (seqs, tokens, groups, heads, key_dim, dim))


def space_scanned(form: str, seqs: Number, tokens: Number, groups: Number, heads: Number, state: Number, dim: Number) -> Kernel:
    """Build a chunked state-space scan (Dao and Gu 2024, 2405.21060): 2 C (N + P) FLOPs inside, 4 N P with the state."""
    return _scanned(form, 2 * CHUNK * (state + dim) + 4 * state * dim, (seqs, tokens, groups, heads, state, dim))


def _scanned(form: str, each_flops: Number, sizes: tuple[Number, Number, Number, Number, Number, Number]) -> Kernel:
    """Build a scan that moves inputs and output once and states in and out, and whose chain hands on two of each beside states."""
    sequences, tokens, key_heads, heads, key_dim, dim = sizes
    rows, state_bytes = sequences * tokens, 2 * STATE_BYTES * sequences * heads * key_dim * dim
    between = 2 * ACTIVATION_BYTES * rows * heads * (2 * key_dim + 2 * dim + key_dim * dim / CHUNK)
    nbytes = ACTIVATION_BYTES * rows * 2 * (key_heads * key_dim + heads * dim) + state_bytes
    shape = ChunkedScan(sequences, tokens, CHUNK, state_bytes, between)
    return Kernel("scan", form, 1, rows * heads * each_flops, nbytes, shape=shape)


def updated(form: str, sequences: Number, tokens: Number, elements: Number, moved_bytes: Number, cold: bool = True) -> Kernel:
    """Build the update of states of ``elements`` by a few tokens, where an element moves ``moved_bytes``, read and written."""
    nbytes = sequences * elements * moved_bytes
    shape = MemoryPass(tokens, sequences, nbytes if cold else 0.0)
    return Kernel("state update", form, 1, UPDATE_FLOPS * sequences * tokens * elements, nbytes, dtype="fp32", shape=shape)


def delta_kernels(s: KernelStep, m: DeltaNet, count: int) -> Iterator[Kernel]:
    """Yield a gated delta net's kernels, or those of Kimi's, whose decay (one per channel) and gate use low-rank matrices."""
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
    tp, kind, (seqs, new) = s.plan.tp, "kda" if m.decay_rank else "gdn", _prompts(s)
    channels, heads = m.channels / tp, m.num_v_heads / tp
    apart = QKV_STREAMS if m.decay_rank else 1
    convolution = replace(convolved("conv", seqs, new, channels / apart, m.conv), count=apart)
    scan = delta_scanned(f"{kind}-scan", seqs, new, m.num_k_heads / tp, heads, m.k_dim, m.v_dim)
    yield from _placed("prefill", s.work.prefill_tokens, count, convolution, scan)
    decoding, drafts = s.work.decode_seqs, s.work.rows_per_seq
    further = "conv-update" if not m.decay_rank else "kda-conv-verify" if drafts > 1 else "kda-conv-update"
    update = f"{kind}-{'verify' if m.decay_rank and drafts > 1 else 'update'}"
    state = updated(update, decoding, drafts, heads * m.k_dim * m.v_dim, _moved_bytes(s, m))
    yield from _placed("decode", decoding, count, convolved_further(further, decoding, drafts, channels, m.conv), state)


def mamba_kernels(s: KernelStep, m: Mamba2, count: int) -> Iterator[Kernel]:
    """Yield Mamba-2's kernels, with one projection for gate, input, B, C and time step, and groups of B and C copied."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    inner, heads, groups = m.inner / tp, m.num_heads / tp, m.num_groups / np.minimum(tp, m.num_groups)
    both = 2 * groups * m.state
    yield s.gemm("input projection", "projections", "qkv", count, rows, 2 * inner + both + heads, h, "mixer.in_proj.zx")
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
    """Return the bytes that a state element moves: one read, and one write per drafted token, kept until it is accepted."""
    return (1 + s.work.rows_per_seq) * DTYPE_BYTES[m.state_dtype or s.plan.state_dtype]


def _prompts(s: KernelStep) -> tuple[Number, Number]:
    """Return the prompts of a step and the new tokens of each, or one token that no kernel counts."""
    seqs = np.maximum(1, s.work.prefill_seqs)
    return seqs, np.maximum(1, s.work.prefill_tokens / seqs)


def _placed(place: Place, tokens: Number, count: int, *kernels: Kernel) -> Iterator[Kernel]:
    """Yield the kernels with their place, counted for ``count`` layers, or for none without tokens."""
    runs = pick(np.asarray(tokens) > 0, count, 0)
    for kernel in kernels:
        yield replace(kernel, count=kernel.count * runs, part="attention", place=place)
