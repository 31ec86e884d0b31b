"""A training step in words: which tax binds, what would change it, and what would explain a measured MFU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from commtax.api.explain import Counterfactual
from commtax.api.train_billing import TrainBill, train_again
from commtax.cost.overlap import dp_token_threshold, tp_tax
from commtax.cost.tensors import num_active_params, num_params
from commtax.cost.training import TAXES
from commtax.ledger import AXIS_OF, Line
from commtax.spec import DTYPE_BYTES, Cluster
from commtax.statement import Refusal
from commtax.units import format_seconds


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that would make a step slower: how slow, and how much of a measured gap that is."""

    what: str
    step_s: float
    explains: float  # share of the gap; 1 where the cause has a free size, which ``detail`` names
    detail: str = ""


def train_verdict(b: TrainBill) -> str:
    """One sentence: the binding tax, why it is paid, and what the step comes to."""
    step, taxes = float(b.step_s), {axis: float(t) for axis, t in b.taxes.items()}
    whole = f"Step {format_seconds(step)}, MFU {float(b.mfu):.1%}"
    axis = str(b.binding)
    if axis == "compute":
        return f"{whole}: communication hides or is small; arithmetic binds ({float(b.compute_s) / step:.0%} of the step)."
    share = taxes[axis] / step
    if axis == "pp":
        bubble = float(b.bubble_fraction)
        words = (
            f"bubble {bubble:.1%} of the step with {int(b.setup.plan.microbatches)} microbatches on {int(b.setup.plan.pp)} stages"
        )
        return f"{whole}: the pipeline binds, {share:.1%} of the step ({words}); more microbatches or chunks would shrink it."
    top = max(_comm(b, axis), key=lambda x: float(x.exposed_s))
    return (
        f"{whole}: the {axis} tax binds, {share:.1%} of the step ({top.item.what} {top.item.op} over {top.link}; {_why(b, top)})."
    )


def _comm(b: TrainBill, axis: str) -> list[Line]:
    return [x for x in b.items if x.kind == "comm" and AXIS_OF.get(x.item.axis, x.item.axis) == axis]


def _why(b: TrainBill, line: Line) -> str:
    axis = AXIS_OF.get(line.item.axis, line.item.axis)
    if axis not in b.async_axes:
        return "on the critical path: nothing runs beside it"
    total, window = float(line.total_s), float(line.window_s)
    if total > window:
        return f"{format_seconds(total)} does not fit in its window of {format_seconds(window)}"
    return f"{format_seconds(total)} fits in its window of {format_seconds(window)}, but takes SMs and bandwidth from it"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The lesson's two inequalities with this step's numbers."""

    local_tokens: float  # of the microbatch that the window is made of
    dp_tokens: float  # from this many on data parallelism's traffic fits in its window; 0: no data parallelism
    tp_tax: float  # (T - 1)/3 x FLOP/s / (bandwidth x hidden); 0: no tensor parallelism


def thresholds(b: TrainBill) -> Thresholds:
    """At the kernels' own rate and the links that the groups really cross, one direction a GPU."""
    plan, cluster = b.setup.plan, b.setup.cluster
    rate = float(sum(x.flops * x.item.count for x in b.items if x.kind == "compute")) / float(b.compute_s)
    links = {axis: next((str(x.link) for x in _comm(b, axis)), "") for axis in ("dp", "tp")}
    speed = {axis: _speed(cluster, link) for axis, link in links.items()}
    local = float(b.step.micro_batch * b.step.seq / plan.cp)
    # Each rank sends 1/(tp pp) of the model and computes as little of it, so its size cancels, but not its sparsity.
    idle = num_params(b.setup.model) / num_active_params(b.setup.model)
    dp = float(dp_token_threshold(rate, speed["dp"])) * _wire_over_work(b) * idle if links["dp"] else 0.0
    tp = float(tp_tax(rate, speed["tp"], b.setup.model.hidden, plan.tp)) if links["tp"] else 0.0
    return Thresholds(local, dp, tp)


def _wire_over_work(b: TrainBill) -> float:
    """Bytes on the wire over FLOPs of the window, a parameter and token, against the lesson's 4 bytes over 4 FLOPs.

    ZeRO 0 all-reduces gradients (twice their bytes) behind backward's 4 FLOPs, ZeRO 1 and 2 scatter them once; ZeRO 3
    also gathers bf16 parameters twice, and has both passes, 6 FLOPs, to hide in.
    """
    grads = DTYPE_BYTES[b.setup.plan.grads_dtype]
    return {0: 2 * grads / 4, 3: (grads + 4) / 6}.get(b.setup.plan.zero, grads / 4)


def _speed(cluster: Cluster, link: str) -> float:
    if link == cluster.inter.key:
        return cluster.inter.bandwidth_Bps * cluster.nics_per_host / cluster.gpus_per_host
    return (cluster.bridge if cluster.bridge and link == cluster.bridge.key else cluster.intra).bandwidth_Bps


