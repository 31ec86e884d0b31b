"""What lies between hosts, from collectives whose groups cross them: latency, attained bandwidth, the pipeline's loss."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from commtax.arrays import Array
from commtax.calibrate import robust_fit
from commtax.calibrate.measurements import (
    ConstantChange,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    TimedCollective,
    TooFewError,
    Wish,
    check_sizes,
    expected_seconds,
)
from commtax.calibrate.robust_fit import RobustFit
from commtax.spec import Profile
from commtax.units import format_bytes
from commtax.verbs.expecting import expect

CONSTANTS = ("efficiency", "hops", "pipelining")
MOST = (3.0, 1e4, 1e2)  # an efficiency above 1 is kept for the report: it says that the NICs are others than was said
TOO_FAST = 1.1
TRIED, NOTHING = 0.3, 1e-9  # where the catalogue has no loss of a pipeline: what to try, and what is none to a logarithm
PER_DOUBLING = 0.35  # deviation of the logarithm for each doubling of ranks beyond those that were measured
UNSURE = 0.45  # relative standard deviation of a constant that rows do not tell
ASKED = tuple(float(2**x) for x in range(10, 34, 2))


def fit_network(files: MeasurementFiles, place: MeasuredMachine, own: Profile) -> Step:
    """Constants across hosts; ``own`` holds what was fitted inside them."""
    rows = [r for r in files.collectives if r.ranks > place.cluster.domain]
    if not rows:
        return own, [], []
    check_sizes("across hosts", [r.nbytes for r in rows])
    times = np.array([r.seconds for r in rows])
    usual = expect(rows[0].op, place.cluster, nbytes=1.0, ranks=rows[0].ranks, library=rows[0].library).fabric
    before = tuple(getattr(usual.network, name) for name in CONSTANTS)
    fitted, known = _fit(rows, place, own, np.array(before), times)
    spread = robust_fit.half_width(fitted.residuals, len(CONSTANTS))
    constants: dict[str, float] = dict(zip(CONSTANTS, np.where(known, fitted.values, before).tolist(), strict=True))
    ranks = {r.ranks for r in rows}
    constants |= {"spread": spread, "least_ranks": min(ranks), "most_ranks": max(ranks)}
    if not known[CONSTANTS.index("hops")]:
        constants["least_bytes"] = min(r.nbytes for r in rows)  # below, latency decides, and nobody measured it
    changes = (ConstantChange(f"network {n}", b, constants[n]) for n, b, t in zip(CONSTANTS, before, known, strict=True) if t)
    usual_errors = np.log(times / expected_seconds(rows, place, None))
    name, labels = f"{rows[0].library} across hosts", [r.label for r in rows]
    part = ProfilePart.of(name, labels, usual_errors, fitted.residuals, spread, changes)
    part = part.with_remarks(_notes(rows, constants, place, known), _wishes(rows, place, own, fitted))
    return replace(own, network=constants, links={**own.links, "inter": place.cluster.inter.key}), [part], []


def _fit(
    rows: Sequence[TimedCollective], place: MeasuredMachine, own: Profile, start: Array, times: Array
) -> tuple[RobustFit, Array]:
    """The constants that the rows tell to a factor of 1.5 or so; the others stay where they were."""
    known = np.ones(len(start), bool)
    while known.any():
        fitted = _fit_some(rows, place, own, np.maximum(start, np.where(known, TRIED, NOTHING)), known, times)
        sure = np.sqrt(np.diag(robust_fit.covariance(fitted.information, fitted.values))) / fitted.values < UNSURE
        if np.all(sure[known]):
            return fitted, known
        known = known & sure
    raise TooFewError("across hosts: these sizes tell neither latency nor bandwidth; measure from 1 KiB to 1 GiB")


def _fit_some(
    rows: Sequence[TimedCollective], place: MeasuredMachine, own: Profile, start: Array, known: Array, times: Array
) -> RobustFit:
    """Some constants fitted, the others held; what the rows tell is reckoned for all."""

    def every(values: Array) -> Array:
        constants = np.array(start, float)
        constants[known] = values
        return constants

    def predict(values: Array) -> Array:
        return expected_seconds(rows, place, _with_network(own, values))

    some = robust_fit.curve(lambda values: predict(every(values)), start[known], times, np.array(MOST)[known])
    values = every(some.values)
    slope = robust_fit.slopes(predict, values)
    return replace(some, values=values, information=slope.T @ (slope * some.weights[:, None]) / some.sigma**2)


def _with_network(own: Profile, values: Array) -> Profile:
    return replace(own, network=dict(zip(CONSTANTS, (float(v) for v in values), strict=True)))


def _notes(rows: Sequence[TimedCollective], constants: dict[str, float], place: MeasuredMachine, known: Array) -> Iterator[str]:
    cluster = place.cluster
    hosts = sorted({-(-r.ranks // cluster.domain) for r in rows})
    yield f"measured over {', '.join(map(str, hosts))} hosts: latency grows with the logarithm of hosts"
    untold = [n for n, yes in zip(CONSTANTS, known, strict=True) if not yes]
    if untold:
        yield f"{', '.join(untold)}: these sizes do not tell {'it' if len(untold) == 1 else 'them'}, the catalogue's stays"
    if constants["efficiency"] > TOO_FAST:
        nics = f"{constants['efficiency']:.0%} of {cluster.nics_per_host} x {cluster.inter.key} per host"
        yield f"{nics}: more than they carry; say --inter and --nics, or the switches add (SHARP)"


def _wishes(rows: Sequence[TimedCollective], place: MeasuredMachine, own: Profile, fitted: RobustFit) -> Iterator[Wish]:
    """The range left at other sizes and numbers of hosts."""
    spread = robust_fit.covariance(fitted.information, np.maximum(fitted.values, TRIED))
    op, domain = rows[0].op, place.cluster.domain
    seen = {r.ranks for r in rows}
    groups = sorted(seen | {domain * 2**k for k in range(1, 6) if domain * 2**k <= place.cluster.num_gpus})
    asked = [TimedCollective(rows[0].library, op, ranks, size, 1.0, "") for ranks in groups for size in ASKED]
    slope = robust_fit.slopes(lambda values: expected_seconds(asked, place, _with_network(own, values)), fitted.values)
    variance = np.einsum("ij,jk,ik->i", slope, spread, slope) + fitted.sigma**2
    for row, one in zip(asked, variance, strict=True):
        doublings = min(abs(np.log2(row.ranks / ranks)) for ranks in seen)
        where = f"{row.library} {op} of {format_bytes(row.nbytes)} over {row.ranks} ranks"
        yield Wish.at(where, one + (PER_DOUBLING * doublings) ** 2)
