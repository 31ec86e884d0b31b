"""MiniMax."""

from dataclasses import replace

from commtax.catalog.families.parts import decoder, experts, family, heads, layers
from commtax.catalog.fields import Fields
from commtax.spec import Model


@family("MiniMaxM2ForCausalLM")
def _minimax_m2(c: Fields) -> Model:
    attention = heads(c, qk_norm="full" if c.flag("use_qk_norm") else "")
    shared, correction = c.number("shared_intermediate_size", 0), c.flag("use_routing_bias")
    moe = replace(experts(c), shared_intermediate=shared, correction_bias=correction)
    return decoder(c, layers(c, attention, moe))
