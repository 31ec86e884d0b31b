"""The priced training step, by name: ``commtax.train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16)``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from commtax.api.sending import check_lengths, check_train_dtype, context_notes, microbatches
from commtax.api.setup import Setup, constants_of, fabric_of, numeric, positive, setup
from commtax.arrays import pick
from commtax.cost.pricing import Terms
from commtax.cost.train_kernels import forward_flops, recomputed_flops
from commtax.cost.train_memory import TrainMemory, training_memory
from commtax.cost.training import TAXES, training_bill
from commtax.ledger import Bill
from commtax.question import WhatIf
from commtax.spec import Cluster, Model, Number, TrainStep
from commtax.statement import Note, Refusal

CONVENTIONS = ("full", "causal")
USABLE = 0.95
"""Share of the chip's memory that a run can use."""


@dataclass(frozen=True, slots=True)
class TrainBill(Bill):
    """A training step with the question it answers."""

    setup: Setup
    step: TrainStep
    batch: Number  # sequences a replica and step
    settings: WhatIf
    memory: TrainMemory
    sources: tuple[str, ...]
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Any:
        """For arrays: which elements are legal plans (``setup.codes`` names the rule that the others break)."""
        return self.setup.codes == 0

    @property
    def async_axes(self) -> tuple[str, ...]:
        """Axes whose collectives run beside compute."""
        return self.settings.beside(self.setup.engine)

    @property
    def bubble_s(self) -> Number:
        return self._sum(lambda line: line.exposed_s, "bubble")

    @property
    def bubble_fraction(self) -> Number:
        """Idle share of the step."""
        return self.bubble_s / self.step_s

    @property
    def taxes(self) -> dict[str, Number]:
        """Seconds that each axis adds to the step; the pipeline's are its hand-offs and its bubble."""
        nothing = 0.0 * self.step_s
        return {axis: self.exposed_on(axis) + (self.bubble_s if axis == "pp" else nothing) for axis in TAXES}

    @property
    def binding(self) -> Any:
        """The axis with the largest tax; ``compute`` where none takes 1 % of the step. An array of names for arrays."""
        names = np.array([*TAXES, "compute"])
        step = self.step_s
        stack = np.stack([np.asarray(t / step, dtype=float) for t in self.taxes.values()])
        worst = np.where(stack.max(axis=0) < 0.01, len(TAXES), stack.argmax(axis=0))
        return str(names[worst]) if np.ndim(worst) == 0 else names[worst]

    @property
    def num_gpus(self) -> Number:
        return self.setup.plan.num_gpus

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of one GPU in the arithmetic of the products."""
        peaks, wanted = self.setup.cluster.chip.flops_per_s, self.setup.plan.weights_dtype or self.setup.plan.activations_dtype
        return float(peaks.get(wanted) or peaks.get("bf16") or peaks.get("fp16") or max(peaks.values()))

    def model_flops(self, convention: str = "") -> Number:
        """FLOPs that the model needs in one step: three forward passes' worth, nothing recomputed, padded or masked."""
        layers, head = forward_flops(self.setup.model, self.step.seq, (convention or self.settings.flops) == "causal")
        return 3 * (layers + head) * self.tokens

    def _utilization(self, flops: Number) -> Number:
        return flops / (self.step_s * self.num_gpus * self.peak_flops_per_s)

    @property
    def mfu(self) -> Number:
        """Model FLOPs over what the GPUs could do in the step's time; see ``mfu_definition``."""
        counted = self._utilization(self.model_flops())
        if self.settings.flops == "causal":
            return counted
        return pick(np.asarray(counted) > 1, self._utilization(self.model_flops("causal")), counted)

    @property
    def hfu(self) -> Number:
        """As ``mfu`` with recomputed FLOPs counted too."""
        causal = (np.asarray(self._utilization(self.model_flops())) > 1) | (self.settings.flops == "causal")
        layers = [recomputed_flops(self.setup.model, self.setup.plan, self.step, self.setup.engine, c) for c in (False, True)]
        return self.mfu + self._utilization(pick(causal, layers[1], layers[0]) * self.tokens)

    @property
    def mfu_definition(self) -> str:
        """What a scalar bill's MFU counts."""
        dtype = self.setup.plan.weights_dtype or self.setup.plan.activations_dtype
        peak = f"over {self.peak_flops_per_s / 1e12:,.0f} TFLOP/s dense {dtype} a GPU"
        if self.settings.flops == "causal":
            return f"causal pairs only, nothing recomputed, {peak}"
        if float(self._utilization(self.model_flops())) > 1:
            return f"causal pairs only, because all pairs would be above 100 % of what the chip can do, {peak}"
        return f"all query-key pairs (as PaLM and Megatron count), nothing recomputed, {peak}"

    @property
    def memory_bytes_per_rank(self) -> Number:
        return self.memory.total

    @property
    def fits(self) -> Any:
        """Whether one rank's memory holds it."""
        return self.memory.total <= USABLE * self.setup.cluster.chip.visible_bytes

    def days(self, tokens: float) -> Number:
        """Days that ``tokens`` tokens take."""
        return tokens / self.tokens_per_s / 86400


