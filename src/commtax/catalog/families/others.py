"""GLM-4.5 to 4.7, MiMo, Step, MiniMax, Llama 4, Mistral with a tower, hybrid Granite, OLMo 3, Command R: each with its own turn."""

from dataclasses import replace

from commtax.catalog.families.deepseek import routed_layers
from commtax.catalog.families.parts import (
    MAX_PREDICTIONS,
    decoder,
    experts,
    family,
    fine_experts,
    heads,
    layers,
    mlp,
    predictor,
    text_of,
    windowed_layers,
    with_prediction_layers,
)
from commtax.catalog.families.plain import reader
from commtax.catalog.families.vision import llama4_tower, minimax_tower, pixtral_tower, register_vision, step_tower
from commtax.catalog.fields import Fields
from commtax.spec import Attention, Block, Experts, Indexer, Mamba2, Mlp, Model


@family("GraniteMoeHybridForCausalLM", plain_residual=True)
def _granite_hybrid(c: Fields) -> Model:
    """State-space layers with a few of attention between; all widen, by experts and an MLP of all tokens, or by that alone."""
    attention, shared = heads(c, bias=False), c.number("shared_intermediate_size", 0)
    ffn: Mlp | Experts = Mlp(shared or 1)
    if c.number("num_local_experts", 0):
        ffn = replace(experts(c), shared_intermediate=shared)
    kinds = c.pattern("layer_types", c.layers("num_hidden_layers"))
    if unknown := next((kind for kind in kinds if kind not in ("attention", "mamba", None)), None):
        c.bad.append(f"layer_types (attention or mamba, not {unknown!r})")
    mamba = _granite_mamba(c) if "mamba" in kinds else None
    return decoder(c, [Block(mamba if kind == "mamba" else attention, ffn) for kind in kinds])


def _granite_mamba(c: Fields) -> Mamba2:
    """``mamba_d_head``: "auto" shares the widened state out."""
    count, width = c.need("mamba_n_heads"), c.get("mamba_d_head")
    auto = (c.number("mamba_expand", 2) or 2) * c.need("hidden_size") // count
    sizes = count, auto if width in (None, "auto") else c.need("mamba_d_head"), c.number("mamba_n_groups", 1) or 1
    rest = c.need("mamba_d_state"), c.number("mamba_d_conv", 4) or 1
    return Mamba2(*sizes, *rest, c.flag("mamba_conv_bias", True), c.flag("mamba_proj_bias"))


@family("Olmo3ForCausalLM", plain_residual=True)
def _olmo3(c: Fields) -> Model:
    """Three of four layers look back a window only, as transformers' class has it where no list says otherwise."""
    attention = heads(c, bias=False, qk_norm="full")
    return decoder(c, layers(c, attention, mlp(c)) if c.get("layer_types") else windowed_layers(c, attention, 4, 2))


@family("CohereForCausalLM")
def _cohere(c: Fields) -> Model:
    """One norm before both halves of a layer, which add up; the largest norms each head's queries and keys.

    Some configs have 8,192 positions beside a ``model_max_length`` of what the model was trained on, which engines take.
    """
    attention = heads(c, bias=False, qk_norm="full" if c.flag("use_qk_norm") else "")
    longest = c.number("model_max_length", 0) or c.get("max_position_embeddings")
    return decoder(c.with_(max_position_embeddings=longest), layers(c, attention, mlp(c), norms=1), tied=True)


@family("Cohere2ForCausalLM")
def _cohere2(c: Fields) -> Model:
    attention, every = heads(c, bias=False), c.number("sliding_window_pattern", 4) or 4
    blocks = layers(c, attention, mlp(c), 1) if c.get("layer_types") else windowed_layers(c, attention, every, 1)
    return decoder(c, blocks, tied=True)


@family("MiniMaxM2ForCausalLM")
def _minimax_m2(c: Fields) -> Model:
    attention = heads(c, qk_norm="full" if c.flag("use_qk_norm") else "")
    shared, correction = c.number("shared_intermediate_size", 0), c.flag("use_routing_bias")
    moe = replace(experts(c), shared_intermediate=shared, correction_bias=correction)
    return decoder(c, layers(c, attention, moe))


