"""Claims of well-known teaching texts on the communication tax (``claims.toml``), recomputed from ``napkin`` and the catalogue."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from commtax import catalog, napkin
from commtax.cost.tensors import num_params
from commtax.units import format_bytes, format_count, format_rate, format_seconds

H100_BF16 = 990e12  # the lesson's round peak
A100_BF16 = 312e12
NVLINK = {"bandwidth_Bps": 300e9, "latency_s": 3e-6}  # the lab's link
LLAMA_8B = {"batch_tokens": 1, "hidden": 4096, "num_layers": 32}
LAB_STEP_S = 8e-3  # the lab's decode step
INFINIBAND_BPS = 50e9  # one NIC of 400 Gb/s

Values = dict[str, float | str]
"""What stands in the texts' braces; ``ratio`` is the document's number over the arithmetic's, where both are numbers."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: what the document says, what arithmetic says, and why they differ."""

    key: str
    document: str
    says: str
    arithmetic: str
    why: str
    ratio: float | None = None


def _tp_tax_degree() -> Values:
    said = float(napkin.overlap_calculator(8192, 80, 8, 1, 8192)["tp_tax"])
    two, eight = napkin.tp_tax(H100_BF16, 900e9, 8192), napkin.tp_tax(H100_BF16, 900e9, 8192, tp=8)
    return {"said": said, "two": two, "eight": eight, "training": eight * 2 / 3, "ratio": said / eight}


def hierarchical_tax(hidden: int, hosts: int, gpus: int, flops_per_s: float, intra_Bps: float, nic_Bps: float) -> float:
    """Forward TP tax across hosts with one NIC a GPU: reduce-scatter inside, all-reduce by rail, all-gather inside."""
    nbytes = napkin.allreduce_payload_bytes(1, hidden)
    inside = napkin.ring_allreduce_traffic_per_rank(nbytes, gpus) / intra_Bps
    across = napkin.ring_allreduce_traffic_per_rank(nbytes / gpus, hosts) / nic_Bps
    compute = 24 * hidden**2 / (hosts * gpus) / flops_per_s
    return 2 * (inside + across) / compute


def _tp_tax_across_hosts() -> Values:
    said = float(napkin.overlap_calculator(8192, 80, 16, 1, 8192)["tp_tax"])
    rails = hierarchical_tax(8192, 2, 8, H100_BF16, 450e9, INFINIBAND_BPS)
    return {"said": said, "rails": rails, "lone": napkin.tp_tax(H100_BF16, INFINIBAND_BPS, 8192, tp=8), "ratio": said / rails}


def _nvlink_900() -> Values:
    rate = catalog.link("nvlink4").bandwidth_Bps
    return {"rate": format_rate(rate), "nccl": 18 * 20.6, "ratio": 900e9 / rate}


def _two_s() -> Values:
    payload = napkin.allreduce_payload_bytes(1, 4096)
    said, real = 2 * payload / 900e9, napkin.allreduce_time_s(payload, 2, **NVLINK)
    traffic = napkin.ring_allreduce_traffic_per_rank(1, 2)
    times = {"said": format_seconds(said), "real": format_seconds(real)}
    return {**times, "traffic": traffic, "times": real / said, "ratio": said / real}


def _study_85_us() -> Values:
    said, payload = 160 * 32 * 1024 / 60e9, napkin.allreduce_payload_bytes(1, 8192)
    layers = catalog.model("llama-3.1-70b").num_layers
    real = napkin.tp_comm_time_per_step(1, 8192, layers, 2, 450e9, 3e-6)
    times = {"said": format_seconds(said), "real": format_seconds(real)}
    return {**times, "payload": format_bytes(payload), "layers": layers, "ratio": 85e-6 / real}


def _study_28_ms() -> Values:
    whole = napkin.decode_step_floor_s(140e9, catalog.chip("h100-sxm").memory_Bps)
    return {"whole": format_seconds(whole), "half": format_seconds(whole / 2), "ratio": 28e-3 / whole}


