"""DeepSeek and what has its latent attention: V2 to V4, GLM-5, and Kimi (in K3 and Kimi-Linear between linear attention)."""

from dataclasses import replace
from functools import partial

from commtax.catalog.families.parts import Fields, chosen_layers, decoder, family, fine_experts, mlp, with_prediction_layers
from commtax.catalog.families.vision import moonvit, moonvit2, register_vision
from commtax.spec import Attention, Block, Compressed, DeltaNet, Experts, Extra, Hyper, Indexer, Latent, Model

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}  # tokens an entry
mixture = partial(family, sequence_parallel_moe=True)
mixture("DeepseekV2ForCausalLM")(lambda c: latent_decoder(c, correction_bias=False))


@mixture("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM")
def _deepseek3(c: Fields) -> Model:
    model = latent_decoder(c, correction_bias=True)
    # A layer that guesses a token further has experts and, where the model has any, a selector of its own.
    one = c.with_(num_hidden_layers=1, indexer_types=None, index_topk_pattern=None, mlp_layer_types=None, moe_layer_freq=1)
    further = latent_decoder(one.with_(first_k_dense_replace=0), correction_bias=True).blocks[0]
    return with_prediction_layers(c, model, "num_nextn_predict_layers", block=further)


def latent_decoder(c: Fields, correction_bias: bool) -> Model:
    """Read latent attention with the first layers dense, then experts with shared ones, and V3.2's and GLM-5's token selector."""
    count, attention, moe, dense = c.layers("num_hidden_layers"), latent_attention(c), fine_experts(c, correction_bias), mlp(c)
    selectors = _selectors(c, count)
    pairs = zip(routed_layers(c, count), selectors, strict=True)
    return decoder(c, [Block(replace(attention, indexer=chosen), moe if routed else dense) for routed, chosen in pairs])


def latent_attention(c: Fields) -> Attention:
    count, bias = c.need("num_attention_heads"), c.flag("attention_bias")
    latent = Latent(c.number("q_lora_rank", 0), c.need("kv_lora_rank"), c.need("qk_nope_head_dim"), c.need("qk_rope_head_dim"))
    dims = latent.nope_dim + latent.rope_dim, c.need("v_head_dim")
    return Attention(count, count, *dims, qkv_bias=bias, out_bias=bias, latent=latent)


def routed_layers(c: Fields, count: int) -> list[bool]:
    """Return which layers have experts: as a list says, else every ``moe_layer_freq``-th from the first that is not dense."""
    if listed := chosen_layers(c, count, "mlp_layer_types") or chosen_layers(c, count, "moe_layer_freq"):
        return listed
    first, every = c.number("first_k_dense_replace", 0), c.number("moe_layer_freq", 1) or 1
    return [i >= first and i % every == 0 for i in range(count)]


def _selectors(c: Fields, count: int) -> list[Indexer | None]:
    """Return each layer's token selector, which later GLM models take from an earlier layer in some, as GlmMoeDsaConfig has it."""
    if "index_n_heads" not in c.config:
        return [None] * count
    chooser = Indexer(c.need("index_n_heads"), c.need("index_head_dim"), c.need("index_topk"))
    taken, listed = replace(chooser, own=False), c.sequence("indexer_types", count)
    if not listed and isinstance(pattern := c.get("index_topk_pattern"), str):  # one letter a layer
        listed = c.with_(index_topk_pattern=list(pattern)).sequence("index_topk_pattern", count)
    every, offset = c.number("index_topk_freq", 1) or 1, c.number("index_skip_topk_offset", 2)
    full = [kind in ("full", "F") for kind in listed] if listed else [not max(i - offset + 1, 0) % every for i in range(count)]
    return [chooser if chooses else taken for chooses in full]


@mixture("DeepseekV4ForCausalLM", shared=("compress_ratios layer_types",))
def _deepseek4(c: Fields) -> Model:
    """Read compressed attention and experts in every layer, the first ones named by a table, and several residual streams."""
    count, hidden = c.layers("num_hidden_layers"), c.need("hidden_size")
    hashed, chosen = c.number("num_hash_layers", 3), fine_experts(c, correction_bias=True)
    named = replace(chosen, correction_bias=False, hashed=c.need("vocab_size"))
    blocks = [Block(_compressed_attention(c, ratio), named if i < hashed else chosen) for i, ratio in enumerate(_ratios(c, count))]
    plain, streams = decoder(c, blocks), c.number("hc_mult", 4) or 1
    shapes = ((streams, streams * hidden), (streams,), (1,))
    extras = tuple(Extra(f"hc_head.{i}", shape, part="hyper-connections") for i, shape in enumerate(shapes))
    further = Block(_compressed_attention(c, 0), chosen, extras=extras)
    return with_prediction_layers(c, replace(plain, hyper=Hyper(streams)), "num_nextn_predict_layers", block=further)


