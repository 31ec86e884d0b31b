"""The nouns: small frozen records that every verb shares.

Numbers are SI floats with the unit in the name. ``Plan`` and ``Workload`` may hold NumPy arrays in their numeric
fields; every function in ``cost`` then returns arrays of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
class Source:
    """Where a number was read."""

    title: str
    url: str
    date: str


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator. Peaks are dense; ``visible_bytes`` is the total that the driver reports to programs."""

    key: str
    name: str
    vendor: str
    family: str
    compute_capability: str
    intra: str
    inter: str
    gpus_per_host: int
    memory_bytes: float
    visible_bytes: float
    memory_Bps: float
    flops_per_s: Mapping[str, float]
    tdp_w: float = 0.0
    num_sms: int = 0
    l2_bytes: float = 0.0
    nvlink_domain: int = 0  # GPUs that one NVLink switch fabric joins, where it is larger than a host
    usd_per_gpu_hour: float = 0.0
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two GPUs (or two hosts): bandwidth of one GPU (or one NIC), in one direction."""

    key: str
    name: str
    kind: str
    scope: str
    switched: bool
    bandwidth_Bps: float
    latency_s: float
    nic_per_gpu: bool = False
    num_links: int = 0  # NVLinks that are bonded in it; 0: it is not counted in links
    mesh: int = 0  # GPUs joined pair by pair: a group of n has (n - 1) / (mesh - 1) of the rate; 0: all of it
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """``num_hosts`` equal hosts. ``nvlink_domain`` GPUs share an NVLink fabric: 72 on NVL72, 1 without NVLink."""

    key: str
    name: str
    chip: Chip
    num_hosts: int
    gpus_per_host: int
    nvlink_domain: int
    intra: Link
    inter: Link
    nics_per_host: int
    note: str = ""
    remark: str = ""  # how an unusual name was read: every answer says it
    sources: Mapping[str, Source] = field(default_factory=dict)
    bridge: Link | None = None  # joins GPU 0 with 1, 2 with 3 …; all others of a host reach each other over ``intra``

    @property
    def as_pairs(self) -> Cluster:
        """The same hosts as two bridged neighbours meet them."""
        return replace(self, intra=self.bridge or self.intra, bridge=None)

    @property
    def without_pairs(self) -> Cluster:
        """… and as all other groups do."""
        return replace(self, bridge=None)

    @property
    def num_gpus(self) -> int:
        return self.num_hosts * self.gpus_per_host

    @property
    def domain(self) -> int:
        """GPUs that reach each other over ``intra``: a host's, or all that one NVLink fabric joins."""
        return min(self.num_gpus, max(self.gpus_per_host, self.nvlink_domain))


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: queries and keys/values pass through low-rank latents."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention's token selector (DeepSeek-V3.2, GLM-5)."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Attention:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""  # "" | "head": one vector shared by all heads | "full": a weight for each element of all heads
    sinks: bool = False
    window: int = 0  # tokens a query can look back; 0: all
    latent: Latent | None = None
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class Mlp:
    intermediate: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts; ``shared_intermediate`` is the width of all shared experts together."""

    num_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer. ``num_norms`` counts norms of the hidden width (Gemma has four)."""

    attention: Attention
    ffn: Mlp | Experts
    num_norms: int = 2


@dataclass(frozen=True, slots=True)
class Quant:
    """How a checkpoint stores its linear weights. ``block`` is the (out, in) tile that shares a scale; 0 = whole side."""

    method: str
    dtype: str
    block: tuple[int, int] = (0, 0)
    scale_bytes: float = 4.0
    zero_point_bits: int = 0
    group_index: bool = False  # GPTQ keeps an int32 a row
    ignored: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # if given, only tensors that match are quantised
    weight_only: bool = False  # activations stay as they are (W4A16), whatever arithmetic the chip has


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision (or other) part beside the decoder: only its parameters are counted, each tensor by name and shape."""

    tensors: tuple[tuple[str, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, as its ``config.json`` tells it. ``layers[i]`` is the index of layer i's kind in ``blocks``."""

    key: str
    architecture: str
    hidden: int
    vocab: int
    blocks: tuple[Block, ...]
    layers: tuple[int, ...]
    max_len: int
    dtype: str = "bf16"
    tied: bool = False
    norm_bias: bool = False
    final_norm: bool = True
    head_bias: bool = False
    positions: int = 0  # rows of a learned position table; 0: rotary
    residual_stream: bool = True  # the residual is carried beside the hidden state (fused add and norm)
    moe_sequence_parallel: bool = False  # vLLM splits this family's MoE tokens over tp
    quant: Quant | None = None
    tower: Tower | None = None
    stored_bytes: int = 0  # bytes of all tensors in a local checkpoint's files; 0: not looked at
    aliases: tuple[str, ...] = ()
    source: Source | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> Attention:
        """Attention of the first layer; the head counts are the same in every layer of the supported families."""
        return self.blocks[self.layers[0]].attention

    @property
    def experts(self) -> Experts | None:
        """The mixture-of-experts part, if any layer has one."""
        return next((b.ffn for b in self.blocks if isinstance(b.ffn, Experts)), None)


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


