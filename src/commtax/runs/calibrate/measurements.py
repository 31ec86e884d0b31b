"""What a calibration takes in and gives back; timed kernels of one tensor-parallel rank as kernels of the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypedDict

import numpy as np

from commtax.arrays import Array
from commtax.catalog.physics import MOST_OF_A_LINK
from commtax.cost.collectives import ring_factor
from commtax.cost.kernel import Kernel, KernelContext
from commtax.runs.calibrate import robust_fit
from commtax.spec import DTYPE_BYTES, Cluster, Engine, Model, Number, Profile, Workload
from commtax.statement import Refusal
from commtax.units import plural
from commtax.verbs.expecting import expect
from commtax.verbs.keywords import SimulateOptions

Sizes = Mapping[str, Number]  # columns of numbers
OUT_BYTES = 2.0  # an element of what products and attention write, and of queries: bf16
ATTENTION = ("batch", "length", "heads", "kv_heads", "head_dim")
SHAPES = {"gemm": ("m", "n", "k"), "decode": ATTENTION, "prefill": ATTENTION}


class SweepRow(TypedDict, total=False):
    """One timing, under the names of its JSON line."""

    kind: str  # gemm | decode | prefill | step
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    splits: int
    m: int
    n: int
    k: int
    mode: str
    backend: str
    phase: str
    model: str
    tp: int
    num_layers: int
    engine: str
    version: str
    median_s: float


LEAST_SIZES, LEAST_SPAN = 4, 16
FLOOR_SLACK = 0.98  # of the least time that hardware allows, which a measurement may seem to have
STRANGE = np.log(20)  # a time so many times off is of something else
CLOCKS = 1.05  # times a link's rate that a timing may seem to have


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """One collective: ``label`` names its row for people."""

    library: str
    op: str
    ranks: int
    nbytes: float
    seconds: float
    label: str


@dataclass(frozen=True, slots=True)
class SweptKernel:
    """One kernel of the sweep: its row as it was written."""

    row: SweepRow
    seconds: float
    label: str


class Repetition(NamedTuple):
    """Runs of one load: how many, and the standard deviation of one's logarithm beyond the usual noise."""

    runs: int = 1
    scatter: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A benchmark of a deployment: the question that it answers, and what was measured."""

    model: str | Model
    cluster: Cluster
    options: SimulateOptions  # of ``commtax.simulate``, which answers them: the deployment and its load
    measured: Mapping[str, float]  # seconds by metric: tpot and ttft, means; e2e of a static batch
    noise: Mapping[str, float]  # by metric: its own scatter over that of a mean in a closed loop
    label: str
    repeated: Mapping[str, Repetition] = field(default_factory=dict)  # by metric, where ``measured`` is a median of several runs

    @property
    def engine(self) -> str:
        """Its key in the catalogue."""
        return str(self.options["engine"]).partition("@")[0]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A typical step that a profiler traced: what ran in it, and the seconds of its parts."""

    model: str | Model
    cluster: Cluster
    options: Mapping[str, object]  # of ``commtax.bill``, which prices it: the deployment without its load
    work: Workload
    parts: Mapping[str, float]  # seconds by part (``spec.STEP_PARTS``)
    noise: Mapping[str, float]  # by part: its own scatter over the usual one
    label: str
    disaggregated: bool = False

    @property
    def measured(self) -> Mapping[str, float]:
        return self.parts


Measured = MeasuredRun | MeasuredStep


@dataclass(frozen=True, slots=True)
class MeasurementFiles:
    """Everything that the files hold, the rows that are no measurements, and what was assumed of the others."""

    collectives: tuple[TimedCollective, ...] = ()
    kernels: tuple[SweptKernel, ...] = ()
    runs: tuple[MeasuredRun, ...] = ()
    steps: tuple[MeasuredStep, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def taught(self) -> tuple[Measured, ...]:
        """What tells of engines: runs, and profiled steps."""
        return (*self.runs, *self.steps)

    def __add__(self, other: MeasurementFiles) -> MeasurementFiles:
        return MeasurementFiles(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(MeasurementFiles)))


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """The machine that was measured, whose collectives and kernels ran on it, and what the profile is called."""

    cluster: Cluster
    engine: Engine
    library: str
    name: str


