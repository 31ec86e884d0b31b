"""Qwen: mixtures, with linear attention between, and with a vision tower before."""

from dataclasses import replace

from commtax.catalog.families.parts import STATES, Fields, decoder, family, heads, mlp, with_prediction_layers
from commtax.catalog.families.plain import reader
from commtax.catalog.families.vision import qwen25_tower, qwen_tower, register_vision
from commtax.spec import Block, DeltaNet, Experts, Mlp, Model


def _feed_forwards(c: Fields, shared: int) -> list[Mlp | Experts]:
    """Return experts in every ``decoder_sparse_step``-th layer that is not listed as dense."""
    sizes = c.need("num_experts", "num_local_experts"), c.need("num_experts_per_tok"), c.need("moe_intermediate_size")
    moe = Experts(*sizes, shared_intermediate=shared, shared_gate=shared > 0)
    step, dense_layers = c.number("decoder_sparse_step", 1) or 1, c.indices("mlp_only_layers")
    dense = Mlp(c.number("intermediate_size", 1) or 1)
    return [moe if i not in dense_layers and (i + 1) % step == 0 else dense for i in range(c.layers("num_hidden_layers"))]


@family("Qwen2MoeForCausalLM")
def _qwen2_moe(c: Fields) -> Model:
    attention = replace(heads(c), qkv_bias=True)
    return decoder(c, [Block(attention, ffn) for ffn in _feed_forwards(c, c.need("shared_expert_intermediate_size"))])


@family("Qwen3MoeForCausalLM", sequence_parallel_moe=True)
def _qwen3_moe(c: Fields) -> Model:
    attention = heads(c, bias=False, qk_norm="head")
    return decoder(c, [Block(attention, ffn) for ffn in _feed_forwards(c, 0)])


@family("Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM", sequence_parallel_moe=True)
def _qwen3_next(c: Fields) -> Model:
    return _hybrid(c, _feed_forwards(c, c.number("shared_expert_intermediate_size", 0)))


@family("Qwen3_5ForCausalLM")
def _qwen35(c: Fields) -> Model:
    return _hybrid(c, [mlp(c)] * c.layers("num_hidden_layers"))


def _hybrid(c: Fields, feed_forwards: list[Mlp | Experts]) -> Model:
    attention = heads(c, bias=False, qk_norm="head")
    full = replace(attention, gate="element" if c.flag("attn_output_gate", True) else "")
    counts = c.need("linear_num_key_heads"), c.need("linear_num_value_heads")
    state = STATES.get(str(c.get("mamba_ssm_dtype")), "")
    dims = c.need("linear_key_head_dim"), c.need("linear_value_head_dim")
    linear = DeltaNet(*counts, *dims, c.number("linear_conv_kernel_dim", 4) or 1, state_dtype=state)
    if types := c.sequence("layer_types", len(feed_forwards)):
        is_linear = [kind == "linear_attention" for kind in types]
    else:  # full attention in every 4th layer, as in transformers' classes
        every = c.number("full_attention_interval", 0)
        if not every:
            c.default("full_attention_interval", "4")
        is_linear = [(i + 1) % (every or 4) > 0 for i in range(len(feed_forwards))]
    blocks = [Block(linear if near else full, ffn) for near, ffn in zip(is_linear, feed_forwards, strict=True)]
    further = Block(full, feed_forwards[-1])
    return with_prediction_layers(c, decoder(c, blocks), "mtp_num_hidden_layers", "num_nextn_predict_layers", block=further)


register_vision("Qwen3_5MoeForConditionalGeneration", _qwen3_next, qwen_tower, "mamba_ssm_dtype", sequence_parallel_moe=True)
register_vision("Qwen3_5ForConditionalGeneration", _qwen35, qwen_tower, "mamba_ssm_dtype")
register_vision("Qwen3VLForConditionalGeneration", reader("Qwen3ForCausalLM"), qwen_tower)
register_vision("Qwen3VLMoeForConditionalGeneration", _qwen3_moe, qwen_tower, sequence_parallel_moe=True)
register_vision("Qwen2_5_VLForConditionalGeneration", reader("Qwen2ForCausalLM"), qwen25_tower, flat=True)
