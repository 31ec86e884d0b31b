"""Expected times of collectives on given hardware, and the verdict on a measured time."""

from dataclasses import replace
from typing import Unpack

import numpy as np

from commtax import catalog
from commtax.answer import Answer
from commtax.catalog import hosts
from commtax.catalog import profile as overlay
from commtax.catalog.profile_files import ProfilesLike
from commtax.catalog.techniques import changes_of
from commtax.cost.collectives import price, ring_factor
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import seconds as kernel_seconds
from commtax.cost.overlap import AUTO, FUSED_OP, fused_fabric
from commtax.cost.placement import Span
from commtax.cost.pricing import launched_s, source_of, spread_of
from commtax.judgement.collectives import judge_test, judge_time
from commtax.options import check_taken
from commtax.question import PHASES
from commtax.records import dataclass
from commtax.rules.values import positive
from commtax.spec import Cluster, Fabric, Number, Profile
from commtax.statement import Refusal, Source
from commtax.verbs.keywords import ExpectOptions

SPELLED = {"sendrecv": "send-recv", "allreduce": "all-reduce", "alltoall": "all-to-all"}
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast", FUSED_OP)
SUMMED = {FUSED_OP: "all-reduce"}  # what is sent where a collective has more to do
COMPILED = "fused"  # whose small kernels stand for compiled ones: they were timed by themselves
NORM_PASSES = 4  # a norm by itself reads the sum and the residual, and writes both


@dataclass(frozen=True, slots=True)
class Expectation(Answer):
    """Seconds with an 80 % range, and bandwidths as nccl-tests defines them.

    >>> import commtax
    >>> one = commtax.expect("all-gather", "8xh100-sxm", nbytes=2**20)
    >>> bool(one.low_s < one.seconds < one.high_s), one.is_assumed
    (True, False)
    """

    op: str
    cluster: Cluster
    fabric: Fabric
    ranks: int
    nbytes: Number
    seconds: Number
    spread: Number  # the range is seconds / (1 + spread) … seconds x (1 + spread)
    latency_s: Number
    wire_s: Number
    algorithm: str
    link: str
    source: Source
    floor_s: Number = 0.0  # what its bytes alone take on the link
    profile: str = ""  # whose constants were laid over the catalogue's

    @property
    def low_s(self) -> Number:
        return self.seconds / (1 + self.spread)

    @property
    def high_s(self) -> Number:
        return self.seconds * (1 + self.spread)

    @property
    def algbw_Bps(self) -> Number:
        return self.nbytes / self.seconds

    @property
    def busbw_Bps(self) -> Number:
        """algbw x 2(n-1)/n for all-reduce, (n-1)/n for the other collectives, 1 for send-recv."""
        return self.algbw_Bps * ring_factor(SUMMED.get(self.op, self.op), self.ranks)

    @property
    def is_assumed(self) -> bool:
        """Whether no such collective was measured here: the range is a guess from other hardware."""
        return self.source.kind == "assumed"

    def verdict(self, measured_s: float) -> str:
        """Judge a time: ``fail`` is slower than the range, ``pass`` not slower than a measured range, else ``undecided``.

        What no link could carry is undecided too: it is a time of something else.
        """
        return judge_test([judge_time(measured_s, float(self.high_s), float(self.floor_s), self.is_assumed)])

    def seconds_of_busbw(self, busbw_Bps: float) -> float:
        """Return the time that a measured bus bandwidth means for this size."""
        return float(self.nbytes * ring_factor(SUMMED.get(self.op, self.op), self.ranks) / busbw_Bps)


def expect(
    op: str,
    cluster: str | Cluster,
    *,
    nbytes: Number | None = None,
    ranks: int = 0,
    library: str = "",
    eager: bool = False,
    profile: ProfilesLike | None = None,
    technique: str = "",
    **others: Unpack[ExpectOptions],
) -> Expectation:
    """Price one collective over the first ``ranks`` GPUs (all by default) in host order, by default with NCCL or RCCL.

    >>> import commtax
    >>> one = commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30)
    >>> f"{one.seconds * 1e3:.1f} ms, bus bandwidth {one.busbw_Bps / 1e9:.0f} GB/s; 10 ms would {one.verdict(0.010)}"
    '4.2 ms, bus bandwidth 446 GB/s; 10 ms would fail'

    ``profile`` is a machine's own constants: its first library is used unless another is named. A library of kernels of one kind
    (QuickReduce) is priced for any size, also where an engine would not take it. ``all-reduce-norm`` is an all-reduce, residual and
    norm: one kernel with ``technique="fused-allreduce"`` or a library that has it (``flashinfer``), else two.
    """
    check_taken("expect", others)
    if nbytes is None:
        raise Refusal.about(nbytes="how large is the tensor? Such as 2**30, or an array of sizes")
    op = collective_named(op)
    if op not in OPS:
        raise Refusal.of(f"one of {', '.join(OPS)}", OPS, collective=op)
    op, library, algorithm = _resolve_collective(op, library, technique)
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    constants = overlay.load_profile(profile)
    place = overlay.measured_cluster(constants, place) if constants else place
    size = int(positive(2, ranks=ranks or (2 if op == "send-recv" else place.num_gpus)))
    if size > place.num_gpus:
        raise Refusal.of(f"{place.key} has {place.num_gpus} GPUs", (place.num_gpus,), ranks=size)
    if not np.all(np.asarray(nbytes) > 0) or not np.all(np.isfinite(nbytes)):
        raise Refusal.of("a size above 0 is needed", size=nbytes)
    library = library or usual_library(place, constants)
    if algorithm:
        whole = _fused(place, library, algorithm)
    else:
        whole = overlay.paths(constants, library, place) if constants else catalog.fabric(library, place)
    if technique and not algorithm and catalog.library(library).alone and not whole.kernels:
        from commtax.rules.techniques import no_kernels  # not for those who ask for no technique

        raise no_kernels(library, place)
    priced = _expectation(op, op if algorithm else SUMMED.get(op, op), nbytes, size, place, whole, eager)
    return replace(priced, profile=constants.name) if constants else priced


