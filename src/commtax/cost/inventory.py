"""The tensors of a model, named and shaped as common checkpoints have them, with how ranks share each and how each is stored.

One inventory answers for parameter counts, weights per rank, and what tensor parallelism must add up again. Names
follow the common checkpoint spelling, with ``N`` for a layer's number; shapes are (out, in), experts first.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial

import numpy as np

from commtax.arrays import pick
from commtax.cost.placement import expert_ranks, padded_vocab, tokens_split
from commtax.cost.schedules import SCHEDULES
from commtax.patterns import modules
from commtax.records import dataclass, replace
from commtax.spec import DTYPE_BYTES, Engine, Number, Plan
from commtax.spec.model import Attention, Block, Compressed, DeltaNet, Experts, Extra, Indexer, Latent, Mlp, Model, Quant

FIRST, LAST = -1, -2  # where a tensor lives that belongs to no layer: the first pipeline stage or the last
ROOTS = ("model.", "language_model.model.", "model.language_model.", "backbone.")
"""What checkpoints put before ``layers``, where a decoder stands alone or beside a vision tower."""
EXPLICIT = ("head", "embedding")  # parts that are quantised only where a format names them: engines build them without
EXPERTS = "mlp.experts.down_proj"  # a module of the routed experts: all of theirs are stored alike
Formats = tuple[tuple[Quant, float], ...]  # formats with the share of a tensor's layers that each stores
ROWWISE = "fp8-rowwise"
"""fp8 with a scale a row of either factor (torchao's recipe), which is cast anew for each of the three products."""
SCALES: dict[str, tuple[tuple[int, int], float]] = {
    **dict.fromkeys(("mxfp8", "mxfp4", "fp4"), ((1, 32), 1.0)),
    ROWWISE: ((1, 0), 4.0),
    "nvfp4": ((1, 16), 1.0),
    "int4": ((1, 128), 2.0),
}
"""Values that share a scale, and its bytes: OCP Microscaling formats 1.0, NVFP4, GPTQ and AWQ groups; others one fp32 a tensor."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, shared by ranks as ``split`` says (full, heads, kv, ffn, shared, vocab, expert or tower, see ``share``), where a kv
    split copies its ``units`` (heads or groups) beyond as many ranks."""

    name: str
    shape: tuple[int, ...]
    split: str
    part: str
    linear: bool = False  # a matrix that quantisation applies to
    units: int = 0
    active: bool = True  # False: a token looks a row of it up, and multiplies with nothing
    where: int = FIRST  # index into model.blocks, or FIRST or LAST

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@lru_cache(maxsize=256)
def inventory(model: Model) -> tuple[Tensor, ...]:
    """List every tensor of the decoder once, a layer's tensors once for each kind of layer."""
    tensors: list[Tensor] = [Tensor("model.embed_tokens.weight", (model.vocab, model.hidden), "vocab", "embedding")]
    if model.positions:
        tensors.append(Tensor("model.embed_positions.weight", (model.positions, model.hidden), "full", "embedding"))
    tensors += map(_extra, model.extras)
    for index, block in enumerate(model.blocks):
        tensors += _place_tensors(_layer(model, block), "model.layers.N.", index)
    if model.final_norm:
        tensors += _place_tensors(_norm("norm", model.hidden, model.norm_bias), "model.", LAST)
    if model.hyper:
        tensors += _place_tensors(_hyper("hc_head", model.hyper.streams, model.hidden, head=True), "model.", LAST)
    if not model.tied:
        tensors.append(Tensor("lm_head.weight", (model.vocab, model.hidden), "vocab", "head", where=LAST))
    if model.head_bias:
        tensors.append(Tensor("lm_head.bias", (model.vocab,), "vocab", "head", where=LAST))
    if model.tower:
        for name, shape, copies in (*model.tower.tensors, *model.tower.projector):
            tensors.append(Tensor(name, (copies, *shape), "tower" if len(shape) > 1 else "full", "tower"))
    return tuple(tensors)


def _place_tensors(tensors: Iterable[Tensor], prefix: str, where: int) -> list[Tensor]:
    return [replace(tensor, name=f"{prefix}{tensor.name}", where=where) for tensor in tensors]


def _extra(extra: Extra) -> Tensor:
    return Tensor(extra.name, extra.shape, extra.split, extra.part, len(extra.shape) > 1 and extra.active, active=extra.active)


def _layer(model: Model, block: Block) -> Iterator[Tensor]:
    if block.mixer:
        if isinstance(block.mixer, Attention):
            yield from _attention(model.hidden, block.mixer)
        elif isinstance(block.mixer, DeltaNet):
            yield from _delta_net(model.hidden, block.mixer)
        else:
            m, part = block.mixer, "state space"  # B and C belong to groups of heads, which ranks share or copy
            both, bias = 2 * m.num_groups * m.state, "heads" if m.bias else ""
            yield from _linear("mixer.in_proj.zx", 2 * m.inner, model.hidden, "heads", part, bias)
            yield from _linear("mixer.in_proj.bc", both, model.hidden, "kv", part, bias and "kv", m.num_groups)
            yield from _linear("mixer.in_proj.dt", m.num_heads, model.hidden, "heads", part, bias)
            for name, width, split in (("x", m.inner, "heads"), ("bc", both, "kv")):
                yield Tensor(f"mixer.conv1d.{name}.weight", (width, 1, m.conv), split, part, units=m.num_groups)
                if m.conv_bias:
                    yield Tensor(f"mixer.conv1d.{name}.bias", (width,), split, part, units=m.num_groups)
            for name in ("A_log", "D", "dt_bias"):
                yield Tensor(f"mixer.{name}", (m.num_heads,), "heads", part)
            yield from _norm("mixer.norm", m.inner, False, split="heads")
            yield from _linear("mixer.out_proj", model.hidden, m.inner, "heads", part, "full" if m.bias else "")
    if block.ffn:
        yield from _ffn(model.hidden, block.ffn)
    for number in range(block.num_norms):
        yield from _norm(f"norm_{number}", model.hidden, model.norm_bias)
    if model.hyper:
        for half in ("hc_attn", "hc_ffn"):
            yield from _hyper(half, model.hyper.streams, model.hidden)
    yield from map(_extra, block.extras)


def _linear(name: str, out: int, into: int, split: str, part: str, bias: str = "", units: int = 0) -> Iterator[Tensor]:
    """Yield a matrix and, if ``bias`` names a split, its bias (row-parallel layers keep the whole bias on every rank)."""
    yield Tensor(f"{name}.weight", (out, into), split, part, True, units)
    if bias:
        yield Tensor(f"{name}.bias", (out,), bias, part, False, units)


def _norm(name: str, width: int, bias: bool, part: str = "norm", split: str = "full", units: int = 0) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (width,), split, part, False, units)
    if bias:
        yield Tensor(f"{name}.bias", (width,), split, part, False, units)


