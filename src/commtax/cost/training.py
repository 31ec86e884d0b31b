"""The bill of one training step: compute, recomputation, the bubble, and every collective with what its window hides.

step = m (forward + backward + recomputation + exposed communication of a microbatch) + bubble + what is exposed once a
step (gradients, parameters) + the update.

Counts are of one rank of the fullest stage that issues the line (the first for the embedding, the last for the head). The set of
lines is fixed: a collective that a plan does not issue has count 0. Scalars (loss, gradient norm) are left out.
"""

from functools import lru_cache, reduce

import numpy as np

from commtax.arrays import pick
from commtax.cost import train_kernels
from commtax.cost.adapters import trained_params
from commtax.cost.inventory import ROWWISE, by_pp, fullest_layers, inventory, num_moe_layers, share, stage_layers, stage_params
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.kernels import Factor, KernelFactors, applied_s, kernel_line, power_clock, widen_sigma
from commtax.cost.placement import holders
from commtax.cost.pricing import Pricer, comm_lines
from commtax.cost.schedules import SCHEDULES, fill_factor, idle_s, passes_of
from commtax.cost.traffic import ROUND_TRIP, backend_called, default_backend, exchange_item, expected_destinations, tp_item
from commtax.ledger import Bill, Item, Line, Part, Stage, Window, Windows
from commtax.question import WhatIf
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan, TrainStep
from commtax.statement import Source

MOST_MOVED = 4  # layers that each stage takes of the last one's at most, where a layout makes room for the head
BETWEEN = ("dp", "pp")  # axes whose collectives run between microbatches and between stages, not inside layers
COLUMNS = ("qkv", "gate", "up")  # products whose inputs every tensor-parallel rank has whole
INPUTS: Window = "column input gradients"
WEIGHTS: Window = "column weight gradients"
GRADIENTS = (INPUTS, WEIGHTS)
_Passes = tuple[Number, Number, Number]
"""Seconds of one microbatch in the layers of the fullest stage: forward, input gradients with recomputation, and weights'."""


def training_bill(t: PricingTerms, step: TrainStep, tokens: Number) -> Bill:
    """Price one optimiser step of one rank of the stage that sets the pace."""
    layers, ends, head_share = _compute(t, step)
    items = [_launched_item(i, t, head_share) for i in training_items(t.model, t.plan, step, t.engine, t.settings.ep_backend)]
    comm = comm_lines(items, Pricer(t), (scales(i, t.settings, t.engine) for i in items))
    m = t.plan.microbatches
    each = _seconds(layers, m, "forward"), _seconds(layers, m, "backward", "recompute"), _seconds(layers, m, "weight-gradient")
    free = _windows(layers, ends, each, t)
    comm = [free.hide(x, _coverable(x.item, t.settings, t.engine, t.plan)) if x.item.is_sent else x for x in comm]
    lines = (*layers, *ends, _bubble(comm, each, t.model, t.plan), *_host(layers, comm, t), *comm)
    # Adapters alone were fitted on nowhere: their steps spread as those of a chip that was left out.
    runs, mixed = t.engine.spread, t.model.experts is not None
    near, apart = (runs.mixture_sigma, runs.mixture_sigma_apart) if mixed else (runs.dense_sigma, runs.dense_sigma_apart)
    fitted = t.cluster.chip.key in runs.fitted_chips and not t.plan.lora_rank
    return Bill(lines, tokens, known_sigma=near if fitted else apart, measured=fitted)


