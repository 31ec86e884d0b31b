"""Gemma: four norms a layer, few layers that see everything; the fourth adds mixtures, inputs of each layer, shared caches."""

from dataclasses import replace

from commtax.catalog.families.parts import Fields, decoder, family, heads, layers, mlp, text_of, windowed_layers
from commtax.catalog.families.vision import gemma4_tower, register_vision, siglip, with_tower
from commtax.spec import Attention, Block, Experts, Extra, Mlp, Model
from commtax.statement import Note


@family("Gemma2ForCausalLM")
def _gemma2(c: Fields) -> Model:
    return decoder(c, windowed_layers(c, heads(c), 2, 4), tied=True)


@family("Gemma3ForCausalLM")
def _gemma3_text(c: Fields) -> Model:
    attention, every = heads(c, qk_norm="head"), c.number("sliding_window_pattern", 6) or 6
    blocks = layers(c, attention, mlp(c), 4) if c.get("layer_types") else windowed_layers(c, attention, every, 4)
    return decoder(c, blocks, tied=True)


register_vision("Gemma3ForConditionalGeneration", _gemma3_text, siglip)


@family("Gemma4ForCausalLM")
def _gemma4_text(c: Fields) -> Model:
    """Read layers with and without a window, which differ in heads, where the last ones may share an earlier layer's cache."""
    count = c.layers("num_hidden_layers")
    near = replace(heads(c, qk_norm="head"), window=c.number("sliding_window", 512))
    shared = c.flag("attention_k_eq_v")  # what sees everything has wider heads, fewer where keys are the values
    kv = c.number("num_global_key_value_heads", 0) if shared else 0
    width = c.number("global_head_dim", 512) or 512
    wide = c.with_(head_dim=width, num_key_value_heads=kv or c.get("num_key_value_heads"))
    far = replace(heads(wide, qk_norm="head"), own_values=not shared)
    caching = count - min(count, c.number("num_kv_shared_layers", 0))
    # Which layers have a window: as listed, or five of six as transformers' class has it, and never the last.
    types = c.sequence("layer_types", count)
    if types is None:
        c.default("layer_types", "five of six layers have a window")
    windowed = [t == "sliding_attention" for t in types] if types else [bool((i + 1) % 6) for i in range(count)]
    blocks = [_gemma4_block(c, near if t else far, i < caching) for i, t in enumerate([*windowed[:-1], False])]
    return replace(decoder(c, blocks, tied=True), extras=_inputs(c, count))


def _gemma4_block(c: Fields, attention: Attention, caches: bool) -> Block:
    """Return an MLP, and beside it experts where there are any, with a scalar and what brings a layer's own input in."""
    width, hidden, inputs = c.need("intermediate_size"), c.need("hidden_size"), c.number("hidden_size_per_layer_input", 256)
    extras = [Extra("layer_scalar", (1,))]
    if inputs:
        extras += [Extra("per_layer_input_gate.weight", (inputs, hidden), part="mlp"), Extra("per_layer_norm", (hidden,))]
        extras.append(Extra("per_layer_projection.weight", (hidden, inputs), part="mlp"))
    if c.flag("enable_moe_block"):
        sizes = c.need("num_experts"), c.need("top_k_experts", "num_experts_per_tok"), c.need("moe_intermediate_size")
        extras += [Extra("router.scale", (hidden,), part="router"), Extra("router.per_expert_scale", sizes[:1], part="router")]
        experts = Experts(*sizes, shared_intermediate=width, shared_apart=True)
        return Block(replace(attention, own_cache=caches), experts, 7, tuple(extras))
    doubled = 2 if c.flag("use_double_wide_mlp") and not caches else 1
    return Block(replace(attention, own_cache=caches), Mlp(doubled * width), 4, tuple(extras))


def _inputs(c: Fields, count: int) -> tuple[Extra, ...]:
    """Return a second embedding that gives every layer an input of its own (the E models)."""
    width = count * c.number("hidden_size_per_layer_input", 256)
    if not width:
        return ()
    rows = c.need("vocab_size_per_layer_input", "vocab_size")
    table = Extra("model.embed_tokens_per_layer.weight", (rows, width), "vocab", "embedding", active=False)
    projection = Extra("model.per_layer_model_projection.weight", (width, c.need("hidden_size")), part="mlp")
    return (table, projection, Extra("model.per_layer_projection_norm", (width // count,)))


@family("Gemma4ForConditionalGeneration", shared=("vision_config",))
def _gemma4(c: Fields) -> Model:
    model = with_tower(c, _gemma4_text(text_of(c)), gemma4_tower)
    if audio := c.section("audio_config"):
        c.notes.append(Note("no-tower", "the audio tower is counted, and never priced"))
        return replace(model, extras=(*model.extras, *_audio(audio, model.hidden)))
    return model


def _audio(c: Fields, hidden: int) -> tuple[Extra, ...]:
    """Return a conformer: two MLPs, attention with relative places and a convolution a layer, at the end the decoder's width."""
    width, layers, out = c.number("hidden_size", 1024), c.number("num_hidden_layers", 12), c.number("output_proj_dims", 1536)
    wide = 3 * width + c.number("conv_kernel_size", 5)
    matrices: dict[str, tuple[int, ...]] = {"mlp": (4 * layers, 4 * width, width), "attention": (5 * layers, width, width)}
    matrices |= {"convolution": (layers, wide, width), "norms": (8 * layers, width), "input": (width, width)}
    matrices |= {"output": (out, width), "projector": (hidden, out)}
    return tuple(Extra(f"audio.{name}.weight", shape, part="tower", active=False) for name, shape in matrices.items() if all(shape))
