"""Kernels of linear attention and other streams of activations: convolutions, chunked scans, states, element-wise passes.

Their inputs were written by the kernel before and often lie in the chip's cache, so memory is charged what the cache does not
keep; what surely comes from memory (states of many sequences) is ``cold_bytes``. Many of them are bound by neither memory nor
tensor cores but by the multiprocessors' instructions, which scale from chip to chip as plain fp32 arithmetic does.
"""

import numpy as np

from commtax.cost.forms.form import ChipForm, Parts, Table, from_memory, norm, vector_flops_per_s
from commtax.cost.kernel import Kernel
from commtax.records import dataclass
from commtax.spec import Chip, Number

QUERY_TILE = 128.0
VECTOR_TOKENS = 8  # tokens that a convolution loads at a time: shorter sequences take another path


@dataclass(frozen=True, slots=True)
class MemoryPass:
    """A pass over ``nbytes``: ``steps`` in turn that no width shortens, ``blocks`` that each cost a start."""

    steps: Number = 0.0
    blocks: Number = 0.0
    cold_bytes: Number = 0.0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A short causal convolution of each channel over the tokens of a sequence."""

    sequences: Number
    tokens: Number  # of one sequence
    channels: Number


@dataclass(frozen=True, slots=True)
class ChunkedScan:
    """A chunked recurrence: products inside chunks of tokens, the state from chunk to chunk."""

    sequences: Number
    tokens: Number  # of one sequence
    chunk: float
    state_bytes: Number  # states of all sequences, read and written
    between_bytes: Number  # what a chain of kernels hands on: written and read once


def stream(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """t = t0 + [ memory^p + vector^p + serial^p + starts^p ]^(1/p) seconds, with vector = operations / (ep fp32 rate),
    serial = tl steps and starts = ``ob`` operations a block.
    """
    shape: MemoryPass = k.shape
    vector_Fps = vector_flops_per_s(chip) * rate
    memory = _memory_s(k.nbytes, shape.cold_bytes, c, chip)
    terms = (memory, k.flops / (c["ep"] * vector_Fps), c["tl"] * shape.steps, c.get("ob", 0.0) * shape.blocks / vector_Fps)
    return c["t0"], norm(c["p"], *terms)


def convolution(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """t = t0 (1 + tv if vectorised) + [ memory^p + vector^p + starts^p ]^(1/p) seconds.

    Kernels with a block for each channel of each sequence (``s0`` above 0) spend on each as much as on ``s0`` tokens, and
    1 + ``few`` as much where a sequence is too short for vector loads.
    """
    shape: Convolution = k.shape
    vectorised = np.asarray(shape.tokens) >= VECTOR_TOKENS
    each_token_s = k.flops / (c["ep"] * vector_flops_per_s(chip) * rate)
    starts = each_token_s / shape.tokens * c.get("s0", 0.0) * (1 + c.get("few", 0.0) * ~vectorised)
    fixed = c["t0"] * (1 + c.get("tv", 0.0) * vectorised)
    return fixed, norm(c["p"], _memory_s(k.nbytes, 0.0, c, chip), each_token_s, starts)


def scan(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """t = t0 + [ memory^p + work^p + tensor^p + serial^p ]^(1/p) seconds; serial = tl chunks of a sequence.

    Memory moves the inputs, ``between`` of what a chain of kernels hands on, and ``states`` times the states. A sequence costs
    as much work as ``s0`` further tokens; work / (es fp32 rate), which tensor cores lift above 1.
    """
    shape: ChunkedScan = k.shape
    moved = k.nbytes + c["between"] * shape.between_bytes + (c["states"] - 1) * shape.state_bytes
    work = k.flops * (1 + c["s0"] / shape.tokens) / (c["es"] * vector_flops_per_s(chip) * rate)
    tensor = k.flops / (chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"])
    return c["t0"], norm(c["p"], _memory_s(moved, 0.0, c, chip), work, tensor, c["tl"] * np.ceil(shape.tokens / shape.chunk))


def encoder_attention(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """Bidirectional attention of images or frames: t = t0 + [ compute^p + memory^p + longest^p ]^(1/p) seconds.

    Queries come in tiles of 128 (``tile``), keys cost ``s0`` more than there are, heads are padded to whole multiples of ``pad``,
    and tensor cores attain ``ep64`` with heads of 64 and ``ep`` with larger ones; longest = tl keys.
    """
    padded = c["pad"] * np.ceil(k.head_dim / c["pad"])
    tile = c.get("tile", QUERY_TILE)
    share = np.where(k.head_dim <= 64, c["ep64"], c["ep"])
    peak = (chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"]) * rate
    compute = 4.0 * k.batch * k.heads * tile * np.ceil(k.length / tile) * (k.length + c["s0"]) * padded / (share * peak)
    return c["t0"], norm(c["p"], compute, _memory_s(k.nbytes, 0.0, c, chip), c["tl"] * k.length)


def _memory_s(nbytes: Number, cold_bytes: Number, c: Table, chip: Chip) -> Number:
    warm = from_memory(nbytes - cold_bytes, c["cache"] * chip.l2_bytes)
    return (warm + cold_bytes) / (c["eb"] * chip.memory_Bps)


STREAMS = (
    *("conv-update", "kda-conv-update", "kda-conv-verify", "gdn-update", "kda-update", "kda-fused", "kda-verify", "ssd-update"),
    *("mhc-pre", "mhc-post", "scales", "quantise"),
)
CHIP_FORMS: dict[str, ChipForm] = {
    **dict.fromkeys(("conv", "conv-blocks", "conv-qkv"), convolution),
    **dict.fromkeys(("gdn-scan", "kda-scan", "ssd-scan"), scan),
    **dict.fromkeys(STREAMS, stream),
    "encoder": encoder_attention,
}