@dataclass(frozen=True, slots=True)
class Path:
    """One way in which a library performs a collective, with its constants.

    Paths are tried in order of ``turn``; those of one turn compete on price. ``max_bytes`` limits the tensor by group size.
    """

    op: str
    algorithm: str
    bandwidth_Bps: float
    launch_s: float = 0.0
    hop_s: float = 0.0
    extra_s: float = 0.0
    sqrt_s: float = 0.0  # seconds per root of a byte
    turn: int = 0
    min_ranks: int = 1
    max_ranks: int = 2**31
    worlds: tuple[int, ...] = ()
    max_bytes: tuple[tuple[int, float], ...] = ()
    contention: tuple[tuple[int, float], ...] = ()  # by group size: how much slower bytes move when all ranks send (PCIe)
    mesh: int = 0  # GPUs of a mesh of direct links, as in ``Link``
    name: str = ""
    source: str = ""
    spread: float = 0.0  # half-width of the 80 % range around it, as a factor; 0: the fabric's
    ranks: tuple[int, ...] = ()  # least and most ranks that it was measured on; (): the library's


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measured times of one kind of collective lie from predicted ones: 4 in 5 within a factor of 1 + ``factor``."""

    where: str  # a kind of link inside a host, "across" hosts, or "eager"
    ops: tuple[str, ...]  # (): all
    max_bytes: float
    factor: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The paths that a library has for each collective on one chip and link, and how it crosses hosts."""

    name: str
    label: str  # calibrated | assumed | by definition
    paths: Mapping[str, tuple[Path, ...]]
    network_paths: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # the inside part of a group across hosts
    flat: bool = False  # … or the whole of it, as one flat ring over the slow link (textbook)
    network_efficiency: float = 0.9
    network_norm: float = 8.0
    network_hops: float = 3.0  # link latencies that one level across hosts costs: post, wire, flush
    network_pipelining: float = 0.0  # share of the loss that the best number of chunks still has
    network_direct: bool = False  # every rank writes straight to every other: one level, however many hosts
    network_label: str = "formula and datasheet"
    network_ranks: tuple[int, ...] = ()  # least and most ranks that it was measured on; (): it was not
    eager_floor_s: float = 0.0
    spread: float = 0.15  # half-width of the 80 % range inside a domain, as a factor …
    spread_across: float = 0.35  # … and across hosts
    exchanges: Mapping[str, Fabric] = field(default_factory=dict)  # kernels that move tokens to experts, by backend
    spreads: tuple[Spread, ...] = ()  # … by place, collective and size, where residuals were measured: the first that applies
    note: str = ""
    pairs: Fabric | None = None  # the same library between two bridged neighbours, where the hosts have such


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Constants of the kernel forms on one family of chips: gemm by dtype, decode and prefill attention, small."""

    family: str
    label: str
    tables: Mapping[str, Mapping[str, float]]
    own: Mapping[str, str] = field(default_factory=dict)  # labels of the tables that a profile brought

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of a whole step's kernels against measured steps."""
        return self.tables["step.bf16"]["sigma"]

    def label_of(self, table: str) -> str:
        """Where one table comes from: the profile, or the family."""
        return self.own.get(table, self.label)


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured on one machine, to be laid over the catalogue; what it does not hold stays as it was."""

    name: str
    chip: Mapping[str, Any] = field(default_factory=dict)  # fields of Chip; "key" says which chip it describes
    tables: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kernel constants, as in KernelConstants
    libraries: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # measured paths by library, the usual one first
    network: Mapping[str, float] = field(default_factory=dict)  # across hosts: efficiency, hops, pipelining, norm, spread
    host: Mapping[str, float] = field(default_factory=dict)  # fields of Engine: host and request times and their sigmas
    links: Mapping[str, str] = field(default_factory=dict)  # "intra" and "inter" that the collectives were measured on
    engine: str = ""  # the engine that was measured
    dtype: str = ""  # … and the type it ran in
    sources: Mapping[str, str] = field(default_factory=dict)  # what each part was fitted on

    @property
    def label(self) -> str:
        return f"calibrated: {self.name}"


@dataclass(frozen=True, slots=True)
class Engine:
    """What a serving engine or training framework really sends and reserves, as data."""

    key: str
    name: str
    version: str
    phases: tuple[str, ...]
    order: tuple[str, ...]
    vocab_multiple: int = 1
    graph_sizes: tuple[int, ...] = ()  # captured batch sizes; a batch is padded up to the next
    graph_rows: float = float("inf")  # … of at most so many rows on this chip …
    graph_rows_wide: float = float("inf")  # … and so many from tp 4 on
    graph_pads_prefill: bool = False
    logits_padded: bool = False  # logits are computed inside the graph, for padded rows too
    pp_tensors: int = 1  # tensors handed to the next stage
    odd_layers: str = "before-last"  # stages that take the odd layers of an uneven split: also "last", "first"
    pp_scatter: bool = False  # each tp rank sends 1/tp and the receiver gathers
    ep_backends: tuple[str, ...] = ()
    ep_is_tp_dp: bool = False  # the engine knows one expert-parallel size only: tp x dp
    attention_dp_whole: bool = False  # attention data parallelism keeps attention whole on each GPU
    experts_keep_tp: bool = False  # experts stay split over tp inside an expert-parallel rank
    block_size: int = 16
    library: str = "nccl"  # whose all-reduce it calls
    host_s: float = 0.0  # the GPU waits this long for the host in every step …
    host_s_per_doubling: float = 0.0  # … this much more for each doubling of tp …
    host_s_per_seq: float = 0.0  # … and for each sequence of the step
    small_kernels: float = 1.0  # share of a plain engine's small kernels that is left after fusing them into neighbours
    head_norm_kernels: int = 0  # launches for norms of queries and keys a layer; 0: inside the rotary kernel
    routing_kernels: float = 4.0  # launches around the experts of a layer: choose, sort, permute, activate, combine
    routing_passes: float = 0.0  # times that a rank also moves the copies for experts of other ranks
    grouped_efficiency: float = 1.0  # arithmetic of the experts' grouped products against plain ones
    popularity: float = float("inf")  # shape of the experts' popularity (gamma); inf: all equally popular
    request_s: float = 0.0  # a request's way through the server, to its first step and back with its first token
    prefill_first: bool = False  # prompts run in steps of their own, before decoding goes on; else both share steps
    chunked: bool = True  # prompts are cut to the step's token budget
    kv_reserved: bool = False  # a request is admitted when the cache holds its whole output; else on demand
    frontend_request_s: float = 0.0  # the server's front end takes this long for a request …
    frontend_token_s: float = 0.0  # … and for a token it streams: both limit throughput
    sigma_host: float = 0.3  # standard deviation of the logarithm of the host's time
    sigma_tpot: float = 0.0  # standard deviation of log errors on runs that were not fitted, of dense models …
    sigma_ttft: float = 0.0
    sigma_tpot_moe: float = 0.0  # … and of mixtures of experts
    sigma_ttft_moe: float = 0.0
    calibrated: bool = False  # host times were fitted on measured runs of this engine …
    served_on: tuple[str, ...] = ()  # … on these chips
    host_label: str = ""  # where they come from, if not from the catalogue
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # constants of other versions, where fitted
    launch_s: float = 0.0  # one kernel launch without graphs
    gpu_memory_utilization: float = 0.9
    utilization_of: str = "total"  # "free": of what weights and activations leave; "static": weights and KV only
    reserve: Mapping[str, float] = field(default_factory=dict)  # what "static" leaves free, where no share is given
    moe_chunk_tokens: int = 2**31  # tokens that a fused MoE kernel takes at once
    max_batched_tokens: int = 2048
    max_seqs: int = 256
    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # limits by the chip's memory, from ``from_bytes`` on
    non_torch_bytes: float = 0.0  # communicators, library workspaces: on one GPU
    non_torch_bytes_per_doubling: float = 0.0  # … and for each doubling of tp
    sampler_bytes_per_logit: float = 0.0
    graph_bytes: float = 0.0  # taken beside the budget, after KV blocks are counted
    kv_spread_bytes: float = 1e9  # four of five start-ups leave a KV cache within this of the prediction
    latent_absorbed: bool = False  # keeps a second, bf16 copy of latent attention's up-projection
    rotary_table: bool = False  # keeps cosines and sines of every position
    mxfp4_multiple: int = 1  # kernels for mxfp4 experts pad the hidden side to this, and a rank's width to …
    mxfp4_width_multiple: int = 1
    grads_dtype: str = "bf16"
    zero: int = 0  # ZeRO stage unless the plan says otherwise
    master_is_parameter: bool = False  # the sharded parameter is the fp32 master copy itself
    async_axes: tuple[str, ...] = ()  # training: axes whose collectives are launched beside compute
    overlap_efficiency: float = 0.0  # share of an overlapped collective that really hides: it takes SMs and bandwidth
    bucket_bytes: float = 0.0  # gradients are reduced in pieces of this size …
    bucket_bytes_per_rank: float = 0.0  # … or, if larger, of this size for each data-parallel rank
    gathers_ahead: bool = False  # updated parameters are gathered beside the next forward, not inside the update
    regathers_inputs: bool = False  # sequence parallel: backward gathers the products' inputs again instead of keeping them
    context_parallel: str = ""  # "ring": keys go round; "gather": they are gathered; "": the engine has none
    attention: str = "fused"  # training: the chip's best kernel; or "flash2", "triton"; "unfused" writes the score matrix
    selective: str = ""  # what selective recomputation repeats: the "attention" core, every other of the "matmuls"; "": none
    sequence_parallel: bool = False  # training: tensor parallelism comes with sequence parallelism
    fp8_gathers: bool = False  # … and gathers in fp8 what fp8 products take
    elementwise_passes: float = 1.0  # bytes that its norms, activations and residuals move over those of fused kernels …
    eager_passes: float = 1.0  # … and without a compiler
    aliases: tuple[str, ...] = ()
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)
