"""The closed forms of the source texts, exactly: plain numbers in, plain numbers out.

Sizes, tokens and layer counts may be 0; ranks, stages, microbatches and bandwidths are positive; whole floats pass as
counts. Anything else is a ``ValueError`` that names the argument and the rule.
"""

import math
from collections.abc import Mapping
from numbers import Real

from commtax.cost import training
from commtax.cost.collectives import ring_factor
from commtax.statement import Refusal

HUGE = 1e60  # beyond anything physical; keeps every product finite


def _number(value: object, name: str, *, least: float = 0.0, above: bool = False, most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Refusal(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise Refusal(f"{name} must be finite, got {value}")
    if abs(number) > HUGE:
        raise Refusal(f"{name} must be at most {HUGE:g}, got {value}")
    if number < least or (above and number == least):
        raise Refusal(f"{name} must be {'greater than' if above else 'at least'} {least:g}, got {value}")
    if number > most:
        raise Refusal(f"{name} must be at most {most:g}, got {value}")
    return number


def _count(value: float, name: str, least: int = 0) -> int:
    number = _number(value, name, least=least)
    if number != int(number):
        raise Refusal(f"{name} must be a whole number, got {value}")
    return int(value)


def _rate(value: object, name: str) -> float:
    return _number(value, name, least=0.0 if isinstance(value, (int, float)) and value <= 0 else 1 / HUGE, above=True)


def _int_if_whole(value: float) -> float:
    return int(value) if value == int(value) else value


def allreduce_payload_bytes(batch_tokens: float, hidden: float, dtype_bytes: float = 2) -> float:
    """Return the bytes of one activation tensor: tokens x hidden x bytes an element."""
    return _int_if_whole(_count(batch_tokens, "batch_tokens") * _count(hidden, "hidden") * _number(dtype_bytes, "dtype_bytes"))


def ring_allreduce_traffic_per_rank(payload_bytes: float, num_ranks: float) -> float:
    """Return the bytes that each rank sends: 2 (N-1)/N x payload, 0 at N = 1.
    A reduce-scatter and an all-gather of (N-1)/N each (Patarasuk and Yuan 2009): bandwidth-optimal.

    >>> ring_allreduce_traffic_per_rank(8192, 2), ring_allreduce_traffic_per_rank(8192, 1)
    (8192.0, 0.0)
    """
    return float(ring_factor("all-reduce", _count(num_ranks, "num_ranks", 1)) * _number(payload_bytes, "payload_bytes"))


def allreduce_time_s(payload_bytes: float, num_ranks: float, bandwidth_Bps: float, latency_s: float) -> float:
    """Traffic over bandwidth, plus 2 (N-1) latencies: hops one after the other.

    >>> round(allreduce_time_s(8192, 2, 1.25e9, 50e-6) * 1e6, 4)
    106.5536
    """
    sent = ring_allreduce_traffic_per_rank(payload_bytes, num_ranks)
    bandwidth, latency = _rate(bandwidth_Bps, "bandwidth_Bps"), _number(latency_s, "latency_s")
    return sent / bandwidth + 2 * (int(num_ranks) - 1) * latency


def tp_comm_time_per_step(
    batch_tokens: float,
    hidden: float,
    num_layers: float,
    num_ranks: float,
    bandwidth_Bps: float,
    latency_s: float,
    dtype_bytes: float = 2,
    allreduces_per_layer: float = 2,
) -> float:
    """Return the seconds of all all-reduces in one step of a tensor-parallel model."""
    payload = allreduce_payload_bytes(batch_tokens, hidden, dtype_bytes)
    layers, often = _count(num_layers, "num_layers"), _count(allreduces_per_layer, "allreduces_per_layer")
    return layers * often * allreduce_time_s(payload, num_ranks, bandwidth_Bps, latency_s)


def comm_fraction(comm_s: float, compute_s: float) -> float:
    """Return communication's share of a step in which nothing overlaps, 0 for an empty step."""
    comm, compute = _number(comm_s, "comm_s"), _number(compute_s, "compute_s")
    return comm / (comm + compute) if comm + compute else 0.0


def crossover_payload_bytes(num_ranks: float, bandwidth_Bps: float, latency_s: float) -> float:
    """Return the payload at which latency and bandwidth cost the same: N x latency x bandwidth."""
    ranks, bandwidth = _count(num_ranks, "num_ranks", 1), _rate(bandwidth_Bps, "bandwidth_Bps")
    return ranks * _number(latency_s, "latency_s") * bandwidth


def breakeven_overlap(slow_s: float, fast_s: float) -> float:
    """Return the share of a slow link's exposed communication to hide so that a step is as fast as on the fast link.

    >>> breakeven_overlap(1.14e-3, 0.29e-3) > 0.74, breakeven_overlap(1.0, 2.0)
    (True, 0.0)
    """
    return 1 - fast_s / slow_s if slow_s > fast_s else 0.0


def breakeven_overlap_fraction(
    slow: Mapping[str, float], fast: Mapping[str, float], batch_tokens: float, hidden: float, num_layers: float, num_ranks: float
) -> float:
    """Return the break-even overlap of two links whose all-reduces are rings of 2 (N-1) hops, ``latency_s`` each."""
    shape = (batch_tokens, hidden, num_layers, num_ranks)
    slow_s, fast_s = (tp_comm_time_per_step(*shape, **_link(link, name)) for link, name in ((slow, "slow"), (fast, "fast")))
    return breakeven_overlap(slow_s, fast_s)


def _link(link: Mapping[str, float], name: str) -> dict[str, float]:
    if not isinstance(link, Mapping) or set(link) != {"bandwidth_Bps", "latency_s"}:
        raise Refusal(f"{name} must be a mapping with exactly bandwidth_Bps and latency_s, got {link!r}")
    return {
        "bandwidth_Bps": _rate(link["bandwidth_Bps"], f"{name}['bandwidth_Bps']"),
        "latency_s": _number(link["latency_s"], f"{name}['latency_s']"),
    }


def ep_alltoall_bytes_per_rank(
    tokens_per_rank: float,
    hidden: float,
    top_k: float,
    num_moe_layers: float,
    num_ranks: float,
    dtype_bytes: float = 2,
    alltoalls_per_layer: float = 2,
) -> float:
    """Return the bytes that each rank sends in one step's dispatches and combines."""
    payload = allreduce_payload_bytes(_count(tokens_per_rank, "tokens_per_rank"), hidden, dtype_bytes) * _count(top_k, "top_k")
    times = _count(num_moe_layers, "num_moe_layers") * _count(alltoalls_per_layer, "alltoalls_per_layer")
    ranks = _count(num_ranks, "num_ranks", 1)
    return float(times * (payload * (ranks - 1) / ranks))  # all but its own share


def bubble_fraction(num_stages: float, num_microbatches: float) -> float:
    """Return the idle share of a fill-drain pipeline with equal stages: (p-1)/(p+m-1) (Huang et al. 2019, GPipe)."""
    stages, microbatches = _count(num_stages, "num_stages", 1), _count(num_microbatches, "num_microbatches", 1)
    return (stages - 1) / (stages + microbatches - 1)


def min_microbatches_for_bubble(num_stages: float, max_bubble: float) -> int:
    """Return the fewest microbatches with a bubble within the budget, free of rounding: naive ceil gives 13 for (4, 0.2).

    >>> min_microbatches_for_bubble(4, 0.2), min_microbatches_for_bubble(8, 0.1)
    (12, 63)
    """
    stages = _count(num_stages, "num_stages", 1)
    budget = _number(max_bubble, "max_bubble", above=stages > 1, most=1.0)
    if stages > 1 and budget < 1e-9:
        raise Refusal(f"max_bubble must be at least 1e-9 with more than one stage, got {max_bubble}")
    if stages == 1:
        return 1
    from fractions import Fraction

    share = Fraction(budget)
    m = max(1, math.ceil((stages - 1) * (1 - share) / share))
    while m > 1 and bubble_fraction(stages, m - 1) <= budget:
        m -= 1
    while bubble_fraction(stages, m) > budget:
        m += 1
    return m


def dp_local_token_threshold(peak_flops_per_s: float, mfu: float, bandwidth_Bps: float) -> float:
    """Return the local tokens from which the gradient all-reduce hides: peak x MFU / bandwidth."""
    achieved = _rate(peak_flops_per_s, "peak_flops_per_s") * _number(mfu, "mfu", above=True, most=1.0)
    return float(training.dp_token_threshold(achieved, _rate(bandwidth_Bps, "bandwidth_Bps")))


def tp_tax(peak_flops_per_s: float, bandwidth_Bps: float, hidden: float, tp: float = 2) -> float:
    """Return forward communication over compute: (tp-1)/3 x peak / (bandwidth x hidden)."""
    peak, bandwidth = _rate(peak_flops_per_s, "peak_flops_per_s"), _rate(bandwidth_Bps, "bandwidth_Bps")
    return float(training.tp_tax(peak, bandwidth, _count(hidden, "hidden", 1), _count(tp, "tp", 1)))


def overlap_calculator(
    hidden: float,
    num_layers: float,
    tp: float,
    pp: float,
    local_tokens: float,
    *,
    peak_flops_per_s: float = 990e12,
    intra_Bps: float = 900e9,
    inter_Bps: float = 50e9,
    gpus_per_node: float = 8,
    mfu: float = 0.5,
    threshold_mfu: float = 0.4,
    num_microbatches: float = 32,
) -> dict[str, float | bool]:
    """Return what the lesson's widget shows, with its flaw: the tax of TP 2 for every degree (see ``commtax claims``)."""
    _count(num_layers, "num_layers")
    degree, tokens = _count(tp, "tp", 1), _count(local_tokens, "local_tokens")
    in_node = degree <= _count(gpus_per_node, "gpus_per_node", 1)
    intra, inter = _rate(intra_Bps, "intra_Bps"), _rate(inter_Bps, "inter_Bps")
    tax = tp_tax(peak_flops_per_s, intra if in_node else inter, hidden) if degree > 1 else 0.0
    threshold = dp_local_token_threshold(peak_flops_per_s, _number(threshold_mfu, "threshold_mfu", above=True, most=1.0), inter)
    idle = bubble_fraction(_count(pp, "pp", 1), num_microbatches)
    hides = tokens >= threshold
    achieved = _number(mfu, "mfu", above=True, most=1.0) / (1 + tax) * (1.0 if hides else 0.7) * (1 - idle)
    return {"tp_tax": tax, "dp_hides": hides, "dp_threshold": threshold, "pp_bubble": idle, "mfu": achieved}


def dp_allreduce_time_s(params: float, bandwidth_Bps: float) -> float:
    """Return the seconds of a gradient all-reduce, 4N / bandwidth: bf16 gradients, ring of 2S."""
    return 4 * _number(params, "params") / _rate(bandwidth_Bps, "bandwidth_Bps")


def backward_time_s(params: float, local_tokens: float, peak_flops_per_s: float, mfu: float) -> float:
    """Return the seconds of a backward pass: 4N x tokens / (peak x MFU)."""
    achieved = _rate(peak_flops_per_s, "peak_flops_per_s") * _number(mfu, "mfu", above=True, most=1.0)
    return 4 * _number(params, "params") * _count(local_tokens, "local_tokens") / achieved


def decode_step_floor_s(weight_bytes: float, memory_Bps: float) -> float:
    """Return the least seconds of a decode step, which reads every weight once."""
    return _number(weight_bytes, "weight_bytes") / _rate(memory_Bps, "memory_Bps")


def ridge_point(peak_flops_per_s: float, memory_Bps: float) -> float:
    """Return the FLOPs a byte at which compute and memory take as long."""
    return _rate(peak_flops_per_s, "peak_flops_per_s") / _rate(memory_Bps, "memory_Bps")


def kv_bytes_per_token(num_layers: float, num_kv_heads: float, head_dim: float, dtype_bytes: float) -> float:
    """Return the bytes of keys and values of one token in all layers."""
    heads = _count(num_kv_heads, "num_kv_heads") * _count(head_dim, "head_dim")
    return _int_if_whole(2 * _count(num_layers, "num_layers") * heads * _number(dtype_bytes, "dtype_bytes"))


def kv_transfer_time_s(nbytes: float, bandwidth_Bps: float) -> float:
    """Return the seconds to move a KV cache over a link."""
    return _number(nbytes, "nbytes") / _rate(bandwidth_Bps, "bandwidth_Bps")


def tensor_parallel_allreduce_cost(
    hidden_size: float,
    sequence_length: float,
    batch_size: float,
    num_gpus: float,
    num_layers: float,
    bytes_per_element: float = 2,
    bandwidth_gb_per_sec: float = 300.0,
    allreduces_per_layer: float = 2,
) -> dict[str, float]:
    """Return message size, ring volume a GPU, volume and milliseconds of all layers, without latency. GB = 1e9."""
    tokens = _count(sequence_length, "sequence_length") * _count(batch_size, "batch_size")
    size = tokens * _count(hidden_size, "hidden_size") * _number(bytes_per_element, "bytes_per_element")
    volume = float(ring_factor("all-reduce", _count(num_gpus, "num_gpus", 1)) * size)
    total = volume * _count(num_layers, "num_layers") * _count(allreduces_per_layer, "allreduces_per_layer")
    seconds = total / (_rate(bandwidth_gb_per_sec, "bandwidth_gb_per_sec") * 1e9)
    return {
        "message_size_bytes": int(size),
        "comm_volume_per_allreduce_bytes": round(volume, 4),
        "total_comm_volume_bytes": round(total, 4),
        "total_comm_time_ms": round(seconds * 1e3, 4),
    }