def train_bill(
    model: str | Model,
    cluster: str | Cluster,
    *,
    batch: Number = 1,
    micro_batch: Number = 1,
    context: Number = 4096,
    hsdp: Number = 0,
    async_axes: tuple[str, ...] | None = None,
    eager: bool = False,
    imbalance: float = 1.0,
    slow_rank: float = 1.0,
    library: str = "",
    latency_scale: float = 1.0,
    bandwidth_scale: float = 1.0,
    slow_axis: str = "",
    slow_links: float = 1.0,
    flops: str = "full",
    **plan: Any,
) -> TrainBill:
    """Price one optimiser step. ``batch`` sequences a replica in microbatches of ``micro_batch``, ``context`` tokens each.

    Sizes may be arrays, and then every figure is one. ``hsdp`` shards over groups of that many ranks; ``async_axes`` are
    the axes whose collectives run beside compute (the engine's own unless given); ``flops`` says what MFU counts.
    """
    for value, name in ((batch, "batch"), (micro_batch, "micro_batch"), (context, "context")):
        positive(value, name)
    if flops not in CONVENTIONS:
        raise Refusal(f"flops '{flops}': full (all query-key pairs) or causal", "flops")
    if "microbatches" in plan:
        raise Refusal("microbatches: follow from batch and micro_batch", "microbatches")
    _check_factors(imbalance, slow_rank, latency_scale, bandwidth_scale, slow_links)
    check_train_dtype(plan.get("dtype", ""))
    asked = setup(model, cluster, phase="train", shard=hsdp, microbatches=microbatches(batch, micro_batch), **plan)
    check_lengths(context, asked)
    _check_experts(imbalance, asked)
    axes = asked.engine.trains.async_axes if async_axes is None else _axes(async_axes, asked)
    settings = WhatIf(
        eager,
        slow_rank=slow_rank,
        library=library,
        async_axes=axes,
        imbalance=imbalance,
        slow_axis=slow_axis,
        flops=flops,
        latency_scale=latency_scale,
        bandwidth_scale=bandwidth_scale,
        slow_links=slow_links,
    )
    step = TrainStep(micro_batch, context)
    fabric, constants = fabric_of(asked, library), constants_of(asked)
    tokens = batch * asked.plan.dp * context
    terms = Terms(asked.model, asked.plan, asked.cluster, asked.engine, fabric, constants, settings)
    plain = training_bill(terms, step, tokens)
    memory = training_memory(asked.model, asked.plan, step, asked.engine)
    sources = tuple(dict.fromkeys(f"{x.kind}: {x.source}" for x in plain.lines if x.source))
    notes = (*asked.notes, *context_notes(context, asked), *((Note("assumed-links", fabric.note),) if fabric.note else ()))
    return TrainBill(plain.lines, plain.tokens, asked, step, batch, settings, memory, sources, notes)


def _check_factors(imbalance: float, slow_rank: float, *scales: float) -> None:
    for factor, name in ((imbalance, "imbalance"), (slow_rank, "slow_rank")):
        if not 1 <= numeric(factor, name) < 1e6:
            raise Refusal(f"{name}={factor}: a factor of at least 1 is needed", name)
    for factor, name in zip(scales, ("latency_scale", "bandwidth_scale", "slow_links"), strict=True):
        if not 0 < numeric(factor, name) < 1e9:
            raise Refusal(f"{name}={factor}: a factor above 0 is needed", name)


def _check_experts(imbalance: float, asked: Setup) -> None:
    """Only ranks that share experts out can be out of balance, and at most by all tokens going to one of them."""
    widest = np.max(asked.plan.ep)
    if imbalance > 1 and (asked.model.experts is None or widest == 1):
        raise Refusal(f"imbalance={imbalance:g}: needs a mixture of experts with ep > 1", "imbalance")
    if imbalance > widest:
        raise Refusal(f"imbalance={imbalance:g}: the busiest of {widest} ranks has at most {widest} times the mean", "imbalance")


def _axes(given: tuple[str, ...], asked: Setup) -> tuple[str, ...]:
    """Axes to overlap, each one that can be."""
    for axis in given:
        if axis not in TAXES:
            raise Refusal(f"async '{axis}': axes are {', '.join(TAXES)}, or none", "async")
    if "tp" in given and not asked.plan.sequence_parallel:
        raise Refusal("async 'tp': only all-gather and reduce-scatter can be cut into pieces; add sequence_parallel", "async")
    return tuple(given)


def train_again(priced: TrainBill, **changes: Any) -> TrainBill:
    """The same step with something changed: a what-if."""
    asked, plan, s = priced.setup, priced.setup.plan, priced.settings
    words: dict[str, Any] = {
        "batch": priced.batch,
        "micro_batch": priced.step.micro_batch,
        "context": priced.step.seq,
        "engine": asked.engine,
        "hsdp": plan.shard,
        "dtype": plan.weights_dtype,
        **{name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "cp", "zero", "schedule", "chunks", "recompute")},
        "sequence_parallel": plan.sequence_parallel,
        "profile": asked.profile,
        **{f.name: getattr(s, f.name) for f in fields(s) if f.name not in ("ep_backend", "overlap")},
    }
    place = changes.pop("cluster", asked.cluster)
    return train_bill(asked.model, place, **{**words, **changes})