def _study_ttft() -> Values:
    rows = ((923.94, 7.22), (656.14, 5.13), (2089.66, 16.35), (1270.29, 9.93))
    return {"ratios": ", ".join(f"{ttft / itl:.1f}" for ttft, itl in rows), "tokens": 448.7 / 7.0}


def _study_tp2_no_gain() -> Values:
    params = num_params(catalog.model("llama-3.1-8b"))
    floor = napkin.decode_step_floor_s(2 * params, catalog.chip("h100-sxm").memory_Bps)
    comm = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK)
    expected = 7.06e-3 - floor / 2 + comm
    times = {"saved": format_seconds(floor / 2), "added": format_seconds(comm), "expected": format_seconds(expected)}
    return {**times, "ratio": 7.08e-3 / expected}


def _study_four_way_ring() -> Values:
    two, four = (napkin.ring_allreduce_traffic_per_rank(1, n) for n in (2, 4))
    return {"two": two, "four": four, "times": four / two, "ratio": 2 / (four / two)}


def _study_tools() -> Values:
    a100, h100 = (2 * catalog.link(key).bandwidth_Bps for key in ("nvlink3", "nvlink4"))
    return {"a100": format_rate(a100), "h100": format_rate(h100), "ratio": 600e9 / h100}


def _lab_in_node_noise() -> Values:
    two, eight = (napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=n, **NVLINK) for n in (2, 8))
    parts = {"two": napkin.comm_fraction(two, LAB_STEP_S), "eight": napkin.comm_fraction(eight, LAB_STEP_S)}
    return {**parts, "split": napkin.comm_fraction(eight, LAB_STEP_S / 8)}


def _lab_never_across() -> Values:
    links = ({"bandwidth_Bps": INFINIBAND_BPS, "latency_s": us * 1e-6} for us in (2, 5))
    quick, slow = (napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **link) for link in links)
    return {"quick": napkin.comm_fraction(quick, LAB_STEP_S), "slow": napkin.comm_fraction(slow, LAB_STEP_S)}


def _lab_ethernet_batch() -> Values:
    wire, compute = napkin.tp_comm_time_per_step(1, 4096, 32, 2, 1.25e9, 0.0), 2 * 8e9 / A100_BF16
    times = {"wire": format_seconds(wire), "compute": format_seconds(compute)}
    return {**times, "limit": napkin.comm_fraction(wire, compute)}


def _exercise_no_latency() -> Values:
    said = napkin.tensor_parallel_allreduce_cost(4096, 1, 1, 2, 32)["total_comm_volume_bytes"] / 300e9
    real = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK)
    times = {"said": format_seconds(said), "real": format_seconds(real)}
    return {**times, "count": format_count(64), "times": real / said, "ratio": said / real}


def _bubble_63() -> Values:
    equal = napkin.min_microbatches_for_bubble(8, 0.1)
    return {"equal": equal, "bubble": napkin.bubble_fraction(8, equal), "more": equal + 1}


CLAIMS = (
    *(_tp_tax_degree, _tp_tax_across_hosts, _nvlink_900, _two_s, _study_85_us),
    *(_study_28_ms, _study_ttft, _study_tp2_no_gain, _study_four_way_ring, _study_tools),
    *(_lab_in_node_noise, _lab_never_across, _lab_ethernet_batch, _exercise_no_latency, _bubble_63),
)
"""Each is named as its text in ``claims.toml``."""


def claims() -> list[Claim]:
    """All claims, recomputed now."""
    texts = tomllib.loads((files("commtax") / "claims.toml").read_text(encoding="utf-8"))
    named = {compute.__name__[1:].replace("_", "-"): compute for compute in CLAIMS}
    return [_claim(key, compute(), texts[key], texts["documents"]) for key, compute in named.items()]


def _claim(key: str, values: Values, text: dict[str, str], documents: dict[str, str]) -> Claim:
    ratio = values.get("ratio")
    says, arithmetic = text["says"].format(**values), text["arithmetic"].format(**values)
    return Claim(key, documents[text["document"]], says, arithmetic, text["why"], None if ratio is None else float(ratio))