def _hyper(name: str, streams: int, hidden: int, head: bool = False) -> Iterator[Tensor]:
    """Yield what mixes the residual streams around one half of a layer (into it, out of it, among them) or before the head."""
    mixes = streams if head else (2 + streams) * streams
    yield Tensor(f"{name}_fn", (mixes, streams * hidden), "full", "hyper-connections")
    yield Tensor(f"{name}_base", (mixes,), "full", "hyper-connections")
    yield Tensor(f"{name}_scale", (1 if head else 3,), "full", "hyper-connections")


def _attention(hidden: int, a: Attention) -> Iterator[Tensor]:
    if a.compressed:
        yield from _compressed_latent(hidden, a, a.compressed)
    else:
        yield from _latent(hidden, a, a.latent) if a.latent else _grouped_query(hidden, a)
        width = a.num_heads * a.v_head_dim
        yield from _linear("self_attn.o_proj", hidden, width, "heads", "attention", "full" if a.out_bias else "")
    if a.gate == "head":
        yield from _linear("self_attn.g_proj", a.num_heads, hidden, "heads", "attention")
    if a.sinks:
        yield Tensor("self_attn.sinks", (a.num_heads,), "heads", "attention")
    if a.indexer and a.indexer.own:
        yield from _indexer(hidden, a, a.indexer)


