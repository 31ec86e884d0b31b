"""What one step sends: every collective with exact bytes and counts, of serving for any mix of prefill and decode, and of training.

Counts of serving follow one token's path through all pipeline stages; those of training are of one rank of the fullest stage
that issues the line (the first for the embedding, the last for the head). The set of lines is fixed: a collective that a plan
does not issue has count 0. Control messages and scalars (scheduler metadata, token ids, router's counts, loss, gradient norm)
are left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from commtax.arrays import pick
from commtax.cost.inventory import inventory
from commtax.cost.placement import handed_on, holders, over_replicas, tokens_split
from commtax.cost.quantised import EXPERTS, format_of
from commtax.cost.schedules import SCHEDULES, passes_of
from commtax.cost.tensors import fullest_layers, num_moe_layers, padded_vocab, quantisation, share, stage_params
from commtax.cost.tower import tower_items
from commtax.ledger import Item, Part, Place, Stage, Window
from commtax.spec import DTYPE_BYTES, Engine, Experts, Mamba2, Model, Number, Plan, Quant, TrainStep, Workload

ROUTING_BYTES = 8  # of a token and choice: the expert's id in int32, its weight in fp32
SUM_BYTES = 4  # of a row: a sum of squares, fp32
NORM_BYTES = 2 * SUM_BYTES  # of a row: the sums of squares of query and key
FP8_SCALE_GROUP = 128  # one fp32 scale travels with each 128 fp8 values
NVFP4_SCALE_GROUP = 16
WIDE = 4  # from this tp on an engine may capture larger graphs
AG_RS, DEEPEP_LL = "allgather_reducescatter", "deepep_low_latency"


def largest_graph(tp: Number, engine: Engine) -> Number:
    """Rows of the largest captured graph; 0 where the engine captures none."""
    most = pick(np.asarray(tp) >= WIDE, engine.sends.graph_rows_wide, engine.sends.graph_rows)
    return np.minimum(most, max(engine.sends.graph_sizes, default=0))


def padded_rows(rows: Number, work: Workload, engine: Engine, tp: Number = 1, eager: bool = False) -> Number:
    """Rows as the engine runs them: a graph is captured for some batch sizes only, and a batch runs in the next one.

    Steps with prompt tokens are padded only by engines that capture those too; rows beyond the largest size run as
    they are.
    """
    sizes = np.asarray(engine.sends.graph_sizes)
    if eager or not sizes.size:
        return rows
    slot = np.searchsorted(sizes, rows)
    padded = pick(np.asarray(rows) <= largest_graph(tp, engine), sizes[np.minimum(slot, sizes.size - 1)], rows)
    if not engine.sends.graph_pads_prefill:
        padded = pick(np.asarray(work.prefill_tokens) > 0, rows, padded)
    return padded if np.ndim(padded) else float(padded)


def inference(model: Model, plan: Plan, work: Workload, engine: Engine, *, ep_backend: str = "", eager: bool = False) -> list[Item]:
    """All collectives of one step of one replica (and, where replicas share experts, of the group it moves with)."""
    act, backend = DTYPE_BYTES[plan.activations_dtype], ep_backend or (engine.sends.ep_backends or (AG_RS,))[0]
    rows = padded_rows(work.rows, work, engine, plan.tp, eager)
    payload = rows * model.hidden * act
    num_moe = sum(isinstance(model.blocks[i].ffn, Experts) for i in model.layers)
    full_norms = sum(a.qk_norm == "full" for i in model.layers if (a := model.blocks[i].attention))
    # Where tokens are split over tp, or sent to experts, MoE layers leave no partial sums to reduce.
    apart = _replaces_all_reduce(model, plan, engine, backend)
    sums, latents = _expert_sums(model, engine)
    reduced = model.num_feed_forwards - num_moe + pick(apart, 0, sums)
    samples = work.samples
    if engine.sends.logits_padded:
        samples = pick(np.asarray(work.prefill_tokens) > 0, samples, rows)
    logits = samples * padded_vocab(model, plan, engine) * act
    squares, note = rows * NORM_BYTES, "sums of squares over all heads, fp32"
    items = [tp_item("embedding", "all-reduce", payload, 1, plan, "embedding")]
    items.append(tp_item("query/key norm", "all-reduce", squares, full_norms, plan, "projections", place="query", note=note))
    items += _reduced("attention output", payload, model.num_mixers, plan, "attention", "reduced")
    items += _reduced("feed-forward output", payload, reduced, plan, "feed-forward", "output")
    if model.experts and model.experts.latent:
        narrow = rows * model.experts.latent * act
        items += _reduced("latent experts' output", narrow, pick(apart, 0, latents), plan, "feed-forward", "output")
    items += _state_norms(model, plan, rows)
    items.append(tp_item("logits", "all-gather", logits, 1, plan, "head"))
    items += _stages(payload, plan, engine, model)
    items += _served_experts(model, plan, rows, engine, backend, num_moe)
    return items + tower_items(model, plan, work)


def _replaces_all_reduce(model: Model, plan: Plan, engine: Engine, backend: str) -> Number:
    wide = np.asarray(plan.ep) > plan.tp
    return wide & (
        tokens_split(model, plan, engine) | (backend != AG_RS) | (np.asarray(plan.tp) == 1) | (not engine.sends.ep_is_tp_dp)
    )


def _expert_sums(model: Model, engine: Engine) -> tuple[int, int]:
    """Sums of layers with experts over tp: of the hidden width, and of experts' latent.

    Shared and routed experts are added before one sum, unless each has a norm of its own. A latent is summed before the norm
    in it, or where the engine does so; then shared experts have a sum of their own.
    """
    wide = latent = 0
    for f in (f for i in model.layers if isinstance(f := model.blocks[i].ffn, Experts)):
        early = bool(f.latent) and (f.latent_norm or engine.sends.latent_reduced)
        latent += early
        wide += (f.shared_intermediate > 0) + (not early) if early or (f.shared_apart and f.shared_intermediate) else 1
    return wide, latent


def _state_norms(model: Model, plan: Plan, rows: Number) -> list[Item]:
    """State-space layers of one group norm over all of their heads, of which each rank has some."""
    mixers = [m for i in model.layers if isinstance(m := model.blocks[i].mixer, Mamba2)]
    if not mixers:
        return []
    one, note = sum(m.num_groups == 1 for m in mixers), "sums of squares over all heads, fp32"
    return [tp_item("state-space norm", "all-reduce", rows * SUM_BYTES, one, plan, "projections", note=note)]


def tp_item(
    what: str, op: str, nbytes: Number, count: Number, plan: Plan, part: Part, stage: Stage = "", place: Place = "", note: str = ""
) -> Item:
    """A collective among the tensor-parallel ranks; one rank issues none. Products can be cut beside gathers and scatters."""
    sent = pick(np.asarray(plan.tp) > 1, count, 0)
    window: Window = "products" if op in ("all-gather", "reduce-scatter") else ""
    return Item(what, "tp", op, nbytes, plan.tp, sent, note, part=part, place=place, stage=stage, overlaps_with=window)


def _reduced(what: str, payload: Number, count: Number, plan: Plan, part: Part, place: Place) -> list[Item]:
    """A row-parallel output: one all-reduce, or reduce-scatter and all-gather with sequence parallelism."""
    ops = ("reduce-scatter", "all-gather") if plan.sequence_parallel else ("all-reduce",)
    return [tp_item(what, op, payload, count, plan, part, place=place) for op in ops]


def _stages(payload: Number, plan: Plan, engine: Engine, model: Model) -> list[Item]:
    """Hand-offs between stages. Where each tp rank sends its 1/tp, the receivers gather the rest among themselves.

    Hyper-connections hand all of their streams on, and no residual beside them; attention residuals every block's so far.
    """
    payload = payload * handed_on(model, plan.pp)
    alone = model.hyper or model.lookback or not model.residual_stream
    cuts = (plan.pp - 1) * (1 if alone else engine.sends.pp_tensors)
    scattered = engine.sends.pp_scatter & (np.asarray(plan.tp) > 1)
    sent = payload / pick(scattered, plan.tp, 1)
    return [
        Item("stage hand-off", "pp", "send-recv", sent, plan.pp * 0 + 2, cuts, part="stages"),
        tp_item("stage hand-off", "all-gather", payload, pick(scattered, cuts, 0), plan, "stages"),
    ]


def _gathered(axis: str, group: Number, count: Number, token: Number, routing: Number, back: Number) -> list[Item]:
    """Every token to every rank of the group, and its parts back; bytes are of one rank's tokens."""
    return [
        exchanged("dispatch", axis, "all-gather", token * group, group, count, "every token to every rank"),
        exchanged("routing ids", axis, "all-gather", routing * group, group, count, "ids int32, weights fp32"),
        exchanged("combine", axis, "reduce-scatter", back * group, group, count),
    ]


