"""Constants of collectives and kernels, and what was measured on one machine.
Add here a field that a file of ``catalog/libraries``, ``exchanges`` or ``kernels`` may set; its default changes no price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypedDict

from commtax.records import Number, dataclass
from commtax.statement import Source

Algorithm = Literal["ring", "ring-simple", "tree", "one-shot", "two-shot", "in-switch", "pairwise", "per-peer", "one-sided"]
"""What a collective can run as: each is a function of that name in ``cost/collectives.py``."""
NO_SOURCE = Source("")
DATASHEET = Source("datasheet", "formula and datasheet", "formula and datasheet")


@dataclass(frozen=True, slots=True)
class Path:
    """One way in which a library performs a collective: tried in order of ``turn`` (those of one turn compete on price) up to
    ``max_bytes`` of a group, which has the limit of the next larger listed size."""

    op: str
    algorithm: Algorithm
    bandwidth_Bps: Number
    launch_s: float = 0.0
    hop_s: float = 0.0
    extra_s: float = 0.0
    each_s: float = 0.0  # beside it, for each further rank of a switch's pipeline
    sqrt_s: float = 0.0  # seconds per root of a byte
    beside_s: float = 0.0  # fixed time that bytes run beside: both together take the root of their squares
    local_s: float = 0.0  # seconds per byte of the tensor that a rank spends in its own memory, beyond what travels
    copied: float = 0.0  # least share of the tensor that a rank moves, whatever leaves it: its own part is copied too
    turn: int = 0
    min_ranks: int = 1
    max_ranks: int = 2**31
    worlds: tuple[int, ...] = ()
    max_bytes: tuple[tuple[int, float], ...] = ()
    min_bytes: tuple[tuple[int, float], ...] = ()  # … and from below, by group size
    wire_share: float = 1.0  # bytes that travel for each of the tensor's: less where it is quantised on its way
    contention: tuple[tuple[int, float], ...] = ()  # by group size: how much slower bytes move when all ranks send (PCIe)
    mesh: int = 0  # GPUs of a mesh of direct links, as in ``Link``
    name: str = ""
    source: Source = NO_SOURCE
    spread: float = 0.0  # half-width of the 80 % range around it, as a factor; 0: the fabric's
    ranks: tuple[int, ...] = ()  # least and most ranks that it was measured on; (): the library's
    own: bool = False  # fitted on this machine


@dataclass(frozen=True, slots=True)
class ExchangePath(Path):
    """A path of tokens to their experts, whose time also goes by how many experts and copying multiprocessors there are."""

    expert_s: float = 0.0  # for each expert of a layer, whose counts every rank receives
    sm_Bps: float = 0.0  # what one multiprocessor copies; 0: as fast as the link takes it


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measured times of one kind of collective lie from predicted ones: 4 in 5 within a factor of 1 + ``factor``."""

    where: str  # a kind of link inside a host, "across" hosts, or "eager"
    factor: float
    source: str
    ops: tuple[str, ...] = ()  # (): all
    max_bytes: float = math.inf
    families: tuple[str, ...] = ()  # of chips; (): all
    most_Bps: float = math.inf  # of links up to this rate


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way in which NCCL packs what crosses hosts: small and at once, or in long pipelines. The cheapest is taken."""

    name: str
    share: float = 1.0  # of the NICs' rate that its bytes get: flags take the rest
    most_Bps: float = math.inf  # … and what leaves a domain at most, however many NICs it has
    extra_s: float = 0.0  # beyond the latency of the links
    fill_s: float = 0.0  # filling the pipeline, for each pass …
    level_s: float = 0.0  # … and each level of hosts in it
    loss: float = 0.0  # share of 2 sqrt(latency x wire) that the best number of chunks loses
    pair_loss: float = 0.0  # … of messages from rank to rank, which fill no levels
    ring: bool = False  # rides the plain ring inside domains: no sums in switches
    ordered: bool = False  # needs a network that delivers lines of 128 bytes whole


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """What one collective took across hosts, over what the constants say: by ranks and by size, with how sure that is."""

    op: str
    ranks: tuple[int, ...]  # that were measured, rising
    nbytes: tuple[float, ...]  # rising
    factor: tuple[tuple[float, ...], ...]  # a row for each number of ranks
    sigma: tuple[tuple[float, ...], ...]  # deviations of the logarithm
    drift: float = 0.0  # … which a doubling of the size adds, between those of the curve
    grown: float = 0.0  # … which a doubling of the ranks adds, away from those measured
    reshaped: float = 0.0  # … which a doubling of the domain adds: other hosts share their NICs otherwise
    domain: int = 0  # GPUs of a fast domain where it was measured; 0: it does not say


@dataclass(frozen=True, slots=True)
class Network:
    """How a library crosses hosts: by ``protocols`` where those were measured, else as one pipeline."""

    efficiency: float = 0.9
    norm: float = 8.0
    hops: float = 3.0  # link latencies that one level costs: post, wire, flush
    pipelining: float = 0.0  # share of the loss that the best number of chunks still has; of what fills a protocol's pipeline
    flat: bool = False  # rings run through all ranks: the NICs carry what a ring of N ranks sends, not one of M hosts
    direct: bool = False  # every rank writes straight to every other: one level, however many hosts
    protocols: tuple[Protocol, ...] = ()
    links: tuple[str, ...] = ()  # that it was measured on; (): it does not say
    curves: tuple[NetworkCurve, ...] = ()  # as measured on one machine, over these constants
    eager_s: float = 0.0  # more that a collective across hosts takes when it is launched from Python, alone
    label: Source = DATASHEET
    ranks: tuple[int, ...] = ()  # least and most ranks that it was measured on; (): it was not
    spread: float = 0.35  # half-width of the 80 % range, as a factor
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The paths that a library has for each collective on one chip and link, and how it crosses hosts."""

    name: str
    label: Source  # calibrated, assumed or by definition
    paths: Mapping[str, tuple[Path, ...]]
    network_paths: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # the inside part of a group across hosts
    flat: bool = False  # … or the whole of it, as one flat ring over the slow link (textbook)
    network: Network = Network()
    eager_floor_s: float = 0.0
    busy_s: float = 0.0  # of an exchange whose kernels end while tokens travel: what a launch and a receipt take of the chip …
    busy_Bps: float = math.inf  # … beside the bytes that they move at this rate
    kept_sms: int = 0  # … of one whose kernels stay: multiprocessors that they keep from others
    spread: float = 0.15  # half-width of the 80 % range inside a domain, as a factor
    exchanges: Mapping[str, Fabric] = field(default_factory=dict)  # kernels that move tokens to experts, by backend
    kernels: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # its own, small tensors included
    fused: Fabric | None = None  # the kernel that all-reduces, adds the residual and norms; None: there is none for these chips
    spreads: tuple[Spread, ...] = ()  # … by place, collective and size, where residuals were measured: the first that applies
    note: str = ""
    copying_sms: float = 0.0  # of an exchange: multiprocessors that copy; 0: one for each expert, as far as they go
    pairs: Fabric | None = None  # the same library between two bridged neighbours, where the hosts have such


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Constants of the kernel forms on one family of chips: gemm by dtype, decode and prefill attention, small."""

    family: str
    label: Source
    tables: Mapping[str, Mapping[str, float]]
    own: Mapping[str, Source] = field(default_factory=dict)  # labels of tables from elsewhere: a profile, other families

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of a whole step's kernels against measured steps."""
        return self.tables["step.bf16"]["sigma"]


