"""What a launch command says: what runs, the options that it sets, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from commtax.statement import Note

AUTO_EP = -1  # experts over tp x dp
LOAD = ("concurrency", "input_len", "output_len", "spread")
"""What a benchmark sends; ``spread`` is that of the lengths it draws, as a share of their mean to either side."""
OPTIONS = (
    *("tp", "pp", "dp", "ep", "cp", "dtype", "kv_dtype"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "kv_cache_memory_bytes"),
    *("eager", "library", "ep_backend", "speculative", *LOAD),
    *("micro_batch", "global_batch", "context", "recompute", "sequence_parallel", "schedule", "chunks", "zero", "hsdp"),
    "async_axes",
)
"""Options of ours that a command may set."""
Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers beside each other."""

    count: int = 1  # equal ones
    role: str = ""  # "prefill" or "decode" where a server does one of them
    prefill_tp: int | None = None  # of the servers for prompts beside those that decode
    prefill_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs; None or "" is what it leaves to the engine."""

    nnodes: int | None = None
    gpus_per_node: int | None = None
    devices: tuple[str, ...] = ()
    address: str = ""  # where the hosts of one job meet


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, read. The model is told by its name, or (Megatron) by its ``shape``."""

    engine: str
    options: Mapping[str, Value]  # what it leaves to the engine is not in them
    version: str = ""
    phase: str = "serve"  # or train
    model: str = ""
    shape: tuple[tuple[str, int], ...] = ()
    servers: Servers = Servers()
    place: Place = Place()
    stage_layers: int = 0  # of a chunk, where that is told instead of the chunks
    notes: tuple[Note, ...] = ()
    unread: tuple[str, ...] = ()

    def number(self, name: str, usual: int = 0) -> int:
        return int(self.options.get(name, usual))

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes = {name: self.number(name, 1) for name in ("tp", "pp", "dp", "ep", "cp")}
        return {**sizes, "ep": sizes["tp"] * sizes["dp"]} if sizes["ep"] == AUTO_EP else sizes

    @property
    def num_gpus(self) -> int:
        one = math.prod(size for axis, size in self.axes.items() if axis != "ep")
        return one * self.servers.count + (self.servers.prefill_workers or 0) * (self.servers.prefill_tp or 1)

    def chunks_of(self, layers: int) -> int:
        """Chunks a rank of a model with so many layers; 0 where nothing tells them."""
        whole = self.number("pp", 1) * self.stage_layers  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and "schedule" in self.options else self.number("chunks")
