"""Nemotron: layers that either mix tokens or widen them (Nemotron-H, Nemotron 3), and Llamas with layers cut (Nemotron-NAS)."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.catalog.families.parts import MAX_LAYERS, MAX_PREDICTIONS, STATES, Fields, decoder, family, heads, predictor
from commtax.spec import Attention, Block, Experts, Extra, Mamba2, Mlp, Model

KINDS = {"M": "M", "E": "E", "*": "*", "-": "-", "mamba": "M", "linear_attention": "M", "moe": "E", "attention": "*"}
KINDS |= {"full_attention": "*", "mlp": "-"}  # names of the kinds of layers: letters of a pattern, or words of a list
WIDTH_STEP = 256  # widths that a multiple of the hidden one gives are rounded up to this (Nemotron-NAS)


@family("NemotronHForCausalLM", shared=("hybrid_override_pattern layers_block_type layer_types", "mamba_ssm_cache_dtype"))
def _nemotron_h(c: Fields) -> Model:
    kinds = _pattern(c, "layers_block_type", "hybrid_override_pattern")
    if not kinds:
        c.bad.append("hybrid_override_pattern")
    model = decoder(c, [_block(c, kind) for kind in kinds] or [Block(_attention(c), None, 1)])
    count = c.number("num_nextn_predict_layers", 0, MAX_PREDICTIONS)
    kinds = _pattern(c, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or ["*", "E"]
    if not count or len(kinds) > MAX_PREDICTIONS:
        return model
    first, *others = (_block(c, kind) for kind in kinds)
    return replace(model, mtp=(predictor(first, model.hidden), *others) * count)


def _pattern(c: Fields, words: str, letters: str) -> list[str]:
    listed = c.get(words) or c.get("layer_types" if words == "layers_block_type" else letters) or c.get(letters)
    entries = [e for e in listed if e != "|"] if isinstance(listed, (list, str)) else []
    if len(entries) > MAX_LAYERS or not all(isinstance(e, str) and e in KINDS for e in entries):
        c.bad.append(f"{letters} (at most {MAX_LAYERS:,} of M, E, * and -)")
        return []
    return [KINDS[entry] for entry in entries]


def _block(c: Fields, kind: str) -> Block:
    if kind == "M":
        sizes = c.need("mamba_num_heads"), c.need("mamba_head_dim"), c.need("n_groups"), c.need("ssm_state_size")
        state = STATES.get(str(c.get("mamba_ssm_cache_dtype")), "")
        bias = c.flag("mamba_proj_bias", c.flag("use_bias"))
        return Block(Mamba2(*sizes, c.number("conv_kernel", 4) or 1, c.flag("use_conv_bias", True), bias, state), None, 1)
    if kind == "*":
        return Block(_attention(c), None, 1)
    if kind == "-":
        return Block(None, Mlp(c.need("intermediate_size"), gated=False, bias=c.flag("mlp_bias")), 1)
    many = c.need("n_routed_experts"), c.need("num_experts_per_tok"), c.need("moe_intermediate_size")
    shared = c.number("n_shared_experts", 1) * c.number("moe_shared_expert_intermediate_size", 0)
    latent = c.number("moe_latent_size", 0)
    # Without gates, and with a narrower width for the routed experts in the larger models.
    return Block(None, Experts(*many, shared_intermediate=shared, gated=False, correction_bias=True, latent=latent), 1)


def _attention(c: Fields) -> Attention:
    return heads(c.with_(head_dim=c.get("head_dim") or c.get("attention_head_dim")), bias=False)


@family("DeciLMForCausalLM", "NemotronNASForCausalLM", shared=("block_configs",))
def _nemotron_nas(c: Fields) -> Model:
    """Llama with attention left out of some layers and narrower MLPs in others, as ``block_configs`` lists them."""
    return decoder(c, [_pruned_block(c, entry) for entry in c.pattern("block_configs", c.layers("num_hidden_layers"))])


def _pruned_block(c: Fields, entry: object) -> Block:
    parts = entry if isinstance(entry, Mapping) else {}
    attention, ffn = (part if isinstance(part, Mapping) else {} for part in (parts.get("attention"), parts.get("ffn")))
    straight = sum(bool(part.get("replace_with_linear")) for part in (attention, ffn))
    mixer = None
    if not attention.get("no_op") and not attention.get("replace_with_linear"):
        each, count = c.inside(attention).need("n_heads_in_group"), c.need("num_attention_heads")
        window = c.inside(attention).number("window_length", 0)
        mixer = replace(heads(c.with_(num_key_value_heads=max(1, count // each)), bias=False), window=window)
    mlp = None if ffn.get("no_op") or ffn.get("replace_with_linear") else Mlp(_width(c, c.inside(ffn)))
    norms, hidden = sum(not part.get("no_op") for part in (attention, ffn)), c.need("hidden_size")
    return Block(mixer, mlp, norms, tuple(Extra(f"linear_{i}.weight", (hidden, hidden), part="mlp") for i in range(straight)))


def _width(c: Fields, ffn: Fields) -> int:
    """Return a width, or two thirds of a multiple of the hidden one, rounded up."""
    if ffn.get("intermediate_size") is not None:
        return ffn.need("intermediate_size")
    times = ffn.get("ffn_mult")
    if isinstance(times, bool) or not isinstance(times, (int, float)) or not 0 < times < 1000:
        c.bad.append("ffn_mult")
        return 1
    return -(-int(2 * times * c.need("hidden_size") / 3) // WIDTH_STEP) * WIDTH_STEP
