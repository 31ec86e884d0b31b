"""What one rank must hold: to serve, weights, activations and the KV cache in what is left; to train, parameters, gradients,
optimiser state and the activations in flight.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost import inventory
from commtax.cost.adapters import adapter_bytes, trained_params
from commtax.cost.placement import expert_ranks, holders, padded_vocab
from commtax.cost.schedules import SCHEDULES, kept_layers, passes_of, virtual_layers
from commtax.cost.traffic import largest_graph
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, Chip, Drafter, Engine, Number, Plan, TrainStep
from commtax.spec.model import Attention, Block, Experts, Mamba2, Mixer, Mlp, Model
from commtax.statement import Refusal

OPTIMIZER_BYTES = 12  # Adam: fp32 master copy, first and second moment
LOGIT_BYTES = 6  # bf16 as the head writes them, and fp32 for the loss
QUERIES = ("q_proj.weight", "q_b_proj.weight")  # weights that make queries; of a latent those that widen it
RECOMPUTE = ("none", "selective", "full")
LIGHT = ("layernorm,moe_act", "layernorm,mla_up_proj,moe_act")
"""Modules of mixtures whose recomputation takes next to no time; the second of those with latent attention."""


@dataclass(frozen=True, slots=True)
class WeightLine:
    """Bytes that one rank holds of one part of the model, and how many of them other tp ranks hold too."""

    part: str
    nbytes: Number
    replicated_bytes: Number


def weights(model: Model, plan: Plan, engine: Engine, stage: int, pp: int) -> list[WeightLine]:
    """List the weights of one rank of one stage by part, scaled to a local checkpoint's size where that is read."""
    scale = model.stored_bytes / inventory.total_bytes(model, plan) if model.stored_bytes and not plan.weights_dtype else 1.0
    rows = inventory.rank_tensors(model, plan, engine, stage, pp)
    lines: dict[str, tuple[Number, Number]] = {}
    for row in rows:
        nbytes, copied = lines.get(row.tensor.part, (0.0, 0.0))
        extra = np.maximum(0, row.bytes_per_rank - row.ideal_bytes)
        lines[row.tensor.part] = (nbytes + row.bytes_per_rank * scale, copied + extra * scale)
    return [*(WeightLine(part, *sums) for part, sums in lines.items()), *_beside(model, plan, engine, rows)]


def _beside(model: Model, plan: Plan, engine: Engine, rows: list[inventory.RankTensor]) -> Iterator[WeightLine]:
    """Yield what an engine loads beyond the checkpoint's tensors."""
    a = model.attention
    if engine.memory.latent_absorbed and a.latent:
        up = sum((r.tensor.size * r.copies for r in rows if r.tensor.name.endswith("kv_b_proj.weight")), start=0)
        yield WeightLine("absorbed latent projections", up * DTYPE_BYTES[plan.activations_dtype] / plan.tp, 0.0)
    quant = inventory.format_of(model, inventory.EXPERTS, inventory.quantisation(model, plan))
    if engine.memory.mxfp4_multiple > 1 and quant and quant.dtype == "mxfp4":
        width = (model.experts.intermediate if model.experts else 1) / expert_ranks(plan, engine).inside
        grown = _padded(model.hidden, engine.memory.mxfp4_multiple) * _padded(width, engine.memory.mxfp4_width_multiple) - 1
        experts = sum((r.bytes_per_rank for r in rows if r.tensor.part == "experts" and r.tensor.linear), start=0.0)
        yield WeightLine("padding of mxfp4 experts", experts * grown, 0.0)
    if engine.contexts.queries_remade and holds_anywhere(np.asarray(plan.dcp) > 1):
        queries = sum((r.bytes_per_rank for r in rows if r.tensor.name.endswith(QUERIES)), start=0.0)
        yield WeightLine("queries of split caches", queries * (plan.dcp - 1), queries * (plan.dcp - 1))
    if plan.lora_rank:
        yield WeightLine("LoRA adapters", adapter_bytes(model, plan, engine, rows), 0.0)
    if engine.memory.rotary_table and not model.positions:
        turned = a.latent or a.compressed
        width = turned.rope_dim if turned else a.head_dim
        table = model.max_len * width * DTYPE_BYTES[plan.activations_dtype]
        yield WeightLine("rotary table", plan.tp * 0 + float(table), table * (1 - 1 / plan.tp))


