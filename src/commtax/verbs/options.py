"""Keywords of the public functions, so that editors complete them: what ``**options`` of each verb may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from commtax.spec import Engine, Number, Profile


class PlanOptions(TypedDict, total=False):
    """How a model is laid over GPUs, and with which engine."""

    tp: Number | Sequence[int]
    pp: Number | Sequence[int]
    dp: Number | Sequence[int]
    ep: Number | Sequence[int]  # ``AUTO_EP``: the engine's own size, tp x dp
    cp: Number | Sequence[int]
    replicas: Number | Sequence[int]  # servers beside each other; ``dp`` is data parallelism inside one engine
    engine: str | Engine
    dtype: str
    kv_dtype: str
    sequence_parallel: bool | None
    profile: str | Profile | None


class KindOptions(PlanOptions, total=False):
    """How a training step is cut."""

    zero: int | None
    schedule: str
    chunks: int
    recompute: str
    microbatches: Number  # of ``traffic`` and ``train_fit``: follows from batch and micro_batch unless it is given
    shard: Number


class StepOptions(KindOptions, total=False):
    """One step of any phase, and its what-ifs."""

    phase: str
    batch: Number | Sequence[int]
    context: Number | Sequence[int]
    micro_batch: Number | Sequence[int]
    speculative: int
    eager: bool
    ep_backend: str
    overlap: float
    slow_rank: float
    latency_scale: float
    bandwidth_scale: Number
    library: str
    hsdp: Number
    async_axes: tuple[str, ...] | None
    imbalance: float
    slow_axis: str
    slow_links: float
    flops: str


class LimitOptions(PlanOptions, total=False):
    """What a launch command limits."""

    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    kv_cache_memory_bytes: float


class RequestOptions(LimitOptions, total=False):
    """A closed loop of requests."""

    concurrency: Number | Sequence[int]
    input_len: Number | Sequence[int]
    output_len: Number | Sequence[int]
    num_prompts: Number | None
    spread: Number
    disaggregated: bool
    prefill_workers: int | None
    prefill_tp: int | None
    decode_workers: int | None
    kv_tokens: Number | None


class CellOptions(StepOptions, total=False):
    """What ``compare`` takes beside a step's own."""

    global_batch: int
    local_tokens: int