EXCHANGES: Mapping[Place, str] = MappingProxyType(
    {"dispatch": "expert dispatch", "routing ids": "expert routing", "combine": "expert combine", "output": "expert output"}
)
"""What is moved for experts, for people."""
ROUND_TRIP: tuple[Place, ...] = ("dispatch", "combine")


def exchanged(place: Place, axis: str, op: str, nbytes: Number, ranks: Number, count: Number, note: str = "") -> Item:
    """A collective that carries tokens to experts, or back."""
    return Item(EXCHANGES[place], axis, op, nbytes, ranks, count, note, part="experts", place=place)


def _served_experts(model: Model, plan: Plan, rows: Number, engine: Engine, backend: str, num_moe: int) -> list[Item]:
    """Experts shared among replicas. Within one replica the tp all-reduce stays and nothing is added.

    By gathering: over the whole ep group if tokens are split over tp, else over the replicas (each tp rank on its own),
    and then the tp all-reduce stays. By all-to-all: one copy a destination rank, or an expert.
    """
    moe = model.experts
    if moe is None or not np.any(over_replicas(plan, engine)):
        ops = ("all-gather", "all-gather", "reduce-scatter", "all-gather")
        return [exchanged(place, "ep", op, 0.0, 1, 0) for place, op in zip(EXCHANGES, ops, strict=True)]
    shared = over_replicas(plan, engine)
    count = pick(shared, num_moe, 0)
    split = np.asarray(tokens_split(model, plan, engine))
    sent = pick(split, np.ceil(rows / plan.tp), rows)
    width = moe.latent or model.hidden
    out = width * dispatched_bytes(plan, format_of(model, EXPERTS, quantisation(model, plan)))
    back = width * DTYPE_BYTES[plan.activations_dtype]
    again = pick(split & (np.asarray(plan.tp) > 1), count, 0)
    regather = exchanged("output", "tp", "all-gather", sent * plan.tp * back, plan.tp, again, "tokens back to every tp rank")
    if backend == AG_RS:
        group = pick(split | (np.asarray(plan.tp) == 1), np.maximum(plan.ep, plan.dp), plan.dp)
        on_ep = np.asarray(group) == plan.ep
        sets = (("ep", pick(on_ep, count, 0)), ("dp", pick(on_ep, 0, count)))  # an array may hold plans of both kinds
        sizes = sent * out, sent * moe.top_k * ROUTING_BYTES, sent * back
        return [x for axis, n in sets if np.any(n) for x in _gathered(axis, group, n, *sizes)] + [regather]
    copies = moe.top_k if backend == DEEPEP_LL else expected_destinations(moe, plan.ep)
    routed = None if backend == DEEPEP_LL else moe
    note = "one copy an expert" if backend == DEEPEP_LL else "one copy a destination rank, uniform routing"
    there = exchanged("dispatch", "ep", "all-to-all", sent * copies * out, plan.ep, count, note)
    home = exchanged("combine", "ep", "all-to-all", sent * copies * back, plan.ep, count, "bf16 back")
    return [replace(there, routed=routed), replace(home, routed=routed), regather]