def collective_named(op: str) -> str:
    """Return a collective's usual name, however it is spelled.

    >>> collective_named("all_reduce"), collective_named("sendrecv")
    ('all-reduce', 'send-recv')
    """
    return SPELLED.get(op.replace("_", "-"), op.replace("_", "-"))


def usual_library(place: Cluster, profile: ProfilesLike | None = None) -> str:
    """Return the library that a test of collectives on these chips measures: a profile's first, else the vendor's."""
    constants = overlay.load_profile(profile)
    return next(iter(constants.libraries), "") if constants and constants.libraries else hosts.usual_library(place.chip)


def _expectation(op: str, sent: str, nbytes: Number, size: int, place: Cluster, whole: Fabric, eager: bool) -> Expectation:
    """Price what is ``sent`` for a collective on a library's paths, and the norm behind it where that is not in it."""
    inside = 1 if op == "send-recv" and place.num_gpus > place.domain else min(size, place.domain)
    where = Span(size, inside, int(np.ceil(size / inside)))  # the first two GPUs of a host are a pair
    fabric, met = (whole.pairs, place.as_pairs) if where.ranks_per_domain == 2 and whole.pairs else (whole, place.without_pairs)
    kernels = () if where.crosses else fabric.kernels.get(sent, ())
    fabric = replace(fabric, paths={**fabric.paths, sent: kernels}) if kernels else fabric
    chosen = price(sent, nbytes, size, where, met, fabric)
    if sent != op:
        norm = Kernel("norm", "small", 1, 0.0, NORM_PASSES * nbytes)
        fixed, moving = kernel_seconds(norm, place.chip, catalog.kernel_constants(catalog.engine(COMPILED), place.chip))
        chosen = replace(chosen, latency_s=chosen.latency_s + fixed, wire_s=chosen.wire_s + moving)
    crosses, index = bool(where.crosses), int(np.asarray(chosen.path).ravel()[0])
    path = (fabric.network_paths if crosses else fabric.paths)[sent][index]
    latency = launched_s(fabric, chosen.latency_s, chosen.wire_s, crosses) if eager else chosen.latency_s
    return Expectation(
        op=op,
        cluster=place,
        fabric=fabric,
        ranks=size,
        nbytes=nbytes,
        seconds=latency + chosen.wire_s,
        spread=spread_of(fabric, sent, nbytes, size, chosen, met, crosses, eager=eager),
        latency_s=latency,
        wire_s=chosen.wire_s,
        algorithm=f"{'hierarchical ' if crosses and not fabric.flat else ''}{path.name or path.algorithm}{', norm' * (sent != op)}",
        link=(met.inter if crosses else met.intra).key,
        source=source_of(fabric, sent, index, size, crosses, float(np.max(chosen.inside))),
        # Bridged pairs share the slots of a host.
        floor_s=_floor_s(SUMMED.get(op, op), nbytes, where, met) / (2 if place.bridge and where.ranks_per_domain > 2 else 1),
    )


def _resolve_collective(op: str, library: str, technique: str) -> tuple[str, str, str]:
    on = changes_of(technique) if technique else {}
    if on.keys() - {"fused_reduce", "library"}:
        raise Refusal(f"technique '{technique[:40]}': changes more than one collective, and expect prices one", "technique")
    algorithm = str(on.get("fused_reduce", ""))
    if not algorithm and op == FUSED_OP and library.partition("@")[0] in catalog.keys("fusions"):
        algorithm = AUTO
    if algorithm and op not in (FUSED_OP, "all-reduce"):
        raise Refusal(f"technique '{technique[:40]}': fuses an all-reduce, and {op} is none", "technique")
    return (FUSED_OP if algorithm else op), str(on.get("library", library)), algorithm


def _fused(place: Cluster, library: str, algorithm: str) -> Fabric:
    name = library if library.partition("@")[0] in catalog.keys("fusions") else ""
    if kernel := fused_fabric(catalog.fusion(place, name), algorithm):
        return kernel
    rule = f"no such kernel's times are known on {place.chip.key} with {place.intra.key}"
    raise Refusal(f"fused-allreduce={algorithm}: {rule}", "technique")


def billed_library(profile: Profile | None = None) -> str:
    """Return the library that a bill's collectives are priced with where neither the user nor an engine names one."""
    return next(iter(profile.libraries if profile else ()), "") or catalog.engine(PHASES["decode"].engine).library


def _floor_s(op: str, nbytes: Number, where: Span, place: Cluster) -> Number:
    """Return the least seconds over the link. A reducing switch takes each byte once and a share twice. All NICs carry."""
    if not where.crosses:
        least = min(ring_factor(op, where.ranks), 1 + 1 / where.ranks if place.intra.switched else np.inf)
        return least * nbytes / place.intra.bandwidth_Bps
    nics = place.nics_per_host * max(1, place.domain // place.gpus_per_host)
    each = where.ranks_per_domain if op == "all-to-all" else 1
    return ring_factor(op, where.domains) * each * nbytes / (nics * place.inter.bandwidth_Bps)
