"""What one optimiser step sends: every collective with exact bytes and counts.

Counts are of one rank of the fullest stage that issues the line (the first for the embedding, the last for the head). The set
of lines is fixed: a collective that a plan does not issue has count 0. Scalars (loss, gradient norm) are left out.
"""

import numpy as np

from commtax.arrays import pick
from commtax.cost.adapters import trained_params
from commtax.cost.inventory import inventory
from commtax.cost.placement import holders
from commtax.cost.schedules import SCHEDULES, passes_of
from commtax.cost.tensors import ROWWISE, fullest_layers, num_moe_layers, share, stage_params
from commtax.cost.traffic import ONCE, ROUND_TRIP, exchange_item, expected_destinations, tp_item
from commtax.ledger import Item, Part, Window
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan, TrainStep

INPUTS: Window = "column input gradients"
WEIGHTS: Window = "column weight gradients"


def training_items(model: Model, plan: Plan, step: TrainStep, engine: Engine, ep_backend: str = "") -> list[Item]:
    """All collectives of one optimiser step under tp, sequence parallel, pp, dp/ZeRO, ep and cp."""
    rows = step.micro_batch * step.seq / plan.cp
    payload = rows * model.hidden * DTYPE_BYTES[plan.activations_dtype]
    layers = fullest_layers(model, plan)
    items = _tensor_parallel(model, plan, rows, payload, layers, engine)
    items += _pipeline(plan, payload, engine)
    items += _context(model, plan, rows, layers, engine)
    items += _trained_experts(model, plan, rows, engine, ep_backend or next(iter(engine.sends.ep_backends), ""))
    items += _data_parallel(model, plan, layers, engine)
    grads = 0.0 if plan.lora_rank else DTYPE_BYTES[plan.grads_dtype]
    table = model.vocab * model.hidden * share("vocab", model, plan, engine) * grads
    apart = SCHEDULES[plan.schedule].directions == 1  # else the first rank has the last stage too
    own = 0 if plan.lora_rank else 1
    twice = pick((np.asarray(plan.pp) > 1) & (model.tied and apart), own, 0)
    norms = sum(t.size * model.layers.count(t.where) for t in inventory(model) if t.part == "norm" and t.where >= 0)
    per_stage = norms * layers / model.num_layers * grads
    tied = Item("tied embedding gradients", "pp", "all-reduce", table, plan.pp * 0 + 2, twice, "first and last stage")
    items += [
        replace(tied, part="embedding", stage="once", overlaps_with="every forward"),
        tp_item("norm gradients", "all-reduce", per_stage, own if plan.sequence_parallel else 0, plan, "norms", "once"),
    ]
    if SCHEDULES[plan.schedule].directions > 1:
        # Rank i and rank p - 1 - i hold the same two stages: they sum what data parallelism left each of them of the gradients.
        nbytes, count = updated_params(model, plan, engine) * DTYPE_BYTES[plan.grads_dtype], pick(np.asarray(plan.pp) > 1, 1, 0)
        both = Item("mirrored stage gradients", "pp", "all-reduce", nbytes, plan.pp * 0 + 2, count, "the other direction's stages")
        items.append(replace(both, part="stages", stage="once"))
    return items


def _passes(plan: Plan) -> int:
    """Forward passes of a layer in one step: full recomputation runs a second one."""
    return 2 if plan.recompute == "full" else 1


