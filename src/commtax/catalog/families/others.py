"""Families of few members: GLM-4.5 to 4.7, MiMo, Step, MiniMax, hybrid Granite, OLMo 3, Command R, models of the first years."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.catalog.families import parts
from commtax.catalog.families.deepseek import routed_layers
from commtax.catalog.families.parts import Fields
from commtax.catalog.families.vision import minimax_tower, register_vision, step_tower
from commtax.spec import Attention, Block, Experts, Extra, Indexer, Mamba2, Mlp, Model


@parts.family("Glm4MoeForCausalLM", sequence_parallel_moe=True)
def _glm4_moe(c: Fields) -> Model:
    """Read layers of which the first are dense, with biases for queries, keys and values but not the output."""
    attention = replace(parts.heads(c), qkv_bias=c.flag("attention_bias"), qk_norm="head" if c.flag("use_qk_norm") else "")
    moe, count = parts.fine_experts(c, correction_bias=True, usual_shared=1), c.layers("num_hidden_layers")
    model = parts.decoder(c, [Block(attention, moe if routed else parts.mlp(c)) for routed in routed_layers(c, count)])
    return parts.with_prediction_layers(c, model, "num_nextn_predict_layers")


parts.family("Glm4vMoeForConditionalGeneration", sequence_parallel_moe=True)(lambda c: _glm4_moe(parts.text_of(c)))
MIXTURE = "moe_layer_freq mlp_layer_types"


@parts.family("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", shared=("hybrid_layer_pattern layer_types", MIXTURE))
def _mimo_v2(c: Fields) -> Model:
    """Read keys wider than values, and layers with a window that have heads of their own, and sinks."""
    count = c.layers("num_hidden_layers")
    moe, dense = parts.fine_experts(c, correction_bias=True), parts.mlp(c)
    window = c.number("sliding_window", 0) or c.number("sliding_window_size", 0)
    near = replace(_unequal_head_attention(c, "swa_"), window=window, sinks=c.flag("add_swa_attention_sink_bias"))
    far = replace(_unequal_head_attention(c, ""), sinks=c.flag("add_full_attention_sink_bias"))
    kinds = c.sequence("layer_types", count) or c.pattern("hybrid_layer_pattern", count)
    pairs = zip([kind in (1, "sliding_attention") for kind in kinds], routed_layers(c, count), strict=True)
    model = parts.decoder(c, [Block(near if w else far, moe if routed else dense) for w, routed in pairs])
    return parts.with_prediction_layers(c, model, "num_nextn_predict_layers", block=Block(near, dense))


def _unequal_head_attention(c: Fields, prefix: str) -> Attention:
    """Return heads with keys of one width and values of another, where a window's unlisted sizes are the others'."""
    count, width = c.need(f"{prefix}num_attention_heads", "num_attention_heads"), c.need(f"{prefix}head_dim", "head_dim")
    kv = c.number(f"{prefix}num_key_value_heads", c.number("num_key_value_heads", count)) or count
    values = c.number(f"{prefix}v_head_dim", c.number("v_head_dim", width)) or width
    return Attention(count, kv, width, values, qkv_bias=c.flag("attention_bias"))


@parts.family("Step3p5ForCausalLM", "Step3p7FlashForCausalLM", shared=("attention_other_setting num_sliding_attention_heads",))
def _step(c: Fields) -> Model:
    """Read layers that have more heads with a window, a gate per head, and an output head in each layer that guesses further."""
    count = c.layers("num_hidden_layers")
    near, far = _step_near(c), _step_heads(c)
    sizes = c.need("moe_num_experts", "num_experts", "n_routed_experts"), c.need("moe_top_k", "num_experts_per_tok")
    width, shared = c.need("moe_intermediate_size"), c.number("share_expert_dim", c.number("share_expert_dims", 0))
    biased = c.flag("use_moe_router_bias", True)
    moe, dense = Experts(*sizes, width, shared_intermediate=shared, correction_bias=biased), parts.mlp(c)
    types = c.sequence("layer_types", count) or ["full_attention"] * count
    kinds = zip(types, _expert_layers(c, count), strict=True)
    model = parts.decoder(c, [Block(near if t == "sliding_attention" else far, moe if r else dense) for t, r in kinds])
    further = parts.predictor(Block(near, dense), model.hidden, heads_of=model.vocab)
    return replace(model, mtp=(further,) * c.number("num_nextn_predict_layers", 0, parts.MAX_PREDICTIONS))


def _step_heads(c: Fields) -> Attention:
    kv = c.get("num_attention_groups") or c.get("num_key_value_heads")
    attention = parts.heads(c.with_(num_key_value_heads=kv), qk_norm="head" if c.flag("use_qk_norm", True) else "")
    return replace(attention, gate="head" if c.flag("use_head_wise_attn_gate", True) else "")


def _step_near(c: Fields) -> Attention:
    other = c.section("attention_other_setting")
    sizes = {name: other.get(name) for name in ("num_attention_heads", "num_attention_groups", "head_dim")} if other else {}
    if not sizes and c.get("num_sliding_attention_heads") is not None:
        sizes = {"num_attention_heads": c.get("num_sliding_attention_heads")}
    elif not sizes:
        c.default("attention_other_setting", "layers with a window have as many heads as the others")
    near = c.with_(**{name: value for name, value in sizes.items() if value is not None})
    return replace(_step_heads(near), window=c.number("sliding_window", 0))


def _expert_layers(c: Fields, count: int) -> list[bool]:
    listed = c.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = {int(part) for part in listed.split(",") if part.strip().isdigit()}
        return [i in numbers for i in range(count)]
    return routed_layers(c.with_(first_k_dense_replace=c.number("first_k_dense_replace", 3)), count)


register_vision("Step3p7ForConditionalGeneration", _step, step_tower, "attention_other_setting num_sliding_attention_heads")


@parts.family("GraniteMoeHybridForCausalLM", plain_residual=True)
def _granite_hybrid(c: Fields) -> Model:
    """Read state-space layers with a few of attention between, all with an MLP of all tokens, maybe beside experts."""
    attention, shared = parts.heads(c, bias=False), c.number("shared_intermediate_size", 0)
    mixture = c.number("num_local_experts", 0)
    ffn: Mlp | Experts = replace(parts.experts(c), shared_intermediate=shared) if mixture else Mlp(shared or 1)
    kinds = c.pattern("layer_types", c.layers("num_hidden_layers"))
    if unknown := next((kind for kind in kinds if kind not in ("attention", "mamba", None)), None):
        c.bad.append(f"layer_types (attention or mamba, not {unknown!r})")
    mamba = None
    if "mamba" in kinds:
        count = c.need("mamba_n_heads")
        auto = (c.number("mamba_expand", 2) or 2) * c.need("hidden_size") // count  # the widened state shared out
        width = auto if c.get("mamba_d_head") in (None, "auto") else c.need("mamba_d_head")
        rest = c.number("mamba_n_groups", 1) or 1, c.need("mamba_d_state"), c.number("mamba_d_conv", 4) or 1
        mamba = Mamba2(count, width, *rest, c.flag("mamba_conv_bias", True), c.flag("mamba_proj_bias"))
    return parts.decoder(c, [Block(mamba if kind == "mamba" else attention, ffn) for kind in kinds])


@parts.family("Olmo3ForCausalLM", plain_residual=True)
def _olmo3(c: Fields) -> Model:
    """Read three of four layers as windowed where no list says otherwise, as transformers' class has it."""
    attention, listed = parts.heads(c, bias=False, qk_norm="full"), c.get("layer_types")
    return parts.decoder(c, parts.layers(c, attention, parts.mlp(c)) if listed else parts.windowed_layers(c, attention, 4, 2))


