"""What a measured module takes beside its products and attention: element-wise kernels, and the host that launches them.

A step pays its own small kernels (``small``) and an engine's host time instead; these forms answer tables of whole modules.
"""

from commtax.cost.forms.form import Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.records import dataclass
from commtax.spec import Number

MODULES = tuple(f"{kind}-{phase}" for kind in ("mla", "dsa", "msa", "csa", "hca") for phase in ("context", "generation"))
LAUNCHED = (*MODULES, "dsa-dense", "dsa-skip", "gemm")
"""Modules whose launches differ: with few tokens nothing is selected, and some layers take over another's selection; products
that a table times with their launch."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Tokens that a module works on, and its heads."""

    tokens: Number
    heads: Number


def rest(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Element-wise kernels of a module: t = t0 + tokens (token + head heads) seconds."""
    s: Beside = k.shape
    return c["t0"], s.tokens * (c["token"] + c["head"] * s.heads)


def eager(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """The host's time for all launches of a module that no graph holds, t = t0: the device waits for it, or it for the device."""
    return c["t0"], 0.0


@dataclass(frozen=True, slots=True)
class Masked:
    """Pairs of query and key, all of them, and heads: of attention that masks what was not chosen."""

    pairs: Number
    tokens: Number
    heads: Number


def masked(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """Whole matrices of scores, written and read again: t = t0 + tokens heads head + pairs (wp + wh heads) / bandwidth seconds."""
    s: Masked = k.shape
    return c["t0"], s.tokens * s.heads * c["head"] + s.pairs * (c["wp"] + c["wh"] * s.heads) / bandwidth_Bps


EAGER: dict[str, Form] = {f"{module}-eager": eager for module in LAUNCHED}
FORMS: dict[str, Form] = {f"{module}-rest": rest for module in MODULES} | EAGER | {"masked": masked}
