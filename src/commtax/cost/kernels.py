"""How long a kernel takes: a fixed cost, and a smooth maximum over what memory, arithmetic and serial loops allow.

Each form returns (fixed, moving) seconds. Attained fractions (``eb`` of bandwidth, ``ep`` of peak) are at most 1 and a
p-norm is at least its largest term, so no kernel beats bytes / bandwidth or FLOPs / peak. Constants are data:
``catalog/kernels``, one file a family of chips.
"""

from collections.abc import Callable, Mapping

import numpy as np

from commtax.cost.compute import Kernel
from commtax.spec import Chip, KernelConstants, Number
from commtax.statement import Source

Parts = tuple[Number, Number]
Table = Mapping[str, float]

GROUPED_TILE_M = 32  # grouped products have few rows an expert, and smaller tiles
TILE_M, TILE_N = 64, 128  # tensor-core tiles that m and n are padded to
FULL_TILE = 256  # the serial loop over k slows with rows up to this many
QUANTISED_COLUMNS = 2048  # quantising a row takes as long as for this many columns at least
HEAD_DIM, HEAD_OFFSET = 128.0, 150.0
UNMEASURED_SIGMA = 0.3  # of kernels that nobody measured on a chip
TINY = 1e-300  # keeps the root of 0 defined


def gemm(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """C = A B with cold weights: memory and the serial loop over k feed the tensor cores; both compete with arithmetic.

    t = t0 + q m max(k, 2048) + [ (memory^1.5 + serial^1.5)^(p/1.5) + compute^p ]^(1/p), with serial = kl ln(1 + k/kc)
    (1 + min(m, 256)/mk) and compute on padded tiles with a prologue of k0. ``q`` is dynamic quantisation (fp8). Where it
    was measured, long kernels droop: power draws the clock down by up to ``droop`` over ``tau`` seconds. Grouped products over
    experts have smaller tiles and attain a share of the arithmetic rate.
    """
    packed = 1 + c.get("pack", 0.0) * (np.asarray(k.m) > 1)  # CPU libraries lay the matrix out anew for several rows
    memory = k.nbytes * packed / (c["eb"] * bandwidth_Bps)
    serial = c["kl"] * np.log1p(k.k / c["kc"]) * (1 + np.minimum(k.m, FULL_TILE) / c["mk"])
    tile_m, tile_n = c.get("tile_m", TILE_M), c.get("tile_n", TILE_N)
    if k.grouped:  # experts have unequal numbers of rows, so the last tile of each is half full on average
        tile_m = min(tile_m, GROUPED_TILE_M)
        rows = np.maximum(tile_m, k.m + tile_m / 2)
    else:
        rows = tile_m * np.ceil(k.m / tile_m)
    padded = rows * tile_n * np.ceil(k.n / tile_n)
    compute = 2 * padded * (k.k + c["k0"]) / (c["ep"] * (k.grouped or 1.0) * flops_per_s)
    if "droop" in c:
        compute = compute * (1 + c["droop"] * compute / (compute + c["tau"]))
    feed = memory * np.sqrt(memory) + serial * np.sqrt(serial)
    p = c["p"]
    moving = (feed ** (p / 1.5) + compute**p) ** (1 / p)
    if c["q"]:
        moving = moving + c["q"] * k.m * np.maximum(k.k, QUANTISED_COLUMNS)
    return c["t0"], moving


def decode_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """One new token a sequence over its cached keys: bytes of the cache, blocks in turn, and the loop over the length.

    t = t0 + [ memory^p + blocks^p + serial^p + compute^p ]^(1/p) seconds, with blocks = tc batch kv_heads (d + 150)/278 and
    serial = kl ln(1 + length/kc) + tb ln(batch). Fitted on measured kernels (``catalog/kernels``).
    """
    moved = k.nbytes + k.batch * k.heads * k.head_dim * 4.0
    memory = moved / (_by_head_dim(k.head_dim, c, "eb") * bandwidth_Bps)
    blocks = c["tc"] * k.batch * k.kv_heads * ((k.head_dim + HEAD_OFFSET) / (HEAD_DIM + HEAD_OFFSET))
    serial = c["kl"] * np.log1p(k.length / c["kc"])
    if "tb" in c:  # batched products of one query each: the more of them, the slower a launch
        serial = serial + c["tb"] * np.log(np.maximum(1, k.batch))
    compute = k.flops / flops_per_s
    p = c["p"]
    return c["t0"], (memory**p + blocks**p + serial**p + compute**p + TINY) ** (1 / p)


def prefill_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Causal attention of whole prompts: arithmetic at the head size's rate, memory, and the longest single block.

    t = t0 + [ (compute + memory)^p + longest^p ]^(1/p) seconds, with longest = tl (new + past) (d + 128)/256. Fitted on
    measured kernels (``catalog/kernels``).
    """
    edges = k.batch * k.length * c["c0"] * k.heads * 4.0 * k.head_dim  # tiles at the diagonal compute more than half
    work = (k.flops + edges) / (_by_head_dim(k.head_dim, c, "ep") * flops_per_s) + k.nbytes / (c["eb"] * bandwidth_Bps)
    longest = c["tl"] * (k.length + k.past) * (k.head_dim + HEAD_DIM) / (2 * HEAD_DIM)
    p = c["p"]
    return c["t0"], (work**p + longest**p + TINY) ** (1 / p)


def small(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """An element-wise kernel, a fixed time and its bytes: t = t0 + bytes / (eb bandwidth) seconds."""
    return c["t0"], k.nbytes / (c["eb"] * bandwidth_Bps)


FORMS: dict[str, Callable[[Kernel, Table, float, float], Parts]] = {
    "gemm": gemm,
    "decode": decode_attention,
    "prefill": prefill_attention,
    "small": small,
    "elementwise": small,
}


def seconds(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float = 1.0) -> Parts:
    """Time of one launch on this chip, with the constants of its family and arithmetic.

    ``rate``: arithmetic over that of the constants (sustained clocks, other kernels).
    """
    table = constants.tables[table_of(kernel, constants)]
    if kernel.static_scales and "gemm.fp8-static" not in constants.tables:
        table = _static(table, constants.tables["gemm.bf16"])
    fixed, moving = FORMS[kernel.form](kernel, table, chip.memory_Bps, peak(kernel, chip, constants) * rate)
    return fixed * (1 - kernel.fused), moving


def peak(kernel: Kernel, chip: Chip, constants: KernelConstants) -> float:
    """The datasheet's rate of the arithmetic that a kernel runs in.

    4-bit products without constants of their own unpack the weights and multiply in bf16, whatever else the chip could do.
    """
    peaks = chip.flops_per_s
    plain = peaks.get("bf16") or peaks["fp16"]
    if kernel.dtype == "nvfp4":
        return peaks.get("fp4", plain) if table_of(kernel, constants) == "gemm.nvfp4" else plain
    return peaks.get(kernel.dtype) or plain


def table_of(kernel: Kernel, constants: KernelConstants) -> str:
    """The table that prices a kernel: of its form and arithmetic, bf16's where that was not measured."""
    if kernel.static_scales and "gemm.fp8-static" in constants.tables:
        return "gemm.fp8-static"
    kind = kernel.dtype if kernel.form == "gemm" else "fp8" if kernel.weight_bytes == 1 and kernel.form == "decode" else "bf16"
    name = f"{kernel.form}.{kind}"
    return name if name in constants.tables else f"{kernel.form}.bf16"


def kernel_source(kernel: Kernel, constants: KernelConstants) -> Source:
    """Where a kernel's price comes from; bf16's constants for narrower numbers only count fewer bytes, and that is assumed."""
    name = table_of(kernel, constants)
    family = f"were not measured on {constants.family} chips"
    if constants.label.kind == "calibrated" and name not in constants.own:
        if name == "gemm.bf16" and kernel.weight_bytes < 1:
            return Source("assumed", f"assumed: bf16 products on unpacked 4-bit weights {family}", "unpacked weights")
        if name == "decode.bf16" and kernel.weight_bytes < 2:
            return Source("assumed", f"assumed: this engine's attention over a narrow KV cache {family}", "narrow cache")
    return constants.own.get(name, constants.label)


def kernel_sigma(kernel: Kernel, constants: KernelConstants) -> float:
    """Standard deviation of the logarithm of a kernel's time inside a step."""
    own = max(constants.sigma, constants.tables[table_of(kernel, constants)].get("sigma", 0.0))
    return max(own, UNMEASURED_SIGMA) if kernel_source(kernel, constants).kind == "assumed" and own else own


def _static(fp8: Table, bf16: Table) -> Table:
    """fp8 products whose activations come quantised: bf16's launch and attained bandwidth, fp8's arithmetic, nothing beside.

    The measured fp8 tables quantise each activation inside the timed region; a static scale is applied by the norm or
    the activation before.
    """
    same = {name: bf16[name] for name in ("t0", "eb", "kl", "kc", "mk")}
    return {**fp8, **same, "q": 0.0}


def _by_head_dim(head_dim: int, c: Table, name: str) -> float:
    """A constant given at head sizes 64, 128 and 256: linear in the logarithm between, flat outside."""
    return float(np.interp(np.log2(head_dim), (6.0, 7.0, 8.0), (c[f"{name}64"], c[f"{name}128"], c[f"{name}256"])))
