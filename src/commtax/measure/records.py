"""What live runs leave: one rank's part of it, all ranks' together, and the times that only all of them together tell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from commtax.measure.comm import Sent
from commtax.measure.engine import Engine
from commtax.measure.generate import Run
from commtax.measure.worker import Place, gather


@dataclass(frozen=True, slots=True)
class Part:
    """One rank: what it holds, and its runs. ``replicas`` are its runs of the whole model beside the others'."""

    rank: int
    host: str
    cores: tuple[int, ...]
    weights_bytes: int
    replicated: dict[str, int]
    kv_bytes: int
    kv_blocks: int
    block_size: int
    runs: list[Run]
    replicas: list[Run]


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of every step against TP=1's on the same inputs; -1 where they are not finite."""

    max_logit_diff: float
    tolerance: float
    within: bool
    same_tokens: int
    steps: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All ranks of one job. ``tp1`` are rank 0's runs of the whole model alone, where somebody asked."""

    ranks: list[Part]
    load: tuple[float, float, float]
    torch: str
    device: str
    tp1: list[Run]
    tp1_bytes: int = 0
    logits: Logits | None = None


@dataclass(slots=True)
class Rounds:
    """Runs of one rank: TP=N, and where somebody asked TP=1 on rank 0 alone and one TP=1 replica a rank at once."""

    tp: list[Run] = field(default_factory=list)
    tp1: list[Run] = field(default_factory=list)
    replicas: list[Run] = field(default_factory=list)


def measured(where: Place, engine: Engine, rounds: Rounds, tp1_bytes: int = 0, logits: Logits | None = None) -> Measured:
    """Every rank's part, on every rank."""
    w, cache = engine.weights, engine.cache
    held = (w.nbytes, w.replicated, cache.nbytes, cache.num_blocks, cache.block_size)
    runs, alone, replicas = ([run.figures() for run in kind] for kind in (rounds.tp, rounds.tp1, rounds.replicas))
    parts = gather(Part(where.rank, os.uname().nodename, where.cores, *held, runs, replicas))
    device = f"{torch.get_num_threads()} CPU thread(s) a rank" if engine.device.type == "cpu" else torch.cuda.get_device_name()
    return Measured(parts, os.getloadavg(), torch.__version__, device, alone, tp1_bytes, logits)


@dataclass(frozen=True, slots=True)
class Turn:
    """The runs of all ranks at the same time: a step ends when its last rank does, and the wire is what the least waiting saw."""

    runs: tuple[Run, ...]

    @property
    def prefill_s(self) -> float:
        return max(run.prefill_s for run in self.runs)

    @property
    def decode_s(self) -> list[float]:
        return [max(times) for times in zip(*(run.decode_s for run in self.runs), strict=True)]

    @property
    def order(self) -> list[Sent]:
        return self.runs[0].order

    @property
    def inside_s(self) -> Any:
        """Seconds inside collectives, (ranks, steps, collectives of a step); of size 0 where nobody timed them (CUDA)."""
        return np.array([run.comm_s for run in self.runs])

    @property
    def wire_s(self) -> Any:
        """The least over ranks, (steps, collectives)."""
        return self.inside_s.min(axis=0)


def turns(parts: Sequence[Part]) -> list[Turn]:
    """The runs of all ranks, turn by turn."""
    return [Turn(runs) for runs in zip(*(part.runs for part in parts), strict=True)]
