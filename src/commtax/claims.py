"""Claims of well-known teaching texts on the communication tax, recomputed: what they say, what arithmetic says, why.

Every number in ``arithmetic`` is computed when it is asked for, from ``napkin`` and the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commtax import catalog, napkin
from commtax.cost.tensors import num_params
from commtax.units import format_bytes, format_count, format_rate, format_seconds

LAB = "Lab 10-03, The TP communication bill"
STUDY = "Week 13, Tensor parallelism (TP=1 against TP=2)"
LESSON = "Lesson, The communication tax"
EXERCISE = "Exercise, Tensor parallelism all-reduce cost"

H100_BF16 = 990e12  # the lesson's round peak
A100_BF16 = 312e12
NVLINK = {"bandwidth_Bps": 300e9, "latency_s": 3e-6}  # the lab's link
LLAMA_8B = {"batch_tokens": 1, "hidden": 4096, "num_layers": 32}


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: ``ratio`` is the document's number over the arithmetic's, where both are numbers."""

    key: str
    document: str
    says: str
    arithmetic: str
    why: str
    ratio: float | None = None


def _tp_tax_degree() -> Claim:
    lesson = float(napkin.overlap_calculator(8192, 80, 8, 1, 8192)["tp_tax"])
    ours = napkin.tp_tax(H100_BF16, 900e9, 8192, tp=8)
    return Claim(
        "tp-tax-degree",
        LESSON,
        f"the TP tax in a node is {lesson:.1%} for hidden 8192, whatever the degree",
        f"TP 2 {napkin.tp_tax(H100_BF16, 900e9, 8192):.1%}, TP 8 {ours:.0%}; over a whole training step {ours * 2 / 3:.0%}",
        "each rank computes 1/T of the layer but reduces the whole activation, so the tax grows with T-1; "
        "backward has twice the FLOPs and the same all-reduces",
        lesson / ours,
    )


def hierarchical_tax(hidden: int, hosts: int, gpus: int, flops_per_s: float, intra_Bps: float, nic_Bps: float) -> float:
    """Forward TP tax across hosts with one NIC a GPU: reduce-scatter inside, all-reduce by rail, all-gather inside."""
    nbytes = napkin.allreduce_payload_bytes(1, hidden)
    inside = napkin.ring_allreduce_traffic_per_rank(nbytes, gpus) / intra_Bps
    across = napkin.ring_allreduce_traffic_per_rank(nbytes / gpus, hosts) / nic_Bps
    compute = 24 * hidden**2 / (hosts * gpus) / flops_per_s
    return 2 * (inside + across) / compute


def _tp_tax_across() -> Claim:
    lesson = float(napkin.overlap_calculator(8192, 80, 16, 1, 8192)["tp_tax"])
    rails = hierarchical_tax(8192, 2, 8, H100_BF16, 450e9, 50e9)
    lone = napkin.tp_tax(H100_BF16, 50e9, 8192, tp=8)
    return Claim(
        "tp-tax-across-hosts",
        LESSON,
        f"TP across nodes costs {lesson:.0%} of compute, 18x the in-node tax",
        f"TP 16 on 2x8 with one NIC a GPU {rails:.1f}x compute; TP 8 with one GPU a host {lone:.1f}x",
        "the degree is missing again, one NIC is charged with the whole payload although eight share it, and 18x "
        "divides NVLink's two directions by one direction of one NIC",
        lesson / rails,
    )


def _nvlink_directions() -> Claim:
    link = catalog.link("nvlink4")
    return Claim(
        "nvlink-900",
        LESSON,
        "NVLink moves 900 GB/s in a node",
        f"{format_rate(link.bandwidth_Bps)} in one direction; NCCL's own constant is 18 links x 20.6 = {18 * 20.6:.0f} GB/s",
        "900 GB/s counts both directions; a ring sends in one",
        900e9 / link.bandwidth_Bps,
    )


