"""The kernels of attention of other kinds than plain: latent, compressed, of chosen blocks, and linear.

Latent: keys and values of all heads are one low-rank latent a token, of which a selector may choose; decode folds the latents'
up-projection into query and output (absorbed), so that it reads the latents themselves, and so do prompts whose tokens choose what
they see, while others make keys and values of every token again. Compressed (DeepSeek-V4): one latent is key and value of all
heads, the last tokens are seen as they are, older ones as entries that several share, all of them (ratio 128) or those that a
selector chose (ratio 4). Blocks (MiniMax-M3): index heads score blocks, and all queries of a KV head see the best.

Linear (gated delta net, Kimi delta attention, Mamba-2): projections, a convolution, a chunked scan over prompts or an update of the
state for new tokens, a gated norm, an output projection. What a prompt reads was just written; states and the last activations of
each sequence come from memory (``cold``), unless a benchmark repeats one kernel. Heads are split over tensor ranks; low-rank
matrices are whole into their rank. Not measured alone, and priced as small kernels: the norms of queries and keys, the gates, the
gated norm. Beside them stand passes over activations that are no products: the mixing of residual streams (hyper-connections).
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost.attention import (
    ACTIVATION_BYTES,
    causal_pairs,
    chosen_pairs,
    compressed_pairs,
    made_queries,
    projections,
    prompt_sizes,
    visible_tokens,
)
from commtax.cost.caches import SCALE_BYTES, entry_bytes, kv_bytes_per_token_layer
from commtax.cost.context_parallel import joining_kernels
from commtax.cost.kernel import WIDE_BYTES, Kernel, KernelStep
from commtax.cost.layer_forms import (
    Choosing,
    ChunkedScan,
    Convolution,
    HeadProduct,
    MemoryPass,
    ModuleSizes,
    Prompts,
    Reading,
    SelectorScan,
)
from commtax.ledger import Place
from commtax.records import dataclass, replace
from commtax.spec import DTYPE_BYTES, Attention, Compressed, DeltaNet, Indexer, Latent, Mamba2, Number

Maker = Callable[[KernelStep, Attention, int], Iterator[Kernel]]
T = TypeVar("T")
SCORE_BYTES = 12  # of a selector's score in fp32, written once and read twice: to find the threshold, and what is above it


@dataclass(frozen=True, slots=True)
class KernelMakers:
    """What makes the kernels of a kind of attention: what a token meets alone, and what lets it see others."""

    projections: Maker
    attention: Maker
    trained: Maker  # projections as training runs them


def selective_attention(projections: Maker, selector: Maker, decode: Maker, prefill: Maker) -> KernelMakers:
    """Attention that a selector chooses for; in training its matrices are met as all others are."""

    def attention(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
        for make in (selector, decode, prefill):
            yield from make(s, a, count)

    def trained(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
        yield from projections(s, a, count)
        yield from (k for k in selector(s, a, count) if k.form == "gemm")

    return KernelMakers(projections, attention, trained)


def _own(part: T | None) -> T:
    """The part that makes attention of its kind: whoever asks has looked at the kind."""
    assert part is not None
    return part


def read(s: KernelStep, form: str, count: int, shape: Reading, entry_bytes: Number, kv_dtype: str) -> Kernel:
    """Decode attention over entries of so many bytes."""
    runs = pick(np.asarray(shape.groups) > 0, count, 0)
    flops = 2.0 * shape.groups * shape.heads * shape.entries * shape.width
    dtype = "fp8" if kv_dtype == "fp8" else s.plan.activations_dtype
    plain = Kernel("decode attention", form, runs, flops, shape.groups * shape.entries * entry_bytes, dtype=dtype, shape=shape)
    return replace(plain, weight_bytes=DTYPE_BYTES[s.plan.kv_dtype], part="attention", place="decode")


def choose(
    s: KernelStep,
    form: str,
    count: int,
    a: Attention,
    chosen: tuple[Number, Number],
    width: int,
    entry: Number,
    group: Number | None = None,
    low: bool = True,
) -> Kernel:
    """Prefill over entries of the tokens' own choice: pairs of all, entries of one. ``group``: heads that choose together.

    ``low``: a narrow cache is multiplied as it is.
    """
    seqs, new, _ = prompt_sizes(s)
    heads, (pairs, entries) = a.num_heads / s.plan.tp, chosen
    together = heads if group is None else group
    runs, flops = pick(np.asarray(seqs) > 0, count, 0), 2.0 * pairs * heads * width
    nbytes = seqs * entries * entry * heads / together  # what one token chose, at the least
    shape = Choosing(seqs, seqs * new, together, entries, pairs * entry * heads / together)
    dtype = "fp8" if low and s.plan.kv_dtype == "fp8" else s.plan.activations_dtype
    return Kernel("prefill attention", form, runs, flops, nbytes, dtype=dtype, shape=shape, part="attention", place="prefill")


def scans(s: KernelStep, x: Indexer, count: int, ratio: int, form: str = "selector", size: float = 0.0) -> Iterator[Kernel]:
    """Scores of decoding tokens and of prompts over keys of the selector: fp8 with a scale, or ``size`` bytes a key.

    Rows of one sequence that are checked together read its keys once (``next_n`` of DeepGEMM's paged logits); each has scores of
    its own. What a key takes beyond its bytes was measured with one row, and so is the keys'.
    """
    work, each = s.work, size or x.head_dim + SCALE_BYTES
    heads = x.num_heads / (np.minimum(s.plan.tp, x.num_heads) if x.block > 1 else 1)
    length = visible_tokens(s) / ratio
    keys, further = work.decode_seqs * length, work.decode_seqs * length * (work.rows_per_seq - 1)
    nbytes = keys * each + further * SCORE_BYTES * (1 if x.block == 1 else heads / x.block)
    yield _scan(s, x, f"{form}-decode", count, heads, (keys + further, keys), length, nbytes)
    seqs, new, past = prompt_sizes(s)
    pairs = seqs * causal_pairs(new, past) / ratio
    yield _scan(s, x, f"{form}-prefill", count, heads, (pairs, pairs), (new + past) / ratio, seqs * (new + past) / ratio * each)


def _scan(
    s: KernelStep, x: Indexer, form: str, count: int, heads: Number, pairs: tuple[Number, Number], length: Number, nbytes: Number
) -> Kernel:
    """``pairs`` of a query and a key: those that are multiplied, and those whose choice is timed."""
    made, chosen = pairs
    runs, flops = pick(np.asarray(made) > 0, count, 0), 2.0 * made * heads * x.head_dim
    dtype = "fp8" if x.block == 1 else s.plan.activations_dtype
    candidates = chosen if x.block == 1 else chosen * heads / x.block
    plain = Kernel("selector", form, runs, flops, nbytes, dtype=dtype, shape=SelectorScan(length, candidates))
    return replace(plain, part="attention", place="decode" if form.endswith("decode") else "prefill")


CHAINED = 0.6
"""Share of an absorbed product's fixed time that its neighbours hide: modules take so much less than their kernels alone."""


def latent_projections(s: KernelStep, a: Attention, count: int, absorbed: bool | None = None) -> Iterator[Kernel]:
    """Down-projections are whole on every rank. ``absorbed``: prompts are, too; None: where their tokens choose."""
    m = _own(a.latent)
    h, heads, rows, work = s.model.hidden, a.num_heads / s.plan.tp, s.rows, s.work
    low, width = m.q_rank + m.kv_rank + m.rope_dim, made_queries(s, a) * (m.nope_dim + m.rope_dim)
    yield s.gemm("latent down-projection", "projections", "down-projection", count, rows, low, h, "self_attn.q_a_proj")
    yield s.gemm("query up-projection", "projections", "query", count, rows, width, m.q_rank or h, "self_attn.q_b_proj")
    yield s.small("rotary, latent norms and KV write", "projections", "rotary", count, 3 * rows * low)
    yield from head_products(s, a, m, count, work.decode_seqs * work.rows_per_seq)
    if absorbed or (absorbed is None and a.indexer):
        yield from head_products(s, a, m, count, work.prefill_tokens)
    else:
        runs = pick(np.asarray(work.prefill_tokens) > 0, count, 0)
        shape = (work.prefill_tokens * s.prompt_ranks, heads * (m.nope_dim + a.v_head_dim), m.kv_rank)
        yield s.gemm("key/value up-projection", "projections", "key", runs, *shape, "self_attn.kv_b_proj")
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, heads * a.v_head_dim, "self_attn.o_proj")


