"""A priced step explained beside its lines: what binds, memory, one layer on a time axis, and the textbook's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from commtax import napkin
from commtax.cost.inventory import fullest_layers
from commtax.ledger import PLACES, Line, Part
from commtax.records import dataclass
from commtax.spec import SIZES, AxisName, Chip
from commtax.units import format_bytes, format_rate, format_seconds, format_si
from commtax.verbs.billing import USABLE, StepBill
from commtax.verbs.explain import Counterfactual, LessonInequalities, comm_of, counterfactuals, thresholds, tries, verdict
from commtax.verbs.fit_advice import plans_with_room
from commtax.verbs.fitting import fit_of_step, fits
from commtax.verbs.settling import fabric_of
from commtax.verbs.train_fitting import train_holds

if TYPE_CHECKING:
    from commtax.verbs.worth import TechniqueWorth

ENDS = ("tower", "head", "embedding", "loss", "stages", "update")  # parts that no layer has
SECOND = ("feed-forward", "experts", "shared expert", "router", "routing")  # parts of a layer's second half
ORDER = {place: index for index, place in enumerate(PLACES)}
Lane = Literal["compute", "comm"]
Stage = Literal["forward", "backward"]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LayerSegment:
    """A kernel or collective in one layer, with the line of the bill that it is a share of."""

    lane: Lane
    name: str
    fixed_s: float
    moving_s: float
    line: Line
    hidden_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.fixed_s + self.moving_s

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.seconds - self.hidden_s)

    @property
    def part(self) -> Part:
        return self.line.item.part

    def share_of(self, share: float, name: str = "") -> LayerSegment:
        parts = (self.fixed_s * share, self.moving_s * share)
        return LayerSegment(self.lane, name or self.name, *parts, self.line, self.hidden_s * share)


@dataclass(frozen=True, slots=True)
class Bar:
    """A segment in its place, drawn as its ``exposed`` and ``hidden`` intervals."""

    segment: LayerSegment
    stage: Stage
    exposed: tuple[Span, ...] = ()
    hidden: tuple[Span, ...] = ()

    @property
    def start_s(self) -> float:
        return min(a for a, _ in (*self.exposed, *self.hidden))

    @property
    def end_s(self) -> float:
        return max(b for _, b in (*self.exposed, *self.hidden))


@dataclass(frozen=True, slots=True)
class LayerTimeline:
    """All bars of one layer and how long it takes."""

    bars: tuple[Bar, ...]
    length_s: float
    note: str


def layer_of(b: StepBill) -> LayerTimeline:
    """Return the mean layer of a priced step."""
    if b.question.trains:
        plan = b.question.plan
        layers, m = float(fullest_layers(b.question.model, plan)), float(plan.microbatches)
        passes: dict[str, list[LayerSegment]] = {"forward": [], "recompute": [], "backward": []}
        beside: dict[str, list[LayerSegment]] = {"forward": [], "backward": []}
        inside = [x for x in b.items if x.item.part not in ENDS]
        for x in (x for x in inside if x.kind == "compute"):
            passes[x.item.during].append(_segment(x, 1 / (layers * m)))
        for x in (x for x in inside if x.kind == "comm" and x.item.axis != "pp" and x.item.stage != "once"):
            each = x.item.whole_axis != "dp" or (plan.pp == 1 if plan.zero == 3 else plan.zero == 2 and x.item.stage != "update")
            one = _segment(x, 1 / (layers * (m if each else 1.0)))  # a share of each microbatch, or of the step
            for stage, share in _stages(x, b).items():
                (beside if x.item.whole_axis in b.async_axes else passes)[stage].append(one.share_of(share))
        ahead, middle = _chain(_interleave_segments(_order_segments(passes["forward"])), beside["forward"], "forward", 0.0)
        back = [*_order_segments(passes["recompute"]), *_interleave_segments(_order_segments(passes["backward"])[::-1])]
        behind, end = _chain(back, beside["backward"], "backward", middle)
        note = f"one of {layers:g} layers of a stage in the last microbatch: forward, then backward"
        rest = " (buckets of the whole stage shared out over its layers)" if plan.zero < 3 and plan.dp > 1 else ""
        return LayerTimeline((*ahead, *behind), end, note + rest)
    bars, length = _chain(layer_segments(b), [], "forward", 0.0)
    return LayerTimeline(tuple(bars), length, f"one of {b.question.model.num_layers} layers, the mean of all, one after the other")


def layer_segments(b: StepBill) -> list[LayerSegment]:
    """Return the mean layer of a served step in the order in which it runs: all layers together over their number."""
    layers = b.question.model.num_layers
    inside = [x for x in b.items if x.kind != "host" and x.item.part not in ENDS and x.item.stage != "draft"]
    return _order_segments([_segment(x, 1 / layers) for x in inside])


def _segment(line: Line, share: float) -> LayerSegment:
    times = float(line.item.count) * share
    parts = float(line.fixed_s) * times, float(line.moving_s) * times
    return LayerSegment("comm" if line.kind == "comm" else "compute", line.item.what, *parts, line, float(line.hidden_s) * share)


def _order_segments(segments: list[LayerSegment]) -> list[LayerSegment]:
    norms = [s.share_of(0.5, s.name.replace("norms", "norm")) for s in segments if s.part == "norms"]
    others = sorted((s for s in segments if s.part != "norms"), key=lambda s: ORDER.get(s.line.item.place, len(ORDER)))
    return [*norms, *(s for s in others if s.part not in SECOND), *norms, *(s for s in others if s.part in SECOND)]


def _chain(chain: list[LayerSegment], beside: list[LayerSegment], stage: Stage, start: float) -> tuple[list[Bar], float]:
    """Lay out a pass: its chain, the hidden parts of other collectives under its end, and their exposed parts after it."""
    bars, now = [], start
    for s in chain:
        if s.seconds > 0:
            hidden = ((max(start, now - s.hidden_s), now),) if s.hidden_s > 0 else ()
            bars.append(Bar(s, stage, ((now, now + s.exposed_s),), hidden))
            now += s.exposed_s
    under, after = max(start, now - sum(s.hidden_s for s in beside)), now
    for s in beside:
        covered, left = min(s.hidden_s, now - under), s.exposed_s
        if s.seconds > 0:
            hidden = ((under, under + covered),) if covered > 0 else ()
            bars.append(Bar(s, stage, ((after, after + left),) if left > 0 or not hidden else (), hidden))
        under, after = under + covered, after + left
    return bars, after


def _stages(line: Line, b: StepBill) -> dict[str, float]:
    """Return in which passes a collective runs, and which share of it in each."""
    plan, stage = b.question.plan, line.item.stage
    again = 1.0 if plan.recompute == "full" else 0.0  # a second forward, inside backward
    if stage == "backward":
        return {"backward": 1.0}
    if line.item.whole_axis == "dp":
        return {"forward": 0.5, "backward": 0.5} if plan.zero == 3 and int(plan.pp) == 1 else {"forward": 1.0}
    if stage == "forward":
        return {"forward": 1 / (1 + again)} | ({"backward": again / (1 + again)} if again else {})
    return {"forward": 1 / (2 + again), "backward": (1 + again) / (2 + again)}  # dispatch, keys: in every pass


def _interleave_segments(segments: list[LayerSegment]) -> list[LayerSegment]:
    """Place half of the collectives of a whole layer after each of its halves, as they run."""
    whole = [s for s in segments if s.part == "layers"]
    rest = [s for s in segments if s not in whole]
    kinds = [s.part in SECOND for s in rest]
    cut, half = next((i for i in range(1, len(rest)) if kinds[i] != kinds[i - 1]), len(rest)), [s.share_of(0.5) for s in whole]
    return [*rest[:cut], *half, *rest[cut:], *half]


SMALL = 0.05  # a share of the step below which serving's communication does not bind, as in the sentence of a bill
HELD = ("parameters", "gradients", "optimizer", "activations", "logits")  # what a rank that trains holds
WIRE = {"all-reduce": "2·({n}−1)/{n}·", "send-recv": ""}
"""What one rank sends of a tensor if an operation moves the least it can; the others (n-1)/n of it."""
LESSON_BPS = 900e9  # the lesson's NVLink: both directions of an H100 together
LESSON_RANKS = 8  # ranks that it thinks of as one host


@dataclass(frozen=True, slots=True)
class Binding:
    """The axis that costs most, and why, or ``compute`` where none costs much."""

    axis: AxisName | Literal["compute"]
    text: str


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    nbytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What one rank holds, part by part."""

    capacity_bytes: float
    used_bytes: float
    fits: bool
    parts: list[MemoryPart]
    kv_tokens: int | None
    note: str


