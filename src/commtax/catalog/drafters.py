"""What drafts tokens beside a model: ``catalog/drafters.toml``, made into layers and a head; and how many are accepted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache

from commtax.catalog.loader import plain_record
from commtax.records import dataclass
from commtax.shipped_tables import table
from commtax.spec import Attention, Block, Drafter, Extra, Mlp, Model
from commtax.statement import OTHER_MODELS, Refusal

USUAL_TEXT = "chat"


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """Tokens per step and sequence that one drafter's runs yielded."""

    method: str
    architecture: str
    text: str
    drafts: int
    length: float
    source: str
    model: str = ""  # whose runs they were
    on: str = ""  # of which benchmark

    def borrowed_from(self, model: str) -> str:
        """Return what is assumed where it answers for a model: ``with llama-3.1-8b on MT-Bench``, or "" where nothing is."""
        return " ".join([f"with {self.model}"] * (self.model not in ("", model)) + [f"on {self.on}"] * bool(self.on))


def accepted_spread(measured: MeasuredAcceptance | None, model: str) -> float:
    """Return by what share accepted drafts may differ from measured ones: the text differs, and the model where it is another."""
    spread = table("catalog/acceptance.toml")["spread"]
    other = measured is not None and measured.model != model
    return math.hypot(float(spread["text"]), float(spread["model"]) if other else 0.0)


@lru_cache(maxsize=1)
def measured_acceptances() -> Sequence[MeasuredAcceptance]:
    return tuple(plain_record(MeasuredAcceptance, row, "acceptance.toml") for row in table("catalog/acceptance.toml")["row"])


def measured_acceptance(method: str, architecture: str, drafts: int, text: str = "") -> MeasuredAcceptance | None:
    """Return the nearest measurement: of this architecture before any, of as many drafts or the next fewer.

    Where no text is asked for it is chat; but an architecture's own figures on other text come before another one's on chat.

    >>> measured_acceptance("mtp", "DeepseekV3ForCausalLM", 3).length
    2.82
    >>> measured_acceptance("dspark", "DeepseekV4ForCausalLM", 5).text
    'code'
    """
    of_method = [row for row in measured_acceptances() if row.method == method]
    same, any_model = ([row for row in of_method if row.architecture == name] for name in (architecture, ""))
    texts = [text] if text else dict.fromkeys([USUAL_TEXT, *(row.text for row in same[:1])])
    for rows, one in ((rows, one) for rows in (same, any_model) for one in texts):
        if fitting := sorted((row for row in rows if row.text == one), key=lambda row: row.drafts):
            return max((row for row in fitting if row.drafts <= drafts), key=lambda row: row.drafts, default=fitting[0])
    return None


HEAD_DIM, KV_HEADS = 128, 8  # of a drafter's attention beside a model whose own is of another kind
UNQUANTISED = ("nvfp4",)  # formats of checkpoints whose layers for further tokens stay in 16 bits (NVIDIA ModelOpt leaves them out)


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A kind of drafter, before it stands beside a model."""

    key: str
    source: str
    layers: int | str = 0  # of its own; "mtp": the model's for further tokens, "model": a whole one; 0: it has none
    times: int = 1  # that the model's own layers are there
    otherwise: int = 0  # layers of its own where the model has none for further tokens; 0: then there is no such drafter
    vocab: int = 0
    width: float = 0.0
    joined: int = 0
    rejoined: bool = False
    doubled: bool = False
    parallel: bool = False
    context_only: bool = False
    markov: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def drafter_kinds() -> Mapping[str, DrafterKind]:
    rows = table("catalog/drafters.toml")
    return {key: plain_record(DrafterKind, {"key": key, **row}, "drafters.toml") for key, row in rows.items()}


@lru_cache(maxsize=64)
def drafter(name: str, model: Model, drafts: int, other: Model | None = None) -> Drafter:
    """Return a drafter beside a model, where ``other`` is the model that drafts if the kind is one."""
    kind = drafter_kinds()[name]
    ways = kind.joined, kind.rejoined, kind.doubled, kind.parallel, kind.context_only, kind.markov
    plain = Drafter(name, None, 1, *ways, own_head=kind.vocab > 0)
    if kind.layers == "model":
        return replace(plain, model=other, own_embedding=True, own_head=True)
    if kind.layers == "mtp" and model.mtp:
        # Layers that guess one token: up to the next one that joins state and embedding.
        starts = [i for i, block in enumerate(model.mtp) if any(extra.part == "mtp" for extra in block.extras)]
        blocks = model.mtp[: starts[1]] if len(starts) > 1 else model.mtp
        modules = 1 if kind.times > 1 else min(drafts, len(model.mtp) // len(blocks))
        quantised = replace(model, quant=None) if model.quant and model.quant.dtype in UNQUANTISED else model
        return replace(plain, model=_as_model(model, kind, blocks * kind.times, quantised), modules=modules)
    count = kind.otherwise if kind.layers == "mtp" else kind.layers
    if kind.layers == "mtp" and not count:
        raise Refusal(f"{model.key} has no MTP layers", "technique", kind=OTHER_MODELS, subject=f"technique '{name}'")
    return replace(plain, model=_as_model(model, kind, _dense_blocks(model, kind, int(count)), None)) if count else plain


def _as_model(model: Model, kind: DrafterKind, blocks: tuple[Block, ...], like: Model | None) -> Model:
    """Return a drafter's layers and head as a model: of the target's formats where they are its own layers, else in 16 bits."""
    shared = tuple(dict.fromkeys(blocks))
    extras = () if kind.layers == "mtp" and like else (Extra("fc.weight", (model.hidden, kind.joined * model.hidden), part="mtp"),)
    alone = replace(model, key=f"{model.key}-{kind.key}", tied=False, tower=None, mtp=(), positions=0, stored_bytes=0, aliases=())
    layers, vocab = tuple(shared.index(block) for block in blocks), kind.vocab or model.vocab
    hyper, quant = (model.hyper, like.quant) if like else (None, None)
    return replace(alone, blocks=shared, layers=layers, vocab=vocab, extras=extras, lookback=0, hyper=hyper, quant=quant)


def _dense_blocks(model: Model, kind: DrafterKind, count: int) -> tuple[Block, ...]:
    """Return plain decoder layers of the model's width: its heads where they are plain, its dense feed-forward where it has one."""
    a = model.attention
    if a.latent or a.compressed or a.indexer:
        heads = model.hidden // HEAD_DIM
        attention = Attention(heads, min(KV_HEADS, heads), HEAD_DIM, HEAD_DIM)
    else:
        attention = Attention(a.num_heads, a.num_kv_heads, a.head_dim, a.v_head_dim)
    dense = (block.ffn.intermediate for block in model.blocks if isinstance(block.ffn, Mlp))
    plain = Block(attention, Mlp(next(dense, int(kind.width * model.hidden))))
    # The other half of the first layer's queries, keys and values.
    width = attention.num_heads * attention.head_dim + attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)
    half = Extra("self_attn.embedding_qkv.weight", (width, model.hidden), "heads", "attention")
    return (replace(plain, extras=(half,)) if kind.doubled else plain, *(plain,) * (count - 1))