def _host(layers: list[Line], comm: list[Line], t: PricingTerms) -> list[Line]:
    """List the waits for a host that launches layers of experts kernel by kernel: what exceeds the GPU's time in the layers, and at
    least ``sync_s``, while the host reads how many tokens each expert has."""
    trains, mixes, lines = t.engine.trains, t.engine.mixes, []
    if trains.step_host_s:
        lines.append(_host_line("once a step", trains.step_host_s, "step_host_s", t))
    if not t.model.experts or not (mixes.layer_host_s or mixes.expert_host_s) or t.plan.weights_dtype in mixes.graphed_experts:
        return lines
    times = num_moe_layers(t.model, t.plan) * t.plan.microbatches
    each = mixes.layer_host_s + mixes.expert_host_s * t.model.experts.num_experts / t.plan.ep
    busy_s = _total(layers) + sum((x.exposed_s for x in comm if x.item.whole_axis not in BETWEEN), start=0.0)
    return [*lines, _host_line("launches of experts", np.maximum(mixes.sync_s * times, each * times - busy_s), "layer_host_s", t)]


def _host_line(what: str, waits: Number, field: str, t: PricingTerms) -> Line:
    item = Item(what, "", "host", 0.0, 1, t.plan.microbatches * 0 + 1)
    return Line("host", item, waits, 0.0, source=Source("calibrated"), sigma=t.engine.host.sigma_host, priced_from=field)


def scales(item: Item, settings: WhatIf, engine: Engine) -> WhatIf:
    """Return the what-ifs of one collective: all links scaled, or one axis' alone, and by the engine's own way to gather."""
    slow = settings.slow_links if item.whole_axis == settings.slow_axis else 1.0
    slow *= engine.trains.gather_rate if item.whole_axis == "dp" else 1.0
    return WhatIf(latency_scale=settings.latency_scale, bandwidth_scale=settings.bandwidth_scale * slow)


def _compute(t: PricingTerms, step: TrainStep) -> tuple[list[Line], list[Line], Number]:
    """Price the kernels of the layers, of the head (as far as this stage pays for it, also returned) and of the update."""
    model, plan, m = t.model, t.plan, t.plan.microbatches
    passes = t.engine.trains.eager_passes if t.settings.eager else t.engine.trains.elementwise_passes
    depth = fullest_layers(model, plan)
    body, head = train_kernels.forward_kernels(model, plan, step, t.engine, depth, passes, t.settings.trained_imbalance)
    priced = Kernels(t)
    layers = priced.lines(body, m)
    layers += priced.lines(train_kernels.recomputed_kernels(body, model, plan, t.engine), m, "recompute")
    layers += priced.lines(train_kernels.backward(body, plan), m)
    both = [*head, *train_kernels.backward(head, plan)]
    share = _head_share(model, plan, t.engine, _total(layers) / depth, m * priced.seconds(both))
    updated = updated_params(model, plan, t.engine)
    count, nbytes = pick(np.asarray(updated) > 0, 1, 0), train_kernels.UPDATE_BYTES * updated
    update = Kernel("optimiser update", "elementwise", count, 0.0, nbytes, part="update", stage="update")
    ends = priced.lines(both, m * share) + priced.lines([update], 1)
    if t.engine.trains.accumulate_bytes:  # a pass adds a microbatch's gradients to the sum, where no product does it
        nbytes = sum(trained_params(model, plan, t.engine).values()) * t.engine.trains.accumulate_bytes
        ends += priced.lines([Kernel("gradients added up", "elementwise", 1, 0.0, nbytes, part="update", stage="backward")], m)
    return layers, ends, share


