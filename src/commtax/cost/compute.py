"""The kernels of one step on one rank: shapes, FLOPs and bytes of every operation, for any mix of decode and prefill.

A step is a list of ``Kernel``s with the shapes that decide their time; ``kernels.py`` turns shapes into seconds. Layers of
one kind share their kernels, so the list stays short whatever the depth.
Change here which kernels a step launches, and their FLOPs and bytes.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from commtax.arrays import Array, pick
from commtax.cost.adapters import adapter_kernels
from commtax.cost.attention import LATENT, decode_attention, prefill_attention, projections, quantised_before
from commtax.cost.attention_kinds import BLOCKS, COMPRESSED, delta_kernels, mamba_kernels, streams_read, streams_written
from commtax.cost.kernel import Kernel, KernelStep, input_bytes
from commtax.cost.layer_forms import RoutedSizes, routed_kernels
from commtax.cost.placement import expert_ranks, padded_vocab, tokens_split
from commtax.ledger import Part, Place
from commtax.records import dataclass, replace
from commtax.spec import DTYPE_BYTES, Attention, DeltaNet, Engine, Experts, Mixer, Mlp, Model, Number, Plan, Workload

Maker = Callable[[KernelStep, Any, int], Iterator[Kernel]]
ACTIVATION_BYTES = 2.0  # bf16
LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 … 256 standard normal values (Harter 1961)."""
DRAWS = 8  # of popularities that a placement is judged by
DRIFT = 0.15
"""How far an expert's load of one step lies from the measured one that a layout rests on, as a share of it. SGLang's blog of
2026-06-26: balancing each batch gains 2.7 to 7.3 % over a layout by measured loads, which is what loads that drift so leave."""
GATE, DOWN = "mlp.experts.gate_proj", "mlp.experts.down_proj"  # weights as checkpoints name them


def step_kernels(
    model: Model,
    plan: Plan,
    work: Workload,
    rows: Number,
    engine: Engine,
    exchange: str = "",
    imbalance: float = 0.0,
    sorts: bool = False,
    balanced: bool = False,
    copied_tokens: Number = 0.0,
) -> list[Kernel]:
    """List every kernel of one step, all pipeline stages in sequence, where ``sorts`` draws tokens from the most likely ones."""
    step = KernelStep(model, plan, work, rows, engine, exchange, imbalance, balanced, plan.cp, copied_tokens)
    layers = _layers(step)
    if plan.sequence_parallel:  # what lies between a scatter and a gather runs on a rank's own rows
        layers = [replace(k, nbytes=k.nbytes / plan.tp) if k.part == "norms" else k for k in layers]
    kernels = [*layers, head_kernel(model, plan, work.samples, engine), *tower_kernels(step)]
    if engine.key != "torch":
        kernels.append(step.small("embedding and final norm", "embedding", "", 2, rows * model.hidden * 4))
    if sorts and (launches := engine.kernels.sort_launches):  # of the logits of each row: many passes over all of them
        moved = work.samples * model.vocab * engine.kernels.sort_bytes / launches / DTYPE_BYTES[plan.activations_dtype]
        kernels.append(step.small("sampling", "head", "", launches, moved, fusable=False))
    return kernels


def layer_kernels(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine, training: bool = False) -> list[Kernel]:
    """Return the kernels of all layers. ``training`` absorbs nothing: keys and values of every head are made."""
    return _layers(KernelStep(model, plan, work, rows, engine), training)


def _layers(step: KernelStep, training: bool = False) -> list[Kernel]:
    layers = (kernel for make, part, count in _parts(step.model, training) for kernel in make(step, part, count))
    return [*layers, *(adapter_kernels(step) if step.plan.lora_rank else ())]


def head_kernel(model: Model, plan: Plan, rows: Number, engine: Engine) -> Kernel:
    """Return the product that makes logits of ``rows`` rows over this rank's part of the vocabulary."""
    step, name = KernelStep(model, plan, Workload(), rows, engine), "" if model.tied else "lm_head"
    return step.gemm("head", "head", "", 1, rows, padded_vocab(model, plan, engine) / plan.tp, model.hidden, name)


