"""The bill of one training step: compute, recomputation, the bubble, and every collective with what its window hides.

step = m (forward + backward + recomputation + exposed communication of a microbatch) + bubble + what is exposed once a
step (gradients, parameters) + the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from commtax.arrays import pick
from commtax.cost import train_kernels
from commtax.cost.bubble import idle_s
from commtax.cost.compute import Kernel
from commtax.cost.inference import Pricer, comm_line
from commtax.cost.kernels import label, peak, seconds
from commtax.cost.overlap import hidden_s
from commtax.cost.stages import fill_factor
from commtax.cost.tensors import stage_layers
from commtax.cost.train_traffic import by_pp, fullest_layers, holders, stage_params, training
from commtax.ledger import AXIS_OF, Bill, Item, Line
from commtax.question import WhatIf
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Model, Number, Plan, TrainStep

TAXES = ("dp", "tp", "pp", "ep", "cp")
IN_LAYERS = ("layers", "expert")
"""Tensor-parallel collectives that every stage has."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one microbatch on the fullest stage: of its layers, and of the head as far as this stage pays for it."""

    forward: Number
    inputs: Number  # backward without weight gradients, recomputation included
    weights: Number
    head_forward: Number
    head_backward: Number
    head_share: Number
    attention: Number
    experts: Number
    products: Number

    @property
    def backward(self) -> Number:
        return self.inputs + self.weights


def power_clock(chip: Chip, constants: KernelConstants) -> float:
    """The clock of a part with another power limit than the one its family's constants were measured on, at most 1.

    Power grows with the cube of the clock where voltage follows it, so the clock follows the cube root of the limit.
    """
    usual = constants.tables["train.bf16"]["tdp_w"]
    return float(min(1.0, (chip.tdp_w / usual) ** (1 / 3))) if chip.tdp_w and usual else 1.0


def training_bill(
    model: Model,
    plan: Plan,
    step: TrainStep,
    cluster: Cluster,
    engine: Engine,
    fabric: Fabric,
    constants: KernelConstants,
    settings: WhatIf,
    tokens: Number,
) -> Bill:
    """Price one optimiser step of one rank of the stage that sets the pace."""
    compute, times = _compute(model, plan, step, cluster, engine, constants, settings)
    pricer = Pricer(plan, cluster, engine, fabric)
    items = [_as_launched(i, plan, engine, settings, times.head_share) for i in training(model, plan, step, engine)]
    comm = _overlapped([comm_line(i, pricer, _scales(i, settings)) for i in items], times, plan, engine, settings)
    bubble = _bubble(comm, times, model, plan)
    return Bill((*compute, bubble, *comm), tokens)


def _scales(item: Item, settings: WhatIf) -> WhatIf:
    """What-ifs of one collective: all links scaled, or one axis' alone."""
    slow = settings.slow_links if AXIS_OF.get(item.axis, item.axis) == settings.slow_axis else 1.0
    return WhatIf(latency_scale=settings.latency_scale, bandwidth_scale=settings.bandwidth_scale * slow)


def _compute(
    model: Model,
    plan: Plan,
    step: TrainStep,
    cluster: Cluster,
    engine: Engine,
    constants: KernelConstants,
    settings: WhatIf,
) -> tuple[list[Line], Times]:
    layers = fullest_layers(model, plan)
    passes = engine.trains.eager_passes if settings.eager else engine.trains.elementwise_passes
    one = train_kernels.forward(model, plan, step, engine, layers, passes, settings.imbalance)
    priced = _Priced(cluster.chip, constants, engine, settings)
    ahead = priced.lines(one.layers, plan.microbatches, "forward")
    again = priced.lines(train_kernels.recomputed(one.layers, plan, engine), plan.microbatches, "recompute")
    back = priced.lines(train_kernels.backward(one.layers), plan.microbatches, "backward")
    share = _head_share(model, plan, _total(ahead, again, back) / layers, plan.microbatches * priced.seconds(one.head))
    ends = priced.lines(one.head, plan.microbatches * share, "forward")
    ends_back = priced.lines(train_kernels.backward(one.head), plan.microbatches * share, "backward")
    last = priced.lines([train_kernels.update(_updated(model, plan, engine))], 1, "update")
    m, layer = plan.microbatches, [*ahead, *again, *back]
    grads = [x for x in back if x.item.what.endswith("weight gradient")]
    times = Times(
        forward=_total(ahead) / m,
        inputs=(_total(back, again) - _total(grads)) / m,
        weights=_total(grads) / m,
        head_forward=_total(ends) / m,
        head_backward=_total(ends_back) / m,
        head_share=share,
        attention=_total([x for x in layer if x.item.what.startswith("attention")]) / m,
        experts=_total([x for x in layer if x.item.what.startswith(("experts", "shared expert"))]) / m,
        products=_total([x for x in layer if x.item.op.startswith("gemm")]) / m,
    )
    return [*layer, *ends, *ends_back, *last], times


