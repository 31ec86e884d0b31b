"""What would explain that a training run is slower than its price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.spec import TAXES
from commtax.statement import Refusal
from commtax.units import format_seconds
from commtax.verbs.billing import StepBill, price
from commtax.verbs.explain import Changes, comm_of


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that would make a step slower: how slow, and how much of a measured gap that is."""

    what: str
    step_s: float
    explains: float  # share of the gap; 1 where the cause has a free size, which ``detail`` names
    detail: str = ""


def causes(b: StepBill, measured_mfu: float) -> list[Cause]:
    """What would bring the predicted step to the measured one, nearest first; empty where it is not slower."""
    if not 0 < measured_mfu <= 1:
        raise Refusal(
            f"measured_mfu={measured_mfu:g}: a fraction above 0 and at most 1 is needed (an MFU above 100 % is impossible)",
            "measured_mfu",
        )
    now = float(b.step_s)
    measured = now * float(b.mfu) / measured_mfu
    gap = measured - now
    if gap <= 0.02 * now:
        return []
    return sorted((*_scenarios(b, gap), *_sized(b, gap)), key=lambda c: abs(1 - c.explains) if c.explains != 1 else 0.35)


def _scenarios(b: StepBill, gap: float) -> Iterator[Cause]:
    """Things that happen or not."""
    now = float(b.step_s)
    for what, detail, changes in _slower(b):
        try:
            step = float(price(b.question.but(**changes)).step_s)
        except ValueError:
            continue
        if step > now * 1.005:
            yield Cause(what, step, (step - now) / gap, detail)


def _slower(b: StepBill) -> Iterator[tuple[str, str, Changes]]:
    """What slows a step down, in words, and what it changes."""
    q, plan, cluster, engine = b.question, b.question.plan, b.question.cluster, b.question.engine
    for axis in b.async_axes:
        if comm_of(b, axis):
            rest = {"async_axes": tuple(a for a in b.async_axes if a != axis)}
            yield f"{axis} collectives do not overlap", "all of them exposed", rest
    if plan.tp > 1 and cluster.num_hosts > 1 and str(comm_of(b, "tp")[0].link) != cluster.inter.key:
        last = {"engine": replace(engine, order=(*(axis for axis in engine.order if axis != "tp"), "tp"))}
        yield f"tp groups lie across hosts, on {cluster.inter.key}", "check the rank order", last
    if not q.what_if.eager:
        yield "element-wise kernels are not fused", "no torch.compile, no fused kernels", {"eager": True}
    if plan.recompute != "full":
        yield "full recomputation is on", "", {"recompute": "full"}
    if engine.trains.attention != "unfused":
        unfused = {"engine": engine.but(attention="unfused")}
        yield "attention is not fused", "the score matrix is written", unfused


def _sized(b: StepBill, gap: float) -> Iterator[Cause]:
    """Things with a size: the size that closes the gap."""
    now, compute = float(b.step_s), float(b.compute_s)
    rate, step = compute / (compute + gap), now + gap
    yield Cause("kernels are slower than modelled", step, 1.0, f"all at {rate:.0%} of the modelled rate")
    slow = f"{format_seconds(gap)} a step, {1 / rate:.2f} x its compute"
    yield Cause("one rank is slow, or waits for data", step, 1.0, slow)
    for axis in TAXES:
        if comm_of(b, axis):
            share = _slow_enough(b, axis, step)
            yield Cause(f"{axis} links are slow", step, 1.0, f"at {share:.1%} of the modelled bandwidth")
    bubble = float(b.bubble_s)
    if bubble > 0:
        yield Cause("the pipeline idles longer", step, 1.0, f"a bubble of {(bubble + gap) / step:.0%}, not {bubble / now:.0%}")


def _slow_enough(b: StepBill, axis: str, step_s: float) -> float:
    """The share of one axis' bandwidth at which the step takes ``step_s``: bisection, because less hides as it slows."""
    low, high = 1e-6, 1.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        slower = float(price(b.question.but(slow_axis=axis, slow_links=middle)).step_s) > step_s
        low, high = (middle, high) if slower else (low, middle)
    return low
