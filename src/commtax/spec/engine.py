"""Serving engines and training frameworks: what each really sends, waits for, batches, reserves and overlaps.
Add here a field that a file of ``catalog/engines`` may set; its default is what an engine does that does not know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

from commtax.records import dataclass, replace
from commtax.spec.constants import NO_SOURCE
from commtax.spec.hardware import Citation
from commtax.statement import Source


@dataclass(frozen=True, slots=True)
class Sending:
    """What an engine sends: how it pads, hands on and spreads."""

    vocab_multiple: int = 1
    graph_sizes: tuple[int, ...] = ()  # captured batch sizes; a batch is padded up to the next
    graph_rows: float = float("inf")  # … of at most so many rows on this chip …
    graph_rows_wide: float = float("inf")  # … and so many from tp 4 on
    graph_counts_seqs: bool = False  # sizes of graphs that check drafts count sequences; else rows, in whole sequences
    graph_pads_prefill: bool = False
    logits_padded: bool = False  # logits are computed inside the graph, for padded rows too
    reduce_share: float = 1.0  # an all-reduce's time against its library's tables: fused with neighbours, in registered buffers
    fused_reduce_most: tuple[str, ...] = ()  # "chip ranks bytes": the largest tensors whose sum runs with its norm; (): any
    fused_reduce_rows: float = float("inf")  # … and the most rows of one
    on_by_default: tuple[str, ...] = ()  # techniques that its times hold already, each with the families or models, if not all
    pp_tensors: int = 1  # tensors handed to the next stage
    odd_layers: str = "before-last"  # stages that take the odd layers of an uneven split: also "last", "first"
    pp_scatter: bool = False  # each tp rank sends 1/tp and the receiver gathers
    latent_reduced: bool = False  # outputs of experts in a latent are summed there, those of shared experts apart
    ep_backends: tuple[str, ...] = ()
    exchange_by_step: bool = False  # a server sends decodes to experts by other kernels than prompts, not all by the chosen ones
    ep_is_tp_dp: bool = False  # the engine knows one expert-parallel size only: tp x dp
    attention_dp_whole: bool = False  # attention data parallelism keeps attention whole on each GPU
    experts_keep_tp: bool = False  # experts stay split over tp inside an expert-parallel rank …
    hosts_a_token: int = 0  # training: hosts that a token may choose experts of (node-limited routing); 0: any
    experts_whole: bool = False  # … or no expert is ever cut: neighbouring ranks of tp, cp and dp have different ones


@dataclass(frozen=True, slots=True)
class ContextHabits:
    """How an engine that serves splits a sequence among ranks: its cache among those of tp, and its prompt among those of cp."""

    # What joins the outputs of ranks that each saw a part of the cache: their log-sums gathered and the outputs scattered in sums
    # ("ag_rs"), or both sent to the ranks that the heads belong to ("a2a"); "": the cache of a sequence is not split.
    cache_join: str = ""
    cache_kinds: tuple[str, ...] = ()  # of attention whose cache is split: "latent", "grouped"
    join_launches: float = 0.0  # small kernels of a layer around that: copies, the correction of outputs
    queries_remade: bool = False  # ranks that share a cache each make the queries of all of them (Helix); else they gather them
    prompt_split: bool = False  # prompts are split among cp ranks, which gather the keys of all tokens
    prompt_experts: str = "copied"  # … and each has all experts that tp leaves it; "cut": cp ranks share them, as tp ranks do


@dataclass(frozen=True, slots=True)
class KernelHabits:
    small_kernels: float = 1.0  # share of a plain engine's small kernels that is left after fusing them into neighbours
    small_bytes: float = 1.0  # … and of their bytes: fused into products and all-reduces they read and write less
    sort_launches: float = 0.0  # element-wise launches as long as sorting the most likely tokens to choose one; 0: it sorts none …
    sort_bytes: float = 0.0  # … and the bytes that it moves, for each logit
    prefill_fp8: bool = False  # prompts attend in fp8 where the cache is kept in it
    widened_latents: tuple[str, ...] = ()  # families of chips on which each layer copies all of a cache of fp8 latents into 16 bits
    head_norm_kernels: int = 0  # launches for norms of queries and keys a layer; 0: inside the rotary kernel
    routing_launches: float = 4.0  # of kernels around the experts of a layer: choose and sort, permute, activate, combine
    routing_passes: float = 0.0  # … which move a token's copies so often beyond what is needed
    biased_passes: float = 0.0  # … and the inside of experts with biases, which no fused kernel adds, clamps and sums
    fused_experts: bool = False  # the routed part of a layer is kernels made for it, not plain products around small kernels
    experts_rate: float = 1.0  # training: arithmetic of experts' products over that of plain ones
    quantises: bool = False  # plain weights become fp8 as they are loaded, and activations with scales found on the way
    experts_by: tuple[str, ...] = ()  # "Architecture backend", "Architecture/format backend": experts with other kernels than usual
    quantises_apart: bool = False  # a kernel of their own quantises inputs of fp8 products with known scales
    fp8_rate: float = 1.0  # arithmetic of fp8 products against tables of single kernels: quantised by neighbours, tuned by shape …
    fp4_rate: float = 1.0  # … and of 4-bit ones
    experts_apart: str = ""  # the experts' implementation where attention runs in replicas; "": by the exchange
    experts_spread: tuple[str, ...] = ()  # "format backend": experts that lie whole on ranks with other kernels than cut ones
    popularity: float = float("inf")  # shape of the experts' popularity (gamma); inf: all equally popular

    def experts_backend(self, architecture: str, stored: str) -> str:
        """Return the implementation of a model's experts in a format, "" for the usual one."""
        named = dict(pair.split() for pair in self.experts_by)
        return named.get(f"{architecture}/{stored}", named.get(architecture, ""))

    def spread_backend(self, stored: str) -> str:
        """Return it where experts lie whole on ranks, "" where that is as for cut ones."""
        return dict(pair.split() for pair in self.experts_spread).get(stored, "")


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds that an engine's host adds, and how sure they are."""

    host_s: float = 0.0  # the GPU waits this long for the host in every step …
    host_s_per_doubling: float = 0.0  # … this much more for each doubling of tp …
    host_s_per_seq: float = 0.0  # … and for each sequence of the step
    prompt_s: float = 0.0  # a step with prompts takes this much longer: they are launched kernel by kernel
    request_s: float = 0.0  # a request's way through the server, to its first step and back with its first token
    mixture_prompt: float = 1.0  # … and of a mixture of experts, whose layers launch more kernels, by this factor …
    mixture_request: float = 1.0  # … as is the way of its requests
    of_mixtures: bool = False  # the times above include both
    frontend_request_s: float = 0.0  # the server's front end takes this long for a request …
    frontend_token_s: float = 0.0  # … and for a token it streams: both limit throughput
    handover_s: float = 0.0  # from a prompt's last step on a worker of its own to one that decodes it, but for its cache's way
    launch_s: float = 0.0  # one kernel launch without graphs
    launches: bool = False  # every step is launched kernel by kernel, as it is served …
    gap_s: float = 0.0  # … and the GPU waits this long between two of them
    sigma_host: float = 0.3  # standard deviation of the logarithm of the host's time
    sigma_tpot: float = 0.0  # standard deviation of log errors on runs that were not fitted, of dense models …
    sigma_ttft: float = 0.0
    sigma_tpot_moe: float = 0.0  # … and of mixtures of experts
    sigma_ttft_moe: float = 0.0
    pooled: bool = False  # times are pooled over published runs, and ranges are of groups left out (``catalog/transfer.toml``)
    calibrated: bool = False  # host times were fitted on measured runs of this engine …
    served_on: tuple[str, ...] = ()  # … on these chips
    host_label: Source = NO_SOURCE  # where they come from, if not from the catalogue


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds of a served step's parts over those of the catalogue, as runs of one deployment taught them (``calibrate``)."""

    pace_products: float = 1.0  # matrix products
    pace_experts: float = 1.0  # experts and what surrounds them
    pace_decoding: float = 1.0  # attention of sequences that decode
    pace_prompting: float = 1.0  # attention of prompts
    pace_small: float = 1.0  # all other kernels
    pace_latency: float = 1.0  # of collectives, whatever their size
    pace_wire: float = 1.0  # bytes of collectives
    pace_prompt_steps: float = 1.0  # whole steps with prompts, beside all of these
    learnt: tuple[tuple[str, float], ...] = ()  # constants that a profile moved, and by what logarithm


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How an engine batches requests."""

    prefill_first: bool = False  # prompts run in steps of their own, before decoding goes on; else both share steps
    chunked: bool = True  # prompts are cut to the step's token budget
    chunks_follow: bool = False  # chunks of a prompt follow each other through stages; else one leaves the last before the next
    kv_reserved: bool = False  # a request is admitted when the cache holds its whole output; else on demand
    ahead: bool = False  # the next step is decided when the present one begins: who comes meanwhile waits for one more
    prompts_per_step: int = 2**31  # at most
    steps_per_decision: int = 1  # decode steps that run before waiting requests are looked at again
    batch_wait: int = 0  # decode steps that a request waits for others to be computed with (closed loops)
    rank_patience: int = 0  # decode steps after which ranks that share experts compute the prompts that wait for them …
    rank_gathering: int = 0  # … and after which they do when each of them has one
    max_batched_tokens: int = 2048
    max_seqs: int = 256
    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # limits by the chip's memory, from ``from_bytes`` on


@dataclass(frozen=True, slots=True)
class Overlapping:
    """What an engine runs beside what, once that is switched on."""

    halves: str = ""  # how two halves of a batch of decodes take turns (``cost.overlap``); "": it halves none …
    prompt_halves: str = ""  # … and of a batch with prompts
    halves_rows: int = 2  # tokens of a rank from which decodes are halved …
    prompt_halves_rows: int = 2  # … and batches with prompts
    combine_sms: Mapping[str, float] = field(default_factory=dict)  # single-batch overlap: multiprocessors of a combine, by family
    shared_beside: str = ""  # the exchange that a shared expert on a stream of its own runs beside; "", or none: routed experts …
    shared_rows: int = 0  # … in steps of at most this many rows; 0: in all
    sequence_bytes: Mapping[str, float] = field(default_factory=dict)  # a rank's part from which it splits sequences, by family …
    sequence_hidden: int = 0  # … in models of at least this width
    # Training: sums of columns' input gradients run beside weight gradients, inputs are gathered again beside input gradients.
    column_gradients: bool = False


@dataclass(frozen=True, slots=True)
class MemoryHabits:
    """What an engine reserves and loads beside weights and cache."""

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    utilization_of: str = "total"  # "free": of what weights and activations leave; "static": weights and KV only
    kv_of_checkpoint: bool = False  # a cache in fp8 where a checkpoint brings scales for it, unless the command sets a type
    reserve: Mapping[str, float] = field(default_factory=dict)  # what "static" leaves free, where no share is given
    moe_chunk_tokens: int = 2**31  # tokens that a fused MoE kernel takes at once
    non_torch_bytes: float = 0.0  # communicators, library workspaces: on one GPU
    non_torch_bytes_per_doubling: float = 0.0  # … and for each doubling of tp
    sampler_bytes_per_logit: float = 0.0
    graph_bytes: float = 0.0  # taken beside the budget, after KV blocks are counted
    start_lines: tuple[str, ...] = ()  # wordings of memory in its start-up log
    refuses_to_start: bool = False  # where its cache has no room for one request of full length
    kv_spread_bytes: float = 1e9  # four of five start-ups leave a KV cache within this of the prediction
    latent_absorbed: bool = False  # keeps a second, bf16 copy of latent attention's up-projection
    rotary_table: bool = False  # keeps cosines and sines of every position
    mxfp4_multiple: int = 1  # kernels for mxfp4 experts pad the hidden side to this, and a rank's width to …
    mxfp4_width_multiple: int = 1
    lora: bool = False  # serves LoRA adapters …
    lora_ranks: tuple[int, ...] = ()  # … with room for these ranks alone; none: any


@dataclass(frozen=True, slots=True)
class StateHabits:
    """Where an engine keeps what a sequence has of one size: recurrent states, windows, unfinished entries of compressors."""

    state_pool: str = "beside"  # "blocks": in blocks as large as those of KV; "share": in a pool of their own; "beside": in bytes
    state_slots: int = 1  # states of a layer that a running request has: its own, and those kept for prefixes
    state_share: float = 0.0  # bytes of the pool of states over those of KV, where they have a pool of their own
    state_dtype: str = "fp32"  # of recurrent states where a model does not say; "": as activations
    state_block_multiple: int = 16  # blocks of KV are raised to hold a state, in whole multiples of this many tokens …
    state_block_multiple_latent: int = 16  # … and of this many where KV is a latent
    tokens_at_full_length: bool = False  # the log counts KV tokens as requests of full length, not as blocks of a group
    compressed_kv_dtype: str = "fp8"  # a compressed latent is kept in this type unless another is chosen
    compressed_block: int = 0  # tokens whose entries share a block; 0: entries and windows are counted in bytes
    window_block: int = 64  # tokens of a window in a block
    window_share: float = 0.0  # tokens in a pool of compressed attention's windows over all tokens; 0: windows lie in blocks
    page_multiple: int = 1  # a layer's part of a block is padded to whole multiples of this many bytes
    packed_pages: bool = False  # a block is as large as the largest group of layers needs, else as all of them padded
    windows_in_flight: bool = False  # windows keep the tokens of all steps in flight, not of one
    block_per_state: bool = False  # starts only with a block for the state of each of max_num_seqs requests


@dataclass(frozen=True, slots=True)
class Drafting:
    """How an engine runs what drafts tokens."""

    drafters: tuple[str, ...] = ()  # the kinds that it has
    draft_step_s: float = 0.0  # a step with drafts makes the GPU wait this much longer for the host: who accepts what is read back
    draft_pass_s: float = 0.0  # … and in every forward pass of a drafter: it is launched piece by piece
    draft_seq_s: float = 0.0  # looking drafts up in the text takes the host this long for each sequence


@dataclass(frozen=True, slots=True)
class TrainingHabits:
    grads_dtype: str = "bf16"
    zero: int = 0  # ZeRO stage unless the plan sets one
    master_is_parameter: bool = False  # the sharded parameter is the fp32 master copy itself
    async_axes: tuple[str, ...] = ()  # training: axes whose collectives are launched beside compute
    overlap_efficiency: float = 0.0  # share of an overlapped collective that really hides: it takes SMs and bandwidth
    bucket_bytes: float = 0.0  # gradients are reduced in pieces of this size …
    bucket_bytes_per_rank: float = 0.0  # … or, if larger, of this size for each data-parallel rank
    gather_rate: float = 1.0  # of the links' bandwidth, what collectives of parameters and gradients attain: one call a tensor
    balances_head: bool = False  # layers are laid out by hand: the stage of the head has as few as the others leave it
    step_host_s: float = 0.0  # once a step, whatever its size: norms, checks for overflow, the optimiser's own work on the host
    accumulate_bytes: float = 0.0  # moved for each parameter to add a microbatch's gradients up; 0: inside the products
    gathers_ahead: bool = False  # updated parameters are gathered beside the next forward, not inside the update
    remakes_activation: bool = False  # backward of the gated activation makes its output again, which is not kept
    regathers_inputs: bool = False  # sequence parallel: backward gathers the products' inputs again instead of keeping them
    has_stages: bool = True  # a model can be cut into pipeline stages
    context_parallel: str = ""  # "ring": keys go round; "gather": they are gathered; "": the engine has none
    repeats_keys: bool = False  # … once for every query head that shares them
    attention: str = "fused"  # training: the chip's best kernel; or "flash2", "triton"; "unfused" writes the score matrix
    # What selective recomputation repeats: the "attention" core, every other of the "matmuls", or norms and "up-projections".
    selective: str = ""
    keeps_quantised: bool = False  # inputs of products are kept for backward in the number format that they were multiplied in
    recompute_stops: bool = False  # recomputing a layer stops before its last product, whose output no gradient needs
    sequence_parallel: bool = False  # training: tensor parallelism comes with sequence parallelism
    narrow_gathers: bool = False  # … and gathers in fp8 what fp8 products take, in fp4 what those of fp4 take
    elementwise_passes: float = 1.0  # bytes that its norms, activations and residuals move over those of fused kernels …
    eager_passes: float = 1.0  # … and without a compiler


@dataclass(frozen=True, slots=True)
class TrainedExperts:
    layer_host_s: float = 0.0  # the host takes this long for a layer of experts and a microbatch; the GPU waits if it is faster …
    expert_host_s: float = 0.0  # … and this long for each of a rank's experts in it …
    sync_s: float = 0.0  # … and always waits this long for the host to read how many tokens each expert has
    # Formats in which experts' products cast, add and activate inside, and read such counts themselves: a step is one graph.
    graphed_experts: tuple[str, ...] = ()
    needs_sequence_parallel: bool = False  # for experts that are spread beside tensor parallelism


@dataclass(frozen=True, slots=True)
class TrainingSpread:
    """How far whole training steps are off: standard deviations of the logarithm of steps that constants were not fitted on."""

    dense_sigma: float = 0.0  # of releases that were left out of the fit …
    dense_sigma_apart: float = 0.0  # … and of chips
    mixture_sigma: float = 0.0
    mixture_sigma_apart: float = 0.0
    fitted_chips: tuple[str, ...] = ()  # whose runs its constants were fitted on


@dataclass(frozen=True, slots=True)
class Program:
    """How an engine is started, recognised and benchmarked: what commands are read and written by, and no price needs."""

    key: str
    title: str
    place: int  # in lists of programs
    called: str  # as people name the command
    trains: bool = False
    emitted_as: str = ""  # what ``--emit`` calls it, where that is not its key
    starts: tuple[tuple[str, str, int], ...] = ()  # a word, what follows it, and how many words name the program (0: another)
    script: str = ""  # a pattern of the scripts that torchrun starts it by …
    script_named: str = ""  # … in words …
    script_flag: str = ""  # … and a part of a flag that no other program has
    call: str = ""  # the class of its Python interface
    image: str = ""  # whose entry point is the server
    port: int = 8000  # of its first server by default
    benchmark: tuple[str, ...] = ()  # its tool, what makes requests exactly as long as stated, and where it keeps the result
    range_from_longest: bool = False  # the benchmark's range ratio is the shortest length over the longest, else a spread
    replicas: str = ""  # data-parallel replicas of a dense model that one server starts: "all", those of a "host", none
    listens: bool = False  # to other hosts by default
    names: tuple[str, ...] = ()  # in manifests: its names …
    images: tuple[str, ...] = ()  # … parts of its images' names …
    kinds: tuple[str, ...] = ()  # … resources whose operator starts it …
    keys: tuple[str, ...] = ()  # … and keys that only its charts have
    variables: str = ""  # what its environment variables begin with


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine or training framework, as data: who it is, and what it really does, part by part."""

    key: str
    name: str
    version: str
    phases: tuple[str, ...]
    order: tuple[str, ...]
    library: str = "nccl"  # whose all-reduce it calls
    launched_as: str = ""  # the engine whose command stands for its own, where it has none; "": the usual one of its phases
    sends: Sending = Sending()
    contexts: ContextHabits = ContextHabits()
    kernels: KernelHabits = KernelHabits()
    host: HostTime = HostTime()
    paces: Paces = Paces()
    serves: Scheduling = Scheduling()
    overlaps: Overlapping = Overlapping()
    memory: MemoryHabits = MemoryHabits()
    states: StateHabits = StateHabits()
    drafts: Drafting = Drafting()
    trains: TrainingHabits = TrainingHabits()
    mixes: TrainedExperts = TrainedExperts()
    spread: TrainingSpread = TrainingSpread()
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # constants of other versions, where fitted
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Citation] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.key, self.version))

    def serving_mixtures(self) -> Engine:
        """Return the engine with its times of mixtures of experts, whatever it had before."""
        host = self.host
        if host.of_mixtures:
            return self
        times = {"prompt_s": host.prompt_s * host.mixture_prompt, "request_s": host.request_s * host.mixture_request}
        return self.but(of_mixtures=True, **times)

    def but(self, **changes: Any) -> Engine:
        """Return the same engine with some of its facts changed, whichever part they belong to."""
        parts: dict[str, dict[str, Any]] = {}
        for name in changes:
            if name in PART_OF_FACT:
                parts.setdefault(PART_OF_FACT[name], {})[name] = changes[name]
        whole = {name: value for name, value in changes.items() if name not in PART_OF_FACT}
        return replace(self, **whole, **{part: replace(getattr(self, part), **facts) for part, facts in parts.items()})


ENGINE_PARTS: Mapping[str, type] = {f.name: type(f.default) for f in fields(Engine) if is_dataclass(f.default)}
PART_OF_FACT: Mapping[str, str] = {f.name: part for part, kind in ENGINE_PARTS.items() for f in fields(kind)}