def _ratios(c: Fields, count: int) -> list[int]:
    """Return the tokens that share an entry in each layer, by number, by the layer's name, or as in transformers."""
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
    width, count, used = c.need("head_dim"), c.need("num_attention_heads"), indexer if made.overlap > 1 else None
    return Attention(count, 1, width, width, sinks=True, indexer=used, compressed=made)


@family("KimiLinearForCausalLM", shared=("linear_attn_config",))
def _kimi_linear(c: Fields) -> Model:
    """Read layers of linear attention, some of latent attention, and K3's gates, narrower experts and look back over blocks."""
    count = c.layers("num_hidden_layers")
    c = c.with_(num_experts_per_tok=c.get("num_experts_per_token") or c.get("num_experts_per_tok"))
    extras, norms, moe = _residuals(c, ("self_attention", "mlp")), 2, mlp(c) if c.get("num_experts") is None else _experts(c)
    # Which layers see everything: by number from 1, by name, or every fourth as transformers' class has it.
    linear, latent = _delta_net(c), replace(latent_attention(c), gate="element" if c.flag("mla_use_output_gate") else "")
    section = c.section("linear_attn_config")
    full = section.indices("full_attn_layers") if section else set()
    if names := c.sequence("layer_types", count):
        full = {i + 1 for i, name in enumerate(names) if name != "linear_attention"}
    if not full:
        c.default("linear_attn_config", "every fourth layer sees everything")
        full = set(range(4, count + 1, 4))
    mixers, routed = [latent if i + 1 in full else linear for i in range(count)], routed_layers(c, count)
    blocks = [Block(m, moe if r else mlp(c), norms, extras) for m, r in zip(mixers, routed, strict=True)]
    model = replace(decoder(c, blocks), extras=_residuals(c, ("output",)), lookback=c.number("attn_res_block_size", 0))
    return with_prediction_layers(c, model, "num_nextn_predict_layers")


def _delta_net(c: Fields) -> DeltaNet:
    """Return linear attention with equally many key and value heads, and a decay through a matrix of one head's width."""
    section = c.section("linear_attn_config") or c
    if section is c and c.get("linear_num_heads") is None:
        c.bad.append("linear_attn_config")
    heads, width = section.need("num_heads", "linear_num_heads"), section.need("head_dim", "linear_head_dim")
    conv = section.number("short_conv_kernel_size", c.number("linear_conv_kernel_dim", 4)) or 1
    gate = 0 if section.flag("use_full_rank_gate") else width
    return DeltaNet(heads, heads, width, width, conv, width, gate, state_dtype="fp32")  # whatever else engines keep in 16 bits


def _experts(c: Fields) -> Experts:
    width = c.need("moe_intermediate_size")
    sizes = c.need("num_experts"), c.need("num_experts_per_tok"), width
    latent, shared = c.number("routed_expert_hidden_size", 0), width * c.number("num_shared_experts", 0)
    norm = c.flag("latent_moe_use_norm") and latent > 0
    return Experts(*sizes, shared_intermediate=shared, correction_bias=True, latent=latent, latent_norm=norm)


def _residuals(c: Fields, places: tuple[str, ...]) -> tuple[Extra, ...]:
    """Return attention over the residuals of earlier blocks of layers: a norm and a vector that scores them, at each place."""
    if not c.number("attn_res_block_size", 0):
        return ()
    hidden = c.need("hidden_size")
    kinds = (("norm", (hidden,)), ("proj", (1, hidden)))
    return tuple(Extra(f"{place}_res_{kind}.weight", shape) for place in places for kind, shape in kinds)


K2 = partial(latent_decoder, correction_bias=True)
register_vision("KimiK25ForConditionalGeneration", K2, moonvit, sequence_parallel_moe=True)
register_vision("KimiK3ForConditionalGeneration", _kimi_linear, moonvit2, "linear_attn_config")