@dataclass(frozen=True, slots=True)
class AxisTax:
    """What all collectives of one axis cost together, and the costliest of them with its window."""

    axis: AxisName
    collective: str
    nbytes: float
    ranks: float
    times: float
    link: str
    more: int  # other collectives
    top_s: float
    window_s: float
    comm_s: float
    exposed_s: float
    bubble_s: float
    tax: float
    hidden: bool
    binding: bool
    formula: str
    source: str


@dataclass(frozen=True)  # without slots: parts are asked for by several readers and kept
class ExplainedStep:
    """A priced step with what follows from it."""

    bill: StepBill

    @cached_property
    def what_ifs(self) -> list[Counterfactual]:
        return counterfactuals(self.bill)

    @cached_property
    def techniques(self) -> list[TechniqueWorth]:
        """The techniques that would gain most on a served step, beside those that a what-if is about."""
        from commtax.verbs.worth import gaining_most  # not for those who look at the step itself

        return [] if self.bill.question.trains else gaining_most(self.bill.question, [one.changes for one in tries(self.bill)])

    @cached_property
    def verdict(self) -> str:
        return verdict(self.bill, self.what_ifs)

    @property
    def sentence(self) -> str:
        """The verdict, after what the step lacks."""
        return self.verdict if self.memory.fits else f"{self.lacking} {self.verdict}"

    @cached_property
    def library(self) -> str:
        """Whose collectives run, by name."""
        return fabric_of(self.bill.question).name

    @cached_property
    def layer(self) -> LayerTimeline:
        return layer_of(self.bill)

    @cached_property
    def memory(self) -> Memory:
        b, q, tokens = self.bill, self.bill.question, None
        if q.trains:
            where = "a rank of the first stage, which keeps the most activations; " if q.plan.pp > 1 else ""
            note = f"{where}a run can use {USABLE:.0%} of what the driver reports"
            sizes, holds = {name: float(getattr(b.memory, name)) for name in HELD}, bool(fits(b))
        else:
            room, seqs, each = fit_of_step(q), int(q.batch), int(q.context) + 1
            tokens, holds = room.kv_tokens, room.holds_one and room.holds(seqs, each)
            note = f"room for {tokens:,} cached tokens per replica; this batch has {seqs * each:,}"
            blocks = room.kv_bytes_per_token * (seqs * each) + room.state_bytes_per_sequence_per_rank * seqs
            if not room.state_bytes_per_sequence_per_rank and (whole := int(room.pool.tokens(room.kv_blocks))):
                blocks = room.kv_bytes * (seqs * each) / whole
            sizes = {
                "weights": room.weights_bytes,
                "activations": room.activation_bytes,
                "graphs and other": room.other_bytes + room.graph_bytes,
                "KV cache of this batch": blocks,  # and its states
            }
        parts = [MemoryPart(name, nbytes) for name, nbytes in sizes.items() if nbytes]
        return Memory(q.cluster.chip.visible_bytes, sum(part.nbytes for part in parts), holds, parts, tokens, note)

    @cached_property
    def lacking(self) -> str:
        """What a step that does not fit lacks: the answer's first words, since it cannot run."""
        m, q = self.memory, self.bill.question
        needed = f"Does not fit in memory: each rank needs {format_bytes(m.used_bytes)} and has {format_bytes(m.capacity_bytes)}"
        if q.trains:
            what, lacks = "It", f"{needed}, {USABLE:.0%} of it usable"
            remedies: Sequence[str] = train_holds(q).advice[:1]
        else:
            work, room = (int(q.batch), int(q.context) + 1), fit_of_step(q)
            remedies = plans_with_room(room, lambda judged: judged.holds(*work))
            left = f", of which {q.engine.name} leaves {format_bytes(room.kv_bytes)} for the cache"
            what, lacks = "This batch", f"{needed}{left * (m.used_bytes <= m.capacity_bytes)}; {m.note}"
        return f"{lacks}. {what} would fit with {', or with '.join(remedies)}." if remedies else f"{lacks}."

    @cached_property
    def thresholds(self) -> LessonInequalities | None:
        return thresholds(self.bill) if self.bill.question.trains else None

    @cached_property
    def binding(self) -> Binding:
        b, trains = self.bill, self.bill.question.trains
        axis = b.binding if trains else max(SIZES, key=lambda axis: float(b.exposed_on(axis)))
        if axis == "compute" or (not trains and float(b.comm_fraction) < SMALL):
            return Binding("compute", "compute-bound: communication is small or hidden")
        lines = [x for x in b.items if x.kind in ("comm", "bubble") and x.item.whole_axis == axis]
        top = max(lines, key=lambda x: float(x.exposed_s))
        exposed, kind = format_seconds(float(top.exposed_s)), "latency" if float(top.fixed_s) > float(top.moving_s) else "bandwidth"
        if top.kind == "bubble":
            return Binding(axis, f"the pipeline's bubble, {exposed} per step")
        return Binding(axis, f"{kind} of {top.item.what} {top.item.op} over {top.link}, {exposed} exposed")

    @cached_property
    def axes(self) -> list[AxisTax]:
        """One for each axis that sends anything."""
        return [_tax(self, axis, lines) for axis in SIZES if (lines := comm_of(self.bill, axis))]


