"""What lies between hosts, from collectives whose groups cross them: latency, attained bandwidth, what fills a pipeline.

Rows that say exactly the same count once, and their order tells nothing: a file that is given twice changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from commtax.arrays import Array
from commtax.calibrate import network_posterior, robust_fit
from commtax.calibrate.measurements import (
    ConstantChange,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    TimedCollective,
    Wish,
    distinct,
    expected_seconds,
)
from commtax.calibrate.network_posterior import CONSTANTS, CURVE, NetworkPosterior
from commtax.catalog import physics
from commtax.spec import NetworkCurve, Profile
from commtax.units import format_bytes, plural
from commtax.verbs.expecting import expect

KNOTS = tuple(float(4**x) for x in range(1, 19))  # sizes at which a curve stands beside those that were measured
APART = 0.25  # octaves between two sizes of a curve, at least
LEAST_SIZES = 4  # … that tell the form of a curve
ASKED = tuple(float(2**x) for x in range(10, 34, 2))


def fit_network(files: MeasurementFiles, place: MeasuredMachine, own: Profile) -> Step:
    """Constants across hosts and the curve over them; ``own`` holds what was fitted inside them."""
    every = [r for r in files.collectives if r.ranks > place.cluster.domain]
    if not every:
        return own, [], []
    libraries = [r.library for r in every]
    library = max(sorted(set(libraries)), key=libraries.count)
    rows = distinct(r for r in every if r.library == library)
    usual = expect(rows[0].op, place.cluster, nbytes=1.0, ranks=rows[0].ranks, library=library).fabric.network
    before = np.array([getattr(usual, name) for name in CONSTANTS])
    found = network_posterior.fit(rows, _remembered_times(place, own), before)
    profile = _profile(found, before, place, own)
    times = np.array([r.seconds for r in rows])
    then, now = (np.log(times / expected_seconds(rows, place, one)) for one in (None, profile))
    spread = robust_fit.width(float(np.median(found.curve(rows)[1])))
    named = zip(CONSTANTS, before.tolist(), found.told.tolist(), strict=True)
    changes = (ConstantChange(f"network {name}", was, profile.network[name]) for name, was, told in named if told)
    part = ProfilePart.of(f"{library} across hosts", [r.label for r in rows], then, now, spread, changes)
    others = sorted(set(libraries) - {library})
    refused = [f"across hosts: rows of {one} are left out; a profile has one library there, {library}" for one in others]
    return profile, [part.with_remarks(_notes(rows, place, found), _wishes(place, found, profile))], refused


def _remembered_times(place: MeasuredMachine, own: Profile) -> network_posterior.Times:
    """Seconds of rows by constants; fits begin where others ended, and a curve asks again what its fit has asked."""

    @cache
    def seconds(values: tuple[float, ...], rows: tuple[TimedCollective, ...]) -> Array:
        return expected_seconds(rows, place, _with_network(own, np.array(values)))

    return lambda values, rows: seconds(tuple(values.tolist()), tuple(rows))


def _with_network(own: Profile, values: Array) -> Profile:
    return replace(own, network=dict(zip(CONSTANTS, (float(v) for v in values), strict=True)))


def _profile(found: NetworkPosterior, before: Array, place: MeasuredMachine, own: Profile) -> Profile:
    """The profile with what was found: constants, what they leave, and where it was measured."""
    ranks = [r.ranks for r in found.rows]
    values = np.where(found.told, found.values, before).tolist()
    constants = dict(zip(CONSTANTS, values, strict=True))
    spread = min(robust_fit.half_width(found.residuals, len(CONSTANTS)), physics.NETWORK["spread"].high)
    constants |= {"spread": spread, "least_ranks": min(ranks), "most_ranks": max(ranks)}
    curves = tuple(_curve(found, op, place.cluster.domain) for op in sorted({r.op for r in found.rows}))
    return replace(own, network=constants, curves=curves, links={**own.links, "inter": place.cluster.inter.key})


def _curve(found: NetworkPosterior, op: str, domain: int) -> NetworkCurve:
    """What one collective takes over what the constants say, at the sizes that were measured and some around them."""
    mine = [r for r in found.rows if r.op == op]
    groups, sizes = sorted({r.ranks for r in mine}), _knots([r.nbytes for r in mine])
    asked = [replace(mine[0], ranks=ranks, nbytes=size) for ranks in groups for size in sizes]
    mean, sigma = (np.round(x, 5).reshape(len(groups), -1) for x in found.curve(asked))
    drift, grown = (deviation * float(np.sqrt(2 / CURVE["octaves"])) for deviation in (found.deviation, CURVE["deviation"]))
    return NetworkCurve(
        op=op,
        ranks=tuple(groups),
        nbytes=tuple(sizes),
        factor=tuple(map(tuple, np.round(np.exp(mean), 5).tolist())),
        sigma=tuple(map(tuple, sigma.tolist())),
        drift=round(found.scale * drift, 5),
        grown=round(max(1.0, found.scale) * grown, 5),
        reshaped=CURVE["reshaped"],
        domain=domain,
    )


def _knots(measured: Sequence[float]) -> list[float]:
    """Sizes that were measured, of those that nearly coincide one; and powers of four where none is near."""
    kept: list[float] = []
    for size in sorted(set(measured)):
        if not kept or np.log2(size / kept[-1]) >= APART:
            kept.append(size)
    return sorted([*kept, *(size for size in KNOTS if min(abs(np.log2(size / one)) for one in kept) > 1)])


def _notes(rows: Sequence[TimedCollective], place: MeasuredMachine, found: NetworkPosterior) -> Iterator[str]:
    hosts = sorted({-(-r.ranks // place.cluster.domain) for r in rows})
    yield f"measured over {', '.join(map(str, hosts))} hosts: other numbers of hosts have a wider range"
    untold = [name for name, yes in zip(CONSTANTS, found.told, strict=True) if not yes]
    if untold:
        yield f"{', '.join(untold)}: these sizes do not tell {'it' if len(untold) == 1 else 'them'}, the catalogue's stays"
    sizes = len({r.nbytes for r in rows})
    if sizes < LEAST_SIZES:
        yield f"{plural(sizes, 'size')}: others rest on the catalogue's constants; measure from 1 KiB to 1 GiB"


def _wishes(place: MeasuredMachine, found: NetworkPosterior, profile: Profile) -> Iterator[Wish]:
    """The range left at other sizes and numbers of hosts."""
    row, domain = found.rows[0], place.cluster.domain
    doubled = {domain * 2**k for k in range(1, 6) if domain * 2**k <= place.cluster.num_gpus}
    for ranks in sorted(doubled | {r.ranks for r in found.rows}):
        sizes = np.array(ASKED)
        priced = expect(row.op, place.cluster, nbytes=sizes, ranks=ranks, library=row.library, profile=profile)
        for size, spread in zip(ASKED, np.broadcast_to(priced.spread, sizes.shape).tolist(), strict=True):
            where = f"{row.library} {row.op} of {format_bytes(size)} over {ranks} ranks"
            yield Wish.at(where, robust_fit.sigma_of(spread) ** 2)
