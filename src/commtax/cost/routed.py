"""The routed part of a mixture of experts in a step: how many experts tokens choose, the busiest rank, and its kernels."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from commtax.arrays import pick
from commtax.cost.forms.experts import Routed, routed_kernels
from commtax.cost.kernel import Kernel, Step, input_bytes
from commtax.cost.placement import expert_tp, experts_reach, over_replicas
from commtax.spec import Experts, Number

LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 … 256 standard normal values (Harter 1961)."""
EXCHANGED = {"deepep_low_latency": "generation", "deepep_high_throughput": "context"}
"""What experts run as behind an all-to-all: masked grouped products over slots of one size, or contiguous ones."""
DRAWS = 8  # of popularities that a placement is judged by
GATE, DOWN = "mlp.experts.gate_proj", "mlp.experts.down_proj"  # weights as checkpoints name them


def routed(s: Step, f: Experts, count: int) -> Iterator[Kernel]:
    """Kernels of the routed part of ``count`` layers on the rank that all others wait for."""
    if not s.engine.kernels.fused_experts:
        yield from _grouped(s, _sizes(s, f), count, f.bias)
        return
    sizes, behind = _sizes(s, f), s.engine.kernels.experts_apart or s.exchange
    apart = np.asarray(bool(behind) & over_replicas(s.plan, s.engine))
    if not np.all(apart):
        yield from _fused(s, sizes, pick(apart, 0, count), "")
    if np.any(apart):
        yield from _fused(s, _arrived(sizes) if s.exchange else sizes, pick(apart, count, 0), behind)


def _sizes(s: Step, f: Experts) -> Routed:
    """Under expert parallelism across replicas a rank works on the tokens of the whole group that chose its experts."""
    plan, popularity = s.plan, s.engine.kernels.popularity
    tokens = s.rows * experts_reach(plan, s.engine)
    slots = f.num_experts + plan.redundant
    active = busiest_active(f, tokens, plan.ep, popularity) * slots / f.num_experts
    load = np.minimum(plan.ep, s.imbalance) if s.imbalance else busiest_rank(f, tokens, plan.ep, popularity, plan.redundant_experts)
    copies = tokens * f.top_k / plan.ep * load
    elsewhere = np.maximum(0.0, tokens * f.top_k - copies)
    inner, up = f.intermediate / expert_tp(plan, s.engine), 2.0 if f.gated else 1.0
    owned, hidden = slots / plan.ep, f.latent or s.model.hidden
    return Routed(tokens, copies, elsewhere, np.minimum(active, owned), owned, f.num_experts, hidden, inner, up)


def _arrived(r: Routed) -> Routed:
    """The same where an exchange brings a rank only what is for its experts: a token comes once, with all of its copies here."""
    missed = np.exp(-r.copies / np.maximum(1.0, r.tokens))
    return replace(r, tokens=np.maximum(1.0, r.tokens * (1 - missed)))


def _fused(s: Step, r: Routed, count: Number, backend: str) -> Iterator[Kernel]:
    """Kernels made for experts: their constants are of the whole routed part (``forms/experts.py``)."""
    like = s.gemm("", "experts", "gate", 1, r.copies, r.inner, r.hidden, GATE)
    loaded = s.engine.kernels.quantises and s.model.quant is None  # not as a checkpoint that brings its scales
    static = "fp8-loaded" if loaded else "fp8-static"
    stored = like.stored or (static if like.static_scales else like.dtype if like.dtype != "fp16" else "bf16")
    cut = backend or s.engine.kernels.experts_backend(s.model.architecture, stored)
    whole = cut or s.engine.kernels.spread_backend(stored)  # on ranks
    spread = (np.asarray(s.plan.ep) > 1) & (whole != cut)
    for implementation, where in ((cut, ~spread), (whole, spread)):
        if np.any(where):
            around, products = routed_kernels(r, like.dtype, stored, like.weight_bytes, implementation)
            yield replace(around, count=pick(where, count, 0), part="routing", place="routing")
            yield replace(products, count=pick(where, count, 0), part="experts", place="gate")


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


