"""The shapes of an explanation: sizes, floor, constants, effects, parts and doubts of one line of a bill; whose effects are."""

from collections.abc import Mapping
from dataclasses import field

from commtax.catalog.effects import citation_of, engine_number, mechanism
from commtax.cost.kernels import Factor
from commtax.question import Question
from commtax.records import dataclass
from commtax.statement import Source

NO_SOURCE = Source("")
Sizes = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class TimePart:
    """Seconds of one launch that one cause takes. Parts add up; alone a cause may take longer, since causes overlap."""

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
    """A number that is multiplied onto a line (or decides its sizes), fitted or asked for, and its mechanism."""

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
    """Of one launch of a line; parts sum to its seconds."""

    parts: tuple[TimePart, ...]
    shape: Sizes = field(default_factory=dict)
    nbytes: float = 0.0
    flops: float = 0.0
    floor: Floor | None = None
    priced_by: PricedBy | None = None
    way: CollectiveWay | None = None
    effects: tuple[Effect, ...] = ()
    source: Source = NO_SOURCE
    doubts: tuple[str, ...] = ()


def engine_effect(q: Question, name: str) -> Effect:
    """An engine's own number."""
    return _effect(q, (name, engine_number(q.engine, name) or 0.0))


def factor_effects(q: Question, factors: tuple[Factor, ...]) -> tuple[Effect, ...]:
    """Factors that change something."""
    return tuple(_effect(q, factor) for factor in factors if float(factor[1]) != 1.0)


def _effect(q: Question, factor: Factor) -> Effect:
    name, value = factor
    known = mechanism(name)
    return Effect(name, float(value), known.kind, known.on, known.mechanism, _source(q, name))


def _source(q: Question, name: str) -> str:
    """Whose a number is: an engine's file, the kernels' constants of whole steps, or the question's."""
    if known := citation_of(q.engine, name):
        return f"{q.engine.key} {q.engine.version}: {known}"
    if "." in name:
        return f"whole steps of {q.cluster.chip.family} chips (catalog/kernels, {name})"
    if (kind := mechanism(name).kind) == "profile" and q.profile:
        return str(q.profile.label)
    return "as asked for" if kind == "what-if" else ""
