"""Kimi: DeepSeek-V3's decoder behind a vision tower (K2.5), and linear attention between latent layers (Kimi-Linear, K3)."""

from dataclasses import replace
from functools import partial

from commtax.catalog.families.deepseek import latent_attention, latent_decoder, routed_layers
from commtax.catalog.families.parts import Fields, decoder, family, mlp, with_prediction_layers
from commtax.catalog.families.vision import moonvit, moonvit2, register_vision
from commtax.spec import Block, DeltaNet, Experts, Extra, Model


@family("KimiLinearForCausalLM", shared=("linear_attn_config",))
def _kimi_linear(c: Fields) -> Model:
    """Read layers of linear attention, some of latent attention, and K3's gates, narrower experts and look back over blocks."""
    count = c.layers("num_hidden_layers")
    c = c.with_(num_experts_per_tok=c.get("num_experts_per_token") or c.get("num_experts_per_tok"))
    extras, norms = _residuals(c, ("self_attention", "mlp")), 2
    moe = _experts(c) if c.get("num_experts") is not None else mlp(c)
    # Which layers see everything: by number from 1, by name, or every fourth as transformers' class has it.
    linear, latent = _delta_net(c), replace(latent_attention(c), gate="element" if c.flag("mla_use_output_gate") else "")
    section = c.section("linear_attn_config")
    full, names = section.indices("full_attn_layers") if section else set(), c.sequence("layer_types", count)
    if names:
        full = {i + 1 for i, name in enumerate(names) if name != "linear_attention"}
    if not full:
        c.default("linear_attn_config", "every fourth layer sees everything")
        full = set(range(4, count + 1, 4))
    mixers, routed = [latent if i + 1 in full else linear for i in range(count)], routed_layers(c, count)
    blocks = [Block(m, moe if r else mlp(c), norms, extras) for m, r in zip(mixers, routed, strict=True)]
    model = replace(decoder(c, blocks), extras=_residuals(c, ("output",)), lookback=c.number("attn_res_block_size", 0))
    return with_prediction_layers(c, model, "num_nextn_predict_layers")


def _delta_net(c: Fields) -> DeltaNet:
    """Return equally many heads of keys and values, where each channel's decay goes through a matrix of one head's width, and the
    gate too unless whole."""
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


register_vision(
    "KimiK25ForConditionalGeneration", partial(latent_decoder, correction_bias=True), moonvit, sequence_parallel_moe=True
)
register_vision("KimiK3ForConditionalGeneration", _kimi_linear, moonvit2, "linear_attn_config")
