"""The kernels of latent attention: keys and values of all heads are one low-rank latent a token, of which a selector may choose.

Decode folds the latents' up-projection into query and output (absorbed), so that it reads the latents themselves. So do prompts
whose tokens choose what they see; others make keys and values of every token again.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.caches import SCALE_BYTES, kv_bytes_per_token_layer
from commtax.cost.forms.latent import Choosing, HeadProduct, Prompts, Reading, Scan
from commtax.cost.kernel import Kernel, Step
from commtax.ledger import Place
from commtax.spec import DTYPE_BYTES, Attention, Indexer, Latent, Number


def projections(s: Step, a: Attention, m: Latent, count: int, absorbed: bool = False) -> Iterator[Kernel]:
    """Down-projections are whole on every rank. ``absorbed``: prompts are, too."""
    h, heads, rows, work = s.model.hidden, a.num_heads / s.plan.tp, s.rows, s.work
    low = m.q_rank + m.kv_rank + m.rope_dim
    yield s.gemm("latent down-projection", "projections", "down-projection", count, rows, low, h, "self_attn.q_a_proj")
    width = heads * (m.nope_dim + m.rope_dim)
    yield s.gemm("query up-projection", "projections", "query", count, rows, width, m.q_rank or h, "self_attn.q_b_proj")
    yield s.small("rotary, latent norms and KV write", "projections", "rotary", 3 * count, rows * low)
    yield from head_products(s, a, m, count, work.decode_seqs * work.rows_per_seq)
    if absorbed:
        yield from head_products(s, a, m, count, work.prefill_tokens)
    else:
        runs = pick(np.asarray(work.prefill_tokens) > 0, count, 0)
        shape = (work.prefill_tokens, heads * (m.nope_dim + a.v_head_dim), m.kv_rank)
        yield s.gemm("key/value up-projection", "projections", "key", runs, *shape, "self_attn.kv_b_proj")
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, heads * a.v_head_dim, "self_attn.o_proj")


def head_products(s: Step, a: Attention, m: Latent, count: int, rows: Number) -> Iterator[Kernel]:
    """Queries into the latents' space and outputs out of it, a matrix a head."""
    runs, heads = pick(np.asarray(rows) > 0, count, 0), a.num_heads / s.plan.tp
    each: tuple[tuple[str, Place, int], ...] = (("key", "key", m.nope_dim), ("value", "value", a.v_head_dim))
    for what, place, dim in each:
        yield replace(head_product(rows, heads, dim, m.kv_rank), what=f"absorbed {what} projection", count=runs, place=place)


def head_product(rows: Number, heads: Number, dim: int, rank: int, stored: float = 2.0, hot: bool = False) -> Kernel:
    """``rows`` x dim times dim x rank for each head. ``hot``: repeated, so that the chip's cache may hold all of it."""
    flops, moved = 2.0 * rows * heads * dim * rank, heads * (dim * rank * stored + rows * (dim + rank) * 2.0)
    shape = HeadProduct(rows, heads, moved if hot else 0.0)
    plain = Kernel("absorbed projection", "head-product", 1, flops, moved * (not hot), shape=shape, part="projections")
    return replace(plain, dtype="fp8" if stored == 1 else "bf16", weight_bytes=stored)


def selector(s: Step, x: Indexer, rank: int, count: int) -> Iterator[Kernel]:
    """The selector's own queries, keys and weights, and its scores over all cached tokens; every rank has it whole."""
    h, rows = s.model.hidden, s.rows
    yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, rank or h, "self_attn.indexer.wq_b")
    yield s.gemm("selector keys and weights", "projections", "", count, rows, x.head_dim + x.num_heads, h)
    yield from scans(s, x, count, 1)


def scans(s: Step, x: Indexer, count: int, ratio: int, form: str = "selector", size: float = 0.0) -> Iterator[Kernel]:
    """Scores of decoding tokens and of prompts over keys of the selector: fp8 with a scale, or ``size`` bytes a key."""
    work, each = s.work, size or x.head_dim + SCALE_BYTES
    heads = x.num_heads / (np.minimum(s.plan.tp, x.num_heads) if x.block > 1 else 1)
    length = seen_in_decode(s) / ratio
    pairs = work.decode_seqs * work.rows_per_seq * length
    yield _scan(s, x, f"{form}-decode", count, heads, pairs, length, work.decode_seqs * length * each)
    seqs, new, past = prompt_sizes(s)
    pairs = seqs * causal_pairs(new, past) / ratio
    yield _scan(s, x, f"{form}-prefill", count, heads, pairs, (new + past) / ratio, seqs * (new + past) / ratio * each)


def _scan(s: Step, x: Indexer, form: str, count: int, heads: Number, pairs: Number, length: Number, nbytes: Number) -> Kernel:
    runs, flops = pick(np.asarray(pairs) > 0, count, 0), 2.0 * pairs * heads * x.head_dim
    dtype = "fp8" if x.block == 1 else s.plan.activations_dtype
    candidates = pairs if x.block == 1 else pairs * heads / x.block
    plain = Kernel("selector", form, runs, flops, nbytes, dtype=dtype, shape=Scan(length, candidates))
    return replace(plain, part="attention", place="decode" if form.endswith("decode") else "prefill")


