"""Constants of collectives and kernels, and what was measured on one machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from commtax.statement import Source

Algorithm = Literal["ring", "ring-simple", "tree", "one-shot", "two-shot", "in-switch"]
"""What a collective can run as: each is a function of that name in ``cost/collectives.py``."""
NO_SOURCE = Source("")
DATASHEET = Source("datasheet", "formula and datasheet", "formula and datasheet")


@dataclass(frozen=True, slots=True)
class Path:
    """One way in which a library performs a collective, with its constants.

    Paths are tried in order of ``turn``; those of one turn compete on price. ``max_bytes`` limits the tensor by group size.
    """

    op: str
    algorithm: Algorithm
    bandwidth_Bps: float
    launch_s: float = 0.0
    hop_s: float = 0.0
    extra_s: float = 0.0
    sqrt_s: float = 0.0  # seconds per root of a byte
    turn: int = 0
    min_ranks: int = 1
    max_ranks: int = 2**31
    worlds: tuple[int, ...] = ()
    max_bytes: tuple[tuple[int, float], ...] = ()
    contention: tuple[tuple[int, float], ...] = ()  # by group size: how much slower bytes move when all ranks send (PCIe)
    mesh: int = 0  # GPUs of a mesh of direct links, as in ``Link``
    name: str = ""
    source: Source = NO_SOURCE
    spread: float = 0.0  # half-width of the 80 % range around it, as a factor; 0: the fabric's
    ranks: tuple[int, ...] = ()  # least and most ranks that it was measured on; (): the library's
    own: bool = False  # fitted on this machine


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measured times of one kind of collective lie from predicted ones: 4 in 5 within a factor of 1 + ``factor``."""

    where: str  # a kind of link inside a host, "across" hosts, or "eager"
    factor: float
    source: str
    ops: tuple[str, ...] = ()  # (): all
    max_bytes: float = math.inf
    families: tuple[str, ...] = ()  # of chips; (): all


@dataclass(frozen=True, slots=True)
class Network:
    """How a library crosses hosts."""

    efficiency: float = 0.9
    norm: float = 8.0
    hops: float = 3.0  # link latencies that one level costs: post, wire, flush
    pipelining: float = 0.0  # share of the loss that the best number of chunks still has
    direct: bool = False  # every rank writes straight to every other: one level, however many hosts
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
    spread: float = 0.15  # half-width of the 80 % range inside a domain, as a factor
    exchanges: Mapping[str, Fabric] = field(default_factory=dict)  # kernels that move tokens to experts, by backend
    spreads: tuple[Spread, ...] = ()  # … by place, collective and size, where residuals were measured: the first that applies
    note: str = ""
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
    """Fields of ``Chip`` that were measured; ``key`` says which chip they describe."""

    key: str
    name: str
    memory_Bps: float
    memory_bytes: float
    visible_bytes: float
    num_sms: float
    flops_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured on one machine, to be laid over the catalogue; what it does not hold stays as it was."""

    name: str
    chip: ChipFacts = field(default_factory=ChipFacts)
    tables: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kernel constants, as in KernelConstants
    libraries: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # measured paths by library, the usual one first
    network: Mapping[str, float] = field(default_factory=dict)  # across hosts: efficiency, hops, pipelining, norm, spread
    host: Mapping[str, float] = field(default_factory=dict)  # fields of Engine: host and request times and their sigmas
    links: Mapping[str, str] = field(default_factory=dict)  # "intra" and "inter" that the collectives were measured on
    engine: str = ""  # the engine that was measured
    dtype: str = ""  # … and the type it ran in
    sources: Mapping[str, str] = field(default_factory=dict)  # what each part was fitted on

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def label(self) -> Source:
        return Source("calibrated", f"calibrated: {self.name}", f"profile {self.name}")
