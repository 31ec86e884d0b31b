"""What one rank must hold to serve: weights, activations, and the KV cache in what is left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commtax.arrays import pick
from commtax.cost.experts import expert_tp, over_replicas
from commtax.cost.tensors import Held, copies, held, inventory, padded_vocab, quantisation, share, weight_bytes
from commtax.cost.traffic import largest_graph
from commtax.spec import DTYPE_BYTES, Attention, Chip, Engine, Experts, Mlp, Model, Number, Plan
from commtax.statement import Refusal

INDEXER_SCALE_BYTES = 4  # the selector's key cache: one fp8 value a channel and one fp32 scale


@dataclass(frozen=True, slots=True)
class WeightLine:
    """Bytes that one rank holds of one part of the model, and how many of them other tp ranks hold too."""

    part: str
    nbytes: Number
    replicated_bytes: Number


def weights(model: Model, plan: Plan, engine: Engine, stage: int, pp: int) -> list[WeightLine]:
    """Weights of one rank of one stage, by part. A local checkpoint's own size, where known, scales them."""
    scale = model.stored_bytes / total_bytes(model, plan) if model.stored_bytes and not plan.weights_dtype else 1.0
    lines: dict[str, tuple[Number, Number]] = {}
    rows = held(model, plan, engine, stage, pp)
    for row in rows:
        nbytes, copied = lines.get(row.tensor.part, (0.0, 0.0))
        extra = np.maximum(0, row.bytes_per_rank - row.ideal_bytes)
        lines[row.tensor.part] = (nbytes + row.bytes_per_rank * scale, copied + extra * scale)
    for part, nbytes, copied in _beside(model, plan, engine, rows):
        lines[part] = (nbytes, copied)
    return [WeightLine(part, nbytes, copied) for part, (nbytes, copied) in lines.items()]


def _beside(model: Model, plan: Plan, engine: Engine, rows: list[Held]) -> Iterator[tuple[str, Number, Number]]:
    """What an engine loads beyond the checkpoint's tensors: (part, bytes, of them replicated)."""
    a = model.attention
    if engine.memory.latent_absorbed and a.latent:
        up = sum((r.tensor.size * r.copies for r in rows if r.tensor.name.endswith("kv_b_proj.weight")), start=0)
        yield "absorbed latent projections", up * DTYPE_BYTES[plan.activations_dtype] / plan.tp, 0.0
    quant = quantisation(model, plan)
    if engine.memory.mxfp4_multiple > 1 and quant and quant.dtype == "mxfp4":
        width = (model.experts.intermediate if model.experts else 1) / expert_tp(plan, engine)
        grown = _padded(model.hidden, engine.memory.mxfp4_multiple) * _padded(width, engine.memory.mxfp4_width_multiple) - 1
        experts = sum((r.bytes_per_rank for r in rows if r.tensor.part == "experts" and r.tensor.linear), start=0.0)
        yield "padding of mxfp4 experts", experts * grown, 0.0
    if engine.memory.rotary_table and not model.positions:
        width = a.latent.rope_dim if a.latent else a.head_dim
        table = model.max_len * width * DTYPE_BYTES[plan.activations_dtype]
        yield "rotary table", plan.tp * 0 + float(table), table * (1 - 1 / plan.tp)


def total_bytes(model: Model, plan: Plan) -> float:
    """Stored bytes of the whole model, once."""
    return sum(weight_bytes(model, t, plan) * copies(model, t) for t in inventory(model))


def kv_bytes_per_token_layer(a: Attention, tp: Number, kv_dtype: str) -> Number:
    """KV bytes that one rank keeps for one token in one layer.

    Grouped-query heads are split over tp until each rank has one, then copied. A latent is kept whole on every rank;
    a token selector adds its keys.

    >>> float(kv_bytes_per_token_layer(Attention(32, 8, 128, 128), 2, "bf16"))
    2048.0
    """
    size = DTYPE_BYTES[kv_dtype]
    if a.latent:
        latent = (a.latent.kv_rank + a.latent.rope_dim) * size
        if a.indexer and kv_dtype == "fp8":  # fp8 latent with a scale for each 128, the rotary part in bf16
            latent = a.latent.kv_rank * (1 + 4 / 128) + a.latent.rope_dim * 2
        return tp * 0 + latent + (a.indexer.head_dim + INDEXER_SCALE_BYTES if a.indexer else 0)
    heads = a.num_kv_heads / np.minimum(tp, a.num_kv_heads)
    return heads * (a.head_dim + a.v_head_dim) * size


@dataclass(frozen=True, slots=True)
class KvPool:
    """How a pool of KV blocks serves one stage. Layers of one window form a group; groups share the pool's blocks."""

    bytes_per_token: Number  # of one rank, all layers: what a token costs while every layer keeps it
    bytes_per_block: Number  # one block of one group
    num_groups: int
    windows: tuple[int, ...]  # of the groups; 0: full attention

    def blocks_per_request(self, length: int, block_size: int, max_batched_tokens: int) -> int:
        """Blocks that one request of ``length`` tokens occupies: a windowed group frees what it has passed."""
        total = 0
        for window in self.windows:
            if window:
                kept = min(window - 1 + max_batched_tokens, length)
                total += math.ceil(kept / block_size) + 1
            else:
                total += math.ceil(length / block_size)
        return max(1, total)


