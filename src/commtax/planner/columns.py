"""What a plan is asked for, and plans as columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from commtax.cost.serving import SPREAD
from commtax.planner.space import Array
from commtax.spec import Profile


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for. Limits are of means over requests of a closed loop: TTFT from sending to the first token."""

    input_len: int = 512
    output_len: int = 128
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    objective: str = "throughput"
    spread: float = SPREAD  # of the lengths, as a share of their mean to either side
    disaggregated: bool = True  # whether workers of their own for prompts are tried

    @property
    def limited(self) -> bool:
        """Whether the time of a token is. Else clients come up to each plan's knee, and not until its cache is full."""
        return self.tpot_s < math.inf


@dataclass(frozen=True, slots=True)
class Run:
    """How every plan is run: what a launch command says beside its sizes. None or "" leaves it to the engine."""

    kv_dtype: str = ""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    profile: Profile | None = None

    @property
    def words(self) -> dict[str, Any]:
        """As ``fit`` and ``plan`` take them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family of plans that did not make it, and why; ``rule`` is the reason for any degree, ``{tp}`` in its place."""

    family: str
    reason: str
    tp: int = 0
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """One row a plan at its best concurrency (or, for ``points``, a plan and concurrency)."""

    mode: Array  # 0: prompts and decoding share workers; 1: workers of their own
    dtype: Array  # index in ``dtypes``
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    replicas: Array
    gpus: Array
    concurrency: Array  # clients of the whole cluster
    running: Array  # requests at once, a copy
    ttft_s: Array
    tpot_s: Array
    tokens_per_s: Array
    kv_headroom: Array
    prefill_tp: Array
    prefill_replicas: Array

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, where: Array) -> Columns:
        return Columns(*(np.asarray(getattr(self, f.name)[where]) for f in fields(self)))

    @property
    def tokens_per_s_per_gpu(self) -> Array:
        return np.asarray(self.tokens_per_s / self.gpus)

    @property
    def tokens_per_s_per_user(self) -> Array:
        return np.asarray(1 / self.tpot_s)


def request_s(goal: Goal, c: Columns) -> Array:
    """Seconds of a whole request."""
    return np.asarray(c.ttft_s + (goal.output_len - 1) * c.tpot_s)


def worth(goal: Goal, c: Columns) -> Array:
    """What the objective counts, larger is better: tokens/s, requests a second of one client, tokens/s a GPU, or 1 / GPUs."""
    if goal.objective == "latency":
        return np.asarray(1 / request_s(goal, c))
    if goal.objective == "cost":
        return c.tokens_per_s_per_gpu
    return np.asarray(1 / c.gpus) if goal.objective == "gpus" else c.tokens_per_s


def order(goal: Goal, c: Columns) -> list[Array]:
    """What ranks, larger is better, the most telling first: worth to 11 digits, then fewer GPUs, then shorter waits."""
    second = c.tokens_per_s_per_gpu if goal.objective == "gpus" else -c.gpus
    return [np.round(np.log(worth(goal, c)), 11), second, -c.ttft_s, -c.tpot_s]


def family(c: Columns) -> Array:
    """A number a family: everything but the concurrency and the prompt workers that it needs."""
    key, sizes = np.zeros(len(c), dtype=np.int64), 1
    for name in ("mode", "dtype", "tp", "pp", "dp", "ep", "replicas", "prefill_tp"):
        column = np.asarray(getattr(c, name), dtype=np.int64)
        base = int(column.max(initial=0)) + 1
        if sizes * base > 2**62:  # digits in a mixed base, renumbered only where they would not fit
            key = np.unique(key, return_inverse=True)[1]
            sizes = int(key.max(initial=0)) + 1
        key, sizes = key * base + column, sizes * base
    return np.asarray(np.unique(key, return_inverse=True)[1])


def joined(parts: list[Columns]) -> Columns:
    return Columns(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Columns)))


def empty() -> Columns:
    return Columns(*(np.array([]) for _ in fields(Columns)))


def label(tp: int, pp: int, dp: int, ep: int) -> str:
    """A family's name: ``TP 8 x PP 2``."""
    parts = [f"TP {tp}"] + [f"{name} {n}" for name, n in (("PP", pp), ("DP", dp), ("EP", ep)) if n > 1]
    return " x ".join(parts)
