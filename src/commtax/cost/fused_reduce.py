"""All-reduces that a kernel runs together with the residual add and the norm behind them, where an engine lets it.

One launch less for each, and the sum is not written and read again; in turn the kernel has a price of its own, and its one-shot
form pushes the whole tensor to every other rank. Which tensors it takes are the engine's limits, not what would be cheaper.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.collectives import applies
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.placement import span
from commtax.ledger import Item
from commtax.spec import DTYPE_BYTES, Chip, Condition, Engine, Fabric, Number

FUSED_OP = "all-reduce-norm"  # what the kernel's paths are called
FUSED_FORM = "fused-norm"  # the form of an all-reduce that runs in such a kernel
AUTO = "auto"


def fused_fabric(fabric: Fabric | None, algorithm: str) -> Fabric | None:
    """The kernel's paths: those of one algorithm, whatever its size, or all of them as the kernel's own rule chooses (``AUTO``)."""
    if fabric is None or algorithm == AUTO:
        return fabric
    paths = tuple(replace(p, max_bytes=()) for p in fabric.paths[FUSED_OP] if p.algorithm == algorithm)
    return replace(fabric, paths={FUSED_OP: paths}, network_paths={FUSED_OP: paths}) if paths else None


def most_fused_bytes(engine: Engine, chip: Chip, ranks: Number) -> Number:
    """The largest tensor that an engine gives to the kernel on a chip, by group size; without limits all of them."""
    rows = [entry.split() for entry in engine.sends.fused_reduce_most]
    if not rows:
        return np.inf
    who = chip.key if any(name == chip.key for name, *_ in rows) else chip.family
    limits = [(int(world), float(most)) for name, world, most in rows if name == who]
    if not limits:
        return 0.0
    return np.select([np.asarray(ranks) == world for world, _ in limits], [most for _, most in limits], 0.0)


def most_fused_tokens(t: PricingTerms) -> Number:
    """The most tokens of a step whose sums an engine gives to the kernel, by its limits on bytes and rows; inf: it has none."""
    return np.minimum(most_fused_bytes(t.engine, t.cluster.chip, t.plan.tp) / _row_bytes(t), t.engine.sends.fused_reduce_rows)


def runs_fused(item: Item, t: PricingTerms) -> Condition:
    """Whether an all-reduce of a layer's output runs in the kernel: it has a path for the group, and the engine takes it there."""
    fabric = fused_fabric(t.fabric.fused, t.techniques.fused_reduce)
    if fabric is None:
        return np.asarray(item.count) < 0
    rows = item.nbytes / _row_bytes(t)
    taken: Condition = np.logical_not(span(item.axis, t.plan, t.cluster, t.engine).crosses)
    taken = taken & (np.asarray(item.ranks) > 1) & (np.asarray(rows) <= t.engine.sends.fused_reduce_rows)
    taken = taken & (np.asarray(item.nbytes) <= most_fused_bytes(t.engine, t.cluster.chip, item.ranks))
    able: Condition = False
    for path in fabric.paths[FUSED_OP]:
        able = able | applies(path, item.nbytes, item.ranks)
    return taken & able


def _row_bytes(t: PricingTerms) -> float:
    return t.model.hidden * DTYPE_BYTES[t.plan.activations_dtype]


OUTPUTS = (("attention", "reduced"), ("feed-forward", "output"))  # part and place of sums that a norm follows


def fuse(items: list[Item], kernels: list[Kernel], t: PricingTerms) -> tuple[list[Item], list[Kernel]]:
    """Collectives and kernels of a step, sums and norms run together where the engine does so; each takes one norm's launch."""
    if not t.techniques.fused_reduce:
        return items, kernels
    split = [list(_split(item, t)) for item in items]
    fused = sum((item.count for parts in split for item in parts if item.form == FUSED_FORM), start=0.0)
    norms = sum((k.count for k in kernels if k.part == "norms"), start=0.0)
    left = 1 - np.minimum(1.0, fused / np.maximum(1.0, norms))
    fewer = [replace(k, count=k.count * left) if k.part == "norms" else k for k in kernels]
    return [item for parts in split for item in parts], fewer


def _split(item: Item, t: PricingTerms) -> Iterator[Item]:
    """An item as it is, and what of it runs in the kernel."""
    if not (item.op == "all-reduce" and item.axis == "tp" and (item.part, item.place) in OUTPUTS):
        yield item
        return
    where = runs_fused(item, t)
    yield replace(item, count=pick(where, 0, item.count))
    fused = replace(item, count=pick(where, item.count, 0), form=FUSED_FORM, note="with residual and norm, in one kernel")
    if np.any(where) and not np.all(where):  # the kernel has no time for groups that it does not run for: none of those are counted
        sizes = (item.ranks, item.nbytes)
        ranks, nbytes = (np.broadcast_arrays(size, where)[0][np.broadcast_arrays(where, size)[0]] for size in sizes)
        fused = replace(fused, ranks=pick(where, item.ranks, ranks[0]), nbytes=pick(where, item.nbytes, nbytes[0]))
    yield fused
