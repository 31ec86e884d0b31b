"""Tables of matrix products and of grouped-query attention."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from commtax.arrays import Array
from commtax.cost.forms import from_memory
from commtax.cost.kernel import NARROW_CACHE, NARROW_PROMPTS, SINGLE, WIDE_BYTES, WINDOWED, Kernel, KernelContext
from commtax.runs.calibrate.measurements import OUT_BYTES, attention, product, visible_keys
from commtax.spec import DTYPE_BYTES, Chip, Number
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words

WIDE = 512  # products of fewer columns or a shorter sum decide no constants
NVFP4_SCALE_BYTES = 1 / 16  # of a weight: a byte of scale for 16 of them
LAUNCHED = {
    "CutlassFp8BlockScaledMMKernel": "cutlass",
    "DeepGemmFp8BlockScaledMMKernel": "deepgemm",
    "FlashInferFp8BlockScaledMMKernel": "flashinfer",
    "TritonFp8BlockScaledMMKernel": "triton",
}
"""vLLM's kernels of fp8 in tiles, which tables time without a graph: quantisation and product are launched from Python, and up to
some 10^10 FLOPs take as long as that does. A step runs them in a graph and never pays it."""
COPIES, MOST_COPIES = 6, 5
"""Matrices of one shape that aiconfigurator's collectors multiply in turn: of vLLM and SGLang, and of TensorRT-LLM at most …"""
ALONE = ("fp8_block", "nvfp4")
"""… and formats of which vLLM's has one."""
SCALES_ALIGNED = 4  # rows whose scales DeepGEMM takes as they are; others are laid out anew first


