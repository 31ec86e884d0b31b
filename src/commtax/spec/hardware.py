"""Chips, the links between them, and clusters of them.
Add here a field that a file of ``catalog/chips``, ``links`` or ``clusters`` may set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from commtax.records import dataclass

USUAL_LANES = 128
"""fp32 units of a multiprocessor of GA10x, Ada, Hopper and Blackwell (their whitepapers), of a compute unit of CDNA 3 and 4 with
packed arithmetic, and of an Xe2 core."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a number was read."""

    title: str
    url: str
    date: str


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator. Peaks are dense, and ``visible_bytes`` is the total that the driver reports to programs."""

    key: str
    name: str
    vendor: str
    family: str
    compute_capability: str
    intra: str
    inter: str
    gpus_per_host: int
    memory_bytes: float
    visible_bytes: float
    memory_Bps: float
    flops_per_s: Mapping[str, float]
    tdp_w: float = 0.0
    num_sms: int = 0
    fp32_per_sm: int = 0  # lanes of plain arithmetic of one multiprocessor where they are not the usual 128
    l2_bytes: float = 0.0
    nvlink_domain: int = 0  # GPUs that one NVLink switch fabric joins, where it is larger than a host
    usd_per_gpu_hour: float = 0.0
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Citation] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def clock_Hz(self) -> float:
        """The boost clock that a datasheet's fp32 rate implies: FLOP/s = 2 lanes multiprocessors clock. 0: it states none."""
        lanes = 2.0 * (self.fp32_per_sm or USUAL_LANES) * self.num_sms
        return self.flops_per_s.get("fp32", 0.0) / lanes if lanes else 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two GPUs (or two hosts): bandwidth of one GPU (or one NIC), in one direction."""

    key: str
    name: str
    kind: str
    scope: str
    switched: bool
    bandwidth_Bps: float
    latency_s: float
    nic_per_gpu: bool = False
    num_links: int = 0  # NVLinks that are bonded in it; 0: it is not counted in links
    efficiency: float = 1.0  # share that large tensors reach of what they reach on other networks of this rate
    fill_s: float = 0.0  # what filling a pipeline of large messages takes for each pass; 0: the library's
    ordered: bool = True  # delivers what was written in order, so that lines of 128 bytes arrive whole
    mesh: int = 0  # GPUs joined pair by pair: a group of n has (n - 1) / (mesh - 1) of the rate; 0: all of it
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Citation] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Cluster:
    """``num_hosts`` equal hosts. ``nvlink_domain`` GPUs share an NVLink fabric: 72 on NVL72, 1 without NVLink."""

    key: str
    name: str
    chip: Chip
    num_hosts: int
    gpus_per_host: int
    nvlink_domain: int
    intra: Link
    inter: Link
    nics_per_host: int
    note: str = ""
    remark: str = ""  # how an unusual name was read, as a remark of every answer
    typed: str = ""  # that name, where it was read as another
    sources: Mapping[str, Citation] = field(default_factory=dict)
    bridge: Link | None = None  # joins GPU 0 with 1, 2 with 3 …; all others of a host reach each other over ``intra``

    def __hash__(self) -> int:
        return hash((self.key, self.intra, self.inter, self.nics_per_host))

    @property
    def as_pairs(self) -> Cluster:
        """The same hosts as two bridged neighbours meet them."""
        return replace(self, intra=self.bridge or self.intra, bridge=None)

    @property
    def without_pairs(self) -> Cluster:
        """… and as all other groups do."""
        return replace(self, bridge=None)

    @property
    def num_gpus(self) -> int:
        return self.num_hosts * self.gpus_per_host

    @property
    def domain(self) -> int:
        """GPUs that reach each other over ``intra``: a host's, or all that one NVLink fabric joins."""
        return min(self.num_gpus, max(self.gpus_per_host, self.nvlink_domain))

    @property
    def is_one_domain(self) -> bool:
        """Whether all of its GPUs reach each other over ``intra``, so that nothing takes ``inter``: a host, or trays of a rack."""
        return self.num_gpus <= self.domain


@dataclass(frozen=True, slots=True)
class CacheCarrier:
    """What carries caches from prompt workers to those that decode."""

    key: str
    title: str
    share: float  # of a link's bandwidth that large pieces attain
    transfer_s: float = 0.0  # of a transfer, whatever it carries
    piece_s: float = 0.0  # of each piece: a stretch of memory that is sent as one
    gathers: tuple[str, ...] = ()  # engines whose blocks of a layer go as one piece, not each as one
    latent_page: int = 0  # tokens of a block of latents at least: kernels need as many
    pushes: bool = False  # those who computed send; else those who decode fetch
    cuts_heads: str = ""  # heads go to other ranks cut from each "block" or "token"; "": both sides need the same tp
    stages: Mapping[str, str] = field(default_factory=dict)  # by engine: "layers" or "chunks" that go while the next are computed
    connectors: Mapping[str, str] = field(default_factory=dict)  # by engine that has it: its name there
    starts: tuple[str, ...] = ()  # engines whose launch names it by default
    vendors: tuple[str, ...] = ()  # whose chips it runs on; (): all
    sources: Mapping[str, Citation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheTier:
    """Where prefixes lie that the GPU's cache has no room for, and what it takes to have them back."""

    key: str
    title: str
    share: float  # of the bandwidth below that blocks attain
    bandwidth_Bps: float = 0.0  # for each GPU; 0: of the host's link to it, or of its NIC
    networked: bool = False  # it is reached over the NICs
    transfer_s: float = 0.0  # of a request
    piece_s: float = 0.0  # of each block
    sources: Mapping[str, Citation] = field(default_factory=dict)