def _updated(model: Model, plan: Plan, engine: Engine) -> Number:
    """Parameters whose state one rank updates: its share where the optimiser is sharded."""
    params = stage_params(model, plan, engine)
    ranks, same_experts = holders(plan, engine) if plan.zero else (1, 1)
    return (params["layers"] + params["ends"]) / ranks + params["experts"] / same_experts


class _Priced:
    """Kernels to lines; a kernel that runs forward and again in backward is priced once."""

    def __init__(self, chip: Chip, constants: KernelConstants, engine: Engine, settings: WhatIf) -> None:
        self.chip, self.constants = chip, constants
        power = power_clock(chip, constants)
        self.clock = power * constants.tables["train.bf16"]["clock"]  # hours of dense products draw the clock down
        self.scale, self.least = settings.slow_rank, engine.host.launch_s if settings.eager else 0.0
        table = constants.tables["train.bf16"]
        self.sigma = table["sigma"]
        rate = power * table.get(engine.trains.attention, 1.0)
        self.rates = {"attention": rate, "attention backward": rate * table["attention_backward"]}
        self._known: dict[tuple[str, int, int], tuple[Kernel, Number, Number]] = {}

    def seconds(self, forward: list[Kernel]) -> Number:
        """Seconds of these kernels and their backward."""
        both = [*forward, *train_kernels.backward(forward)]
        return sum((k.count * sum(self._parts(k)) for k in both), start=0.0)

    def lines(self, kernels: list[Kernel], times: Number, part: str) -> list[Line]:
        return [self._line(k, times, part) for k in kernels]

    def _parts(self, kernel: Kernel) -> tuple[Number, Number]:
        key = (kernel.what, id(kernel.flops), id(kernel.nbytes))  # layers of one kind share shapes, windows differ
        if key not in self._known:  # the kernel is kept so that its numbers, whose identity is the key, live on
            fixed, moving = seconds(kernel, self.chip, self.constants, self.rates.get(kernel.what, self.clock))
            if self.least:  # without graphs a kernel takes at least its launch
                fixed = np.maximum(fixed, self.least - moving)
            self._known[key] = kernel, fixed * self.scale, moving * self.scale
        return self._known[key][1:]

    def _line(self, kernel: Kernel, times: Number, part: str) -> Line:
        fixed, moving = self._parts(kernel)
        item = Item(kernel.what, "", f"{kernel.form}, {part}", kernel.nbytes, 1, kernel.count * times)
        return Line(
            "compute",
            item,
            fixed,
            moving,
            source=label(kernel, self.constants),
            flops=kernel.flops,
            sigma=self.sigma,
            peak_flops_per_s=peak(kernel, self.chip, self.constants),
        )


def _total(*groups: list[Line]) -> Number:
    return sum((line.total_s for lines in groups for line in lines), start=0.0)


def _head_share(model: Model, plan: Plan, layer_s: Number, head_s: Number) -> Number:
    """How much of the head the pace-setting stage pays: all of it, less what the last stage saves by having fewer layers."""
    last = by_pp(plan.pp, lambda pp: _last_layers(model, pp))
    return np.clip(1 - (fullest_layers(model, plan) - last) * layer_s / np.maximum(head_s, 1e-30), 0, 1)


@lru_cache(maxsize=1024)
def _last_layers(model: Model, pp: int) -> int:
    return len(stage_layers(model, pp)[-1])


def _as_launched(item: Item, plan: Plan, engine: Engine, settings: WhatIf, head_share: Number) -> Item:
    """Gradients go in buckets; the busiest expert rank sends more; a stage between the ends has neither embedding nor head."""
    if item.axis == "ep":
        return replace(item, nbytes=item.nbytes * settings.imbalance)
    if item.axis in ("dp", "edp") and plan.zero < 3 and engine.trains.bucket_bytes:
        bucket = np.maximum(engine.trains.bucket_bytes, engine.trains.bucket_bytes_per_rank * plan.dp)
        pieces = np.maximum(1, np.ceil(item.nbytes / bucket))
        return replace(item, nbytes=item.nbytes / pieces, count=item.count * pieces)
    alone = not isinstance(plan.pp, np.ndarray) and plan.pp == 1
    if item.axis == "tp" and not alone and item.what.startswith(("embedding", "head", "loss")):
        mine = 0.0 if item.what.startswith("embedding") else head_share
        return replace(item, count=item.count * pick(np.asarray(plan.pp) > 1, mine, 1))
    return item