def _tax(step: ExplainedStep, axis: AxisName, lines: list[Line]) -> AxisTax:
    b, trains, exposed = step.bill, step.bill.question.trains, float(step.bill.exposed_on(axis))
    top = max(lines, key=lambda x: (float(x.exposed_s), float(x.total_s)))
    bubble = float(b.bubble_s) if trains and axis == "pp" else 0.0
    return AxisTax(
        axis=axis,
        collective=f"{top.item.what} {top.item.op}",
        nbytes=float(top.item.nbytes),
        ranks=float(top.item.ranks),
        times=float(top.item.count),
        link=str(top.link),
        more=len(lines) - 1,
        top_s=float(top.total_s),
        window_s=float(top.window_s) if trains and b.runs_beside(top) else 0.0,
        comm_s=sum(float(x.total_s) for x in lines),
        exposed_s=exposed,
        bubble_s=bubble,
        tax=(exposed + bubble) / float(b.step_s),
        hidden=trains and axis in b.async_axes and all(float(x.total_s) <= float(x.window_s) for x in lines),
        binding=axis == step.binding.axis,
        formula=formula(top, b.question.cluster.chip),
        source=source(top, step.library),
    )


def formula(line: Line, chip: Chip) -> str:
    """Write a line's seconds as ``64 × (4.83 µs + 2·(8−1)/8·8 KiB ÷ 66.6 GB/s) = 323 µs``: times, latency, bytes over rate."""
    each, count = _per_call_words(line, chip), float(line.item.count)
    times = f"{count:,.0f}" if count == int(count) else f"{count:.4g}"
    return f"{each if count == 1 else f'{times} × ({each})'} = {format_seconds(float(line.total_s))}"


