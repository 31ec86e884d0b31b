"""Qwen: dense, mixtures, with linear attention between, and with a vision tower before."""

from dataclasses import replace

from commtax.catalog.families.parts import decoder, family, heads, layers, mlp
from commtax.catalog.fields import Fields
from commtax.spec import Attention, Block, Experts, Mlp, Model


@family("Qwen2ForCausalLM")
def _qwen2(c: Fields) -> Model:
    attention = replace(heads(c), qkv_bias=True)
    return decoder(c, layers(_sliding(c), attention, mlp(c)))


def _sliding(c: Fields) -> Fields:
    """Qwen's layers see everything unless their config asks for windows."""
    return c.with_(use_sliding_window=c.flag("use_sliding_window"))


@family("Qwen3ForCausalLM")
def _qwen3(c: Fields) -> Model:
    attention = heads(c, bias=False, qk_norm="head")
    return decoder(c, layers(_sliding(c), attention, mlp(c)))


def _qwen_moe(c: Fields, attention: Attention, shared: int) -> Model:
    sizes = c.need("num_experts", "num_local_experts"), c.need("num_experts_per_tok"), c.need("moe_intermediate_size")
    moe = Experts(*sizes, shared_intermediate=shared, shared_gate=shared > 0)
    step, dense_layers = c.number("decoder_sparse_step", 1) or 1, c.indices("mlp_only_layers")
    dense = Mlp(c.number("intermediate_size", 1) or 1)
    blocks = [
        Block(attention, moe if i not in dense_layers and (i + 1) % step == 0 else dense)
        for i in range(c.layers("num_hidden_layers"))
    ]
    return decoder(c, blocks)


@family("Qwen2MoeForCausalLM")
def _qwen2_moe(c: Fields) -> Model:
    return _qwen_moe(c, replace(heads(c), qkv_bias=True), c.need("shared_expert_intermediate_size"))


@family("Qwen3MoeForCausalLM", sequence_parallel_moe=True)
def _qwen3_moe(c: Fields) -> Model:
    return _qwen_moe(c, heads(c, bias=False, qk_norm="head"), 0)
