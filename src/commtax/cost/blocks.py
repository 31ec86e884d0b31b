"""The kernels of block-sparse attention (MiniMax-M3): index heads score blocks, and all queries of a KV head see the best."""

from collections.abc import Iterator

import numpy as np

from commtax.cost.entries import choose, choosing, chosen_pairs, projections, prompt_sizes, read, scans, seen_in_decode
from commtax.cost.forms.latent import Reading
from commtax.cost.kernel import Kernel, Step
from commtax.spec import DTYPE_BYTES, Attention, Indexer, Number


def selector(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Index queries of a rank's KV heads and one index key, and their scores; index keys stay in the activations' format."""
    x = _indexer(a)
    width = (x.num_heads / np.minimum(s.plan.tp, x.num_heads) + 1) * x.head_dim
    yield s.gemm("selector", "projections", "", count, s.rows, width, s.model.hidden)
    yield from scans(s, x, count, 1, "block-selector", x.head_dim * DTYPE_BYTES[s.plan.activations_dtype])


def decode(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Keys and values of the chosen blocks, for each KV head its own."""
    kv_heads, width = _kv_heads(s, a), a.head_dim + a.v_head_dim
    heads = a.num_heads / s.plan.tp / kv_heads * s.work.rows_per_seq
    entries = np.minimum(seen_in_decode(s), _indexer(a).top_k)
    shape = Reading(s.work.decode_seqs * kv_heads, heads, entries, width)
    yield read(s, "block-decode", count, shape, width * DTYPE_BYTES[s.plan.kv_dtype], s.plan.kv_dtype)


def prefill(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    seqs, new, past = prompt_sizes(s)
    most, width = _indexer(a).top_k, a.head_dim + a.v_head_dim
    chosen = (seqs * chosen_pairs(new, past, most), np.minimum(new + past, most))
    group = a.num_heads / s.plan.tp / _kv_heads(s, a)
    yield choose(s, "block-prefill", count, a, chosen, width, width * DTYPE_BYTES[s.plan.kv_dtype], group)


def _kv_heads(s: Step, a: Attention) -> Number:
    return a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)


def _indexer(a: Attention) -> Indexer:
    assert a.indexer
    return a.indexer


MAKERS = choosing(projections, selector, decode, prefill)