def drafter_weights(d: Drafter | None, plan: Plan, engine: Engine) -> list[WeightLine]:
    """List what a rank of the last stage holds of a drafter, which shares embedding and head unless it brings its own."""
    if d is None or d.model is None:
        return []
    shared = {part for part, brought in (("embedding", d.own_embedding), ("head", d.own_head)) if not brought}
    rows = [r for r in inventory.rank_tensors(d.model, plan, engine, 0, 1) if r.tensor.part not in shared]
    nbytes = d.modules * sum((r.bytes_per_rank for r in rows), start=plan.tp * 0.0)
    ideal = d.modules * sum((r.ideal_bytes for r in rows), start=plan.tp * 0.0)
    return [WeightLine("drafter", nbytes, np.maximum(0.0, nbytes - ideal))]


def with_draft_layers(model: Model, d: Drafter | None) -> Model:
    """Append a drafter's layers to the model, whose caches lie beside its own."""
    if d is None or d.model is None:
        return model
    first = len(model.blocks)
    behind = tuple(first + i for i in d.model.layers) * d.modules
    return replace(model, blocks=(*model.blocks, *d.model.blocks), layers=(*model.layers, *behind))


def activation_bytes(model: Model, plan: Plan, engine: Engine, tokens: Number, seqs: Number, last_stage: bool = True) -> Number:
    """Return the larger peak: of ``tokens`` rows (three hidden states, the widest feed-forward) or ``seqs`` rows of logits."""
    act = DTYPE_BYTES[plan.activations_dtype]
    none: Number = 0.0
    widest = reduce(np.maximum, (_ffn_elements(b.ffn, model, plan, engine, tokens) for b in model.blocks if b.ffn), none)
    layer = (tokens * 3 * model.hidden + widest) * act
    if not last_stage:
        return layer
    logits = seqs * padded_vocab(model, plan, engine) * engine.memory.sampler_bytes_per_logit
    return np.maximum(layer, logits + 2 * tokens * model.hidden * act)


def _ffn_elements(f: Mlp | Experts, model: Model, plan: Plan, engine: Engine, tokens: Number) -> Number:
    """Count the elements alive at the widest point of a feed-forward layer, where shared experts see all replicas' tokens."""
    if isinstance(f, Mlp):
        return tokens * (3 if f.gated else 2) * f.intermediate / plan.tp
    ranks = expert_ranks(plan, engine)
    inner = f.intermediate / ranks.inside
    seen = np.minimum(tokens * pick(ranks.over_replicas, plan.dp, 1), engine.memory.moe_chunk_tokens)
    copies = seen * f.top_k  # the kernel's buffers are for every choice, also those of other ranks
    shared = tokens * 3 * f.shared_intermediate * inventory.share("shared", model, plan, engine)
    return seen * model.hidden + copies * (np.maximum(2 * inner, model.hidden) + inner) - tokens * model.hidden + shared


def _padded(size: Number, multiple: int) -> Number:
    """Return how much larger a side becomes when padded to a multiple."""
    return np.ceil(size / multiple) * multiple / size


def other_bytes(plan: Plan, engine: Engine) -> Number:
    """Return the bytes of communicators and library workspaces, growing with each doubling of tp."""
    return engine.memory.non_torch_bytes + engine.memory.non_torch_bytes_per_doubling * np.log2(plan.tp * 1.0)


def on_chip(engine: Engine, chip: Chip) -> Engine:
    """Return the engine with its default limits on a chip: those of the highest tier that the chip reaches."""
    tiers = (t for t in engine.serves.tiers.values() if chip.family not in t.get("not_families", ()))
    reached = [t for t in tiers if chip.visible_bytes >= t["from_bytes"]]
    if not reached:
        return engine
    tier = max(reached, key=lambda t: float(t["from_bytes"]))
    return engine.but(**{name: value for name, value in tier.items() if name not in ("from_bytes", "not_families")})


def default_utilization(chip: Chip, plan: Plan, engine: Engine, tokens: int) -> float:
    """Return the share of memory that an engine takes by default: fixed, or what its reserve formula leaves."""
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
    expected = inventory.total_bytes(model, Plan())
    if not 0.5 < model.stored_bytes / expected < 2:
        both = f"its safetensors files hold {model.stored_bytes:,} bytes and config.json describes {expected:,.0f}"
        raise Refusal(f"model {model.key}: {both}: files are missing, or belong to another model", "model")


