"""Llama's layers with a turn of their own: hybrid Granite, OLMo 3, Command R."""

from dataclasses import replace

from commtax.catalog.families.parts import decoder, experts, family, heads, layers, mlp, windowed_layers
from commtax.catalog.fields import Fields
from commtax.spec import Block, Experts, Mamba2, Mlp, Model


@family("GraniteMoeHybridForCausalLM", plain_residual=True)
def _granite_hybrid(c: Fields) -> Model:
    """State-space layers with a few of attention between; all widen, by experts and an MLP of all tokens, or by that alone."""
    attention, shared = heads(c, bias=False), c.number("shared_intermediate_size", 0)
    ffn: Mlp | Experts = Mlp(shared or 1)
    if c.number("num_local_experts", 0):
        ffn = replace(experts(c), shared_intermediate=shared)
    kinds = c.pattern("layer_types", c.layers("num_hidden_layers"))
    if unknown := next((kind for kind in kinds if kind not in ("attention", "mamba", None)), None):
        c.bad.append(f"layer_types (attention or mamba, not {unknown!r})")
    mamba = _granite_mamba(c) if "mamba" in kinds else None
    return decoder(c, [Block(mamba if kind == "mamba" else attention, ffn) for kind in kinds])


def _granite_mamba(c: Fields) -> Mamba2:
    """``mamba_d_head``: "auto" shares the widened state out."""
    count, width = c.need("mamba_n_heads"), c.get("mamba_d_head")
    auto = (c.number("mamba_expand", 2) or 2) * c.need("hidden_size") // count
    sizes = count, auto if width in (None, "auto") else c.need("mamba_d_head"), c.number("mamba_n_groups", 1) or 1
    rest = c.need("mamba_d_state"), c.number("mamba_d_conv", 4) or 1
    return Mamba2(*sizes, *rest, c.flag("mamba_conv_bias", True), c.flag("mamba_proj_bias"))


@family("Olmo3ForCausalLM", plain_residual=True)
def _olmo3(c: Fields) -> Model:
    """Three of four layers look back a window only, as transformers' class has it where no list says otherwise."""
    attention = heads(c, bias=False, qk_norm="full")
    return decoder(c, layers(c, attention, mlp(c)) if c.get("layer_types") else windowed_layers(c, attention, 4, 2))


@family("CohereForCausalLM")
def _cohere(c: Fields) -> Model:
    """One norm before both halves of a layer, which add up; the largest norms each head's queries and keys. Some configs have 8,192
    positions beside a ``model_max_length`` of what the model was trained on, which engines take."""
    attention = heads(c, bias=False, qk_norm="full" if c.flag("use_qk_norm") else "")
    longest = c.number("model_max_length", 0) or c.get("max_position_embeddings")
    return decoder(c.with_(max_position_embeddings=longest), layers(c, attention, mlp(c), norms=1), tied=True)


@family("Cohere2ForCausalLM")
def _cohere2(c: Fields) -> Model:
    attention, every = heads(c, bias=False), c.number("sliding_window_pattern", 4) or 4
    blocks = layers(c, attention, mlp(c), 1) if c.get("layer_types") else windowed_layers(c, attention, every, 1)
    return decoder(c, blocks, tied=True)
