"""Decoders whose layers are all alike but for windows, as ``families.toml`` lists them; Llama 4, Mistral behind a tower."""

from dataclasses import replace

from commtax.catalog.families import parts
from commtax.catalog.families.parts import ARCHITECTURES, Fields, Reader, decoder, family, heads, layers
from commtax.catalog.families.vision import llama4_tower, pixtral_tower, register_vision
from commtax.files import table
from commtax.records import dataclass
from commtax.spec import Block, Experts, Mlp, Model

Fact = bool | str  # itself, or the field that says it: ``name``, or ``name=true`` for one that is true where it is absent


@dataclass(frozen=True, slots=True)
class PlainFamily:
    """What tells one such family from another."""

    qkv_bias: Fact = False
    out_bias: Fact = False
    qk_norm: str = ""
    sinks: bool = False
    windows_by_flag: bool = False  # a window that a config names counts only where the config asks for it
    gated: bool = True
    mlp_bias: Fact = False
    experts: str = ""  # the field that counts them; "": an MLP
    experts_bias: bool = False  # of experts and router
    norms: int = 2
    tied: bool = False  # where the config does not say
    norm_bias: bool = False
    head_bias: bool = False
    predictions: str = ""  # the field that counts layers for further tokens
    unsupported: tuple[str, ...] = ()  # fields that nothing here tells

    def read(self, c: Fields) -> Model:
        if any(c.flag(name) for name in self.unsupported):
            c.bad.append(f"{', '.join(self.unsupported)} (not supported)")
        qkv, out = _fact_flag(c, self.qkv_bias), _fact_flag(c, self.out_bias)
        attention = replace(heads(c), qkv_bias=qkv, out_bias=out, qk_norm=self.qk_norm, sinks=self.sinks)
        seen = c.with_(use_sliding_window=c.flag("use_sliding_window")) if self.windows_by_flag else c
        if self.experts:
            sizes = c.need(self.experts), c.need("num_experts_per_tok", "experts_per_token"), c.need("intermediate_size")
            ffn: Mlp | Experts = Experts(*sizes, bias=self.experts_bias, router_bias=self.experts_bias)
        else:
            ffn = Mlp(c.need("intermediate_size"), self.gated, _fact_flag(c, self.mlp_bias))
        blocks = layers(seen, attention, ffn, self.norms)
        model = replace(decoder(c, blocks, self.tied, self.norm_bias), head_bias=self.head_bias)
        return parts.with_prediction_layers(c, model, self.predictions) if self.predictions else model


def _fact_flag(c: Fields, fact: Fact) -> bool:
    if isinstance(fact, bool):
        return fact
    name, _, usual = fact.partition("=")
    return c.flag(name, usual == "true")


for _row in table("catalog/families.toml")["family"]:
    _of_family = {name: _row.pop(name, False) for name in ("plain_residual", "sequence_parallel_moe")}
    family(*_row.pop("architectures"), **_of_family)(PlainFamily(**_row).read)


def reader(architecture: str) -> Reader:
    return ARCHITECTURES[architecture].read


@family("Llama4ForCausalLM", sequence_parallel_moe=True)
def _llama4_text(c: Fields) -> Model:
    """Read chunked attention except where a layer has no rotary embedding, with a query/key norm without parameters."""
    count, chunk = c.layers("num_hidden_layers"), c.number("attention_chunk_size", 8192)
    step = c.number("interleave_moe_layer_step", 1) or 1
    moe_layers = c.indices("moe_layers") or {i for i in range(count) if (i + 1) % step == 0}
    rotary = c.sequence("no_rope_layers", count) or [int((i + 1) % 4 != 0) for i in range(count)]
    width, attention = c.need("intermediate_size"), heads(c, bias=False)
    moe, dense = replace(parts.experts(c), shared_intermediate=width), Mlp(c.number("intermediate_size_mlp", width))
    blocks = [Block(replace(attention, window=chunk if rotary[i] else 0), moe if i in moe_layers else dense) for i in range(count)]
    return decoder(c, blocks)


register_vision("Llama4ForConditionalGeneration", _llama4_text, llama4_tower, sequence_parallel_moe=True)
register_vision("Mistral3ForConditionalGeneration", reader("LlamaForCausalLM"), pixtral_tower)