def _tensor_parallel(model: Model, plan: Plan, rows: Number, payload: Number, layers: Number, engine: Engine) -> list[Item]:
    """Two sites a layer (attention, feed-forward), each reduced once forward and once backward, again if recomputed; the ends.

    torch's selective recomputation keeps what was scattered and gathers again; its full one needs no second sum of the layer's end.

    With sequence parallelism a site is all-gather + reduce-scatter. Backward gathers the gradient of the row-parallel
    output, and Megatron, which keeps only its share of it, the column-parallel input again for the weight gradient.
    Experts work on tokens that are gathered after the dispatch: each of top_k copies, and nothing is gathered again.

    Where an engine launches them so, the sum of an input's gradient runs beside the weight gradient of the columns that it went
    into, and the second gather of that input beside its gradient (Korthikanti et al. 2022, section 4.2.2).
    """
    m, forward = plan.microbatches, _passes(plan)
    moe, mixed = model.experts or Experts(1, 1, 1), num_moe_layers(model, plan)
    halves = (model.num_mixers + model.num_feed_forwards) / model.num_layers  # of a mean layer
    sites = (halves * layers - mixed + (mixed if moe.shared_intermediate else 0)) * m
    each, note = mixed * m, "vocab-parallel cross-entropy: max, target, sum"
    loss = tp_item("loss", "all-reduce", rows * 4, 3 * m, plan, "loss", note=note)
    if not plan.sequence_parallel:
        return [
            tp_item("layers forward", "all-reduce", payload, (sites + each) * forward, plan, "layers", "forward"),
            _beside(tp_item("layers backward", "all-reduce", payload, sites, plan, "layers", "backward"), WEIGHTS, engine),
            tp_item("experts backward", "all-reduce", payload, each, plan, "experts", "backward"),
            tp_item("embedding", "all-reduce", payload, m, plan, "embedding", "forward"),
            tp_item("head backward", "all-reduce", payload, m, plan, "head", "backward"),
            loss,
        ]
    kept = engine.trains.selective == "matmuls" and plan.recompute == "selective"
    gathers, scatters = 2 if kept else forward, forward - 0.5 * (forward > 1 and engine.trains.recompute_stops)
    routed, passes = payload * pick(np.asarray(plan.ep) > 1, moe.top_k, 1), each * (forward + 1)
    passes = 0 * passes if engine.sends.experts_whole else passes
    again = sites if engine.trains.regathers_inputs else 0 * sites
    narrow = DTYPE_BYTES[plan.weights_dtype or plan.activations_dtype] / DTYPE_BYTES[plan.activations_dtype]
    small = min(1.0, narrow) if engine.trains.narrow_gathers and plan.weights_dtype != ROWWISE else 1.0
    return [
        tp_item("layers forward", "all-gather", payload * small, sites * gathers, plan, "layers", "forward"),
        tp_item("layers forward", "reduce-scatter", payload, sites * scatters, plan, "layers", "forward"),
        tp_item("layers backward", "all-gather", payload * small, sites, plan, "layers", "backward", note="output gradients"),
        _beside(tp_item("inputs again", "all-gather", payload * small, again, plan, "layers", "backward"), INPUTS, engine),
        _beside(tp_item("layers backward", "reduce-scatter", payload, sites, plan, "layers", "backward"), WEIGHTS, engine),
        tp_item("expert tokens", "all-gather", routed, passes, plan, "experts", note="forward, and gradients backward"),
        tp_item("expert tokens", "reduce-scatter", routed, passes, plan, "experts"),
        tp_item("embedding", "reduce-scatter", payload, m, plan, "embedding", "forward"),
        tp_item("embedding backward", "all-gather", payload, m, plan, "embedding", "backward"),
        tp_item("head", "all-gather", payload, 2 * m, plan, "head", note="forward, and again for the weight gradient"),
        tp_item("head backward", "reduce-scatter", payload, m, plan, "head", "backward"),
        loss,
    ]


