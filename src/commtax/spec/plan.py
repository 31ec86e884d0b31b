"""How a model is laid over GPUs, what one step of it does, and with which techniques.
Add here a parallel axis, a kind of training, a technique, or what a step may consist of."""

from collections.abc import Mapping
from dataclasses import field, fields
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from commtax.records import Number, dataclass
from commtax.spec.model import Model

_SIZES = {
    4: ("fp32", "tf32"),
    2: ("fp16", "bf16"),
    1: ("fp8", "fp8-rowwise", "mxfp8", "int8"),
    0.5: ("mxfp4", "nvfp4", "fp4", "int4"),
}
DTYPE_BYTES: Mapping[str, float] = MappingProxyType({name: size for size, names in _SIZES.items() for name in names})
ARITHMETIC: Mapping[str, str] = MappingProxyType({"fp8-rowwise": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"})
"""Number formats whose arithmetic datasheets list under another name."""
AxisName = Literal["tp", "pp", "dp", "ep", "cp"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A way to split a model's work over ranks."""

    name: AxisName
    title: str
    flags: tuple[str, ...]  # how engines spell its option


_AXES = (
    Axis("tp", "tensor-parallel size", ("tensor-parallel", "tensor-model-parallel", "tp")),
    Axis("pp", "pipeline stages", ("pipeline-parallel", "pipeline-model-parallel", "pp")),
    Axis("dp", "replicas", ("data-parallel", "dp")),
    Axis("ep", "expert-parallel size", ("expert-model-parallel", "ep")),
    Axis("cp", "context-parallel size", ("context-parallel",)),
)
PARALLEL: Mapping[str, Axis] = MappingProxyType({axis.name: axis for axis in _AXES})
"""All axes: options, page, tables and documents loop over them."""
SIZES: tuple[AxisName, ...] = get_args(AxisName)
SERVING_AXES: tuple[AxisName, ...] = ("tp", "pp", "dp", "ep")  # the axes of a served step
AXES: tuple[AxisName, ...] = ("tp", "cp", "pp", "dp")
"""The axes that multiply to the number of GPUs, innermost first; ``ep`` re-uses the ranks of tp, cp and dp."""
CACHE_SPLIT = "dcp"  # the size that takes ranks of tp, and no GPUs of its own
TAXES: tuple[AxisName, ...] = ("dp", "tp", "pp", "ep", "cp")  # the axes in the order in which their taxes are listed
OVERLAPPED: tuple[AxisName, ...] = ("dp", "cp", "tp", "ep", "pp")
"""The axes in the order in which engines learnt to run their collectives beside compute."""
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act")
"""Parts of a layer that Megatron recomputes by name (its ``--recompute-modules``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is laid over GPUs. Sizes may be arrays, while kinds (dtype, schedule, ZeRO stage …) are scalars."""

    tp: Number = 1
    pp: Number = 1
    dp: Number = 1
    ep: Number = 1
    cp: Number = 1
    dcp: Number = 1  # how many of a replica's tp ranks split a cached sequence among them
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
        """Return the tokens of a sequence that one of its context-parallel ranks has."""
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


@dataclass(frozen=True, slots=True)
class Techniques:
    """Techniques of a served step that are on. One that is off changes nothing."""

    two_batches: bool = False  # halves of a batch run in turn: exchanges of one beside the kernels of the other …
    two_batches_from: int = 0  # … from this many tokens per rank on; 0: the engine's own threshold
    single_batch: bool = False  # exchanges of a batch run beside its own shared expert and down-projection
    sequence_tokens: int = 0  # sequences are split in steps of at least this many tokens; 0: in all, -1: where the engine does
    async_tp: bool = False  # products are cut into tiles, beside which gathers and scatters run
    shared_stream: bool = False  # the shared expert runs beside the routed ones
    async_scheduling: bool = False  # the host prepares a step while the one before it runs
    fused_reduce: str = ""  # an all-reduce, residual and norm in one kernel: "auto", or the algorithm that it shall run
    dispatch_dtype: str = ""  # what tokens travel to their experts in; "": as the experts' arithmetic is
    balanced: bool = False  # experts are laid out by measured loads (EPLB)
    drafter: str = ""  # what drafts tokens: "mtp", "eagle3", "ngram" …; how many is ``speculative``
    acceptance: float = -1.0  # probability that a draft is accepted once those before it were; below 0: by the next field
    accepted_length: float = 0.0  # tokens that a step yields per sequence, its own included; 0: by the acceptance, or as measured
    draft_model: str = ""  # the model that drafts, where the drafter is one of its own
    draft_text: str = ""  # kind of text that acceptances were measured on, "": chat
    per_step: float = 1.0  # tokens that a decode step yields per sequence, all of the above considered: settled, no option
    native_latents: bool = False  # FlashMLA reads a cache of fp8 latents as it is, where the engine's usual kernel copies all of it
    kv_transfer: str = ""  # what carries a cache from prompt workers to those that decode; "": the engine's own
    kv_tier: str = ""  # where cached prefixes lie: "host", "disk" or "remote" memory; "": in the GPU's own cache


NO_TECHNIQUES = Techniques()


@dataclass(frozen=True, slots=True)
class Drafter:
    """What guesses the tokens that a step checks, as it is run beside a model."""

    key: str
    model: Model | None = None  # its layers and its head, as a model; None: drafts are looked up in the text
    modules: int = 1  # such models that are loaded, run in turn
    joined: int = 0  # states of the model's width that a matrix joins into its input …
    rejoined: bool = False  # … for every draft, else for verified tokens alone
    doubled: bool = False  # the first layer's queries, keys and values read the embedding beside the state
    parallel: bool = False  # all drafts come out of one forward pass
    context_only: bool = False  # verified tokens and prompts enter its caches alone: keys and values of each layer
    markov: int = 0  # rank of the matrices by which a draft corrects the logits of the next; 0: there are none
    own_embedding: bool = False  # it brings an embedding of its own …
    own_head: bool = False  # … and a head


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique as options name it: ``mtp=3:0.8`` sets what it always sets, and what stands behind ``=`` in turn."""

    key: str
    title: str
    group: str  # overlap | collectives | experts | context | drafts | cache
    sets: Mapping[str, object] = field(default_factory=dict)  # fields of the question, and what they become
    takes: tuple[str, ...] = ()  # fields that values behind ``=`` are for, in their order; ``FIELD?`` may be left out
    also: tuple[str, ...] = ()  # other names
    usual: str = ""  # the values that are tried by default: ``3`` or ``int4``
    flags: Mapping[str, str] = field(default_factory=dict)  # by engine: the flags that request it, fields in braces
    along: Mapping[str, str] = field(default_factory=dict)  # by engine: what of the plan's own flags changes with it
    families: tuple[str, ...] = ()  # of chips that have kernels for it; (): it needs none
    needs: tuple[str, ...] = ()  # techniques, one of which has to be on beside it
    always: Mapping[str, str] = field(default_factory=dict)  # by engine: the version since which it is on by default
    dropped: Mapping[str, str] = field(default_factory=dict)  # by engine: the version since which there is no such technique
    words: Mapping[str, str] = field(default_factory=dict)  # of a value: what the field becomes for it
    lossy: bool = False  # numbers come out otherwise: quality is to be checked, and no search turns it on by itself
    source: str = ""  # where it is described

    @property
    def at_usual_values(self) -> list[str]:
        """It with each of its usual values, as ``--technique`` takes it."""
        return [f"{self.key}={value}" for value in self.usual.split()] or [self.key]