class Kernels:
    """Kernels as lines, where one that runs forward and again in backward is priced once."""

    def __init__(self, t: PricingTerms) -> None:
        self.terms, self.chip, self.constants = t, t.cluster.chip, t.constants
        self.table = table = self.constants.tables["train.bf16"]
        self.power: Factor = ("power_clock", power_clock(self.chip, table))
        # Hours of dense products draw the clock down, in each number format by its own share of single kernels' rates: from its own
        # runs, or from those whose casts are fused.
        self.clocks: dict[str, Factor] = {
            kind: ("train.share", c["share"] * table.get("fused", 1.0)) if "share" in c else ("train.clock", c["clock"])
            for kind, c in ((kind, self.constants.tables.get(f"train.{kind}")) for kind in ("bf16", *train_kernels.CAST_BYTES))
            if c
        }
        self.least = t.engine.host.launch_s if t.settings.eager else 0.0
        self.sigma = widen_sigma(table["sigma"], self.constants.label)
        self._priced: dict[tuple[object, ...], tuple[Kernel, Number, Number]] = {}

    def seconds(self, kernels: list[Kernel]) -> Number:
        return sum((k.count * sum(self._parts(k)) for k in kernels), start=0.0)

    def lines(self, kernels: list[Kernel], times: Number, stage: Stage = "") -> list[Line]:
        """Return lines of kernels that each run ``times`` as often, in another ``stage`` than their own if one is named."""
        return [kernel_line(k, k.count * times, self._parts(k), self.sigma, self.terms, stage or k.stage) for k in kernels]

    def applied(self, kernel: Kernel) -> KernelFactors:
        """Return what a training step multiplies onto a kernel, where fused attention has own kernels for either direction."""
        engine, slow_rank = self.terms.engine, self.terms.settings.slow_rank
        if kernel.form != "prefill":
            products = kernel.form == "gemm"
            clock = self.clocks.get(kernel.number_format if products else "bf16", self.clocks["bf16"])
            experts_rate = (("experts_rate", engine.kernels.experts_rate),) if products and kernel.part == "experts" else ()
            return KernelFactors((self.power, clock, *experts_rate), slow_rank=slow_rank, launch_s=self.least)
        rates = [self.power, (f"train.{engine.trains.attention}", self.table.get(engine.trains.attention, 1.0))]
        if kernel.stage == "backward":
            rates.append(("train.attention_backward", self.table["attention_backward"]))
        return KernelFactors(tuple(rates), slow_rank=slow_rank, launch_s=self.least)

    def _parts(self, kernel: Kernel) -> tuple[Number, Number]:
        key = (kernel.form, *map(id, (kernel.flops, kernel.nbytes, kernel.m, kernel.n)))
        if key not in self._priced:  # the kernel is kept so that its numbers, whose identity is the key, live on
            self._priced[key] = kernel, *applied_s(kernel, self.chip, self.constants, self.applied(kernel))
        return self._priced[key][1:]


def _total(lines: list[Line]) -> Number:
    return sum((line.total_s for line in lines), start=0.0)


def _head_share(model: Model, plan: Plan, engine: Engine, layer_s: Number, head_s: Number) -> Number:
    """Return how much of the head the pace-setting stage pays: all of it, less what the last stage saves with fewer layers, and
    an engine that is told where layers go moves more of them to the others while that pays."""
    directions = SCHEDULES[plan.schedule].directions
    head = pick(np.asarray(plan.pp) > 1, 1 / directions, 1.0)
    outer = by_pp(plan.pp, lambda pp: _outer_layers(model, pp, directions, engine.trains.balances_head))
    layer = layer_s / np.maximum(head_s, 1e-30)
    left = head - (fullest_layers(model, plan) - outer) * layer
    if engine.trains.balances_head and directions == 1:
        moved = (np.maximum(more * layer, left - more * (plan.pp - 1) * layer) for more in range(1, MOST_MOVED + 1))
        left = pick(np.asarray(plan.pp) > 1, reduce(np.minimum, moved, left), left)
    return np.clip(left, 0, 1)


@lru_cache(maxsize=1024)
def _outer_layers(model: Model, pp: int, directions: int, balanced: bool) -> float:
    """Count the layers of the last stage, or the mean of both ends where a rank has a stage of either."""
    stages = stage_layers(model, pp)
    last = max(0, model.num_layers - (pp - 1) * max(map(len, stages))) if balanced else len(stages[-1])
    return (last + len(stages[0])) / 2 if directions > 1 else last


