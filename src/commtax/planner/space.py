"""Which plans there are: tensor x pipeline x attention-data x expert parallelism, and how many copies a cluster holds."""

from typing import Any

import numpy as np

from commtax.cost import legality
from commtax.planner.columns import Array, Table
from commtax.records import dataclass
from commtax.spec import Cluster, Engine, Model, Plan


@dataclass(frozen=True, slots=True)
class Space(Table):
    """Plans as columns; ``codes`` is 0 where legal, else 1 + the index in ``legality.RULES``; ``replicas`` fill the cluster."""

    tp: Array
    pp: Array
    dp: Array
    ep: Array
    replicas: Array
    codes: Array
    kv_tokens: Array  # that the cache of a copy holds; 0 before it is judged

    @property
    def group(self) -> Array:
        """GPUs of one copy."""
        return np.asarray(self.tp * self.pp * self.dp)


def space(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> Space:
    """Every plan of at most the cluster's GPUs, illegal ones too: they are named later.

    What is tried depends on the cluster only by what fits on it, so that more GPUs never take a plan away. Degrees of tp
    are those that divide the heads, and all up to 8. A mixture's attention may run data-parallel (dp > 1) with experts
    over all of it; replicas of dense models are independent copies.
    """
    gpus, heads = cluster.num_gpus, model.attention.num_heads
    degrees = [t for t in range(1, min(gpus, max(8, heads)) + 1) if heads % t == 0 or t <= 8]
    rows = []
    for tp in degrees:
        for dp in _copies(model, gpus // tp):
            for pp in range(1, min(model.num_layers, gpus // (tp * dp)) + 1):
                rows += [(tp, pp, dp, ep) for ep in _experts(model, tp, dp)]
    tp, pp, dp, ep = np.array(rows).T
    kinds: dict[str, Any] = {name: getattr(plan, name) for name in ("order", "weights_dtype", "redundant_experts")}
    whole = Plan(tp=tp, pp=pp, dp=dp, ep=ep, **kinds)
    copies, codes = replicas(tp * pp * dp, tp, cluster), legality.codes(model, cluster, whole, engine)
    return Space(tp, pp, dp, ep, copies, codes, np.zeros(len(rows)))


def _copies(model: Model, most: int) -> list[int]:
    """Attention replicas inside one copy of a mixture: powers of two."""
    if model.experts is None:
        return [1]
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _experts(model: Model, tp: int, dp: int) -> list[int]:
    if model.experts is None:
        return [1]
    return sorted({1, tp * dp}) if dp == 1 else [tp * dp]


def replicas(group: Array, tp: Array, cluster: Cluster) -> Array:
    """Copies that fit: several in a fast domain, or each on as many domains as it needs, whole tp groups in each.

    What is left of the last domains, where a cluster does not end with one, holds copies too.
    """
    domains, left = divmod(cluster.num_gpus, cluster.domain)
    inside = cluster.domain // group * domains + left // group
    used = np.where(tp <= cluster.domain, cluster.domain // tp * tp, cluster.domain)  # of a domain, by a copy of several
    each, last = -(-group // used), -(-group // used) - 1
    across = domains // each
    rest = (domains - across * each == last) & (group - last * used <= left)  # the part that a copy has on its last domain
    return np.asarray(np.where(group <= cluster.domain, inside, across + rest))


def beside(copies: Array, tp: int, other: int, cluster: Cluster) -> Array:
    """Workers of ``other`` GPUs that fit beside ``copies`` of ``tp``, all inside fast domains; below 0 where not even those do.

    The best of all ways to spread the copies, so many a domain, which is never fewer in larger domains or more of them.
    """
    domains, left = divmod(cluster.num_gpus, cluster.domain)
    most = np.full(len(copies), -1)
    for each in range(1, cluster.domain // tp + 1):
        full, rest = np.divmod(np.minimum(copies, each * domains), each)
        over = (copies - each * domains).clip(0)  # these go where no whole domain is left
        room = full * ((cluster.domain - each * tp) // other) + (rest > 0) * ((cluster.domain - rest * tp) // other)
        room = room + (domains - full - (rest > 0)) * (cluster.domain // other) + (left - over * tp) // other
        most = np.maximum(most, np.where(over * tp <= left, room, -1))
    return most
