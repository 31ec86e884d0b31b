"""Which plans there are: tensor x pipeline x attention-data x expert parallelism, and how many copies a cluster holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commtax.cost import legality
from commtax.spec import Cluster, Engine, Model, Plan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Space:
    """Plans as columns; ``codes`` is 0 where legal, else 1 + the index in ``legality.RULES``; ``replicas`` fill the cluster."""

    tp: Array
    pp: Array
    dp: Array
    ep: Array
    replicas: Array
    codes: Array

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def group(self) -> Array:
        """GPUs of one copy."""
        return np.asarray(self.tp * self.pp * self.dp)

    def only(self, mask: Array) -> Space:
        return Space(*(np.asarray(column[mask]) for column in (self.tp, self.pp, self.dp, self.ep, self.replicas, self.codes)))


def space(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> Space:
    """Every plan of at most the cluster's GPUs, illegal ones too: they are named later.

    Degrees of tp are those that divide the GPUs or a host, and all up to 8. A mixture's attention may run data-parallel
    (dp > 1) with experts over all of it; replicas of dense models are independent copies.
    """
    gpus = cluster.num_gpus
    degrees = [t for t in range(1, gpus + 1) if gpus % t == 0 or t <= min(8, gpus)]
    rows = []
    for tp in degrees:
        for dp in _copies(model, gpus // tp):
            for pp in range(1, min(model.num_layers, gpus // (tp * dp)) + 1):
                rows += [(tp, pp, dp, ep) for ep in _experts(model, tp, dp)]
    tp, pp, dp, ep = np.array(rows).T
    whole = Plan(tp=tp, pp=pp, dp=dp, ep=ep, order=plan.order, weights_dtype=plan.weights_dtype)
    return Space(tp, pp, dp, ep, replicas(tp * pp * dp, cluster), legality.codes(model, cluster, whole, engine))


def _copies(model: Model, most: int) -> list[int]:
    """Attention replicas inside one copy of a mixture: powers of two."""
    if model.experts is None:
        return [1]
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _experts(model: Model, tp: int, dp: int) -> list[int]:
    if model.experts is None:
        return [1]
    return sorted({1, tp * dp}) if dp == 1 else [tp * dp]


def replicas(group: Array, cluster: Cluster) -> Array:
    """Copies that fit without straddling a fast domain's edge: several a domain, or whole domains each."""
    domains = cluster.num_gpus // cluster.domain
    inside = cluster.domain // np.maximum(1, group) * domains
    across = domains // np.maximum(1, -(-group // cluster.domain))
    return np.asarray(np.where(group <= cluster.domain, inside, across))
