"""Answers as JSON documents: one typed record each, units in the names of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from commtax.catalog.models import Published
from commtax.cost.memory import kv_bytes_per_token_layer, total_bytes
from commtax.cost.tensors import inventory, num_active_params, num_params
from commtax.ledger import Line
from commtax.question import Question
from commtax.spec import ENGINE_PARTS, SIZES, Chip, Cluster, Engine, Link, Model, Number, Plan
from commtax.verbs import Fit, Traffic, TrainFit
from commtax.verbs.explained import HELD

Shape = TypeVar("Shape")
Value = int | float | str | None
Record = dict[str, object]
"""A JSON object whose keys are not known beforehand."""
Row = dict[str, Any]
"""A row of a table: its axes and figures by name."""
LEFT_OUT: Any = object()
"""A field that its document does not have this time."""


def filled(shape: Callable[..., Shape], *things: object, **given: object) -> Shape:
    """A record of this shape: each field as it is given, else as the first of the things has it, else its default.

    What a document tells ``_per_rank`` the things, which are a rank's, have without these words.
    """
    names = [f.name for f in fields(shape) if f.name not in given]  # type: ignore[arg-type]
    values = {name: first_having(name, things) for name in names}
    return shape(**given, **{name: value for name, value in values.items() if value is not LEFT_OUT})


def first_having(name: str, things: Iterable[object]) -> object:
    having = (getattr(thing, word, LEFT_OUT) for word in (name, name.removesuffix("_per_rank")) for thing in things)
    return next((value for value in having if value is not LEFT_OUT), LEFT_OUT)


def plain(value: Any) -> Any:
    """Records as JSON's own: NumPy numbers and arrays too; whole floats as ints, no limit (infinity) as null."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and np.isinf(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if is_dataclass(value):  # a name that is Python's own has an underscore behind it
        value = {f.name.rstrip("_"): getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not LEFT_OUT}
        return {k: round(v) if "bytes" in k and isinstance(v, float) and np.isfinite(v) else plain(v) for k, v in kept.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


@dataclass(frozen=True)
class Named:
    """A document of the command line: the fields that all of them have."""

    schema: str
    model: str
    cluster: str
    engine: str


PLAN = (
    *(*SIZES, "replicas", "sequence_parallel", "zero", "microbatches", "schedule", "chunks", "recompute"),
    *("order", "weights_dtype", "activations_dtype", "kv_dtype", "grads_dtype"),
)
LINE = ("link", "algorithm", "why", "each_s", "fixed_s", "moving_s", "total_s", "window_s", "hidden_s", "exposed_s", "source")


def facts(thing: object, *names: str) -> Record:
    """Some facts of a record under their own names."""
    return {name: getattr(thing, name) for name in names}


@dataclass(frozen=True)
class Asked(Named):
    """The part that every answer repeats: model, cluster, engine, plan."""

    profile: str | None
    plan: Record
    gpus: Number
    idle_gpus: Number


def named(schema: str, model: Model, cluster: Cluster, engine: Engine) -> dict[str, object]:
    """The fields of ``Named``."""
    return {"schema": schema, "model": model.key, "cluster": cluster.key, "engine": f"{engine.key}@{engine.version}"}


def question(asked: Question, schema: str) -> dict[str, object]:
    """The fields of ``Asked``."""
    plan = asked.plan
    return {
        **named(schema, asked.model, asked.cluster, asked.engine),
        "profile": asked.profile.name if asked.profile else None,
        "plan": facts(plan, *PLAN) | {"weights_dtype": plan.weights_dtype or "checkpoint"},
        "gpus": plan.all_gpus,
        "idle_gpus": asked.cluster.num_gpus - plan.all_gpus,
    }


@dataclass(frozen=True)
class TrafficDocument(Asked):
    phase: str
    batch: Number
    context: Number
    rows: Number
    items: list[Record]
    notes: tuple[str, ...]
    sent_bytes_per_rank: Number


def traffic_document(sent: Traffic) -> TrafficDocument:
    """``bill --exact --json``."""
    item = ("what", "axis", "op", "nbytes", "ranks", "count", "sent_bytes_per_rank", "note")
    items = [facts(line.item, *item) | facts(line, "link", "crosses_hosts") for line in sent.lines]
    return filled(TrafficDocument, sent, sent.question, items=items, **question(sent.question, "commtax.bill-exact/1"))


@dataclass(frozen=True)
class FitAnswer(Named):
    """As ``commtax fit --json``."""

    fits: bool
    shortfall_bytes: float


@dataclass(frozen=True)
class Judged(FitAnswer, Asked):
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    budget_bytes_per_rank: float


@dataclass(frozen=True)
class FitDocument(Judged):
    tp: Number
    pp: Number
    dp: Number
    ep: Number
    chosen: bool
    stage: int
    visible_bytes_per_rank: float
    gpu_memory_utilization: float
    weights_bytes_per_rank: float
    weights: list[Record]
    activation_bytes_per_rank: float
    other_bytes_per_rank: float
    graph_bytes_per_rank: float
    kv_cache_bytes_per_rank: float
    kv_bytes_per_token_per_rank: float
    kv_tokens: int
    kv_tokens_low: int
    kv_tokens_high: int
    kv_blocks_per_rank: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_concurrency: float


@dataclass(frozen=True)
class TrainFitDocument(Judged):
    micro_batch: Number
    seq: Number
    memory_bytes_per_rank: Number
    parts_bytes: Record


def fit_document(judged: Fit | TrainFit) -> FitDocument | TrainFitDocument:
    """``fit --json``, of either phase."""
    asked = judged.question
    if isinstance(judged, TrainFit):
        held = {"memory_bytes_per_rank": judged.memory.total, "parts_bytes": facts(judged.memory, *HELD)}
        return filled(TrainFitDocument, judged, asked.step, asked, **held, **question(asked, "commtax.fit-train/1"))
    low, high = judged.kv_tokens_range
    return filled(
        FitDocument,
        judged,
        asked.limits,
        asked.plan,
        asked.cluster.chip,
        asked,
        weights=[facts(line, "part", "replicated_bytes") | {"bytes": line.nbytes} for line in judged.weights],
        kv_cache_bytes_per_rank=judged.kv_bytes,
        kv_tokens_low=low,
        kv_tokens_high=high,
        **question(asked, "commtax.fit/1"),
    )


def facts_of(thing: Chip | Link | Cluster | Engine) -> Iterator[tuple[str, object]]:
    """The facts of one record, those of an engine's parts beside its own."""
    for name in thing.__slots__:
        value = getattr(thing, name)
        if name in ENGINE_PARTS and isinstance(thing, Engine):
            yield from ((inner, getattr(value, inner)) for inner in value.__slots__)
        elif name != "sources":
            yield name, value


def thing_document(thing: Chip | Link | Cluster | Engine) -> Record:
    """One chip, link, cluster or engine with the source of each number."""
    values = {name: value.key if isinstance(value, (Chip, Link)) else value for name, value in facts_of(thing)}
    return {"schema": f"commtax.{type(thing).__name__.lower()}/1", **values, "sources": thing.sources}


def model_document(model: Model, counts: Iterable[Published]) -> Record:
    """``catalog models NAME --json``."""
    a, moe = model.attention, model.experts
    return {
        "schema": "commtax.model/1",
        **facts(model, "key", "architecture", "dtype", "hidden", "num_layers", "vocab", "max_len", "aliases"),
        **facts(a, "num_heads", "num_kv_heads", "head_dim"),
        "params": num_params(model),
        "active_params": num_active_params(model),
        "active_params_without_embedding": num_active_params(model, embedding=False),
        "weights_bytes": stored_bytes(model),
        "quantization": model.quant.method if model.quant else None,
        "latent_kv": a.latent is not None,
        "kv_bytes_per_token_bf16": kv_bytes_per_token(model),
        "num_experts": moe.num_experts if moe else 0,
        "experts_per_token": moe.top_k if moe else 0,
        "tied_embeddings": model.tied,
        "source": model.source,
        "published": [facts(p, "params", "kind", "beyond", "includes") | plain(p.source) for p in counts],
        "tensors": [
            facts(t, "name", "shape", "split") | {"layers": model.layers.count(t.where) if t.where >= 0 else 1}
            for t in inventory(model)
        ],
    }


def stored_bytes(model: Model) -> float:
    """All weights as they are stored."""
    return float(model.stored_bytes or total_bytes(model, Plan()))


def kv_bytes_per_token(model: Model) -> float:
    """The cache of a token in bf16 on one rank."""
    return float(sum(kv_bytes_per_token_layer(model.blocks[i].attention, 1, "bf16") for i in model.layers))


def line_records(lines: Iterable[Line]) -> list[Record]:
    """The lines of a bill, each with what is sent and what it costs."""
    item = ("what", "op", "nbytes", "ranks", "count")
    return [{"kind": x.kind, "axis": x.item.whole_axis} | facts(x.item, *item) | facts(x, *LINE) for x in lines]