def decode(s: Step, a: Attention, m: Latent, count: int) -> Iterator[Kernel]:
    """Latents of all cached tokens, or of those that the selector chose."""
    seqs, heads = s.work.decode_seqs, a.num_heads / s.plan.tp * s.work.rows_per_seq
    entries = seen_in_decode(s)
    if a.indexer:
        entries = np.minimum(entries, a.indexer.top_k)
    shape = Reading(seqs, heads, entries, 2 * m.kv_rank + m.rope_dim)
    yield read(s, "sparse-decode" if a.indexer else "latent-decode", count, shape, latent_bytes(s, a), s.plan.kv_dtype)


def read(s: Step, form: str, count: int, shape: Reading, entry_bytes: Number, kv_dtype: str) -> Kernel:
    """Decode attention over entries of so many bytes."""
    runs = pick(np.asarray(shape.groups) > 0, count, 0)
    flops = 2.0 * shape.groups * shape.heads * shape.entries * shape.width
    dtype = "fp8" if kv_dtype == "fp8" else s.plan.activations_dtype
    plain = Kernel("decode attention", form, runs, flops, shape.groups * shape.entries * entry_bytes, dtype=dtype, shape=shape)
    return replace(plain, weight_bytes=DTYPE_BYTES[s.plan.kv_dtype], part="attention", place="decode")


def prefill(s: Step, a: Attention, m: Latent, count: int, absorbed: bool = False) -> Iterator[Kernel]:
    """Whole prompts, or the tokens that the selector chose for each."""
    if a.indexer:
        seqs, new, past = prompt_sizes(s)
        pairs, entries = chosen_pairs(new, past, a.indexer.top_k), np.minimum(new + past, a.indexer.top_k)
        yield choose(s, "sparse-prefill", count, a, (seqs * pairs, entries), 2 * m.kv_rank + m.rope_dim, latent_bytes(s, a))
        return
    seqs, new, past = prompt_sizes(s)
    heads, width = a.num_heads / s.plan.tp, 2 * m.kv_rank + m.rope_dim if absorbed else a.head_dim + a.v_head_dim
    flops, nbytes = 2.0 * seqs * heads * causal_pairs(new, past) * width, seqs * (new + past) * latent_bytes(s, a)
    runs, form = pick(np.asarray(seqs) > 0, count, 0), "absorbed-prefill" if absorbed else "latent-prefill"
    dtype = "fp8" if s.plan.kv_dtype == "fp8" else s.plan.activations_dtype
    shape = Prompts(seqs, heads, new, past, width)
    yield Kernel("prefill attention", form, runs, flops, nbytes, dtype=dtype, shape=shape, part="attention", place="prefill")


def choose(
    s: Step,
    form: str,
    count: int,
    a: Attention,
    chosen: tuple[Number, Number],
    width: int,
    entry: Number,
    group: Number | None = None,
) -> Kernel:
    """Prefill over entries of the tokens' own choice: pairs of all, entries of one. ``group``: heads that choose together."""
    seqs, new, _ = prompt_sizes(s)
    heads, (pairs, entries) = a.num_heads / s.plan.tp, chosen
    together = heads if group is None else group
    runs, flops = pick(np.asarray(seqs) > 0, count, 0), 2.0 * pairs * heads * width
    nbytes = seqs * entries * entry * heads / together  # what one token chose, at the least
    shape = Choosing(seqs, seqs * new, together, entries, pairs * entry * heads / together)
    dtype = "fp8" if s.plan.kv_dtype == "fp8" else s.plan.activations_dtype
    return Kernel("prefill attention", form, runs, flops, nbytes, dtype=dtype, shape=shape, part="attention", place="prefill")


def latent_bytes(s: Step, a: Attention) -> Number:
    """Bytes of one token's latent (a selector's keys are read beside it)."""
    beside = a.indexer.head_dim + SCALE_BYTES if a.indexer else 0
    return kv_bytes_per_token_layer(a, s.plan.tp, s.plan.kv_dtype) - beside


def seen_in_decode(s: Step) -> Number:
    """Tokens that a decoding query can see: what is cached, and the new ones."""
    return s.work.cached_tokens / np.maximum(1, s.work.decode_seqs) + s.work.rows_per_seq


def prompt_sizes(s: Step) -> tuple[Number, Number, Number]:
    """Prompts of a step, and of each the new and the cached tokens."""
    seqs = s.work.prefill_seqs
    return seqs, s.work.prefill_tokens / np.maximum(1, seqs), s.work.past_tokens / np.maximum(1, seqs)


def causal_pairs(new: Number, past: Number) -> Number:
    """Query-key pairs of one prompt."""
    return new * (new + 1) / 2 + new * past


def chosen_pairs(new: Number, past: Number, most: float, ratio: int = 1) -> Number:
    """… where each query sees every ``ratio``-th token before it, and ``most`` of those at most."""
    head = np.maximum(0, np.minimum(new, most * ratio - past))  # queries that still see everything
    rest = (new - head) * most if np.isfinite(most) else 0.0
    return causal_pairs(head, past) / ratio + rest
