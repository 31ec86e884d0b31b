"""A decoder, as its ``config.json`` describes it.
Add here a kind of layer as a record. What it keeps, launches and sends is said in ``cost``."""

from __future__ import annotations

import math

from commtax.records import dataclass
from commtax.spec.hardware import Citation
from commtax.statement import Note

TowerTensor = tuple[str, tuple[int, ...], int]  # name and shape of a tensor, and how many there are of it


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: queries and keys/values pass through low-rank latents."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention's selector: heads score what is cached and keep the best ``top_k`` tokens, one by one (DeepSeek-V3.2, GLM-5)
    or by ``block`` (MiniMax-M3), unless a layer takes the choice of an earlier one (GLM-5.2)."""

    num_heads: int
    head_dim: int
    top_k: int
    block: int = 1
    own: bool = True


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4's attention: one latent is key and value of all heads, kept for ``window`` tokens, of older ones every ``ratio``
    share one entry (0: none), and the output goes through ``out_groups`` matrices of rank ``out_rank``."""

    q_rank: int
    rope_dim: int
    ratio: int
    window: int
    out_groups: int
    out_rank: int

    @property
    def overlap(self) -> int:
        """Windows that an entry is made of: two where few tokens share one."""
        return 2 if self.ratio == 4 else 1


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention: heads of queries, of keys and values, and how they are normed, gated, cut short or made from latents."""

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
    compressed: Compressed | None = None
    gate: str = ""  # of the output: "" | "element": as wide as the query | "head": one number a head
    own_values: bool = True  # False: the keys are the values too
    own_cache: bool = True  # False: keys and values are an earlier layer's


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Linear attention by the delta rule: a short convolution, then one state of k_dim x v_dim a head, with the decay of each
    channel from a matrix of ``decay_rank`` (Kimi's; 0: one decay a head) and a gate of ``gate_rank`` (0: of a whole one)."""

    num_k_heads: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    conv: int = 4
    decay_rank: int = 0
    gate_rank: int = 0
    state_dtype: str = ""  # by its config.json; "": the engine's own

    @property
    def channels(self) -> int:
        """Of queries, keys and values: what is convolved."""
        return 2 * self.num_k_heads * self.k_dim + self.num_v_heads * self.v_dim


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A selective state-space layer: a short convolution, then a state of head_dim x state a head. Groups share B and C."""

    num_heads: int
    head_dim: int
    num_groups: int
    state: int
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False
    state_dtype: str = ""  # by its config.json; "": the engine's own

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of x, B and C: what is convolved."""
        return self.inner + 2 * self.num_groups * self.state


Mixer = Attention | DeltaNet | Mamba2  # what lets tokens see each other
RECURRENT = (DeltaNet, Mamba2)  # mixers that keep a state of one size a sequence instead of something of every token


@dataclass(frozen=True, slots=True)
class Mlp:
    intermediate: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts. ``shared_intermediate`` is the width of all shared experts together."""

    num_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    shared_gate: bool = False
    shared_apart: bool = False  # shared experts and routed ones each have a norm before both are added
    latent: int = 0  # width that tokens are brought to before routed experts and back from after them; 0: the hidden one
    latent_norm: bool = False
    groups: int = 1  # of experts, of which a token chooses among the best ``top_groups`` …
    top_groups: int = 1  # … so that it goes to few hosts
    hashed: int = 0  # rows of a table that names each token's experts instead of a router's choice; 0: there is none


@dataclass(frozen=True, slots=True)
class Hyper:
    """Hyper-connections: ``streams`` residual streams instead of one, mixed by small matrices around each half of a layer."""

    streams: int


@dataclass(frozen=True, slots=True)
class Extra:
    """A tensor beside the fields above, whole on every rank unless ``split`` shares it."""

    name: str
    shape: tuple[int, ...]
    split: str = "full"
    part: str = "norm"
    active: bool = True  # False: a token looks a row of it up


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer: it mixes tokens, then widens each, or does one of both. ``num_norms`` counts norms of the hidden width."""

    mixer: Mixer | None
    ffn: Mlp | Experts | None
    num_norms: int = 2
    extras: tuple[Extra, ...] = ()

    @property
    def attention(self) -> Attention | None:
        return self.mixer if isinstance(self.mixer, Attention) else None


