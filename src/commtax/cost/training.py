"""The bill of one training step: compute, recomputation, the bubble, and every collective with what its window hides.

step = m (forward + backward + recomputation + exposed communication of a microbatch) + bubble + what is exposed once a
step (gradients, parameters) + the update.
"""

from functools import lru_cache, reduce

import numpy as np

from commtax.arrays import pick
from commtax.cost import train_kernels
from commtax.cost.adapters import trained_params
from commtax.cost.forms.form import Table
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.kernels import Factor, KernelFactors, applied_s, kernel_line, power_clock, widen_sigma
from commtax.cost.pricing import Pricer, comm_lines
from commtax.cost.schedules import SCHEDULES, fill_factor, idle_s
from commtax.cost.tensors import by_pp, fullest_layers, num_moe_layers, stage_layers
from commtax.cost.train_traffic import INPUTS, WEIGHTS, training_items, updated_params
from commtax.ledger import Bill, Item, Line, Stage, Window, Windows
from commtax.question import WhatIf
from commtax.records import replace
from commtax.spec import Engine, Model, Number, Plan, TrainStep
from commtax.statement import Source

MOST_MOVED = 4  # layers that each stage takes of the last one's at most, where a layout makes room for the head
BETWEEN = ("dp", "pp")  # axes whose collectives run between microbatches and between stages, not inside layers
COLUMNS = ("qkv", "gate", "up")  # products whose inputs every tensor-parallel rank has whole
GRADIENTS = (INPUTS, WEIGHTS)


def training_bill(t: PricingTerms, step: TrainStep, tokens: Number) -> Bill:
    """Price one optimiser step of one rank of the stage that sets the pace."""
    layers, ends, head_share = _compute(t, step)
    items = [_launched_item(i, t, head_share) for i in training_items(t.model, t.plan, step, t.engine, t.settings.ep_backend)]
    comm = comm_lines(items, Pricer(t), (scales(i, t.settings, t.engine) for i in items))
    m = t.plan.microbatches
    inputs = _seconds(layers, m, "backward", "recompute")
    each = _seconds(layers, m, "forward"), inputs, _seconds(layers, m, "weight-gradient")
    free = _windows(layers, ends, each, t)
    comm = [free.hide(x, _coverable(x.item, t.settings, t.engine, t.plan)) if x.item.is_sent else x for x in comm]
    lines = (*layers, *ends, _bubble(comm, each, t.model, t.plan), *_host(layers, comm, t), *comm)
    # Adapters alone were fitted on nowhere: their steps spread as those of a chip that was left out.
    runs, mixed = t.engine.spread, t.model.experts is not None
    near, apart = (runs.mixture_sigma, runs.mixture_sigma_apart) if mixed else (runs.dense_sigma, runs.dense_sigma_apart)
    fitted = t.cluster.chip.key in runs.fitted_chips and not t.plan.lora_rank
    return Bill(lines, tokens, known_sigma=near if fitted else apart, measured=fitted)


def _host(layers: list[Line], comm: list[Line], t: PricingTerms) -> list[Line]:
    """The wait for a host that launches layers of experts kernel by kernel.

    It takes ``layer_host_s`` for each layer and microbatch, forward and backward, and the GPU waits for what exceeds its own time
    in the layers; and ``sync_s`` always, while the host reads how many tokens each expert has. One graph of the step has neither.
    """
    trains, mixes, lines = t.engine.trains, t.engine.mixes, []
    if trains.step_host_s:
        lines.append(_host_line("once a step", trains.step_host_s, "step_host_s", t))
    if not t.model.experts or not (mixes.layer_host_s or mixes.expert_host_s) or t.plan.weights_dtype in mixes.graphed_experts:
        return lines
    times = num_moe_layers(t.model, t.plan) * t.plan.microbatches
    each = mixes.layer_host_s + mixes.expert_host_s * t.model.experts.num_experts / t.plan.ep
    busy_s = _total(layers) + sum((x.exposed_s for x in comm if x.item.whole_axis not in BETWEEN), start=0.0)
    waits = np.maximum(mixes.sync_s * times, each * times - busy_s)
    return [*lines, _host_line("launches of experts", waits, "layer_host_s", t)]