@lru_cache(maxsize=256)
def _parts(model: Model, training: bool) -> tuple[tuple[Maker, object, int], ...]:
    """Return the different parts of the layers and how many layers have each: layers that differ in one part share the others."""
    groups: dict[tuple[Maker, object], int] = {}
    for index, block in enumerate(model.blocks):
        halves = (block.mixer is not None) + (block.ffn is not None)
        keys: list[tuple[Maker, object]] = [*_mixer_makers(block.mixer, training)]
        if isinstance(block.ffn, Mlp):
            keys.append((_mlp, block.ffn))
        elif block.ffn:  # layers whose experts are chosen by a table or with a corrected score have the kernels of the others
            keys.append((_mixture, replace(block.ffn, hashed=0, correction_bias=False)))
        for key in (*keys, (_norms, block.num_norms), (stream_kernels, halves)):
            groups[key] = groups.get(key, 0) + model.layers.count(index)
    return tuple((make, part, count) for (make, part), count in groups.items())


def _mixer_makers(mixer: Mixer | None, training: bool) -> Iterator[tuple[Maker, object]]:
    """Yield makers of kernels: projections are alike whatever the window, and training makes keys and values of every head."""
    if isinstance(mixer, Attention):
        kind = LATENT if mixer.latent else COMPRESSED if mixer.compressed else BLOCKS if mixer.indexer else None
        if kind is None:
            yield projections, replace(mixer, window=0)
            yield decode_attention, mixer
            yield prefill_attention, mixer
        elif training:
            yield kind.trained, replace(mixer, window=0)
            yield prefill_attention, mixer
        else:
            yield kind.projections, replace(mixer, window=0)
            yield kind.attention, mixer
    elif isinstance(mixer, DeltaNet):
        yield delta_kernels, mixer
    elif mixer:
        yield mamba_kernels, mixer


def _norms(s: KernelStep, num_norms: int, count: int) -> Iterator[Kernel]:
    """Yield residual add and norm: it reads hidden and residual, and writes both."""
    yield s.small("norms", "norms", "", count * num_norms, s.rows * s.model.hidden * 4)