def head_products(s: KernelStep, a: Attention, m: Latent, count: int, rows: Number) -> Iterator[Kernel]:
    """Queries into the latents' space and outputs out of it, a matrix a head."""
    runs, own = pick(np.asarray(rows) > 0, count, 0), a.num_heads / s.plan.tp
    each: tuple[tuple[str, Place, int, Number], ...] = (
        ("key", "key", m.nope_dim, made_queries(s, a)),
        ("value", "value", a.v_head_dim, own),
    )
    for what, place, dim, heads in each:
        yield replace(
            head_product(rows, heads, dim, m.kv_rank), what=f"absorbed {what} projection", count=runs, place=place, fused=CHAINED
        )


def head_product(rows: Number, heads: Number, dim: int, rank: int, stored: float = 2.0, hot: bool = False) -> Kernel:
    """``rows`` x dim times dim x rank for each head. ``hot``: repeated, so that the chip's cache may hold all of it."""
    flops, moved = 2.0 * rows * heads * dim * rank, heads * (dim * rank * stored + rows * (dim + rank) * 2.0)
    shape = HeadProduct(rows, heads, moved if hot else 0.0)
    plain = Kernel("absorbed projection", "head-product", 1, flops, moved * (not hot), shape=shape, part="projections")
    return replace(plain, dtype="fp8" if stored == 1 else "bf16", weight_bytes=stored)