@family("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM", shared=("sparse_attention_config", "moe_layer_freq mlp_layer_types"))
def _minimax_m3_text(c: Fields) -> Model:
    count = c.layers("num_hidden_layers")
    attention = heads(c, qk_norm="head" if c.flag("use_qk_norm", True) else "")
    shared = c.number("n_shared_experts", 1) * c.number("shared_intermediate_size", 0)
    moe = replace(experts(c), shared_intermediate=shared, correction_bias=c.flag("use_routing_bias", True))
    dense, selectors = Mlp(c.need("dense_intermediate_size")), _selectors(c, count)
    routed = routed_layers(c, count)
    blocks = [Block(replace(attention, indexer=s), moe if r else dense) for s, r in zip(selectors, routed, strict=True)]
    return decoder(c, blocks)


def _selectors(c: Fields, count: int) -> list[Indexer | None]:
    """Which layers choose blocks, and how many; without the section all see everything, as transformers' class has it."""
    section = c.section("sparse_attention_config")
    if section is None:
        c.default("sparse_attention_config", "every layer sees everything")
        return [None] * count
    block = section.number("sparse_block_size", 128) or 1
    tokens = block * section.need("sparse_topk_blocks")
    own = Indexer(section.need("sparse_num_index_heads"), section.need("sparse_index_dim"), tokens, block)
    return [own if chooses == 1 else None for chooses in section.pattern("sparse_attention_freq", count)]


register_vision(
    "MiniMaxM3SparseForConditionalGeneration",
    _minimax_m3_text,
    minimax_tower,
    *("sparse_attention_config", "moe_layer_freq mlp_layer_types"),
)


@family("Llama4ForCausalLM", sequence_parallel_moe=True)
def _llama4_text(c: Fields) -> Model:
    """Chunked attention except where a layer has no rotary embedding; the query/key norm has no parameters."""
    count, chunk = c.layers("num_hidden_layers"), c.number("attention_chunk_size", 8192)
    step = c.number("interleave_moe_layer_step", 1) or 1
    moe_layers = c.indices("moe_layers") or {i for i in range(count) if (i + 1) % step == 0}
    rotary = c.sequence("no_rope_layers", count) or [int((i + 1) % 4 != 0) for i in range(count)]
    width, attention = c.need("intermediate_size"), heads(c, bias=False)
    moe, dense = replace(experts(c), shared_intermediate=width), Mlp(c.number("intermediate_size_mlp", width))
    blocks = [Block(replace(attention, window=chunk if rotary[i] else 0), moe if i in moe_layers else dense) for i in range(count)]
    return decoder(c, blocks)


register_vision("Llama4ForConditionalGeneration", _llama4_text, llama4_tower, sequence_parallel_moe=True)
register_vision("Mistral3ForConditionalGeneration", reader("LlamaForCausalLM"), pixtral_tower)


@family("Glm4MoeForCausalLM", sequence_parallel_moe=True)
def _glm4_moe(c: Fields) -> Model:
    """The first layers dense; queries, keys and values have biases, the output none."""
    attention = replace(heads(c), qkv_bias=c.flag("attention_bias"), qk_norm="head" if c.flag("use_qk_norm") else "")
    moe, count = fine_experts(c, correction_bias=True, usual_shared=1), c.layers("num_hidden_layers")
    model = decoder(c, [Block(attention, moe if routed else mlp(c)) for routed in routed_layers(c, count)])
    return with_prediction_layers(c, model, "num_nextn_predict_layers")


@family("Glm4vMoeForConditionalGeneration", sequence_parallel_moe=True)
def _glm4v_moe(c: Fields) -> Model:
    return _glm4_moe(text_of(c))