def _launched_item(item: Item, t: PricingTerms, head_share: Number) -> Item:
    """Adapt an item as it is launched: gradients go in buckets, the busiest expert rank sends more, and a stage between the ends
    has neither embedding nor head. Where all products are cut into pieces, gathers and scatters run beside any of them."""
    plan, trains = t.plan, t.engine.trains
    if item.overlaps_with in GRADIENTS and item.op != "all-reduce" and "tp" in t.settings.beside(t.engine):
        return replace(item, overlaps_with="products")
    if item.axis == "ep":
        return replace(item, nbytes=item.nbytes * t.settings.trained_imbalance)
    if item.axis in ("dp", "edp") and plan.zero < 3 and trains.bucket_bytes:
        bucket = np.maximum(trains.bucket_bytes, trains.bucket_bytes_per_rank * plan.dp)
        pieces = np.maximum(1, np.ceil(item.nbytes / bucket))
        return replace(item, nbytes=item.nbytes / pieces, count=item.count * pieces)
    alone = not isinstance(plan.pp, np.ndarray) and plan.pp == 1
    if item.axis == "tp" and not alone and item.part in ("embedding", "head", "loss"):
        paid = 0.0 if item.part == "embedding" else head_share
        return replace(item, count=item.count * pick(np.asarray(plan.pp) > 1, paid, 1))
    return item


def _coverable(item: Item, settings: WhatIf, engine: Engine, plan: Plan) -> Number:
    """Return the share of a collective that can run beside compute: the last bucket and the first gather have nothing to run
    beside. A stage with one chunk has nothing to compute while it waits for its neighbour."""
    if item.overlaps_with in GRADIENTS:
        return float(settings.async_axes != ())
    waits = item.whole_axis == "pp" and settings.async_axes is None and plan.chunks <= 1
    if waits or item.whole_axis not in settings.beside(engine):
        return 0.0
    return 1 - 1 / np.maximum(1, item.count) if item.whole_axis == "dp" else 1.0


def _seconds(lines: list[Line], m: Number, *stages: Stage) -> Number:
    return _total([x for x in lines if x.item.stage in stages]) / m


def _columns_s(layers: list[Line], stage: Stage) -> Number:
    """Sum the seconds of one kind of gradient of products with whole inputs, without experts, which exchange their tokens."""
    products = [x for x in layers if x.item.form == "gemm" and x.item.stage == stage and x.item.part != "experts"]
    return _total([x for x in products if x.item.place in COLUMNS])


def _windows(layers: list[Line], ends: list[Line], each: _Passes, t: PricingTerms) -> Windows:
    m, plan, trains = t.plan.microbatches, t.plan, t.engine.trains
    forward = each[0] + _seconds(ends, m, "forward")
    backward = each[1] + each[2] + _seconds(ends, m, "backward", "weight-gradient")
    products = _total([x for x in layers if x.item.form == "gemm"])
    # Gradients are reduced once, beside the last backward, or after every microbatch; gathers run beside both passes.
    every = (np.asarray(plan.pp) <= 1) & (plan.zero >= 2)
    free: dict[Window, Number] = {
        "": 0.0 * products,
        "forward": pick(every, m * forward, forward),
        "backward": pick(every, m * backward, backward),
        "next forward": forward if trains.gathers_ahead else 0.0 * forward,
        "every forward": m * forward,
        "products": products,
        INPUTS: _columns_s(layers, "backward"),
        WEIGHTS: _columns_s(layers, "weight-gradient") * SCHEDULES[plan.schedule].keeps_backward_whole,
        "attention": _total([x for x in layers if x.item.part == "attention"]),
        "layers": _total(layers),
    }
    return Windows(free, trains.overlap_efficiency, sure=True)


