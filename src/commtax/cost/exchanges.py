"""Kernels that carry tokens to experts and back: which copies they send, and what they cost beside bytes.

A token goes once to each rank that has an expert of its own, or once to each of its experts. Copying takes multiprocessors: some that
are set aside, or one for each expert. Every rank tells every expert how many tokens come.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from commtax.cost.forms.modules import copying_slowness, sms_by_expert
from commtax.spec import DTYPE_BYTES, Experts, Fabric, Number, Path, Plan, Quant

AG_RS, DEEPEP_LL, DEEPEP = "allgather_reducescatter", "deepep_low_latency", "deepep"
PER_EXPERT = (DEEPEP_LL, "nixl_ep")
"""Exchanges that send a copy to each expert; others send one to each rank that has some."""
ONCE = (DEEPEP, "hybridep")
"""Exchanges of training that send a token once to each rank, and through the NICs once to each host."""
ONE_DOMAIN = ("flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided")
"""Exchanges that write to the memory of other GPUs: all of them must lie in one NVLink domain."""
FP8_SCALE_GROUP = 128  # one fp32 scale travels with each 128 fp8 values
NVFP4_SCALE_GROUP = 16


def exchange_key(backend: str) -> str:
    """The file of the catalogue that tells of a backend."""
    return backend.replace("_", "-")


def for_experts(fabric: Fabric, experts: int, num_sms: int) -> Fabric:
    """An exchange's paths for layers of so many experts, on chips of so many multiprocessors."""

    def tuned(path: Path) -> Path:
        sms = fabric.copying_sms or sms_by_expert(experts, num_sms)
        slowness = copying_slowness(path.bandwidth_Bps, path.sm_Bps, sms) if path.sm_Bps else 1 / path.bandwidth_Bps
        return replace(path, launch_s=path.launch_s + experts * path.expert_s, bandwidth_Bps=1 / slowness)

    def every(paths: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
        return {op: tuple(map(tuned, some)) for op, some in paths.items()}

    return replace(fabric, paths=every(fabric.paths), network_paths=every(fabric.network_paths))


def dispatched_bytes(plan: Plan, quant: Quant | None, dispatch_dtype: str = "") -> float:
    """Bytes of one activation element on its way to an expert, its share of scales with it.

    As asked; else quantised first where the experts' arithmetic is.
    """
    own = "" if quant is None or quant.weight_only else quant.activations or quant.dtype
    kind = dispatch_dtype or own
    if kind == "fp8":
        return 1 + 4 / FP8_SCALE_GROUP
    if kind == "nvfp4":
        return 0.5 + 1 / NVFP4_SCALE_GROUP
    return DTYPE_BYTES[dispatch_dtype or plan.activations_dtype]


def expected_destinations(moe: Experts, ep: Number) -> Number:
    """Mean number of different ranks that a token's ``top_k`` experts lie on: ep (1 - C(E-E/ep, k)/C(E, k)).

    Routing is uniform, within the groups of experts that a token may choose among (node-limited routing): a rank is missed if none
    of its groups is chosen, or none of its experts in them.

    >>> round(float(expected_destinations(Experts(256, 8, 2048), 8)), 2)
    5.29
    >>> round(float(expected_destinations(Experts(256, 8, 2048, groups=8, top_groups=4), 8)), 2)
    3.63
    """
    if moe.top_groups >= moe.groups:
        return ep * (1 - _missed(moe, moe.num_experts, moe.num_experts / ep))
    whole = np.asarray(moe.groups) % np.minimum(ep, moe.groups) == 0  # else a group lies on parts of ranks: as if there were none
    mine = np.where(whole, np.maximum(1, moe.groups / ep), 1.0)  # groups of a rank; it has a share of one where there are more ranks
    owned = moe.num_experts / np.maximum(ep, moe.groups)  # experts of a rank in each of them
    allowed = moe.num_experts * moe.top_groups / moe.groups
    missed: Number = 0.0
    for chosen in range(moe.top_groups + 1):
        chance = _choices(mine, chosen) * _choices(moe.groups - mine, moe.top_groups - chosen) / _choices(moe.groups, moe.top_groups)
        missed = missed + chance * _missed(moe, allowed, chosen * owned)
    found = ep * (1 - np.where(whole, missed, _missed(moe, moe.num_experts, moe.num_experts / ep)))
    return found if np.ndim(found) else float(found)


def _missed(moe: Experts, experts: Number, owned: Number) -> Number:
    """Chance that none of ``top_k`` different experts is among the ``owned`` ones."""
    missed: Number = 1.0
    for drawn in range(moe.top_k):
        missed = missed * np.maximum(0, experts - owned - drawn) / (experts - drawn)
    return missed


def _choices(of: Number, taken: int) -> Number:
    """Ways to take some of so many."""
    ways: Number = 1.0
    for i in range(taken):
        ways = ways * np.maximum(0, of - i) / (i + 1)
    return ways
