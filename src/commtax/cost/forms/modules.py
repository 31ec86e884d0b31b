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
    """Element-wise kernels of a module: t = t0 + tokens (token + head heads) seconds."""
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
MEASURED: dict[str, Form] = {f"{module}-rest": rest for module in MODULES} | EAGER | {"masked": masked_attention}


SHARPNESS = 4.0  # of the turn from what multiprocessors copy to what the link carries


@dataclass(frozen=True, slots=True)
class Exchange:
    """``sms``: multiprocessors that copy; 0: as many as the kernel likes."""

    ranks: Number
    sms: Number = 0.0


def exchanged_kernel(what: str, form: str, sent_bytes: Number, ranks: Number, sms: Number = 0.0) -> Kernel:
    """One way of an exchange: ``sent_bytes`` of one rank, of which 1/ranks stay where they are."""
    return Kernel(what, form, 1, 0.0, sent_bytes * (1 - 1 / ranks), stored=what, shape=Exchange(ranks, sms))


def exchange(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """t = t0 + bytes / rate seconds; the rate is the link's, or that of the multiprocessors that copy where they are few."""
    e: Exchange = k.shape
    few = np.asarray(e.sms) > 0
    copied = np.where(few, 1 / (c["sm_Bps"] * np.where(few, e.sms, 1)), 0.0)
    slowness = np.maximum(1 / bandwidth_Bps, (copied**SHARPNESS + c["link_Bps"] ** -SHARPNESS) ** (1 / SHARPNESS))
    return c["t0"], k.nbytes * slowness


WAYS = ("low", "high", "low2", "high2")
"""Low latency, high throughput, and the second version of both."""
FORMS: dict[str, Form] = MEASURED | {f"exchange_{way}": exchange for way in WAYS}