def _host_line(what: str, waits: Number, field: str, t: PricingTerms) -> Line:
    item = Item(what, "", "host", 0.0, 1, t.plan.microbatches * 0 + 1)
    return Line("host", item, waits, 0.0, source=Source("calibrated"), sigma=t.engine.host.sigma_host, priced_from=field)


def scales(item: Item, settings: WhatIf, engine: Engine) -> WhatIf:
    """What-ifs of one collective: all links scaled, or one axis' alone; and what an engine's own way to gather leaves of them."""
    slow = settings.slow_links if item.whole_axis == settings.slow_axis else 1.0
    slow *= engine.trains.gather_rate if item.whole_axis == "dp" else 1.0
    return WhatIf(latency_scale=settings.latency_scale, bandwidth_scale=settings.bandwidth_scale * slow)


def _compute(t: PricingTerms, step: TrainStep) -> tuple[list[Line], list[Line], Number]:
    """Kernels of the layers; those of the head as far as this stage pays for it, and of the update; and that share of the head."""
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
    ends = priced.lines(both, m * share) + priced.lines([train_kernels.update(updated_params(model, plan, t.engine))], 1)
    if t.engine.trains.accumulate_bytes:
        held = sum(trained_params(model, plan, t.engine).values())
        ends += priced.lines([train_kernels.accumulation_kernel(held * t.engine.trains.accumulate_bytes)], m)
    return layers, ends, share


def _clock(c: Table, fused: float) -> Factor:
    """A number format's share of single kernels' rates: of its own runs, or of those whose casts are fused."""
    return ("train.share", c["share"] * fused) if "share" in c else ("train.clock", c["clock"])


class Kernels:
    """Kernels to lines; a kernel that runs forward and again in backward is priced once."""

    def __init__(self, t: PricingTerms) -> None:
        self.terms, self.chip, self.constants = t, t.cluster.chip, t.constants
        self.table = table = self.constants.tables["train.bf16"]
        self.power: Factor = ("power_clock", power_clock(self.chip, table))
        # Hours of dense products draw the clock down, in each number format by its own share of single kernels' rates.
        found = ((kind, self.constants.tables.get(f"train.{kind}")) for kind in ("bf16", *train_kernels.CAST_BYTES))
        self.clocks = {kind: _clock(c, table.get("fused", 1.0)) for kind, c in found if c}
        self.clock = self.clocks["bf16"]
        self.least = t.engine.host.launch_s if t.settings.eager else 0.0
        self.sigma = widen_sigma(table["sigma"], self.constants.label)
        self._known: dict[tuple[object, ...], tuple[Kernel, Number, Number]] = {}

    def seconds(self, kernels: list[Kernel]) -> Number:
        return sum((k.count * sum(self._parts(k)) for k in kernels), start=0.0)

    def lines(self, kernels: list[Kernel], times: Number, stage: Stage = "") -> list[Line]:
        """Lines of kernels that each run ``times`` as often, in another ``stage`` than their own where one is named."""
        return [kernel_line(k, k.count * times, self._parts(k), self.sigma, self.terms, stage or k.stage) for k in kernels]

    def applied(self, kernel: Kernel) -> KernelFactors:
        """What a training step multiplies onto a kernel: fused attention has kernels of its own for either direction."""
        engine, slow_rank = self.terms.engine, self.terms.settings.slow_rank
        if kernel.form != "prefill":
            products = kernel.form == "gemm"
            clock = self.clocks.get(kernel.number_format, self.clock) if products else self.clock
            own = (("experts_rate", engine.kernels.experts_rate),) if products and kernel.part == "experts" else ()
            return KernelFactors((self.power, clock, *own), slow_rank=slow_rank, launch_s=self.least)
        rates = [self.power, (f"train.{engine.trains.attention}", self.table.get(engine.trains.attention, 1.0))]
        if kernel.stage == "backward":
            rates.append(("train.attention_backward", self.table["attention_backward"]))
        return KernelFactors(tuple(rates), slow_rank=slow_rank, launch_s=self.least)

    def _parts(self, kernel: Kernel) -> tuple[Number, Number]:
        key = (kernel.form, *map(id, (kernel.flops, kernel.nbytes, kernel.m, kernel.n)))
        if key not in self._known:  # the kernel is kept so that its numbers, whose identity is the key, live on
            self._known[key] = kernel, *applied_s(kernel, self.chip, self.constants, self.applied(kernel))
        return self._known[key][1:]


