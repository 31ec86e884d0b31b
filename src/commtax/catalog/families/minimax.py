"""MiniMax: M2, and M3 whose layers look at the best blocks of the past only."""

from dataclasses import replace

from commtax.catalog.families.deepseek import routed_layers
from commtax.catalog.families.parts import Fields, decoder, experts, family, heads, layers
from commtax.catalog.families.vision import minimax_tower, register_vision
from commtax.spec import Block, Indexer, Mlp, Model


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
    """Return which layers choose blocks, and how many, or that all see everything without the section, as in transformers."""
    section = c.section("sparse_attention_config")
    if section is None:
        c.default("sparse_attention_config", "every layer sees everything")
        return [None] * count
    block = section.number("sparse_block_size", 128) or 1
    tokens = block * section.need("sparse_topk_blocks")
    chooser = Indexer(section.need("sparse_num_index_heads"), section.need("sparse_index_dim"), tokens, block)
    return [chooser if chooses == 1 else None for chooses in section.pattern("sparse_attention_freq", count)]


register_vision(
    "MiniMaxM3SparseForConditionalGeneration",
    _minimax_m3_text,
    minimax_tower,
    *("sparse_attention_config", "moe_layer_freq mlp_layer_types"),
)