@family(
    "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", shared=("hybrid_layer_pattern layer_types", "moe_layer_freq mlp_layer_types")
)
def _mimo_v2(c: Fields) -> Model:
    """Keys wider than values; layers with a window have heads of their own, and sinks."""
    count = c.layers("num_hidden_layers")
    moe, dense = fine_experts(c, correction_bias=True), mlp(c)
    window = c.number("sliding_window", 0) or c.number("sliding_window_size", 0)
    near = replace(_unequal_head_attention(c, "swa_"), window=window, sinks=c.flag("add_swa_attention_sink_bias"))
    far = replace(_unequal_head_attention(c, ""), sinks=c.flag("add_full_attention_sink_bias"))
    kinds = c.sequence("layer_types", count) or c.pattern("hybrid_layer_pattern", count)
    windowed = [kind in (1, "sliding_attention") for kind in kinds]
    pairs = zip(windowed, routed_layers(c, count), strict=True)
    model = decoder(c, [Block(near if w else far, moe if routed else dense) for w, routed in pairs])
    return with_prediction_layers(c, model, "num_nextn_predict_layers", block=Block(near, dense))


def _unequal_head_attention(c: Fields, prefix: str) -> Attention:
    """Heads with keys of one width and values of another; layers with a window have the others' where they have none."""
    count, width = c.need(f"{prefix}num_attention_heads", "num_attention_heads"), c.need(f"{prefix}head_dim", "head_dim")
    kv = c.number(f"{prefix}num_key_value_heads", c.number("num_key_value_heads", count)) or count
    values = c.number(f"{prefix}v_head_dim", c.number("v_head_dim", width)) or width
    return Attention(count, kv, width, values, qkv_bias=c.flag("attention_bias"))


@family("Step3p5ForCausalLM", "Step3p7FlashForCausalLM", shared=("attention_other_setting num_sliding_attention_heads",))
def _step(c: Fields) -> Model:
    """Layers with a window have more heads; each head has a gate; a layer that guesses further has an output head of its own."""
    count = c.layers("num_hidden_layers")
    near, far, moe, dense = _step_near(c), _step_heads(c), _step_experts(c), mlp(c)
    types = c.sequence("layer_types", count) or ["full_attention"] * count
    kinds = zip(types, _expert_layers(c, count), strict=True)
    model = decoder(c, [Block(near if t == "sliding_attention" else far, moe if r else dense) for t, r in kinds])
    further = predictor(Block(near, dense), model.hidden, heads_of=model.vocab)
    return replace(model, mtp=(further,) * c.number("num_nextn_predict_layers", 0, MAX_PREDICTIONS))


def _step_heads(c: Fields) -> Attention:
    kv = c.get("num_attention_groups") or c.get("num_key_value_heads")
    attention = heads(c.with_(num_key_value_heads=kv), qk_norm="head" if c.flag("use_qk_norm", True) else "")
    return replace(attention, gate="head" if c.flag("use_head_wise_attn_gate", True) else "")


def _step_near(c: Fields) -> Attention:
    """What ``attention_other_setting`` says of layers with a window."""
    other = c.section("attention_other_setting")
    given = {name: other.get(name) for name in ("num_attention_heads", "num_attention_groups", "head_dim")} if other else {}
    if not given and c.get("num_sliding_attention_heads") is not None:
        given = {"num_attention_heads": c.get("num_sliding_attention_heads")}
    elif not given:
        c.default("attention_other_setting", "layers with a window have as many heads as the others")
    own = c.with_(**{name: value for name, value in given.items() if value is not None})
    return replace(_step_heads(own), window=c.number("sliding_window", 0))


def _step_experts(c: Fields) -> Experts:
    sizes = (
        c.need("moe_num_experts", "num_experts", "n_routed_experts"),
        c.need("moe_top_k", "num_experts_per_tok"),
        c.need("moe_intermediate_size"),
    )
    shared = c.number("share_expert_dim", c.number("share_expert_dims", 0))
    return Experts(*sizes, shared_intermediate=shared, correction_bias=c.flag("use_moe_router_bias", True))


def _expert_layers(c: Fields, count: int) -> list[bool]:
    """Layers with experts: numbers by commas, or all but the first."""
    listed = c.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = {int(part) for part in listed.split(",") if part.strip().isdigit()}
        return [i in numbers for i in range(count)]
    return routed_layers(c.with_(first_k_dense_replace=c.number("first_k_dense_replace", 3)), count)


register_vision("Step3p7ForConditionalGeneration", _step, step_tower, "attention_other_setting num_sliding_attention_heads")
