"""Llama 4, and Mistral behind a vision tower; what is laid out like Llama stands in ``families.toml``."""

from dataclasses import replace

from commtax.catalog.families.parts import Fields, decoder, experts, family, heads
from commtax.catalog.families.plain import reader
from commtax.catalog.families.vision import llama4_tower, pixtral_tower, register_vision
from commtax.spec import Block, Mlp, Model


@family("Llama4ForCausalLM", sequence_parallel_moe=True)
def _llama4_text(c: Fields) -> Model:
    """Read chunked attention except where a layer has no rotary embedding, with a query/key norm without parameters."""
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