def busiest_active(moe: Experts, tokens: Number, ep: Number, popularity: float) -> Number:
    """Experts with work on the rank that has the most of them: all ranks wait for the weights that it reads.

    Of E/ep experts each has work with q = chosen/E, so their number spreads by sqrt(E/ep q (1 - q)) around its mean, less what
    the fixed total takes; the largest of n normal values lies ``LARGEST`` spreads above it. All of them at the most.

    Where all experts are equally popular, ranks are taken to be so too.

    >>> [round(float(busiest_active(Experts(256, 8, 1), n, 8, 0.7)), 1) for n in (1, 16, 4096)]
    [2.3, 13.9, 32.0]
    """
    owned, share = moe.num_experts / ep, chosen_experts(moe, tokens, popularity) / moe.num_experts
    spread = np.sqrt(owned * share * (1 - share) * (1 - 1 / ep)) * np.isfinite(popularity)
    return np.minimum(owned, owned * share + _above(ep) * spread)


def busiest_rank(moe: Experts, tokens: Number, ep: Number, popularity: float, redundant: int = 0) -> Number:
    """Copies of the busiest of ``ep`` ranks over the mean, when experts lie whole on ranks: all wait for it.

    A rank's load is the sum of E/ep popularities of a gamma distribution of shape a, so its relative spread is sqrt(ep / (E a)),
    beside that of drawing n copies by chance, sqrt(ep / n); less what the fixed total takes, sqrt(1 - 1/ep). Redundant copies
    of popular experts, placed by load, leave what ``levelled`` says instead of the first.

    >>> moe = Experts(128, 8, 1)
    >>> round(float(busiest_rank(moe, 1e9, 8, 0.3)), 2), round(float(busiest_rank(moe, 1e9, 8, np.inf)), 2)
    (1.61, 1.0)
    """
    chance = ep / np.maximum(1.0, tokens * moe.top_k) * np.isfinite(popularity)
    uneven = 0.0 if redundant else ep / (moe.num_experts * popularity)
    placed = levelled(moe.num_experts, ep, popularity, redundant) if redundant else 1.0
    return np.minimum(ep, placed + _above(ep) * np.sqrt((uneven + chance) * (1 - 1 / ep)))


def _above(ep: Number) -> Number:
    return np.interp(np.log2(ep * 1.0), np.arange(len(LARGEST)), LARGEST)


def levelled(num_experts: int, ep: Number, popularity: float, redundant: int) -> Number:
    """Load of the busiest rank over the mean after the most popular experts got ``redundant`` further copies (EPLB).

    Each copy in turn goes to the expert with the most tokens a copy, then copies go to the emptiest rank, largest first: means
    of a few draws of the popularities.

    >>> round(levelled(256, 72, 0.7, 32), 2)
    1.03
    """
    if np.ndim(ep):
        return np.vectorize(lambda one: levelled(num_experts, one, popularity, redundant), otypes=[float])(ep)
    return _levelled(num_experts, int(ep), popularity, redundant)


@lru_cache(maxsize=256)
def _levelled(num_experts: int, ep: int, popularity: float, redundant: int) -> float:
    rng = np.random.default_rng(0)
    draws = rng.gamma(popularity, size=(DRAWS, num_experts)) if np.isfinite(popularity) else np.ones((1, num_experts))
    return float(np.mean([_placed(loads, ep, redundant) for loads in draws]))


def _placed(loads: Number, ep: int, redundant: int) -> float:
    copies = np.ones_like(loads)
    for _ in range(redundant):
        copies[np.argmax(loads / copies)] += 1
    each = np.sort(np.repeat(loads / copies, copies.astype(int)))[::-1]
    ranks, room = np.zeros(ep), np.full(ep, len(each) // ep)
    for load in each:
        place = np.argmin(np.where(room > 0, ranks, np.inf))
        ranks[place] += load
        room[place] -= 1
    return float(ranks.max() / ranks.mean())