def _grouped_query(hidden: int, a: Attention) -> Iterator[Tensor]:
    q, kv, heads = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.num_kv_heads
    bias = "heads" if a.qkv_bias else ""
    yield from _linear("self_attn.q_proj", (2 if a.gate == "element" else 1) * q, hidden, "heads", "attention", bias)
    if a.own_cache:
        yield from _linear("self_attn.k_proj", kv, hidden, "kv", "attention", bias and "kv", heads)
        if a.own_values:
            yield from _linear("self_attn.v_proj", heads * a.v_head_dim, hidden, "kv", "attention", bias and "kv", heads)
    if a.qk_norm == "head":
        yield from _norm("self_attn.q_norm", a.head_dim, False)
        if a.own_cache:
            yield from _norm("self_attn.k_norm", a.head_dim, False)
    elif a.qk_norm == "full":
        yield from _norm("self_attn.q_norm", q, False, split="heads")
        yield from _norm("self_attn.k_norm", kv, False, split="kv", units=heads)


def _latent(hidden: int, a: Attention, m: Latent) -> Iterator[Tensor]:
    """Yield a latent's tensors: down-projections (and so the latent KV) whole on every rank, up-projections split by heads."""
    q, bias = a.num_heads * (m.nope_dim + m.rope_dim), "full" if a.qkv_bias else ""
    if m.q_rank:
        yield from _linear("self_attn.q_a_proj", m.q_rank, hidden, "full", "attention", bias)
        yield from _norm("self_attn.q_a_layernorm", m.q_rank, False)
        yield from _linear("self_attn.q_b_proj", q, m.q_rank, "heads", "attention")
    else:
        yield from _linear("self_attn.q_proj", q, hidden, "heads", "attention")
    yield from _linear("self_attn.kv_a_proj_with_mqa", m.kv_rank + m.rope_dim, hidden, "full", "attention", bias)
    yield from _norm("self_attn.kv_a_layernorm", m.kv_rank, False)
    yield from _linear("self_attn.kv_b_proj", a.num_heads * (m.nope_dim + a.v_head_dim), m.kv_rank, "heads", "attention")
    if a.gate == "element":
        yield from _linear("self_attn.g_proj", a.num_heads * a.v_head_dim, hidden, "heads", "attention")


