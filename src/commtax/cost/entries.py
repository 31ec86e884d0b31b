"""What kinds of attention have in common: projections, reading entries in decode, choosing them in prefill, scoring them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.caches import SCALE_BYTES
from commtax.cost.forms.latent import Choosing, Reading, Scan
from commtax.cost.kernel import Kernel, Step
from commtax.cost.streams import quantising
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, Attention, Indexer, Number

Maker = Callable[[Step, Attention, int], Iterator[Kernel]]


@dataclass(frozen=True, slots=True)
class Makers:
    """What makes the kernels of a kind of attention: what a token meets alone, and what lets it see others."""

    projections: Maker
    attention: Maker
    trained: Maker  # projections as training runs them


def choosing(projections: Maker, selector: Maker, decode: Maker, prefill: Maker) -> Makers:
    """Attention that a selector chooses for; in training its matrices are met as all others are."""

    def attention(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
        for make in (selector, decode, prefill):
            yield from make(s, a, count)

    def trained(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
        yield from projections(s, a, count)
        yield from (k for k in selector(s, a, count) if k.form == "gemm")

    return Makers(projections, attention, trained)


def projections(s: Step, a: Attention, count: int) -> Iterator[Kernel]:
    """Queries, keys and values of a rank's heads, and their outputs."""
    h, tp, rows = s.model.hidden, s.plan.tp, s.rows
    kv = a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
    width = a.num_heads * a.head_dim / tp + kv * (a.head_dim + a.v_head_dim)
    yield (qkv := s.gemm("QKV projection", "projections", "qkv", count, rows, width, h, "self_attn.q_proj"))
    yield from quantising(s, qkv)
    yield s.small("rotary and KV write", "projections", "rotary", 2 * count, rows * width)
    if a.qk_norm and (launches := s.engine.kernels.head_norm_kernels):
        yield s.small("query and key norms", "projections", "query", launches * count, rows * width)
    width = a.num_heads * a.v_head_dim / tp
    yield s.gemm("output projection", "projections", "output projection", count, rows, h, width, "self_attn.o_proj")


def read(s: Step, form: str, count: int, shape: Reading, entry_bytes: Number, kv_dtype: str) -> Kernel:
    """Decode attention over entries of so many bytes."""
    runs = pick(np.asarray(shape.groups) > 0, count, 0)
    flops = 2.0 * shape.groups * shape.heads * shape.entries * shape.width
    dtype = "fp8" if kv_dtype == "fp8" else s.plan.activations_dtype
    plain = Kernel("decode attention", form, runs, flops, shape.groups * shape.entries * entry_bytes, dtype=dtype, shape=shape)
    return replace(plain, weight_bytes=DTYPE_BYTES[s.plan.kv_dtype], part="attention", place="decode")


def choose(
    s: Step,
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
