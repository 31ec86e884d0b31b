"""The kernels of attention that sees less than all: blocks of tokens that a selector chose, and compressed entries.

Block-sparse attention (MiniMax-M3): the index heads of a KV head score blocks, all its query heads see the best of them.
Compressed attention (DeepSeek-V4): one latent is key and value of all heads; the last tokens are seen as they are, older ones as
entries that several share, all of them (ratio 128) or those that a selector chose (ratio 4).
"""

from collections.abc import Iterator

import numpy as np

from commtax.cost.caches import entry_bytes
from commtax.cost.forms.latent import Reading
from commtax.cost.kernel import Kernel, Step
from commtax.cost.latent import choose, chosen_pairs, prompt_sizes, read, scans, seen_in_decode
from commtax.spec import DTYPE_BYTES, Attention, Compressed, Indexer, Number


def block_projections(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Queries, keys and values of a rank's heads, and their outputs."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    width = a.num_heads * a.head_dim / tp + a.num_kv_heads / np.minimum(tp, a.num_kv_heads) * (a.head_dim + a.v_head_dim)
    yield s.gemm("QKV projection", "projections", "qkv", count, rows, width, h, "self_attn.q_proj")
    yield s.small("norms, rotary and KV write", "projections", "rotary", 3 * count, rows * width)
    width = a.num_heads * a.v_head_dim / tp
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, width, "self_attn.o_proj")


def block_selector(s: Step, x: Indexer, count: int) -> Iterator[Kernel]:
    """Index queries of a rank's KV heads and one index key, and their scores; index keys stay in the activations' format."""
    size = DTYPE_BYTES[s.plan.activations_dtype]
    width = (x.num_heads / np.minimum(s.plan.tp, x.num_heads) + 1) * x.head_dim
    yield s.gemm("selector", "projections", "", count, s.rows, width, s.model.hidden)
    yield from scans(s, x, count, 1, "block-selector", x.head_dim * size)


def block_decode(s: Step, a: Attention, x: Indexer, count: int) -> Iterator[Kernel]:
    """Keys and values of the chosen blocks, for each KV head its own."""
    kv_heads = a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)
    heads = a.num_heads / s.plan.tp / kv_heads * s.work.rows_per_seq
    entries = np.minimum(seen_in_decode(s), x.top_k)
    shape = Reading(s.work.decode_seqs * kv_heads, heads, entries, a.head_dim + a.v_head_dim)
    yield read(s, "block-decode", count, shape, (a.head_dim + a.v_head_dim) * DTYPE_BYTES[s.plan.kv_dtype], s.plan.kv_dtype)


def block_prefill(s: Step, a: Attention, x: Indexer, count: int) -> Iterator[Kernel]:
    seqs, new, past = prompt_sizes(s)
    chosen = (seqs * chosen_pairs(new, past, x.top_k), np.minimum(new + past, x.top_k))
    group = a.num_heads / s.plan.tp / (a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads))
    width = a.head_dim + a.v_head_dim
    yield choose(s, "block-prefill", count, a, chosen, width, width * DTYPE_BYTES[s.plan.kv_dtype], group)


def compressed_projections(s: Step, a: Attention, m: Compressed, count: int) -> Iterator[Kernel]:
    """Queries through a latent, one latent for keys and values, the compressor's values and gates, outputs by groups of heads."""
    h, heads, rows = s.model.hidden, a.num_heads / s.plan.tp, s.rows
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


def compressed_selector(s: Step, a: Attention, m: Compressed, count: int) -> Iterator[Kernel]:
    """A selector over compressed entries, with a compressor of its own."""
    if x := a.indexer:
        h, rows = s.model.hidden, s.rows
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, m.q_rank, "attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.num_heads + 2 * m.overlap * x.head_dim, h)
        yield from scans(s, x, count, m.ratio, "compressed-selector")


def compressed_decode(s: Step, a: Attention, m: Compressed, count: int) -> Iterator[Kernel]:
    """The last tokens, and entries of the older ones."""
    heads, seen = a.num_heads / s.plan.tp * s.work.rows_per_seq, seen_in_decode(s)
    entries = np.minimum(seen, m.window) + _older(seen, a, m)
    shape = Reading(s.work.decode_seqs, heads, entries, 2 * a.head_dim)
    yield read(s, "compressed-decode", count, shape, entry_bytes(a, m, s.plan.kv_dtype), "bf16")


def compressed_prefill(s: Step, a: Attention, m: Compressed, count: int) -> Iterator[Kernel]:
    seqs, new, past = prompt_sizes(s)
    pairs = chosen_pairs(new, past, m.window)
    if m.ratio:
        pairs = pairs + chosen_pairs(new, past, a.indexer.top_k if a.indexer else np.inf, m.ratio)
    entries = np.minimum(new + past, m.window) + _older(new + past, a, m)
    yield choose(s, "compressed-prefill", count, a, (seqs * pairs, entries), 2 * a.head_dim, entry_bytes(a, m, s.plan.kv_dtype))


def _older(length: Number, a: Attention, m: Compressed) -> Number:
    """Compressed entries that a query sees."""
    entries = length / m.ratio if m.ratio else length * 0.0
    return np.minimum(entries, a.indexer.top_k) if a.indexer else entries
