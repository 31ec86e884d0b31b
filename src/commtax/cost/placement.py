"""Which GPUs a group spans: rank order decides which axis leaves the fast domain (a host, or an NVLink fabric)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtax.spec import Cluster, Number, Plan


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ``ranks`` lies on ``domains`` fast domains with ``ranks_per_domain`` each."""

    ranks: Number
    ranks_per_domain: Number
    domains: Number

    @property
    def crosses(self) -> Number:
        return self.domains > 1


def span(axis: str, plan: Plan, cluster: Cluster) -> Span:
    """The span of one axis' groups when ranks are numbered in ``plan.order``, innermost first.

    A group of n ranks whose neighbours lie ``stride`` apart has domain/stride ranks in one domain (at least 1, at most
    n). ``ep`` groups follow tp x cp x dp; the gradient group ``dp-cp`` joins dp and cp.
    """
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp}
    ranks: Number
    stride: Number
    if axis == "ep":
        ranks, stride = plan.ep, 1
        inner = np.minimum(plan.ep, plan.tp * plan.cp)
        if plan.order.index("pp") < plan.order.index("dp"):  # dp ranks of one group lie pp x tp apart
            wide = span("dp", plan, cluster)
            outer = plan.ep / np.maximum(1, inner)
            per_domain = np.where(outer > 1, inner * np.minimum(outer, wide.ranks_per_domain), np.minimum(inner, cluster.domain))
            return _span(ranks, per_domain)
    elif axis == "dp-cp":
        ranks = plan.dp * plan.cp
        stride = _stride("dp", plan, sizes) if np.all(np.asarray(plan.cp) == 1) else _stride("cp", plan, sizes)
    else:
        ranks, stride = sizes[axis], _stride(axis, plan, sizes)
    return _span(ranks, np.clip(cluster.domain // np.maximum(1, stride), 1, ranks))


def _span(ranks: Number, per_domain: Number) -> Span:
    return Span(ranks, per_domain, np.ceil(ranks / per_domain))


def _stride(axis: str, plan: Plan, sizes: dict[str, Number]) -> Number:
    stride: Number = 1
    for inner in plan.order[: plan.order.index(axis)]:
        stride = stride * sizes[inner]
    return stride