def _bubble(comm: list[Line], times: _Passes, model: Model, plan: Plan) -> Line:
    """Return the idle time of the schedule, in which a stage takes as long as its layers and what is exposed in them."""
    layers = [x for x in comm if x.item.whole_axis not in BETWEEN]
    inside = [x for x in layers if x.item.axis != "tp" or x.item.part in ("layers", "experts")]
    exposed = sum((x.exposed_s for x in inside), start=0.0) / plan.microbatches
    forward, inputs, weights = times
    idle = idle_s(plan.schedule, plan.pp, plan.chunks, forward + exposed / 2, inputs + exposed / 2, weights)
    if plan.chunks > 1:
        idle = idle * fill_factor(model.num_layers, plan.pp, plan.chunks)
    item = Item("pipeline bubble", "pp", plan.schedule, 0.0, plan.pp, pick(np.asarray(plan.pp) > 1, 1, 0))
    return Line("bubble", item, 0.0, idle, source=Source("by definition"))


def dp_token_threshold(flops_per_s: Number, bandwidth_Bps: Number) -> Number:
    """Return the local tokens from which the gradient all-reduce hides behind backward: 4N/BW <= 4N tokens/(FLOP/s) for any N."""
    return flops_per_s / bandwidth_Bps


def tp_tax(flops_per_s: Number, bandwidth_Bps: Number, hidden: Number, tp: Number) -> Number:
    """Return forward tensor-parallel all-reduce time over compute time: (T-1)/3 x FLOP/s / (BW h).
    Per layer and token: two all-reduces of 2h bytes, each 2 (T-1)/T on the wire, against 24 h^2 / T FLOPs. Each rank
    computes 1/T of the layer but reduces the whole activation, so the tax grows with T-1."""
    return (tp - 1) / 3 * flops_per_s / (bandwidth_Bps * hidden)


def training_items(model: Model, plan: Plan, step: TrainStep, engine: Engine, ep_backend: str = "") -> list[Item]:
    """List all collectives of one optimiser step under tp, sequence parallel, pp, dp/ZeRO, ep and cp."""
    rows = step.micro_batch * step.seq / plan.cp
    payload, layers = rows * model.hidden * DTYPE_BYTES[plan.activations_dtype], fullest_layers(model, plan)
    items = _tensor_parallel(model, plan, rows, payload, layers, engine)
    # A middle stage sends each microbatch's activation on and its gradient back, once for each of its chunks.
    sent = payload / (plan.tp if plan.sequence_parallel or engine.sends.pp_scatter else 1)
    count = pick(np.asarray(plan.pp) > 1, plan.microbatches * passes_of(plan), 0)
    regathered = 2 * count if engine.sends.pp_scatter and not plan.sequence_parallel else 0
    on = Item("activations on", "pp", "send-recv", sent, plan.pp * 0 + 2, count, part="stages", overlaps_with="every forward")
    inputs = tp_item("stage inputs", "all-gather", payload, regathered, plan, "stages")
    items += [on, replace(on, what="gradients back", stage="backward"), replace(inputs, overlaps_with="")]
    items += _context(model, plan, rows, layers, engine)
    items += _trained_experts(model, plan, rows, engine, ep_backend or default_backend(engine))
    items += _data_parallel(model, plan, layers, engine)
    grads = 0.0 if plan.lora_rank else DTYPE_BYTES[plan.grads_dtype]
    table = model.vocab * model.hidden * share("vocab", model, plan, engine) * grads
    apart = SCHEDULES[plan.schedule].directions == 1  # else the first rank has the last stage too
    trains_ends = 0 if plan.lora_rank else 1
    twice = pick((np.asarray(plan.pp) > 1) & (model.tied and apart), trains_ends, 0)
    norms = sum(t.size * model.layers.count(t.where) for t in inventory(model) if t.part == "norm" and t.where >= 0)
    per_stage = norms * layers / model.num_layers * grads
    tied = Item("tied embedding gradients", "pp", "all-reduce", table, plan.pp * 0 + 2, twice, "first and last stage")
    items += [
        replace(tied, part="embedding", stage="once", overlaps_with="every forward"),
        tp_item("norm gradients", "all-reduce", per_stage, trains_ends if plan.sequence_parallel else 0, plan, "norms", "once"),
    ]
    if SCHEDULES[plan.schedule].directions > 1:
        # Rank i and rank p - 1 - i hold the same two stages: they sum what data parallelism left each of them of the gradients.
        nbytes, count = updated_params(model, plan, engine) * DTYPE_BYTES[plan.grads_dtype], pick(np.asarray(plan.pp) > 1, 1, 0)
        both = Item("mirrored stage gradients", "pp", "all-reduce", nbytes, plan.pp * 0 + 2, count, "the other direction's stages")
        items.append(replace(both, part="stages", stage="once"))
    return items