@dataclass(frozen=True, slots=True)
class TrainMemory:
    """Bytes of one rank of the first pipeline stage, which keeps the most activations."""

    parameters: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number

    @property
    def total(self) -> Number:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def training_memory(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> TrainMemory:
    """Divide training memory by ZeRO: 1 shares the optimiser state over data-parallel ranks, 2 the gradients too (which add up
    whole in a pipeline's chunk), 3 the parameters too (which stay gathered in a pipeline)."""
    params = inventory.stage_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine)
    ends = _ends(model, plan, params)
    shares = (params["layers"] + ends, params["experts"])
    experts, piped = shares[1], np.asarray(plan.pp) > 1
    sums = trained_params(model, plan, engine)
    trained = (sums["layers"] + sums["ends"], sums["experts"]) if plan.lora_rank else shares

    def divided(of: tuple[Number, Number], nbytes: float, stage: int) -> Number:
        return sum(of) * nbytes if plan.zero < stage else of[0] * nbytes / ranks + of[1] * nbytes / same_experts

    # Where the sharded parameter is the fp32 master copy, no other master is kept.
    whole, grads = DTYPE_BYTES[plan.activations_dtype], DTYPE_BYTES[plan.grads_dtype]
    mastered = engine.trains.master_is_parameter and plan.zero == 3
    weights = divided(shares, 4 if mastered and not plan.lora_rank else whole, 3)
    if plan.lora_rank:
        weights = weights + divided(trained, 4 if mastered else whole, 3)
    if plan.zero == 3:
        # one layer is whole while it is used, the next is on its way; with a pipeline all of the stage is
        some = np.minimum(1, pick(piped, 1, 2 / inventory.fullest_layers(model, plan)))
        weights = weights + some * (_gathered_params(params["layers"], ranks) + _gathered_params(experts, same_experts)) * whole
        weights = weights + pick(piped, _gathered_params(ends, ranks), 0) * whole
    rows = step.micro_batch * plan.share(step.seq)
    kept = activations(model, plan, step, engine) * microbatches_in_flight(model, plan)
    if plan.recompute == "full":  # layers are rebuilt one at a time: one's activations exist beside the kept inputs
        largest = max(model.blocks, key=lambda block: sum(_layer_bytes(block, model.hidden)))
        kept = kept + rows * _kept_bytes_per_row(largest, model.hidden, plan, step, engine)
    gradients = np.minimum(sum(trained) * grads, divided(trained, grads, 2) + _unreduced_share(plan) * sum(trained) * grads)
    optimizer = divided(trained, OPTIMIZER_BYTES - (4 if mastered else 0), 1)
    logits = pick(np.asarray(plan.pp) == 1, rows * padded_vocab(model, plan, engine) / plan.tp * LOGIT_BYTES, 0)
    return TrainMemory(weights, gradients, optimizer, kept, logits)


def _ends(model: Model, plan: Plan, params: Mapping[str, Number]) -> Number:
    """Count the parameters of embedding (and head) beyond the layers that their stage lacks against the fullest one."""
    fullest = inventory.fullest_layers(model, plan)
    first = inventory.by_pp(plan.pp, lambda pp: sum(chunk[0] for chunk in virtual_layers(model.num_layers, pp, plan.chunks)))
    return np.maximum(0, params["ends"] - (fullest - first) * (params["layers"] + params["experts"]) / fullest)


def _unreduced_share(plan: Plan) -> Number:
    """Return the share of a stage's gradients that microbatches still add to, under ZeRO 2 and 3. With a pipeline all, but one
    chunk's where all microbatches pass a chunk before any passes the one before it."""
    if plan.zero < 2:
        return 0.0
    one = 1 / passes_of(plan) if plan.schedule == "interleaved" else 1.0
    return pick(np.asarray(plan.pp) > 1, pick(np.asarray(plan.microbatches) <= plan.pp, one, 1.0), 0.0)


def _gathered_params(params: Number, ranks: Number) -> Number:
    """Count the parameters that exist whole beside their shard: none where one rank has all of them."""
    return pick(np.asarray(ranks) > 1, params, 0)


def microbatches_in_flight(model: Model, plan: Plan) -> Number:
    """Count the microbatches whose activations the first stage keeps: all under gpipe, at most pp under 1f1b, 2 pp - 1 under zb-h2,
    and (p - 1)/(p v) more with v chunks (Narayanan et al. 2021)."""
    if plan.chunks > 1:
        return kept_layers(model.num_layers, plan.pp, plan.chunks, plan.microbatches) * plan.pp / model.num_layers
    return SCHEDULES[plan.schedule].kept(plan.pp, plan.microbatches, plan.chunks)