def dispatched_bytes(plan: Plan, quant: Quant | None) -> float:
    """Bytes of one activation element on its way to an expert: quantised first where the experts' arithmetic is."""
    if quant is None or quant.weight_only:
        return DTYPE_BYTES[plan.activations_dtype]
    kind = quant.activations or quant.dtype
    if kind == "fp8":
        return 1 + 4 / FP8_SCALE_GROUP
    if kind == "nvfp4":
        return 0.5 + 1 / NVFP4_SCALE_GROUP
    return DTYPE_BYTES[plan.activations_dtype]


def expected_destinations(moe: Experts, ep: Number) -> Number:
    """Mean number of different ranks that a token's ``top_k`` experts lie on, routing uniform: ep (1 - C(E-E/ep, k)/C(E, k)).

    >>> round(float(expected_destinations(Experts(256, 8, 2048), 8)), 2)
    5.29
    """
    others = moe.num_experts - moe.num_experts / ep
    missed: Number = 1.0
    for drawn in range(moe.top_k):
        missed = missed * np.maximum(0, others - drawn) / (moe.num_experts - drawn)
    return ep * (1 - missed)


def training(model: Model, plan: Plan, step: TrainStep, engine: Engine) -> list[Item]:
    """All collectives of one optimiser step under tp, sequence parallel, pp, dp/ZeRO, ep and cp."""
    rows = step.micro_batch * step.seq / plan.cp
    payload = rows * model.hidden * DTYPE_BYTES[plan.activations_dtype]
    layers = fullest_layers(model, plan)
    items = _tensor_parallel(model, plan, rows, payload, layers, engine)
    items += _pipeline(plan, payload, engine)
    items += _context(model, plan, rows, layers, engine)
    items += _trained_experts(model, plan, rows)
    items += _data_parallel(model, plan, layers, engine)
    items += _tied_and_norms(model, plan, engine, layers)
    if SCHEDULES[plan.schedule].directions > 1:
        items.append(_mirrored(model, plan, engine))
    return items


