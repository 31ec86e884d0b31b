"""Seconds of kernels of particular layers: routed experts, latent and sparse attention, linear attention, and measured modules.

Records are the sizes that a kernel's ``shape`` holds, functions the forms that price it; at the end stand the tables of all forms.

Attention over what heads share: entries have one width for all heads of a group, so a kernel reads each once for many heads and is
often bound by arithmetic. Linear attention and other streams of activations: inputs were written by the kernel before and often lie
in the chip's cache, so memory is charged what the cache does not keep; what surely comes from memory (states of many sequences) is
``cold_bytes``. Many of them are bound by the multiprocessors' instructions, which scale from chip to chip as plain fp32 arithmetic.
"""

import numpy as np

from commtax.cost.forms import PLAIN_FORMS, QUERY_TILE, TINY, ChipForm, Form, Parts, Table, from_memory, norm, vector_flops_per_s
from commtax.cost.kernel import Kernel
from commtax.records import dataclass, replace
from commtax.spec import Chip, Number

# The routed part of a layer of experts on one rank: order tokens by expert, grouped products up and down, and combine.

BYTES = 2.0  # of one activation as it is moved between the products
TILE_COLUMNS = 128.0  # that one block of a grouped product computes
BLOCKS = 140.0  # that run side by side on a chip: 108 to 152 multiprocessors on the measured ones
LEAST_TILE = 8.0  # rows of the smallest tile …
FEW_TILE = 16.0  # … and of the one that kernels with two settings take for few tokens
HALF = 0.5  # of an expert's last tile is empty on average
VECTOR_TOKENS = 8  # tokens that a convolution loads at a time: shorter sequences take another path


@dataclass(frozen=True, slots=True)
class RoutedSizes:
    """Sizes of the routed part, of which a copy is a token on its way to one of its experts."""

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
    """Return a layer's routed part as two kernels, the work around the experts' products, and those products of 2 FLOPs for each
    copy and weight, with constants by ``stored``, the weights' number format and how they are scaled."""
    tail = f"_{backend}" if backend else ""
    weights = np.maximum(0.0, r.active * r.weights * weight_bytes - r.cached_bytes)
    products = Kernel("experts up and down", f"experts{tail}", 1, 2.0 * r.copies * r.weights, weights, dtype=dtype, shape=r)
    products = replace(products, weight_bytes=weight_bytes, stored=stored)
    what, moved = "routing, permutation and combination", 2 * BYTES * r.tokens * r.hidden
    return replace(products, what=what, form=f"routing{tail}", flops=0.0, nbytes=moved), products