def _passes(plan: Plan) -> int:
    """Count the forward passes of a layer in one step: full recomputation runs a second one."""
    return 2 if plan.recompute == "full" else 1


def _tensor_parallel(model: Model, plan: Plan, rows: Number, payload: Number, layers: Number, engine: Engine) -> list[Item]:
    """List tensor-parallel sums: two per layer, forward, backward and when recomputed, and those of embedding, head and loss.
    With sequence parallelism a site is all-gather + reduce-scatter. Backward gathers the gradient of the row-parallel output, and
    Megatron, which keeps only its share of it, the column-parallel input again for the weight gradient (Korthikanti et al. 2022,
    section 4.2.2). torch's selective recomputation gathers again, too; its full one needs no second sum of the layer's end."""
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
    """Give a collective of backward its window, where the engine launches it there."""
    return replace(item, overlaps_with=window) if engine.overlaps.column_gradients else item


def _context(model: Model, plan: Plan, rows: Number, layers: Number, engine: Engine) -> list[Item]:
    """List the keys and values that go round the cp ring (Megatron) or are gathered (torch), and their gradients round the ring.
    Megatron's first step needs no gradients and its last no keys, so both make cp - 1 hops; torch rotates fp32 gradients cp
    times."""
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
    """Count the parameters whose state one rank updates: its share where the optimiser is sharded."""
    params = trained_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine) if plan.zero else (1, 1)
    return (params["layers"] + params["ends"]) / ranks + params["experts"] / same_experts


def _trained_experts(model: Model, plan: Plan, rows: Number, engine: Engine, backend: str) -> list[Item]:
    """List dispatch and combine, forward and backward, where each rank puts in rows x top_k copies (capacity unlimited)."""
    moe = replace(model.experts or Experts(1, 1, 1), groups=1, top_groups=1)  # frameworks say how many hosts a token goes to
    each = pick(np.asarray(plan.ep) > 1, num_moe_layers(model, plan) * plan.microbatches, 0)
    local = rows / (plan.tp if plan.sequence_parallel else 1)
    once = backend_called(backend).once
    copies = expected_destinations(moe, plan.ep) if once else moe.top_k
    nbytes = local * copies * (moe.latent or model.hidden) * DTYPE_BYTES[plan.activations_dtype]
    passes = _passes(plan) + 1 + ("moe" in plan.remade)
    both = [exchange_item(place, "ep", "all-to-all", nbytes, plan.ep, each * passes) for place in ROUND_TRIP]
    routed, most = moe if once else None, engine.sends.hosts_a_token
    return [replace(item, overlaps_with="layers", routed=routed, most_hosts=most) for item in both]