@parts.family("CohereForCausalLM")
def _cohere(c: Fields) -> Model:
    """Read one norm before both halves of a layer, which add up, and a ``model_max_length``, which engines take."""
    attention = parts.heads(c, bias=False, qk_norm="full" if c.flag("use_qk_norm") else "")
    longest = c.number("model_max_length", 0) or c.get("max_position_embeddings")
    return parts.decoder(c.with_(max_position_embeddings=longest), parts.layers(c, attention, parts.mlp(c), norms=1), tied=True)


@parts.family("Cohere2ForCausalLM")
def _cohere2(c: Fields) -> Model:
    attention, every = parts.heads(c, bias=False), c.number("sliding_window_pattern", 4) or 4
    blocks = parts.layers(c, attention, parts.mlp(c), 1) if c.get("layer_types") else parts.windowed_layers(c, attention, every, 1)
    return parts.decoder(c, blocks, tied=True)


@parts.family("OPTForCausalLM", plain_residual=True)
def _opt(c: Fields) -> Model:
    """Read biases and LayerNorms everywhere, and a position table with two more rows than positions."""
    if c.number("word_embed_proj_dim", c.need("hidden_size")) != c.need("hidden_size"):
        c.bad.append("word_embed_proj_dim (a projected embedding is not supported)")
    bias = c.flag("enable_bias", True)
    attention = replace(parts.heads(c), qkv_bias=bias, out_bias=bias)
    blocks = parts.layers(c, attention, Mlp(c.need("ffn_dim"), gated=False, bias=bias))
    norm_bias, positions = c.flag("layer_norm_elementwise_affine", True), c.need("max_position_embeddings") + 2
    return parts.decoder(c, blocks, tied=True, norm_bias=norm_bias, positions=positions)