def _compressed_latent(hidden: int, a: Attention, m: Compressed) -> Iterator[Tensor]:
    """Yield queries through a latent, one latent of one head for keys and values, and the output through low-rank groups."""
    yield from _linear("self_attn.wq_a", m.q_rank, hidden, "full", "attention")
    yield from _norm("self_attn.q_norm", m.q_rank, False)
    yield from _linear("self_attn.wq_b", a.num_heads * a.head_dim, m.q_rank, "heads", "attention")
    yield from _linear("self_attn.wkv", a.head_dim, hidden, "full", "attention")
    yield from _norm("self_attn.kv_norm", a.head_dim, False)
    wide = m.out_groups * m.out_rank
    yield from _linear("self_attn.wo_a", wide, a.num_heads * a.head_dim // m.out_groups, "heads", "attention")
    yield from _linear("self_attn.wo_b", hidden, wide, "heads", "attention")
    yield from _compressor("self_attn.compressor", hidden, a.head_dim, m)


def _compressor(name: str, hidden: int, width: int, m: Compressed) -> Iterator[Tensor]:
    """Yield what makes one entry of ``ratio`` tokens: values, gates, a place of each token inside, a norm. Never quantised."""
    if m.ratio:
        wide = m.overlap * width
        yield Tensor(f"{name}.ape", (m.ratio, wide), "full", "compressor")
        yield Tensor(f"{name}.wkv.weight", (wide, hidden), "full", "compressor")
        yield Tensor(f"{name}.wgate.weight", (wide, hidden), "full", "compressor")
        yield from _norm(f"{name}.norm", width, False, "compressor")


def _indexer(hidden: int, a: Attention, x: Indexer) -> Iterator[Tensor]:
    """Yield queries from attention's latent, and keys from the hidden state or from entries of their own compressor."""
    if m := a.latent or a.compressed:
        yield from _linear("self_attn.indexer.wq_b", x.num_heads * x.head_dim, m.q_rank or hidden, "full", "indexer")
        if a.compressed:
            yield from _compressor("self_attn.indexer.compressor", hidden, x.head_dim, a.compressed)
        else:
            yield from _linear("self_attn.indexer.wk", x.head_dim, hidden, "full", "indexer")
            yield from _norm("self_attn.indexer.k_norm", x.head_dim, True, "indexer")
        yield from _linear("self_attn.indexer.weights_proj", x.num_heads, hidden, "full", "indexer")
    else:
        yield from _linear("self_attn.index_q_proj", x.num_heads * x.head_dim, hidden, "full", "indexer")
        yield from _linear("self_attn.index_k_proj", x.head_dim, hidden, "full", "indexer")
        yield from _norm("self_attn.index_q_norm", x.head_dim, False, "indexer")
        yield from _norm("self_attn.index_k_norm", x.head_dim, False, "indexer")


def _delta_net(hidden: int, m: DeltaNet) -> Iterator[Tensor]:
    keys, values, part = m.num_k_heads * m.k_dim, m.num_v_heads * m.v_dim, "linear attention"
    for name, width in (("q", keys), ("k", keys), ("v", values)):
        yield from _linear(f"linear_attn.in_proj_qkv.{name}_proj", width, hidden, "heads", part)
        yield Tensor(f"linear_attn.conv1d.{name}.weight", (width, 1, m.conv), "heads", part)
    decays = keys if m.decay_rank else m.num_v_heads
    yield from _low_rank("linear_attn.in_proj_z", values, m.gate_rank, hidden, part)
    yield from _low_rank("linear_attn.in_proj_a", decays, m.decay_rank, hidden, part)
    yield Tensor("linear_attn.dt_bias", (decays,), "heads", part)
    yield from _linear("linear_attn.in_proj_b", m.num_v_heads, hidden, "heads", part)
    yield Tensor("linear_attn.A_log", (m.num_v_heads,), "heads", part)
    yield from _norm("linear_attn.norm", m.v_dim, False)
    yield from _linear("linear_attn.out_proj", hidden, values, "heads", part)


def _low_rank(name: str, out: int, rank: int, into: int, part: str) -> Iterator[Tensor]:
    """Yield a matrix split by heads, or one of low rank: whole into the rank, split out of it."""
    if rank:
        yield from _linear(f"{name}.a_proj", rank, into, "full", part)
    yield from _linear(f"{name}.b_proj" if rank else name, out, rank or into, "heads", part)


def _ffn(hidden: int, f: Mlp | Experts) -> Iterator[Tensor]:
    if isinstance(f, Mlp):
        yield from _mlp("mlp", hidden, f.intermediate, f.gated, f.bias, "ffn", "mlp")
        return
    yield Tensor("mlp.gate.weight", (f.num_experts, hidden), "full", "router")
    if f.router_bias:
        yield Tensor("mlp.gate.bias", (f.num_experts,), "full", "router")
    if f.correction_bias:
        yield Tensor("mlp.gate.e_score_correction_bias", (f.num_experts,), "full", "router")
    if f.latent:
        yield from _linear("mlp.fc1_latent_proj", f.latent, hidden, "full", "latent experts")
        yield from _linear("mlp.fc2_latent_proj", hidden, f.latent, "full", "latent experts")
        if f.latent_norm:
            yield from _norm("mlp.latent_norm", f.latent, False, "latent experts")
    for row in _mlp("mlp.experts", f.latent or hidden, f.intermediate, f.gated, f.bias, "expert", "experts"):
        # A down bias stays whole under tensor parallelism but still goes with its expert under expert parallelism.
        kept = "expert_bias" if row.split == "full" else "expert"
        yield Tensor(row.name, (f.num_experts, *row.shape), kept, row.part, row.linear)
    if f.shared_intermediate:
        yield from _mlp("mlp.shared_experts", hidden, f.shared_intermediate, f.gated, False, "shared", "shared experts")
    if f.shared_gate:
        yield Tensor("mlp.shared_expert_gate.weight", (1, hidden), "full", "router")


def _mlp(name: str, hidden: int, width: int, gated: bool, bias: bool, split: str, part: str) -> Iterator[Tensor]:
    if gated:
        yield from _linear(f"{name}.gate_proj", width, hidden, split, part, split if bias else "")
    yield from _linear(f"{name}.up_proj", width, hidden, split, part, split if bias else "")
    yield from _linear(f"{name}.down_proj", hidden, width, split, part, "full" if bias else "")


def copies(model: Model, tensor: Tensor) -> int:
    """Count the layers that carry this tensor."""
    return model.layers.count(tensor.where) if tensor.where >= 0 else 1


def num_params(model: Model) -> int:
    """Count all parameters, tied embeddings once, without layers for multi-token prediction."""
    return sum(t.size * copies(model, t) for t in inventory(model))


def mtp_params(model: Model) -> int:
    """Count the parameters of the layers that guess further tokens, whose embedding and head are the model's own."""
    return sum(math.prod(row.shape) for block in model.mtp for row in _layer(model, block))


def num_active_params(model: Model, embedding: bool = True) -> int:
    """Count the parameters one text token uses: ``top_k`` experts of each mixture, and the input table if ``embedding``."""
    parts = ("tower",) if embedding or model.tied else ("tower", "embedding")
    used = (t for t in inventory(model) if t.active and t.part not in parts)
    total = 0
    for t in used:
        ffn = model.blocks[max(0, t.where)].ffn
        size = t.size // ffn.num_experts * ffn.top_k if t.part == "experts" and isinstance(ffn, Experts) else t.size
        total += size * copies(model, t)
    return total


@lru_cache(maxsize=4096)
def formats(model: Model, tensor: Tensor, quant: Quant) -> Formats:
    """Return the formats of a tensor: of each layer the first that holds it. What is left of 1 stays as it is."""
    if not tensor.linear and tensor.part not in EXPLICIT:
        return ()
    candidates = [q for q in quant.formats if tensor.linear or q.only]
    if not any(q.only or q.ignored for q in candidates):
        return tuple((q, 1.0) for q in candidates[:1])
    layers, shares = _layers(model, tensor), dict.fromkeys(candidates, 0.0)
    left, roots = set(layers), _roots(tuple(candidates))
    for q in candidates:
        taken = _layers_named(model, tensor, q.only, q, roots) & left if q.only else set(left)
        taken -= _layers_named(model, tensor, q.ignored, q, roots)
        left -= taken
        shares[q] = len(taken) / len(layers)
    return tuple((q, share) for q, share in shares.items() if share)


@lru_cache(maxsize=4096)
def format_of(model: Model, module: str, quant: Quant | None) -> Quant | None:
    """Return the format of most layers that have a module (one of the first kind of layers where it is a product that engines
    fuse), or None where they keep it as it is."""
    if quant is None:
        return None
    names = (f"model.layers.N.{module}.weight", f"{module}.weight")
    tensors = [t for t in inventory(model) if t.name in names] or [Tensor(names[0], (1, 1), "full", "", True, where=0)]
    shares: dict[Quant, float] = {}
    weights = [model.layers.count(t.where) if t.where >= 0 else 1 for t in tensors]
    for tensor, weight in zip(tensors, weights, strict=True):
        for q, share in formats(model, tensor, quant):
            shares[q] = shares.get(q, 0.0) + share * weight / sum(weights)
    best = max(shares, key=lambda q: shares[q], default=None)
    return best if best is not None and sum(shares.values()) >= 0.5 else None


def spellings(name: str, spelled: tuple[tuple[str, str], ...], roots: tuple[str, ...] = ROOTS) -> tuple[str, ...]:
    """List the names that checkpoints may have for a tensor: the family's words, every usual root, a first expert's number.

    >>> spellings("model.layers.3.mlp.experts.up_proj.weight", (("mlp.", "mixer."),))[-1]
    'backbone.layers.3.mixer.experts.0.up_proj.weight'
    """
    for ours, theirs in spelled:
        name = name.replace(ours, theirs)
    rest = [n.removeprefix("model.") for n in dict.fromkeys((name, name.replace(".experts.", ".experts.0.")))]
    if not name.startswith("model."):
        return (*rest, *(f"language_model.{n}" for n in rest))
    return tuple(root + n for n in rest for root in roots)


@lru_cache(maxsize=256)
def _roots(formats: tuple[Quant, ...]) -> tuple[str, ...]:
    """Return the usual root, and those that any pattern mentions."""
    patterns = "\n".join(p for q in formats for p in (*q.ignored, *q.only)).replace("\\", "")
    return tuple(root for root in ROOTS if root == ROOTS[0] or root in patterns)


def _layers(model: Model, tensor: Tensor) -> list[int]:
    """List the layers that have a tensor, which counts as a single one."""
    return [i for i, kind in enumerate(model.layers) if kind == tensor.where] or [0]


def _layers_named(model: Model, tensor: Tensor, patterns: tuple[str, ...], quant: Quant, roots: tuple[str, ...]) -> set[int]:
    """Return the layers in which any of the patterns holds: all or none for a tensor without a layer number."""
    layers, counted = _layers(model, tensor), dict(quant.counted)

    def holds(some: tuple[str, ...], layer: int) -> bool:
        name = tensor.name.replace("layers.N", f"layers.{layer}")
        return bool(some) and modules(some).hold(*spellings(name, quant.spelled, roots))

    if holds(tuple(p for p in patterns if p not in counted and not _tells_layers(p)), layers[0]):
        return set(layers)
    numbered = tuple(p for p in patterns if _tells_layers(p))
    folded = [p for p in patterns if p in counted and not _tells_layers(p) and holds((p,), layers[0])]
    if tensor.where < 0:
        return set(layers) if folded or holds(numbered, layers[0]) else set()
    named = {layer for layer in range(model.num_layers) if holds(numbered, layer)}
    for pattern in sorted(folded, key=lambda p: counted[p]):
        count = counted[pattern]
        each = model.experts.num_experts if model.experts and "experts.*." in pattern else 1
        free = [layer for layer in _layers_matching(model, pattern, quant.spelled) if layer not in named]
        named |= set(free[: -(-count // each)])
    return named & set(layers)


def _tells_layers(pattern: str) -> bool:
    if pattern.startswith("re:"):
        return bool(re.search(r"\d|\\d|\[", pattern))
    return bool(re.search(r"(^|\.)[\d\[]", pattern.replace("experts.0", "experts")))


@lru_cache(maxsize=1024)
def _layers_matching(model: Model, pattern: str, spelled: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    holds = modules((pattern,)).hold
    kinds = {t.where for t in inventory(model) if t.where >= 0 and holds(*spellings(t.name.replace(".N.", ".0."), spelled))}
    return tuple(i for i, kind in enumerate(model.layers) if kind in kinds)


def share(split: str, model: Model, plan: Plan, engine: Engine, units: int = 1) -> Number:
    """Return the part of a tensor that one rank holds: 1/tp, of kv as long as there are ``units`` heads, 1/ep of experts and their
    copies (split over the ranks that share them), and 1/tp of the padded vocabulary."""
    tp = plan.tp
    if split == "full" or (split == "tower" and plan.tower == "data"):
        return tp * 0 + 1.0
    if split == "kv":
        return 1.0 / np.minimum(tp, units)
    if split == "vocab":
        return np.ceil(padded_vocab(model, plan, engine) / tp) / model.vocab
    if split == "shared":
        return pick(tokens_split(model, plan, engine), 1.0, 1.0 / tp)
    if split == "expert":
        return _replication_factor(model, plan) / (plan.ep * expert_ranks(plan, engine).inside)
    return tp * 0 + _replication_factor(model, plan) / plan.ep if split == "expert_bias" else 1.0 / tp


def _replication_factor(model: Model, plan: Plan) -> Number:
    """Return the experts that all ranks hold together, copies of popular ones included, over the model's own."""
    return 1.0 + plan.redundant / model.experts.num_experts if model.experts and plan.redundant_experts else 1.0


def weight_bytes(model: Model, tensor: Tensor, plan: Plan) -> float:
    """Stored bytes of one whole copy of a tensor, scales and zero points included, averaged over its layers."""
    wanted = plan.weights_dtype
    plain = tensor.size * DTYPE_BYTES[wanted if wanted and DTYPE_BYTES[wanted] >= 2 else model.dtype]
    quant = quantisation(model, plan)
    stored = formats(model, tensor, quant) if quant else ()
    left = 1 - sum(fraction for _, fraction in stored)
    return sum(fraction * _quantised_bytes(tensor, q) for q, fraction in stored) + left * plain


def total_bytes(model: Model, plan: Plan) -> float:
    """Stored bytes of the whole model, once."""
    return sum(weight_bytes(model, t, plan) * copies(model, t) for t in inventory(model))


def quantisation(model: Model, plan: Plan) -> Quant | None:
    """Return the checkpoint's own format, unless the plan asks for other weights."""
    if not plan.weights_dtype:
        return model.quant
    if DTYPE_BYTES[plan.weights_dtype] >= 2:
        return None
    if model.quant and any(q.dtype == plan.weights_dtype for q in model.quant.formats):
        return model.quant
    stored = "fp8" if plan.weights_dtype in (ROWWISE, "mxfp8") else plan.weights_dtype
    return Quant(plan.weights_dtype, stored, *SCALES.get(plan.weights_dtype, ((0, 0), 4.0)))


def _quantised_bytes(tensor: Tensor, quant: Quant) -> float:
    *stack, out, into = tensor.shape
    groups_out = math.ceil(out / quant.block[0]) if quant.block[0] else 1
    groups_in = math.ceil(into / quant.block[1]) if quant.block[1] else 1
    each = out * into * DTYPE_BYTES[quant.dtype] + groups_out * groups_in * (quant.scale_bytes + quant.zero_point_bits / 8)
    if quant.group_index:
        each += 4 * into
    return math.prod(stack) * each


@dataclass(frozen=True, slots=True)
class RankTensor:
    """A tensor as one rank of one stage holds it. ``ideal_bytes`` is an equal share, and the rest is replication."""

    tensor: Tensor
    copies: int
    bytes_per_rank: Number
    ideal_bytes: Number


def stage_layers(model: Model, pp: int, odd: str = "before-last") -> list[range]:
    """Divide layers over pipeline stages, where an uneven split gives the odd layers to the stages that ``odd`` names.
    vLLM: those before the last. SGLang: the last ones. TensorRT-LLM: the first ones.

    >>> from commtax.catalog import model
    >>> [len(r) for r in stage_layers(model("llama-3.1-8b"), 5)]
    [6, 6, 7, 7, 6]
    """
    base, rest = divmod(model.num_layers, pp)
    start = {"before-last": pp - 1 - rest, "last": pp - rest, "first": 0}[odd]
    sizes = [base + (start <= i < start + rest) for i in range(pp)]
    return [range(int(end) - size, int(end)) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


def rank_tensors(model: Model, plan: Plan, engine: Engine, stage: int, pp: int) -> list[RankTensor]:
    """List what one rank of ``stage`` (of ``pp``) holds. The last stage of a tied model keeps its own copy of the table."""
    layers = stage_layers(model, pp, engine.sends.odd_layers)[stage]
    rows = []
    for tensor in inventory(model):
        if tensor.where >= 0:
            count = sum(model.layers[i] == tensor.where for i in layers)
        else:
            home = 0 if tensor.where == FIRST else pp - 1
            count = int(stage == home or (model.tied and tensor.split == "vocab" and stage == pp - 1))
        if count:
            whole = weight_bytes(model, tensor, plan) * count
            rows.append(RankTensor(tensor, count, whole * share(tensor.split, model, plan, engine, tensor.units), whole / plan.tp))
    return rows


def by_pp(pp: Number, one: Callable[[int], float]) -> Number:
    """Apply a scalar function of pp to an array of them."""
    if np.ndim(pp) == 0:
        return float(one(int(pp)))
    values, back = np.unique(np.asarray(pp), return_inverse=True)
    return np.array([one(int(v)) for v in values], dtype=float)[back].reshape(np.shape(pp))


def fullest_layers(model: Model, plan: Plan) -> Number:
    """Count the layers of the stage that has most."""
    return by_pp(plan.pp, lambda pp: sum(_fullest_stage_layers(model, pp)))


@lru_cache(maxsize=1024)
def _fullest_stage_layers(model: Model, pp: int) -> tuple[int, ...]:
    """Count the layers of each kind on the first of the stages with the most layers."""
    stage = max(stage_layers(model, pp), key=len)
    return tuple(sum(model.layers[i] == where for i in stage) for where in range(len(model.blocks)))


def num_moe_layers(model: Model, plan: Plan) -> Number:
    """Count the layers with experts on the stage that has most of them."""
    return by_pp(plan.pp, partial(_most_moe_layers, model)) if model.experts else 0.0 * plan.pp


@lru_cache(maxsize=1024)
def _most_moe_layers(model: Model, pp: int) -> int:
    return max(sum(isinstance(model.blocks[model.layers[i]].ffn, Experts) for i in r) for r in stage_layers(model, pp))


def fullest_of(model: Model, plan: Plan) -> list[Number]:
    """Count the layers of each kind on a rank of the fullest stage, or of two stages where microbatches enter at both ends."""
    both = pick(np.asarray(plan.pp) > 1, SCHEDULES[plan.schedule].directions, 1)

    def times(where: int) -> Number:
        return by_pp(plan.pp, lambda pp: _fullest_stage_layers(model, pp)[where]) * both

    return [times(where) for where in range(len(model.blocks))]


def stage_params(model: Model, plan: Plan, engine: Engine) -> dict[str, Number]:
    """Count the parameters of the fullest stage on one rank, by group (of two stages where microbatches enter at both ends)."""
    total: dict[str, Number] = {"layers": 0.0, "experts": 0.0, "ends": 0.0}
    alone = (np.asarray(plan.pp) == 1) | (SCHEDULES[plan.schedule].directions > 1)
    layers = fullest_of(model, plan)
    for (split, units, group, where), size in _sizes(model).items():
        count = share(split, model, plan, engine, units) * size
        if where >= 0:
            count = count * layers[where]
        elif where != FIRST:  # head and final norm lie on the last stage: beside the embedding only without a pipeline
            count = pick(alone, count, 0)
        total[group] = total[group] + count
    return total


@lru_cache(maxsize=256)
def _sizes(model: Model) -> dict[tuple[str, int, str, int], int]:
    """Sum the elements of tensors by how they are split and where they lie: (split, units, whose, where)."""
    sizes: dict[tuple[str, int, str, int], int] = {}
    for t in inventory(model):
        key = (t.split, t.units, "ends" if t.where < 0 else "experts" if t.part == "experts" else "layers", t.where)
        sizes[key] = sizes.get(key, 0) + t.size
    return sizes
