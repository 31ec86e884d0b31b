"""Results as JSON documents: a versioned schema, units in the key names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from commtax.api import Fit, Setup, Traffic, TrainFit
from commtax.catalog.models import Published
from commtax.claims import Claim
from commtax.cost.memory import kv_bytes_per_token_layer, total_bytes
from commtax.cost.tensors import inventory, num_active_params, num_params
from commtax.ledger import AXIS_OF, Line
from commtax.spec import ENGINE_PARTS, Chip, Citation, Cluster, Engine, Link, Model, Plan

Document = dict[str, Any]


def plain(value: Any) -> Any:
    """NumPy numbers and arrays as Python's own; whole floats as ints, no limit (infinity) as null."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and np.isinf(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, dict):
        return {k: round(v) if "bytes" in k and isinstance(v, float) and np.isfinite(v) else plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def question(asked: Setup) -> Document:
    """The part that every answer repeats: model, cluster, engine, plan."""
    plan = asked.plan
    return {
        "model": asked.model.key,
        "cluster": asked.cluster.key,
        "engine": f"{asked.engine.key}@{asked.engine.version}",
        "profile": asked.profile.name if asked.profile else None,
        "plan": _plan(plan),
        "gpus": plan.all_gpus,
        "idle_gpus": asked.cluster.num_gpus - plan.all_gpus,
    }


def _plan(plan: Plan) -> Document:
    names = (
        "tp",
        "pp",
        "dp",
        "ep",
        "cp",
        "replicas",
        "sequence_parallel",
        "zero",
        "microbatches",
        "schedule",
        "chunks",
        "recompute",
    )
    kinds = ("order", "weights_dtype", "activations_dtype", "kv_dtype", "grads_dtype")
    found: Document = {name: getattr(plan, name) for name in (*names, *kinds)}
    return {**found, "weights_dtype": plan.weights_dtype or "checkpoint", "order": list(plan.order)}


def traffic_document(found: Traffic) -> Document:
    """``bill --exact --json``."""
    items = [
        {
            "what": line.item.what,
            "axis": line.item.axis,
            "op": line.item.op,
            "nbytes": line.item.nbytes,
            "ranks": line.item.ranks,
            "count": line.item.count,
            "link": line.link,
            "crosses_hosts": line.crosses_hosts,
            "sent_bytes_per_rank": line.item.sent_bytes_per_rank,
            "note": line.item.note,
        }
        for line in found.lines
    ]
    head = {"schema": "commtax.bill-exact/1", **question(found.setup), "phase": found.phase, "batch": found.batch}
    tail = {"context": found.context, "rows": found.rows, "items": items, "notes": found.notes}
    return dict(plain({**head, **tail, "sent_bytes_per_rank": found.sent_bytes_per_rank}))


def fit_document(found: Fit) -> Document:
    """``fit --json``."""
    plan, serving = found.setup.plan, found.serving
    lines = [{"part": w.part, "bytes": w.nbytes, "replicated_bytes": w.replicated_bytes} for w in found.weights]
    document = {
        "schema": "commtax.fit/1",
        "fits": found.fits,
        **question(found.setup),
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "ep": plan.ep,
        "chosen": found.chosen,
        "stage": found.stage,
        "visible_bytes_per_rank": found.setup.cluster.chip.visible_bytes,
        "budget_bytes_per_rank": found.budget_bytes,
        "gpu_memory_utilization": serving.utilization,
        "weights_bytes_per_rank": found.weights_bytes,
        "weights": lines,
        "activation_bytes_per_rank": found.activation_bytes,
        "other_bytes_per_rank": found.other_bytes,
        "graph_bytes_per_rank": found.graph_bytes,
        "kv_cache_bytes_per_rank": found.kv_bytes,
        "kv_bytes_per_token_per_rank": found.kv_bytes_per_token,
        "kv_tokens": found.kv_tokens,
        "kv_tokens_low": found.kv_tokens_range[0],
        "kv_tokens_high": found.kv_tokens_range[1],
        "kv_blocks_per_rank": found.kv_blocks,
        "block_size": serving.block_size,
        "max_model_len": serving.max_model_len,
        "max_num_seqs": serving.max_seqs,
        "max_num_batched_tokens": serving.max_batched_tokens,
        "max_concurrency": found.max_concurrency,
        "shortfall_bytes": found.shortfall_bytes,
        "notes": found.setup.notes,
        "advice": found.advice,
    }
    return dict(plain(document))


def train_fit_document(found: TrainFit) -> Document:
    """``fit --phase train --json``."""
    held = found.memory
    parts = {name: getattr(held, name) for name in ("parameters", "gradients", "optimizer", "activations", "logits")}
    head = {"schema": "commtax.fit-train/1", "fits": found.fits, **question(found.setup)}
    tail = {
        "micro_batch": found.step.micro_batch,
        "seq": found.step.seq,
        "memory_bytes_per_rank": held.total,
        "budget_bytes_per_rank": found.budget_bytes,
        "parts_bytes": parts,
        "shortfall_bytes": found.shortfall_bytes,
        "notes": found.setup.notes,
        "advice": found.advice,
    }
    return dict(plain({**head, **tail}))


def claims_document(found: Iterable[Claim]) -> Document:
    """``claims --json``."""
    names = ("key", "document", "says", "arithmetic", "why", "ratio")
    return {"schema": "commtax.claims/1", "claims": [{n: plain(getattr(c, n)) for n in names} for c in found]}


def _source(source: Citation) -> Document:
    return {"title": source.title, "url": source.url, "date": source.date}


def facts_of(thing: Chip | Link | Cluster | Engine) -> Iterator[tuple[str, object]]:
    """The facts of one record, those of an engine's parts beside its own."""
    for name in thing.__slots__:
        value = getattr(thing, name)
        if name in ENGINE_PARTS and isinstance(thing, Engine):
            yield from ((inner, getattr(value, inner)) for inner in value.__slots__)
        elif name != "sources":
            yield name, value


def thing_document(thing: Chip | Link | Cluster | Engine) -> Document:
    """One chip, link, cluster or engine with the source of each number."""
    kind = type(thing).__name__.lower()
    values = {name: value.key if isinstance(value, (Chip, Link)) else value for name, value in facts_of(thing)}
    sources = {name: _source(s) for name, s in thing.sources.items()}
    return dict(plain({"schema": f"commtax.{kind}/1", **values, "sources": sources}))


def model_document(model: Model, counts: Iterable[Published]) -> Document:
    """``catalog models NAME --json``."""
    a, moe = model.attention, model.experts
    plan = Plan()
    kv = sum(kv_bytes_per_token_layer(model.blocks[i].attention, 1, "bf16") for i in model.layers)
    document = {
        "schema": "commtax.model/1",
        "key": model.key,
        "architecture": model.architecture,
        "params": num_params(model),
        "active_params": num_active_params(model),
        "active_params_without_embedding": num_active_params(model, embedding=False),
        "weights_bytes": model.stored_bytes or total_bytes(model, plan),
        "dtype": model.dtype,
        "quantization": model.quant.method if model.quant else None,
        "hidden": model.hidden,
        "num_layers": model.num_layers,
        "num_heads": a.num_heads,
        "num_kv_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
        "latent_kv": a.latent is not None,
        "kv_bytes_per_token_bf16": kv,
        "num_experts": moe.num_experts if moe else 0,
        "experts_per_token": moe.top_k if moe else 0,
        "vocab": model.vocab,
        "tied_embeddings": model.tied,
        "max_len": model.max_len,
        "aliases": model.aliases,
        "source": _source(model.source) if model.source else None,
        "published": [
            {"params": p.params, "kind": p.kind, "beyond": p.beyond, "includes": p.includes, **_source(p.source)} for p in counts
        ],
        "tensors": [
            {
                "name": t.name,
                "shape": t.shape,
                "split": t.split,
                "layers": model.layers.count(t.where) if t.where >= 0 else 1,
            }
            for t in inventory(model)
        ],
    }
    return dict(plain(document))


LINE = ("link", "algorithm", "why", "each_s", "fixed_s", "moving_s", "total_s", "window_s", "hidden_s", "exposed_s", "source")


def line_records(lines: Iterable[Line]) -> list[Document]:
    """The lines of a bill, each with what is sent and what it costs."""
    found = []
    for x in lines:
        sent = {name: getattr(x.item, name) for name in ("what", "op", "nbytes", "ranks", "count")}
        axis = AXIS_OF.get(x.item.axis, x.item.axis)
        found.append({"kind": x.kind, "axis": axis, **sent, **{name: getattr(x, name) for name in LINE}})
    return found
