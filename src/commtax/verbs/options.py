"""Keywords of the public functions, so that editors complete them: what ``**options`` of each verb may hold."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from commtax.spec import Engine, Number, Profile
from commtax.statement import Refusal


def only(kind: type, options: Mapping[str, object]) -> Mapping[str, object]:
    """The options, where their kind has them all: what a verb has no use for is refused, never ignored."""
    for name in options:
        if name not in kind.__annotations__:
            raise Refusal(f"{name}: not an option here; there are {', '.join(kind.__annotations__)}", name)
    return options


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


class LengthOptions(KindOptions, total=False):
    """How many sequences a step has, and how long they are."""

    batch: Number | Sequence[int]
    context: Number | Sequence[int]


class ServedOptions(LengthOptions, total=False):
    """A step of a server."""

    phase: str
    speculative: int
    eager: bool
    ep_backend: str


class TrainedOptions(LengthOptions, total=False):
    """A training step."""

    micro_batch: Number | Sequence[int]


class SentOptions(ServedOptions, TrainedOptions, total=False):
    """A step of any phase."""


class WhatIfOptions(TypedDict, total=False):
    """What-ifs of any step that is priced."""

    slow_rank: float
    latency_scale: float
    bandwidth_scale: Number
    library: str


class BillOptions(ServedOptions, WhatIfOptions, total=False):
    """A server's step, priced."""

    overlap: float


class TrainBillOptions(TrainedOptions, WhatIfOptions, total=False):
    """A training step, priced."""

    eager: bool
    hsdp: Number
    async_axes: tuple[str, ...] | None
    imbalance: float
    slow_axis: str
    slow_links: float
    flops: str


class StepOptions(BillOptions, TrainBillOptions, total=False):
    """One step of any phase, and its what-ifs."""


class LimitOptions(PlanOptions, total=False):
    """What a launch command limits of a server's steps."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None


class FitOptions(LimitOptions, total=False):
    """… and of its memory."""

    max_model_len: int | None
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


class SearchOptions(TypedDict, total=False):
    """What a search for serving plans holds fixed."""

    engine: str | Engine
    kv_dtype: str
    profile: str | Profile | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    input_len: int
    output_len: int
    spread: float
    disaggregated: bool


class CellOptions(StepOptions, total=False):
    """What ``compare`` takes beside a step's own."""

    global_batch: int
    local_tokens: int
