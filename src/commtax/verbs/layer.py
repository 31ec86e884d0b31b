"""One layer on a time axis: which kernels and collectives run when, and what of a collective is exposed.

Serving is a chain: every collective waits for the kernel before it. In training some run beside compute; their hidden part
lies under the pass that hides it and the rest after that pass, so that the length is compute plus what is exposed.
"""

from __future__ import annotations

from typing import Literal

from commtax.cost.inventory import fullest_layers
from commtax.ledger import PLACES, Line, Part
from commtax.records import dataclass
from commtax.verbs.billing import StepBill

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
    """A segment in its place; ``exposed`` and ``hidden`` are the intervals that it is drawn as."""

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
    """The mean layer of a priced step."""
    if b.question.trains:
        plan = b.question.plan
        layers, m = float(fullest_layers(b.question.model, plan)), float(plan.microbatches)
        passes: dict[str, list[LayerSegment]] = {"forward": [], "recompute": [], "backward": []}
        beside: dict[str, list[LayerSegment]] = {"forward": [], "backward": []}
        for x in b.items:
            if x.kind == "compute" and x.item.part not in ENDS:
                passes[x.item.during].append(_segment(x, 1 / (layers * m)))
        for x in b.items:
            if x.kind != "comm" or x.item.axis == "pp" or x.item.part in ENDS or x.item.stage == "once":
                continue
            one = _segment(x, 1 / (layers * (m if _runs_per_microbatch(x, b) else 1.0)))
            waits = x.item.whole_axis not in b.async_axes
            for stage, share in _stages(x, b).items():
                (passes if waits else beside)[stage].append(one.share_of(share))
        ahead, middle = _chain(_interleave_segments(_order_segments(passes["forward"])), beside["forward"], "forward", 0.0)
        back = [*_order_segments(passes["recompute"]), *_interleave_segments(_order_segments(passes["backward"])[::-1])]
        behind, end = _chain(back, beside["backward"], "backward", middle)
        note = f"one of {layers:g} layers of a stage in the last microbatch: forward, then backward"
        rest = " (buckets of the whole stage shared out over its layers)" if plan.zero < 3 and plan.dp > 1 else ""
        return LayerTimeline((*ahead, *behind), end, note + rest)
    bars, length = _chain(layer_segments(b), [], "forward", 0.0)
    return LayerTimeline(tuple(bars), length, f"one of {b.question.model.num_layers} layers, the mean of all, one after the other")


def layer_segments(b: StepBill) -> list[LayerSegment]:
    """The mean layer of a served step in the order in which it runs: all layers together over their number."""
    layers = b.question.model.num_layers
    inside = [x for x in b.items if x.kind != "host" and x.item.part not in ENDS and x.item.stage != "draft"]
    return _order_segments([_segment(x, 1 / layers) for x in inside])


def _segment(line: Line, share: float) -> LayerSegment:
    lane: Lane = "comm" if line.kind == "comm" else "compute"
    times = float(line.item.count) * share
    parts = float(line.fixed_s) * times, float(line.moving_s) * times
    return LayerSegment(lane, line.item.what, *parts, line, float(line.hidden_s) * share)


def _order_segments(segments: list[LayerSegment]) -> list[LayerSegment]:
    """Attention, then the feed-forward part; norms before each."""
    norms = [s.share_of(0.5, s.name.replace("norms", "norm")) for s in segments if s.part == "norms"]
    others = sorted((s for s in segments if s.part != "norms"), key=lambda s: ORDER.get(s.line.item.place, len(ORDER)))
    first, second = ([s for s in others if (s.part in SECOND) == half] for half in (False, True))
    return [*norms, *first, *norms, *second]


def _chain(chain: list[LayerSegment], beside: list[LayerSegment], stage: Stage, start: float) -> tuple[list[Bar], float]:
    """A pass: its chain, with the hidden parts of other collectives under its end and their exposed parts after it."""
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
            exposed = ((after, after + left),) if left > 0 or not hidden else ()
            bars.append(Bar(s, stage, exposed, hidden))
        under, after = under + covered, after + left
    return bars, after


def _runs_per_microbatch(line: Line, b: StepBill) -> bool:
    """Whether a collective runs in every microbatch rather than once a step."""
    plan = b.question.plan
    if line.item.whole_axis != "dp":
        return True
    return int(plan.pp) == 1 if plan.zero == 3 else plan.zero == 2 and line.item.stage != "update"


def _stages(line: Line, b: StepBill) -> dict[str, float]:
    """In which pass a collective runs, and which share of it."""
    again = 1.0 if b.question.plan.recompute == "full" else 0.0  # a second forward, inside backward
    if line.item.stage == "backward":
        return {"backward": 1.0}
    if line.item.whole_axis == "dp":
        twice = b.question.plan.zero == 3 and int(b.question.plan.pp) == 1
        return {"forward": 0.5, "backward": 0.5} if twice else {"forward": 1.0}
    if line.item.stage == "forward":
        return {"forward": 1 / (1 + again)} | ({"backward": again / (1 + again)} if again else {})
    return {"forward": 1 / (2 + again), "backward": (1 + again) / (2 + again)}  # dispatch, keys: in every pass


def _interleave_segments(segments: list[LayerSegment]) -> list[LayerSegment]:
    """Collectives that are told for a whole layer, half after each of its halves, as they run."""
    whole = [s for s in segments if s.part == "layers"]
    rest = [s for s in segments if s not in whole]
    kinds = [s.part in SECOND for s in rest]
    cut = next((i for i in range(1, len(rest)) if kinds[i] != kinds[i - 1]), len(rest))
    half = [s.share_of(0.5) for s in whole]
    return [*rest[:cut], *half, *rest[cut:], *half]
