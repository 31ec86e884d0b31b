"""What a launch command says, by what it describes; None or "" is what it leaves to the engine."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import cast

from commtax.question import Limits
from commtax.statement import Note

AUTO_EP = -1  # experts over tp x dp


@dataclass(frozen=True, slots=True)
class Split:
    """One server (or job): its axes, and the types of weights and cache."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None  # AUTO_EP: over tp x dp
    cp: int | None = None
    dtype: str = ""
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers beside each other."""

    count: int = 1  # equal ones
    role: str = ""  # "prefill" or "decode" where a server does one of them
    prefill_tp: int | None = None  # of the servers for prompts beside those that decode
    prefill_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How a server computes and sends."""

    eager: bool = False
    library: str = ""  # nccl where the engine's own all-reduce is switched off
    ep_backend: str = ""
    speculative: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What a benchmark sends."""

    concurrency: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    spread: float | None = None  # of the lengths that it draws, as a share of their mean to either side


@dataclass(frozen=True, slots=True)
class Training:
    """The step of a training job."""

    micro_batch: int | None = None
    global_batch: int | None = None
    context: int | None = None
    recompute: str = ""
    sequence_parallel: bool = False
    schedule: str = ""
    chunks: int | None = None
    stage_layers: int | None = None  # of a chunk, where that is told instead
    zero: int | None = None
    hsdp: int | None = None
    async_axes: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs."""

    nnodes: int | None = None
    gpus_per_node: int | None = None
    devices: tuple[str, ...] = ()
    address: str = ""  # where the hosts of one job meet


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, read. The model is told by its name, or (Megatron) by its ``shape``."""

    engine: str
    version: str = ""
    phase: str = "serve"  # or train
    model: str = ""
    shape: tuple[tuple[str, int], ...] = ()
    split: Split = field(default_factory=Split)
    servers: Servers = field(default_factory=Servers)
    limits: Limits = field(default_factory=Limits)
    manner: Manner = field(default_factory=Manner)
    load: Load = field(default_factory=Load)
    training: Training = field(default_factory=Training)
    place: Place = field(default_factory=Place)
    notes: tuple[Note, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes: dict[str, int] = {name: getattr(self.split, name) or 1 for name in ("tp", "pp", "dp", "ep", "cp")}
        return {**sizes, "ep": sizes["tp"] * sizes["dp"]} if sizes["ep"] == AUTO_EP else sizes

    @property
    def num_gpus(self) -> int:
        one = math.prod(size for axis, size in self.axes.items() if axis != "ep")
        return one * self.servers.count + (self.servers.prefill_workers or 0) * (self.servers.prefill_tp or 1)

    def chunks_of(self, layers: int) -> int | None:
        """Chunks a rank of a model with so many layers."""
        whole = (self.split.pp or 1) * (self.training.stage_layers or 0)  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and self.training.schedule else self.training.chunks


PARTS = {f.name: cast(type, f.default_factory) for f in fields(Launch) if f.default_factory is not MISSING}
"""The records that a launch is told in."""
