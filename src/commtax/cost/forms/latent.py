"""Attention over what heads share: latent keys and values, entries that a selector chose, blocks and compressed entries.

Entries have one width for all heads of a group, so a kernel reads each once for many heads and is often bound by arithmetic.
"""

import numpy as np

from commtax.cost.forms.form import TINY, Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.records import dataclass
from commtax.spec import Number

TILE_QUERIES = 128.0  # queries of one block of prefill


@dataclass(frozen=True, slots=True)
class Reading:
    """``groups`` caches of which ``entries`` are read by the queries of ``heads`` heads; ``width``: of a query and an output."""

    groups: Number
    heads: Number
    entries: Number
    width: Number


@dataclass(frozen=True, slots=True)
class Prompts:
    """``seqs`` prompts of ``new`` tokens behind ``past`` cached ones; ``width``: of a head's key and value."""

    seqs: Number
    heads: Number
    new: Number
    past: Number
    width: Number


@dataclass(frozen=True, slots=True)
class Choosing:
    """``tokens`` of ``seqs`` prompts that each see ``entries`` at most; all that they see, as bytes, is ``gathered``."""

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
    """One small matrix a head times ``rows`` rows; ``kept``: bytes that a repeated measurement finds in the chip's cache."""

    rows: Number
    heads: Number
    kept: Number = 0.0


def latent_reading(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Queries of decode over shared entries: bytes of the cache or arithmetic on padded heads, beside what each launch does.

    t = t0 + [ (tb groups + queries)^p + [memory^both + compute^both]^(p/both) + serial^p + (tl entries)^p ]^(1/p) seconds, with
    serial = kl ln(1 + entries/kc) (1 + heads/hs): splits of a cache are joined, the more heads the later. ``tl`` is what a
    kernel takes that does not split a cache, ``tile`` the heads that one is padded to. Fitted on measured kernels.
    """
    s: Reading = k.shape
    memory = k.nbytes / (c["eb"] * bandwidth_Bps)
    compute = k.flops * _padding_factor(s.heads, c["tile"]) / (c["ep"] * flops_per_s)
    queries = s.groups * s.heads * s.width * 2.0 / (c["eq"] * bandwidth_Bps)
    serial = c["kl"] * np.log1p(s.entries / c["kc"]) * (1 + s.heads / c["hs"])
    p, both = c["p"], c["both"]
    moved = (memory**both + compute**both + TINY) ** (p / both)
    return c["t0"], ((c["tb"] * s.groups + queries) ** p + moved + serial**p + (c["tl"] * s.entries) ** p + TINY) ** (1 / p)


def prompts(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Causal attention of whole prompts with keys and values of their own width.

    t = t0 + [ (compute + memory + tb blocks + tr tokens)^p + (tl length)^p + (kl ln(1 + new/kc))^p ]^(1/p) seconds. Queries,
    keys, values and outputs were just made or are read next: of them only what ``kept`` bytes of cache don't hold moves.
    """
    s: Prompts = k.shape
    tokens = s.seqs * s.new
    activations = 4.0 * tokens * s.heads * s.width
    memory = (k.nbytes + np.maximum(0.0, activations - c["kept"])) / (c["eb"] * bandwidth_Bps)
    blocks = c["tb"] * s.seqs * s.heads * np.ceil(s.new / TILE_QUERIES) + c["tr"] * tokens
    p = c["p"]
    work = k.flops / (c["ep"] * flops_per_s) + memory + blocks
    return c["t0"], (work**p + (c["tl"] * (s.new + s.past)) ** p + (c["kl"] * np.log1p(s.new / c["kc"])) ** p + TINY) ** (1 / p)


def latent_choosing(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Prompts whose tokens each see entries of their own choice: arithmetic on padded heads, or gathering the entries.

    t = t0 + [compute^p + gather^p]^(1/p) + tq tokens + tb seqs + tl entries seconds. Neighbours choose alike, so that most of
    what is gathered comes from the chip's cache: at ``reuse`` times the memory's rate, never faster than each byte once.
    """
    s: Choosing = k.shape
    compute = k.flops * _padding_factor(s.heads, c["tile"]) / (c["ep"] * flops_per_s)
    gather = np.maximum(s.gathered / (c["reuse"] * bandwidth_Bps), k.nbytes / bandwidth_Bps)
    p = c["p"]
    return c["t0"], (compute**p + gather**p + TINY) ** (1 / p) + c["tq"] * s.tokens + c["tb"] * s.seqs + c["tl"] * s.entries


def scan(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """A selector's scores over all that is cached, and the best of them.

    t = t0 + [ (memory + ts candidates)^2 + compute^2 + (kl ln(1 + length/kc))^2 ]^(1/2) seconds.
    """
    s: SelectorScan = k.shape
    memory = k.nbytes / (c["eb"] * bandwidth_Bps) + c["ts"] * s.candidates
    compute = k.flops / (c["ep"] * flops_per_s)
    return c["t0"], np.sqrt(memory**2 + compute**2 + (c["kl"] * np.log1p(s.length / c["kc"])) ** 2)


def head_product(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """The absorbed products of latent attention, one matrix a head: t = t0 + tr rows heads + [memory^p + compute^p]^(1/p) seconds.

    What a repeated measurement finds in the chip's cache moves at ``el`` times the memory's rate, up to ``kept`` bytes.
    """
    s: HeadProduct = k.shape
    cold = k.nbytes + np.maximum(0.0, s.kept - c["kept"])
    memory = cold / (c["eb"] * bandwidth_Bps) + s.kept / (c["el"] * bandwidth_Bps)
    compute = k.flops * np.maximum(1.0, c["tile"] / np.maximum(s.rows, 1.0)) / (c["ep"] * flops_per_s)
    p = c["p"]
    return c["t0"], (memory**p + compute**p + TINY) ** (1 / p) + c["tr"] * s.rows * s.heads


def _padding_factor(heads: Number, tile: float) -> Number:
    """How many times the arithmetic grows when heads fill whole tiles: a smooth maximum of both."""
    return (1 + (tile / np.maximum(heads, 1e-9)) ** 4) ** 0.25


FORMS: dict[str, Form] = {
    **{f"{kind}-decode": latent_reading for kind in ("latent", "sparse", "block", "compressed")},
    **{f"{kind}-prefill": prompts for kind in ("latent", "absorbed")},
    **{f"{kind}-prefill": latent_choosing for kind in ("sparse", "block", "compressed")},
    **{f"{kind}selector-{phase}": scan for kind in ("", "block-", "compressed-") for phase in ("decode", "prefill")},
    "head-product": head_product,
}
