"""Where ranks lie: which share an expert, and which GPUs a group spans.

Rank order decides which axis leaves the fast domain (a host, or an NVLink fabric).
Change here how an engine numbers its ranks, or which group spans which domain.
"""

import math
from functools import reduce
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from commtax.arrays import pick, spread, unique_with_places
from commtax.records import dataclass, with_fields
from commtax.spec import COUNTED, Cluster, Condition, Engine, Model, Number, Plan

_sizes = attrgetter(*COUNTED)


class ExpertRanks(NamedTuple):
    """How ranks share experts."""

    over_replicas: Condition  # whether replicas share them: by expert parallelism wider than tp, and in vLLM whenever dp > 1
    inside: Number  # ranks that share one expert
    reach: Number  # ranks' worth of tokens that one group of experts works on: of ep ranks in training, of replicas in serving


def expert_ranks(plan: Plan, engine: Engine) -> ExpertRanks:
    """Return how ranks share experts: Megatron keeps tp inside an expert, or none, serving engines divide what ep leaves, and vLLM
    cuts every expert over tp x dp ranks without expert parallelism."""
    over = (np.asarray(plan.dp) > 1) & ((np.asarray(plan.ep) > plan.tp) | engine.sends.ep_is_tp_dp)
    if engine.sends.experts_whole:
        return ExpertRanks(over, plan.tp * 0 + 1, pick(np.asarray(plan.ep) > 1, plan.ep / plan.tp, 1))
    if engine.sends.experts_keep_tp:
        return ExpertRanks(over, plan.tp, plan.ep)
    split = plan.cp if engine.contexts.prompt_experts == "cut" else 1  # ranks that split prompts share experts as well
    world = pick(over, plan.tp * plan.dp, plan.tp) * split
    return ExpertRanks(over, np.maximum(1, world // np.maximum(1, plan.ep)), pick(over, plan.dp, 1) * split)


def holders(plan: Plan, engine: Engine) -> tuple[Number, Number]:
    """Return the data-parallel ranks that share one copy's state (of dense parameters, of one expert's): all, or an HSDP group."""
    ranks = (plan.num_shards if plan.zero == 3 else plan.dp) * plan.cp
    return ranks, np.maximum(1, ranks * plan.tp / (plan.ep * expert_ranks(plan, engine).inside))


def tokens_split(model: Model, plan: Plan, engine: Engine) -> Condition:
    """Check whether MoE layers work on tokens split over tp (vLLM's sequence-parallel MoE): shared experts are then whole."""
    return ((np.asarray(plan.ep) > plan.tp) & (np.asarray(plan.tp) > 1)) & model.moe_sequence_parallel & engine.sends.ep_is_tp_dp


def padded_vocab(model: Model, plan: Plan, engine: Engine) -> Number:
    """Return the rows of the embedding table as the engine lays it out (Megatron's multiple grows with tp)."""
    multiple = engine.sends.vocab_multiple * (plan.tp if engine.sends.experts_keep_tp else 1)
    return np.ceil(model.vocab / multiple) * multiple


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ``ranks`` on ``domains`` fast domains with ``ranks_per_domain`` each, maybe those of a bridged pair, whose job
    takes ``used`` GPUs of each domain (0: all)."""

    ranks: Number
    ranks_per_domain: Number
    domains: Number
    paired: Condition = False
    used: Number = 0

    @property
    def crosses(self) -> Condition:
        return self.domains > 1


def span(axis: str, plan: Plan, cluster: Cluster, engine: Engine) -> Span:
    """Return the span of one axis' groups, in ranks and domains, when ranks are numbered in ``plan.order``, innermost first.
    A group is a product of (size, stride) runs; of a run clip(used // stride, 1, size) ranks lie in one domain, where used are
    the GPUs that the job takes of it. An axis' stride is the product of the sizes inside it in the engine's own order (``order``
    in ``catalog/engines``). A group that does not divide what the job uses of a domain straddles its edge somewhere.
    Bridges join the first GPU of a host with the second, and so on: two ranks of neighbouring numbers that start a job, or
    follow on such pairs, are a pair."""
    if few := unique_with_places(*_sizes(plan)):
        spans = span(axis, with_fields(plan, dict(zip(COUNTED, few[0], strict=True))), cluster, engine)
        return Span(*(spread(getattr(spans, name), few[1]) for name in ("ranks", "ranks_per_domain", "domains", "paired", "used")))
    used = used_of_domain(plan, cluster, engine)
    ranks: Number = 1
    inside: Number = 1
    adjacent: Number = 1
    for size, stride in _runs(axis, plan, engine):
        here = np.clip(used // np.maximum(1, stride), 1, size)
        ranks, inside = ranks * size, inside * here
        adjacent = adjacent * pick(stride == 1, here, 1)
    extent = _extent(axis, plan, engine)
    straddles = (used % np.maximum(1, extent) != 0) & (extent <= used) & (plan.num_gpus > cluster.domain) & (ranks > 1)
    inside = pick(straddles, np.ceil(ranks / 2), inside)
    paired = cluster.bridge is not None and (inside == 2) & (adjacent == 2) & np.logical_not(straddles)
    domains = np.ceil(ranks / inside)
    return Span(ranks, np.ceil(ranks / domains), domains, paired, used)  # of unequal parts the mean: the least has fewer NICs


def used_of_domain(plan: Plan, cluster: Cluster, engine: Engine) -> Number:
    """Return the GPUs that a job takes of each fast domain, so that its groups end where domains end: 64 of 72 for groups of 16,
    equal parts of a group that needs several (4 of 5 for one of 8), or all where whole domains are too few for that."""
    domain = cluster.domain
    widest: Number = 1
    room: Number = domain
    for axis in (*reversed(plan.order), "ep"):
        extent = _extent(axis, plan, engine)
        fits = np.asarray(extent) <= domain
        widest = np.maximum(widest, pick(fits, extent, 1))
        if axis != "ep":  # of groups that fit into no domain the innermost decides
            room = pick(fits, room, np.ceil(extent / np.ceil(extent / domain)))
    least = np.ceil(room / widest) * widest  # equal parts to the next whole group: 6 and 4 for 5 pairs, not 4, 4 and 2
    used = pick(least <= domain, least, np.maximum(room // widest, 1) * widest)
    return used if cluster.num_gpus % domain else pick(np.ceil(plan.num_gpus / used) <= cluster.num_gpus // domain, used, domain)


def _extent(axis: str, plan: Plan, engine: Engine) -> Number:
    """Return the ranks from the first to behind the last of a group."""
    one: Number = 1
    return reduce(np.maximum, (size * stride for size, stride in _runs(axis, plan, engine)), one)


def _runs(axis: str, plan: Plan, engine: Engine) -> list[tuple[Number, Number]]:
    """Return the (size, stride) runs of a group, where ``dp`` (gradients) joins cp, ``ep`` fills tp first and then dp (Megatron:
    tp, ep, edp), ``edp`` holds the same experts, ``shard`` one copy under ZeRO 3, and ``replica`` the same part of several
    (HSDP)."""
    if axis == "ep" and (engine.sends.experts_keep_tp or engine.sends.experts_whole):
        return [(plan.ep, expert_ranks(plan, engine).inside)]
    if axis == "ep":
        within = np.minimum(plan.ep, plan.tp)
        return [(within, 1), (plan.ep / within, _stride("dp", plan))]
    if axis == "edp":
        return [(holders(plan, engine)[1], expert_ranks(plan, engine).inside * plan.ep)]
    if axis == "replica":
        return [(plan.dp / plan.num_shards, _stride("dp", plan) * plan.num_shards)]
    if axis in ("dp", "shard"):
        return [(plan.cp, _stride("cp", plan)), (plan.dp if axis == "dp" else plan.num_shards, _stride("dp", plan))]
    if axis == "dcp":  # neighbours among the tp ranks
        return [(plan.dcp, _stride("tp", plan))]
    return [(getattr(plan, axis), _stride(axis, plan))]


def _stride(axis: str, plan: Plan) -> Number:
    product: Number = math.prod(getattr(plan, inner) for inner in plan.order[: plan.order.index(axis)])
    return product