def train_counterfactuals(b: TrainBill) -> list[Counterfactual]:
    """What should we change? Each recomputed; what a rule forbids is left out."""
    now, plan = float(b.step_s), b.setup.plan
    found: list[Counterfactual] = []

    def add(what: str, note: str = "", **changes: Any) -> None:
        try:
            other = train_again(b, **changes)
        except ValueError:
            return
        held = "" if other.fits else "does not fit in memory"
        step = float(other.step_s)
        found.append(Counterfactual(what, step, step - now, "; ".join(x for x in (note, held) if x), changes))

    add("network and links x 2", bandwidth_scale=b.settings.bandwidth_scale * 2)
    axes = b.async_axes
    if b.exposed_comm_s and "dp" in axes:
        add("nothing overlapped", async_axes=())
    if plan.tp > 1 and plan.sequence_parallel and "tp" not in axes:
        add("async tp", "products cut into pieces", async_axes=(*axes, "tp"))
    if plan.ep > 1 and "ep" not in axes:
        add("async ep", "dispatch beside the experts of another microbatch", async_axes=(*axes, "ep"))
    for kind in ("none", "selective", "full"):
        if kind != plan.recompute:
            add(f"recompute {kind}", recompute=kind)
    if plan.pp > 1 and plan.schedule == "1f1b":
        add("interleaved, 2 chunks", schedule="interleaved", chunks=2)
        add("zero-bubble zb-h1", schedule="zb-h1")
    tp = int(plan.tp)
    if tp > 1:
        add(f"tp {tp // 2}, dp {2 * int(plan.dp)}", "same GPUs and global batch", **_traded(b, tp // 2, int(plan.dp) * 2))
    if int(plan.dp) % 2 == 0:
        add(f"tp {tp * 2}, dp {int(plan.dp) // 2}", "same GPUs and global batch", **_traded(b, tp * 2, int(plan.dp) // 2))
    if not plan.weights_dtype:
        add("fp8 products", dtype="fp8")
    return found


def _traded(b: TrainBill, tp: int, dp: int) -> dict[str, Any]:
    """Another tp on the same GPUs with the same global batch."""
    batch = int(b.batch) * int(b.setup.plan.dp)
    if batch % dp:
        return {"tp": 0}  # refused by rule
    micro = min(int(b.step.micro_batch), batch // dp)
    return {"tp": tp, "dp": dp, "batch": batch // dp, "micro_batch": micro, "hsdp": 0}


def causes(b: TrainBill, measured_mfu: float) -> list[Cause]:
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
    found = [*_scenarios(b, gap), *_sized(b, gap)]
    return sorted(found, key=lambda c: abs(1 - c.explains) if c.explains != 1 else 0.35)


def _scenarios(b: TrainBill, gap: float) -> list[Cause]:
    """Things that happen or not."""
    now, plan, cluster = float(b.step_s), b.setup.plan, b.setup.cluster
    found = []

    def add(what: str, detail: str = "", **changes: Any) -> None:
        try:
            step = float(train_again(b, **changes).step_s)
        except ValueError:
            return
        if step > now * 1.005:
            found.append(Cause(what, step, (step - now) / gap, detail))

    for axis in b.async_axes:
        if _comm(b, axis):
            add(
                f"{axis} collectives do not overlap",
                "all of them exposed",
                async_axes=tuple(a for a in b.async_axes if a != axis),
            )
    if plan.tp > 1 and cluster.num_hosts > 1 and str(_comm(b, "tp")[0].link) != cluster.inter.key:
        last = replace(b.setup.engine, order=("cp", "dp", "pp", "tp"))
        add(f"tp groups lie across hosts, on {cluster.inter.key}", "check the rank order", engine=last)
    if not b.settings.eager:
        add("element-wise kernels are not fused", "no torch.compile, no fused kernels", eager=True)
    if plan.recompute != "full":
        add("full recomputation is on", recompute="full")
    if b.setup.engine.trains.attention not in ("unfused",):
        add("attention is not fused", "the score matrix is written", engine=b.setup.engine.but(attention="unfused"))
    return found


def _sized(b: TrainBill, gap: float) -> list[Cause]:
    """Things with a size: the size that closes the gap."""
    now, compute = float(b.step_s), float(b.compute_s)
    rate = compute / (compute + gap)
    found = [
        Cause("kernels are slower than modelled", now + gap, 1.0, f"all at {rate:.0%} of the modelled rate"),
        Cause("one rank is slow, or waits for data", now + gap, 1.0, f"{format_seconds(gap)} a step, {1 / rate:.2f} x its compute"),
    ]
    for axis in TAXES:
        if _comm(b, axis):
            slow = _slow_enough(b, axis, now + gap)
            found.append(Cause(f"{axis} links are slow", now + gap, 1.0, f"at {slow:.1%} of the modelled bandwidth"))
    bubble = float(b.bubble_s)
    if bubble > 0:
        found.append(
            Cause(
                "the pipeline idles longer",
                now + gap,
                1.0,
                f"a bubble of {(bubble + gap) / (now + gap):.0%}, not {bubble / now:.0%}",
            )
        )
    return found


def _slow_enough(b: TrainBill, axis: str, step_s: float) -> float:
    """The share of one axis' bandwidth at which the step takes ``step_s``: bisection, because less hides as it slows."""
    low, high = 1e-6, 1.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        slower = float(train_again(b, slow_axis=axis, slow_links=middle).step_s) > step_s
        low, high = (middle, high) if slower else (low, middle)
    return low
