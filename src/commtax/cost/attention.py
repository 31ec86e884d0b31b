"""The kernels of attention: projections, decode and prefill over keys and values, or over latents; and how many pairs meet.

Plain: each token's keys and values. Prompts see half of their pairs (causal), a window cuts them further. Latent: keys and values
of all heads are one low-rank latent a token, of which a selector may choose; decode folds the latents' up-projection into query and
output (absorbed), so that it reads the latents themselves, and so do prompts whose tokens choose what they see, while others make
keys and values of every token again.
Change here what attention computes and moves; further kinds (compressed, chosen blocks, linear) are in ``attention_kinds.py``,
seconds in ``forms.py`` and ``layer_forms.py``.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost.caches import SCALE_BYTES, kv_bytes_per_token_layer
from commtax.cost.context_parallel import joining_kernels
from commtax.cost.kernel import NARROW_CACHE, NARROW_PROMPTS, SINGLE, WIDE_BYTES, WINDOWED, Kernel, KernelContext, KernelStep
from commtax.cost.layer_forms import Choosing, HeadProduct, MemoryPass, ModuleSizes, Prompts, Reading, SelectorScan
from commtax.ledger import Place
from commtax.records import dataclass, replace
from commtax.spec import DTYPE_BYTES, Attention, Compressed, Indexer, Latent, Number

Maker = Callable[[KernelStep, Attention, int], Iterator[Kernel]]
T = TypeVar("T")
Attended = tuple[Number, Number, Number, int, Number, Number]
"""Shape of attention: batch, heads, KV heads, head size, length and past (see ``Kernel``)."""
ACTIVATION_BYTES, NARROW_BYTES = 2.0, 1.0  # bf16 in, fp8 out
SCORE_BYTES = 12  # of a selector's score in fp32, written once and read twice: to find the threshold, and what is above it
CHAINED = 0.6
"""Share of an absorbed product's fixed time that its neighbours hide: modules take so much less than their kernels alone."""


def made_queries(s: KernelStep, a: Attention) -> Number:
    """Return the heads whose queries a rank makes: its own, or those of all ranks that it shares caches with."""
    return a.num_heads / s.plan.tp * (s.plan.dcp if s.engine.contexts.queries_remade else 1)


def projections(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield the products of queries, keys and values of a rank's heads, and of their outputs."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    kv = a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
    width = made_queries(s, a) * a.head_dim + kv * (a.head_dim + a.v_head_dim)
    yield (qkv := s.gemm("QKV projection", "projections", "qkv", count, rows, width, h, "self_attn.q_proj"))
    if qkv.static_scales and s.engine.kernels.quantises_apart:
        yield quantised_before(qkv)
    yield s.small("rotary and KV write", "projections", "rotary", 2 * count, rows * width)
    if a.qk_norm and (launches := s.engine.kernels.head_norm_kernels):
        yield s.small("query and key norms", "projections", "query", launches * count, rows * width)
    width = a.num_heads * a.v_head_dim / tp
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, width, "self_attn.o_proj")


def visible_tokens(s: KernelStep) -> Number:
    """Return the tokens that a decoding query can see: those cached, and the new ones."""
    return s.work.cached_tokens / _whole(s.work.decode_seqs) + s.work.rows_per_seq


def prompt_sizes(s: KernelStep) -> tuple[Number, Number, Number]:
    """Return the prompts of a step, and of each the new and the cached tokens."""
    seqs = s.work.prefill_seqs
    return seqs, s.work.prefill_tokens / _whole(seqs), s.work.past_tokens / _whole(seqs)


def _whole(seqs: Number) -> Number:
    """Return what tokens are divided by to be a whole sequence's: half of one (``overlap.half_of``) has half of its pairs."""
    return pick(np.asarray(seqs) > 0, seqs, 1)


def causal_pairs(new: Number, past: Number) -> Number:
    """Return the query-key pairs of one prompt."""
    return new * (new + 1) / 2 + new * past


def chosen_pairs(new: Number, past: Number, most: float, ratio: int = 1) -> Number:
    """Return the pairs where each query sees every ``ratio``-th token before it, and ``most`` of those at most."""
    head = np.maximum(0, np.minimum(new, most * ratio - past))  # queries that still see everything
    return causal_pairs(head, past) / ratio + ((new - head) * most if np.isfinite(most) else 0.0)


def _attend(
    s: KernelStep, form: Place, rows: Number, count: int, flops: Number, nbytes: Number, shape: Attended, stored: float, window: int
) -> Kernel:
    """Build plain attention over this many rows, or none without any."""
    narrow = form == "prefill" and s.plan.kv_dtype == "fp8"
    low = narrow and s.engine.kernels.prefill_fp8
    kind = NARROW_PROMPTS if low else NARROW_CACHE if narrow else ""
    if form == "decode":
        single = stored == WIDE_BYTES and bool(np.all(shape[1] == shape[2]))
        kind = SINGLE if single else WINDOWED if window else ""
    sizes = (0, 0, 0, "fp8" if low else s.plan.activations_dtype, stored, *shape)
    runs = pick(np.asarray(rows) > 0, count, 0)
    name = f"{form} attention in the window" if window else f"{form} attention"
    plain = Kernel(name, form, runs, flops, nbytes, *sizes, part="attention", place=form)
    return replace(plain, stored=kind, shape=KernelContext(window))


