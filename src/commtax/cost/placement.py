"""Which GPUs a group spans: rank order decides which axis leaves the fast domain (a host, or an NVLink fabric)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.arrays import pick
from commtax.cost.experts import expert_tp
from commtax.spec import Cluster, Engine, Number, Plan


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ``ranks`` lies on ``domains`` fast domains with ``ranks_per_domain`` each."""

    ranks: Number
    ranks_per_domain: Number
    domains: Number

    @property
    def crosses(self) -> Number:
        return self.domains > 1


def span(axis: str, plan: Plan, cluster: Cluster, engine: Engine) -> Span:
    """The span of one axis' groups when ranks are numbered in ``plan.order``, innermost first.

    A group is a product of (size, stride) runs; of a run with a given stride, domain/stride ranks lie in one domain (at
    least 1, at most all). A group that does not divide the domain straddles its edge somewhere.
    """
    runs = _runs(axis, plan, engine)
    ranks: Number = 1
    inside: Number = 1
    extent: Number = 1
    for size, stride in runs:
        ranks, extent = ranks * size, np.maximum(extent, size * stride)
        inside = inside * np.clip(cluster.domain // np.maximum(1, stride), 1, size)
    straddles = (
        (cluster.domain % np.maximum(1, extent) != 0) & (extent <= cluster.domain) & (plan.num_gpus > cluster.domain) & (ranks > 1)
    )
    inside = pick(straddles, np.ceil(ranks / 2), inside)
    return Span(ranks, inside, np.ceil(ranks / inside))


def _runs(axis: str, plan: Plan, engine: Engine) -> list[tuple[Number, Number]]:
    """The (size, stride) runs of a group.

    ``dp`` is the gradient group and so joins cp. ``ep``: Megatron numbers experts' ranks tp, ep, edp; serving engines
    fill tp first and then go on over dp. ``edp``: the ranks that hold the same experts. ``shard`` and ``replica``: the
    ranks that share one copy under ZeRO 3, and those that hold the same part of different copies (HSDP).
    """
    inner = expert_tp(plan, engine)
    if axis == "ep":
        if engine.experts_keep_tp:
            return [(plan.ep, inner)]
        within = np.minimum(plan.ep, plan.tp)
        return [(within, 1), (plan.ep / within, _stride("dp", plan))]
    if axis == "edp":
        holders = (plan.num_shards if plan.zero == 3 else plan.dp) * plan.cp
        return [(np.maximum(1, holders * plan.tp / (plan.ep * inner)), inner * plan.ep)]
    if axis == "shard":
        return [(plan.cp, _stride("cp", plan)), (plan.num_shards, _stride("dp", plan))]
    if axis == "replica":
        return [(plan.dp / plan.num_shards, _stride("dp", plan) * plan.num_shards)]
    if axis == "dp":
        return [(plan.cp, _stride("cp", plan)), (plan.dp, _stride("dp", plan))]
    return [(getattr(plan, axis), _stride(axis, plan))]


def _stride(axis: str, plan: Plan) -> Number:
    stride: Number = 1
    for inner in plan.order[: plan.order.index(axis)]:
        stride = stride * getattr(plan, inner)
    return stride
