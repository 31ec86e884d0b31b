"""DeepSeek and what has its latent attention: V2 to V4, GLM-5."""

from dataclasses import replace

from commtax.catalog.families.parts import Fields, chosen_layers, decoder, family, fine_experts, mlp, with_prediction_layers
from commtax.spec import Attention, Block, Compressed, Extra, Hyper, Indexer, Latent, Model

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens that share an entry, by the names that transformers has for V4's layers."""


@family("DeepseekV2ForCausalLM", sequence_parallel_moe=True)
def _deepseek2(c: Fields) -> Model:
    return latent_decoder(c, correction_bias=False)


@family(
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM", sequence_parallel_moe=True
)
def _deepseek3(c: Fields) -> Model:
    return with_prediction_layers(
        c, latent_decoder(c, correction_bias=True), "num_nextn_predict_layers", block=_prediction_block(c)
    )


def latent_decoder(c: Fields, correction_bias: bool) -> Model:
    """Read latent attention with the first layers dense, then experts with shared ones, and V3.2's and GLM-5's token selector."""
    count, attention, moe, dense = c.layers("num_hidden_layers"), latent_attention(c), fine_experts(c, correction_bias), mlp(c)
    selectors = _selectors(c, count)
    blocks = [
        Block(replace(attention, indexer=selector), moe if routed else dense)
        for routed, selector in zip(routed_layers(c, count), selectors, strict=True)
    ]
    return decoder(c, blocks)


def latent_attention(c: Fields) -> Attention:
    count, bias = c.need("num_attention_heads"), c.flag("attention_bias")
    latent = Latent(c.number("q_lora_rank", 0), c.need("kv_lora_rank"), c.need("qk_nope_head_dim"), c.need("qk_rope_head_dim"))
    dims = latent.nope_dim + latent.rope_dim, c.need("v_head_dim")
    return Attention(count, count, *dims, qkv_bias=bias, out_bias=bias, latent=latent)


def routed_layers(c: Fields, count: int) -> list[bool]:
    """Return which layers have experts: as a list says, else every ``moe_layer_freq``-th from the first that is not dense."""
    listed = chosen_layers(c, count, "mlp_layer_types") or chosen_layers(c, count, "moe_layer_freq")
    if listed:
        return listed
    first, every = c.number("first_k_dense_replace", 0), c.number("moe_layer_freq", 1) or 1
    return [i >= first and i % every == 0 for i in range(count)]


def _selectors(c: Fields, count: int) -> list[Indexer | None]:
    """Return the token selector of each layer. Later GLM models give one to some layers, and the others take the last choice. As
    transformers' GlmMoeDsaConfig has it: ``indexer_types``, else a pattern of F and S, else every ``index_topk_freq``-th."""
    if "index_n_heads" not in c.config:
        return [None] * count
    chooser = Indexer(c.need("index_n_heads"), c.need("index_head_dim"), c.need("index_topk"))
    taken = replace(chooser, own=False)
    listed = c.sequence("indexer_types", count) or _letters(c, count)
    every, offset = c.number("index_topk_freq", 1) or 1, c.number("index_skip_topk_offset", 2)
    full = [kind in ("full", "F") for kind in listed] if listed else [not max(i - offset + 1, 0) % every for i in range(count)]
    return [chooser if chooses else taken for chooses in full]


def _letters(c: Fields, count: int) -> list[object] | None:
    """Return ``index_topk_pattern`` as a list, where it is a text of one letter a layer."""
    pattern = c.get("index_topk_pattern")
    return c.with_(index_topk_pattern=list(pattern)).sequence("index_topk_pattern", count) if isinstance(pattern, str) else None


def _prediction_block(c: Fields) -> Block:
    """Return the layer that guesses a token further: one with experts and, where the model has any, a selector of its own."""
    whole = c.with_(num_hidden_layers=1, indexer_types=None, index_topk_pattern=None, mlp_layer_types=None, moe_layer_freq=1)
    return latent_decoder(whole.with_(first_k_dense_replace=0), correction_bias=True).blocks[0]


@family("DeepseekV4ForCausalLM", sequence_parallel_moe=True, shared=("compress_ratios layer_types",))
def _deepseek4(c: Fields) -> Model:
    """Read compressed attention and experts in every layer, the first ones named by a table, and several residual streams."""
    count, hidden = c.layers("num_hidden_layers"), c.need("hidden_size")
    hashed = c.number("num_hash_layers", 3)
    chosen = fine_experts(c, correction_bias=True)
    named = replace(chosen, correction_bias=False, hashed=c.need("vocab_size"))
    blocks = [Block(_compressed_attention(c, ratio), named if i < hashed else chosen) for i, ratio in enumerate(_ratios(c, count))]
    model = replace(decoder(c, blocks), hyper=Hyper(c.number("hc_mult", 4) or 1))
    streams = model.hyper.streams if model.hyper else 1
    shapes = ((streams, streams * hidden), (streams,), (1,))
    extras = tuple(Extra(f"hc_head.{i}", shape, part="hyper-connections") for i, shape in enumerate(shapes))
    return with_prediction_layers(
        c, model, "num_nextn_predict_layers", block=Block(_compressed_attention(c, 0), chosen, extras=extras)
    )


def _ratios(c: Fields, count: int) -> list[int]:
    """Return the tokens that share an entry in each layer, by number, by the layer's name, or as transformers' class alternates
    them."""
    numbers, names = c.sequence("compress_ratios", count), c.sequence("layer_types", count)
    listed: list[object] = numbers or [RATIOS.get(name, -1) if isinstance(name, str) else -1 for name in names or ()]
    if not listed:
        c.default("compress_ratios", "two layers of 128, then 128 and 4 in turn")
        return [128 if i < 2 or i % 2 == 0 else 4 for i in range(count)]
    ratios = [ratio for ratio in listed if type(ratio) is int and 0 <= ratio < 2**20]
    if len(ratios) < len(listed):
        c.bad.append("compress_ratios (numbers of tokens)")
        return [0] * count
    return ratios


def _compressed_attention(c: Fields, ratio: int) -> Attention:
    """Return attention with one latent as key and value of all heads, and with few tokens an entry a selector among entries."""
    window, groups = c.number("sliding_window", 128), c.need("o_groups")
    made = Compressed(c.need("q_lora_rank"), c.need("qk_rope_head_dim"), ratio, window, groups, c.need("o_lora_rank"))
    indexer = Indexer(c.need("index_n_heads"), c.need("index_head_dim"), c.need("index_topk"))
    width = c.need("head_dim")
    return Attention(
        c.need("num_attention_heads"), 1, width, width, sinks=True, indexer=indexer if made.overlap > 1 else None, compressed=made
    )
