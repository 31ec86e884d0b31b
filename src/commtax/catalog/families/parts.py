"""What readers of families share: the register of architectures, the parts that most configs name alike, and a config's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from commtax.records import dataclass, replace
from commtax.spec import Attention, Block, Experts, Extra, Mlp, Model
from commtax.statement import Note

MAX_SIZE = 2**40
MAX_LAYERS = 10_000


@dataclass
class Fields:
    """Reads fields and remembers which were asked for, which were at fault, and what had to be taken from elsewhere."""

    config: Mapping[str, object]
    bad: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    names_read: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        """Return the field as it is, or None where it is absent."""
        self.names_read.add(name)
        return self.config.get(name)

    def with_(self, **values: object) -> Fields:
        return Fields({**self.config, **values}, self.bad, self.notes, self.names_read)

    def inside(self, config: Mapping[str, object]) -> Fields:
        """Return a section of the same config."""
        return Fields(config, self.bad, self.notes, self.names_read)

    def whole(self, name: str, least: int, default: int) -> int:
        """Return a whole number of at least so much, and remember what is none."""
        value = self.config[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < MAX_SIZE and value == int(value):
            return int(value)
        self.bad.append(f"{name}={value!r}")
        return default

    def need(self, *names: str) -> int:
        """Return a positive whole number under the first of the names that is present."""
        if name := next((name for name in names if self.get(name) is not None), ""):
            return self.whole(name, 1, 1)
        self.bad.append(names[0])
        return 1

    def layers(self, *names: str) -> int:
        """Return the number of layers: bounded, because a list is made of them."""
        return self.at_most(MAX_LAYERS, names[0], self.need(*names), 1)

    def at_most(self, most: int, name: str, value: int, default: int) -> int:
        """Return the value, or the default where it is more than so much, and remember that."""
        self.bad += [f"{name}={value} (at most {most:,})"] if value > most else []
        return default if value > most else value

    def number(self, name: str, default: int, most: int = MAX_SIZE) -> int:
        """Return a whole number of at least 0, or the architecture's default where it is absent or null."""
        return default if self.get(name) is None else self.at_most(most, name, self.whole(name, 0, default), default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def inner(self, name: str) -> Fields:
        """Return a nested section such as ``text_config``, whose absence is a fault."""
        value = self.get(name)
        self.bad += [] if isinstance(value, Mapping) else [name]
        return self.inside(value if isinstance(value, Mapping) else {})

    def section(self, name: str) -> Fields | None:
        return self.inner(name) if self.get(name) is not None else None

    def sequence(self, name: str, length: int) -> list[object] | None:
        """Return a list with one entry a layer, or None where absent."""
        value = self.get(name)
        if isinstance(value, list) and len(value) >= length:
            return value[:length]
        self.bad += [] if value is None else [f"{name} (want {length} entries)"]
        return None

    def pattern(self, name: str, length: int) -> list[object]:
        """Return a list with one entry a layer that the family cannot do without."""
        self.bad += [name] if name not in self.config else []
        return self.sequence(name, length) or [None] * length

    def indices(self, name: str) -> set[int]:
        """Return a list of layers' numbers, empty where it is absent."""
        value = self.get(name)
        if isinstance(value, list) and all(type(entry) is int for entry in value):
            return set(value)
        self.bad += [] if value is None else [f"{name} (want a list of layers' numbers)"]
        return set()

    def default(self, name: str, value: str) -> None:
        """Note that an absent field has the value that the family's own code gives it, because it was not read."""
        self.notes.append(Note("config-default", f"{name} is not in the config: {value}, as its model class assumes"))


Reader = Callable[[Fields], Model]
MAX_PREDICTIONS = 64  # layers for further tokens that a config may ask for
STATES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # types of recurrent states; others are left to the engine


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
    """Register the function below as the reader of these architectures' configs."""

    def enter(read: Reader) -> Reader:
        ARCHITECTURES.update(dict.fromkeys(names, Family(read, plain_residual, sequence_parallel_moe, shared)))
        return read

    return enter


def decoder(c: Fields, blocks: list[Block], tied: bool = False, norm_bias: bool = False, positions: int = 0) -> Model:
    """Return a model from one block a layer, equal blocks kept once. ``tied``: its embedding, where the config does not say."""
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
    """Return heads as most configs name them. ``bias``: of all four products, unless the config says it."""
    count = c.need("num_attention_heads")
    head_dim = c.number("head_dim", 0) or c.need("hidden_size") // count
    biased = bias is not None and c.flag("attention_bias", bias)
    return Attention(count, c.number("num_key_value_heads", count) or count, head_dim, head_dim, biased, biased, qk_norm, sinks)


def mlp(c: Fields) -> Mlp:
    return Mlp(c.need("intermediate_size"))


def experts(c: Fields) -> Experts:
    return Experts(c.need("num_local_experts"), c.need("num_experts_per_tok", "experts_per_token"), c.need("intermediate_size"))


def layers(c: Fields, attention: Attention, ffn: Mlp | Experts, norms: int = 2) -> list[Block]:
    """Return one block a layer, with each layer's attention window as ``layer_types`` or the sliding fields list it."""
    count = c.layers("num_hidden_layers")
    types, window = c.sequence("layer_types", count), c.number("sliding_window", 0)
    near = replace(attention, window=window)
    windowed = [kind == "sliding_attention" for kind in types] if types else [c.flag("use_sliding_window", True)] * count
    return [Block(near if w else attention, ffn, norms) for w in windowed]


def windowed_layers(c: Fields, attention: Attention, every: int, norms: int) -> list[Block]:
    """Return layers of which all but each ``every``-th look back ``sliding_window`` tokens only."""
    window, ffn = c.number("sliding_window", 4096), mlp(c)
    windows = [window if (i + 1) % every else 0 for i in range(c.layers("num_hidden_layers"))]
    return [Block(replace(attention, window=w), ffn, norms) for w in windows]


def fine_experts(c: Fields, correction_bias: bool, usual_shared: int = 0) -> Experts:
    """Return experts narrower than a dense layer, and shared ones of that width, ``usual_shared`` where none are counted."""
    width = c.need("moe_intermediate_size")
    shared, sizes = width * c.number("n_shared_experts", usual_shared), (c.need("n_routed_experts"), c.need("num_experts_per_tok"))
    groups, top_groups = (max(1, c.number(name, 1)) for name in ("n_group", "topk_group"))
    grouped = sizes[0] % groups == 0 and sizes[1] <= sizes[0] * top_groups // groups
    groups, top_groups = (groups, top_groups) if grouped and top_groups < groups else (1, 1)
    plain = Experts(*sizes, width, shared_intermediate=shared, correction_bias=correction_bias)
    return replace(plain, groups=groups, top_groups=top_groups)


def chosen_layers(c: Fields, count: int, name: str) -> list[bool] | None:
    """Return which layers a list picks, by name (``mlp_layer_types``) or by 1 (``moe_layer_freq``), or None where it is no list."""
    entries = c.sequence(name, count) if isinstance(c.get(name), list) else None
    return None if entries is None else [entry in ("sparse", 1) and entry is not False for entry in entries]


def text_of(c: Fields) -> Fields:
    """Return the decoder's section of a config for several kinds of input, with tied embeddings as stated there or outside it."""
    text, outer = c.inner("text_config"), c.get("tie_word_embeddings")
    return text if outer is None or text.get("tie_word_embeddings") is not None else text.with_(tie_word_embeddings=outer)


def predictor(block: Block, hidden: int, heads_of: int = 0) -> Block:
    """Return a layer that guesses one token further: it joins the last state and the next embedding, with three norms of its own.
    ``heads_of``: rows of an output head of its own; 0: the model's is used."""
    joined = Extra("eh_proj.weight", (hidden, 2 * hidden), part="mtp")
    head = (Extra("shared_head.head.weight", (heads_of, hidden), "vocab", "head"),) if heads_of else ()
    return replace(block, num_norms=block.num_norms + 3, extras=(*block.extras, joined, *head))


def with_prediction_layers(c: Fields, model: Model, *names: str, block: Block | None = None) -> Model:
    """Return the model with the layers for further tokens that its config counts under a name, each like its last layer."""
    count = next((n for name in names if (n := c.number(name, 0, MAX_PREDICTIONS))), 0)
    return replace(model, mtp=(predictor(block or model.blocks[model.layers[-1]], model.hidden),) * count)