class ChipFacts(TypedDict, total=False):
    """Fields of ``Chip`` that were measured. ``key`` says which chip they describe."""

    key: str
    name: str
    memory_Bps: float
    memory_bytes: float
    visible_bytes: float
    num_sms: float
    flops_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What runs have in common that teach the same: who serves which model, laid out how, on what."""

    engine: str
    version: str
    chip: str
    family: str  # the architecture that a config names
    model: str
    dtype: str  # of weights
    tp: Number = 1
    pp: Number = 1
    dp: Number = 1
    ep: Number = 1
    disaggregated: bool = False


LATENCIES = ("tpot", "ttft")
KERNEL_PACES = {
    "products": ("pace_products",),
    "experts": ("pace_experts",),
    "attention": ("pace_decoding", "pace_prompting"),
    "small": ("pace_small",),
}
"""Kinds of kernels that a profiler's trace tells apart by their names, and the constants that each goes by."""
STEP_PARTS = {
    **KERNEL_PACES,
    "kernels": tuple(name for names in KERNEL_PACES.values() for name in names),
    "collectives": ("pace_latency", "pace_wire"),
    "host": ("host_s", "host_s_per_seq", "prompt_s"),
}
"""Parts of a profiled step; ``kernels`` are all of them together, where their names do not tell them apart."""
MEASURED = (*LATENCIES, *STEP_PARTS)  # all that a lesson may be of


@dataclass(frozen=True, slots=True)
class RunLesson:
    """What one measured time teaches: how far the catalogue was off, and by which constants it could be mended."""

    deployment: Deployment
    metric: str  # tpot | ttft, or a part of a profiled step (``STEP_PARTS``)
    clients: float  # of the whole deployment
    input_len: float
    output_len: float
    measured_s: float
    catalogue_s: float  # as predicted before anything was learnt
    residual: float  # ln(measured / predicted) where the slopes were taken, and the catalogue's constants left
    slopes: Mapping[str, float]  # d ln(latency) / d ln(constant)
    noise: float = 1.0  # its own scatter over the usual one: more for a median, and for a run that others contradict
    label: str = ""
    repeats: float = 1.0  # runs of this load, whose median it is
    scatter: float = 0.0  # standard deviation of one run's logarithm, beyond the usual noise, by repeats of the deployment


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants measured on one machine, to be laid over the catalogue, which stays as it was where there are none."""

    name: str
    chip: ChipFacts = field(default_factory=ChipFacts)
    tables: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kernel constants, as in KernelConstants
    libraries: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # measured paths by library, the usual one first
    network: Mapping[str, float] = field(default_factory=dict)  # across hosts: efficiency, hops, pipelining, norm, spread
    curves: tuple[NetworkCurve, ...] = ()  # … and what those constants leave, by collective
    host: Mapping[str, float] = field(default_factory=dict)  # fields of Engine: host and request times and their sigmas
    links: Mapping[str, str] = field(default_factory=dict)  # "intra" and "inter" that the collectives were measured on
    engine: str = ""  # the engine that was measured
    dtype: str = ""  # … and the type it ran in
    sources: Mapping[str, str] = field(default_factory=dict)  # what each part was fitted on
    lessons: tuple[RunLesson, ...] = ()  # of runs of engines: which move constants as far as they resemble the question
    written: str = ""  # the day

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def label(self) -> Source:
        return Source("calibrated", f"calibrated: {self.name}", f"profile {self.name}")
