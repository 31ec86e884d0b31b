"""The kernels of latent attention: keys and values of all heads are one low-rank latent a token, of which a selector may choose.

Decode folds the latents' up-projection into query and output (absorbed), so that it reads the latents themselves. So do prompts
whose tokens choose what they see; others make keys and values of every token again.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.caches import SCALE_BYTES, kv_bytes_per_token_layer
from commtax.cost.entries import Makers, causal_pairs, choose, chosen_pairs, prompt_sizes, read, scans, seen_in_decode
from commtax.cost.forms.latent import HeadProduct, Prompts, Reading
from commtax.cost.kernel import Kernel, Step
from commtax.ledger import Place
from commtax.spec import Attention, Latent, Number

CHAINED = 0.6
"""Share of an absorbed product's fixed time that its neighbours hide: modules take so much less than their kernels alone."""


def projections(s: Step, a: Attention, count: int, absorbed: bool | None = None) -> Iterator[Kernel]:
    """Down-projections are whole on every rank. ``absorbed``: prompts are, too; None: where their tokens choose."""
    m = _latent(a)
    h, heads, rows, work = s.model.hidden, a.num_heads / s.plan.tp, s.rows, s.work
    low = m.q_rank + m.kv_rank + m.rope_dim
    yield s.gemm("latent down-projection", "projections", "down-projection", count, rows, low, h, "self_attn.q_a_proj")
    width = heads * (m.nope_dim + m.rope_dim)
    yield s.gemm("query up-projection", "projections", "query", count, rows, width, m.q_rank or h, "self_attn.q_b_proj")
    yield s.small("rotary, latent norms and KV write", "projections", "rotary", count, 3 * rows * low)
    yield from head_products(s, a, m, count, work.decode_seqs * work.rows_per_seq)
    if absorbed or (absorbed is None and a.indexer):
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
        yield replace(
            head_product(rows, heads, dim, m.kv_rank), what=f"absorbed {what} projection", count=runs, place=place, fused=CHAINED
        )


def head_product(rows: Number, heads: Number, dim: int, rank: int, stored: float = 2.0, hot: bool = False) -> Kernel:
    """``rows`` x dim times dim x rank for each head. ``hot``: repeated, so that the chip's cache may hold all of it."""
    flops, moved = 2.0 * rows * heads * dim * rank, heads * (dim * rank * stored + rows * (dim + rank) * 2.0)
    shape = HeadProduct(rows, heads, moved if hot else 0.0)
    plain = Kernel("absorbed projection", "head-product", 1, flops, moved * (not hot), shape=shape, part="projections")
    return replace(plain, dtype="fp8" if stored == 1 else "bf16", weight_bytes=stored)


def selector(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """The selector's own queries, keys and weights, and its scores over all cached tokens; every rank has it whole."""
    if (x := a.indexer) and x.own:
        h, rows, rank = s.model.hidden, s.rows, _latent(a).q_rank or s.model.hidden
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, rank, "self_attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.head_dim + x.num_heads, h)
        yield from scans(s, x, count, 1)


def decode(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Latents of all cached tokens, or of those that the selector chose."""
    heads, entries, m = a.num_heads / s.plan.tp * s.work.rows_per_seq, seen_in_decode(s), _latent(a)
    if a.indexer:
        entries = np.minimum(entries, a.indexer.top_k)
    shape = Reading(s.work.decode_seqs, heads, entries, 2 * m.kv_rank + m.rope_dim)
    yield read(s, "sparse-decode" if a.indexer else "latent-decode", count, shape, _latent_bytes(s, a), s.plan.kv_dtype)


def prefill(s: Step, a: Attention, count: int, absorbed: bool = False) -> Iterator[Kernel]:
    """Whole prompts, or the tokens that the selector chose for each."""
    m, (seqs, new, past) = _latent(a), prompt_sizes(s)
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


def _latent_bytes(s: Step, a: Attention) -> Number:
    """Bytes of one token's latent (a selector's keys are read beside it)."""
    beside = a.indexer.head_dim + SCALE_BYTES if a.indexer and a.indexer.own else 0
    return kv_bytes_per_token_layer(a, s.plan.tp, s.plan.kv_dtype) - beside


def _latent(a: Attention) -> Latent:
    assert a.latent
    return a.latent


def attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    yield from selector(s, a, count)
    yield from decode(s, a, count)
    yield from prefill(s, a, count)


def trained(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Nothing is absorbed, nothing small fused; a selector's matrices are met as all others are."""
    for k in projections(s, a, count, absorbed=False):
        if k.form == "small":
            yield replace(k, count=3 * k.count, nbytes=k.nbytes / 3)
        elif k.form != "head-product":
            yield k
    yield from (k for k in selector(s, a, count) if k.form == "gemm")


MAKERS = Makers(projections, attention, trained)
