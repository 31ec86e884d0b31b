"""A bill in words: the one sentence that names what binds, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commtax.api.billing import StepBill, again, with_collectives
from commtax.ledger import LAUNCH_FLOOR, Line
from commtax.units import format_bytes, format_seconds

COLLECTIVE = frozenset(("latency_scale", "bandwidth_scale", "library"))
"""What-ifs that leave kernels and host as they are."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """What the step would take if one thing were otherwise; ``delta_s`` is negative where it helps."""

    what: str
    step_s: float
    delta_s: float
    note: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


def verdict(b: StepBill, what_ifs: list[Counterfactual] | None = None) -> str:
    """One sentence: how much of the step is communication, why, and what helps (from ``counterfactuals(b)``)."""
    phase = {"decode": "Decode", "prefill": "Prefill", "mixed": "A mixed step"}[b.phase]
    head = f"{phase} at batch {int(b.batch):,}"
    lines = [x for x in b.items if x.kind == "comm"]
    if not lines:
        return f"{head}: nothing is communicated; {_compute_words(b)}."
    share = float(b.comm_fraction)
    top = max(lines, key=lambda x: float(x.exposed_s))
    whole = f"{head}: {share:.0%} of the step is communication"
    kind = "latency" if float(top.fixed_s) > float(top.moving_s) else "bandwidth"
    kind = "launch" if top.why.code == LAUNCH_FLOOR.code else kind
    biggest = f"{top.item.what} {top.item.op}, {kind}-bound: {int(top.item.count):,} x {format_seconds(float(top.each_s))}"
    return f"{whole} ({biggest}, {format_bytes(float(top.item.nbytes))} over {top.link}); {_remedy(b, top, share, what_ifs)}."


def _remedy(b: StepBill, top: Line, share: float, what_ifs: list[Counterfactual] | None) -> str:
    """What would help, from what-ifs that are computed, not from a rule of thumb."""
    if share < 0.05:
        return _compute_words(b)
    tried = counterfactuals(b) if what_ifs is None else what_ifs
    latency, bandwidth = (_saves(b, tried, name) for name in ("latency_scale", "bandwidth_scale"))
    fused = " (a fused all-reduce would do that)" if top.item.op == "all-reduce" else ""
    if max(latency, bandwidth) < 0.01:
        words = "neither half the latency nor twice the bandwidth would save 1 %"
    elif bandwidth > latency:
        words = f"a faster link will help: twice the bandwidth saves {bandwidth:.0%}, half the latency {latency:.0%}"
    elif bandwidth < 0.02:
        words = f"a faster link will not help, lower latency will: half of it saves {latency:.0%}{fused}"
    else:
        words = f"half the latency saves {latency:.0%}{fused}, twice the bandwidth {bandwidth:.0%}"
    tp = int(b.setup.plan.tp)
    better = max((_saves(b, tried, "tp", n), n) for n in (tp // 2, 2 * tp))
    if better[0] > 0.02:
        words += f"; tp {better[1]} would be {better[0]:.0%} faster"
    if str(top.link) == b.setup.cluster.inter.key and top.item.axis == "tp":
        words += "; tensor parallelism inside a host and a pipeline across would avoid it"
    return words


def _saves(b: StepBill, tried: list[Counterfactual], name: str, value: int | None = None) -> float:
    """Share of the step that a change of one thing (to ``value``, where given) saves; -1 where nobody tried it."""
    found = (c for c in tried if name in c.changes and (value is None or c.changes[name] == value))
    return next((-c.delta_s / float(b.step_s) for c in found), -1.0)


def _compute_words(b: StepBill) -> str:
    """What binds the compute part: reading weights and cache, arithmetic, or fixed costs of kernels and host."""
    compute = [x for x in b.items if x.kind != "comm"]
    fixed = sum(float(x.item.count) * float(x.fixed_s) for x in compute)
    moving = sum(float(x.item.count) * float(x.moving_s) for x in compute)
    chip = b.setup.cluster.chip
    read = sum(float(x.item.count) * float(x.item.nbytes) for x in compute) / chip.memory_Bps
    math = sum(float(x.item.count) * float(x.flops) / x.peak_flops_per_s for x in compute)
    if fixed > moving:
        return f"fixed costs of kernels and host bind ({format_seconds(fixed)} of {format_seconds(fixed + moving)})"
    if read > math:
        return f"memory binds: weights and KV cache alone take {format_seconds(read)} to read"
    return f"arithmetic binds: {format_seconds(math)} at the chip's peak"


def counterfactuals(b: StepBill) -> list[Counterfactual]:
    """What should we buy or change? Latency / 2 and bandwidth x 2 always; then what applies, each recomputed."""
    now = float(b.step_s)
    found = []

    def add(what: str, note: str = "", **changes: Any) -> None:
        try:
            other = (with_collectives if COLLECTIVE.issuperset(changes) else again)(b, **changes)
        except ValueError:
            return
        step = float(other.step_s)
        found.append(Counterfactual(what, step, step - now, note, changes))

    add("collective latency / 2", latency_scale=b.settings.latency_scale / 2)
    add("collective bandwidth x 2", bandwidth_scale=b.settings.bandwidth_scale * 2)
    tp = int(b.setup.plan.tp)
    if tp > 1:
        add(f"tp {tp // 2}", "fewer ranks", tp=tp // 2, ep=_scaled_ep(b, tp // 2))
    add(f"tp {2 * tp}", "more ranks", tp=2 * tp, ep=_scaled_ep(b, 2 * tp))
    own = any(x.via == "custom" for x in b.items)
    if own and b.setup.cluster.chip.family != "cpu":
        add("NCCL only", "custom all-reduce disabled", library="nccl")
    if not b.settings.eager and b.setup.engine.sends.graph_sizes:
        add("eager", "no CUDA graphs", eager=True)
    if b.settings.eager:
        add("CUDA graphs", eager=False)
    if not b.setup.plan.weights_dtype and not b.setup.model.quant:
        add("fp8 weights", dtype="fp8")
    other = "prefill" if b.phase == "decode" else "decode"
    add(f"{other} instead", f"the same batch and length as a {other} step", phase=other, speculative=0)
    return found


def _scaled_ep(b: StepBill, tp: int) -> int:
    """Expert parallelism follows tp where the engine ties it to tp x dp."""
    plan = b.setup.plan
    return tp * int(plan.dp) if int(plan.ep) > 1 else 1
