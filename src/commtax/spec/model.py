"""A decoder, as its ``config.json`` tells it."""

from dataclasses import dataclass

from commtax.spec.hardware import Citation


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
    source: Citation | None = None

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