def _overlapped(lines: list[Line], times: Times, plan: Plan, engine: Engine, settings: WhatIf) -> list[Line]:
    """Give every collective its window and what of it hides there. Collectives of one axis share their windows."""
    free = _Windows(times, plan, engine)
    return [_hide(line, free, engine, settings) for line in lines]


def _hide(line: Line, free: _Windows, engine: Engine, settings: WhatIf) -> Line:
    axis = AXIS_OF.get(line.item.axis, line.item.axis)
    if not line.item.is_sent:
        return line
    window = free.window(line)
    if axis not in settings.beside(engine):
        return _with(line, window, line.hidden_s)
    coverable = line.total_s * (1 - free.uncovered(line))
    found = hidden_s(coverable, window, engine.trains.overlap_efficiency)
    free.take(line, coverable)
    return _with(line, window, found)


def _with(x: Line, window_s: Number, hidden: Number) -> Line:
    """The line with its window and what hides in it (written out: a copy by name takes four times as long)."""
    told = (x.link, x.algorithm, x.names, x.why, x.source, x.flops)
    return Line(x.kind, x.item, x.fixed_s, x.moving_s, hidden, *told, window_s, x.sigma)


class _Windows:
    """What each kind of collective may run beside, less what others of its axis took already."""

    def __init__(self, times: Times, plan: Plan, engine: Engine) -> None:
        m = plan.microbatches
        forward, backward = times.forward + times.head_forward, times.backward + times.head_backward
        # Gradients are reduced once, beside the last backward, or after every microbatch; gathers run beside both passes.
        self.every = pick(np.asarray(plan.pp) > 1, False, plan.zero >= 2)
        self.forward = pick(self.every, m * forward, forward)
        self.backward = pick(self.every, m * backward, backward)
        self.ahead = forward if engine.trains.gathers_ahead else 0.0 * forward
        self.tp, self.cp, self.ep, self.pp = m * times.products, m * times.attention, m * times.experts, m * forward

    def window(self, line: Line) -> Number:
        item = line.item
        if item.axis in ("shard", "edp", "dp", "replica"):
            if "gradient" in item.what:
                return self.backward
            return {"after the update": self.ahead, "before forward": self.forward}.get(item.note, self.forward + self.backward)
        if item.axis == "tp" and (item.op not in ("all-gather", "reduce-scatter") or item.what == "stage inputs"):
            return 0.0 * self.tp
        return getattr(self, item.axis)

    def uncovered(self, line: Line) -> Number:
        """The share that has nothing to run beside: the last bucket, the first gather."""
        return 1 / np.maximum(1, line.item.count) if AXIS_OF.get(line.item.axis, line.item.axis) == "dp" else 0.0

    def take(self, line: Line, used: Number) -> None:
        item = line.item
        if item.axis in ("shard", "edp", "dp", "replica"):
            if "gradient" in item.what:
                self.backward = np.maximum(0, self.backward - used)
            elif item.note == "after the update":
                self.ahead = np.maximum(0, self.ahead - used)
            elif item.note == "before forward":
                self.forward = np.maximum(0, self.forward - used)
            else:
                self.forward = np.maximum(0, self.forward - used / 2)
                self.backward = np.maximum(0, self.backward - used / 2)
        else:
            setattr(self, item.axis, np.maximum(0, getattr(self, item.axis) - used))


def _bubble(comm: list[Line], times: Times, model: Model, plan: Plan) -> Line:
    """Idle time of the schedule: a stage takes as long as its layers and what tp, cp and ep expose in them."""
    inside = [x for x in comm if x.item.axis in ("cp", "ep") or (x.item.axis == "tp" and x.item.what.startswith(IN_LAYERS))]
    exposed = sum((x.exposed_s for x in inside), start=0.0) / plan.microbatches
    idle = idle_s(plan.schedule, plan.pp, plan.chunks, times.forward + exposed / 2, times.inputs + exposed / 2, times.weights)
    if plan.chunks > 1:
        idle = idle * fill_factor(model.num_layers, plan.pp, plan.chunks)
    item = Item("pipeline bubble", "pp", plan.schedule, 0.0, plan.pp, pick(np.asarray(plan.pp) > 1, 1, 0))
    return Line("bubble", item, 0.0, idle, source="by definition")
