"""Claims of well-known teaching texts on the communication tax (``claims.toml``), recomputed from ``napkin`` and the catalogue."""

from dataclasses import dataclass
from functools import partial
from string import Formatter

from commtax import catalog, napkin
from commtax.cost.inventory import num_params
from commtax.units import format_bytes, format_rate, format_seconds
from commtax_lab import lab_table

H100_BF16 = 990e12  # the lesson's round peak
A100_BF16 = 312e12
NVLINK = {"bandwidth_Bps": 300e9, "latency_s": 3e-6}  # the lab's link
LLAMA_8B = {"batch_tokens": 1, "hidden": 4096, "num_layers": 32}
LAB_STEP_S = 8e-3  # the lab's decode step
INFINIBAND_BPS = 50e9  # one NIC of 400 Gb/s

FORMS = {"bytes": format_bytes, "rate": format_rate, "seconds": format_seconds}
"""Units that a text may ask for: ``{said:seconds}``."""
Values = dict[str, float]
"""What stands in the texts' braces; ``ratio`` is the document's number over the arithmetic's, where both have one."""


@dataclass(frozen=True, slots=True)
class DocumentClaim:
    """One claim: what the document says, what arithmetic says, and why they differ."""

    key: str
    document: str
    says: str
    arithmetic: str
    why: str
    ratio: float | None = None


def hierarchical_tax(hidden: int, hosts: int, gpus: int, flops_per_s: float, intra_Bps: float, nic_Bps: float) -> float:
    """Compute the forward TP tax over hosts with a NIC per GPU: reduce-scatter inside, all-reduce by rail, all-gather inside."""
    nbytes = napkin.allreduce_payload_bytes(1, hidden)
    inside = napkin.ring_allreduce_traffic_per_rank(nbytes, gpus) / intra_Bps
    across = napkin.ring_allreduce_traffic_per_rank(nbytes / gpus, hosts) / nic_Bps
    compute = 24 * hidden**2 / (hosts * gpus) / flops_per_s
    return 2 * (inside + across) / compute


def _lesson() -> dict[str, Values]:
    taxed, across = (float(napkin.overlap_calculator(8192, 80, tp, 1, 8192)["tp_tax"]) for tp in (8, 16))
    two, eight = (napkin.tp_tax(H100_BF16, 900e9, 8192, tp=tp) for tp in (2, 8))
    rails = hierarchical_tax(8192, 2, 8, H100_BF16, 450e9, INFINIBAND_BPS)
    lone = napkin.tp_tax(H100_BF16, INFINIBAND_BPS, 8192, tp=8)
    rate, payload = catalog.link("nvlink4").bandwidth_Bps, napkin.allreduce_payload_bytes(1, 4096)
    claimed, real = 2 * payload / 900e9, napkin.allreduce_time_s(payload, 2, **NVLINK)
    traffic = napkin.ring_allreduce_traffic_per_rank(1, 2)
    return {
        "tp-tax-degree": {"said": taxed, "two": two, "eight": eight, "training": eight * 2 / 3, "ratio": taxed / eight},
        "tp-tax-across-hosts": {"said": across, "rails": rails, "lone": lone, "ratio": across / rails},
        "nvlink-900": {"rate": rate, "nccl": 18 * 20.6, "ratio": 900e9 / rate},
        "two-s": {"said": claimed, "real": real, "traffic": traffic, "times": real / claimed, "ratio": claimed / real},
    }


def _study() -> dict[str, Values]:
    payload, layers = napkin.allreduce_payload_bytes(1, 8192), catalog.model("llama-3.1-70b").num_layers
    claimed, real = 160 * 32 * 1024 / 60e9, napkin.tp_comm_time_per_step(1, 8192, layers, 2, 450e9, 3e-6)
    memory_Bps, params = catalog.chip("h100-sxm").memory_Bps, num_params(catalog.model("llama-3.1-8b"))
    whole, saved = napkin.decode_step_floor_s(140e9, memory_Bps), napkin.decode_step_floor_s(2 * params, memory_Bps) / 2
    added = napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **NVLINK)
    expected = 7.06e-3 - saved + added
    two, four = (napkin.ring_allreduce_traffic_per_rank(1, n) for n in (2, 4))
    a100, h100 = (2 * catalog.link(key).bandwidth_Bps for key in ("nvlink3", "nvlink4"))
    first, second, third, fourth = 923.94 / 7.22, 656.14 / 5.13, 2089.66 / 16.35, 1270.29 / 9.93  # TTFT / ITL
    return {
        "study-85-us": {"said": claimed, "real": real, "payload": payload, "layers": layers, "ratio": 85e-6 / real},
        "study-28-ms": {"whole": whole, "half": whole / 2, "ratio": 28e-3 / whole},
        "study-ttft": {"first": first, "second": second, "third": third, "fourth": fourth, "tokens": 448.7 / 7.0},
        "study-tp2-no-gain": {"saved": saved, "added": added, "expected": expected, "ratio": 7.08e-3 / expected},
        "study-four-way-ring": {"two": two, "four": four, "times": four / two, "ratio": 2 / (four / two)},
        "study-tools": {"a100": a100, "h100": h100, "ratio": 600e9 / h100},
    }


def _labs() -> dict[str, Values]:
    two, eight = (napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=n, **NVLINK) for n in (2, 8))
    links = ({"bandwidth_Bps": INFINIBAND_BPS, "latency_s": us * 1e-6} for us in (2, 5))
    quick, slow = (napkin.tp_comm_time_per_step(**LLAMA_8B, num_ranks=2, **link) for link in links)
    share = partial(napkin.comm_fraction, compute_s=LAB_STEP_S)
    wire, compute = napkin.tp_comm_time_per_step(1, 4096, 32, 2, 1.25e9, 0.0), 2 * 8e9 / A100_BF16
    claimed = napkin.tensor_parallel_allreduce_cost(4096, 1, 1, 2, 32)["total_comm_volume_bytes"] / 300e9
    equal = napkin.min_microbatches_for_bubble(8, 0.1)
    return {
        "lab-in-node-noise": {"two": share(two), "eight": share(eight), "split": napkin.comm_fraction(eight, LAB_STEP_S / 8)},
        "lab-never-across": {"quick": share(quick), "slow": share(slow)},
        "lab-ethernet-batch": {"wire": wire, "compute": compute, "limit": napkin.comm_fraction(wire, compute)},
        "exercise-no-latency": {"said": claimed, "real": two, "times": two / claimed, "ratio": claimed / two},
        "bubble-63": {"equal": equal, "bubble": napkin.bubble_fraction(8, equal), "more": equal + 1},
    }


class _Figures(Formatter):
    def format_field(self, value: float, format_spec: str) -> str:
        return FORMS[format_spec](value) if format_spec in FORMS else format(value, format_spec)


def claims() -> list[DocumentClaim]:
    """Recompute all claims."""
    texts = lab_table("claims.toml")
    written = _Figures().format
    return [
        DocumentClaim(
            key,
            texts["documents"][texts[key]["document"]],
            written(texts[key]["says"], **values),
            written(texts[key]["arithmetic"], **values),
            texts[key]["why"],
            values.get("ratio"),
        )
        for key, values in (_lesson() | _study() | _labs()).items()
    ]
