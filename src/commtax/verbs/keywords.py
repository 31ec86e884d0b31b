"""Keywords of the public functions, for editors and checkers of types. Written by benchmarks/keywords.py."""

# ruff: noqa: E702
# fmt: off
from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

from commtax.spec import Cluster, Engine, Number, Profile
from commtax.spec.stream import Lengths, RequestStream

Numbers = Number | Sequence[int]
Profiles = str | PathLike[str] | Profile | Sequence[str | PathLike[str] | Profile]

class SharedStepOptions(TypedDict, total=False):
    engine: str | Engine; profile: Profiles | None; tp: Numbers; pp: Numbers; dp: Numbers; ep: Numbers; cp: Numbers
    sequence_parallel: bool | None; dtype: str; kv_dtype: str; lora_rank: int; max_loras: int; redundant_experts: int
    replicas: Numbers; tower: str; speculative: int; technique: str; dcp: Numbers; acceptance: float; accepted_length: float
    draft_text: str; eager: bool; ep_backend: str; imbalance: float; sampling: str; slow_rank: float; overlap: float; library: str

class SharedTrainingOptions(TypedDict, total=False):
    engine: str | Engine; profile: Profiles | None; tp: Numbers; pp: Numbers; dp: Numbers; ep: Numbers; cp: Numbers
    sequence_parallel: bool | None; dtype: str; kv_dtype: str; lora_rank: int; max_loras: int; redundant_experts: int
    replicas: Numbers; batch: Numbers; context: Numbers; tower: str; micro_batch: Numbers; zero: int | None; recompute: str
    schedule: str; chunks: int; microbatches: Number; shard: Number

class SharedLimitOptions(TypedDict, total=False):
    max_model_len: int | None; max_num_seqs: int | None; max_num_batched_tokens: int | None; gpu_memory_utilization: float | None

class BillOptions(SharedStepOptions, total=False):
    phase: str; batch: Numbers; context: Numbers; images: int; image_size: str | tuple[int, int]; zero: int | None; recompute: str
    schedule: str; chunks: int; microbatches: Number; shard: Number; latency_scale: float; bandwidth_scale: Number

class TrainBillOptions(SharedTrainingOptions, total=False):
    eager: bool; ep_backend: str; imbalance: float; slow_rank: float; library: str; hsdp: Number
    async_axes: tuple[str, ...] | None; flops: str; latency_scale: float; bandwidth_scale: Number; slow_axis: str; slow_links: float

class TrafficOptions(SharedTrainingOptions, total=False):
    phase: str; images: int; image_size: str | tuple[int, int]; speculative: int; technique: str; dcp: Numbers; eager: bool
    ep_backend: str; sampling: str

class FitOptions(SharedLimitOptions, total=False):
    engine: str | Engine; profile: Profiles | None; tp: Numbers; pp: Numbers; dp: Numbers; ep: Numbers; cp: Numbers
    sequence_parallel: bool | None; dtype: str; kv_dtype: str; lora_rank: int; max_loras: int; redundant_experts: int
    replicas: Numbers; tower: str; speculative: int; technique: str; dcp: Numbers; eager: bool; ep_backend: str
    block_size: int | None; kv_cache_memory_bytes: float; recurrent_dtype: str; state_slots: int | None

class TrainFitOptions(SharedTrainingOptions, total=False):
    pass

class SimulateOptions(SharedStepOptions, SharedLimitOptions, total=False):
    images: int; image_size: str | tuple[int, int]; concurrency: Numbers; prefix_cache: float; kv_tokens: Number | None
    input_len: Numbers; output_len: Numbers; num_prompts: Number | None; spread: Number; disaggregated: bool
    prefill_workers: int | None; prefill_tp: int | None; prefill_dp: int | None; decode_workers: int | None
    prefill_cluster: str | Cluster | None; latency_scale: float; bandwidth_scale: Number

