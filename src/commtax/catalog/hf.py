"""A Hugging Face ``config.json`` read into a ``Model``. What cannot be read is refused by name, never guessed.

Each family is one small function under ``@family`` with its architectures' names. Fields that the model classes themselves
default (for example ``num_key_value_heads`` = ``num_attention_heads`` in Llama) follow the same default here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from commtax.catalog.quantisation import quant_from
from commtax.files import Json
from commtax.spec import Attention, Block, Experts, Indexer, Latent, Mlp, Model, Tower
from commtax.statement import Refusal

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "bf16": "bf16", "float": "fp32"}
MAX_SIZE = 2**40
MAX_LAYERS = 10_000
Reader = Callable[["Fields"], Model]


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture's config is read, and what its layers do that no config says."""

    read: Reader
    plain_residual: bool = False  # layers add the residual themselves, so that one tensor passes between stages
    sequence_parallel_moe: bool = False  # vLLM splits tokens over tp before experts that are spread over tp x dp


ARCHITECTURES: dict[str, Family] = {}


def family(*names: str, plain_residual: bool = False, sequence_parallel_moe: bool = False) -> Callable[[Reader], Reader]:
    """The function below reads the configs of these architectures."""

    def enter(read: Reader) -> Reader:
        ARCHITECTURES.update(dict.fromkeys(names, Family(read, plain_residual, sequence_parallel_moe)))
        return read

    return enter


