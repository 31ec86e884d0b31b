"""The lesson's own numbers beside ours, and why they differ. Its formulas are ``commtax.napkin``'s, number for number."""

from __future__ import annotations

from dataclasses import dataclass

from commtax import napkin
from commtax.units import format_rate, format_seconds
from commtax.verbs.billing import StepBill
from commtax.verbs.explain import thresholds

LESSON_BPS = 900e9
"""The lesson's NVLink: both directions of an H100 together."""
LESSON_RANKS = 8
"""Ranks that it thinks of as one host."""


@dataclass(frozen=True, slots=True)
class LessonRow:
    """The lesson's figure, ours, and the reason why they differ."""

    name: str
    lesson: str
    ours: str
    why: str


@dataclass(frozen=True, slots=True)
class Lesson:
    applies: bool
    rows: list[LessonRow]


def lesson(b: StepBill) -> Lesson:
    rows = _training(b) if b.question.trains else _serving(b)
    return Lesson(bool(rows), rows)


def _training(b: StepBill) -> list[LessonRow]:
    plan, model, t = b.question.plan, b.question.model, thresholds(b)
    said = napkin.overlap_calculator(
        model.hidden, model.num_layers, int(plan.tp), int(plan.pp), t.local_tokens, num_microbatches=int(plan.microbatches)
    )
    rows = []
    if plan.tp > 1:
        ours = float(b.exposed_on("tp")) / float(b.compute_s)
        rows.append(LessonRow("TP tax, of compute", f"{said['tp_tax']:.1%}", f"{ours:.1%}", _tp_why(b, t.tp_tax)))
    if plan.dp > 1 and t.dp_tokens:
        side = "hides" if said["dp_hides"] else "does not hide"
        whole = sum(float(x.total_s) for x in b.items if x.item.axis in ("dp", "shard", "edp", "replica"))
        theirs = f"{said['dp_threshold']:,.0f}: {t.local_tokens:,.0f} {side}"
        own = f"{t.dp_tokens:,.0f}: {float(b.exposed_on('dp')) / whole:.0%} of it is exposed"
        rows.append(LessonRow("DP threshold, tokens a GPU", theirs, own, _dp_why(b)))
    if plan.pp > 1:
        why = "(pp−1)/(M+pp−1) is of equal stages alone; ours is of the whole step, with its schedule, taxes and the update"
        rows.append(LessonRow("PP bubble", f"{said['pp_bubble']:.1%}", f"{float(b.bubble_fraction):.1%}", why))
    why = "the lesson starts from 50 % and takes 30 % off where DP does not hide; ours prices every kernel and collective"
    return [*rows, LessonRow("MFU", f"{said['mfu']:.1%}", f"{float(b.mfu):.1%}", why)]


def _tp_why(b: StepBill, formula: float) -> str:
    plan, cluster = b.question.plan, b.question.cluster
    tp, lines = int(plan.tp), [x for x in b.items if x.item.axis == "tp" and x.kind == "comm"]
    links = " and ".join(sorted({str(x.link) for x in lines}))
    degree = f"⅓·peak/(BW·h) is the tax of TP 2 for every degree; each of {tp} ranks computes 1/{tp} but reduces all"
    if tp > LESSON_RANKS:
        share = f"reduces inside a host first, so that {cluster.nics_per_host} NICs a host carry a share each"
        ours = share if any(x.via == "hierarchical" for x in lines) else "prices the collective that the library picks"
        past = f"past {LESSON_RANKS} ranks it takes one NIC of 50 GB/s for the whole group"
        return f"{degree}; {past}; ours goes over {links} and {ours}"
    return (
        f"{degree}: (T−1)/3·rate/(BW·h) is {formula:.1%} of the forward pass. It takes 900 GB/s, both directions together; "
        f"ours goes over {links}, one direction, with latency, over the whole step"
    )


def _dp_why(b: StepBill) -> str:
    wire = {0: "all-reduced once", 3: "sharded, gathered twice"}.get(b.question.plan.zero, "scattered, then gathered")
    return (
        f"peak·MFU/BW supposes 40 % MFU and 50 GB/s; ours takes this step's own rate and link, gradients in "
        f"{b.question.plan.grads_dtype} {wire}; one bucket hides nowhere, and what hides takes SMs and bandwidth from compute"
    )


def _serving(b: StepBill) -> list[LessonRow]:
    """The lesson trains; what carries over is bytes over bandwidth, and the TP tax of a forward pass."""
    lines = [x for x in b.items if x.kind == "comm" and x.item.axis == "tp" and x.item.op == "all-reduce"]
    if not lines:
        return []
    top, q = max(lines, key=lambda x: float(x.exposed_s)), b.question
    tax = napkin.overlap_calculator(q.model.hidden, q.model.num_layers, int(q.plan.tp), int(q.plan.pp), 1)["tp_tax"]
    ours = float(b.exposed_on("tp")) / float(b.compute_s)
    each = 2 * float(top.item.nbytes) / LESSON_BPS
    degree = f"the lesson counts {format_rate(LESSON_BPS)} (both directions), no latency and the tax of TP 2 at every degree"
    reads = "; and decoding reads weights rather than multiplies, so its compute is not FLOPs over peak"
    return [
        LessonRow(
            "one all-reduce",
            f"2S/BW = {format_seconds(each)}",
            format_seconds(float(top.each_s)),
            f"bytes over bandwidth alone; {format_seconds(float(top.fixed_s))} of ours is latency, which no bandwidth buys back",
        ),
        LessonRow("TP tax, of compute", f"⅓·peak/(BW·h) = {tax:.1%}", f"{ours:.1%}", degree + reads * (q.phase == "decode")),
    ]