def _passes(plan: Plan) -> int:
    """Forward passes of a layer in one step: full recomputation runs a second one."""
    return 2 if plan.recompute == "full" else 1


def _halves(model: Model) -> float:
    """Sites of a mean layer that tensor parallelism reduces: two, where every layer mixes and widens."""
    return (model.num_mixers + model.num_feed_forwards) / model.num_layers


def _tensor_parallel(model: Model, plan: Plan, rows: Number, payload: Number, layers: Number, engine: Engine) -> list[Item]:
    """Two sites a layer (attention, feed-forward), each reduced once forward and once backward, again if recomputed; the ends.

    With sequence parallelism a site is all-gather + reduce-scatter. Backward gathers the gradient of the row-parallel
    output, and Megatron, which keeps only its share of it, the column-parallel input again for the weight gradient.
    Experts work on tokens that are gathered after the dispatch: each of top_k copies, and nothing is gathered again.
    """
    m, forward = plan.microbatches, _passes(plan)
    moe, mixed = model.experts or Experts(1, 1, 1), num_moe_layers(model, plan)
    sites = (_halves(model) * layers - mixed + (mixed if moe.shared_intermediate else 0)) * m
    each, note = mixed * m, "vocab-parallel cross-entropy: max, target, sum"
    loss = tp_item("loss", "all-reduce", rows * 4, 3 * m, plan, "loss", note=note)
    if not plan.sequence_parallel:
        return [
            tp_item("layers forward", "all-reduce", payload, (sites + each) * forward, plan, "layers", "forward"),
            tp_item("layers backward", "all-reduce", payload, sites + each, plan, "layers", "backward"),
            tp_item("embedding", "all-reduce", payload, m, plan, "embedding", "forward"),
            tp_item("head backward", "all-reduce", payload, m, plan, "head", "backward"),
            loss,
        ]
    routed, passes = payload * pick(np.asarray(plan.ep) > 1, moe.top_k, 1), each * (forward + 1)
    again, note = (2, "output gradients, and inputs again") if engine.trains.regathers_inputs else (1, "output gradients")
    small = 0.5 if engine.trains.fp8_gathers and plan.weights_dtype == "fp8" else 1.0
    return [
        tp_item("layers forward", "all-gather", payload * small, sites * forward, plan, "layers", "forward"),
        tp_item("layers forward", "reduce-scatter", payload, sites * forward, plan, "layers", "forward"),
        tp_item("layers backward", "all-gather", payload * small, again * sites, plan, "layers", "backward", note=note),
        tp_item("layers backward", "reduce-scatter", payload, sites, plan, "layers", "backward"),
        tp_item("expert tokens", "all-gather", routed, passes, plan, "experts", note="forward, and gradients backward"),
        tp_item("expert tokens", "reduce-scatter", routed, passes, plan, "experts"),
        tp_item("embedding", "reduce-scatter", payload, m, plan, "embedding", "forward"),
        tp_item("embedding backward", "all-gather", payload, m, plan, "embedding", "backward"),
        tp_item("head", "all-gather", payload, 2 * m, plan, "head", note="forward, and again for the weight gradient"),
        tp_item("head backward", "reduce-scatter", payload, m, plan, "head", "backward"),
        loss,
    ]