def _two_s() -> Claim:
    payload = napkin.allreduce_payload_bytes(1, 4096)
    lesson = 2 * payload / 900e9
    real = napkin.allreduce_time_s(payload, 2, **NVLINK)
    traffic = napkin.ring_allreduce_traffic_per_rank(1, 2)
    return Claim(
        "two-s",
        LESSON,
        f"an all-reduce moves 2S whatever the number of GPUs: {format_seconds(lesson)} for an 8 KiB decode payload",
        f"2(N-1)/N: {traffic:g}S at N=2; with two 3 µs hops {format_seconds(real)}, {real / lesson:.0f} times as long",
        "2S is the limit for many ranks, and a decode all-reduce is latency, not bytes",
        lesson / real,
    )


def _study_microseconds() -> Claim:
    doubled, payload = 160 * 32 * 1024, napkin.allreduce_payload_bytes(1, 8192)
    said = doubled / 60e9
    model = catalog.model("llama-3.1-70b")
    real = napkin.tp_comm_time_per_step(1, 8192, model.num_layers, 2, 450e9, 3e-6)
    return Claim(
        "study-85-us",
        STUDY,
        f"70B at TP 2 spends 85 µs a step on 160 all-reduces of 32 KB, and 8B 17 µs ({format_seconds(said)} at 60 GB/s)",
        f"the payload is {format_bytes(payload)}, twice in each of {model.num_layers} layers: "
        f"{format_seconds(real)} on a ring with 3 µs hops",
        "the payload was doubled, 600 GB/s became 60, and the hops were left out; 'effective 60 GB/s' is then circular",
        85e-6 / real,
    )


def _study_weights() -> Claim:
    whole = napkin.decode_step_floor_s(140e9, catalog.chip("h100-sxm").memory_Bps)
    return Claim(
        "study-28-ms",
        STUDY,
        "reading 140 GB of weights at 3.35 TB/s takes about 28 ms",
        f"{format_seconds(whole)} at TP 1, {format_seconds(whole / 2)} at TP 2",
        "140 / 3.35 is 41.8; no reading of the division gives 28",
        28e-3 / whole,
    )


def _study_ttft() -> Claim:
    rows = ((923.94, 7.22), (656.14, 5.13), (2089.66, 16.35), (1270.29, 9.93))
    ratios = [ttft / itl for ttft, itl in rows]
    tokens = 448.7 / 7.0
    return Claim(
        "study-ttft",
        STUDY,
        "serving TTFT is 924, 656, 2,090 and 1,270 ms on four configurations",
        f"TTFT / ITL is {', '.join(f'{r:.1f}' for r in ratios)}; batch 1 latency over time per token is {tokens:.0f} tokens",
        "128 x ITL in every row is the time of a whole request, not of its first token; and the runs made 64 tokens, not 128",
    )


def _study_tp2() -> Claim:
    chip, model = catalog.chip("h100-sxm"), catalog.model("llama-3.1-8b")
    floor = napkin.decode_step_floor_s(2 * num_params(model), chip.memory_Bps)
    comm = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK)
    expected = 7.06e-3 - floor / 2 + comm
    return Claim(
        "study-tp2-no-gain",
        STUDY,
        "8B takes 7.06 ms a token at TP 1 and 7.08 ms at TP 2: a second GPU unlocks no memory bandwidth",
        f"each GPU reads half: {format_seconds(floor / 2)} saved, {format_seconds(comm)} of all-reduce added, about "
        f"{format_seconds(expected)}; its own serving rows say 7.22 -> 5.13 ms",
        "rows equal within 2 % at every batch mean that TP was most likely not applied in the offline runs",
        7.08e-3 / expected,
    )


def _four_way_ring() -> Claim:
    two, four = (napkin.ring_allreduce_traffic_per_rank(1, n) for n in (2, 4))
    return Claim(
        "study-four-way-ring",
        STUDY,
        "a 4-way ring doubles the all-reduce traffic of a 2-way ring",
        f"per rank {two:.1f} -> {four:.1f} payloads ({four / two:.1f}x); hops 2 -> 6 (3x)",
        "2(N-1)/N saturates at 2; it is the number of hops that grows with N",
        2 / (four / two),
    )


