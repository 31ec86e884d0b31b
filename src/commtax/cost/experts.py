"""How an engine lays a mixture of experts over ranks, and what a token costs on its way to one."""

import numpy as np

from commtax.arrays import pick
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan, Quant

FP8_SCALE_GROUP = 128  # one fp32 scale travels with each 128 fp8 values
NVFP4_SCALE_GROUP = 16
LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 … 256 standard normal values (Harter 1961)."""


def over_replicas(plan: Plan, engine: Engine) -> Number:
    """Whether experts are shared among replicas: by expert parallelism wider than tp, and in vLLM whenever dp > 1.

    Without expert parallelism vLLM cuts every expert over tp x dp ranks; other engines then run independent replicas.
    """
    return (np.asarray(plan.dp) > 1) & ((np.asarray(plan.ep) > plan.tp) | engine.sends.ep_is_tp_dp)


def expert_tp(plan: Plan, engine: Engine) -> Number:
    """Ranks that share one expert. Megatron keeps tp inside an expert; serving engines divide what ep leaves."""
    if engine.sends.experts_keep_tp:
        return plan.tp
    world = pick(over_replicas(plan, engine), plan.tp * plan.dp, plan.tp)
    return np.maximum(1, world // np.maximum(1, plan.ep))


def holders(plan: Plan, engine: Engine) -> tuple[Number, Number]:
    """Data-parallel ranks that share one copy's state, (of dense parameters, of one expert's): all, or an HSDP group."""
    ranks = (plan.num_shards if plan.zero == 3 else plan.dp) * plan.cp
    return ranks, np.maximum(1, ranks * plan.tp / (plan.ep * expert_tp(plan, engine)))


def experts_reach(plan: Plan, engine: Engine) -> Number:
    """Ranks' worth of tokens that one group of experts works on: of the ep ranks in training, of all replicas in serving."""
    if engine.sends.experts_keep_tp:
        return plan.ep
    return pick(over_replicas(plan, engine), plan.dp, 1)


def tokens_split(model: Model, plan: Plan, engine: Engine) -> Number:
    """Whether MoE layers work on tokens split over tp (vLLM's sequence-parallel MoE): shared experts are then whole."""
    wide = (np.asarray(plan.ep) > plan.tp) & (np.asarray(plan.tp) > 1)
    return wide & model.moe_sequence_parallel & engine.sends.ep_is_tp_dp


def dispatched_bytes(plan: Plan, quant: Quant | None) -> float:
    """Bytes of one activation element on its way to an expert: quantised first where the experts' arithmetic is."""
    if quant and quant.dtype == "fp8":
        return 1 + 4 / FP8_SCALE_GROUP
    if quant and quant.dtype == "nvfp4":
        return 0.5 + 1 / NVFP4_SCALE_GROUP
    return DTYPE_BYTES[plan.activations_dtype]


def chosen_experts(moe: Experts, tokens: Number, popularity: float) -> Number:
    """Mean number of different experts that ``tokens`` tokens choose.

    The first token chooses ``top_k``; each of the others leaves an expert out with 1 - k/E if all are equally popular:
    E - (E - k) (1 - k/E)^(n - 1). With popularities spread as a gamma distribution of shape a, the power becomes
    (1 + (n - 1) k / (E a))^(-a): few experts are popular and many stay cold.

    >>> round(float(chosen_experts(Experts(128, 8, 1), 1, 0.7)), 1), round(float(chosen_experts(Experts(128, 8, 1), 16, np.inf)), 1)
    (8.0, 82.4)
    """
    further = np.maximum(0.0, tokens - 1)
    share = moe.top_k / moe.num_experts
    cold = (1 + further * share / popularity) ** -popularity if np.isfinite(popularity) else (1 - share) ** further
    return moe.num_experts - (moe.num_experts - moe.top_k) * cold


def busiest_rank(moe: Experts, ep: Number, popularity: float) -> Number:
    """Tokens of the busiest of ``ep`` ranks over the mean, when experts lie whole on ranks: all wait for it.

    A rank's load is the sum of E/ep popularities of a gamma distribution of shape a, so its relative spread is
    sqrt(ep / (E a)), less what the fixed total takes, sqrt(1 - 1/ep); the largest of n normal values lies ``LARGEST``
    spreads above the mean.

    >>> round(float(busiest_rank(Experts(128, 8, 1), 8, 0.3)), 2), float(busiest_rank(Experts(128, 8, 1), 8, np.inf))
    (1.61, 1.0)
    """
    spread = np.sqrt(ep / (moe.num_experts * popularity)) * np.sqrt(1 - 1 / ep)
    above = np.interp(np.log2(ep * 1.0), np.arange(len(LARGEST)), LARGEST)
    return np.minimum(ep, 1 + above * spread)


def expected_destinations(moe: Experts, ep: Number) -> Number:
    """Mean number of different ranks that a token's ``top_k`` experts lie on, routing uniform: ep (1 - C(E-E/ep, k)/C(E, k)).

    >>> round(float(expected_destinations(Experts(256, 8, 2048), 8)), 2)
    5.29
    """
    others = moe.num_experts - moe.num_experts / ep
    missed: Number = 1.0
    for drawn in range(moe.top_k):
        missed = missed * np.maximum(0, others - drawn) / (moe.num_experts - drawn)
    return ep * (1 - missed)
