"""Llama and what is laid out like it; mixtures of its shape; Llama 4."""

from dataclasses import replace

from commtax.catalog.families.parts import decoder, experts, family, heads, layers, text_of
from commtax.catalog.families.vision import llama4_tower, pixtral_tower, vision_of
from commtax.catalog.fields import Fields
from commtax.spec import Block, Mlp, Model


@family(
    *("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM"),
    "SmolLM3ForCausalLM",
)
def _llama(c: Fields) -> Model:
    return decoder(c, layers(c, heads(c, bias=False), Mlp(c.need("intermediate_size"), bias=c.flag("mlp_bias"))))


@family("MixtralForCausalLM")
def _mixtral(c: Fields) -> Model:
    return decoder(c, layers(c, heads(c), experts(c)))


@family("GptOssForCausalLM", sequence_parallel_moe=True)
def _gpt_oss(c: Fields) -> Model:
    moe = replace(experts(c), bias=True, router_bias=True)
    return decoder(c, layers(c, heads(c, bias=True, sinks=True), moe))


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


@family("Llama4ForConditionalGeneration", sequence_parallel_moe=True, shared=("vision_config",))
def _llama4(c: Fields) -> Model:
    model, vision = _llama4_text(text_of(c)), vision_of(c)
    return replace(model, tower=llama4_tower(vision, model.hidden)) if vision else model


@family("Mistral3ForConditionalGeneration", shared=("vision_config",))
def _mistral3(c: Fields) -> Model:
    model, vision, merge = _llama(text_of(c)), vision_of(c), c.number("spatial_merge_size", 2) or 1
    return (
        replace(model, tower=pixtral_tower(vision, model.hidden, merge, c.flag("multimodal_projector_bias"))) if vision else model
    )
