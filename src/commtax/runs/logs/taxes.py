"""Why the MFU of a training run is what it is: its step priced, and every second of the measured one put to a tax."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commtax.files import table
from commtax.ledger import Line
from commtax.runs.evidence.finding import Cause
from commtax.spec import PARALLEL, TAXES
from commtax.thresholds import thresholds
from commtax.units import format_seconds
from commtax.verbs.billing import StepBill
from commtax.verbs.explain import Counterfactual, causes, counterfactuals

_TABLE = table("runs/logs/taxes.toml")
COUNT, LEVEL = thresholds(__name__)


@dataclass(frozen=True, slots=True)
class Tax:
    """Seconds of a step that are no useful arithmetic at the chip's peak."""

    code: str
    said: str
    seconds: float


def taxes(priced: StepBill, measured_s: float) -> list[Tax]:
    """All seconds of the measured step but the useful ones, dearest first; the priced ones and what is left sum to it."""
    causal = priced.question.what_if.flops == "causal" or priced.mfu_definition.startswith("causal")
    ideal = float(priced.model_flops("causal") if causal else priced.model_flops())
    useful = ideal / float(priced.num_gpus * priced.peak_flops_per_s)
    compute = [x for x in priced.lines if x.kind == "compute"]
    again = _sum(x for x in compute if x.item.stage == "recompute")
    update = _sum(x for x in compute if x.item.part == "update" or x.item.stage in ("update", "once"))
    named = {axis: PARALLEL[axis].title.replace("-parallel size", " parallelism") for axis in TAXES} | _TABLE["named"]
    found = [
        Tax("kernels", "kernels below the chip's peak", _sum(compute) - again - update - useful),
        Tax("recompute", "recomputation", again),
        Tax("update", "optimiser and accumulation", update),
        Tax("host", "the host", _sum(x for x in priced.lines if x.kind == "host")),
        Tax("bubble", "pipeline bubble", float(priced.bubble_s)),
        *(Tax(axis, named[axis], float(priced.exposed_on(axis))) for axis in TAXES),
        Tax("unexplained", "not explained by the plan", measured_s - float(priced.step_s)),
    ]
    return sorted((t for t in found if t.seconds), key=lambda t: -t.seconds)


def _sum(lines: Iterator[Line] | list[Line]) -> float:
    return float(sum(float(x.exposed_s) for x in lines))


def tax_sentence(found: list[Tax], measured_s: float, mfu: float) -> str:
    """Where 100 % of the GPUs' arithmetic went.

    >>> tax_sentence([Tax("bubble", "pipeline bubble", 0.25), Tax("unexplained", "not explained by the plan", -0.1)], 1.0, 0.85)
    'of 100% of the peak: 85% MFU, 25% pipeline bubble, less 10% by which the step is faster than its price (9.1%)'
    """
    left = next((t.seconds for t in found if t.code == "unexplained"), 0.0)
    shares = [(t.seconds / measured_s, t.said) for t in found if t.code != "unexplained"]
    parts = [f"{mfu:.0%} MFU", *(f"{share:.0%} {said}" for share, said in shares if abs(share) >= LEVEL.least)]
    price = measured_s - left
    if left > 0:
        parts.append(f"{left / measured_s:.0%} not explained by the plan (the step is {left / price:.1%} slower than its price)")
    elif left:
        parts.append(f"less {-left / measured_s:.0%} by which the step is faster than its price ({-left / price:.1%})")
    return f"of 100% of the peak: {', '.join(parts)}"


def tax_causes(priced: StepBill, found: list[Tax], measured_s: float, measured_mfu: float) -> Iterator[Cause]:
    offered = {c.code: c for c in counterfactuals(priced) if c.delta_s < 0}
    for tax in found:
        share = tax.seconds / measured_s
        if share < LEVEL.least:
            continue
        said = f"{tax.said}: {format_seconds(tax.seconds)} of a step, {share:.1%}"
        if tax.code == "unexplained":
            reasons = causes(priced, measured_mfu)[: COUNT.told] if 0 < measured_mfu <= 1 else []
            likely = "; ".join(f"{c.what} ({c.detail})" if c.detail else c.what for c in reasons)
            yield Cause("unexplained", said, tax.seconds, share, likely)
        else:
            change, gain = _change(tax, offered, priced)
            yield Cause(f"tax-{tax.code}", said, tax.seconds, share, change, gain)


def _change(tax: Tax, offered: Mapping[str, Counterfactual], priced: StepBill) -> tuple[str, str]:
    """The what-if that saves most of those that lower a tax."""
    usual = ("bandwidth",) if tax.code in PARALLEL else ()
    best = min(
        (offered[code] for code in _TABLE["helps"].get(tax.code, usual) if code in offered), key=lambda c: c.delta_s, default=None
    )
    if best is None or -best.delta_s < LEVEL.least * float(priced.step_s):
        return "", ""
    note = f" ({best.note})" if best.note else ""
    return f"{best.what}{note}", f"{format_seconds(-best.delta_s)} per step, {-best.delta_s / float(priced.step_s):.0%}, as priced"
