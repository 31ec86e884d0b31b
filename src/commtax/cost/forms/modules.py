"""What tables of whole modules and of single exchanges time, and steps pay otherwise.

A measured module takes more than its products and attention: element-wise kernels, and the host that launches them, where a step
pays its own small kernels (``small``) and an engine's host time. An exchange carries tokens to the ranks of their experts and back.
"""

import numpy as np

from commtax.cost.forms.form import Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.records import dataclass
from commtax.spec import Number

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
    """Element-wise kernels of a module, or a copy of cached latents: t = t0 + tokens (token + head heads) seconds."""
    s: ModuleSizes = k.shape
    return c["t0"], s.tokens * (c["token"] + c["head"] * s.heads)


def eager_module(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """The host's time for all launches of a module that no graph holds, t = t0: the device waits for it, or it for the device."""
    return c["t0"], 0.0


@dataclass(frozen=True, slots=True)
class MaskedPairs:
    """Pairs of query and key, all of them, and heads: of attention that masks what was not chosen."""

    pairs: Number
    tokens: Number
    heads: Number


def masked_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Whole matrices of scores, written and read again: t = t0 + tokens heads head + pairs (wp + wh heads) / bandwidth seconds."""
    s: MaskedPairs = k.shape
    return c["t0"], s.tokens * s.heads * c["head"] + s.pairs * (c["wp"] + c["wh"] * s.heads) / bandwidth_Bps


EAGER: dict[str, Form] = {f"{module}-eager": eager_module for module in LAUNCHED}
MEASURED: dict[str, Form] = (
    {f"{module}-rest": rest for module in MODULES} | EAGER | {"masked": masked_attention, "latent-copy": rest}
)


SHARPNESS = 4.0  # of the turn from what multiprocessors copy to what the link carries


@dataclass(frozen=True, slots=True)
class Exchange:
    """``sms``: multiprocessors that copy."""

    ranks: Number
    sms: Number
    experts: Number


def sms_by_expert(experts: Number, num_sms: float) -> Number:
    """Multiprocessors that copy where each has the same number of experts: all experts at once, or in as few turns as they need.

    >>> float(sms_by_expert(256, 132)), float(sms_by_expert(8, 132))
    (128.0, 8.0)
    """
    return experts / np.ceil(experts / max(1.0, num_sms))


def copying_slowness(link_Bps: Number, sm_Bps: float, sms: Number) -> Number:
    """Seconds per byte: the link's, or those of multiprocessors where few of them copy, and a little more near the turn."""
    slowness: Number = ((sm_Bps * sms) ** -SHARPNESS + link_Bps**-SHARPNESS) ** (1 / SHARPNESS)
    return slowness


def exchanged_kernel(what: str, form: str, sent_bytes: Number, ranks: Number, sms: Number, experts: Number) -> Kernel:
    """One way of an exchange: ``sent_bytes`` of one rank, of which 1/ranks stay where they are."""
    return Kernel(what, form, 1, 0.0, sent_bytes * (1 - 1 / ranks), stored=what, shape=Exchange(ranks, sms, experts))


def exchange(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """The kernel, or the host that launches it and waits for counts, whichever takes longer.

    t = [ (t0 + te experts + bytes slowness)^4 + host^4 ]^(1/4) seconds.
    """
    e: Exchange = k.shape
    fixed = c["t0"] + c["te"] * e.experts
    moving = k.nbytes * np.maximum(1 / bandwidth_Bps, copying_slowness(c["link_Bps"], c["sm_Bps"], e.sms))
    waited = (fixed**SHARPNESS + c["host"] ** SHARPNESS) ** (1 / SHARPNESS)
    return waited, ((fixed + moving) ** SHARPNESS + c["host"] ** SHARPNESS) ** (1 / SHARPNESS) - waited


WAYS = ("low", "high", "low2", "high2")  # low latency, high throughput, and the second version of both
FORMS: dict[str, Form] = MEASURED | {f"exchange_{way}": exchange for way in WAYS}