def _pipeline(plan: Plan, payload: Number, engine: Engine) -> list[Item]:
    """A middle stage sends each microbatch's activation on and its gradient back, once for each of its chunks."""
    sent = payload / (plan.tp if plan.sequence_parallel or engine.sends.pp_scatter else 1)
    count = pick(np.asarray(plan.pp) > 1, plan.microbatches * passes_of(plan), 0)
    regathered = 2 * count if engine.sends.pp_scatter and not plan.sequence_parallel else 0
    on = Item("activations on", "pp", "send-recv", sent, plan.pp * 0 + 2, count, part="stages", overlaps_with="every forward")
    inputs = tp_item("stage inputs", "all-gather", payload, regathered, plan, "stages")
    return [on, replace(on, what="gradients back", stage="backward"), replace(inputs, overlaps_with="")]


def _context(model: Model, plan: Plan, rows: Number, layers: Number, engine: Engine) -> list[Item]:
    """Keys and values go round the cp ring (Megatron) or are gathered (torch); their gradients follow round the ring.

    Megatron's first step needs no gradients and its last no keys, so both make cp - 1 hops; torch rotates fp32
    gradients cp times.
    """
    a = model.attention
    width = (a.num_heads if a.latent else a.num_kv_heads) * (a.head_dim + a.v_head_dim)
    heads = plan.tp if a.latent else np.minimum(plan.tp, a.num_kv_heads)
    chunk = rows * width / heads * DTYPE_BYTES[plan.activations_dtype]
    each = pick(np.asarray(plan.cp) > 1, layers * plan.microbatches, 0)
    hops, passes = plan.cp - 1, _passes(plan) + 1
    two = plan.cp * 0 + 2
    if engine.trains.context_parallel == "ring":
        values = Item("keys and values", "cp", "send-recv", chunk, two, each * hops * passes)
        grads = Item("their gradients", "cp", "send-recv", chunk, two, each * hops)
    else:
        values = Item("keys and values", "cp", "all-gather", chunk * plan.cp, plan.cp, each * passes)
        grads = Item("their gradients", "cp", "send-recv", 2 * chunk, two, each * plan.cp, "fp32, round the ring")
    return [
        replace(values, part="attention", place="key", overlaps_with="attention"),
        replace(grads, part="attention", stage="backward", overlaps_with="attention"),
    ]