def _total(lines: list[Line]) -> Number:
    return sum((line.total_s for line in lines), start=0.0)


def _head_share(model: Model, plan: Plan, engine: Engine, layer_s: Number, head_s: Number) -> Number:
    """How much of the head the pace-setting stage pays: all of it, less what the last stage saves by having fewer layers.

    An engine that is told where layers go moves further layers from the last stage to the others as long as that pays. Where
    microbatches enter at both ends, either of the outer ranks has the head of half of them, and layers of both ends.
    """
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
    """Layers of the last stage; of the mean of both ends where a rank has a stage of either. An engine that is told where layers go
    leaves the stage of the head as few as the others take without becoming fuller."""
    stages = stage_layers(model, pp)
    fullest = max(map(len, stages))
    last = max(0, model.num_layers - (pp - 1) * fullest) if balanced else len(stages[-1])
    return (last + len(stages[0])) / 2 if directions > 1 else last


def _launched_item(item: Item, t: PricingTerms, head_share: Number) -> Item:
    """Gradients go in buckets; the busiest expert rank sends more; a stage between the ends has neither embedding nor head. Where
    all products are cut into pieces, gathers and scatters run beside any of them."""
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
    """Share of a collective that can run beside compute: the last bucket and the first gather have nothing to run beside. A stage
    with one chunk has nothing to compute while it waits for its neighbour."""
    if item.overlaps_with in GRADIENTS:
        return float(settings.async_axes != ())
    waits = item.whole_axis == "pp" and settings.async_axes is None and plan.chunks <= 1
    if waits or item.whole_axis not in settings.beside(engine):
        return 0.0
    return 1 - 1 / np.maximum(1, item.count) if item.whole_axis == "dp" else 1.0


_Passes = tuple[Number, Number, Number]
"""Seconds of one microbatch in the layers of the fullest stage: forward, input gradients with recomputation, and weights'."""


def _seconds(lines: list[Line], m: Number, *stages: Stage) -> Number:
    """Of one microbatch."""
    return _total([x for x in lines if x.item.stage in stages]) / m


def _columns_s(layers: list[Line], stage: Stage) -> Number:
    """Seconds of one kind of gradient of products that take whole inputs; experts have their tokens exchanged instead."""
    products = [x for x in layers if x.item.form == "gemm" and x.item.stage == stage and x.item.part != "experts"]
    return _total([x for x in products if x.item.place in COLUMNS])


def _windows(layers: list[Line], ends: list[Line], each: _Passes, t: PricingTerms) -> Windows:
    """What collectives of a training step may run beside."""
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
    """Idle time of the schedule: a stage takes as long as its layers and what is exposed in them."""
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
    """Local tokens from which the gradient all-reduce hides behind backward: FLOP/s over B/s, whatever the model.

    Follows from 4N/BW <= 4N tokens/(FLOP/s).
    """
    return flops_per_s / bandwidth_Bps


def tp_tax(flops_per_s: Number, bandwidth_Bps: Number, hidden: Number, tp: Number) -> Number:
    """Forward tensor-parallel all-reduce time over compute time: (T-1)/3 x FLOP/s / (BW h).

    Per layer and token: two all-reduces of 2h bytes, each 2 (T-1)/T on the wire, against 24 h^2 / T FLOPs. Each rank
    computes 1/T of the layer but reduces the whole activation, so the tax grows with T-1.
    """
    return (tp - 1) / 3 * flops_per_s / (bandwidth_Bps * hidden)