def activations(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> Number:
    """Return the activation bytes that one stage keeps for one microbatch: s b h (8 + 24/t) a layer of the GPT shape.
    That is Korthikanti et al. 2022, eq. 2 (s b h (10 + 24/t + 5 a s/(h t))) without dropout masks (2 of the 34); fused
    attention keeps no score matrix, and where it is not fused, selective recomputation drops it. An engine that keeps
    every other product drops about half. Sequence parallelism divides the 8 by t as well (eq. 4), less the inputs of
    the products where they are kept gathered. Full recomputation keeps a layer's input only."""
    rows = step.micro_batch * plan.share(step.seq)
    inputs = 2.0 * model.hidden / (plan.tp if plan.sequence_parallel else 1)
    kept = (inputs if plan.recompute == "full" else _kept_bytes_per_row(b, model.hidden, plan, step, engine) for b in model.blocks)
    return sum((each * rows * model.layers.count(index) / plan.pp for index, each in enumerate(kept)), start=0.0)


def _kept_bytes_per_row(block: Block, hidden: int, plan: Plan, step: TrainStep, engine: Engine) -> Number:
    """Return the bytes a row keeps in one layer on one rank. The score matrix, where kept: softmax output, dropout mask and dropout
    output (2 + 1 + 2 a head and key)."""
    whole, split = _layer_bytes(block, hidden)
    # Of the bytes of a product's input, those that are spared where it is kept as it was multiplied.
    lighter = 1 - min(1.0, DTYPE_BYTES.get(plan.weights_dtype, 2.0) / 2) if engine.trains.keeps_quantised else 0.0
    # Modules that backward computes again, by name or because the engine's selective recomputation is of them.
    light = plan.recompute == "selective" and engine.trains.selective == "up-projections"
    named = ("layernorm", "mla_up_proj", "moe_act") if light else plan.remade
    norms = 4.0 * hidden if "layernorm" in named else 0.0  # outputs of norms: inputs of a layer's first products
    whole = whole - norms - lighter * (4.0 * hidden - norms)
    remade, inputs = _remade_bytes(block, hidden, named, engine)
    split = split - remade - lighter * inputs
    unfused = engine.trains.attention == "unfused" and plan.recompute != "selective"
    scores = 5.0 * block.attention.num_heads * step.seq if unfused and block.attention else 0.0
    gathered = 0 if engine.trains.regathers_inputs or not plan.sequence_parallel else 4 * hidden
    every = (split + scores) / plan.tp + gathered + (whole - gathered) / (plan.tp if plan.sequence_parallel else 1)
    return every / 2 if (plan.recompute == "selective" and engine.trains.selective == "matmuls") else every


def _layer_bytes(block: Block, hidden: int) -> tuple[float, float]:
    """Return the bytes a row keeps in one layer: (norm and projection inputs, what tensor parallelism always splits). Fused
    attention is assumed: queries, keys, values and the output are kept, the score matrix is not."""
    whole = 2 * hidden * (block.num_norms + 2)  # inputs of the norms, of the first attention and the first feed-forward matrix
    return whole, _mixer_bytes(block.mixer) + _ffn_bytes(block.ffn, hidden)


def _mixer_bytes(mixer: Mixer | None) -> float:
    """Return the bytes of queries, keys, values and output, or of recurrent layers the convolved channels, gate and output."""
    if isinstance(mixer, Attention):
        keys = mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim)
        return 2 * (mixer.num_heads * mixer.head_dim + keys + mixer.num_heads * mixer.v_head_dim)
    if mixer is None:
        return 0.0
    inner = mixer.inner if isinstance(mixer, Mamba2) else mixer.num_v_heads * mixer.v_dim
    return 2 * (2 * mixer.channels + 2 * inner)


def _ffn_bytes(f: Mlp | Experts | None, hidden: int) -> float:
    if f is None:
        return 0.0
    ffn = 2 * f.intermediate * (3 if f.gated else 2)
    return ffn if isinstance(f, Mlp) else f.top_k * (ffn + 2 * (f.latent or hidden)) + 2 * f.shared_intermediate * 3


def _remade_bytes(block: Block, hidden: int, named: tuple[str, ...], engine: Engine) -> tuple[float, float]:
    """Return the bytes that backward makes again by the module's name, or inside the activation's own kernel. Beside them those
    that it keeps of inputs of experts' products and of those behind an activation."""
    f, routed = block.ffn, isinstance(block.ffn, Experts)
    up = 0.75 * _mixer_bytes(block.mixer) if block.attention and block.attention.latent and "mla_up_proj" in named else 0.0
    if ("moe" if routed else "mlp") in named:
        return up + _ffn_bytes(f, hidden), 0.0
    sent = 2.0 * f.top_k * (f.latent or hidden) if isinstance(f, Experts) else 0.0
    # What a gated activation writes: kept for the weight gradient of the product behind it, or made again there.
    active = 2.0 * f.intermediate * (f.top_k if isinstance(f, Experts) else 1) if f and f.gated else 0.0
    once = engine.trains.remakes_activation or ("moe_act" in named and routed)
    return (up + active, sent) if once else (up, sent + active)