def latent_selector(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """The selector's own queries, keys and weights, and its scores over all cached tokens; every rank has it whole."""
    if (x := a.indexer) and x.own:
        h, rows, rank = s.model.hidden, s.rows, _own(a.latent).q_rank or s.model.hidden
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, rank, "self_attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.head_dim + x.num_heads, h)
        yield from scans(s, x, count, 1)


def latent_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Latents of all cached tokens, or of those that the selector chose."""
    heads, m = a.num_heads / s.plan.tp * s.plan.dcp * s.work.rows_per_seq, _own(a.latent)
    entries = visible_tokens(s) / s.plan.dcp
    if a.indexer:
        entries = np.minimum(entries, a.indexer.top_k)
    shape = Reading(s.work.decode_seqs, heads, entries, 2 * m.kv_rank + m.rope_dim)
    yield read(s, "sparse-decode" if a.indexer else "latent-decode", count, shape, _latent_bytes(s, a), s.plan.kv_dtype)
    if not a.indexer and holds_anywhere(np.asarray(s.copied_tokens) > 0):
        # A rank's room for fp8 latents beyond what is read, copied into 16 bits too; measured reading holds the copy of the rest.
        tokens = np.maximum(0.0, s.copied_tokens / s.plan.dcp - s.work.decode_seqs * entries)
        runs = pick(np.asarray(s.work.decode_seqs) > 0, count, 0)
        moved, copied = tokens * _latent_bytes(s, a) * (1 + WIDE_BYTES), ModuleSizes(tokens, 1)
        name = "16-bit copy of the rest of the cache"
        yield Kernel(name, "latent-copy", runs, 0.0, moved, dtype="fp8", shape=copied, part="attention", place="decode")
    if s.plan.splits_sequences:
        yield from joining_kernels(s, a, count)


def latent_prefill(s: KernelStep, a: Attention, count: int, absorbed: bool = False) -> Iterator[Kernel]:
    """Whole prompts, or the tokens that the selector chose for each."""
    m, (seqs, new, past) = _own(a.latent), prompt_sizes(s)
    if a.indexer:
        chosen = (seqs * chosen_pairs(new, past, a.indexer.top_k), np.minimum(new + past, a.indexer.top_k))
        yield choose(s, "sparse-prefill", count, a, chosen, 2 * m.kv_rank + m.rope_dim, _latent_bytes(s, a))
        return
    heads, width = a.num_heads / s.plan.tp, 2 * m.kv_rank + m.rope_dim if absorbed else a.head_dim + a.v_head_dim
    flops, nbytes = 2.0 * seqs * heads * causal_pairs(new, past) * width, seqs * (new + past) * _latent_bytes(s, a)
    runs, form = pick(np.asarray(seqs) > 0, count, 0), "absorbed-prefill" if absorbed else "latent-prefill"
    dtype = "fp8" if s.plan.kv_dtype == "fp8" else s.plan.activations_dtype
    shape = Prompts(seqs, heads, new, past, width)
    yield Kernel("prefill attention", form, runs, flops, nbytes, dtype=dtype, shape=shape, part="attention", place="prefill")


def _latent_bytes(s: KernelStep, a: Attention) -> Number:
    """Bytes of one token's latent (a selector's keys are read beside it)."""
    beside = a.indexer.head_dim + SCALE_BYTES if a.indexer and a.indexer.own else 0
    return kv_bytes_per_token_layer(a, s.plan.tp, s.plan.kv_dtype) - beside


def latent_training(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Nothing is absorbed, nothing small fused; a selector's matrices are met as all others are."""
    for k in latent_projections(s, a, count, absorbed=False):
        if k.form == "small":
            yield replace(k, count=3 * k.count, nbytes=k.nbytes / 3)
        elif k.form != "head-product":
            yield k
    yield from (k for k in latent_selector(s, a, count) if k.form == "gemm")


