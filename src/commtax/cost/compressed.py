"""The kernels of compressed attention (DeepSeek-V4): one latent is key and value of all heads.

The last tokens are seen as they are, older ones as entries that several share: all of them (ratio 128), or those that a selector
chose (ratio 4).
"""

from collections.abc import Iterator

import numpy as np

from commtax.cost.caches import entry_bytes
from commtax.cost.entries import choose, choosing, chosen_pairs, prompt_sizes, read, scans, seen_in_decode
from commtax.cost.forms.latent import Reading
from commtax.cost.kernel import Kernel, Step
from commtax.spec import Attention, Compressed, Number


def projections(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Queries through a latent, one latent for keys and values, the compressor's values and gates, outputs by groups of heads."""
    m, h, heads, rows = _compressed(a), s.model.hidden, a.num_heads / s.plan.tp, s.rows
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


def selector(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """A selector over compressed entries, with a compressor of its own."""
    if (x := a.indexer) and x.own:
        m, h, rows = _compressed(a), s.model.hidden, s.rows
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, m.q_rank, "attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.num_heads + 2 * m.overlap * x.head_dim, h)
        yield from scans(s, x, count, m.ratio, "compressed-selector")


def decode(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """The last tokens, and entries of the older ones."""
    m, heads, seen = _compressed(a), a.num_heads / s.plan.tp * s.work.rows_per_seq, seen_in_decode(s)
    shape = Reading(s.work.decode_seqs, heads, _entries(seen, a, m), 2 * a.head_dim)
    yield read(s, "compressed-decode", count, shape, entry_bytes(a, m, s.plan.kv_dtype), s.plan.activations_dtype)


def prefill(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    m, (seqs, new, past) = _compressed(a), prompt_sizes(s)
    chosen = (seqs * pairs(new, past, a, m), _entries(new + past, a, m))
    yield choose(s, "compressed-prefill", count, a, chosen, 2 * a.head_dim, entry_bytes(a, m, s.plan.kv_dtype), low=False)


def pairs(new: Number, past: Number, a: Attention, m: Compressed) -> Number:
    """Pairs of a query and an entry that it sees, of one prompt."""
    window = chosen_pairs(new, past, m.window)
    return window + chosen_pairs(new, past, a.indexer.top_k if a.indexer else np.inf, m.ratio) if m.ratio else window


def _entries(length: Number, a: Attention, m: Compressed) -> Number:
    """Entries that a query sees: the window's, and the older ones'."""
    older = length / m.ratio if m.ratio else length * 0.0
    return np.minimum(length, m.window) + (np.minimum(older, a.indexer.top_k) if a.indexer else older)


def _compressed(a: Attention) -> Compressed:
    assert a.compressed
    return a.compressed


MAKERS = choosing(projections, selector, decode, prefill)