def _products(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make products in a format: 16 bits where only weights are narrower, and with a scale per tile where it has tiles."""
    stored = words["dtype"]
    dtype = "bf16" if words["written"].endswith("_wo") else stored
    size = DTYPE_BYTES[stored] + (NVFP4_SCALE_BYTES if stored == "nvfp4" else 0)
    plain = product(x["m"], x["n"], x["k"], dtype, size, size if dtype == "fp8" else OUT_BYTES)
    kept = "fp8-block" if words["written"] == "fp8_block" else stored if dtype != stored else ""
    plain = with_rotating_weights(replace(plain, stored=kept), words, x)
    return [plain, *launches(words.get("kernel_source", ""), x)]


def with_warm_cache(kernel: Kernel, x: Sizes) -> Kernel:
    """Keep in the chip's cache the KV cache that a table reads again and again, where it fits."""
    if "l2_bytes" not in x:
        return kernel
    kept = kernel.nbytes - from_memory(kernel.nbytes, x["l2_bytes"])
    return replace(kernel, shape=replace(kernel.shape or KernelContext(), kept=kept))


def with_rotating_weights(kernel: Kernel, words: Words, x: Sizes) -> Kernel:
    """Rotate a product's matrices as tables do to find each cold, though the chip's cache may hold them all."""
    if "l2_bytes" not in x:
        return kernel
    weights = kernel.n * kernel.k * kernel.weight_bytes
    copies: Number = 1 if words["written"] in ALONE and words.get("framework") != "sglang" else COPIES
    if words.get("framework") == "trtllm":  # as many as fill the cache
        copies = np.clip(np.ceil(x["l2_bytes"] / weights), 1, MOST_COPIES)
    rotated = (copies - 1) * weights + kernel.nbytes
    return replace(kernel, shape=KernelContext(kept=weights * (1 - from_memory(rotated, x["l2_bytes"]) / rotated)))


def with_cache_write(kernel: Kernel, x: Sizes, stored: float) -> Kernel:
    """Add the write of keys and values to prefill attention that a table times with it: read as made, written as
    stored. With these bytes prompts of every number of KV heads move alike on L40S (560 to 610 GB/s), without them 150 to 580."""
    elements = 2.0 * x["batch_size"] * x["isl"] * x["num_key_value_heads"] * x["head_dim"]
    return replace(kernel, shape=replace(kernel.shape or KernelContext(), written=elements * (WIDE_BYTES + stored)))


def launches(source: str, x: Sizes) -> Sequence[Kernel]:
    """Return the host's time for a product that no graph holds, where a table has it."""
    kernel = LAUNCHED.get(source, "")
    if not kernel:
        return []
    launched = Kernel("launches", "gemm-eager", 1, 0.0, 0.0, stored=kernel)
    again = np.where(x["m"] % SCALES_ALIGNED, 1.0, 0.0) if kernel == "deepgemm" else 0.0
    return [launched, replace(launched, what="scales laid out anew", count=again, stored="scales")]


def _warm_weights_hint(x: Sizes, chip: Chip) -> Array:
    kept = x["n"] * x["k"] * 2 < chip.l2_bytes
    return np.where(kept, "weights stay in the chip's cache between repetitions", "").astype(object)


def _window_hint(x: Sizes, chip: Chip) -> Array:  # noqa: ARG001
    return np.where(x["window_size"] > 0, "a window of attention", "").astype(object)


def _prefill(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make prefill attention, over a narrow cache with other kernels, in bf16 or in the cache's own arithmetic."""
    stored = NARROW_PROMPTS if words["dtype"] == "fp8" else NARROW_CACHE if words["stored"] == "fp8" else ""
    size = DTYPE_BYTES[words["stored"]]
    return [with_cache_write(replace(attention("prefill", x, words["dtype"], size), stored=stored), x, size)]


def _decode(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Decode attention, of which rows with keys for each query head may run a kernel of their own."""
    stored = DTYPE_BYTES[words["stored"]]
    plain = with_warm_cache(attention("decode", x, words["dtype"], stored), x)
    if np.any(x["window_size"] > 0):  # rows of a group have one window, or none
        plain = replace(plain, stored=WINDOWED)
    single = x["num_heads"] == x["num_key_value_heads"]
    if stored != WIDE_BYTES or not np.any(single):
        return [plain]
    return [replace(plain, count=np.where(single, 0, 1)), replace(plain, count=np.where(single, 1, 0), stored=SINGLE)]


def _cache_bytes(x: Sizes) -> Array:
    """Return the bytes of cache that a decode kernel reads."""
    return np.asarray(x["batch_size"] * visible_keys(x) * x["num_key_value_heads"] * x["head_dim"] * 2 * x["stored_bytes"])


_HEADS = ("num_heads", "num_key_value_heads", "head_dim")
_PRODUCT = ("m", "n", "k")
_PREFILL, _DECODE = ("batch_size", "isl", *_HEADS), ("batch_size", "step", *_HEADS)
_ATTENTION = partial(
    KernelKind,
    stored="kv_cache_dtype",
    from_zero=("step", "window_size"),
    alike=("head_dim", "window_size"),
    decides=lambda x: np.asarray(x["window_size"] == 0),
    hint=_window_hint,
)
KINDS = (
    KernelKind(
        "gemm",
        "gemm",
        _PRODUCT,
        _products,
        lambda x: x["m"],
        "gemm_dtype",
        alike=("kernel_source",),
        hashed=("gemm_dtype", *_PRODUCT),
        decides=lambda x: (x["n"] >= WIDE) & (x["k"] >= WIDE),
        hint=_warm_weights_hint,
    ),
    _ATTENTION(
        "context_attention",
        "prefill-attention",
        _PREFILL,
        _prefill,
        lambda x: x["isl"],
        "attn_dtype",
        hashed=("attn_dtype", *_PREFILL),
    ),
    _ATTENTION(
        "generation_attention",
        "decode-attention",
        ("batch_size", *_HEADS),
        _decode,
        _cache_bytes,
        "kv_cache_dtype",
        hashed=("kv_cache_dtype", *_DECODE),
    ),
)
