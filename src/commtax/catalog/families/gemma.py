"""Gemma: four norms a layer, few layers that see everything; the fourth adds mixtures, inputs of each layer, shared caches."""

from dataclasses import replace

from commtax.catalog.families.parts import decoder, family, heads, layers, mlp, text_of
from commtax.catalog.families.vision import siglip, vision_of
from commtax.catalog.fields import Fields
from commtax.spec import Attention, Block, Model


@family("GemmaForCausalLM")
def _gemma(c: Fields) -> Model:
    return decoder(c, layers(c, heads(c), mlp(c)), tied=True)


@family("Gemma2ForCausalLM")
def _gemma2(c: Fields) -> Model:
    return decoder(c, _gemma_layers(c, heads(c), 2), tied=True)


def _gemma_layers(c: Fields, attention: Attention, every: int) -> list[Block]:
    """Four norms a layer; all layers but each ``every``-th look back ``sliding_window`` tokens only."""
    window, ffn = c.number("sliding_window", 4096), mlp(c)
    windows = [0 if (i + 1) % every == 0 else window for i in range(c.layers("num_hidden_layers"))]
    return [Block(replace(attention, window=w), ffn, 4) for w in windows]


@family("Gemma3ForCausalLM")
def _gemma3_text(c: Fields) -> Model:
    attention, every = heads(c, qk_norm="head"), c.number("sliding_window_pattern", 6) or 6
    listed = c.get("layer_types")
    blocks = layers(c, attention, mlp(c), 4) if listed else _gemma_layers(c, attention, every)
    return decoder(c, blocks, tied=True)


@family("Gemma3ForConditionalGeneration", shared=("vision_config",))
def _gemma3(c: Fields) -> Model:
    text, vision = text_of(c), vision_of(c)
    model = _gemma3_text(text)
    return replace(model, tower=siglip(vision, model.hidden, c.number("mm_tokens_per_image", 256))) if vision else model
