"""Which format a checkpoint stores each tensor in: patterns of its own spelling against the names of our inventory."""

import re
from functools import lru_cache

from commtax.cost.inventory import Tensor, inventory
from commtax.patterns import modules
from commtax.spec import Model, Quant

ROOTS = ("model.", "language_model.model.", "model.language_model.", "backbone.")
"""What checkpoints put before ``layers``, where a decoder stands alone or beside a vision tower."""
EXPLICIT = ("head", "embedding")
"""Parts that are quantised only where a format names them: engines build them without."""
EXPERTS = "mlp.experts.down_proj"
"""A module of the routed experts: all of theirs are stored alike."""
Formats = tuple[tuple[Quant, float], ...]
"""Formats with the share of a tensor's layers that each stores."""


@lru_cache(maxsize=4096)
def formats(model: Model, tensor: Tensor, quant: Quant) -> Formats:
    """The formats of a tensor: of each layer the first that holds it. What is left of 1 stays as it is."""
    if not tensor.linear and tensor.part not in EXPLICIT:
        return ()
    candidates = [q for q in quant.formats if tensor.linear or q.only]
    if not any(q.only or q.ignored for q in candidates):
        return tuple((q, 1.0) for q in candidates[:1])
    layers, shares = _layers(model, tensor), dict.fromkeys(candidates, 0.0)
    left, roots = set(layers), _roots(tuple(candidates))
    for q in candidates:
        held = _named(model, tensor, q.only, q, roots) & left if q.only else set(left)
        held -= _named(model, tensor, q.ignored, q, roots)
        left -= held
        shares[q] = len(held) / len(layers)
    return tuple((q, share) for q, share in shares.items() if share)


@lru_cache(maxsize=4096)
def format_of(model: Model, module: str, quant: Quant | None) -> Quant | None:
    """The format of most layers that have a module; None: they keep it as it is.

    A name that the inventory does not have (products that engines fuse) is looked at as one of the first kind of layers.
    """
    if quant is None:
        return None
    names = (f"model.layers.N.{module}.weight", f"{module}.weight")
    tensors = [t for t in inventory(model) if t.name in names] or [Tensor(names[0], (1, 1), "full", 0, "", True)]
    shares: dict[Quant, float] = {}
    weights = [model.layers.count(t.where) if t.where >= 0 else 1 for t in tensors]
    for tensor, weight in zip(tensors, weights, strict=True):
        for q, share in formats(model, tensor, quant):
            shares[q] = shares.get(q, 0.0) + share * weight / sum(weights)
    best = max(shares, key=lambda q: shares[q], default=None)
    return best if best is not None and sum(shares.values()) >= 0.5 else None


def spellings(name: str, spelled: tuple[tuple[str, str], ...], roots: tuple[str, ...] = ROOTS) -> tuple[str, ...]:
    """A tensor's name as checkpoints may have it: the family's words, every usual root, a first expert's number.

    >>> spellings("model.layers.3.mlp.experts.up_proj.weight", (("mlp.", "mixer."),))[-1]
    'backbone.layers.3.mixer.experts.0.up_proj.weight'
    """
    for ours, theirs in spelled:
        name = name.replace(ours, theirs)
    numbered = name.replace(".experts.", ".experts.0.")
    rest = [n.removeprefix("model.") for n in dict.fromkeys((name, numbered))]
    if not name.startswith("model."):
        return (*rest, *(f"language_model.{n}" for n in rest))
    return tuple(root + n for n in rest for root in roots)


@lru_cache(maxsize=256)
def _roots(formats: tuple[Quant, ...]) -> tuple[str, ...]:
    """Roots that any pattern speaks of, and the usual one."""
    said = "\n".join(p for q in formats for p in (*q.ignored, *q.only)).replace("\\", "")
    return tuple(root for root in ROOTS if root == ROOTS[0] or root in said)


def _layers(model: Model, tensor: Tensor) -> list[int]:
    """Layers that have a tensor; one of no layer counts as a single one."""
    return [i for i, kind in enumerate(model.layers) if kind == tensor.where] or [0]


def _named(model: Model, tensor: Tensor, patterns: tuple[str, ...], quant: Quant, roots: tuple[str, ...]) -> set[int]:
    """Layers of a tensor that any of the patterns holds: in all or none of them where it has no number of a layer."""
    layers, counted = _layers(model, tensor), dict(quant.counted)

    def holds(some: tuple[str, ...], layer: int) -> bool:
        name = tensor.name.replace("layers.N", f"layers.{layer}")
        return bool(some) and modules(some).hold(*spellings(name, quant.spelled, roots))

    if holds(tuple(p for p in patterns if p not in counted and not _numbered(p)), layers[0]):
        return set(layers)
    numbered = tuple(p for p in patterns if _numbered(p))
    known = [p for p in patterns if p in counted and not _numbered(p) and holds((p,), layers[0])]
    if tensor.where < 0:
        return set(layers) if known or holds(numbered, layers[0]) else set()
    held = {layer for layer in range(model.num_layers) if holds(numbered, layer)}
    for pattern in sorted(known, key=lambda p: counted[p]):
        held |= _standing(model, pattern, counted[pattern], quant.spelled, held)
    return held & set(layers)


def _numbered(pattern: str) -> bool:
    """Whether a pattern may tell layers apart."""
    if pattern.startswith("re:"):
        return bool(re.search(r"\d|\\d|\[", pattern))
    return bool(re.search(r"(^|\.)[\d\[]", pattern.replace("experts.0", "experts")))


def _standing(model: Model, pattern: str, count: int, spelled: tuple[tuple[str, str], ...], taken: set[int]) -> set[int]:
    """Layers that a pattern stands for whose modules were counted: the first of those that no other pattern has taken."""
    each = model.experts.num_experts if model.experts and "experts.*." in pattern else 1
    free = [layer for layer in _matched(model, pattern, spelled) if layer not in taken]
    return set(free[: -(-count // each)])


@lru_cache(maxsize=1024)
def _matched(model: Model, pattern: str, spelled: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    """Layers that have any module which a pattern matches."""
    holds = modules((pattern,)).hold
    kinds = {t.where for t in inventory(model) if t.where >= 0 and holds(*spellings(t.name.replace(".N.", ".0."), spelled))}
    return tuple(i for i, kind in enumerate(model.layers) if kind in kinds)
