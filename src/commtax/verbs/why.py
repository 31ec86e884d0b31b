"""Explanations of a line of a bill, all from the functions that priced it: ``commtax.why(bill, "experts")``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from itertools import chain

import numpy as np

from commtax.answer import Answer
from commtax.catalog.fabric import source_title
from commtax.catalog.loader import table as catalogue_table
from commtax.catalog.programs import citation_of, engine_number, mechanism, mechanisms
from commtax.cost import kernels
from commtax.cost.collectives import ALGORITHMS, cross_domains, factor_over
from commtax.cost.forms import equation_of
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.kernels import CARRIERS, Factor, equation, terms
from commtax.cost.pricing import Pricer, all_reduce_share, host_parts, in_step, scaled_s
from commtax.cost.training import Kernels, scales
from commtax.ledger import Z80, Line
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import Fabric, KernelHabits, Number, Path, TrainingHabits
from commtax.statement import Refusal, Source
from commtax.verbs.billing import StepBill, by_cost, labels
from commtax.verbs.settling import terms_of

Sizes = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class TimePart:
    """Seconds of one launch that one cause takes. Parts add up, while alone a cause may take longer, since causes overlap."""

    name: str
    what: str
    seconds: float
    alone_s: float | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """What a launch takes at the least: bytes at the datasheet's bandwidth, FLOPs at its peak, whichever is longer."""

    bytes_s: float
    flops_s: float
    seconds: float
    binds: str
    bandwidth_Bps: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class PricedBy:
    """What turns sizes into seconds: a form or an algorithm, its equation, its constants and where they are from."""

    form: str
    equation: str
    table: str
    constants: Mapping[str, float]
    kind: str  # calibrated, transferred, assumed …
    source: str
    measured_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """A number that is multiplied onto a line (or decides its sizes), fitted or requested, and its mechanism."""

    name: str
    value: float
    kind: str
    on: str
    mechanism: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveWay:
    """How a collective goes: path, link, and the window that it may hide in."""

    op: str
    path: str
    link: str
    ranks: float
    domains: float
    sent_bytes: float  # that a rank sends each time, at the least
    reason: str
    library: str
    window: str = ""
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LikelyRange:
    """Standard deviation of the logarithm, the 80 % range of the exposed seconds, and why it is so wide."""

    sigma: float
    low_s: float
    high_s: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One launch of a line, whose parts sum to its seconds."""

    parts: tuple[TimePart, ...]
    shape: Sizes = field(default_factory=dict)
    nbytes: float = 0.0
    flops: float = 0.0
    floor: Floor | None = None
    priced_by: PricedBy | None = None
    way: CollectiveWay | None = None
    effects: tuple[Effect, ...] = ()
    source: Source = Source("")
    doubts: tuple[str, ...] = ()


def engine_effect(q: Question, name: str) -> Effect:
    """Return the effect of an engine's own number."""
    return _effect(q, name, engine_number(q.engine, name) or 0.0)


def factor_effects(q: Question, factors: tuple[Factor, ...]) -> tuple[Effect, ...]:
    """Return the effects of factors other than 1."""
    return tuple(_effect(q, name, value) for name, value in factors if float(value) != 1.0)


def _effect(q: Question, name: str, value: Number) -> Effect:
    """Return an effect with its source: an engine's file, the kernels' constants of whole steps, or the question."""
    row, source = mechanism(name), ""
    if citation := citation_of(q.engine, name):
        source = f"{q.engine.key} {q.engine.version}: {citation}"
    elif "." in name:
        source = f"whole steps of {q.cluster.chip.family} chips (catalog/kernels, {name})"
    elif row.kind == "profile" and q.profile:
        source = str(q.profile.label)
    elif row.kind == "what-if":
        source = "as asked for"
    return Effect(name, float(value), row.kind, row.on, row.mechanism, source)


MOST_LISTED = 24  # lines that a refusal lists
CONSTANTS = (
    *("bandwidth_Bps", "launch_s", "hop_s", "extra_s", "each_s", "sqrt_s", "beside_s", "local_s", "copied", "wire_share"),
    "mesh",
)
ACROSS = ("efficiency", "norm", "hops", "pipelining", "eager_s")  # constants of a path, and of the network between hosts
SIZED = {"gemm": ("m", "n", "k"), "attention": ("batch", "heads", "kv_heads", "head_dim", "length", "past")}
"""Sizes of a kernel that its own record holds, of products and of attention."""
UNFITTED = {f.name: f.default for habits in (KernelHabits, TrainingHabits) for f in fields(habits)}
"""What an engine's numbers are where nothing was fitted."""
WHEN: Mapping[str, Callable[[Question], bool]] = {
    "": lambda _: True,
    "eager": lambda q: q.what_if.eager,
    "compiled": lambda q: not q.what_if.eager,
    "grouped": lambda q: not q.engine.kernels.fused_experts,
    "biased": lambda q: q.model.experts is not None and q.model.experts.bias and not q.engine.kernels.fused_experts,
}
"""When an effect on sizes counts, by its name in ``effects.toml``."""