def stream_kernels(s: KernelStep, halves: int, count: int) -> Iterator[Kernel]:
    """Yield hyper-connections around the ``halves`` of a layer, and attention residuals over the mean number of blocks so far."""
    if s.model.hyper:
        sizes = s.rows, s.model.hyper.streams, s.model.hidden
        for kernel in (streams_read(*sizes), streams_written(*sizes)):
            yield replace(kernel, count=halves * count, part="norms")
    if s.model.lookback:
        begun = sum(layer // s.model.lookback + 1 for layer in range(s.model.num_layers)) / s.model.num_layers
        yield s.small("look back at blocks", "norms", "", halves * count, s.rows * s.model.hidden * (begun + 2))


def _mlp(s: KernelStep, f: Mlp, count: int) -> Iterator[Kernel]:
    yield from _dense_kernels(s, "feed-forward", f.intermediate / s.plan.tp, f.gated, count, s.rows, "mlp")


def _mixture(s: KernelStep, f: Experts, count: int) -> Iterator[Kernel]:
    yield s.gemm("router", "router", "router", count, s.rows, f.num_experts, s.model.hidden)
    if f.latent:
        yield s.gemm("to the experts' width", "experts", "router", count, s.rows, f.latent, s.model.hidden, "mlp.fc1_latent_proj")
        yield s.gemm("from the experts' width", "experts", "output", count, s.rows, s.model.hidden, f.latent, "mlp.fc2_latent_proj")
    yield from routed_experts(s, f, count)
    if f.shared_intermediate:
        split = np.asarray(tokens_split(s.model, s.plan, s.engine))
        rows = pick(split, np.ceil(s.rows / s.plan.tp), s.rows)
        width = f.shared_intermediate / pick(split, 1, s.plan.tp)
        yield from _dense_kernels(s, "shared expert", width, f.gated, count, rows, "mlp.shared_experts")


def _dense_kernels(s: KernelStep, part: Part, width: Number, gated: bool, count: int, rows: Number, name: str) -> Iterator[Kernel]:
    both = (2 if gated else 1) * width
    up: tuple[str, Place] = ("gate and up", "gate") if gated else ("up", "up")
    yield (widening := s.gemm(f"{part} {up[0]}", part, up[1], count, rows, both, s.model.hidden, f"{name}.gate_proj"))
    if widening.static_scales and s.engine.kernels.quantises_apart:
        yield quantised_before(widening)
    yield s.small(f"{part} activation", part, "activation", count, rows * (both + width))
    yield s.gemm(f"{part} down", part, "down", count, rows, s.model.hidden, width, f"{name}.down_proj")


def encoder_attention(batch: Number, length: Number, heads: Number, head_dim: Number) -> Kernel:
    """Return attention of ``length`` tokens over each other: 4 length^2 FLOPs per element of each head, and four tensors move."""
    flops, nbytes = 4.0 * batch * heads * length**2 * head_dim, 4 * ACTIVATION_BYTES * batch * length * heads * head_dim
    plain = Kernel("encoder attention", "encoder", 1, flops, nbytes, batch=batch, heads=heads, kv_heads=heads)
    return replace(plain, length=length, head_dim=head_dim)


def tower_kernels(s: KernelStep) -> Iterator[Kernel]:
    """Yield a vision tower's kernels over all pictures of a step, or over a rank's own where each rank has the whole tower."""
    t = s.model.tower
    if t is None or not np.any(s.work.pictures):
        return
    cut, pictures = s.plan.tp, s.work.pictures
    if s.plan.tower == "data":
        cut, pictures = 1, np.ceil(s.work.pictures / s.plan.tp)
    rows, first = pictures * s.work.patches, t.tensors[0][1]
    some = pick(np.asarray(pictures) > 0, 1, 0)
    yield s.gemm("tower patches", "tower", "", some, rows, t.hidden, int(np.prod(first)) // t.hidden)
    count = some * t.num_layers
    width, wide, both = t.num_heads * t.head_dim / cut, t.intermediate / cut, 2 if t.gated else 1
    yield s.gemm("tower QKV projection", "tower", "", count, rows, 3 * width, t.hidden)
    yield s.gemm("tower output projection", "tower", "", count, rows, t.hidden, width)
    yield s.gemm("tower feed-forward up", "tower", "", count, rows, both * wide, t.hidden)
    yield s.gemm("tower feed-forward down", "tower", "", count, rows, t.hidden, wide)
    yield s.small("tower norms", "tower", "", 2 * count, rows * t.hidden * 4)
    yield s.small("tower activation", "tower", "", count, rows * (both + 1) * wide)
    attention = encoder_attention(pictures, s.work.patches, t.num_heads / cut, t.head_dim)
    yield replace(attention, what="tower attention", count=some * t.num_layers, part="tower")
    for name, shape, copies in t.projector:
        if len(shape) > 1:
            out, into = shape[-2:]
            tokens = rows / t.patches_per_token
            yield s.gemm(f"tower {name.removesuffix('.weight')}", "tower", "", some * copies, tokens, out, into)


def routed_experts(s: KernelStep, f: Experts, count: int) -> Iterator[Kernel]:
    """Yield the kernels of the routed part of ``count`` layers on the rank that all others wait for."""
    sizes, behind = _sizes(s, f), s.engine.kernels.experts_apart or s.exchange
    if not s.engine.kernels.fused_experts:
        yield from _plain_experts(s, sizes, count, f.bias)
        return
    apart = np.asarray(bool(behind) & expert_ranks(s.plan, s.engine).over_replicas)
    if not np.all(apart):
        yield from _fused_experts(s, sizes, pick(apart, 0, count), "")
    if s.exchange:  # it brings a rank only what is for its experts: a token comes once, with all of its copies here
        missed = np.exp(-sizes.copies / np.maximum(1.0, sizes.tokens))
        sizes = replace(sizes, tokens=np.maximum(1.0, sizes.tokens * (1 - missed)))
    if np.any(apart):
        yield from _fused_experts(s, sizes, pick(apart, count, 0), behind)


def _sizes(s: KernelStep, f: Experts) -> RoutedSizes:
    """Return the sizes of the routed part: across replicas a rank works on the tokens of the whole group that chose its experts."""
    plan, popularity, ranks = s.plan, s.engine.kernels.popularity, expert_ranks(s.plan, s.engine)
    tokens, slots = s.rows * ranks.reach, f.num_experts + plan.redundant
    active = busiest_active(f, tokens, plan.ep, popularity) * slots / f.num_experts
    placing = Placing.of(s.engine, plan, s.balanced)
    load = np.minimum(plan.ep, s.imbalance) if s.imbalance else busiest_rank(f, tokens, plan.ep, placing)
    copies = tokens * f.top_k / plan.ep * load
    elsewhere = np.maximum(0.0, tokens * f.top_k - copies)
    inner, up = f.intermediate / ranks.inside, 2.0 if f.gated else 1.0
    owned, hidden = slots / plan.ep, f.latent or s.model.hidden
    return RoutedSizes(tokens, copies, elsewhere, np.minimum(active, owned), owned, f.num_experts, hidden, inner, up)


def _fused_experts(s: KernelStep, r: RoutedSizes, count: Number, backend: str) -> Iterator[Kernel]:
    """Yield kernels made for experts: their constants are of the whole routed part (``layer_forms.py``)."""
    like = s.gemm("", "experts", "gate", 1, r.copies, r.inner, r.hidden, GATE)
    kind = "fp8-static" if like.static_scales else like.dtype if like.dtype != "fp16" else "bf16"
    stored = like.stored or ("fp8-loaded" if kind == "fp8" and s.computes_scales else kind)
    cut = backend or s.engine.kernels.experts_backend(s.model.architecture, stored)
    whole = cut or s.engine.kernels.spread_backend(stored)  # on ranks
    spread = (np.asarray(s.plan.ep) > 1) & (whole != cut)
    for implementation, where in ((cut, ~spread), (whole, spread)):
        if np.any(where):
            around, products = routed_kernels(r, like.dtype, stored, like.weight_bytes, implementation)
            yield replace(around, count=pick(where, count, 0), part="routing", place="routing")
            yield replace(products, count=pick(where, count, 0), part="experts", place="gate")


def _plain_experts(s: KernelStep, r: RoutedSizes, count: int, biased: bool) -> Iterator[Kernel]:
    """Yield plain products, as one whose matrix is the experts that some token chose, with small kernels around them."""
    each, both, runs = r.copies / np.maximum(1e-9, r.active), r.up * r.inner, s.engine.kernels
    up = s.gemm("experts gate and up", "experts", "gate", count, each, both * r.active, r.hidden, GATE)
    yield replace(up, grouped=True, batch=r.active)
    # Tokens are read and written once; a copy is written, read by the activation, written and read back.
    tokens, sends = r.tokens, s.engine.sends
    passed = r.copies + r.elsewhere
    if sends.experts_keep_tp or sends.experts_whole:  # by all-to-all: a rank sees its own tokens and those for its experts
        tokens, passed = r.tokens / s.plan.ep, r.copies
    moved = 2 * tokens * r.hidden + r.copies * 2 * r.hidden + runs.routing_passes * passed * r.hidden
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
    """Return the mean number of different experts that ``tokens`` tokens choose.
    The first token chooses ``top_k``; each of the others leaves an expert out with 1 - k/E if all are equally popular:
    E - (E - k) (1 - k/E)^(n - 1). With popularities spread as a gamma distribution of shape a, the power becomes
    (1 + (n - 1) k / (E a))^(-a): few experts are popular and many stay cold.

    >>> round(float(chosen_experts(Experts(128, 8, 1), 1, 0.7)), 1), round(float(chosen_experts(Experts(128, 8, 1), 16, np.inf)), 1)
    (8.0, 82.4)
    """
    further, share = np.maximum(0.0, tokens - 1), moe.top_k / moe.num_experts
    cold = (1 + further * share / popularity) ** -popularity if np.isfinite(popularity) else (1 - share) ** further
    return moe.num_experts - (moe.num_experts - moe.top_k) * cold


def busiest_active(moe: Experts, tokens: Number, ep: Number, popularity: float) -> Number:
    """Return the experts with work on the rank that has the most of them: all ranks wait for the weights that it reads.
    Of E/ep experts each has work with q = chosen/E, so their number spreads by sqrt(E/ep q (1 - q)) around its mean, less what
    the fixed total takes; the largest of n normal values lies ``LARGEST`` spreads above it. All of them at the most.
    Where all experts are equally popular, ranks are taken to be so too.

    >>> [round(float(busiest_active(Experts(256, 8, 1), n, 8, 0.7)), 1) for n in (1, 16, 4096)]
    [2.3, 13.9, 32.0]
    """
    owned, share = moe.num_experts / ep, chosen_experts(moe, tokens, popularity) / moe.num_experts
    spread: Number = np.sqrt(owned * share * (1 - share) * (1 - 1 / ep)) * np.isfinite(popularity)
    return np.minimum(owned, owned * share + _largest_load(ep) * spread)


@dataclass(frozen=True, slots=True)
class Placing:
    """How experts came to lie on their ranks."""

    popularity: float = float("inf")  # shape of their popularity (gamma); inf: all equally popular
    redundant: int = 0  # further copies of the most popular ones
    balanced: bool = False  # by measured loads; redundant copies always are

    @classmethod
    def of(cls, engine: Engine, plan: Plan, balanced: bool) -> "Placing":
        return cls(engine.kernels.popularity, plan.redundant_experts, balanced or plan.redundant_experts > 0)


def busiest_rank(moe: Experts, tokens: Number, ep: Number, placing: Placing) -> Number:
    """Return the copies of the busiest of ``ep`` ranks over the mean, when experts lie whole on ranks: all wait for it.
    A rank's load is the sum of E/ep popularities of a gamma distribution of shape a, so its relative spread is sqrt(ep / (E a)),
    beside that of drawing n copies by chance, sqrt(ep / n); less what the fixed total takes, sqrt(1 - 1/ep). A layout by measured
    loads, with copies of popular experts, leaves what ``laid_out`` says instead of the first, and that loads of a step drift from
    those that were measured: each by a share of itself, so that popular experts weigh most.

    >>> moe = Experts(128, 8, 1)
    >>> routers, equal = Placing(0.3), Placing()
    >>> round(float(busiest_rank(moe, 1e9, 8, routers)), 2), round(float(busiest_rank(moe, 1e9, 8, equal)), 2)
    (1.61, 1.0)
    """
    popularity = placing.popularity
    chance: Number = ep / np.maximum(1.0, tokens * moe.top_k) * np.isfinite(popularity)
    placed: Number = 1.0
    uneven: Number = ep / (moe.num_experts * popularity)
    if placing.balanced:
        placed, squares = laid_out(moe.num_experts, ep, popularity, placing.redundant)
        uneven = DRIFT**2 * ep * squares * np.isfinite(popularity)
    return np.minimum(ep, placed + _largest_load(ep) * np.sqrt((uneven + chance) * (1 - 1 / ep)))


def _largest_load(ep: Number) -> Number:
    """Return the spreads that the busiest of so many ranks lies above the mean."""
    return np.interp(np.log2(ep * 1.0), np.arange(len(LARGEST)), LARGEST)


def laid_out(num_experts: int, ep: Number, popularity: float, redundant: int) -> tuple[Number, Number]:
    """Lay experts out by measured loads, the most popular ones with ``redundant`` further copies (EPLB).
    Returned are the load of the busiest rank over the mean, and the sum of the squares of all copies' shares of it. Each copy in
    turn goes to the expert with the most tokens a copy, then copies go to the emptiest rank, largest first: means of a few draws
    of the popularities.

    >>> [round(x, 2) for x in laid_out(256, 72, 0.7, 32)]
    [1.03, 0.01]
    """
    if np.ndim(ep):
        sizes, at = np.unique(ep, return_inverse=True)
        means = np.array([_mean_layout(num_experts, int(n), popularity, redundant) for n in sizes]).reshape(-1, 2)
        return means[:, 0][at].reshape(np.shape(ep)), means[:, 1][at].reshape(np.shape(ep))
    return _mean_layout(num_experts, int(ep), popularity, redundant)


@lru_cache(maxsize=256)
def _mean_layout(num_experts: int, ep: int, popularity: float, redundant: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = rng.gamma(popularity, size=(DRAWS, num_experts)) if np.isfinite(popularity) else np.ones((1, num_experts))
    busiest, squares = np.mean([_layout(loads, ep, redundant) for loads in draws], axis=0)
    return float(busiest), float(squares)


def _layout(loads: Array, ep: int, redundant: int) -> tuple[float, float]:
    copies = np.ones_like(loads)
    for _ in range(redundant):
        copies[np.argmax(loads / copies)] += 1
    each = np.sort(np.repeat(loads / copies, copies.astype(int)))[::-1]
    ranks, room = np.zeros(ep), np.full(ep, -(-len(each) // ep))
    for load in each:
        place = np.argmin(np.where(room > 0, ranks, np.inf))
        ranks[place] += load
        room[place] -= 1
    return float(ranks.max() / ranks.mean()), float(np.sum((each / each.sum()) ** 2))
