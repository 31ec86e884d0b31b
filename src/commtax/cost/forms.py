"""Seconds of plain kernels (matrix products, element-wise kernels, grouped-query attention), and what all forms share.

A form turns a kernel's sizes, its family's constants and the chip's rates into (fixed, moving) seconds: a fixed cost, and a smooth
maximum over what memory, arithmetic and serial loops allow. Attained fractions (``eb`` of bandwidth, ``ep`` of peak) are at most 1
and a p-norm is at least its largest term, so no kernel beats bytes / bandwidth or FLOPs / peak. Constants are data:
``catalog/kernels``, one file a family of chips. Change an equation here; forms of other kernels are in ``layer_forms.py``.
"""

import math
import re
from collections.abc import Callable, Mapping

import numpy as np

from commtax.cost.kernel import Kernel, KernelContext
from commtax.shipped_tables import table
from commtax.spec import Chip, Number

Parts = tuple[Number, Number]  # fixed and moving seconds of one launch
Table = Mapping[str, float]  # constants of a form by name (``catalog/kernels``)
Form = Callable[[Kernel, Table, float, float], Parts]  # (kernel, constants, bandwidth in bytes/s, peak in FLOP/s) -> seconds
ChipForm = Callable[[Kernel, Table, Chip, float], Parts]
"""(kernel, constants, chip, arithmetic over that of the constants) -> seconds, where two rates of a chip are not enough."""
TINY = 1e-300  # keeps the root of 0 defined
SECONDS: Mapping[str, str] = table("cost/forms.toml")["seconds"]
"""Constants that are seconds, of a launch or of a piece of work, and what they pay for."""
RATES = {"link_Bps": "the link", "sm_Bps": "multiprocessors that copy"}  # constants that are rates: a time goes with their inverse
DAMPED = ("tau",)  # seconds after which arithmetic slows down: they go with the arithmetic's own
CACHE_SHARPNESS = 6  # of the step from a tensor that the cache keeps to one that it does not, as measured on L40S
GROUPED_TILE_M = 32  # grouped products have few rows an expert, and smaller tiles
TILE_M, TILE_N = 64, 128  # tensor-core tiles that m and n are padded to
FULL_TILE = 256  # the serial loop over k slows with rows up to this many
PACKED_LOGS = {f"pack{rows}": math.log(rows) for rows in (2, 3, 4, 6, 8, 12, 16, 32)}  # rows that ``pack`` may be given at
QUANTISED_COLUMNS = 2048  # quantising a row takes as long as for this many columns at least
HEAD_DIM, HEAD_OFFSET = 128.0, 150.0
QUERY_TILE = 128.0  # queries of one block of a prompt
PACKED_ROWS = (16.0, 64.0)  # rows up to which FlashInfer takes a smaller tile
HEAD_SIZES = {size: math.log2(size) for size in (64, 128, 192, 256, 512)}
"""Head sizes that a constant may be given at, and their logarithms: beyond 64, 128 and 256 where another kernel serves them."""


def norm(p: float, *terms: Number) -> Number:
    """Return a smooth maximum: (Σ t^p)^(1/p), never less than the largest term.

    >>> float(norm(2.0, 3.0, 4.0))
    5.0
    """
    largest: Number = np.maximum(np.max(np.broadcast_arrays(*terms), axis=0), TINY)
    shares: Number = sum((term / largest) ** p for term in terms) ** (1 / p)
    return largest * shares


def from_memory(nbytes: Number, cache_bytes: Number) -> Number:
    """Return the bytes that come from memory where a kernel's input was just written and a cache may have kept it.
    n / (1 + (cache / n)^6). It is at least n - 0.64 cache, and all of n where the cache's size is not known (0).

    >>> [round(float(from_memory(n * 1e6, 96e6)) / 1e6) for n in (48, 96, 192)]
    [1, 48, 189]
    """
    return nbytes / (1 + (cache_bytes / np.maximum(nbytes, 1.0)) ** CACHE_SHARPNESS)


def vector_flops_per_s(chip: Chip) -> float:
    """Return the rate of plain fp32 arithmetic: multiprocessors x width x clock, which also paces what is no product."""
    return chip.flops_per_s.get("fp32") or chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"]


def equation_of(function: Callable[..., object]) -> str:
    """Return the sentence of a docstring that begins with "t =", in one line: equations stand there and nowhere else."""
    match = re.search(r"\bt = .*?(?=\.(?:\s|$))", " ".join((function.__doc__ or "").split()))
    return match[0].replace("``", "") if match else ""


