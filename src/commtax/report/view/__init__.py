"""Everything that the page shows for one state, as one document. Every figure is the library's; nothing is computed twice.

``parse`` a query (``state``), ``priced`` it, and ``view`` says it: sentence, totals, one layer, axes, bill, what-ifs, memory.
"""

import shlex
from collections.abc import Mapping

from commtax.emit import launch_command, nccl_command
from commtax.emit.serving import SERVING
from commtax.ledger import Line
from commtax.question import Question
from commtax.records import dataclass
from commtax.report.bills import how_sent, weakest
from commtax.report.documents import Value, filled
from commtax.report.view.state import SHORT, State, arguments, config_text, shortened, written
from commtax.spec import SIZES
from commtax.units import format_seconds
from commtax.verbs.asking import describe_gpus, settle
from commtax.verbs.billing import StepBill, by_cost, price
from commtax.verbs.explained import AxisTax, Binding, Explained, Lesson, Memory, formula, lesson, share_formula, source
from commtax.verbs.layer import Bar, Lane, Span, Stage
from commtax.verbs.moves import instead, moves

Patch = dict[str, Value]
"""Keys of the state, and what they are set to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    comm_fraction: float
    tokens_per_s: float
    bubble_fraction: float = 0.0
    mfu: float | None = None
    hfu: float | None = None
    mfu_definition: str = ""
    local_tokens: float | None = None
    fits: bool
    source: str


@dataclass(frozen=True, slots=True)
class BarShape:
    lane: Lane
    axis: str
    stage: Stage
    name: str
    start_s: float
    end_s: float
    latency_s: float
    bandwidth_s: float
    exposed: tuple[Span, ...]
    hidden: tuple[Span, ...]
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class LayerShape:
    length_s: float
    note: str
    bars: list[BarShape]


@dataclass(frozen=True, slots=True)
class BillLine:
    kind: str
    axis: str
    what: str
    how: str
    why: str
    nbytes: float
    times: float
    each_s: float
    latency_s: float
    total_s: float
    share: float
    exposed_s: float
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Change:
    label: str
    step_s: float
    change: float
    note: str
    patch: Patch | None


@dataclass(frozen=True, slots=True)
class Machine:
    gpus: int
    used_gpus: int
    text: str


@dataclass(frozen=True, slots=True)
class Move:
    """What one place of a slider sets, and what it says of sizes that follow."""

    patch: Patch
    note: str


@dataclass(frozen=True, slots=True)
class Instead:
    """Sizes that would be legal, and their names."""

    patch: Patch
    text: str


@dataclass(frozen=True, slots=True)
class Commands:
    """All lines, each empty where there is none, with the reason."""

    commtax: str
    launch: str
    launch_engine: str
    launch_why: str
    nccl: str
    nccl_why: str


@dataclass(frozen=True, slots=True)
class View:
    """Everything for one repaint."""

    state: Patch
    title: str
    sentence: str
    binding: Binding
    notes: tuple[str, ...]
    cluster: Machine
    local_tokens: float | None
    totals: Totals
    layer: LayerShape
    axes: list[AxisTax]
    bill: list[BillLine]
    changes: list[Change]
    memory: Memory
    commands: Commands
    lesson: Lesson
    limits: dict[str, list[int]]
    moves: dict[str, list[Move]]


def legal_instead(state: State) -> Instead | None:
    """What a refused state could be with other sizes; none where its sizes are not what is wrong."""
    try:
        alone = price(settle(state.but(dict.fromkeys(SIZES, 1)).question)).question
    except (ValueError, OverflowError):
        return None
    near = instead(alone, {axis: state[axis] for axis in SIZES})
    return Instead(shortened(near[0]), near[1]) if near else None


def view(state: State) -> View:
    """All that is shown at once; the slower pictures (grids, plans, the pipeline) are asked for on their own."""
    return view_of(Explained(price(settle(state.question))), state)


def view_of(step: Explained, state: State, command: str = "") -> View:
    """The view of a bill; ``command`` is the line that priced it, where it was not the state."""
    b, q = step.bill, step.bill.question
    ways = moves(q)
    untrained = {} if q.trains else {"mfu": None, "hfu": None, "mfu_definition": ""}
    return filled(
        View,
        *(step, b),
        state=dict(normal(state, q).keys),
        title=f"{q.model.key} on {q.cluster.key}: {describe_gpus(q.plan)}, {q.engine.name}",
        cluster=_machine(q),
        local_tokens=step.thresholds.local_tokens if step.thresholds else None,
        totals=filled(Totals, b, step.thresholds, fits=step.memory.fits, source=weakest(b), **untrained),
        layer=filled(LayerShape, step.layer, bars=[_bar(x, step) for x in step.layer.bars]),
        bill=[_line(x, step) for x in by_cost(b)],
        changes=[Change(c.what, c.step_s, c.delta_s / float(b.step_s), c.note, patch_of(c.changes, q)) for c in step.what_ifs],
        commands=commands(state, b, command),
        lesson=lesson(b),
        limits={name: [move.value for move in way] for name, way in ways.items()} | _limits(q, state),
        moves={name: [Move(shortened(move.sizes), move.note) for move in way] for name, way in ways.items()},
    )


def normal(state: State, q: Question) -> State:
    """The state with what was left to the engine said aloud."""
    asked = {"m": not state.file, "c": True, "e": "@" not in state["e"], "s": True, "z": q.trains, "sp": True}
    said = written(q)
    return state.but({name: said[name] for name, open_ in asked.items() if open_})


def _bar(bar: Bar, step: Explained) -> BarShape:
    s = bar.segment
    return filled(
        BarShape,
        bar,
        s,
        axis=s.line.item.whole_axis,
        name=f"{s.name} {s.line.item.op}" if s.lane == "comm" else s.name,
        latency_s=s.fixed_s,
        bandwidth_s=s.moving_s,
        formula=share_formula(s, step.bill.question.cluster.chip),
        source=source(s.line, step.library),
    )


def _line(x: Line, step: Explained) -> BillLine:
    b = step.bill
    return filled(
        BillLine,
        x,
        x.item,
        axis=x.item.whole_axis,
        how=how_sent(x),
        times=x.item.count,
        latency_s=x.fixed_s,
        share=float(x.exposed_s) / float(b.step_s),
        formula=formula(x, b.question.cluster.chip),
        source=source(x, step.library) if x.kind == "comm" else x.source,
    )


UNTOLD = ("speculative", "shard")
"""What a what-if sets back and the page never sets."""


def patch_of(changes: Mapping[str, object], q: Question) -> Patch | None:
    """The keys that a what-if sets; none where the state has no key for it (a link that nobody sells)."""
    names = SHORT | {"weights_dtype": "dt"} | ({"batch": "n"} if q.trains else {})
    asked = [field for field in changes if field not in UNTOLD]
    if any(field not in names for field in asked):
        return None
    after = written(q.but(**changes))
    return {names[field]: after[names[field]] for field in asked}


def _limits(q: Question, state: State) -> dict[str, list[int]]:
    """Ranges of the sliders that are free."""
    return {
        "b": _doubling(1, 1024, state["b"]),
        "s": _doubling(128, min(2**20, q.model.max_len), state.length),
        "n": _doubling(1, 1024, state["n"]),
        "z": [0, 1, 2, 3],
    }


def _doubling(low: int, high: int, now: int) -> list[int]:
    """Powers of two in a range, and the present value."""
    return sorted({2**i for i in range(21) if low <= 2**i <= high} | {now})


def _machine(q: Question) -> Machine:
    """The cluster in a line."""
    c, used = q.cluster, int(q.plan.num_gpus)
    hosts = f"{c.num_hosts:,} hosts of {c.gpus_per_host}" if c.num_hosts > 1 else f"one host of {c.gpus_per_host}"
    pairs = f", pairs over {c.bridge.name}" if c.bridge else ""
    text = f"{hosts} {c.chip.name}, {c.intra.name} inside{pairs}" + ("" if c.is_one_domain else f", {c.inter.name} between")
    return Machine(c.num_gpus, used, f"{used:,} of {c.num_gpus:,} GPUs in use: {text}")


def commands(state: State, b: StepBill, command: str = "") -> Commands:
    """``command`` is the line that asked, where it was not the state."""
    line = command or shlex.join(["commtax", "bill", *arguments(state)])
    if state.file and not command:
        line = f"echo {shlex.quote(config_text(state))} > {state.file}\n{line}"
    top = assumption(b)
    if top is None:
        return Commands(line, *_launch(b), "", "nothing is sent")
    costs = f"{top.item.what} {top.item.op} costs {format_seconds(top.exposed_s)} of the step"
    why = f"{costs} (its source: {top.source or 'assumed'}); measuring it would narrow the range most"
    return Commands(line, *_launch(b), nccl_command(b, top)[0], why)


def assumption(b: StepBill) -> Line | None:
    """The collective whose uncertainty moves the answer most: exposed time times the spread of its source."""
    lines = [x for x in b.items if x.kind == "comm" and float(x.exposed_s) > 0]
    return max(lines, key=lambda x: (float(x.exposed_s) * float(x.sigma), float(x.exposed_s)), default=None)


def _launch(b: StepBill) -> tuple[str, str, str]:
    """The launch line, its engine, and why there is none."""
    q, key = b.question, b.question.engine.key
    if q.trains:
        engine = "megatron" if key.startswith("megatron") else "torchrun"
    else:
        engine = next((name for name in SERVING if key.startswith(name)), "vllm")
    try:
        return launch_command(q, engine), engine, ""
    except ValueError as error:
        return "", engine, str(error)
