"""What moves caches: between workers, and back from where they were put by."""

from collections.abc import Mapping
from dataclasses import field

from commtax.records import dataclass
from commtax.spec.hardware import Citation


@dataclass(frozen=True, slots=True)
class CacheCarrier:
    """What carries caches from prompt workers to those that decode."""

    key: str
    title: str
    share: float  # of a link's bandwidth that large pieces attain
    transfer_s: float = 0.0  # of a transfer, whatever it carries
    piece_s: float = 0.0  # of each piece: a stretch of memory that is sent as one
    gathers: tuple[str, ...] = ()  # engines whose blocks of a layer go as one piece, not each as one
    latent_page: int = 0  # tokens of a block of latents at least: kernels ask for so many
    pushes: bool = False  # those who computed send; else those who decode fetch
    cuts_heads: str = ""  # heads go to other ranks cut from each "block" or "token"; "": both sides need the same tp
    stages: Mapping[str, str] = field(default_factory=dict)  # by engine: "layers" or "chunks" that go while the next are computed
    connectors: Mapping[str, str] = field(default_factory=dict)  # by engine that has it: its name there
    starts: tuple[str, ...] = ()  # engines whose launch names it where nobody asks for another
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
