"""How a model is laid over GPUs, and what one step of it does.

Add here a parallel axis, a kind of training, or what a step may consist of.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from commtax.records import Number, dataclass

DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp32": 4,
        "tf32": 4,
        "fp16": 2,
        "bf16": 2,
        "fp8": 1,
        "fp8-rowwise": 1,
        "mxfp8": 1,
        "int8": 1,
        "mxfp4": 0.5,
        "nvfp4": 0.5,
        "fp4": 0.5,
        "int4": 0.5,
    }
)
ARITHMETIC: Mapping[str, str] = MappingProxyType({"fp8-rowwise": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"})
"""Number formats whose arithmetic datasheets list under another name."""
AxisName = Literal["tp", "pp", "dp", "ep", "cp"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A way to split a model's work over ranks."""

    name: AxisName
    title: str
    flags: tuple[str, ...]  # how engines spell its option


PARALLEL: Mapping[str, Axis] = MappingProxyType(
    {
        axis.name: axis
        for axis in (
            Axis("tp", "tensor-parallel size", ("tensor-parallel", "tensor-model-parallel", "tp")),
            Axis("pp", "pipeline stages", ("pipeline-parallel", "pipeline-model-parallel", "pp")),
            Axis("dp", "replicas", ("data-parallel", "dp")),
            Axis("ep", "expert-parallel size", ("expert-model-parallel", "ep")),
            Axis("cp", "context-parallel size", ("context-parallel",)),
        )
    }
)
"""All axes: options, page, tables and documents loop over them."""
SIZES: tuple[AxisName, ...] = get_args(AxisName)
SERVING_AXES: tuple[AxisName, ...] = ("tp", "pp", "dp", "ep")  # the axes of a served step
AXES: tuple[AxisName, ...] = ("tp", "cp", "pp", "dp")
"""The axes that multiply to the number of GPUs, innermost first; ``ep`` re-uses the ranks of tp, cp and dp."""
CACHE_SPLIT = "dcp"  # the size that takes ranks of tp, and no GPUs of its own
TAXES: tuple[AxisName, ...] = ("dp", "tp", "pp", "ep", "cp")  # the axes in the order in which their taxes are told
OVERLAPPED: tuple[AxisName, ...] = ("dp", "cp", "tp", "ep", "pp")
"""The axes in the order in which engines learnt to run their collectives beside compute."""


MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act")
"""Parts of a layer that Megatron recomputes by name (its ``--recompute-modules``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is laid over GPUs. Sizes may be arrays; kinds (dtype, schedule, ZeRO stage …) are scalars."""

    tp: Number = 1
    pp: Number = 1
    dp: Number = 1
    ep: Number = 1
    cp: Number = 1
    dcp: Number = 1  # of a replica's tp ranks, so many split a cached sequence among them
    sequence_parallel: bool = False
    zero: int = 0
    replicas: Number = 1  # servers of their own beside each other, each such a plan
    shard: Number = 0  # ranks that ZeRO 3 shards over (HSDP: groups of them are replicas); 0: all data-parallel ranks
    microbatches: Number = 1
    schedule: str = "1f1b"
    chunks: int = 1  # virtual stages a rank (interleaved schedules)
    recompute: str = "none"  # or "selective", "full", or modules: "core_attn,moe"
    order: tuple[str, ...] = AXES  # innermost first
    weights_dtype: str = ""  # "": as the checkpoint stores them
    activations_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    state_dtype: str = "fp32"  # of recurrent states where a model's config.json does not say
    grads_dtype: str = "bf16"
    lora_rank: int = 0  # of adapters that are served beside the model, or alone trained; 0: there are none
    max_loras: int = 1  # … and how many of them at once
    redundant_experts: int = 0  # copies of popular experts beside the model's own, of all ranks together
    tower: str = "weights"  # how tp ranks share a vision tower: "weights", or "data": each has it whole and looks at its pictures

    @property
    def num_gpus(self) -> Number:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def remade(self) -> tuple[str, ...]:
        """Modules of a layer that backward computes again by name."""
        return tuple(name for name in self.recompute.split(",") if name in MODULES)

    def share(self, length: Number) -> Number:
        """Tokens of a sequence that one of its context-parallel ranks has."""
        return length / self.cp

    @property
    def all_gpus(self) -> Number:
        return self.num_gpus * self.replicas

    @property
    def splits_sequences(self) -> bool:
        """Whether ranks share the cache of a sequence, or its prompt, in any of the plans."""
        return bool(np.any(np.asarray(self.dcp) > 1) or np.any(np.asarray(self.cp) > 1))

    @property
    def redundant(self) -> Number:
        """Copies of experts beside the model's own: where experts are not spread over ranks there are none."""
        return self.redundant_experts * (self.ep > 1)

    @property
    def num_shards(self) -> Number:  # data-parallel ranks that hold one whole copy together under ZeRO 3
        return self.shard + (self.shard == 0) * self.dp


COUNTED = tuple(f.name for f in fields(Plan) if f.type == Number)  # what is counted of a plan, and may be an array …
KINDS = ("zero", "recompute", "schedule", "chunks")  # … and the kinds of training, each one for all plans of an array


@dataclass(frozen=True, slots=True)
class Workload:
    """One engine step of one replica, any mix of decode and prefill. Sums run over the sequences of the step."""

    decode_seqs: Number = 0
    cached_tokens: Number = 0  # sum of context over decode sequences
    prefill_seqs: Number = 0
    prefill_tokens: Number = 0  # prompt tokens computed in this step
    past_tokens: Number = 0  # sum of tokens already cached over the prompts being computed
    rows_per_seq: int = 1  # k + 1 under speculative decoding with k drafted tokens
    pictures: Number = 0  # that the vision tower looks at in this step
    patches: Number = 0  # … of each

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
