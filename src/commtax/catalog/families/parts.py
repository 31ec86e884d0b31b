"""What readers of families share: the register of architectures, and the parts that most configs name alike."""

from collections.abc import Callable

from commtax.catalog.fields import Fields
from commtax.records import dataclass, replace
from commtax.spec import Attention, Block, Experts, Extra, Mlp, Model

Reader = Callable[[Fields], Model]
MAX_PREDICTIONS = 64  # layers for further tokens that a config may ask for
STATES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Types of recurrent states by their names in configs; what has another, or none, leaves it to the engine."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture's config is read, and what its layers do that no config says."""

    read: Reader
    plain_residual: bool = False  # layers add the residual themselves, so that one tensor passes between stages
    sequence_parallel_moe: bool = False  # vLLM splits tokens over tp before experts that are spread over tp x dp
    shared: tuple[str, ...] = ()  # fields that some configs leave out and models of one shape share; other names of one beside it


ARCHITECTURES: dict[str, Family] = {}


def family(
    *names: str, plain_residual: bool = False, sequence_parallel_moe: bool = False, shared: tuple[str, ...] = ()
) -> Callable[[Reader], Reader]:
    """The function below reads the configs of these architectures."""

    def enter(read: Reader) -> Reader:
        ARCHITECTURES.update(dict.fromkeys(names, Family(read, plain_residual, sequence_parallel_moe, shared)))
        return read

    return enter


def decoder(c: Fields, blocks: list[Block], tied: bool = False, norm_bias: bool = False, positions: int = 0) -> Model:
    """A model from one block a layer: equal blocks are kept once; ``tied``: its embedding, where the config does not say."""
    kinds = {block: index for index, block in enumerate(dict.fromkeys(blocks))}
    return Model(
        key="",
        architecture="",
        hidden=c.need("hidden_size", "n_embd", "d_model"),
        vocab=c.need("vocab_size"),
        blocks=tuple(kinds),
        layers=tuple(kinds[b] for b in blocks),
        max_len=c.need("max_position_embeddings", "n_positions", "max_seq_len"),
        tied=c.flag("tie_word_embeddings", tied),
        norm_bias=norm_bias,
        positions=positions,
    )


def heads(c: Fields, bias: bool | None = None, qk_norm: str = "", sinks: bool = False) -> Attention:
    """Heads as most configs name them; ``bias``: of all four products, unless the config says it."""
    count = c.need("num_attention_heads")
    head_dim = c.number("head_dim", 0) or c.need("hidden_size") // count
    biased = bias is not None and c.flag("attention_bias", bias)
    return Attention(count, c.number("num_key_value_heads", count) or count, head_dim, head_dim, biased, biased, qk_norm, sinks)


def mlp(c: Fields) -> Mlp:
    return Mlp(c.need("intermediate_size"))


def experts(c: Fields) -> Experts:
    return Experts(c.need("num_local_experts"), c.need("num_experts_per_tok", "experts_per_token"), c.need("intermediate_size"))


def layers(c: Fields, attention: Attention, ffn: Mlp | Experts, norms: int = 2) -> list[Block]:
    """One block a layer, with each layer's attention window as ``layer_types`` or the sliding fields tell it."""
    count = c.layers("num_hidden_layers")
    types = c.sequence("layer_types", count)
    window = c.number("sliding_window", 0)
    if types:
        windows = [window if t == "sliding_attention" else 0 for t in types]
    else:
        windows = [window if c.flag("use_sliding_window", True) else 0] * count
    return [Block(replace(attention, window=w), ffn, norms) for w in windows]


def windowed_layers(c: Fields, attention: Attention, every: int, norms: int) -> list[Block]:
    """All layers but each ``every``-th look back ``sliding_window`` tokens only."""
    window, ffn = c.number("sliding_window", 4096), mlp(c)
    windows = [window if (i + 1) % every else 0 for i in range(c.layers("num_hidden_layers"))]
    return [Block(replace(attention, window=w), ffn, norms) for w in windows]


def fine_experts(c: Fields, correction_bias: bool, usual_shared: int = 0) -> Experts:
    """Experts narrower than a dense layer, and shared ones of the same width; ``usual_shared`` where the config counts none."""
    width = c.need("moe_intermediate_size")
    shared, sizes = width * c.number("n_shared_experts", usual_shared), (c.need("n_routed_experts"), c.need("num_experts_per_tok"))
    groups, top_groups = (max(1, c.number(name, 1)) for name in ("n_group", "topk_group"))
    grouped = sizes[0] % groups == 0 and sizes[1] <= sizes[0] * top_groups // groups
    groups, top_groups = (groups, top_groups) if grouped and top_groups < groups else (1, 1)
    plain = Experts(*sizes, width, shared_intermediate=shared, correction_bias=correction_bias)
    return replace(plain, groups=groups, top_groups=top_groups)


def chosen_layers(c: Fields, count: int, name: str) -> list[bool] | None:
    """Which layers a list picks: by name (``mlp_layer_types``) or by 1 (``moe_layer_freq``); None where it is no list."""
    entries = c.sequence(name, count) if isinstance(c.get(name), list) else None
    return None if entries is None else [entry in ("sparse", 1) and entry is not False for entry in entries]


def text_of(c: Fields) -> Fields:
    """The decoder's section of a config for several kinds of input; whether embeddings are tied may stand outside it."""
    text = c.inner("text_config")
    outer = c.get("tie_word_embeddings")
    return text if outer is None or text.get("tie_word_embeddings") is not None else text.with_(tie_word_embeddings=outer)


def predictor(block: Block, hidden: int, heads_of: int = 0) -> Block:
    """A layer that guesses one token further: it joins the last state and the next embedding, and has three norms of its own.

    ``heads_of``: rows of an output head of its own; 0: the model's is used.
    """
    joined = Extra("eh_proj.weight", (hidden, 2 * hidden), part="mtp")
    head = (Extra("shared_head.head.weight", (heads_of, hidden), "vocab", "head"),) if heads_of else ()
    return replace(block, num_norms=block.num_norms + 3, extras=(*block.extras, joined, *head))


def with_prediction_layers(c: Fields, model: Model, *names: str, block: Block | None = None) -> Model:
    """The model with as many layers for further tokens as its config says under one of the names, each like its last layer."""
    count = next((n for name in names if (n := c.number(name, 0, MAX_PREDICTIONS))), 0)
    return replace(model, mtp=(predictor(block or model.blocks[model.layers[-1]], model.hidden),) * count)