@dataclass(frozen=True, slots=True)
class Quant:
    """How a checkpoint stores its linear weights, in (out, in) tiles of ``block`` that share a scale (0: a whole side): each tensor
    as the first of ``parts`` that holds it, else as this one, by patterns in the checkpoint's spelling, which ``spelled`` makes of
    ours."""

    method: str
    dtype: str
    block: tuple[int, int] = (0, 0)
    scale_bytes: float = 4.0
    zero_point_bits: int = 0
    group_index: bool = False  # GPTQ keeps an int32 a row
    ignored: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # if given, only tensors that match are quantised
    weight_only: bool = False  # activations stay as they are (W4A16), whatever arithmetic the chip has
    activations: str = ""  # what they are quantised to where it is not the weights' own format (W4A8)
    counted: tuple[tuple[str, int], ...] = ()  # patterns, and how many modules each stands for where a file states that
    spelled: tuple[tuple[str, str], ...] = ()
    parts: tuple[Quant, ...] = ()
    kv_dtype: str = ""  # of the KV cache that the checkpoint brings scales for

    @property
    def formats(self) -> tuple[Quant, ...]:
        """All of them, in the order in which they are tried for a tensor."""
        return *self.parts, self

    @property
    def named(self) -> str:
        """The number formats for people, the checkpoint's usual one first."""
        return " + ".join(dict.fromkeys(quant.dtype for quant in (self, *self.parts)))

    @property
    def title(self) -> str:
        """… and the method, where it does not say the same."""
        return self.named if self.method in self.named else f"{self.method} {self.named}"


@dataclass(frozen=True, slots=True)
class Tower:
    """A transformer before the decoder that looks at pictures: ``tensors`` work on every patch, and ``projector`` on every token,
    which ``patches_per_token`` become."""

    num_layers: int
    hidden: int
    num_heads: int
    head_dim: int
    intermediate: int
    tensors: tuple[TowerTensor, ...]
    projector: tuple[TowerTensor, ...] = ()
    gated: bool = False
    patches_per_token: int = 1
    patch: int = 14  # pixels of a patch's side

    def patches(self, width: int, height: int) -> int:
        """Count the patches of a picture, filled up to whole tokens."""
        side = math.isqrt(self.patches_per_token)
        return math.prod(side * math.ceil(pixels / (self.patch * side)) for pixels in (width, height))


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, as its ``config.json`` describes it. ``layers[i]`` is the index of layer i's kind in ``blocks``."""

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
    hyper: Hyper | None = None
    lookback: int = 0  # layers of a block whose residual all later halves of layers look back at (Kimi-K3); 0: they do not
    extras: tuple[Extra, ...] = ()  # beside the layers
    mtp: tuple[Block, ...] = ()  # layers that guess further tokens, one a step: counted, and not part of the model proper
    notes: tuple[Note, ...] = ()  # what was not read from its own config
    stored_bytes: int = 0  # bytes of all tensors in a local checkpoint's files; 0: not looked at
    aliases: tuple[str, ...] = ()
    source: Citation | None = None

    def __hash__(self) -> int:
        """Hash the few fields that tell models apart: what is remembered of one is looked up more often than two are compared."""
        return hash((self.key, self.architecture, self.hidden, len(self.layers)))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> Attention:
        """Softmax attention of the first layer that has any: every supported model has such layers."""
        return next(b.attention for b in (self.blocks[i] for i in self.layers) if b.attention)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The different kinds of softmax attention."""
        return tuple(dict.fromkeys(b.attention for b in self.blocks if b.attention))

    @property
    def recurrent(self) -> tuple[DeltaNet | Mamba2, ...]:
        """The different kinds of layers that keep a state."""
        return tuple(dict.fromkeys(b.mixer for b in self.blocks if isinstance(b.mixer, RECURRENT)))

    @property
    def windows(self) -> tuple[int, ...]:
        """How far back the different attention layers look, 0 for to the beginning."""
        return tuple(dict.fromkeys(a.window for a in self.attentions))

    @property
    def feed_forward(self) -> Mlp | Experts:
        """That of the last layer that has one."""
        return next(f for i in reversed(self.layers) if (f := self.blocks[i].ffn))

    @property
    def kind(self) -> str:
        """What its layers are made of, for whatever models of one kind share: "dense", "latent experts", "linear experts" …"""
        mixers = {
            "linear": bool(self.recurrent),
            "sparse": any(a.indexer or a.compressed for a in self.attentions),
            "latent": any(a.latent for a in self.attentions),
        }
        return " ".join([*(name for name, has in mixers.items() if has), "experts" if self.experts else "dense"])

    @property
    def head_passes(self) -> int:
        """How often a trained token passes the head: again for each layer of the model that guesses a further token."""
        guessing = (i for i, block in enumerate(self.blocks) if any(extra.part == "mtp" for extra in block.extras))
        return 1 + sum(self.layers.count(i) for i in guessing)

    @property
    def num_mixers(self) -> int:
        """Layers that let tokens see each other."""
        return sum(self.blocks[i].mixer is not None for i in self.layers)

    @property
    def num_feed_forwards(self) -> int:
        return sum(self.blocks[i].ffn is not None for i in self.layers)

    @property
    def experts(self) -> Experts | None:
        """The mixture-of-experts part, if any layer has one."""
        return next((b.ffn for b in self.blocks if isinstance(b.ffn, Experts)), None)
