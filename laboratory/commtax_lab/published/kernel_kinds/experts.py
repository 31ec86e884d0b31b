"""Tables of the routed part of a layer of experts: whole on one rank, and between the exchanges of wide expert parallelism.

Their collector draws the experts' loads from a power law, gives no expert more copies than there are tokens, and times the rank
with the most copies. Times are means of a few draws (ai-dynamo/aiconfigurator, collector/helper.py), and so they are here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from commtax.arrays import Array
from commtax.cost.kernel import Kernel
from commtax.cost.layer_forms import RoutedSizes, routed_kernels
from commtax.spec import DTYPE_BYTES, Chip
from commtax_lab import lab_table
from commtax_lab.published.kernel_kinds.kind import KernelKind, Make, Sizes, Words

DRAWS = 8
FEW, MANY = (0.01, 2.0), (1.0, 0.8)  # least and largest load: as drawn, and of many copies 1 and a share of the tokens
HALVINGS = 22  # of a range of half a million copies: to less than one


@dataclass(frozen=True, slots=True)
class BusiestRankLoad:
    """On the busiest rank: copies, experts with a copy at least, and tokens with a copy at least."""

    copies: float
    active: float
    reached: float


@lru_cache(maxsize=65536)
def load(tokens: int, experts: int, top_k: int, ep: int, skew: float) -> BusiestRankLoad:
    """Return loads with ``skew`` for the power law's exponent, equal ones for 0."""
    local = _draw_loads(tokens, experts, top_k, ep, skew) if skew else _equal_loads(tokens, experts, top_k)[:, : experts // ep]
    missed = np.prod(1 - np.minimum(1, local / tokens), axis=1)
    return BusiestRankLoad(float(local.sum(1).mean()), float((local > 0).sum(1).mean()), float(tokens * (1 - missed.mean())))


def _equal_loads(tokens: int, experts: int, top_k: int) -> Array:
    """Count copies by expert when each token's experts are equally spaced and tokens begin one after the other."""
    stride = -(-experts // top_k)
    rounds, rest = divmod(tokens, experts) if tokens >= stride else (0, tokens)
    first = np.arange(rest) if tokens >= stride else np.arange(tokens) * stride / tokens
    chosen = (first[:, None] + stride * np.arange(top_k)).astype(int) % experts
    return rounds * top_k + np.bincount(chosen.ravel(), minlength=experts).astype(float)[None]


def _draw_loads(tokens: int, experts: int, top_k: int, ep: int, skew: float) -> Array:
    """Draw copies by expert of the busiest rank, one line a draw. Expert i is rank i mod ep's, so that levelled counts go round."""
    copies, power = tokens * top_k, 1 - skew
    low, high = (MANY[0], MANY[1] * tokens) if copies > experts else FEW
    uniform = np.random.default_rng([tokens, experts, top_k, ep, round(1000 * skew)]).random((DRAWS, experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    counts = np.minimum(tokens, np.rint(drawn / drawn.sum(1, keepdims=True) * copies))
    ranks = _level_counts(counts, copies, tokens).reshape(DRAWS, experts // ep, ep)
    return ranks[np.arange(DRAWS), :, ranks.sum(1).argmax(1)]


def _level_counts(counts: Array, total: int, most: int) -> Array:
    """Level counts to a sum of ``total`` by raising the smallest, or cutting the largest."""
    short = counts.sum(1, keepdims=True) < total
    low, high = np.zeros((len(counts), 1)), np.full((len(counts), 1), float(most))
    for _ in range(HALVINGS):
        level = (low + high) / 2
        above = _clip_to_level(counts, level, short).sum(1, keepdims=True) >= total
        low, high = np.where(above, low, level), np.where(above, level, high)
    near = _clip_to_level(counts, np.floor(low), short)
    left = total - near.sum(1, keepdims=True)
    place = np.argsort(np.argsort(np.where(short, near, -counts), axis=1, kind="stable"), axis=1)
    return np.asarray(near + ((place < left) & (near < most)))


def _clip_to_level(counts: Array, level: Array, short: Array) -> Array:
    return np.asarray(np.where(short, np.maximum(counts, level), np.minimum(counts, level)))


FACTS = lab_table("published/kernel_kinds/experts.toml")
GATED, PLAIN = 2.0, 1.0  # matrices up
SKEW = "power_law_"
MOST, MOST_EXPERTS = 10**9, 4096  # sizes above are no mixture's


def _skew(distribution: str) -> float:
    """Return the power law's exponent, 0 where loads are equal or made so by rebalancing (``power_law_1.2_eplb``)."""
    exponent = distribution.removeprefix(SKEW)
    return float(exponent) if exponent.replace(".", "", 1).isdigit() else 0.0


def _loads(x: Sizes, distribution: str) -> tuple[Array, Array, Array]:
    """Return copies, busy experts and tokens of the rank that was timed."""
    skew = _skew(distribution)
    columns = (x["num_tokens"], x["num_experts"], x["topk"], x["moe_ep_size"])
    loads = [_load(sizes, skew) for sizes in zip(*(np.clip(c, 1, MOST).astype(int).tolist() for c in columns), strict=True)]
    copies, active, reached = np.array([(one.copies, one.active, one.reached) for one in loads]).T
    return copies, active, reached


def _load(sizes: tuple[int, ...], skew: float) -> BusiestRankLoad:
    tokens, experts, top_k, ep = sizes
    experts = min(experts, MOST_EXPERTS)
    return load(tokens, experts, min(top_k, experts), ep if experts % ep == 0 else 1, skew)


def _sizes(words: Words, x: Sizes, arrived: bool = False) -> RoutedSizes:
    """Return the sizes of rows of one format, implementation and distribution. ``arrived``: only tokens with a copy here."""
    copies, active, reached = _loads(x, words["distribution"])
    tokens, routed, slots = x["num_tokens"], x["num_experts"], x.get("num_slots", x["num_experts"])
    elsewhere = tokens * x["topk"] - copies
    if not arrived and [words["framework"], words["version"]] in FACTS["local"]["versions"]:
        copies, elsewhere, arrived = np.maximum(copies, reached * x["topk"]), 0.0 * copies, True
    tokens = np.maximum(1.0, reached) if arrived else tokens
    inner, owned = x["inter_size"] / x["moe_tp_size"], slots / x["moe_ep_size"]
    return RoutedSizes(
        tokens, copies, np.maximum(0.0, elsewhere), active, owned, routed, x["hidden_size"], inner, _num_up_matrices(words, x)
    )


def _format(words: Words) -> tuple[str, str, float]:
    """Return arithmetic, table of constants and bytes per weight, as far as known for formats without a table."""
    dtype = words["dtype"]
    entry = FACTS["formats"].get(words["moe_dtype"])
    return (entry["dtype"], entry["store"], entry["bytes"]) if entry else (dtype, dtype, DTYPE_BYTES[dtype])


def _num_up_matrices(words: Words, x: Sizes) -> Array:
    """Count an expert's up matrices: tables name their models by sizes only."""
    if [words["framework"], words["version"]] in FACTS["ungated"]["gated"]:
        return np.full(len(x["num_tokens"]), GATED)
    shapes = zip(x["hidden_size"], x["inter_size"], x["num_experts"], strict=True)
    return np.array([PLAIN if list(shape) in FACTS["ungated"]["shapes"] else GATED for shape in shapes])


def _backend(words: Words) -> str:
    """Return the implementation that ran, or "" for the engine's usual one."""
    source = words["kernel_source"]
    if source.startswith(tuple(FACTS["sources"]["own"])):
        return ""
    return next((name for part, name in FACTS["sources"]["names"] if part in source), "")


def _kernels(words: Words, x: Sizes, r: RoutedSizes, backend: str) -> Sequence[Kernel]:
    """Make two kernels of the rows."""
    dtype, store, weight_bytes = _format(words)
    return routed_kernels(_with_warm_weights(r, weight_bytes, x), dtype, store, weight_bytes, backend)


def _with_warm_weights(r: RoutedSizes, weight_bytes: float, x: Sizes) -> RoutedSizes:
    """Keep in the chip's cache what it holds of a layer's weights, since the timed layer runs repeatedly."""
    each = r.active * r.weights * weight_bytes
    share = each / np.maximum(1.0, x["l2_bytes"])
    return replace(r, cached_bytes=each / (1 + share**3))


def timed_sizes(words: Words, x: Sizes) -> RoutedSizes:
    """Return the sizes of a table's rows as they ran: their loads, and what the cache kept."""
    return _with_warm_weights(_sizes(words, x), _format(words)[2], x)


def _exchanged_kernels(backend: str) -> Make:
    """Make the kernels of rows whose tokens come by an exchange."""
    return lambda words, x: _kernels(words, x, _sizes(words, x, arrived=True), backend)


def _cached_weights_hint(x: Sizes, chip: Chip) -> Array:
    """Mark rows whose weights the cache may hold."""
    cached = x["hidden_size"] * x["inter_size"] / x["moe_tp_size"] * x["num_experts"] / x["moe_ep_size"] < chip.l2_bytes
    return np.where(cached, "weights stay in the chip's cache between repetitions", "").astype(object)


_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
_WORDS = ("moe_dtype", "distribution", "kernel_source", "version")
_HASHED = ("framework", "moe_dtype", *_SIZES, "distribution")


def _kind(tail: str, make: Make, more: tuple[str, ...] = ()) -> KernelKind:
    sizes = (*_SIZES, *more)
    return KernelKind(
        tail,
        "experts",
        sizes,
        make,
        lambda x: x["num_tokens"],
        "moe_dtype",
        alike=_WORDS,
        hashed=_HASHED,
        hint=_cached_weights_hint,
    )


KINDS = (
    _kind("moe", lambda words, x: _kernels(words, x, _sizes(words, x), _backend(words))),
    _kind("wideep_moe", _exchanged_kernels("wideep"), ("num_slots",)),
    _kind("wideep_context_moe", _exchanged_kernels("context")),
    _kind("wideep_generation_moe", _exchanged_kernels("generation")),
)