@parts.family("GPT2LMHeadModel", "GPTBigCodeForCausalLM", plain_residual=True)
def _gpt2(c: Fields) -> Model:
    """Read GPT-2's layers, and StarCoder's first, which has one head of keys and values for all queries."""
    count, hidden = c.need("n_head", "num_attention_heads"), c.need("n_embd", "hidden_size")
    kv, width = 1 if c.flag("multi_query") else count, hidden // count
    attention = Attention(count, kv, width, width, qkv_bias=True, out_bias=True)
    block = Block(attention, Mlp(c.number("n_inner", 4 * hidden) or 4 * hidden, gated=False, bias=True))
    depth, positions = c.layers("n_layer", "num_hidden_layers"), c.need("n_positions", "max_position_embeddings")
    return parts.decoder(c, [block] * depth, tied=True, norm_bias=True, positions=positions)


@parts.family("MPTForCausalLM", plain_residual=True)
def _mpt(c: Fields) -> Model:
    """Read ALiBi models, which have no position table whatever ``learned_pos_emb`` says."""
    count, hidden, bias = c.need("n_heads"), c.need("d_model"), not c.flag("no_bias")
    inner = c.get("attn_config")
    settings = inner if isinstance(inner, Mapping) else {}
    kv = int(settings.get("kv_n_heads") or count)
    attention = Attention(count, kv, hidden // count, hidden // count, qkv_bias=bias, out_bias=bias)
    ffn = Mlp(c.number("expansion_ratio", 4) * hidden, gated=False, bias=bias)
    positions = 0 if settings.get("alibi") or not c.flag("learned_pos_emb", True) else c.need("max_seq_len")
    return parts.decoder(c, [Block(attention, ffn)] * c.layers("n_layers"), tied=True, norm_bias=bias, positions=positions)


@parts.family("GPTJForCausalLM", plain_residual=True)
def _gpt_j(c: Fields) -> Model:
    """Read one norm before both halves of a layer, and biases in the MLP and the output head."""
    count, hidden = c.need("n_head"), c.need("n_embd")
    ffn = Mlp(c.number("n_inner", 4 * hidden) or 4 * hidden, gated=False, bias=True)
    block = Block(Attention(count, count, hidden // count, hidden // count), ffn, 1)
    return replace(parts.decoder(c, [block] * c.layers("n_layer"), norm_bias=True), head_bias=True)


@parts.family("GPTNeoForCausalLM", plain_residual=True)
def _gpt_neo(c: Fields) -> Model:
    """Read every second layer as windowed, with a bias for attention's last product alone."""
    count, hidden, window = c.need("num_heads"), c.need("hidden_size"), c.number("window_size", 256)
    attention = Attention(count, count, hidden // count, hidden // count, out_bias=True)
    ffn = Mlp(c.number("intermediate_size", 4 * hidden) or 4 * hidden, gated=False, bias=True)
    blocks = [Block(replace(attention, window=window if i % 2 else 0), ffn) for i in range(c.layers("num_layers"))]
    return parts.decoder(c, blocks, tied=True, norm_bias=True, positions=c.need("max_position_embeddings"))


@parts.family("BloomForCausalLM", plain_residual=True)
def _bloom(c: Fields) -> Model:
    """Read ALiBi instead of positions and a norm after the embedding, with transformers' 2048 tokens where a config names none."""
    count, hidden = c.need("n_head", "num_attention_heads"), c.need("hidden_size", "n_embed")
    attention = Attention(count, count, hidden // count, hidden // count, qkv_bias=True, out_bias=True)
    block = Block(attention, Mlp(4 * hidden, gated=False, bias=True))
    sized = c.with_(hidden_size=hidden, max_position_embeddings=c.number("seq_length", 2048) or 2048)
    model = parts.decoder(sized, [block] * c.layers("n_layer", "num_hidden_layers"), tied=True, norm_bias=True)
    return replace(model, extras=tuple(Extra(f"model.embed_norm.{part}", (hidden,)) for part in ("weight", "bias")))


@parts.family("MiniMaxM2ForCausalLM")
def _minimax_m2(c: Fields) -> Model:
    attention = parts.heads(c, qk_norm="full" if c.flag("use_qk_norm") else "")
    shared, correction = c.number("shared_intermediate_size", 0), c.flag("use_routing_bias")
    moe = replace(parts.experts(c), shared_intermediate=shared, correction_bias=correction)
    return parts.decoder(c, parts.layers(c, attention, moe))


@parts.family("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM", shared=("sparse_attention_config", MIXTURE))
def _minimax_m3_text(c: Fields) -> Model:
    count = c.layers("num_hidden_layers")
    attention = parts.heads(c, qk_norm="head" if c.flag("use_qk_norm", True) else "")
    shared = c.number("n_shared_experts", 1) * c.number("shared_intermediate_size", 0)
    moe = replace(parts.experts(c), shared_intermediate=shared, correction_bias=c.flag("use_routing_bias", True))
    dense, pairs = Mlp(c.need("dense_intermediate_size")), zip(_selectors(c, count), routed_layers(c, count), strict=True)
    return parts.decoder(c, [Block(replace(attention, indexer=s), moe if r else dense) for s, r in pairs])


def _selectors(c: Fields, count: int) -> list[Indexer | None]:
    """Read which layers of MiniMax-M3 select blocks of tokens by sparse attention: none where the config has no such section."""
    section = c.section("sparse_attention_config")
    if section is None:
        c.default("sparse_attention_config", "every layer sees everything")
        return [None] * count
    block = section.number("sparse_block_size", 128) or 1
    tokens = block * section.need("sparse_topk_blocks")
    chooser = Indexer(section.need("sparse_num_index_heads"), section.need("sparse_index_dim"), tokens, block)
    return [chooser if chooses == 1 else None for chooses in section.pattern("sparse_attention_freq", count)]


register_vision("MiniMaxM3SparseForConditionalGeneration", _minimax_m3_text, minimax_tower, "sparse_attention_config", MIXTURE)