def _tied_and_norms(model: Model, plan: Plan, engine: Engine, layers: Number) -> list[Item]:
    """Gradients that are summed beside data parallelism: a tied table's two copies, norms under sequence parallelism."""
    grads = DTYPE_BYTES[plan.grads_dtype]
    table = model.vocab * model.hidden * share("vocab", model, plan, engine) * grads
    apart = SCHEDULES[plan.schedule].directions == 1  # else the first rank has the last stage too
    twice = pick((np.asarray(plan.pp) > 1) & (model.tied and apart), 1, 0)
    norms = sum(t.size * model.layers.count(t.where) for t in inventory(model) if t.part == "norm" and t.where >= 0)
    per_stage = norms * layers / model.num_layers * grads
    tied = Item("tied embedding gradients", "pp", "all-reduce", table, plan.pp * 0 + 2, twice, "first and last stage")
    return [
        replace(tied, part="embedding", stage="once", overlaps_with="every forward"),
        tp_item("norm gradients", "all-reduce", per_stage, 1 if plan.sequence_parallel else 0, plan, "norms", "once"),
    ]


def _mirrored(model: Model, plan: Plan, engine: Engine) -> Item:
    """Rank i and rank p - 1 - i hold the same two stages: they sum what data parallelism left each of them of the gradients."""
    nbytes = updated_params(model, plan, engine) * DTYPE_BYTES[plan.grads_dtype]
    count = pick(np.asarray(plan.pp) > 1, 1, 0)
    both = Item("mirrored stage gradients", "pp", "all-reduce", nbytes, plan.pp * 0 + 2, count, "the other direction's stages")
    return replace(both, part="stages", stage="once")


def updated_params(model: Model, plan: Plan, engine: Engine) -> Number:
    """Parameters whose state one rank updates: its share where the optimiser is sharded."""
    params = stage_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine) if plan.zero else (1, 1)
    return (params["layers"] + params["ends"]) / ranks + params["experts"] / same_experts


def _trained_experts(model: Model, plan: Plan, rows: Number) -> list[Item]:
    """Dispatch and combine, forward and backward: each rank puts in rows x top_k copies (capacity unlimited)."""
    moe = model.experts or Experts(1, 1, 1)
    each = pick(np.asarray(plan.ep) > 1, num_moe_layers(model, plan) * plan.microbatches, 0)
    local = rows / (plan.tp if plan.sequence_parallel else 1)
    nbytes = local * moe.top_k * model.hidden * DTYPE_BYTES[plan.activations_dtype]
    both = [exchanged(place, "ep", "all-to-all", nbytes, plan.ep, each * (_passes(plan) + 1)) for place in ROUND_TRIP]
    return [replace(item, overlaps_with="experts") for item in both]


def _data_parallel(model: Model, plan: Plan, layers: Number, engine: Engine) -> list[Item]:
    """Gradients (and, sharded, parameters). Experts under ep are reduced among the ranks that hold the same ones."""
    params = stage_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine)
    mixed = num_moe_layers(model, plan)
    if plan.zero < 3:
        dense = _replicated(plan, params["layers"] + params["ends"], ranks, "", engine)
        return [*dense, *_replicated(plan, params["experts"], same_experts, "experts", engine)]
    # With a pipeline parameters stay gathered from the first forward to the last backward, and gradients are summed once.
    gathers = pick(np.asarray(plan.pp) > 1, 1, 2)
    head = 0 if model.tied else share("vocab", model, plan, engine) * model.vocab * model.hidden
    last = pick(np.asarray(plan.pp) == 1, head + model.hidden * model.final_norm, 0)
    return [
        *_sharded(plan, params["layers"] / layers, ranks, layers, "", gathers),
        *_sharded(plan, params["experts"] / np.maximum(1, mixed), same_experts, mixed, "experts", gathers),
        *_sharded(plan, params["ends"] - last, ranks, 1, "embedding", gathers),
        *_sharded(plan, last, ranks, 1, "head", 1),
        _copies(plan, updated_params(model, plan, engine), layers),
    ]


