"""How a model is laid over GPUs, and what one step of it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Number = Any
"""int, float or a NumPy array: the same formula serves all three, which no type checker can follow."""

DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "mxfp4": 0.5, "nvfp4": 0.5, "fp4": 0.5, "int4": 0.5}
)
AXES = ("tp", "cp", "pp", "dp")
"""The axes that multiply to the number of GPUs; ``ep`` re-uses the ranks of tp, cp and dp."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is laid over GPUs. Sizes may be arrays; kinds (dtype, schedule, ZeRO stage …) are scalars."""

    tp: Number = 1
    pp: Number = 1
    dp: Number = 1
    ep: Number = 1
    cp: Number = 1
    sequence_parallel: bool = False
    zero: int = 0
    replicas: Number = 1  # servers of their own beside each other, each such a plan
    shard: Number = 0  # ranks that ZeRO 3 shards over (HSDP: groups of them are replicas); 0: all data-parallel ranks
    microbatches: Number = 1
    schedule: str = "1f1b"
    chunks: int = 1  # virtual stages a rank (interleaved schedules)
    recompute: str = "none"
    order: tuple[str, ...] = ("tp", "cp", "pp", "dp")  # innermost first
    weights_dtype: str = ""  # "": as the checkpoint stores them
    activations_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    grads_dtype: str = "bf16"

    @property
    def num_gpus(self) -> Number:
        """GPUs of one server or training job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def all_gpus(self) -> Number:
        return self.num_gpus * self.replicas

    @property
    def num_shards(self) -> Number:  # data-parallel ranks that hold one whole copy together under ZeRO 3
        return self.shard + (self.shard == 0) * self.dp


@dataclass(frozen=True, slots=True)
class Workload:
    """One engine step of one replica, any mix of decode and prefill. Sums run over the sequences of the step."""

    decode_seqs: Number = 0
    cached_tokens: Number = 0  # sum of context over decode sequences
    prefill_seqs: Number = 0
    prefill_tokens: Number = 0  # prompt tokens computed in this step
    past_tokens: Number = 0  # sum of tokens already cached over the prompts being computed
    rows_per_seq: int = 1  # k + 1 under speculative decoding with k drafted tokens

    @property
    def rows(self) -> Number:
        """Rows of the activation matrix before padding."""
        return self.decode_seqs * self.rows_per_seq + self.prefill_tokens

    @property
    def samples(self) -> Number:
        """Rows that need logits."""
        return self.decode_seqs * self.rows_per_seq + self.prefill_seqs


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimiser step: each replica runs ``plan.microbatches`` microbatches of ``micro_batch`` sequences."""

    micro_batch: Number = 1
    seq: Number = 4096