@dataclass(frozen=True, slots=True)
class ConstantChange:
    """One constant: what the catalogue says (None: nothing), and what was measured. ``unit``: s, B/s or ""."""

    name: str
    before: float | None
    after: float
    unit: str = ""
    sigma_before: float = 0.0  # standard deviations of its logarithm, where it has some
    sigma_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Median and 90th percentile of |measured / predicted - 1| over rows, and ``bias``, the median, as factors less 1."""

    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, residuals: Array) -> Errors:
        """Return the errors of residuals ln(measured / predicted)."""
        size = np.expm1(np.abs(residuals))
        return cls(float(np.median(size)), float(np.quantile(size, 0.9)), float(np.expm1(np.median(residuals))))


@dataclass(frozen=True, slots=True)
class Wish:
    """A measurement that would help: where, and how wide the range is there now (a factor less 1)."""

    what: str
    spread: float

    @classmethod
    def at(cls, where: str, variance: float) -> Wish:
        """Return a wish by the variance of logarithms at a place."""
        width = robust_fit.width(float(np.sqrt(variance)))
        return cls(f"{where}: the range there is ±{width:.0%}", width)


@dataclass(frozen=True, slots=True)
class ProfilePart:
    """One fitted piece of the profile."""

    name: str
    rows: int
    changes: tuple[ConstantChange, ...]
    before: Errors
    after: Errors
    spread: float
    outliers: tuple[tuple[str, float], ...] = ()  # a row, and how many times its prediction it took
    notes: tuple[str, ...] = ()
    wishes: tuple[Wish, ...] = ()

    @classmethod
    def of(
        cls, name: str, labels: Sequence[str], before: Array, after: Array, spread: float, changes: Iterable[ConstantChange]
    ) -> ProfilePart:
        """Return a part by ln(measured / predicted) of each row, with the catalogue's constants and with the fitted ones."""
        far = np.flatnonzero(robust_fit.outliers(after)).tolist()
        outliers = ((labels[i], float(np.exp(after[i]))) for i in sorted(far, key=lambda i: -abs(after[i])))
        return cls(name, len(labels), tuple(changes), Errors.of(before), Errors.of(after), spread, tuple(outliers))

    def with_remarks(self, notes: Iterable[str] = (), wishes: Iterable[Wish] = ()) -> ProfilePart:
        return replace(self, notes=(*self.notes, *notes), wishes=(*self.wishes, *wishes))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learnt: the profile as a record and as the document that is written, and how it came about."""

    place: MeasuredMachine
    profile: Profile
    document: Mapping[str, object]
    parts: tuple[ProfilePart, ...]
    refused: tuple[str, ...] = ()  # rows that are no measurements, and groups with too few of them
    notes: tuple[str, ...] = ()  # what was assumed of the runs

    @property
    def wish(self) -> Wish | None:
        """The one further measurement that would help most."""
        return max((w for part in self.parts for w in part.wishes), key=lambda w: w.spread, default=None)


Step = tuple[Profile, list[ProfilePart], list[str]]
"""What one fit gives back: the profile with what it learnt, its parts, and why the rest cannot be told."""


class TooFewError(ValueError):
    """A group of rows that cannot determine its constants, with the number that would."""


def check_sizes(name: str, nbytes: Sequence[float], where: str = "") -> None:
    """Check that sizes are several and far apart, since they tell latency from bandwidth."""
    sizes, span = len(set(nbytes)), max(nbytes) / min(nbytes)
    if sizes < LEAST_SIZES or span < LEAST_SPAN:
        wanted = f"at least {LEAST_SIZES} spanning {LEAST_SPAN}x are needed{where}"
        raise TooFewError(f"{name}: {plural(sizes, 'size')} spanning {span:,.0f}x; {wanted}")


def distinct(rows: Iterable[TimedCollective]) -> list[TimedCollective]:
    """Return rows once each, in an order independent of their files'."""
    kept: dict[tuple[object, ...], TimedCollective] = {}
    for row in rows:
        key = (row.library, row.op, row.ranks, row.nbytes, row.seconds)
        kept[key] = min(kept.get(key, row), row, key=lambda r: r.label)
    return [kept[key] for key in sorted(kept)]


