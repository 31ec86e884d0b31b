"""Whether a collective's technique can be used here: the engine has it, not on already, and chips and model have a use for it."""

import numpy as np

from commtax import catalog
from commtax.catalog.techniques import technique
from commtax.question import Question
from commtax.spec import Cluster
from commtax.statement import Refusal

FUSED = "fused-allreduce"
ALGORITHMS = ("auto", "one-shot", "two-shot")


def check_collectives(q: Question) -> None:
    """Refuse a fused all-reduce, or a library of kernels, that would change nothing here or is not to be had."""
    if q.techniques.fused_reduce:
        _check_fused(q)
    if q.what_if.library:
        _check_kernels(q)


def is_on_already(q: Question, key: str) -> bool:
    """Whether an engine uses a technique by itself on these chips or for this model, so that its times hold it."""
    for entry in q.engine.sends.on_by_default:
        name, *where = entry.split()
        if name == key and (not where or q.cluster.chip.family in where or q.model.architecture in where):
            return True
    return False


def _check_fused(q: Question) -> None:
    chip, engine, asked = q.cluster.chip, q.engine, q.techniques.fused_reduce
    if asked not in ALGORITHMS:
        raise Refusal(f"{FUSED}={asked}: one of {', '.join(ALGORITHMS)}", "technique", ALGORITHMS)
    if q.trains:
        raise Refusal(f"{FUSED}: belongs to serving, and training has none", "technique")
    if catalog.fabric(engine.library, q.cluster).fused is None:
        raise Refusal(f"{FUSED}: no time of such a kernel was measured on {chip.key} over {q.cluster.intra.key}", "technique")
    if is_on_already(q, FUSED):
        raise Refusal(
            f"already on: {engine.name} {engine.version} does this by default, and its measured times include it", "technique"
        )
    if engine.key not in technique(FUSED).flags:
        raise Refusal(f"{FUSED}: {engine.name} has no such kernel", "technique")
    if np.all(np.asarray(q.plan.tp) == 1):
        raise Refusal(f"{FUSED}: with tp 1 there is nothing to reduce", "technique")
    if q.plan.sequence_parallel:
        raise Refusal(f"{FUSED}: sequence parallelism scatters and gathers; nothing is all-reduced", "technique")
    if q.model.hyper or q.model.lookback or not q.model.residual_stream:
        raise Refusal(f"{FUSED}: {q.model.key} has no residual and norm right after its all-reduces", "technique")


def no_kernels(name: str, place: Cluster) -> Refusal:
    """That a library of kernels of one kind has none for a cluster's chips."""
    one = catalog.library(name)
    families = " and ".join(dict.fromkeys(family for row in one.path for family in row.families))
    return Refusal(f"{one.key}: has kernels only for {families} chips, none for {place.chip.key} over {place.intra.key}", "library")


def _check_kernels(q: Question) -> None:
    """A library that is kernels of one kind has some for these chips, and adds to what the engine runs by itself."""
    name = q.what_if.library
    one = catalog.library(name)
    if not one.alone:
        return
    if not catalog.fabric(name, q.cluster).kernels:
        raise no_kernels(name, q.cluster)
    if is_on_already(q, one.key):
        raise Refusal(
            f"already on: {q.engine.name} {q.engine.version} does this by default, and its measured times include it", "library"
        )