def _beside(item: Item, window: Window, engine: Engine) -> Item:
    """A collective of backward with its window, where the engine launches it there."""
    return replace(item, overlaps_with=window) if engine.overlaps.column_gradients else item


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

    torchtitan repeats keys and values for every query head before attention, so all of those travel.

    Megatron's first step needs no gradients and its last no keys, so both make cp - 1 hops; torch rotates fp32
    gradients cp times.
    """
    a = model.attention
    every = bool(a.latent) or engine.trains.repeats_keys
    width = (a.num_heads if every else a.num_kv_heads) * (a.head_dim + a.v_head_dim)
    split = plan.tp if every else np.minimum(plan.tp, a.num_kv_heads)
    chunk = rows * width / split * DTYPE_BYTES[plan.activations_dtype]
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


def updated_params(model: Model, plan: Plan, engine: Engine) -> Number:
    """Parameters whose state one rank updates: its share where the optimiser is sharded."""
    params = trained_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine) if plan.zero else (1, 1)
    return (params["layers"] + params["ends"]) / ranks + params["experts"] / same_experts


def _trained_experts(model: Model, plan: Plan, rows: Number, engine: Engine, backend: str) -> list[Item]:
    """Dispatch and combine, forward and backward: each rank puts in rows x top_k copies (capacity unlimited). DeepEP and its like
    send a token once to each rank that has experts for it, and through the NICs once to each host."""
    moe = replace(model.experts or Experts(1, 1, 1), groups=1, top_groups=1)  # frameworks say how many hosts a token goes to
    each = pick(np.asarray(plan.ep) > 1, num_moe_layers(model, plan) * plan.microbatches, 0)
    local = rows / (plan.tp if plan.sequence_parallel else 1)
    once = backend in ONCE
    copies = expected_destinations(moe, plan.ep) if once else moe.top_k
    nbytes = local * copies * (moe.latent or model.hidden) * DTYPE_BYTES[plan.activations_dtype]
    passes = _passes(plan) + 1 + ("moe" in plan.remade)
    both = [exchange_item(place, "ep", "all-to-all", nbytes, plan.ep, each * passes) for place in ROUND_TRIP]
    routed, most = moe if once else None, engine.sends.hosts_a_token
    return [replace(item, overlaps_with="layers", routed=routed, most_hosts=most) for item in both]


def _data_parallel(model: Model, plan: Plan, layers: Number, engine: Engine) -> list[Item]:
    """Gradients (and, sharded, parameters). Experts under ep are reduced among the ranks that hold the same ones. Where all but
    adapters is frozen, they alone have gradients and are updated; ZeRO 3 gathers the frozen layers all the same."""
    params, trained = stage_params(model, plan, engine), trained_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine)
    mixed = num_moe_layers(model, plan)
    if plan.zero < 3:
        dense = _replicated_items(plan, trained["layers"] + trained["ends"], ranks, "", engine)
        return [*dense, *_replicated_items(plan, trained["experts"], same_experts, "experts", engine)]
    # With a pipeline parameters stay gathered from the first forward to the last backward, and gradients are summed once.
    gathers = pick(np.asarray(plan.pp) > 1, 1, 2)
    head = 0 if model.tied else share("vocab", model, plan, engine) * model.vocab * model.hidden
    last = pick(np.asarray(plan.pp) == 1, head + model.hidden * model.final_norm, 0)
    every = 0 if plan.lora_rank else 1  # embedding and head have no adapters

    def unit(name: str, count: Number) -> tuple[Number, Number]:
        return params[name] / count, trained[name] / count

    return [
        *_sharded_items(plan, unit("layers", layers), ranks, layers, "", gathers),
        *_sharded_items(plan, unit("experts", np.maximum(1, mixed)), same_experts, mixed, "experts", gathers),
        *_sharded_items(plan, (params["ends"] - last, every * (params["ends"] - last)), ranks, 1, "embedding", gathers),
        *_sharded_items(plan, (last, every * last), ranks, 1, "head", 1),
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
    return _gradient_sum("gradient shards", "replica", "all-reduce", nbytes, groups, count)


def _gradient_sum(
    what: str, axis: str, op: str, nbytes: Number, ranks: Number, count: Number, part: Part = "", note: str = ""
) -> Item:
    """Gradients over ranks that hold the same parameters."""
    return Item(what, axis, op, nbytes, ranks, count, note, part=part, stage="backward", overlaps_with="backward")


def _replicated_items(plan: Plan, params: Number, ranks: Number, part: Part, engine: Engine) -> list[Item]:
    """ZeRO 0: one all-reduce. ZeRO 1 and 2: reduce-scatter, then the updated parameters are gathered. FSDP without resharding after
    forward, its ZeRO 2, gathers before every microbatch; with a pipeline, as under ZeRO 3, once."""
    on = (np.asarray(ranks) > 1) & (np.asarray(params) > 0)
    axis, whose = ("edp", "expert ") if part == "experts" else ("dp", "")
    grads = params * DTYPE_BYTES[plan.grads_dtype]
    if plan.zero == 0:
        return [_gradient_sum(f"{whose}gradients", axis, "all-reduce", grads, ranks, pick(on, 1, 0), part, "once a step")]
    times = _rounds(plan) if plan.zero == 2 else 1
    values = params * DTYPE_BYTES[plan.activations_dtype]
    each = plan.zero == 2 and engine.trains.master_is_parameter
    gathered = Item(f"{whose}parameters", axis, "all-gather", values, ranks, pick(on, times if each else 1, 0), part=part)
    if each:
        gathered = replace(gathered, note="before forward", stage="forward", overlaps_with="forward")
    else:
        gathered = replace(gathered, note="after the update", stage="update", overlaps_with="next forward")
    return [_gradient_sum(f"{whose}gradients", axis, "reduce-scatter", grads, ranks, pick(on, times, 0), part), gathered]


def _sharded_items(
    plan: Plan, held: tuple[Number, Number], ranks: Number, units: Number, part: Part, gathers: Number
) -> list[Item]:
    """ZeRO 3 / FSDP: a unit's parameters are gathered for forward and again for backward, its gradients scattered. ``held``:
    parameters of a unit, and those of it that are trained. The last unit (head and final norm) stays gathered in between."""
    params, trained = held
    on, has = ((np.asarray(ranks) > 1) & (np.asarray(some) > 0) for some in held)
    axis = "edp" if part == "experts" else "shard"
    whose = {"": "layer", "experts": "expert"}.get(part, part)
    count = pick(on, units * _rounds(plan), 0)
    values, grads = params * DTYPE_BYTES[plan.activations_dtype], trained * DTYPE_BYTES[plan.grads_dtype]
    gathered = Item(f"{whose} parameters", axis, "all-gather", values, ranks, count * gathers, part=part)
    scattered = _gradient_sum(f"{whose} gradients", axis, "reduce-scatter", grads, ranks, pick(has, count, 0), part)
    return [replace(gathered, overlaps_with="both passes"), scattered]