def _per_call_words(line: Line, chip: Chip) -> str:
    fixed, seconds, item = float(line.fixed_s), float(line.moving_s), line.item
    nbytes, flops, ranks = float(item.nbytes), float(line.flops), int(item.ranks)
    if seconds <= 0:
        return format_seconds(fixed)
    if line.kind == "comm" and nbytes > 0 and ranks > 1:
        sent, factor = float(item.sent_bytes_per_rank) / float(item.count), WIRE.get(item.op, "({n}−1)/{n}·").format(n=ranks)
        moving = f"{factor}{format_bytes(nbytes)} ÷ {format_rate(sent / seconds)}"
    elif flops / line.peak_flops_per_s > nbytes / chip.memory_Bps:
        moving = f"{format_si(flops, 'FLOP')} ÷ {format_si(flops / seconds, 'FLOP/s')}"
    else:
        moving = f"{format_bytes(nbytes)} ÷ {format_rate(nbytes / seconds)}" if nbytes else format_seconds(seconds)
    return f"{format_seconds(fixed)} + {moving}" if fixed > 0 else moving


def share_formula(segment: LayerSegment, chip: Chip) -> str:
    """Write a bar of the layer: the line's sum, and this bar's share of it."""
    line, share = segment.line, segment.seconds
    words = f"{_per_call_words(line, chip)} each; here {share / float(line.each_s or 1):.3g} × = {format_seconds(share)}"
    return words if float(line.total_s) else ""


def source(line: Line, library: str) -> str:
    """Describe the source of a number: its kind first, then its name."""
    name = f"{library} over {line.link}" if line.kind == "comm" else ""
    kind = "datasheet: NIC bandwidth, hierarchical formula" if line.source.kind == "datasheet" else line.source
    return f"{kind}: {name}" if name and ":" not in kind else f"{kind}, {name}" if name else kind


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
    """Return the lesson's numbers beside ours, and why they differ. Its formulas are ``commtax.napkin``'s, number for number."""
    rows = _trained_lesson(b) if b.question.trains else _served_lesson(b)
    return Lesson(bool(rows), rows)