@dataclass(frozen=True, slots=True)
class Why(Answer):
    """A line of a bill, its number there (the costliest is 1), and its explanation: parts that add up to its seconds.

    >>> import commtax
    >>> line = commtax.why(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8), "1")
    >>> abs(line.explained_s - line.exposed_s) < 1e-9
    True
    """

    bill: StepBill
    number: int
    line: str
    kind: str
    how: str
    times: float
    each_s: float
    total_s: float
    hidden_s: float
    exposed_s: float
    share: float  # of the step
    explanation: Explanation
    range: LikelyRange
    bound: str = ""  # of a collective: latency or bandwidth, as the bill calls it

    @property
    def explained_s(self) -> float:
        """What the parts add up to: the line's exposed seconds."""
        return self.times * sum(part.seconds for part in self.explanation.parts) - self.hidden_s


def line_number(names: Sequence[str], wanted: str) -> int:
    """Return the line that a text means: its number, its whole name, or a part that one name alone has."""
    text = " ".join(wanted.lower().split())
    if text.isdecimal() and 1 <= int(text[:9]) <= len(names):
        return int(text) - 1
    alike = [i for i, name in enumerate(names) if text and text in name.lower()]
    exact = [i for i in alike if names[i].lower() == text]
    if len(exact or alike) == 1:
        return (exact or alike)[0]
    listed = [f"{i + 1} {names[i]}" for i in (alike or range(len(names)))]
    more = f"; … and {len(listed) - MOST_LISTED} more, up to number {len(names)}" if len(listed) > MOST_LISTED else ""
    rule = f"{len(alike)} lines have this in their name" if alike else "no line has this name or number"
    raise Refusal.of(f"{rule}: {'; '.join(listed[:MOST_LISTED])}{more}", why=wanted[:60])


def why(b: StepBill, wanted: str) -> Why:
    """Explain why a line of a bill takes as long as it does. ``wanted`` is its number (the costliest is 1) or a part of its name.

    >>> import commtax
    >>> step = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)
    >>> line = commtax.why(step, "attention output")
    >>> [part.name for part in line.explanation.parts]
    ['latency', 'wire']
    """
    names = labels(b)
    index = line_number(names, wanted)
    return _explain_line(b, by_cost(b)[index], index + 1, names[index])


def every_why(b: StepBill) -> list[Why]:
    """Explain all lines, the costliest first."""
    return [_explain_line(b, line, i, name) for i, (line, name) in enumerate(zip(by_cost(b), labels(b), strict=True), 1)]


def _explain_line(b: StepBill, x: Line, number: int, name: str) -> Why:
    explanation = EXPLAINED[x.kind](b, x)
    times = {key: float(getattr(x, key)) for key in ("each_s", "total_s", "hidden_s", "exposed_s")}
    sigma, share = float(x.sigma), float(x.exposed_s) / float(b.step_s)
    low, high = (times["exposed_s"] * float(np.exp(side * Z80 * sigma)) for side in (-1, 1))
    return Why(
        b, number, name, x.kind, x.item.op, float(x.item.count), **times, share=share, explanation=explanation,
        range=LikelyRange(sigma, low, high, explanation.doubts), bound=x.bound if x.kind == "comm" else "",
    )  # fmt: skip


