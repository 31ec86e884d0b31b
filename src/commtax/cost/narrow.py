"""Kernels in 8 bits and the same ones in 16: fp8 is never slower unless somebody measured that it is."""

from dataclasses import replace

import numpy as np

from commtax.cost.forms.experts import FORMS as ROUTED
from commtax.cost.kernel import NARROW_CACHE, NARROW_PROMPTS, SINGLE, WIDE_BYTES, Kernel
from commtax.spec import Number

CACHED = ("latent", "absorbed", "sparse", "block", "compressed")
"""What forms of attention begin with whose kernels tell by their arithmetic that a cache is narrow …"""
ATTENDING = ("decode", "prefill")
"""… and end with; a selector's keys are narrow whatever the cache is."""


def wide_twin(kernel: Kernel) -> Kernel | None:
    """The same kernel on weights or a cache of 16 bits; None: it is of 16 bits, or no fp8 of either."""
    if kernel.form == "gemm":
        return _wide_product(kernel) if kernel.dtype == "fp8" else None
    if kernel.form in ROUTED:
        return _wide_experts(kernel) if kernel.dtype == "fp8" and kernel.weight_bytes >= 1 else None
    if kernel.form == "decode":
        return _wide_decode(kernel) if kernel.weight_bytes == 1 else None
    if kernel.form == "prefill":
        return _wide_prefill(kernel) if kernel.stored in (NARROW_PROMPTS, NARROW_CACHE) else None
    first, _, last = kernel.form.partition("-")
    if kernel.dtype == "fp8" and first in CACHED and last in ATTENDING:
        return replace(kernel, dtype="bf16", weight_bytes=WIDE_BYTES, nbytes=WIDE_BYTES * kernel.nbytes)
    return None


def _wide_product(k: Kernel) -> Kernel | None:
    """4-bit weights with fp8 activations have no twin of which they were the narrow one."""
    if k.weight_bytes < 1:
        return None
    moved = WIDE_BYTES * (k.m * k.k + k.n * k.k + k.m * k.n)
    return replace(k, dtype="bf16", weight_bytes=WIDE_BYTES, nbytes=moved, static_scales=False, stored="")


def _wide_experts(k: Kernel) -> Kernel:
    moved = k.nbytes * WIDE_BYTES / k.weight_bytes if k.form.startswith("experts") else k.nbytes  # routing moves activations
    return replace(k, dtype="bf16", weight_bytes=WIDE_BYTES, nbytes=moved, stored="bf16")


def _wide_decode(k: Kernel) -> Kernel:
    kind = SINGLE if np.all(k.heads == k.kv_heads) else k.stored
    return replace(k, weight_bytes=WIDE_BYTES, nbytes=WIDE_BYTES * k.nbytes, stored=kind)


def _wide_prefill(k: Kernel) -> Kernel:
    """Keys and values are read with a byte more an element; queries and outputs are of 16 bits already."""
    more: Number = 2.0 * k.batch * (k.length + k.past) * k.kv_heads * k.head_dim
    return replace(k, dtype="bf16", stored="", nbytes=k.nbytes + more)