def routing(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price the work around experts: t = t0 + te E + moved / bandwidth seconds, to choose, sort, permute, activate and combine.
    Moved are tokens (in and out) and copies: ``local`` passes over hidden and inner for those computed here, ``remote`` ones for
    those of other ranks that the kernels step over: Triton's writes zeros for them, which are then activated and summed as all
    others are, so that ``wide`` more passes go over inner."""
    r: RoutedSizes = k.shape
    passes = (c["local"] * r.copies + c["remote"] * r.elsewhere) * (r.hidden + r.inner) + c.get("wide", 0.0) * r.elsewhere * r.inner
    return c["t0"] + c["te"] * r.routed, BYTES * (2 * r.tokens * r.hidden + passes) / bandwidth_Bps


def experts(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price both grouped products: t = [ weights^p + compute^p + longest^p ]^(1/p) seconds.
    They are padded to tiles: of columns ``tile_n``, of rows as many as an expert would get if all copies were for this rank, up to
    ``tile_m``: kernels choose by the tokens that they see. ``longest`` is one block's loop over both products, however few blocks
    there are, and ``tb`` for each block: experts cut into narrow slices have more and shorter ones than experts that lie whole
    on ranks. A cached weight costs ``ec`` of one from memory."""
    r: RoutedSizes = k.shape
    tile, inner = _tile_rows(r, c), c["tile_n"] * np.ceil(r.inner / c["tile_n"])
    weights = r.weights * inner / np.maximum(r.inner, TINY)
    rows = np.maximum(r.active * tile, r.copies + HALF * (tile - 1) * r.active)
    read = (r.active * weights * k.weight_bytes - (1 - c["ec"]) * r.cached_bytes) / (c["eb"] * bandwidth_Bps)
    compute = 2 * rows * weights / (c["ep"] * flops_per_s)
    longest = 2 * tile * TILE_COLUMNS * (r.hidden + r.inner) * BLOCKS / (c["ew"] * flops_per_s)
    longest = longest + c.get("tb", 0.0) * rows / tile * (r.up * inner + r.hidden) / TILE_COLUMNS
    p = c["p"]
    return 0.0, (read**p + compute**p + longest**p + TINY) ** (1 / p)


def _tile_rows(r: RoutedSizes, c: Table) -> Number:
    """Return the rows of a tile: the power of two that holds an expert's share of copies. ``jump``: few up to a token an expert."""
    most = c["tile_m"]
    if c.get("jump"):
        return np.where(np.asarray(r.tokens) <= r.owned, np.minimum(FEW_TILE, most), most)
    share = np.maximum(1.0, (r.copies + r.elsewhere) / np.maximum(1.0, r.owned))
    return np.clip(2.0 ** np.ceil(np.log2(share)), LEAST_TILE, most)


BACKENDS = ("", "_triton", "_cutlass", "_trtllm", "_marlin", "_wideep", "_context", "_generation")
"""Implementations: "" is what an engine usually runs, the others have constants of their own where they differ from it."""
AROUND = frozenset(f"routing{tail}" for tail in BACKENDS)  # forms that stand for all launches around the experts of a layer
ROUTED: dict[str, Form] = {f"{name}{end}": form for end in BACKENDS for name, form in (("routing", routing), ("experts", experts))}


@dataclass(frozen=True, slots=True)
class Reading:
    """``groups`` caches of which ``entries`` are read by the queries of ``heads`` heads, with queries and outputs of ``width``."""

    groups: Number
    heads: Number
    entries: Number
    width: Number


@dataclass(frozen=True, slots=True)
class Prompts:
    """``seqs`` prompts of ``new`` tokens behind ``past`` cached ones, with a head's key and value of ``width``."""

    seqs: Number
    heads: Number
    new: Number
    past: Number
    width: Number


@dataclass(frozen=True, slots=True)
class Choosing:
    """``tokens`` of ``seqs`` prompts that each see ``entries`` at most, which are ``gathered`` bytes over all tokens."""

    seqs: Number
    tokens: Number
    heads: Number
    entries: Number
    gathered: Number


@dataclass(frozen=True, slots=True)
class SelectorScan:
    """A selector's scores over ``length`` cached entries a sequence, and the choice among ``candidates`` scores."""

    length: Number
    candidates: Number


@dataclass(frozen=True, slots=True)
class HeadProduct:
    """One small matrix a head times ``rows`` rows, of which a repeated measurement finds ``kept`` bytes in the chip's cache."""

    rows: Number
    heads: Number
    kept: Number = 0.0


def latent_reading(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price queries of decode over shared entries: cache bytes or arithmetic on padded heads, beside each launch's own work.
    t = t0 + [ (tb groups + queries)^p + [memory^both + compute^both]^(p/both) + serial^p + (tl entries)^p ]^(1/p) seconds, with
    serial = kl ln(1 + entries/kc) (1 + heads/hs): splits of a cache are joined, the more heads the later. ``tl`` is what a
    kernel takes that does not split a cache, ``tile`` the heads that one is padded to. Fitted on measured kernels."""
    s: Reading = k.shape
    memory = k.nbytes / (c["eb"] * bandwidth_Bps)
    compute = k.flops * _padding_factor(s.heads, c["tile"]) / (c["ep"] * flops_per_s)
    queries = s.groups * s.heads * s.width * 2.0 / (c["eq"] * bandwidth_Bps)
    serial = c["kl"] * np.log1p(s.entries / c["kc"]) * (1 + s.heads / c["hs"])
    p, both = c["p"], c["both"]
    moved = (memory**both + compute**both + TINY) ** (p / both)
    return c["t0"], ((c["tb"] * s.groups + queries) ** p + moved + serial**p + (c["tl"] * s.entries) ** p + TINY) ** (1 / p)


def latent_prompts(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price causal attention of whole prompts with keys and values of their own width.
    t = t0 + [ (compute + memory + tb blocks + tr tokens)^p + (tl length)^p + (kl ln(1 + new/kc))^p ]^(1/p) seconds. Queries,
    keys, values and outputs were just made or are read next: of them only what ``kept`` bytes of cache don't hold moves."""
    s: Prompts = k.shape
    tokens = s.seqs * s.new
    memory = (k.nbytes + np.maximum(0.0, (4.0 * tokens * s.heads * s.width) - c["kept"])) / (c["eb"] * bandwidth_Bps)
    blocks = c["tb"] * s.seqs * s.heads * np.ceil(s.new / QUERY_TILE) + c["tr"] * tokens
    p = c["p"]
    work = k.flops / (c["ep"] * flops_per_s) + memory + blocks
    return c["t0"], (work**p + (c["tl"] * (s.new + s.past)) ** p + (c["kl"] * np.log1p(s.new / c["kc"])) ** p + TINY) ** (1 / p)


def latent_choosing(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price prompts whose tokens each see entries of their own choice: arithmetic on padded heads, or gathering the entries.
    t = t0 + [compute^p + gather^p]^(1/p) + tq tokens + tb seqs + tl entries seconds. Neighbours choose alike, so that most of
    what is gathered comes from the chip's cache: at ``reuse`` times the memory's rate, never faster than each byte once."""
    s: Choosing = k.shape
    compute = k.flops * _padding_factor(s.heads, c["tile"]) / (c["ep"] * flops_per_s)
    gather = np.maximum(s.gathered / (c["reuse"] * bandwidth_Bps), k.nbytes / bandwidth_Bps)
    p = c["p"]
    return c["t0"], (compute**p + gather**p + TINY) ** (1 / p) + c["tq"] * s.tokens + c["tb"] * s.seqs + c["tl"] * s.entries


def selector_scan(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price a selector's scores over all that is cached, and the selection of the best.
    t = t0 + [ (memory + ts candidates)^2 + compute^2 + (kl ln(1 + length/kc))^2 ]^(1/2) seconds."""
    s: SelectorScan = k.shape
    memory = k.nbytes / (c["eb"] * bandwidth_Bps) + c["ts"] * s.candidates
    compute = k.flops / (c["ep"] * flops_per_s)
    return c["t0"], np.sqrt(memory**2 + compute**2 + (c["kl"] * np.log1p(s.length / c["kc"])) ** 2)


def head_product(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Price the absorbed products of latent attention, one matrix a head: t = t0 + tr rows heads + [memory^p + compute^p]^(1/p)
    seconds.
    What a repeated measurement finds in the chip's cache moves at ``el`` times the memory's rate, up to ``kept`` bytes."""
    s: HeadProduct = k.shape
    memory = (k.nbytes + np.maximum(0.0, s.kept - c["kept"])) / (c["eb"] * bandwidth_Bps) + s.kept / (c["el"] * bandwidth_Bps)
    compute = k.flops * np.maximum(1.0, c["tile"] / np.maximum(s.rows, 1.0)) / (c["ep"] * flops_per_s)
    p = c["p"]
    return c["t0"], (memory**p + compute**p + TINY) ** (1 / p) + c["tr"] * s.rows * s.heads


def _padding_factor(heads: Number, tile: float) -> Number:
    """Return how many times the arithmetic grows when heads fill whole tiles: a smooth maximum of both."""
    return (1 + (tile / np.maximum(heads, 1e-9)) ** 4) ** 0.25


LATENT_FORMS: dict[str, Form] = {
    **{f"{kind}-decode": latent_reading for kind in ("latent", "sparse", "block", "compressed")},
    **{f"{kind}-prefill": latent_prompts for kind in ("latent", "absorbed")},
    **{f"{kind}-prefill": latent_choosing for kind in ("sparse", "block", "compressed")},
    **{f"{kind}selector-{phase}": selector_scan for kind in ("", "block-", "compressed-") for phase in ("decode", "prefill")},
    "head-product": head_product,
}


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
    """Price a pass over activations: t = t0 + [ memory^p + vector^p + serial^p + starts^p ]^(1/p) seconds, with vector = operations
    / (ep fp32 rate), serial = tl steps and starts = ``ob`` operations a block."""
    shape: MemoryPass = k.shape
    vector_Fps, memory = vector_flops_per_s(chip) * rate, _memory_s(k.nbytes, shape.cold_bytes, c, chip)
    terms = (memory, k.flops / (c["ep"] * vector_Fps), c["tl"] * shape.steps, c.get("ob", 0.0) * shape.blocks / vector_Fps)
    return c["t0"], norm(c["p"], *terms)


def convolution(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """Price a short convolution: t = t0 (1 + tv if vectorised) + [ memory^p + vector^p + starts^p ]^(1/p) seconds.
    Kernels with a block for each channel of each sequence (``s0`` above 0) spend on each as much as on ``s0`` tokens, and
    1 + ``few`` as much where a sequence is too short for vector loads."""
    shape: Convolution = k.shape
    vectorised = np.asarray(shape.tokens) >= VECTOR_TOKENS
    each_token_s = k.flops / (c["ep"] * vector_flops_per_s(chip) * rate)
    starts = each_token_s / shape.tokens * c.get("s0", 0.0) * (1 + c.get("few", 0.0) * ~vectorised)
    return c["t0"] * (1 + c.get("tv", 0.0) * vectorised), norm(c["p"], _memory_s(k.nbytes, 0.0, c, chip), each_token_s, starts)


def chunked_scan(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """Price a scan in chunks: t = t0 + [ memory^p + work^p + tensor^p + serial^p ]^(1/p) seconds, with serial = tl chunks of a
    sequence.
    Memory moves the inputs, ``between`` of what a chain of kernels hands on, and ``states`` times the states. A sequence costs
    as much work as ``s0`` further tokens; work / (es fp32 rate), which tensor cores lift above 1."""
    shape: ChunkedScan = k.shape
    moved = k.nbytes + c["between"] * shape.between_bytes + (c["states"] - 1) * shape.state_bytes
    work = k.flops * (1 + c["s0"] / shape.tokens) / (c["es"] * vector_flops_per_s(chip) * rate)
    tensor = k.flops / (chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"])
    return c["t0"], norm(c["p"], _memory_s(moved, 0.0, c, chip), work, tensor, c["tl"] * np.ceil(shape.tokens / shape.chunk))


def encoder_attention(k: Kernel, c: Table, chip: Chip, rate: float) -> Parts:
    """Price bidirectional attention of images or frames: t = t0 + [ compute^p + memory^p + longest^p ]^(1/p) seconds.
    Queries come in tiles of 128 (``tile``), keys cost ``s0`` more than there are, heads are padded to whole multiples of ``pad``,
    and tensor cores attain ``ep64`` with heads of 64 and ``ep`` with larger ones; longest = tl keys."""
    padded, tile = c["pad"] * np.ceil(k.head_dim / c["pad"]), c.get("tile", QUERY_TILE)
    share = np.where(k.head_dim <= 64, c["ep64"], c["ep"])
    peak = (chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"]) * rate
    compute = 4.0 * k.batch * k.heads * tile * np.ceil(k.length / tile) * (k.length + c["s0"]) * padded / (share * peak)
    return c["t0"], norm(c["p"], compute, _memory_s(k.nbytes, 0.0, c, chip), c["tl"] * k.length)


def _memory_s(nbytes: Number, cold_bytes: Number, c: Table, chip: Chip) -> Number:
    return (from_memory(nbytes - cold_bytes, c["cache"] * chip.l2_bytes) + cold_bytes) / (c["eb"] * chip.memory_Bps)


STREAMS = (
    *("conv-update", "kda-conv-update", "kda-conv-verify", "gdn-update", "kda-update", "kda-fused", "kda-verify", "ssd-update"),
    *("mhc-pre", "mhc-post", "scales", "quantise"),
)
CHIP_FORMS: dict[str, ChipForm] = {
    **dict.fromkeys(("conv", "conv-blocks", "conv-qkv"), convolution),
    **dict.fromkeys(("gdn-scan", "kda-scan", "ssd-scan"), chunked_scan),
    **dict.fromkeys(STREAMS, stream),
    "encoder": encoder_attention,
}


MODULES = tuple(f"{kind}-{phase}" for kind in ("mla", "dsa", "msa", "csa", "hca") for phase in ("context", "generation"))
LAUNCHED = (*MODULES, "dsa-dense", "dsa-skip", "gemm")
"""Modules whose launches differ: with few tokens nothing is selected, and some layers take over another's selection; products
that a table times with their launch."""


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """Tokens that a module works on, and its heads."""

    tokens: Number
    heads: Number


def rest(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price a module's element-wise kernels, or a copy of cached latents: t = t0 + tokens (token + head heads) seconds."""
    s: ModuleSizes = k.shape
    return c["t0"], s.tokens * (c["token"] + c["head"] * s.heads)


def eager_module(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price the host's launches of a module that no graph holds, t = t0: the device waits for it, or it for the device."""
    return c["t0"], 0.0


@dataclass(frozen=True, slots=True)
class MaskedPairs:
    """Pairs of query and key, all of them, and heads: of attention that masks what was not chosen."""

    pairs: Number
    tokens: Number
    heads: Number


def masked_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price whole score matrices, written and reread: t = t0 + tokens heads head + pairs (wp + wh heads) / bandwidth seconds."""
    s: MaskedPairs = k.shape
    return c["t0"], s.tokens * s.heads * c["head"] + s.pairs * (c["wp"] + c["wh"] * s.heads) / bandwidth_Bps


EAGER: dict[str, Form] = {f"{module}-eager": eager_module for module in LAUNCHED}
MEASURED: dict[str, Form] = {f"{kind}-rest": rest for kind in MODULES} | EAGER | {"masked": masked_attention, "latent-copy": rest}


COPY_SHARPNESS = 4.0  # of the turn from what multiprocessors copy to what the link carries


@dataclass(frozen=True, slots=True)
class Exchange:
    """``sms``: multiprocessors that copy."""

    ranks: Number
    sms: Number
    experts: Number


def sms_by_expert(experts: Number, num_sms: float) -> Number:
    """Return the multiprocessors that copy, each for equally many experts: all at once, or in as few turns as they need.

    >>> float(sms_by_expert(256, 132)), float(sms_by_expert(8, 132))
    (128.0, 8.0)
    """
    return experts / np.ceil(experts / max(1.0, num_sms))


def copying_slowness(link_Bps: Number, sm_Bps: float, sms: Number) -> Number:
    """Return the seconds per byte: the link's, or those of few copying multiprocessors, and a little more near the turn."""
    slowness: Number = ((sm_Bps * sms) ** -COPY_SHARPNESS + link_Bps**-COPY_SHARPNESS) ** (1 / COPY_SHARPNESS)
    return slowness


def exchanged_kernel(what: str, form: str, sent_bytes: Number, ranks: Number, sms: Number, experts: Number) -> Kernel:
    """Return one way of an exchange: ``sent_bytes`` of one rank, of which 1/ranks stay where they are."""
    return Kernel(what, form, 1, 0.0, sent_bytes * (1 - 1 / ranks), stored=what, shape=Exchange(ranks, sms, experts))


def exchange(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Price the kernel, or the host that launches it and waits for counts, whichever takes longer.
    t = [ (t0 + te experts + bytes slowness)^4 + host^4 ]^(1/4) seconds."""
    e: Exchange = k.shape
    fixed = c["t0"] + c["te"] * e.experts
    moving = k.nbytes * np.maximum(1 / bandwidth_Bps, copying_slowness(c["link_Bps"], c["sm_Bps"], e.sms))
    waited = (fixed**COPY_SHARPNESS + c["host"] ** COPY_SHARPNESS) ** (1 / COPY_SHARPNESS)
    return waited, ((fixed + moving) ** COPY_SHARPNESS + c["host"] ** COPY_SHARPNESS) ** (1 / COPY_SHARPNESS) - waited


WAYS = ("low", "high", "low2", "high2")  # low latency, high throughput, and the second version of both
MODULE_FORMS: dict[str, Form] = MEASURED | {f"exchange_{way}": exchange for way in WAYS}

FORMS: dict[str, Form] = {**PLAIN_FORMS, **ROUTED, **LATENT_FORMS, **MODULE_FORMS}
