"""The routed part of a layer of experts on one rank: order tokens by expert, grouped products up and down, and combine."""

import numpy as np

from commtax.cost.forms.form import TINY, Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.records import dataclass, replace
from commtax.spec import Number

BYTES = 2.0  # of one activation as it is moved between the products
TILE_COLUMNS = 128.0  # that one block of a grouped product computes
BLOCKS = 140.0  # that run side by side on a chip: 108 to 152 multiprocessors on the measured ones
LEAST_TILE = 8.0  # rows of the smallest tile …
FEW_TILE = 16.0  # … and of the one that kernels with two settings take for few tokens
HALF = 0.5  # of an expert's last tile is empty on average


@dataclass(frozen=True, slots=True)
class RoutedSizes:
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


def routed_kernels(r: RoutedSizes, dtype: str, stored: str, weight_bytes: float, backend: str = "") -> tuple[Kernel, Kernel]:
    """A layer's routed part: what is done around the experts' products, and these.

    2 FLOPs for each copy and weight; memory moves the tokens in and out, and the weights of the experts that some token chose.
    ``stored``: number format of the weights and how they are scaled, which names the table of constants.
    """
    tail = f"_{backend}" if backend else ""
    weights = np.maximum(0.0, r.active * r.weights * weight_bytes - r.cached_bytes)
    products = Kernel("experts up and down", f"experts{tail}", 1, 2.0 * r.copies * r.weights, weights, dtype=dtype, shape=r)
    products = replace(products, weight_bytes=weight_bytes, stored=stored)
    what, moved = "routing, permutation and combination", 2 * BYTES * r.tokens * r.hidden
    return replace(products, what=what, form=f"routing{tail}", flops=0.0, nbytes=moved), products


def routing(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """t = t0 + te E + moved / bandwidth seconds: choose, sort, permute, activate and combine.

    Moved are tokens (in and out) and copies: ``local`` passes over hidden and inner for those computed here, ``remote`` ones for
    those of other ranks that the kernels step over: Triton's writes zeros for them, which are then activated and summed as all
    others are, so that ``wide`` more passes go over inner.
    """
    r: RoutedSizes = k.shape
    passes = (c["local"] * r.copies + c["remote"] * r.elsewhere) * (r.hidden + r.inner) + c.get("wide", 0.0) * r.elsewhere * r.inner
    return c["t0"] + c["te"] * r.routed, BYTES * (2 * r.tokens * r.hidden + passes) / bandwidth_Bps


def experts(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """t = [ weights^p + compute^p + longest^p ]^(1/p) seconds, of both grouped products.

    They are padded to tiles: of columns ``tile_n``, of rows as many as an expert would get if all copies were for this rank, up to
    ``tile_m``: kernels choose by the tokens that they see. ``longest`` is one block's loop over both products, however few blocks
    there are, and ``tb`` for each block: experts cut into narrow slices have more and shorter ones than experts that lie whole
    on ranks. A cached weight costs ``ec`` of one from memory.
    """
    r: RoutedSizes = k.shape
    tile = _tile_rows(r, c)
    inner = c["tile_n"] * np.ceil(r.inner / c["tile_n"])
    weights = r.weights * inner / np.maximum(r.inner, TINY)
    rows = np.maximum(r.active * tile, r.copies + HALF * (tile - 1) * r.active)
    read = (r.active * weights * k.weight_bytes - (1 - c["ec"]) * r.cached_bytes) / (c["eb"] * bandwidth_Bps)
    compute = 2 * rows * weights / (c["ep"] * flops_per_s)
    longest = 2 * tile * TILE_COLUMNS * (r.hidden + r.inner) * BLOCKS / (c["ew"] * flops_per_s)
    longest = longest + c.get("tb", 0.0) * rows / tile * (r.up * inner + r.hidden) / TILE_COLUMNS
    p = c["p"]
    return 0.0, (read**p + compute**p + longest**p + TINY) ** (1 / p)


def _tile_rows(r: RoutedSizes, c: Table) -> Number:
    """Rows of a tile: the power of two that holds an expert's share of all copies; ``jump``: few up to a token an expert."""
    most = c["tile_m"]
    if c.get("jump"):
        return np.where(np.asarray(r.tokens) <= r.owned, np.minimum(FEW_TILE, most), most)
    share = np.maximum(1.0, (r.copies + r.elsewhere) / np.maximum(1.0, r.owned))
    return np.clip(2.0 ** np.ceil(np.log2(share)), LEAST_TILE, most)


BACKENDS = ("", "_triton", "_cutlass", "_trtllm", "_marlin", "_wideep", "_context", "_generation")
"""Implementations: "" is what an engine usually runs, the others have constants of their own where they differ from it."""
AROUND = frozenset(f"routing{tail}" for tail in BACKENDS)  # forms that stand for all launches around the experts of a layer
FORMS: dict[str, Form] = {f"{name}{tail}": form for tail in BACKENDS for name, form in (("routing", routing), ("experts", experts))}