class ServeOptions(SharedStepOptions, SharedLimitOptions, total=False):
    block_size: int | None; kv_cache_memory_bytes: float; recurrent_dtype: str; state_slots: int | None; concurrency: int
    request_rate: float; trace: str | PathLike[str] | RequestStream; duration: float | str | None; burstiness: float
    unique_prompts: int | None; shared_prefix: int; prefix_cache: float | None; ramp_up: float | str; warmup: int; router: str
    seed: int; kv_tokens: int | None; input_len: int | str | Lengths; output_len: int | str | Lengths; num_prompts: int | None
    spread: float; disaggregated: bool; prefill_workers: int | None; prefill_tp: int | None; prefill_dp: int | None
    decode_workers: int | None; prefill_cluster: str | Cluster | None; max_concurrency: int | None; latency_scale: float
    bandwidth_scale: Number

class PlanOptions(SharedLimitOptions, total=False):
    engine: str | Engine; profile: Profiles | None; kv_dtype: str; redundant_experts: int; speculative: int; technique: str
    dcp: Numbers; acceptance: float; accepted_length: float; draft_text: str; eager: bool; ep_backend: str; imbalance: float
    sampling: str; slow_rank: float; overlap: float; library: str; workload: str; input_len: int; output_len: int; spread: float
    disaggregated: bool; prefill_cluster: str | Cluster | None; latency_scale: float; bandwidth_scale: Number

class PlanFleetOptions(SharedLimitOptions, total=False):
    engine: str | Engine; profile: Profiles | None; kv_dtype: str; redundant_experts: int; speculative: int; technique: str
    acceptance: float; accepted_length: float; draft_text: str; eager: bool; ep_backend: str; imbalance: float; sampling: str
    slow_rank: float; overlap: float; library: str; burstiness: float; unique_prompts: int | None; shared_prefix: int
    prefix_cache: float; router: str; seed: int; workload: str; input_len: int | str; output_len: int | str
    num_prompts: int | None; spread: float; disaggregated: bool; prefill_cluster: str | Cluster | None; latency_scale: float
    bandwidth_scale: Number

class PlanTrainingOptions(TypedDict, total=False):
    engine: str | Engine; profile: Profiles | None; dtype: str; eager: bool; ep_backend: str; imbalance: float; slow_rank: float
    library: str; async_axes: tuple[str, ...] | None; latency_scale: float; bandwidth_scale: Number; slow_axis: str
    slow_links: float

class CompareOptions(SharedStepOptions, total=False):
    phase: str; batch: Numbers; context: Numbers; images: int; image_size: str | tuple[int, int]; micro_batch: Numbers
    global_batch: int; zero: int | None; hsdp: Number; recompute: str; schedule: str; chunks: int
    async_axes: tuple[str, ...] | None; flops: str; microbatches: Number; shard: Number; latency_scale: float
    bandwidth_scale: Number; slow_axis: str; slow_links: float; local_tokens: int

class ComparePlansOptions(SharedStepOptions, total=False):
    phase: str; batch: Numbers; context: Numbers; images: int; image_size: str | tuple[int, int]; max_model_len: int | None
    micro_batch: Numbers; zero: int | None; hsdp: Number; recompute: str; schedule: str; chunks: int
    async_axes: tuple[str, ...] | None; flops: str; microbatches: Number; shard: Number; latency_scale: float
    bandwidth_scale: Number; slow_axis: str; slow_links: float

class WorthOptions(SharedStepOptions, SharedLimitOptions, total=False):
    phase: str; batch: Numbers; context: Numbers; concurrency: Numbers; request_rate: float; output_len: Numbers; spread: Number

class AuditRunOptions(SharedLimitOptions, total=False):
    engine: str | Engine; profile: Profiles | None; tp: Numbers; pp: Numbers; dp: Numbers; ep: Numbers; cp: Numbers
    sequence_parallel: bool | None; dtype: str; kv_dtype: str; redundant_experts: int; phase: str; batch: int; context: int
    output_len: int; eager: bool; library: str; block_size: int | None; kv_cache_memory_bytes: float; micro_batch: Numbers
    global_batch: int; zero: int | None; recompute: str; schedule: str; chunks: int

class ExpectOptions(TypedDict, total=False):
    pass

class PipelineOptions(TypedDict, total=False):
    pass