def explained_kernel(b: StepBill, x: Line) -> Explanation:
    q, k, t = b.question, x.priced_from, terms_of(b.question)
    assert isinstance(k, Kernel)
    chip, rate = t.cluster.chip, kernels.peak(k, t.cluster.chip, t.constants)
    applied = Kernels(t).applied(k) if q.trains else kernels.applied_in_serving(k, t)
    charged = kernels.charged_as(k, chip, t.constants, applied.rate)
    pace = 1.0  # of a step with prompts, where runs taught it
    if t.engine.paces.pace_prompt_steps != 1:
        pace = float(x.each_s / sum(kernels.applied_s(k, chip, t.constants, applied)))
    moved, computed, least = float(k.nbytes) / chip.memory_Bps, float(k.flops) / rate, float(kernels.least_s(k, chip, t.constants))
    names = SIZED["gemm"] if float(k.m) else SIZED["attention"] if float(k.batch) else ()
    sizes: dict[str, float | str] = {name: float(getattr(k, name)) for name in names}
    if is_dataclass(k.shape):
        sizes |= {f.name: float(getattr(k.shape, f.name)) for f in fields(k.shape)}
    sizes = {name: value for name, value in sizes.items() if value}
    source, table = kernels.kernel_source(k, t.constants), kernels.table_of(charged, t.constants)
    constants = {name: float(value) for name, value in kernels.constants_of(charged, t.constants).items() if name != "sigma"}
    home = tuple(catalogue_table("kernels", t.constants.family).get("measured_on", ()))
    instead = f"; in the place of {k.stored}, which has no table" if k.stored and not table.endswith(f".{k.stored}") else ""
    if charged is not k:
        instead = "; nobody timed 8 bits here, which take no longer than these 16"
    fused = (("small_kernels" if k.form == "small" else "chained", 1 - float(k.fused)),) if k.fused else ()
    rates = applied.rates if float(k.flops) else ()  # what computes nothing has no arithmetic to slow down
    slower = ("slow_rank", applied.slow_rank), applied.pace, ("pace_prompt_steps", pace)
    return Explanation(
        parts=tuple(_parts(k, charged, t, applied, pace)),
        shape=sizes | {"arithmetic": k.dtype, "weight_bytes": k.weight_bytes} | ({"stored": k.stored} if k.stored else {}),
        nbytes=float(k.nbytes),
        flops=float(k.flops),
        floor=Floor(moved, computed, least, "bytes" if moved >= computed else "FLOPs", chip.memory_Bps, rate),
        priced_by=PricedBy(k.form, equation(k.form), table, constants, source.kind, f"{source}{instead}", home),
        effects=(*factor_effects(q, (*rates, *fused, *slower)), *_size_effects(k, q)),
        source=x.source,
        doubts=tuple(_doubts(k, t, q.trains)),
    )


def _parts(k: Kernel, charged: Kernel, t: PricingTerms, a: kernels.KernelFactors, pace: float) -> Iterator[TimePart]:
    """Yield each carrier's seconds inside the step, of the kernel whose form is charged, and what floors add to them."""
    chip, left, slower = t.cluster.chip, 1 - float(k.fused), a.slow_rank * a.pace[1] * pace
    fixed = moving = 0.0
    for term in terms(charged, chip, t.constants, a.rate):
        seconds = term.fixed_s * left * slower, term.moving_s * slower
        fixed, moving = fixed + seconds[0], moving + seconds[1]
        yield TimePart(term.name, CARRIERS[term.name], sum(seconds), term.alone_s * slower)
    if (lacking := a.launch_s * slower - fixed - moving) > 0:
        yield TimePart("launch_s", "without graphs a kernel takes at least its launch", lacking)
    elif a.pace[1] < 1 and (lacking := pace * float(sum(kernels.applied_s(k, chip, t.constants, a))) - fixed - moving) > 0:
        yield TimePart("floor", "no kernel beats bandwidth and peak", lacking)


def _size_effects(k: Kernel, q: Question) -> Iterator[Effect]:
    for name, row in mechanisms().items():
        kernels = (k.form in row.forms or k.part in row.parts) and k.part not in row.but_parts and not k.casts
        fitted = engine_number(q.engine, name) not in (None, UNFITTED.get(name))
        if kernels and fitted and row.changes == "sizes" and WHEN[row.when](q):
            yield engine_effect(q, name)
    if k.part in mechanisms()["imbalance"].parts and q.what_if.imbalance:
        yield from factor_effects(q, (("imbalance", q.what_if.imbalance),))


def _doubts(k: Kernel, t: PricingTerms, trains: bool) -> Iterator[str]:
    constants, source = t.constants, t.constants.label if trains else kernels.kernel_source(k, t.constants)
    whole = constants.tables["train.bf16"]["sigma"] if trains else constants.sigma
    yield f"{whole:g}: kernels of whole {'training ' if trains else ''}steps on {constants.family} chips against measured ones"
    table_sigma = 0.0 if trains else constants.tables[kernels.table_of(k, constants)].get("sigma", 0.0)
    if table_sigma > whole:
        yield f"{table_sigma:g}: rows of the table {kernels.table_of(k, constants)} that were not fitted"
    if source.kind == "transferred":
        yield f"{kernels.TRANSFERRED_SIGMA:g} beside it: {source}"
    if source.kind == "assumed" and not trains:
        yield f"{kernels.UNMEASURED_SIGMA:g} at the least: {source}"


