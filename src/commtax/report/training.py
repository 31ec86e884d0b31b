"""What a terminal shows of a training step alone: the lesson's table of taxes, where the time goes, memory, likely causes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from commtax.ledger import Line
from commtax.question import Question
from commtax.report.tables import between, new_table, say, shares
from commtax.units import format_bytes, format_count, format_seconds, plural
from commtax.verbs.billing import StepBill
from commtax.verbs.explain import causes
from commtax.verbs.explained import HELD, Explained

PARTS = ("forward", "recompute", "backward", "update")


def show_step(console: Console, step: Explained, num_tokens: float, measured_mfu: float | None) -> tuple[str, ...]:
    """Taxes, where the time goes, totals and what would explain a measured MFU; what is left to remark."""
    b = step.bill
    _taxes(console, b)
    rows = [(part, sum(float(x.exposed_s) for x in b.items if x.kind == "compute" and x.item.during == part)) for part in PARTS]
    rows += [(f"{axis} communication, exposed", float(b.exposed_on(axis))) for axis in b.taxes]
    console.print(shares("where the step goes", [*rows, ("pipeline bubble", float(b.bubble_s))], float(b.step_s), digits=1))
    _totals(console, step, b, num_tokens)
    if measured_mfu is not None:
        show_causes(console, b, measured_mfu)
    return (*_inequalities(step, b), *b.notes, f"MFU counts {b.mfu_definition}")


def workload(q: Question) -> str:
    plan, s = q.plan, q.what_if
    parts = [
        f"{format_count(float(q.batch * plan.dp))} sequences of {format_count(float(q.context))} tokens a step",
        f"{plural(int(plan.microbatches), 'microbatch')} of {int(q.micro_batch)} a replica",
        f"ZeRO {plan.zero}" + (f" over groups of {int(plan.shard)}" if plan.shard else ""),
        f"recompute {plan.recompute}",
    ]
    said = (
        (plan.schedule + (f", {plan.chunks} chunks" if plan.chunks > 1 else ""), plan.pp > 1),
        ("sequence parallel", plan.sequence_parallel and plan.tp > 1),
        (f"{plan.weights_dtype} products", plan.weights_dtype),
        ("eager", s.eager),
        (f"busiest expert rank {s.imbalance:g}x", s.imbalance != 1),
    )
    return "train: " + ", ".join([*parts, *(text for text, on in said if on)])


def _taxes(console: Console, b: StepBill) -> None:
    """The lesson's table: axis, collective, buffer, how often, link, window, hidden or exposed."""
    table = new_table("axis", "collective", ">buffer", ">times", "link", ">ranks", ">takes", ">window", ">exposed", "")
    for x in sorted((x for x in b.items if x.kind == "comm"), key=lambda x: -float(x.exposed_s)):
        axis = x.item.whole_axis
        window = format_seconds(float(x.window_s)) if axis in b.async_axes and float(x.window_s) else "none"
        table.add_row(
            Text(axis, style="yellow"),
            f"{x.item.what} {x.item.op}",
            format_bytes(float(x.item.nbytes)),
            format_count(float(x.item.count)),
            str(x.link),
            format_count(float(x.item.ranks)),
            format_seconds(float(x.total_s)),
            window,
            format_seconds(float(x.exposed_s)),
            _fate(x),
        )
    if float(b.bubble_s):
        plan = b.question.plan
        table.add_row(
            Text("pp", style="yellow"), f"bubble of {plan.schedule}", "", "", "", str(int(plan.pp)), "", "",
            format_seconds(float(b.bubble_s)), Text("exposed", style="red"),
        )  # fmt: skip
    if table.row_count:
        console.print(table)
    else:
        say(console, "Nothing is sent: one rank has nobody to talk to.")


def _fate(x: Line) -> Text:
    hidden, total = float(x.hidden_s), float(x.total_s)
    if hidden <= 0:
        return Text("exposed", style="red")
    return Text(f"{hidden / total:.0%} hidden", style="green" if hidden > total / 2 else "yellow")


def _totals(console: Console, step: Explained, b: StepBill, num_tokens: float) -> None:
    days = f"; {num_tokens:.3g} tokens take {float(b.days(num_tokens)):,.1f} days" if num_tokens else ""
    say(
        console,
        f"step {format_seconds(float(b.step_s))}{between(b.low_s, b.high_s)} = compute {format_seconds(float(b.compute_s))} "
        f"+ exposed communication {format_seconds(float(b.exposed_comm_s))} ({float(b.comm_fraction):.1%}) "
        f"+ bubble {format_seconds(float(b.bubble_s))} "
        f"({float(b.bubble_fraction):.1%}); MFU {float(b.mfu):.1%}, HFU {float(b.hfu):.1%}; {float(b.tokens_per_s):,.0f} tokens/s "
        f"({float(b.tokens_per_s / b.num_gpus):,.0f} a GPU){days}",
        "bold",
    )
    parts = ", ".join(f"{name} {format_bytes(float(getattr(b.memory, name)))}" for name in HELD)
    size, fits = format_bytes(b.question.cluster.chip.visible_bytes), "fits" if step.memory.fits else "does not fit"
    held = f"memory a rank {format_bytes(float(b.memory_bytes_per_rank))} of {size} ({fits}): {parts}"
    say(console, held, "" if step.memory.fits else "red")


def _inequalities(step: Explained, b: StepBill) -> list[str]:
    """The lesson's two thresholds with this step's rate and links."""
    t = step.thresholds
    sides = []
    if t and t.dp_tokens:
        what = "gathers and gradients" if b.question.plan.zero == 3 else "gradients"
        side = "above" if t.local_tokens >= t.dp_tokens else "below"
        sides.append(
            f"{what} fit in their window from about {t.dp_tokens:,.0f} tokens a GPU and microbatch (rate / bandwidth); "
            f"this one has {t.local_tokens:,.0f}: {side}"
        )
    if t and t.tp_tax:
        sides.append(f"tensor-parallel tax by (T-1)/3 x rate/(bandwidth x hidden): {t.tp_tax:.0%} of the forward pass")
    return sides


def show_causes(console: Console, b: StepBill, measured_mfu: float) -> None:
    """What would explain a measured MFU."""
    likely = causes(b, measured_mfu)
    predicted = float(b.mfu)
    step = format_seconds(float(b.step_s) * predicted / measured_mfu)
    if not likely:
        near = "above" if measured_mfu > predicted else "within 2 % of"
        say(console, f"measured MFU {measured_mfu:.1%} is {near} the predicted {predicted:.1%}: nothing to explain", "green")
        return
    say(
        console,
        f"measured MFU {measured_mfu:.1%} against {predicted:.1%} predicted: a step of {step}, "
        f"{predicted / measured_mfu - 1:+.0%}. What would explain it:",
        "bold",
    )
    table = new_table("cause", ">step", ">of the gap", "")
    for c in likely:
        table.add_row(c.what, format_seconds(c.step_s), f"{c.explains:.0%}", c.detail)
    console.print(table)
