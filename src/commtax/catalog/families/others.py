"""GLM-4.5 to 4.7, MiMo, Step: mixtures with windows between, each with a turn of its own."""

from dataclasses import replace

from commtax.catalog.families.deepseek import routed_layers
from commtax.catalog.families.parts import (
    MAX_PREDICTIONS,
    decoder,
    family,
    fine_experts,
    heads,
    mlp,
    predictor,
    text_of,
    with_prediction_layers,
)
from commtax.catalog.families.vision import register_vision, step_tower
from commtax.catalog.fields import Fields
from commtax.spec import Attention, Block, Experts, Model


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