def _lab_tp8() -> Claim:
    comm = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=8, **NVLINK)
    return Claim(
        "lab-in-node-noise",
        LAB,
        "in a node, TP communication is noise: under 10 % of an 8 ms step",
        f"TP 2 {napkin.comm_fraction(napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK), 8e-3):.1%}; "
        f"TP 8 on the same ring {napkin.comm_fraction(comm, 8e-3):.0%}, "
        f"{napkin.comm_fraction(comm, 1e-3):.0%} once compute is split by 8",
        "14 hops instead of 2; one-shot kernels over NVSwitch, near-constant in N, are what keeps TP 8 cheap",
    )


def _lab_infiniband() -> Claim:
    parts = [
        napkin.comm_fraction(napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, bandwidth_Bps=50e9, latency_s=us * 1e-6), 8e-3)
        for us in (2, 5)
    ]
    return Claim(
        "lab-never-across",
        LAB,
        "tensor parallelism within a node, never across",
        f"over InfiniBand of 400 Gb/s with 2 to 5 µs it is {parts[0]:.1%} to {parts[1]:.1%} of the same step: "
        "it passes the 10 % test",
        "the test proves 'never' for 10 GbE only (TP 2, one all-reduce at a time)",
    )


def _lab_ethernet_batch() -> Claim:
    wire = napkin.tp_comm_time_per_step(1, 4096, 32, 2, 1.25e9, 0.0)
    compute = 2 * 8e9 / A100_BF16
    return Claim(
        "lab-ethernet-batch",
        LAB,
        "TP over Ethernet becomes tolerable at a large batch",
        f"each further token adds {format_seconds(wire)} of wire and {format_seconds(compute)} of compute: "
        f"the fraction tends to {napkin.comm_fraction(wire, compute):.0%}",
        "batch hides latency, but the bytes grow with it: the limit of the fraction is wire against FLOPs",
    )


def _exercise_latency() -> Claim:
    exercise = napkin.tensor_parallel_allreduce_cost(4096, 1, 1, 2, 32)["total_comm_volume_bytes"] / 300e9
    lab = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK)
    return Claim(
        "exercise-no-latency",
        EXERCISE,
        f"8B decode at TP 2 communicates for {format_seconds(exercise)} a step",
        f"{format_seconds(lab)} with two 3 µs hops for each of {format_count(64)} all-reduces: {lab / exercise:.0f} times as long",
        "the formula has no latency term; a decode payload of 8 KiB is all latency",
        exercise / lab,
    )


def _bubble_equality() -> Claim:
    equal = napkin.min_microbatches_for_bubble(8, 0.1)
    return Claim(
        "bubble-63",
        LAB.replace("10-03, The TP communication bill", "10-04, The pipeline bubble"),
        "8 stages stay under a 10 % bubble from 63 microbatches on",
        f"{equal} give exactly {napkin.bubble_fraction(8, equal):.1%} (7/70); strictly under needs {equal + 1}",
        "within the budget, not under it: a floating-point ceil can even answer one too many",
    )


def _study_tools() -> Claim:
    a100, h100 = catalog.link("nvlink3"), catalog.link("nvlink4")
    return Claim(
        "study-tools",
        STUDY,
        "count ncclAllReduce in the profile, watch nvidia-smi nvlink --status, NVLink of H100 is 600 GB/s",
        f"both directions together are {format_rate(2 * a100.bandwidth_Bps)} on A100 "
        f"and {format_rate(2 * h100.bandwidth_Bps)} on H100",
        "vLLM's custom all-reduce kernels are not named nccl*, so none is found at decode sizes; link traffic shows in "
        "nvidia-smi nvlink -gt d; benchmark_throughput.py has no --batch-size",
        600e9 / (2 * h100.bandwidth_Bps),
    )


CLAIMS: tuple[Callable[[], Claim], ...] = (
    _tp_tax_degree,
    _tp_tax_across,
    _nvlink_directions,
    _two_s,
    _study_microseconds,
    _study_weights,
    _study_ttft,
    _study_tp2,
    _four_way_ring,
    _study_tools,
    _lab_tp8,
    _lab_infiniband,
    _lab_ethernet_batch,
    _exercise_latency,
    _bubble_equality,
)


def claims() -> list[Claim]:
    """All claims, recomputed now."""
    return [claim() for claim in CLAIMS]