def explained_collective(b: StepBill, x: Line) -> Explanation:
    q = b.question
    pricer = Pricer(terms_of(q) if q.trains else in_step(terms_of(q), q.work))
    if pricer.pairs and pricer.span(x.item.axis).paired:
        pricer = pricer.pairs
    settings = scales(x.item, q.what_if, q.engine) if q.trains else q.what_if
    chosen, (fabric, op), where = pricer.price(x.item), pricer.priced_by(x.item), pricer.span(x.item.axis)
    crosses = bool(where.crosses)
    path = (fabric.network_paths if crosses else fabric.paths)[op][int(chosen.path)]
    paces = ((name, getattr(q.engine.paces, name)) for name in ("pace_latency", "pace_wire"))
    scaled = tuple(float(s) for s in scaled_s(x.item, chosen, q.engine, settings))
    prompts = float(x.each_s) / sum(scaled) if sum(scaled) and q.engine.paces.pace_prompt_steps != 1 else 1.0
    latency, wire = (prompts * s for s in scaled)
    factors: tuple[Factor, ...] = (("reduce_share", all_reduce_share(x.item, q.engine)), *paces, ("pace_prompt_steps", prompts))
    if q.trains and x.item.whole_axis == "dp":
        factors += (("gather_rate", q.engine.trains.gather_rate),)
    ranks, domains = float(x.item.ranks), float(where.domains)
    sent, rate = float(x.item.sent_bytes_per_rank) / float(x.item.count), pricer.cluster.intra.bandwidth_Bps
    window = (x.item.overlaps_with, float(x.window_s)) if float(x.window_s) else ("", 0.0)
    named, width = (x.item.op, str(x.algorithm), str(x.link)), float(np.exp(Z80 * float(x.sigma)))
    return Explanation(
        parts=(
            TimePart("latency", "launch, hops and what fills a pipeline: the same for any size", latency, float(chosen.latency_s)),
            TimePart("wire", "bytes at the rate that the path reaches", wire, float(chosen.wire_s)),
        ),
        shape={"ranks": ranks, "ranks_per_domain": float(where.ranks_per_domain)},
        nbytes=float(x.item.nbytes),
        floor=None if crosses else Floor(sent / rate, 0.0, sent / rate, "bytes", rate, np.inf),
        priced_by=_priced_by(path, fabric, crosses, x),
        way=CollectiveWay(*named, ranks, domains, sent, str(x.why), fabric.name, *window),
        effects=factor_effects(q, factors),
        source=x.source,
        doubts=(f"4 of 5 measured times of such collectives lie within a factor of {width:.2f} of the price ({x.source})",),
    )


def _priced_by(path: Path, fabric: Fabric, crosses: bool, x: Line) -> PricedBy:
    usual: Mapping[str, object] = {f.name: f.default for f in fields(Path)}
    constants = {name: float(getattr(path, name)) for name in CONSTANTS if getattr(path, name) != usual[name]}
    constants |= {f"contention on {world}": slower for world, slower in path.contention}
    network, crossed = fabric.network, crosses and not fabric.flat
    between = {f"network {name}": float(getattr(network, name)) for name in ACROSS} if crossed else {}
    if crossed and network.curves:
        between["network measured"] = float(factor_over(network, x.item.op, float(x.item.nbytes), float(x.item.ranks)))
    words = equation_of(ALGORITHMS[path.algorithm])
    words = f"{equation_of(cross_domains)}; inside: {words}" if crossed else words
    names = (str(path.source), network.source if crossed else "")
    source = "; ".join(dict.fromkeys(chain((str(x.source),), (source_title(fabric.name, name) or name for name in names if name))))
    return PricedBy(path.algorithm, words, path.name or path.algorithm, constants | between, x.source.kind, source)


def _host(b: StepBill, x: Line) -> Explanation:
    q, others = b.question, [line for line in b.lines if line.kind != "host"]
    parts = {str(x.priced_from): x.fixed_s} if q.trains else host_parts(others, q.work, terms_of(q))
    spent = {name: float(value) for name, value in parts.items() if float(value)}
    effects = tuple(engine_effect(q, name) for name in spent)
    shown = tuple(TimePart(one.name, one.mechanism, spent[one.name]) for one in effects)
    doubt = f"{x.source.kind}: standard deviation of the logarithm of this engine's host time"
    engine_effects = tuple(one for one in effects if one.value)  # how late collectives are is their library's
    return Explanation(parts=shown, effects=engine_effects, source=x.source, doubts=(doubt,))


def _bubble(b: StepBill, x: Line) -> Explanation:
    plan = b.question.plan
    shape = {"pp": float(plan.pp), "microbatches": float(plan.microbatches), "chunks": float(plan.chunks)}
    words = f"stages idle while the schedule {plan.schedule} fills and drains: by the seconds of a microbatch in a stage"
    doubts = ("by definition: as sure as the lines that a stage is made of",)
    return Explanation(shape=shape, parts=(TimePart("idle", words, float(x.moving_s)),), source=x.source, doubts=doubts)


EXPLAINED = {"compute": explained_kernel, "comm": explained_collective, "host": _host, "bubble": _bubble}  # by a line's kind