def gemm(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price C = A B with cold weights, where memory and the serial loop over k feed the tensor cores and both compete with
    arithmetic.
    t = t0 + q m max(k, 2048) + [ (memory^1.5 + serial^1.5)^(p/1.5) + compute^p ]^(1/p), with serial = kl ln(1 + k/kc)
    (1 + min(m, 256)/mk) and compute on padded tiles with a prologue of k0. ``q`` is dynamic quantisation (fp8). Where it
    was measured, long kernels droop: power draws the clock down by up to ``droop`` over ``tau`` seconds, and what the chip's cache
    keeps comes at ``el`` times the memory's rate. Grouped products over experts have smaller tiles."""
    memory = moved_bytes(k.nbytes, k.shape.kept if k.shape else 0.0, c) * (1 + _laid_out(k.m, c)) / (c["eb"] * bandwidth_Bps)
    serial = c["kl"] * np.log1p(k.k / c["kc"]) * (1 + np.minimum(k.m, FULL_TILE) / c["mk"])
    tile_m, tile_n = c.get("tile_m", TILE_M), c.get("tile_n", TILE_N)
    if k.grouped:  # experts have unequal numbers of rows, so the last tile of each is half full on average
        tile_m = min(tile_m, GROUPED_TILE_M)
        rows = np.maximum(tile_m, k.m + tile_m / 2)
    else:
        rows = tile_m * np.ceil(k.m / tile_m)
    compute = 2 * (rows * tile_n * np.ceil(k.n / tile_n)) * (k.k + c["k0"]) / (c["ep"] * flops_per_s)
    if "droop" in c:
        compute = compute * (1 + c["droop"] * compute / (compute + c["tau"]))
    feed = memory * np.sqrt(memory) + serial * np.sqrt(serial)
    p = c["p"]
    moving = (feed ** (p / 1.5) + compute**p) ** (1 / p)
    if c["q"]:
        moving = moving + c["q"] * k.m * np.maximum(k.k, QUANTISED_COLUMNS)
    return c["t0"], moving


def _laid_out(rows: Number, c: Table) -> Number:
    """Return how often more than once a matrix is moved: CPU libraries read it for every few rows, or lay it out anew first."""
    listed = [(log, c[name]) for name, log in PACKED_LOGS.items() if name in c]
    if not listed:
        return np.where(np.asarray(rows) > 1, c.get("pack", 0.0), 0.0)
    logs, times = zip((0.0, 0.0), *listed, strict=True)
    return np.asarray(np.interp(np.log(np.maximum(1.0, rows)), logs, times))


def small(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price an element-wise kernel, a fixed time and its bytes: t = t0 + bytes / (eb bandwidth) seconds."""
    return c["t0"], k.nbytes / (c["eb"] * bandwidth_Bps)


def decode_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price one new token per sequence over its cached keys: bytes of the cache, blocks in turn, the loop over the length.
    t = t0 + [ memory^p + blocks^p + serial^p + compute^p ]^(1/p) seconds, with blocks = tc batch kv_heads (d + d0)/(128 + d0), d0 =
    150 where none was fitted, and serial = kl ln(1 + length/kc) + kb ln(batch). Fitted on measured kernels
    (``catalog/kernels``)."""
    moved = moved_bytes(k.nbytes, _context_of(k).kept, c) + k.batch * k.heads * k.head_dim * 4.0
    memory, offset = moved / (_by_head_dim(k.head_dim, c, "eb") * bandwidth_Bps), c.get("d0", HEAD_OFFSET)
    blocks = c["tc"] * k.batch * k.kv_heads * ((k.head_dim + offset) / (HEAD_DIM + offset))
    serial = c["kl"] * np.log1p(k.length / c["kc"])
    if "kb" in c:  # batched products of one query each: the more of them, the slower a launch
        serial = serial + c["kb"] * np.log(np.maximum(1, k.batch))
    compute, p = k.flops / flops_per_s, c["p"]
    return c["t0"], (memory**p + blocks**p + serial**p + compute**p + TINY) ** (1 / p)


def prefill_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price causal attention of whole prompts: arithmetic at the head size's rate, memory, and the longest single block.
    t = t0 + [ (compute + moved)^p + longest^p ]^(1/p) seconds, with longest = tl (new + past) (d + 128)/256, of a window no more
    than that and the block's own queries. Queries, keys and
    outputs pass through the multiprocessors at ``tm`` seconds a byte, or at what memory attains where that is slower: A100's
    758 GB/s are a third of its memory, and on L40S, with 2.3 times the cycles, the same kernels fill its 864 GB/s. Fitted on
    measured kernels (``catalog/kernels``)."""
    if "tile_q" in c:
        return tiled_prefill(k, c, bandwidth_Bps, flops_per_s)
    edges = k.batch * k.length * c["c0"] * k.heads * 4.0 * k.head_dim  # tiles at the diagonal compute more than half
    byte_s = np.maximum(1 / (c["eb"] * bandwidth_Bps), c.get("tm", 0.0))
    work = (k.flops + edges) / (_by_head_dim(k.head_dim, c, "ep") * flops_per_s) + k.nbytes * byte_s
    p = c["p"]
    return c["t0"], (work**p + _longest(k, c) ** p + TINY) ** (1 / p)


def tiled_prefill(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price the same with whole tiles of queries, where that was fitted: a block computes its whole tile against every key that any
    of its queries sees.
    t = t0 + [ (compute + tb blocks)^p + moved^p + longest^p ]^(1/p) seconds."""
    tile, blocks = _tiles(k, c)
    flops = np.maximum(k.flops, 4.0 * k.batch * k.heads * k.head_dim * _tile_pairs(k, tile))
    compute = flops / (_by_head_dim(k.head_dim, c, "ep") * flops_per_s) + c["tb"] * k.batch * blocks
    seen = _context_of(k)
    moved = moved_bytes(k.nbytes + seen.written, seen.kept, c) / (c["eb"] * bandwidth_Bps)
    p = c["p"]
    return c["t0"], (compute**p + moved**p + _longest(k, c) ** p + TINY) ** (1 / p)


def _tiles(k: Kernel, c: Table) -> tuple[Number, Number]:
    """Return the tokens of a tile and the blocks of a sequence. ``pack``: query heads that share keys lie in one tile, of 16, 64 or
    ``tile_q`` rows by how many there are (FlashInfer)."""
    if not c.get("pack"):
        return c["tile_q"], np.ceil(k.length / c["tile_q"]) * k.heads
    group = k.heads / np.maximum(k.kv_heads, TINY)
    rows = k.length * group
    tile = np.where(rows > PACKED_ROWS[1], c["tile_q"], np.where(rows > PACKED_ROWS[0], PACKED_ROWS[1], PACKED_ROWS[0]))
    return tile / group, np.ceil(rows / tile) * k.kv_heads


def _tile_pairs(k: Kernel, tile: Number) -> Number:
    """Return pairs of query and key of whole tiles: the n-th sees n tiles and the past, or the window and itself."""
    tiles, window = np.ceil(k.length / tile), _context_of(k).window
    growing: Number = np.clip(np.floor((window + tile - k.past) / tile), 0, tiles) if window else tiles
    return tile * (growing * (tile * (growing + 1) / 2 + k.past) + (tiles - growing) * (window + tile))


def _longest(k: Kernel, c: Table) -> Number:
    """Return the seconds of the block that sees the most keys, in turn."""
    window = _context_of(k).window
    keys = np.minimum(k.length + k.past, window + QUERY_TILE) if window else k.length + k.past
    return c["tl"] * keys * (k.head_dim + HEAD_DIM) / (2 * HEAD_DIM)


def moved_bytes(nbytes: Number, kept: Number, c: Table) -> Number:
    """Return bytes as memory would move them in the same time: a repetition's cached bytes come at ``el`` times the rate."""
    return nbytes - kept * (1 - 1 / c["el"]) if "el" in c else nbytes


def _context_of(k: Kernel) -> KernelContext:
    return k.shape or KernelContext()


def _by_head_dim(head_dim: Number, c: Table, name: str) -> float:
    """Return a constant listed at some head sizes: linear in the logarithm between, flat outside."""
    if (exact := c.get(f"{name}{head_dim}")) is not None:
        return exact
    listed = {at: c[key] for size, at in HEAD_SIZES.items() if (key := f"{name}{size}") in c}
    return float(np.interp(math.log2(head_dim), list(listed), list(listed.values())))


PLAIN_FORMS: dict[str, Form] = {
    "gemm": gemm,
    "small": small,
    "elementwise": small,
    "decode": decode_attention,
    "prefill": prefill_attention,
}