def _trained_lesson(b: StepBill) -> list[LessonRow]:
    plan, model, t, rows = b.question.plan, b.question.model, thresholds(b), list[LessonRow]()
    sizes = model.hidden, model.num_layers, int(plan.tp), int(plan.pp)
    textbook = napkin.overlap_calculator(*sizes, t.local_tokens, num_microbatches=int(plan.microbatches))
    if plan.tp > 1:
        ours = f"{float(b.exposed_on('tp')) / float(b.compute_s):.1%}"
        rows.append(LessonRow("TP tax, of compute", f"{textbook['tp_tax']:.1%}", ours, _tp_why(b, t.tp_tax)))
    if plan.dp > 1 and t.dp_tokens:
        whole = sum(float(x.total_s) for x in b.items if x.item.axis in ("dp", "shard", "edp", "replica"))
        theirs = f"{textbook['dp_threshold']:,.0f}: {t.local_tokens:,.0f} {'hides' if textbook['dp_hides'] else 'does not hide'}"
        ours = f"{t.dp_tokens:,.0f}: {float(b.exposed_on('dp')) / whole:.0%} of it is exposed"
        wire = {0: "all-reduced once", 3: "sharded, gathered twice"}.get(plan.zero, "scattered, then gathered")
        why = (
            f"peak·MFU/BW supposes 40% MFU and 50 GB/s; ours takes this step's own rate and link, gradients in "
            f"{plan.grads_dtype} {wire}; one bucket hides nowhere, and what hides takes SMs and bandwidth from compute"
        )
        rows.append(LessonRow("DP threshold, tokens per GPU", theirs, ours, why))
    if plan.pp > 1:
        why = "(pp−1)/(M+pp−1) is of equal stages alone; ours is of the whole step, with its schedule, taxes and the update"
        rows.append(LessonRow("PP bubble", f"{textbook['pp_bubble']:.1%}", f"{float(b.bubble_fraction):.1%}", why))
    why = "the textbook starts from 50% and takes 30% off where DP does not hide; ours prices every kernel and collective"
    return [*rows, LessonRow("MFU", f"{textbook['mfu']:.1%}", f"{float(b.mfu):.1%}", why)]


def _tp_why(b: StepBill, formula: float) -> str:
    plan, cluster = b.question.plan, b.question.cluster
    tp, lines = int(plan.tp), [x for x in b.items if x.item.axis == "tp" and x.kind == "comm"]
    links = " and ".join(sorted({str(x.link) for x in lines}))
    degree = f"⅓·peak/(BW·h) is the tax of TP 2 for every degree; each of {tp} ranks computes 1/{tp} but reduces all"
    if tp > LESSON_RANKS:
        share = f"reduces inside a host first, so that {cluster.nics_per_host} NICs per host carry a share each"
        ours = share if any(x.via == "hierarchical" for x in lines) else "prices the collective that the library picks"
        past = f"past {LESSON_RANKS} ranks it takes one NIC of 50 GB/s for the whole group"
        return f"{degree}; {past}; ours goes over {links} and {ours}"
    return (
        f"{degree}: (T−1)/3·rate/(BW·h) is {formula:.1%} of the forward pass. It takes 900 GB/s, both directions together; "
        f"ours goes over {links}, one direction, with latency, over the whole step"
    )


def _served_lesson(b: StepBill) -> list[LessonRow]:
    lines = [x for x in b.items if x.kind == "comm" and x.item.axis == "tp" and x.item.op == "all-reduce"]
    if not lines:
        return []
    top, q = max(lines, key=lambda x: float(x.exposed_s)), b.question
    tax = napkin.overlap_calculator(q.model.hidden, q.model.num_layers, int(q.plan.tp), int(q.plan.pp), 1)["tp_tax"]
    theirs, ours = f"2S/BW = {format_seconds(2 * float(top.item.nbytes) / LESSON_BPS)}", format_seconds(float(top.each_s))
    alone = f"bytes over bandwidth alone; {format_seconds(float(top.fixed_s))} of ours is latency, which no bandwidth buys back"
    degree = f"the textbook counts {format_rate(LESSON_BPS)} (both directions), no latency and the tax of TP 2 at every degree"
    reads = "; and decoding reads weights rather than multiplies, so its compute is not FLOPs over peak"
    share = f"{float(b.exposed_on('tp')) / float(b.compute_s):.1%}"
    tp_row = LessonRow("TP tax, of compute", f"⅓·peak/(BW·h) = {tax:.1%}", share, degree + reads * (q.phase == "decode"))
    return [LessonRow("one all-reduce", theirs, ours, alone), tp_row]
