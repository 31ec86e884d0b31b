"""The routed part of a layer of experts on one rank: order tokens by expert, grouped products up and down, and combine."""

from dataclasses import dataclass

import numpy as np

from commtax.cost.forms.form import TINY, Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.spec import Number

BYTES = 2.0  # of one activation as it is moved between the products
TILE_COLUMNS = 128.0  # that one block of a grouped product computes
BLOCKS = 140.0  # that run side by side on a chip: 108 to 152 multiprocessors on the measured ones
LEAST_TILE = 8.0  # rows of the smallest tile …
FEW_TILE = 16.0  # … and of the one that kernels with two settings take for few tokens
HALF = 0.5  # of an expert's last tile is empty on average


@dataclass(frozen=True, slots=True)
class Routed:
    """Sizes of the routed part. A copy is a token on its way to one of its experts.

    ``up``: matrices beside the one down, 2 with a gate.
    """

    tokens: Number  # that enter the rank and leave it
    copies: Number  # for the experts of this rank …
    elsewhere: Number  # … and for those of other ranks
    active: Number  # experts of this rank with a copy at least …
    owned: Number  # … and all of them
    routed: Number  # experts that the router chooses from, on all ranks
    hidden: Number  # width that the experts work on
    inner: Number  # width inside an expert, on this rank
    up: Number = 2.0
    cached_bytes: Number = 0.0  # weights that the chip's cache still holds: none, unless one layer runs again and again

    @property
    def weights(self) -> Number:
        """Elements of the matrices of one expert."""
        return (self.up + 1) * self.hidden * self.inner


def routed_kernel(r: Routed, dtype: str, stored: str, weight_bytes: float, form: str = "experts") -> Kernel:
    """A layer's routed part: 2 FLOPs for each copy and weight; memory moves the chosen experts' weights, tokens in and out.

    ``stored``: number format of the weights and how they are scaled, which names the table of constants.
    """
    flops = 2.0 * r.copies * r.weights
    nbytes = np.maximum(0.0, r.active * r.weights * weight_bytes - r.cached_bytes) + 2 * BYTES * r.tokens * r.hidden
    return Kernel("routed experts", form, 1, flops, nbytes, dtype=dtype, weight_bytes=weight_bytes, stored=stored, shape=r)


def experts(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """t = t0 + te E + moved / bandwidth + [ weights^p + compute^p + longest^p ]^(1/p) seconds.

    Moved are tokens (in and out) and copies: ``local`` passes over hidden and inner for those computed here, ``remote`` ones for
    those of other ranks that the kernels step over. Products are padded to tiles: of columns ``tile_n``, of rows as many as an
    expert would get if all copies were for this rank, up to ``tile_m``: kernels choose by the tokens that they see. ``longest``
    is one block's loop over both products, however few blocks there are; a cached weight costs ``ec`` of one from memory.
    """
    r: Routed = k.shape
    tile = _tile_rows(r, c)
    weights = r.weights * c["tile_n"] * np.ceil(r.inner / c["tile_n"]) / np.maximum(r.inner, TINY)
    rows = np.maximum(r.active * tile, r.copies + HALF * (tile - 1) * r.active)
    read = (r.active * weights * k.weight_bytes - (1 - c["ec"]) * r.cached_bytes) / (c["eb"] * bandwidth_Bps)
    compute = 2 * rows * weights / (c["ep"] * flops_per_s)
    loop = 2 * tile * TILE_COLUMNS * (r.hidden + r.inner)
    longest = loop * BLOCKS / (c["ew"] * flops_per_s)
    passes = (c["local"] * r.copies + c["remote"] * r.elsewhere) * (r.hidden + r.inner)
    moved = BYTES * (2 * r.tokens * r.hidden + passes) / bandwidth_Bps
    p = c["p"]
    return c["t0"] + c["te"] * r.routed, moved + (read**p + compute**p + longest**p + TINY) ** (1 / p)


def _tile_rows(r: Routed, c: Table) -> Number:
    """Rows of a tile: the power of two that holds an expert's share of all copies; ``jump``: few up to a token an expert."""
    most = c["tile_m"]
    if c.get("jump"):
        return np.where(np.asarray(r.tokens) <= r.owned, np.minimum(FEW_TILE, most), most)
    share = np.maximum(1.0, (r.copies + r.elsewhere) / np.maximum(1.0, r.owned))
    return np.clip(2.0 ** np.ceil(np.log2(share)), LEAST_TILE, most)


BACKENDS = ("triton", "cutlass", "trtllm", "marlin", "wideep", "context", "generation")
"""Implementations that have constants of their own beside those that an engine usually runs (``experts``)."""
FORMS: dict[str, Form] = {"experts": experts, **{f"experts_{name}": experts for name in BACKENDS}}