def _rounds(plan: Plan) -> Number:
    """How often a step gathers and sums under ZeRO 2 and 3: every microbatch, with a pipeline once."""
    return pick(np.asarray(plan.pp) > 1, 1, plan.microbatches)


def _copies(plan: Plan, shard: Number, units: Number) -> Item:
    """HSDP: groups of ranks hold a whole copy each; after each scatter the shards are summed over the groups, unit by unit."""
    groups = plan.dp / plan.num_shards
    nbytes = shard * DTYPE_BYTES[plan.grads_dtype] / units
    count = pick(np.asarray(groups) > 1, units * _rounds(plan), 0)
    return _summed("gradient shards", "replica", "all-reduce", nbytes, groups, count)


def _summed(what: str, axis: str, op: str, nbytes: Number, ranks: Number, count: Number, part: Part = "", note: str = "") -> Item:
    """Gradients over ranks that hold the same parameters."""
    return Item(what, axis, op, nbytes, ranks, count, note, part=part, stage="backward", overlaps_with="backward")


def _replicated(plan: Plan, params: Number, ranks: Number, part: Part, engine: Engine) -> list[Item]:
    """ZeRO 0: one all-reduce. ZeRO 1 and 2: reduce-scatter, then the updated parameters are gathered.

    FSDP without resharding after forward, its ZeRO 2, gathers before every microbatch; with a pipeline, as under ZeRO 3, once.
    """
    on = (np.asarray(ranks) > 1) & (np.asarray(params) > 0)
    axis, whose = ("edp", "expert ") if part == "experts" else ("dp", "")
    grads = params * DTYPE_BYTES[plan.grads_dtype]
    if plan.zero == 0:
        return [_summed(f"{whose}gradients", axis, "all-reduce", grads, ranks, pick(on, 1, 0), part, "once a step")]
    times = _rounds(plan) if plan.zero == 2 else 1
    values = params * DTYPE_BYTES[plan.activations_dtype]
    each = plan.zero == 2 and engine.trains.master_is_parameter
    gathered = Item(f"{whose}parameters", axis, "all-gather", values, ranks, pick(on, times if each else 1, 0), part=part)
    if each:
        gathered = replace(gathered, note="before forward", stage="forward", overlaps_with="forward")
    else:
        gathered = replace(gathered, note="after the update", stage="update", overlaps_with="next forward")
    return [_summed(f"{whose}gradients", axis, "reduce-scatter", grads, ranks, pick(on, times, 0), part), gathered]


def _sharded(plan: Plan, params: Number, ranks: Number, units: Number, part: Part, gathers: Number) -> list[Item]:
    """ZeRO 3 / FSDP: a unit's parameters are gathered for forward and again for backward, its gradients scattered.

    The last unit (head and final norm) stays gathered in between.
    """
    on = (np.asarray(ranks) > 1) & (np.asarray(params) > 0)
    axis = "edp" if part == "experts" else "shard"
    whose = {"": "layer", "experts": "expert"}.get(part, part)
    count = pick(on, units * _rounds(plan), 0)
    values, grads = params * DTYPE_BYTES[plan.activations_dtype], params * DTYPE_BYTES[plan.grads_dtype]
    gathered = Item(f"{whose} parameters", axis, "all-gather", values, ranks, count * gathers, part=part)
    scattered = _summed(f"{whose} gradients", axis, "reduce-scatter", grads, ranks, count, part)
    return [replace(gathered, overlaps_with="both passes"), scattered]
