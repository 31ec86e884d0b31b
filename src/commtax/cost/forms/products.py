"""Matrix products and element-wise kernels."""

import numpy as np

from commtax.cost.forms.form import Form, Parts, Table, moved_bytes
from commtax.cost.kernel import Kernel

GROUPED_TILE_M = 32  # grouped products have few rows an expert, and smaller tiles
TILE_M, TILE_N = 64, 128  # tensor-core tiles that m and n are padded to
FULL_TILE = 256  # the serial loop over k slows with rows up to this many
QUANTISED_COLUMNS = 2048  # quantising a row takes as long as for this many columns at least


def gemm(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """C = A B with cold weights: memory and the serial loop over k feed the tensor cores; both compete with arithmetic.

    t = t0 + q m max(k, 2048) + [ (memory^1.5 + serial^1.5)^(p/1.5) + compute^p ]^(1/p), with serial = kl ln(1 + k/kc)
    (1 + min(m, 256)/mk) and compute on padded tiles with a prologue of k0. ``q`` is dynamic quantisation (fp8). Where it
    was measured, long kernels droop: power draws the clock down by up to ``droop`` over ``tau`` seconds, and what the chip's cache
    keeps comes at ``el`` times the memory's rate. Grouped products over experts have smaller tiles.
    """
    packed = 1 + c.get("pack", 0.0) * (np.asarray(k.m) > 1)  # CPU libraries lay the matrix out anew for several rows
    memory = moved_bytes(k.nbytes, k.shape.kept if k.shape else 0.0, c) * packed / (c["eb"] * bandwidth_Bps)
    serial = c["kl"] * np.log1p(k.k / c["kc"]) * (1 + np.minimum(k.m, FULL_TILE) / c["mk"])
    tile_m, tile_n = c.get("tile_m", TILE_M), c.get("tile_n", TILE_N)
    if k.grouped:  # experts have unequal numbers of rows, so the last tile of each is half full on average
        tile_m = min(tile_m, GROUPED_TILE_M)
        rows = np.maximum(tile_m, k.m + tile_m / 2)
    else:
        rows = tile_m * np.ceil(k.m / tile_m)
    padded = rows * tile_n * np.ceil(k.n / tile_n)
    compute = 2 * padded * (k.k + c["k0"]) / (c["ep"] * flops_per_s)
    if "droop" in c:
        compute = compute * (1 + c["droop"] * compute / (compute + c["tau"]))
    feed = memory * np.sqrt(memory) + serial * np.sqrt(serial)
    p = c["p"]
    moving = (feed ** (p / 1.5) + compute**p) ** (1 / p)
    if c["q"]:
        moving = moving + c["q"] * k.m * np.maximum(k.k, QUANTISED_COLUMNS)
    return c["t0"], moving


def small(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """An element-wise kernel, a fixed time and its bytes: t = t0 + bytes / (eb bandwidth) seconds."""
    return c["t0"], k.nbytes / (c["eb"] * bandwidth_Bps)


FORMS: dict[str, Form] = {"gemm": gemm, "small": small, "elementwise": small}
