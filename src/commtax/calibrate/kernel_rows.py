"""Timed kernels of one tensor-parallel rank, one row each, as kernels of the cost model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

import numpy as np

from commtax.cost.kernel import Kernel, KernelContext
from commtax.spec import DTYPE_BYTES, Number

Sizes = Mapping[str, Number]  # columns of numbers
OUT_BYTES = 2.0  # an element of what products and attention write, and of queries: bf16
ATTENTION = ("batch", "length", "heads", "kv_heads", "head_dim")
SHAPES = {"gemm": ("m", "n", "k"), "decode": ATTENTION, "prefill": ATTENTION}


class SweepRow(TypedDict, total=False):
    """One timing, under the names of its JSON line."""

    kind: str  # gemm | decode | prefill | step
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    splits: int
    m: int
    n: int
    k: int
    mode: str
    backend: str
    phase: str
    model: str
    tp: int
    num_layers: int
    engine: str
    version: str
    median_s: float


def kernel(row: SweepRow) -> Kernel:
    """The cost model's kernel of a row that is one; ``KeyError`` names what is missing of its shape."""
    dtype = row.get("dtype", "bf16")
    size = DTYPE_BYTES[dtype]
    if row["kind"] == "gemm":
        m, n, k = float(row["m"]), float(row["n"]), float(row["k"])
        return product(m, n, k, dtype, size, size, static_scales=dtype == "fp8" and "static" in row.get("mode", ""))
    length, heads, kv_heads = float(row["length"]), float(row["heads"]), float(row["kv_heads"])
    x = {"batch_size": float(row["batch"]), "num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": float(row["head_dim"])}
    if row["kind"] == "decode":
        return attention("decode", {**x, "step": length - 1, "window_size": 0.0}, dtype, size)
    return attention("prefill", {**x, "isl": length, "step": 0.0, "window_size": 0.0}, "bf16", OUT_BYTES)


def product(m: Number, n: Number, k: Number, dtype: str, stored: float, act: float, *, static_scales: bool = False) -> Kernel:
    """m x k times k x n: 2 m n k FLOPs; ``stored`` and ``act`` bytes an element of the weights and of the activations."""
    flops, nbytes = 2.0 * m * n * k, act * m * k + stored * n * k + OUT_BYTES * m * n
    plain = Kernel("product", "gemm", 1, flops, nbytes, m=m, n=n, k=k, dtype=dtype, weight_bytes=stored)
    return replace(plain, static_scales=static_scales)


def attention(form: str, x: Sizes, dtype: str, stored: float) -> Kernel:
    """Queries over keys and values of ``stored`` bytes an element: 4 FLOPs for each pair of query and key, and element."""
    batch, heads, kv_heads, dim = x["batch_size"], x["num_heads"], x["num_key_value_heads"], float(np.max(x["head_dim"]))
    if form == "decode":  # one query a sequence
        seen = visible_keys(x)
        flops, nbytes = 4.0 * batch * heads * seen * dim, 2.0 * batch * seen * kv_heads * dim * stored
        plain = Kernel("decode attention", "decode", 1, flops, nbytes, weight_bytes=stored, batch=batch, heads=heads)
        return replace(plain, kv_heads=kv_heads, head_dim=int(dim), length=seen)
    length, past = x["isl"], x["step"]
    moved = 2 * OUT_BYTES * length * heads + 2 * stored * (length + past) * kv_heads
    flops, nbytes = 4.0 * batch * heads * _pairs(x) * dim, batch * dim * moved
    plain = Kernel("prefill attention", "prefill", 1, flops, nbytes, dtype=dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    return replace(plain, head_dim=int(dim), length=length, past=past, shape=KernelContext(int(np.max(x["window_size"]))))


def visible_keys(x: Sizes) -> np.ndarray:
    """Keys that a decode step's query sees."""
    return np.where(x["window_size"] > 0, np.minimum(x["step"] + 1, x["window_size"]), x["step"] + 1)


def _pairs(x: Sizes) -> Number:
    """Causal pairs of query and key, inside the window where there is one."""
    window, length, past = float(np.max(x["window_size"])), x["isl"], x["step"]
    if not window:
        return length * (length + 1) / 2 + length * past
    head: Number = np.clip(np.minimum(length, window - past), 0, None)
    return head * (head + 1) / 2 + head * past + (length - head) * window