LATENT = replace(selective_attention(latent_projections, latent_selector, latent_decode, latent_prefill), trained=latent_training)


def _compressed_projections(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Queries through a latent, one latent for keys and values, the compressor's values and gates, outputs by groups of heads."""
    m, h, heads, rows = _own(a.compressed), s.model.hidden, a.num_heads / s.plan.tp, s.rows
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
    """A selector over compressed entries, with a compressor of its own."""
    if (x := a.indexer) and x.own:
        m, h, rows = _own(a.compressed), s.model.hidden, s.rows
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, m.q_rank, "attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.num_heads + 2 * m.overlap * x.head_dim, h)
        yield from scans(s, x, count, m.ratio, "compressed-selector")


def _compressed_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """The last tokens, and entries of the older ones."""
    m, heads, seen = _own(a.compressed), a.num_heads / s.plan.tp * s.work.rows_per_seq, visible_tokens(s)
    shape = Reading(s.work.decode_seqs, heads, _entries(seen, a, m), 2 * a.head_dim)
    yield read(s, "compressed-decode", count, shape, entry_bytes(a, m, s.plan.kv_dtype), s.plan.activations_dtype)


def _compressed_prefill(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    m, (seqs, new, past) = _own(a.compressed), prompt_sizes(s)
    chosen = (seqs * compressed_pairs(new, past, a, m), _entries(new + past, a, m))
    yield choose(s, "compressed-prefill", count, a, chosen, 2 * a.head_dim, entry_bytes(a, m, s.plan.kv_dtype), low=False)


def _entries(length: Number, a: Attention, m: Compressed) -> Number:
    older = length / m.ratio if m.ratio else length * 0.0
    return np.minimum(length, m.window) + (np.minimum(older, a.indexer.top_k) if a.indexer else older)


COMPRESSED = selective_attention(_compressed_projections, _compressed_selector, _compressed_decode, _compressed_prefill)


def _block_selector(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Index queries of a rank's KV heads and one index key, and their scores; index keys stay in the activations' format."""
    x = _own(a.indexer)
    width = (x.num_heads / np.minimum(s.plan.tp, x.num_heads) + 1) * x.head_dim
    yield s.gemm("selector", "projections", "", count, s.rows, width, s.model.hidden)
    yield from scans(s, x, count, 1, "block-selector", x.head_dim * DTYPE_BYTES[s.plan.activations_dtype])


def _block_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Keys and values of the chosen blocks, for each KV head its own."""
    kv_heads, width = _kv_heads(s, a), a.head_dim + a.v_head_dim
    heads = a.num_heads / s.plan.tp / kv_heads * s.work.rows_per_seq
    entries = np.minimum(visible_tokens(s), _own(a.indexer).top_k)
    shape = Reading(s.work.decode_seqs * kv_heads, heads, entries, width)
    yield read(s, "block-decode", count, shape, width * DTYPE_BYTES[s.plan.kv_dtype], s.plan.kv_dtype)


def _block_prefill(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    seqs, new, past = prompt_sizes(s)
    most, width = _own(a.indexer).top_k, a.head_dim + a.v_head_dim
    chosen = (seqs * chosen_pairs(new, past, most), np.minimum(new + past, most))
    group = a.num_heads / s.plan.tp / _kv_heads(s, a)
    yield choose(s, "block-prefill", count, a, chosen, width, width * DTYPE_BYTES[s.plan.kv_dtype], group)


def _kv_heads(s: KernelStep, a: Attention) -> Number:
    return a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)


BLOCKS = selective_attention(projections, _block_selector, _block_decode, _block_prefill)


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