def _data_parallel(model: Model, plan: Plan, layers: Number, engine: Engine) -> list[Item]:
    """List the sums of gradients (and, sharded, parameters). Experts under ep are reduced among the ranks that hold the same ones.
    Where all but adapters is frozen, they alone have gradients and are updated; ZeRO 3 gathers the frozen layers all the same."""
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
    # HSDP groups, which hold a whole copy each, sum their shards after each scatter, unit by unit.
    some, copies = np.maximum(1, mixed), plan.dp / plan.num_shards
    shard = updated_params(model, plan, engine) * DTYPE_BYTES[plan.grads_dtype] / layers
    times = pick(np.asarray(copies) > 1, layers * _rounds(plan), 0)
    return [
        *_sharded_items(plan, (params["layers"] / layers, trained["layers"] / layers), ranks, layers, "", gathers),
        *_sharded_items(plan, (params["experts"] / some, trained["experts"] / some), same_experts, mixed, "experts", gathers),
        *_sharded_items(plan, (params["ends"] - last, every * (params["ends"] - last)), ranks, 1, "embedding", gathers),
        *_sharded_items(plan, (last, every * last), ranks, 1, "head", 1),
        _gradient_sum("gradient shards", "replica", "all-reduce", shard, copies, times),
    ]


def _rounds(plan: Plan) -> Number:
    """Return how often a step gathers and sums under ZeRO 2 and 3: every microbatch, or once with a pipeline."""
    return pick(np.asarray(plan.pp) > 1, 1, plan.microbatches)


def _gradient_sum(
    what: str, axis: str, op: str, nbytes: Number, ranks: Number, count: Number, part: Part = "", note: str = ""
) -> Item:
    return Item(what, axis, op, nbytes, ranks, count, note, part=part, stage="backward", overlaps_with="backward")


def _replicated_items(plan: Plan, params: Number, ranks: Number, part: Part, engine: Engine) -> list[Item]:
    """List the sums of ZeRO 0 (one all-reduce), or of ZeRO 1 and 2: reduce-scatter, then the updated parameters are gathered. FSDP
    without resharding after forward, its ZeRO 2, gathers before every microbatch; with a pipeline, as under ZeRO 3, once."""
    on = (np.asarray(ranks) > 1) & (np.asarray(params) > 0)
    axis, whose = ("edp", "expert ") if part == "experts" else ("dp", "")
    grads = params * DTYPE_BYTES[plan.grads_dtype]
    if plan.zero == 0:
        return [_gradient_sum(f"{whose}gradients", axis, "all-reduce", grads, ranks, pick(on, 1, 0), part, "once a step")]
    times, values = _rounds(plan) if plan.zero == 2 else 1, params * DTYPE_BYTES[plan.activations_dtype]
    each = plan.zero == 2 and engine.trains.master_is_parameter
    gathered = Item(f"{whose}parameters", axis, "all-gather", values, ranks, pick(on, times if each else 1, 0), part=part)
    if each:
        gathered = replace(gathered, note="before forward", stage="forward", overlaps_with="forward")
    else:
        gathered = replace(gathered, note="after the update", stage="update", overlaps_with="next forward")
    return [_gradient_sum(f"{whose}gradients", axis, "reduce-scatter", grads, ranks, pick(on, times, 0), part), gathered]


def _sharded_items(plan: Plan, unit: tuple[Number, Number], ranks: Number, units: Number, part: Part, often: Number) -> list[Item]:
    """List the sums of ZeRO 3 / FSDP: a unit's parameters are gathered for forward and again for backward, its gradients scattered.
    ``unit``: its parameters, and those of it that are trained. The last unit (head and final norm) stays gathered in between."""
    params, trained = unit
    on, has = ((np.asarray(ranks) > 1) & (np.asarray(some) > 0) for some in unit)
    axis = "edp" if part == "experts" else "shard"
    whose = {"": "layer", "experts": "expert"}.get(part, part)
    count = pick(on, units * _rounds(plan), 0)
    values, grads = params * DTYPE_BYTES[plan.activations_dtype], trained * DTYPE_BYTES[plan.grads_dtype]
    gathered = Item(f"{whose} parameters", axis, "all-gather", values, ranks, count * often, part=part)
    scattered = _gradient_sum(f"{whose} gradients", axis, "reduce-scatter", grads, ranks, pick(has, count, 0), part)
    return [replace(gathered, overlaps_with="both passes"), scattered]