def _cache(s: KernelStep, a: Attention) -> tuple[Number, Number]:
    """Return the KV heads of a rank, and the bytes that a token has in its cache."""
    kv_heads = 1.0 if a.latent else a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads)
    return kv_heads, kv_bytes_per_token_layer(replace(a, indexer=None), s.plan.tp, s.plan.kv_dtype)


def decode_attention(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield decode attention, which reads every cached key and value."""
    seqs, work, heads = s.work.decode_seqs, s.work, a.num_heads / s.plan.tp * s.plan.dcp
    kv_heads, per_token = _cache(s, a)
    length = np.minimum(visible_tokens(s), a.window) if a.window else visible_tokens(s) / s.plan.dcp
    flops = 2 * seqs * work.rows_per_seq * heads * length * (a.head_dim + a.v_head_dim)
    shape = (seqs, heads * work.rows_per_seq, kv_heads, a.head_dim, length, 0)
    stored, moved = DTYPE_BYTES[s.plan.kv_dtype], seqs * length * per_token
    yield _attend(s, "decode", seqs, count, flops, moved, shape, stored, a.window)
    if s.plan.splits_sequences:
        yield from joining_kernels(s, a, count)


def prefill_attention(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield prefill attention, which computes the causal half of new x (past + new)."""
    (seqs, new, past), tokens, heads = prompt_sizes(s), s.work.prefill_tokens, a.num_heads / s.plan.tp
    kv_heads, per_token = _cache(s, a)
    width = a.head_dim + a.v_head_dim
    moved = tokens * (heads * width) * DTYPE_BYTES[s.plan.activations_dtype]
    limit = a.window or (a.indexer.top_k if a.indexer else 0)
    pairs = chosen_pairs(new, past, limit) if limit else causal_pairs(new, past)
    flops = 2 * seqs * heads * (compressed_pairs(new, past, a, a.compressed) if a.compressed else pairs) * width
    shape = (seqs, heads, kv_heads, a.head_dim, new, past)
    moved = moved + seqs * (new + past) * per_token
    yield _attend(s, "prefill", tokens, count, flops, moved, shape, WIDE_BYTES, a.window)


def compressed_pairs(new: Number, past: Number, a: Attention, m: Compressed) -> Number:
    """Return the pairs of a query and an entry that it sees, of one prompt."""
    window = chosen_pairs(new, past, m.window)
    return window + chosen_pairs(new, past, a.indexer.top_k if a.indexer else np.inf, m.ratio) if m.ratio else window


def quantise_kernel(form: str, rows: Number, columns: Number) -> Kernel:
    """Return the pass that brings rows of bf16 to fp8 (form ``quantise``) or finds their scales (``scales``), one block a row."""
    elements = rows * columns
    nbytes = (ACTIVATION_BYTES + (NARROW_BYTES if form == "quantise" else 0.0)) * elements
    return Kernel("quantisation", form, 1, 2.0 * elements, nbytes, dtype="fp32", shape=MemoryPass(columns, rows))


def quantised_before(product: Kernel) -> Kernel:
    """Return the kernel that brings a product's input to fp8 with a known scale, where an engine has a separate one."""
    one = quantise_kernel("quantise", product.m, product.k)
    return replace(one, what=f"quantisation before {product.what}", count=product.count, part=product.part, place=product.place)


@dataclass(frozen=True, slots=True)
class KernelMakers:
    """What makes the kernels of a kind of attention: what a token meets alone, and what lets it see others."""

    projections: Maker
    attention: Maker
    trained: Maker  # projections as training runs them


def selective_attention(projections: Maker, selector: Maker, decode: Maker, prefill: Maker) -> KernelMakers:
    """Combine the makers of attention over selected tokens, whose selector trains its matrices like any others."""

    def attention(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
        for make in (selector, decode, prefill):
            yield from make(s, a, count)

    def trained(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
        yield from projections(s, a, count)
        yield from (k for k in selector(s, a, count) if k.form == "gemm")

    return KernelMakers(projections, attention, trained)


def part_of_kind(part: T | None) -> T:
    """Return the part that defines this kind of attention, which the caller has already checked to be there."""
    assert part is not None
    return part


def read(s: KernelStep, form: str, count: int, shape: Reading, entry_bytes: Number, kv_dtype: str) -> Kernel:
    """Build decode attention over entries of ``entry_bytes`` each."""
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
    """Build prefill over the entries that each token selects (pairs in total, entries for one), ``group`` heads together."""
    (seqs, new, _), heads, (pairs, entries) = prompt_sizes(s), a.num_heads / s.plan.tp, chosen
    together = heads if group is None else group
    runs, flops = pick(np.asarray(seqs) > 0, count, 0), 2.0 * pairs * heads * width
    nbytes = seqs * entries * entry * heads / together  # what one token chose, at the least
    shape = Choosing(seqs, seqs * new, together, entries, pairs * entry * heads / together)
    dtype = "fp8" if low and s.plan.kv_dtype == "fp8" else s.plan.activations_dtype
    return Kernel("prefill attention", form, runs, flops, nbytes, dtype=dtype, shape=shape, part="attention", place="prefill")


def scans(s: KernelStep, x: Indexer, count: int, ratio: int, form: str = "selector", size: float = 0.0) -> Iterator[Kernel]:
    """Yield the scores of decoding tokens and of prompts over the selector's keys (fp8 with a scale, or ``size`` bytes a key)."""
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
    """Build one scan, where ``pairs`` of query and key are those that are multiplied and those whose selection is timed."""
    made, chosen = pairs
    runs, flops = pick(np.asarray(made) > 0, count, 0), 2.0 * made * heads * x.head_dim
    dtype = "fp8" if x.block == 1 else s.plan.activations_dtype
    candidates = chosen if x.block == 1 else chosen * heads / x.block
    plain = Kernel("selector", form, runs, flops, nbytes, dtype=dtype, shape=SelectorScan(length, candidates))
    return replace(plain, part="attention", place="decode" if form.endswith("decode") else "prefill")


def latent_projections(s: KernelStep, a: Attention, count: int, absorbed: bool | None = None) -> Iterator[Kernel]:
    """Yield projections over latents. ``absorbed``: for prompts too, or where their tokens select (None)."""
    m = part_of_kind(a.latent)
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
    """Yield the products that map queries into the latent space and outputs out of it, one matrix per head."""
    places: tuple[Place, Place] = ("key", "value")
    sizes = (m.nope_dim, made_queries(s, a)), (a.v_head_dim, a.num_heads / s.plan.tp)
    runs = pick(np.asarray(rows) > 0, count, 0)
    for place, (dim, heads) in zip(places, sizes, strict=True):
        product = head_product(rows, heads, dim, m.kv_rank)
        yield replace(product, what=f"absorbed {place} projection", count=runs, place=place, fused=CHAINED)


def head_product(rows: Number, heads: Number, dim: int, rank: int, stored: float = 2.0, hot: bool = False) -> Kernel:
    """Build ``rows`` x dim times dim x rank for each head. ``hot``: repeated, so that the chip's cache may hold all of it."""
    flops, moved = 2.0 * rows * heads * dim * rank, heads * (dim * rank * stored + rows * (dim + rank) * 2.0)
    shape = HeadProduct(rows, heads, moved if hot else 0.0)
    plain = Kernel("absorbed projection", "head-product", 1, flops, moved * (not hot), shape=shape, part="projections")
    return replace(plain, dtype="fp8" if stored == 1 else "bf16", weight_bytes=stored)


def latent_selector(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield the selector's queries, keys and weights, and its scores over all cached tokens, all of it on every rank."""
    if (x := a.indexer) and x.own:
        h, rows, rank = s.model.hidden, s.rows, part_of_kind(a.latent).q_rank or s.model.hidden
        yield s.gemm("selector queries", "projections", "", count, rows, x.num_heads * x.head_dim, rank, "self_attn.indexer.wq_b")
        yield s.gemm("selector keys and weights", "projections", "", count, rows, x.head_dim + x.num_heads, h)
        yield from scans(s, x, count, 1)


def latent_decode(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield decode attention over the latents of all cached tokens, or of those that the selector picked."""
    heads, m = a.num_heads / s.plan.tp * s.plan.dcp * s.work.rows_per_seq, part_of_kind(a.latent)
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
    """Yield attention of whole prompts, or over the tokens that the selector picked for each."""
    m, (seqs, new, past) = part_of_kind(a.latent), prompt_sizes(s)
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
    """Return the bytes of one token's latent, without the selector's keys beside it."""
    beside = a.indexer.head_dim + SCALE_BYTES if a.indexer and a.indexer.own else 0
    return kv_bytes_per_token_layer(a, s.plan.tp, s.plan.kv_dtype) - beside


def latent_training(s: KernelStep, a: Attention, count: int) -> Iterator[Kernel]:
    """Yield projections with nothing absorbed and no small kernels fused, while the selector keeps its matrix products."""
    for k in latent_projections(s, a, count, absorbed=False):
        if k.form == "small":
            yield replace(k, count=3 * k.count, nbytes=k.nbytes / 3)
        elif k.form != "head-product":
            yield k
    yield from (k for k in latent_selector(s, a, count) if k.form == "gemm")


LATENT = replace(selective_attention(latent_projections, latent_selector, latent_decode, latent_prefill), trained=latent_training)