def kv_pool(model: Model, plan: Plan, layers: range, block_size: int) -> KvPool:
    """Group the layers of a stage by window, as vLLM's hybrid cache does: equal groups of the rarest kind's size."""
    per_layer = [kv_bytes_per_token_layer(model.blocks[model.layers[i]].attention, plan.tp, plan.kv_dtype) for i in layers]
    counts = Counter(model.blocks[model.layers[i]].attention.window for i in layers)
    page = max(per_layer, key=lambda v: float(np.max(v))) * block_size
    if len(counts) == 1:
        return KvPool(sum(per_layer), sum(per_layer) * block_size, 1, tuple(counts))
    smallest, largest = min(counts.values()), max(counts.values())
    size = largest if largest < 1.5 * smallest else smallest
    windows = [w for w, n in sorted(counts.items()) for _ in range(math.ceil(n / size))]
    return KvPool(page / block_size * size * len(windows), page * size, len(windows), tuple(windows))


def activation_bytes(model: Model, plan: Plan, engine: Engine, tokens: Number, seqs: Number, last_stage: bool = True) -> Number:
    """The peak while ``tokens`` rows run, or while ``seqs`` rows of logits are sampled, whichever is larger.

    A layer's peak holds three copies of the hidden state beside the widest feed-forward (gate, up and their product;
    for experts the larger of both halves for each of the top_k, and the product).
    """
    act = DTYPE_BYTES[plan.activations_dtype]
    widest: Number = 0.0
    for block in model.blocks:
        widest = np.maximum(widest, _ffn_elements(block.ffn, model, plan, engine, tokens))
    layer = (tokens * 3 * model.hidden + widest) * act
    if not last_stage:
        return layer
    logits = seqs * padded_vocab(model, plan, engine) * engine.memory.sampler_bytes_per_logit
    return np.maximum(layer, logits + 2 * tokens * model.hidden * act)


def _ffn_elements(f: Mlp | Experts, model: Model, plan: Plan, engine: Engine, tokens: Number) -> Number:
    """Elements alive at the widest point of a feed-forward layer; experts shared by replicas see all their tokens."""
    if isinstance(f, Mlp):
        return tokens * (3 if f.gated else 2) * f.intermediate / plan.tp
    inner = f.intermediate / expert_tp(plan, engine)
    seen = np.minimum(tokens * pick(over_replicas(plan, engine), plan.dp, 1), engine.memory.moe_chunk_tokens)
    copies = seen * f.top_k  # the kernel's buffers are for every choice, also those of other ranks
    shared = tokens * 3 * f.shared_intermediate * share("shared", model, plan, engine)
    return seen * model.hidden + copies * (np.maximum(2 * inner, model.hidden) + inner) - tokens * model.hidden + shared


def _padded(size: Number, multiple: int) -> Number:
    """How much larger a side becomes when it is padded to a multiple."""
    return np.ceil(size / multiple) * multiple / size


def other_bytes(plan: Plan, engine: Engine) -> Number:
    """Communicators and library workspaces, growing with each doubling of tp."""
    return engine.memory.non_torch_bytes + engine.memory.non_torch_bytes_per_doubling * np.log2(plan.tp * 1.0)


def on_chip(engine: Engine, chip: Chip) -> Engine:
    """An engine with the limits that it has on a chip when nobody says others: those of the highest tier that the chip reaches."""
    tiers = (t for t in engine.serves.tiers.values() if chip.family not in t.get("not_families", ()))
    reached = [t for t in tiers if chip.visible_bytes >= t["from_bytes"]]
    if not reached:
        return engine
    tier = max(reached, key=lambda t: float(t["from_bytes"]))
    limits = {name: value for name, value in tier.items() if name not in ("from_bytes", "not_families")}
    return engine.but(**limits)


def default_utilization(chip: Chip, plan: Plan, engine: Engine, tokens: int) -> float:
    """The share of memory that an engine takes when nobody says: fixed, or what a reserve by its own formula leaves."""
    r = engine.memory.reserve
    if not r:
        return engine.memory.gpu_memory_utilization
    graph_rows = float(np.max(largest_graph(plan.tp, engine)))
    kept = r["base"] + r["per_token"] * max(tokens, r["least_tokens"]) + r["per_graph_row"] * graph_rows
    kept += r["per_rank"] * float(np.max(plan.tp * plan.pp))
    if chip.visible_bytes > r["large"]:
        kept = max(kept, r["least_large"])
    return max(0.05, round(1 - kept / chip.visible_bytes, 3))


def check_stored(model: Model) -> None:
    """Refuse a checkpoint whose files hold far more or less than its config describes."""
    if not model.stored_bytes:
        return
    expected = total_bytes(model, Plan())
    if not 0.5 < model.stored_bytes / expected < 2:
        raise Refusal(
            f"model {model.key}: its safetensors files hold {model.stored_bytes:,} bytes and config.json describes "
            f"{expected:,.0f}: files are missing, or belong to another model",
            "model",
        )
