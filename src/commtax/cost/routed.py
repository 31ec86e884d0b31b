"""The routed part of a mixture of experts in a step: how many experts tokens choose, the busiest rank, and its kernels."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.cost.forms.experts import Routed, routed_kernels
from commtax.cost.kernel import Kernel, Step, input_bytes
from commtax.cost.placement import expert_tp, experts_reach
from commtax.spec import Experts, Number

LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 … 256 standard normal values (Harter 1961)."""
GATE, DOWN = "mlp.experts.gate_proj", "mlp.experts.down_proj"  # weights as checkpoints name them


def routed(s: Step, f: Experts, count: int) -> Iterator[Kernel]:
    """Kernels of the routed part of ``count`` layers on the busiest rank."""
    r = _sizes(s, f)
    yield from _fused(s, r, count) if s.engine.kernels.fused_experts else _grouped(s, r, count, f.bias)


def _sizes(s: Step, f: Experts) -> Routed:
    """Under expert parallelism across replicas a rank works on the tokens of the whole group that chose its experts."""
    plan, popularity = s.plan, s.engine.kernels.popularity
    tokens = s.rows * experts_reach(plan, s.engine)
    active = chosen_experts(f, tokens, popularity) / plan.ep
    copies = tokens * f.top_k / plan.ep * busiest_rank(f, plan.ep, popularity)
    elsewhere = np.maximum(0.0, tokens * f.top_k - copies)
    inner, up = f.intermediate / expert_tp(plan, s.engine), 2.0 if f.gated else 1.0
    owned, hidden = f.num_experts / plan.ep, f.latent or s.model.hidden
    return Routed(tokens, copies, elsewhere, active, owned, f.num_experts, hidden, inner, up)


def _fused(s: Step, r: Routed, count: int) -> Iterator[Kernel]:
    """Kernels made for experts: their constants are of the whole routed part (``forms/experts.py``)."""
    like = s.gemm("", "experts", "gate", 1, r.copies, r.inner, r.hidden, GATE)
    loaded = s.engine.kernels.quantises and s.model.quant is None  # not as a checkpoint that brings its scales
    static = "fp8-loaded" if loaded else "fp8-static"
    stored = like.stored or (static if like.static_scales else like.dtype if like.dtype != "fp16" else "bf16")
    around, products = routed_kernels(r, like.dtype, stored, like.weight_bytes)
    beside = 1 - s.engine.kernels.routing_share
    yield replace(around, count=count, fused=beside, part="routing", place="routing")
    yield replace(products, count=count, part="experts", place="gate")


def _grouped(s: Step, r: Routed, count: int, biased: bool) -> Iterator[Kernel]:
    """Plain products, as one whose matrix is the experts that some token chose, with small kernels around them."""
    each, both, runs = r.copies / np.maximum(1e-9, r.active), r.up * r.inner, s.engine.kernels
    up = s.gemm("experts gate and up", "experts", "gate", count, each, both * r.active, r.hidden, GATE)
    yield replace(up, grouped=True, batch=r.active)
    # Tokens are read and written once; a copy is written, read by the activation, written and read back.
    own, sends = r.tokens, s.engine.sends
    passed = r.copies + r.elsewhere
    if (
        sends.experts_keep_tp or sends.experts_whole
    ):  # exchanged by all-to-all: a rank sees its own tokens and those for its experts
        own, passed = r.tokens / s.plan.ep, r.copies
    moved = 2 * own * r.hidden + r.copies * 2 * r.hidden + runs.routing_passes * passed * r.hidden
    inside = s.plan.weights_dtype in s.engine.mixes.graphed_experts
    if not inside:
        moved = moved + r.copies * (both + r.inner)
    if biased and not inside:
        moved = moved + runs.biased_passes * r.copies * both
    launches, what = runs.routing_launches, "routing, permutation and activation"
    yield s.small(what, "routing", "routing", launches * count, moved / launches, fusable=False)
    down = s.gemm("experts down", "experts", "down", count, each, r.hidden * r.active, r.inner, DOWN)
    moved = r.copies * r.inner * input_bytes(down.dtype, s.plan) + r.active * r.hidden * r.inner * down.weight_bytes
    yield replace(down, nbytes=moved, grouped=True, batch=r.active)


def chosen_experts(moe: Experts, tokens: Number, popularity: float) -> Number:
    """Mean number of different experts that ``tokens`` tokens choose.

    The first token chooses ``top_k``; each of the others leaves an expert out with 1 - k/E if all are equally popular:
    E - (E - k) (1 - k/E)^(n - 1). With popularities spread as a gamma distribution of shape a, the power becomes
    (1 + (n - 1) k / (E a))^(-a): few experts are popular and many stay cold.

    >>> round(float(chosen_experts(Experts(128, 8, 1), 1, 0.7)), 1), round(float(chosen_experts(Experts(128, 8, 1), 16, np.inf)), 1)
    (8.0, 82.4)
    """
    further = np.maximum(0.0, tokens - 1)
    share = moe.top_k / moe.num_experts
    cold = (1 + further * share / popularity) ** -popularity if np.isfinite(popularity) else (1 - share) ** further
    return moe.num_experts - (moe.num_experts - moe.top_k) * cold


def busiest_rank(moe: Experts, ep: Number, popularity: float) -> Number:
    """Tokens of the busiest of ``ep`` ranks over the mean, when experts lie whole on ranks: all wait for it.

    A rank's load is the sum of E/ep popularities of a gamma distribution of shape a, so its relative spread is
    sqrt(ep / (E a)), less what the fixed total takes, sqrt(1 - 1/ep); the largest of n normal values lies ``LARGEST``
    spreads above the mean.

    >>> round(float(busiest_rank(Experts(128, 8, 1), 8, 0.3)), 2), float(busiest_rank(Experts(128, 8, 1), 8, np.inf))
    (1.61, 1.0)
    """
    spread = np.sqrt(ep / (moe.num_experts * popularity)) * np.sqrt(1 - 1 / ep)
    above = np.interp(np.log2(ep * 1.0), np.arange(len(LARGEST)), LARGEST)
    return np.minimum(ep, 1 + above * spread)
