"""Models of the first years: learned positions, LayerNorms, biases."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.catalog.families.parts import decoder, family, heads, layers
from commtax.catalog.fields import Fields
from commtax.spec import Attention, Block, Mlp, Model


@family("OPTForCausalLM", plain_residual=True)
def _opt(c: Fields) -> Model:
    """Biases and LayerNorms everywhere; the position table has two more rows than positions."""
    if c.number("word_embed_proj_dim", c.need("hidden_size")) != c.need("hidden_size"):
        c.bad.append("word_embed_proj_dim (a projected embedding is not supported)")
    bias = c.flag("enable_bias", True)
    attention = replace(heads(c), qkv_bias=bias, out_bias=bias)
    blocks = layers(c, attention, Mlp(c.need("ffn_dim"), gated=False, bias=bias))
    norm_bias, positions = c.flag("layer_norm_elementwise_affine", True), c.need("max_position_embeddings") + 2
    return decoder(c, blocks, tied=True, norm_bias=norm_bias, positions=positions)


@family("GPT2LMHeadModel", plain_residual=True)
def _gpt2(c: Fields) -> Model:
    count, hidden = c.need("n_head", "num_attention_heads"), c.need("n_embd", "hidden_size")
    attention = Attention(count, count, hidden // count, hidden // count, qkv_bias=True, out_bias=True)
    block = Block(attention, Mlp(c.number("n_inner", 4 * hidden) or 4 * hidden, gated=False, bias=True))
    depth, positions = c.layers("n_layer", "num_hidden_layers"), c.need("n_positions", "max_position_embeddings")
    return decoder(c, [block] * depth, tied=True, norm_bias=True, positions=positions)


@family("MPTForCausalLM", plain_residual=True)
def _mpt(c: Fields) -> Model:
    """ALiBi models have no position table, whatever ``learned_pos_emb`` says."""
    count, hidden, bias = c.need("n_heads"), c.need("d_model"), not c.flag("no_bias")
    inner = c.get("attn_config")
    settings = inner if isinstance(inner, Mapping) else {}
    kv = int(settings.get("kv_n_heads") or count)
    attention = Attention(count, kv, hidden // count, hidden // count, qkv_bias=bias, out_bias=bias)
    ffn = Mlp(c.number("expansion_ratio", 4) * hidden, gated=False, bias=bias)
    positions = 0 if settings.get("alibi") or not c.flag("learned_pos_emb", True) else c.need("max_seq_len")
    return decoder(c, [Block(attention, ffn)] * c.layers("n_layers"), tied=True, norm_bias=bias, positions=positions)
