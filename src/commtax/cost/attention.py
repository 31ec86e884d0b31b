"""The kernels of attention over each token's keys and values: projections, decode, prefill; and how many pairs of tokens meet.

Prompts see half of their pairs (causal), a window cuts them further. Change here what plain attention computes and moves; other
kinds (latent, compressed, chosen blocks, linear) are in ``attention_kinds.py``, seconds in ``forms.py``.
"""

from collections.abc import Iterator

import numpy as np

from commtax.arrays import pick
from commtax.cost.caches import kv_bytes_per_token_layer
from commtax.cost.context_parallel import joining_kernels
from commtax.cost.kernel import NARROW_CACHE, NARROW_PROMPTS, SINGLE, WIDE_BYTES, WINDOWED, Kernel, KernelContext, KernelStep
from commtax.cost.layer_forms import MemoryPass
from commtax.ledger import Place
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Attention, Compressed, Number

Attended = tuple[Number, Number, Number, int, Number, Number]
"""Shape of attention: batch, heads, KV heads, head size, length and past (see ``Kernel``)."""
ACTIVATION_BYTES, NARROW_BYTES = 2.0, 1.0  # bf16 in, fp8 out


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
    return _per_sequence(s.work.cached_tokens, s.work.decode_seqs) + s.work.rows_per_seq


def prompt_sizes(s: KernelStep) -> tuple[Number, Number, Number]:
    """Return the prompts of a step, and of each the new and the cached tokens."""
    seqs = s.work.prefill_seqs
    return seqs, _per_sequence(s.work.prefill_tokens, seqs), _per_sequence(s.work.past_tokens, seqs)


def _per_sequence(tokens: Number, seqs: Number) -> Number:
    """Return the tokens of a whole sequence: half of one (``overlap.half_of``) has half of its pairs, and both halves have all."""
    return tokens / pick(np.asarray(seqs) > 0, seqs, 1)


def causal_pairs(new: Number, past: Number) -> Number:
    """Return the query-key pairs of one prompt."""
    return new * (new + 1) / 2 + new * past


def chosen_pairs(new: Number, past: Number, most: float, ratio: int = 1) -> Number:
    """Return the pairs where each query sees every ``ratio``-th token before it, and ``most`` of those at most."""
    head = np.maximum(0, np.minimum(new, most * ratio - past))  # queries that still see everything
    rest = (new - head) * most if np.isfinite(most) else 0.0
    return causal_pairs(head, past) / ratio + rest


def _attend(
    s: KernelStep,
    form: Place,
    tokens: Number,
    count: int,
    flops: Number,
    nbytes: Number,
    shape: Attended,
    stored: float,
    window: int,
) -> Kernel:
    """Plain attention of so many tokens; without any there is none. Prompts over a narrow cache have kernels of their own in some
    libraries, and so have decoding heads with keys of their own."""
    narrow = form == "prefill" and s.plan.kv_dtype == "fp8"
    low = narrow and s.engine.kernels.prefill_fp8
    kind = NARROW_PROMPTS if low else NARROW_CACHE if narrow else ""
    if form == "decode":
        single = stored == WIDE_BYTES and bool(np.all(shape[1] == shape[2]))
        kind = SINGLE if single else WINDOWED if window else ""
    sizes = (0, 0, 0, "fp8" if low else s.plan.activations_dtype, stored, *shape)
    runs = pick(np.asarray(tokens) > 0, count, 0)
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
    flops = 2 * seqs * heads * _pairs(new, past, a) * width
    shape = (seqs, heads, kv_heads, a.head_dim, new, past)
    moved = moved + seqs * (new + past) * per_token
    yield _attend(s, "prefill", tokens, count, flops, moved, shape, WIDE_BYTES, a.window)


def _pairs(new: Number, past: Number, a: Attention) -> Number:
    """Return the query-key pairs of one prompt: half of the new tokens, all of the past, cut to the window or to those chosen."""
    if a.compressed:
        return compressed_pairs(new, past, a, a.compressed)
    limit = a.window or (a.indexer.top_k if a.indexer else 0)
    return chosen_pairs(new, past, limit) if limit else causal_pairs(new, past)


def compressed_pairs(new: Number, past: Number, a: Attention, m: Compressed) -> Number:
    """Return the pairs of a query and an entry that it sees, of one prompt."""
    window = chosen_pairs(new, past, m.window)
    return window + chosen_pairs(new, past, a.indexer.top_k if a.indexer else np.inf, m.ratio) if m.ratio else window


def quantise_kernel(form: str, rows: Number, columns: Number) -> Kernel:
    """Return the pass that brings rows of bf16 to fp8 (form ``quantise``), or the one that finds their scales (``scales``).

    A block takes a row, so that few long rows take as long as one.
    """
    elements = rows * columns
    nbytes = (ACTIVATION_BYTES + (NARROW_BYTES if form == "quantise" else 0.0)) * elements
    return Kernel("quantisation", form, 1, 2.0 * elements, nbytes, dtype="fp32", shape=MemoryPass(columns, rows))


def quantised_before(product: Kernel) -> Kernel:
    """Return the kernel that brings a product's input to fp8 with a known scale, where an engine has a separate one."""
    one = quantise_kernel("quantise", product.m, product.k)
    return replace(one, what=f"quantisation before {product.what}", count=product.count, part=product.part, place=product.place)