@dataclass
class Fields:
    """Reads fields and remembers the ones that were missing or unreadable, to name them all at once."""

    config: Mapping[str, Json]
    bad: list[str] = field(default_factory=list)

    def _whole(self, name: str, least: int, default: int) -> int:
        """A whole number of at least so much; what is none is remembered."""
        value = self.config[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < MAX_SIZE and value == int(value):
            return int(value)
        self.bad.append(f"{name}={value!r}")
        return default

    def need(self, *names: str) -> int:
        """A positive whole number under the first of the names that is present."""
        name = next((name for name in names if self.config.get(name) is not None), None)
        if name is not None:
            return self._whole(name, 1, 1)
        self.bad.append(names[0])
        return 1

    def layers(self, *names: str) -> int:
        """The number of layers: bounded, because a list is made of them."""
        count = self.need(*names)
        if count > MAX_LAYERS:
            self.bad.append(f"{names[0]}={count} (at most {MAX_LAYERS:,})")
            return 1
        return count

    def number(self, name: str, default: int) -> int:
        """A whole number of at least 0, or the architecture's default where it is absent or null."""
        return default if self.config.get(name) is None else self._whole(name, 0, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        return default if value is None else bool(value)

    def inner(self, name: str) -> Fields:
        """A nested section such as ``text_config``."""
        value = self.config.get(name)
        if not isinstance(value, Mapping):
            self.bad.append(name)
            return Fields({}, self.bad)
        return Fields(value, self.bad)

    def sequence(self, name: str, length: int) -> list[Json] | None:
        """A list with one entry a layer, or None where absent."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            self.bad.append(f"{name} (want {length} entries)")
            return None
        return value[:length]


def from_config(config: Mapping[str, Json], key: str) -> Model:
    """The model that a ``config.json`` describes; ``ValueError`` names the architecture or the fields at fault."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise Refusal(f"model {key}: architecture {name or 'missing'} is not supported (known: {known})", "model")
    fields = Fields(config)
    try:
        model = ARCHITECTURES[name].read(fields)
        if any(x < 1 for a in model.attentions for x in (a.head_dim, a.v_head_dim, a.num_kv_heads)):
            fields.bad.append("hidden_size (smaller than the number of heads)")
    except (TypeError, ZeroDivisionError, AttributeError, KeyError, IndexError) as error:
        fields.bad.append(f"a field of the wrong type ({error})")
    if fields.bad:
        raise Refusal(f"model {key}: {name} config lacks or has unreadable fields: {', '.join(dict.fromkeys(fields.bad))}", "model")
    quant = config.get("quantization_config")
    return replace(
        model,
        key=key,
        architecture=name,
        dtype=_dtype(fields, key),
        quant=quant_from(quant, key) if quant else None,
        residual_stream=not ARCHITECTURES[name].plain_residual,
        moe_sequence_parallel=ARCHITECTURES[name].sequence_parallel_moe,
    )


def _dtype(fields: Fields, key: str) -> str:
    text = fields.config.get("text_config")
    nested = text if isinstance(text, Mapping) else {}
    name = next((s[k] for s in (fields.config, nested) for k in ("torch_dtype", "dtype") if s.get(k)), "bfloat16")
    if not isinstance(name, str) or name not in _DTYPES:
        raise Refusal(f"model {key}: dtype {name!r} is not one of {', '.join(_DTYPES)}", "model")
    return _DTYPES[name]


def _decoder(c: Fields, blocks: list[Block], tied: bool = False, norm_bias: bool = False, positions: int = 0) -> Model:
    """A model from one block a layer: equal blocks are kept once; ``tied``: its embedding, where the config does not say."""
    kinds = tuple(dict.fromkeys(blocks))
    return Model(
        key="",
        architecture="",
        hidden=c.need("hidden_size", "n_embd", "d_model"),
        vocab=c.need("vocab_size"),
        blocks=kinds,
        layers=tuple(kinds.index(b) for b in blocks),
        max_len=c.need("max_position_embeddings", "n_positions", "max_seq_len"),
        tied=c.flag("tie_word_embeddings", tied),
        norm_bias=norm_bias,
        positions=positions,
    )


def _attention(c: Fields, bias: bool | None = None, qk_norm: str = "", sinks: bool = False) -> Attention:
    """Heads as most configs name them; ``bias``: of all four products, unless the config says it."""
    heads = c.need("num_attention_heads")
    head_dim = c.number("head_dim", 0) or c.need("hidden_size") // heads
    biased = bias is not None and c.flag("attention_bias", bias)
    return Attention(heads, c.number("num_key_value_heads", heads) or heads, head_dim, head_dim, biased, biased, qk_norm, sinks)


def _experts(c: Fields) -> Experts:
    """A mixture as most configs name its sizes."""
    return Experts(c.need("num_local_experts"), c.need("num_experts_per_tok", "experts_per_token"), c.need("intermediate_size"))


def _layers(c: Fields, attention: Attention, ffn: Mlp | Experts, norms: int = 2) -> list[Block]:
    """One block a layer, with each layer's attention window as ``layer_types`` or the sliding fields tell it."""
    count = c.layers("num_hidden_layers")
    types = c.sequence("layer_types", count)
    window = c.number("sliding_window", 0)
    if types:
        windows = [window if t == "sliding_attention" else 0 for t in types]
    else:
        windows = [window if c.flag("use_sliding_window", True) else 0] * count
    return [Block(replace(attention, window=w), ffn, norms) for w in windows]


@family("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM")
def _llama(c: Fields) -> Model:
    return _decoder(c, _layers(c, _attention(c, bias=False), Mlp(c.need("intermediate_size"), bias=c.flag("mlp_bias"))))


@family("Qwen2ForCausalLM")
def _qwen2(c: Fields) -> Model:
    attention = replace(_attention(c), qkv_bias=True)
    return _decoder(c, _layers(_sliding(c), attention, Mlp(c.need("intermediate_size"))))


def _sliding(c: Fields) -> Fields:
    """Qwen's layers see everything unless their config asks for windows."""
    return Fields({**c.config, "use_sliding_window": c.flag("use_sliding_window")}, c.bad)


@family("Qwen3ForCausalLM")
def _qwen3(c: Fields) -> Model:
    attention = _attention(c, bias=False, qk_norm="head")
    return _decoder(c, _layers(_sliding(c), attention, Mlp(c.need("intermediate_size"))))


@family("GemmaForCausalLM")
def _gemma(c: Fields) -> Model:
    return _decoder(c, _layers(c, _attention(c), Mlp(c.need("intermediate_size"))), tied=True)


@family("Gemma2ForCausalLM")
def _gemma2(c: Fields) -> Model:
    return _decoder(c, _gemma_layers(c, _attention(c), 2), tied=True)


def _gemma_layers(c: Fields, attention: Attention, every: int) -> list[Block]:
    """Four norms a layer; all layers but each ``every``-th look back ``sliding_window`` tokens only."""
    window, ffn = c.number("sliding_window", 4096), Mlp(c.need("intermediate_size"))
    windows = [0 if (i + 1) % every == 0 else window for i in range(c.layers("num_hidden_layers"))]
    return [Block(replace(attention, window=w), ffn, 4) for w in windows]


@family("Gemma3ForCausalLM")
def _gemma3_text(c: Fields) -> Model:
    attention, every = _attention(c, qk_norm="head"), c.number("sliding_window_pattern", 6) or 6
    listed = c.config.get("layer_types")
    blocks = _layers(c, attention, Mlp(c.need("intermediate_size")), 4) if listed else _gemma_layers(c, attention, every)
    return _decoder(c, blocks, tied=True)


@family("Gemma3ForConditionalGeneration")
def _gemma3(c: Fields) -> Model:
    text, vision = c.inner("text_config"), c.inner("vision_config")
    width, hidden = vision.need("hidden_size"), text.need("hidden_size")
    projector = (("projector.input_projection", (width, hidden), 1), ("projector.norm", (width,), 1))
    return replace(_gemma3_text(text), tower=Tower((*_vit(vision), *projector)))


def _vit(c: Fields, patch_bias: bool = True, class_token: bool = False) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """A vision transformer with biases and LayerNorms: patches, positions, layers, last norm."""
    h, wide, layers, patch = c.need("hidden_size"), c.need("intermediate_size"), c.layers("num_hidden_layers"), c.need("patch_size")
    positions = (c.need("image_size") // patch) ** 2 + class_token
    rows: list[tuple[str, tuple[int, ...], int]] = [
        ("vision.patch.weight", (h, c.number("num_channels", 3) * patch * patch), 1),
        ("vision.positions", (positions, h), 1),
        ("vision.attention.weight", (h, h), 4 * layers),
        ("vision.attention.bias", (h,), 4 * layers),
        ("vision.fc1.weight", (wide, h), layers),
        ("vision.fc1.bias", (wide,), layers),
        ("vision.fc2.weight", (h, wide), layers),
        ("vision.fc2.bias", (h,), layers),
        ("vision.norms", (h,), 4 * layers),
        ("vision.last_norm", (h,), 2),
    ]
    if patch_bias:
        rows.append(("vision.patch.bias", (h,), 1))
    if class_token:
        rows += [("vision.class_token", (h,), 1), ("vision.first_norm", (h,), 2)]
    return tuple(rows)


@family("MixtralForCausalLM")
def _mixtral(c: Fields) -> Model:
    return _decoder(c, _layers(c, _attention(c), _experts(c)))


def _qwen_moe(c: Fields, attention: Attention, shared: int) -> Model:
    sizes = c.need("num_experts", "num_local_experts"), c.need("num_experts_per_tok"), c.need("moe_intermediate_size")
    moe = Experts(*sizes, shared_intermediate=shared, shared_gate=shared > 0)
    step, dense_layers = c.number("decoder_sparse_step", 1) or 1, c.config.get("mlp_only_layers") or []
    dense = Mlp(c.number("intermediate_size", 1) or 1)
    blocks = [
        Block(attention, moe if i not in dense_layers and (i + 1) % step == 0 else dense)
        for i in range(c.layers("num_hidden_layers"))
    ]
    return _decoder(c, blocks)


@family("Qwen2MoeForCausalLM")
def _qwen2_moe(c: Fields) -> Model:
    return _qwen_moe(c, replace(_attention(c), qkv_bias=True), c.need("shared_expert_intermediate_size"))


@family("Qwen3MoeForCausalLM", sequence_parallel_moe=True)
def _qwen3_moe(c: Fields) -> Model:
    return _qwen_moe(c, _attention(c, bias=False, qk_norm="head"), 0)


@family("DeepseekV2ForCausalLM", sequence_parallel_moe=True)
def _deepseek2(c: Fields) -> Model:
    return _latent(c, correction_bias=False)


@family("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", sequence_parallel_moe=True)
def _deepseek3(c: Fields) -> Model:
    return _latent(c, correction_bias=True)


def _latent(c: Fields, correction_bias: bool) -> Model:
    """Latent attention; the first layers dense, then experts with shared ones; V3.2 and GLM-5 add a token selector."""
    heads, bias = c.need("num_attention_heads"), c.flag("attention_bias")
    latent = Latent(c.number("q_lora_rank", 0), c.need("kv_lora_rank"), c.need("qk_nope_head_dim"), c.need("qk_rope_head_dim"))
    dims = latent.nope_dim + latent.rope_dim, c.need("v_head_dim")
    attention = Attention(heads, heads, *dims, qkv_bias=bias, out_bias=bias, latent=latent)
    width = c.need("moe_intermediate_size")
    shared, sizes = width * c.number("n_shared_experts", 0), (c.need("n_routed_experts"), c.need("num_experts_per_tok"), width)
    moe = Experts(*sizes, shared_intermediate=shared, correction_bias=correction_bias)
    dense, first, every = Mlp(c.need("intermediate_size")), c.number("first_k_dense_replace", 0), c.number("moe_layer_freq", 1) or 1
    blocks = [
        Block(replace(attention, indexer=_indexer(c, i)), moe if i >= first and i % every == 0 else dense)
        for i in range(c.layers("num_hidden_layers"))
    ]
    return _decoder(c, blocks)


def _indexer(c: Fields, layer: int) -> Indexer | None:
    """The token selector of a layer; later GLM models give one to every ``index_topk_freq``-th layer only."""
    if "index_n_heads" not in c.config:
        return None
    every, offset = c.number("index_topk_freq", 1) or 1, c.number("index_skip_topk_offset", 2)
    if max(layer - offset + 1, 0) % every:
        return None
    return Indexer(c.need("index_n_heads"), c.need("index_head_dim"), c.need("index_topk"))


@family("GptOssForCausalLM", sequence_parallel_moe=True)
def _gpt_oss(c: Fields) -> Model:
    moe = replace(_experts(c), bias=True, router_bias=True)
    return _decoder(c, _layers(c, _attention(c, bias=True, sinks=True), moe))


@family("MiniMaxM2ForCausalLM")
def _minimax_m2(c: Fields) -> Model:
    attention = _attention(c, qk_norm="full" if c.flag("use_qk_norm") else "")
    shared, correction = c.number("shared_intermediate_size", 0), c.flag("use_routing_bias")
    moe = replace(_experts(c), shared_intermediate=shared, correction_bias=correction)
    return _decoder(c, _layers(c, attention, moe))


@family("Llama4ForCausalLM", sequence_parallel_moe=True)
def _llama4_text(c: Fields) -> Model:
    """Chunked attention except where a layer has no rotary embedding; the query/key norm has no parameters."""
    count, chunk = c.layers("num_hidden_layers"), c.number("attention_chunk_size", 8192)
    step = c.number("interleave_moe_layer_step", 1) or 1
    moe_layers = c.config.get("moe_layers") or [i for i in range(count) if (i + 1) % step == 0]
    rotary = c.sequence("no_rope_layers", count) or [int((i + 1) % 4 != 0) for i in range(count)]
    width, attention = c.need("intermediate_size"), _attention(c, bias=False)
    moe, dense = replace(_experts(c), shared_intermediate=width), Mlp(c.number("intermediate_size_mlp", width))
    blocks = [Block(replace(attention, window=chunk if rotary[i] else 0), moe if i in moe_layers else dense) for i in range(count)]
    return _decoder(c, blocks)


@family("Llama4ForConditionalGeneration", sequence_parallel_moe=True)
def _llama4(c: Fields) -> Model:
    text, vision = c.inner("text_config"), c.inner("vision_config")
    wide, middle, out = map(vision.need, ("intermediate_size", "projector_input_dim", "projector_output_dim"))
    adapter = (
        ("vision.adapter.fc1.weight", (middle, wide), 1),
        ("vision.adapter.fc2.weight", (out, middle), 1),
        ("projector.weight", (text.need("hidden_size"), vision.need("vision_output_dim")), 1),
    )
    return replace(_llama4_text(text), tower=Tower((*_vit(vision, patch_bias=False, class_token=True), *adapter)))


@family("OPTForCausalLM", plain_residual=True)
def _opt(c: Fields) -> Model:
    """Biases and LayerNorms everywhere; the position table has two more rows than positions."""
    if c.number("word_embed_proj_dim", c.need("hidden_size")) != c.need("hidden_size"):
        c.bad.append("word_embed_proj_dim (a projected embedding is not supported)")
    bias = c.flag("enable_bias", True)
    attention = replace(_attention(c), qkv_bias=bias, out_bias=bias)
    blocks = _layers(c, attention, Mlp(c.need("ffn_dim"), gated=False, bias=bias))
    norm_bias, positions = c.flag("layer_norm_elementwise_affine", True), c.need("max_position_embeddings") + 2
    return _decoder(c, blocks, tied=True, norm_bias=norm_bias, positions=positions)


@family("GPT2LMHeadModel", plain_residual=True)
def _gpt2(c: Fields) -> Model:
    heads, hidden = c.need("n_head", "num_attention_heads"), c.need("n_embd", "hidden_size")
    attention = Attention(heads, heads, hidden // heads, hidden // heads, qkv_bias=True, out_bias=True)
    block = Block(attention, Mlp(c.number("n_inner", 4 * hidden) or 4 * hidden, gated=False, bias=True))
    layers, positions = c.layers("n_layer", "num_hidden_layers"), c.need("n_positions", "max_position_embeddings")
    return _decoder(c, [block] * layers, tied=True, norm_bias=True, positions=positions)


@family("MPTForCausalLM", plain_residual=True)
def _mpt(c: Fields) -> Model:
    """ALiBi models have no position table, whatever ``learned_pos_emb`` says."""
    heads, hidden, bias = c.need("n_heads"), c.need("d_model"), not c.flag("no_bias")
    inner = c.config.get("attn_config")
    settings = inner if isinstance(inner, Mapping) else {}
    kv = int(settings.get("kv_n_heads") or heads)
    attention = Attention(heads, kv, hidden // heads, hidden // heads, qkv_bias=bias, out_bias=bias)
    ffn = Mlp(c.number("expansion_ratio", 4) * hidden, gated=False, bias=bias)
    positions = 0 if settings.get("alibi") or not c.flag("learned_pos_emb", True) else c.need("max_seq_len")
    return _decoder(c, [Block(attention, ffn)] * c.layers("n_layers"), tied=True, norm_bias=bias, positions=positions)