def check_row(row: TimedCollective, cluster: Cluster) -> None:
    """Refuse a row that is faster than its link can carry it.

    Across hosts every byte crosses once at least, even where switches add; inside one domain a path may send fewer bytes than the
    tensor has (quantised), over both directions.
    """
    crosses = row.ranks > cluster.domain
    link = cluster.inter if crosses else cluster.intra
    if link.kind == "memory":  # as fast as the machine is
        return
    least = float(expect(row.op, cluster, nbytes=row.nbytes, ranks=row.ranks, library=row.library).floor_s)
    if crosses and row.op == "all-reduce":
        least /= float(ring_factor(row.op, -(-row.ranks // cluster.domain)))
    if row.seconds * (CLOCKS if crosses else MOST_OF_A_LINK) < least:
        where = f"{cluster.nics_per_host} x {link.key} per host" if crosses else link.key
        options = "--inter and --nics" if crosses else "--intra"
        times = f"{least / row.seconds:,.1f} times as fast as {where} can carry it"
        raise Refusal(f"'{row.label}': {times}; was it another link ({options}), or no time of this collective?")


def expected_seconds(rows: Sequence[TimedCollective], place: MeasuredMachine, profile: Profile | None) -> Array:
    """Return the expected time of each row of one library, by the catalogue or a profile, as ``commtax expect`` has it."""
    collected = np.empty(len(rows))
    keys = [(r.op, r.ranks) for r in rows]
    sizes = np.array([r.nbytes for r in rows])
    for op, ranks in dict.fromkeys(keys):
        same = np.array([key == (op, ranks) for key in keys])
        priced = expect(op, place.cluster, nbytes=sizes[same], ranks=ranks, library=rows[0].library, profile=profile)
        collected[same] = priced.seconds
    return collected


def kernel(row: SweepRow) -> Kernel:
    """Return the cost model's kernel of a row. ``KeyError`` names what is missing of its shape."""
    dtype = row.get("dtype", "bf16")
    size = DTYPE_BYTES[dtype]
    if row["kind"] == "gemm":
        m, n, k = float(row["m"]), float(row["n"]), float(row["k"])
        return product(m, n, k, dtype, size, size, static_scales=dtype == "fp8" and "static" in row.get("mode", ""))
    length, heads, kv_heads = float(row["length"]), float(row["heads"]), float(row["kv_heads"])
    x = {"batch_size": float(row["batch"]), "num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": float(row["head_dim"])}
    if row["kind"] == "decode":
        return attention("decode", {**x, "step": length - 1, "window_size": 0.0}, dtype, size)
    return attention("prefill", {**x, "isl": length, "step": 0.0, "window_size": 0.0}, "bf16", OUT_BYTES)


def product(m: Number, n: Number, k: Number, dtype: str, stored: float, act: float, *, static_scales: bool = False) -> Kernel:
    """Return the kernel m x k times k x n: 2 m n k FLOPs, ``stored`` and ``act`` bytes per element of weights and activations."""
    flops, nbytes = 2.0 * m * n * k, act * m * k + stored * n * k + OUT_BYTES * m * n
    plain = Kernel("product", "gemm", 1, flops, nbytes, m=m, n=n, k=k, dtype=dtype, weight_bytes=stored)
    return replace(plain, static_scales=static_scales)


def attention(form: str, x: Sizes, dtype: str, stored: float) -> Kernel:
    """Return queries over keys and values of ``stored`` bytes an element: 4 FLOPs per query-key pair and element."""
    batch, heads, kv_heads, dim = x["batch_size"], x["num_heads"], x["num_key_value_heads"], float(np.max(x["head_dim"]))
    if form == "decode":  # one query a sequence
        seen = visible_keys(x)
        flops, nbytes = 4.0 * batch * heads * seen * dim, 2.0 * batch * seen * kv_heads * dim * stored
        plain = Kernel("decode attention", "decode", 1, flops, nbytes, weight_bytes=stored, batch=batch, heads=heads)
        return replace(plain, kv_heads=kv_heads, head_dim=int(dim), length=seen)
    length, past = x["isl"], x["step"]
    moved = 2 * OUT_BYTES * length * heads + 2 * stored * (length + past) * kv_heads
    flops, nbytes = 4.0 * batch * heads * _pairs(x) * dim, batch * dim * moved
    plain = Kernel("prefill attention", "prefill", 1, flops, nbytes, dtype=dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    return replace(plain, head_dim=int(dim), length=length, past=past, shape=KernelContext(int(np.max(x["window_size"]))))


def visible_keys(x: Sizes) -> np.ndarray:
    """Return the keys that a decode step's query sees."""
    return np.where(x["window_size"] > 0, np.minimum(x["step"] + 1, x["window_size"]), x["step"] + 1)


def _pairs(x: Sizes) -> Number:
    """Return the causal pairs of query and key, inside the window where there is one."""
    window, length, past = float(np.max(x["window_size"])), x["isl"], x["step"]
    if not window:
        return length * (length + 1) / 2 + length * past
    head: Number = np.clip(np.minimum(length, window - past), 0, None)
    return head * (head + 1) / 2 + head * past + (length - head) * window
