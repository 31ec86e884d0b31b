"""A kernel as the cost model sees it: the shapes that decide its time, FLOPs and bytes; and what steps make and price it from.
Change here what a kernel or a priced step is made from: a new shape needs no field, but a record as ``Kernel.shape``."""

import math
from typing import Any

from commtax.cost.inventory import format_of, quantisation
from commtax.ledger import Part, Place, Stage
from commtax.question import AS_IT_IS, WhatIf
from commtax.records import dataclass, replace
from commtax.spec import Cluster, Engine, Fabric, KernelConstants, Model, Number, Quant
from commtax.spec.plan import DTYPE_BYTES, NO_TECHNIQUES, Drafter, Plan, Techniques, Workload

LOW_ARITHMETIC = ("fp8", "nvfp4")
"""Formats whose products quantise activations too, on chips that have the arithmetic; others only store weights small."""
MXFP8_BLOCK = (1, 32)  # values that share a scale of OCP's MXFP8 …
FP8_TILE = (128, 128)  # … and of DeepSeek's fp8, whose activations have one for each 128 columns of a row
SINGLE = "single"
"""What decode attention is called whose query heads each have keys of their own: some libraries run another kernel on it."""
WINDOWED = "windowed"
"""… and whose window is set: FlashAttention 2 then packs no query heads that share keys, and runs as if each had its own."""
NARROW_PROMPTS, NARROW_CACHE = "fp8-attention", "fp8-kv"
"""What attention of prompts over an fp8 cache is called: in fp8 arithmetic, and in 16 bits."""
WIDE_BYTES = 2.0  # of an element of a cache that is not narrowed


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What a kernel finds: attention ``window`` keys of a prompt's query at most (0: all before it), and any ``kept`` bytes in the
    chip's cache. A repeated measurement also finds weights and keys there, and may time keys and values being ``written`` into
    their cache, as bytes; a step charges that by itself."""

    window: int = 0
    kept: Number = 0.0
    written: Number = 0.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """``count`` launches of one shape. ``form``: gemm (m, n, k), decode or prefill attention, small or elementwise (bytes only), or
    another of ``forms`` with its sizes in ``shape``.
    ``flops`` and ``nbytes`` are of one launch and are what physics charges at the least. ``what`` is for people; ``part``,
    ``place`` and ``stage`` say what it belongs to."""

    what: str
    form: str
    count: Number
    flops: Number
    nbytes: Number
    m: Number = 0
    n: Number = 0
    k: Number = 0
    dtype: str = "bf16"  # of the arithmetic
    weight_bytes: float = 2.0  # of one element of the matrix
    batch: Number = 0  # sequences of attention; experts of a grouped product, each with m rows
    heads: Number = 0
    kv_heads: Number = 0
    head_dim: Number = 128
    length: Number = 0  # keys a query sees (decode), new tokens a sequence (prefill)
    past: Number = 0
    grouped: bool = False  # a grouped product over experts
    fused: float = 0.0  # share of the launches that run inside a neighbour: their bytes move, their fixed time is gone
    static_scales: bool = False  # activations are quantised with known scales, inside the kernel before
    stored: str = ""  # format of a product's weights where the arithmetic does not tell it
    shape: Any = None  # sizes of a form that has more than the fields above: a record of its module in ``forms``
    casts: bool = False  # an element-wise kernel that casts the input of a product; n: bytes of the same cast in backward
    part: Part = ""
    place: Place = ""
    stage: Stage = ""

    @property
    def number_format(self) -> str:
        """Name the arithmetic of a product, or the finer of two formats that share one (MXFP8 of fp8)."""
        return self.stored or self.dtype


@dataclass(frozen=True, slots=True)
class KernelStep:
    """What the kernels of one step are made from."""

    model: Model
    plan: Plan
    work: Workload
    rows: Number
    engine: Engine
    exchange: str = ""  # the experts' implementation where tokens come by an all-to-all among replicas; "": they do not
    imbalance: float = 0.0  # copies of the busiest expert rank over the mean; 0: as routers choose
    balanced: bool = False  # experts lie on ranks by their measured load
    prompt_ranks: Number = 1  # that split the prompts of a served step; each makes keys of all their tokens
    copied_tokens: Number = 0.0  # room of a cache that each layer of latent attention copies before it decodes; 0: none does

    @property
    def computes_scales(self) -> bool:
        """Whether the engine makes fp8 of plain weights as it loads them, and finds scales of activations in every step."""
        return self.engine.kernels.quantises and self.model.quant is None

    def gemm(self, what: str, part: Part, place: Place, count: Number, m: Number, n: Number, k: Number, name: str = "") -> Kernel:
        """Return a matrix product with the weight as stored under ``name`` ("": in 16 bits), activations as its format needs."""
        narrowed = name and (self.model.quant or self.plan.weights_dtype)  # else all is stored in 16 or 32 bits
        quant = format_of(self.model, name, quantisation(self.model, self.plan)) if narrowed else None
        plain = self.plan.activations_dtype
        stored, dtype, static = DTYPE_BYTES[plain], plain, False
        if quant:
            tile = quant.block[0] * quant.block[1]  # scales count where tiles are small enough to matter
            stored = DTYPE_BYTES[quant.dtype] + (quant.scale_bytes / tile if tile else 0.0)
            kind = quant.activations or quant.dtype
            dtype = kind if kind in LOW_ARITHMETIC and not quant.weight_only else dtype
            # One scale a tensor is known ahead where the checkpoint brings it; tiles and rows need theirs.
            static = dtype == "fp8" and quant.block == (0, 0) and not self.computes_scales
        nbytes = m * k * input_bytes(dtype, self.plan) + n * k * stored + m * n * DTYPE_BYTES[plain]
        shape = (m, n, k, dtype, stored)
        kernel = Kernel(what, "gemm", count, 2 * m * n * k, nbytes, *shape, static_scales=static, part=part, place=place)
        return replace(kernel, stored=_unusual_format(quant)) if quant else kernel

    def small(self, what: str, part: Part, place: Place, count: Number, elements: Number, fusable: bool = True) -> Kernel:
        """Return an element-wise kernel, which an engine may fuse with a neighbour."""
        runs, nbytes = self.engine.kernels, elements * DTYPE_BYTES[self.plan.activations_dtype]
        fused, nbytes = (1 - runs.small_kernels, nbytes * runs.small_bytes) if fusable else (0.0, nbytes)
        return Kernel(what, "small", count, 0.0, nbytes, fused=fused, part=part, place=place)


def _unusual_format(quant: Quant) -> str:
    """Return the format of weights that are unpacked for 16-bit products, or scaled in groups unlike fp8's usual ones."""
    if quant.activations:
        return f"{quant.dtype}-{quant.activations}"
    if quant.dtype == "fp8" and quant.block in (MXFP8_BLOCK, FP8_TILE):
        return "mxfp8" if quant.block == MXFP8_BLOCK else "fp8-block"
    if quant.dtype not in LOW_ARITHMETIC:
        return quant.dtype
    return "int4" if quant.dtype == "nvfp4" and quant.weight_only else ""


def input_bytes(dtype: str, plan: Plan) -> float:
    """Return the bytes of one activation as a product reads it: fp4 products take plain ones and quantise them themselves."""
    return DTYPE_BYTES["fp8" if dtype == "fp8" else plan.activations_dtype]


@dataclass(frozen=True, slots=True)
class PricingTerms:
    """What a step is priced from."""

    model: Model
    plan: Plan
    cluster: Cluster
    engine: Engine
    fabric: Fabric
    constants: KernelConstants
    settings: WhatIf = AS_IT_IS
    techniques: Techniques = NO_TECHNIQUES
    whole_sigma: float = math.inf  # of whole decode steps in runs like this one; inf: there are none
    measured: bool = False  # runs had this engine, chip and number format
    drafter: Drafter | None = None  # what drafts the tokens that steps of several rows per sequence check; None: it costs nothing
    copied_tokens: Number = 0.0  # as in ``KernelStep``
