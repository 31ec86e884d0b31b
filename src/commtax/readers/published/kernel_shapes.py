"""Timed kernels as the cost model's: FLOPs and bytes of one product, and of decode and prefill attention, from their sizes."""

from __future__ import annotations

from dataclasses import replace

from commtax.cost.compute import Kernel
from commtax.spec import Number

OUT_BYTES = 2.0  # an element of what products and attention write, and of queries: bf16


def product(m: Number, n: Number, k: Number, dtype: str, stored: float, act: float, *, static_scales: bool = False) -> Kernel:
    """m x k times k x n: 2 m n k FLOPs; ``stored`` and ``act`` bytes an element of the weights and of the activations."""
    flops, nbytes = 2.0 * m * n * k, act * m * k + stored * n * k + OUT_BYTES * m * n
    plain = Kernel("product", "gemm", 1, flops, nbytes, m=m, n=n, k=k, dtype=dtype, weight_bytes=stored)
    return replace(plain, static_scales=static_scales)


def decode_attention(batch: Number, length: Number, heads: Number, kv_heads: Number, head_dim: float, stored: float) -> Kernel:
    """One query a sequence over ``length`` keys and values of ``stored`` bytes an element: 4 FLOPs a key and element."""
    flops, nbytes = 4.0 * batch * heads * length * head_dim, 2.0 * batch * length * kv_heads * head_dim * stored
    plain = Kernel("decode attention", "decode", 1, flops, nbytes, weight_bytes=stored, batch=batch, heads=heads)
    return replace(plain, kv_heads=kv_heads, head_dim=int(head_dim), length=length)


def prefill_attention(batch: Number, length: Number, heads: Number, kv_heads: Number, head_dim: float) -> Kernel:
    """All causal pairs of ``length`` tokens, in bf16."""
    return prefill_over(batch, length, heads, kv_heads, head_dim, length * (length + 1) / 2)


def prefill_over(
    batch: Number,
    length: Number,
    heads: Number,
    kv_heads: Number,
    head_dim: float,
    pairs: Number,
    *,
    past: Number = 0.0,
    dtype: str = "bf16",
    stored: float = OUT_BYTES,
) -> Kernel:
    """``length`` new tokens after ``past`` cached ones: 4 FLOPs for each of ``pairs`` of query and key, and element."""
    moved = 2 * OUT_BYTES * length * heads + 2 * stored * (length + past) * kv_heads
    flops, nbytes = 4.0 * batch * heads * pairs * head_dim, batch * head_dim * moved
    plain = Kernel("prefill attention", "prefill", 1, flops, nbytes, dtype=dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    return replace(plain, head_dim=int(head_dim), length=length, past=past)
