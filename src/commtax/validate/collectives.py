"""Published collectives against the prices of their curves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.cost.collectives import choose, ring_factor
from commtax.cost.placement import Span
from commtax.cost.pricing import price, spread_of
from commtax.readers.published.collectives import Curve
from commtax.readers.published.rows import Entry
from commtax.spec import Fabric, Path
from commtax.statement import Refusal
from commtax.validate.records import Array, Predicted, around


def timed(curve: Curve, entries: Sequence[Entry]) -> list[Predicted]:
    """Rows of one curve."""
    sizes = np.array([entry.size for entry in entries])
    predicted, width, floor = seconds(curve, sizes)
    known = curve.crosses or catalog.fabric(curve.library, curve.cluster).label.kind == "calibrated"
    rows = zip(predicted, np.broadcast_to(width, sizes.shape), floor, strict=True)
    hint = "" if known else "link assumed"
    return [replace(around(float(p), 1 + float(s), float(f)), hint=hint) for p, s, f in rows]


def seconds(curve: Curve, nbytes: Array) -> tuple[Array, Array, Array]:
    """Predicted seconds, the half-width of their range as a factor, and the least that the links allow."""
    place = curve.cluster
    fabric = catalog.fabric(curve.library, place)
    if curve.algorithm:
        chosen = choose(_only(fabric, curve.algorithm), nbytes, curve.ranks)
    else:
        where = Span(curve.ranks, curve.inside, -(-curve.ranks // curve.inside))
        chosen = price(curve.op, nbytes, curve.ranks, where, place, fabric)
    predicted = np.maximum(chosen.seconds, fabric.eager_floor_s) if curve.eager else chosen.seconds
    width = spread_of(fabric, curve.op, nbytes, curve.ranks, chosen, place, curve.crosses, eager=curve.eager)
    return predicted, width, _floor(curve, nbytes)


def _only(fabric: Fabric, algorithm: str) -> tuple[Path, ...]:
    """The paths of one algorithm, at any size."""
    paths = tuple(replace(p, max_bytes=(), worlds=(), turn=0) for p in fabric.paths["all-reduce"] if p.algorithm == algorithm)
    if not paths:
        raise Refusal(f"algorithm '{algorithm}' was not calibrated on this chip", "library")
    return paths[:1]


def _floor(curve: Curve, nbytes: Array) -> Array:
    """Bytes that must pass a rank's link, or a host's NICs. A switch that adds takes each tensor once."""
    place, inside = curve.cluster, min(curve.inside, curve.ranks)
    factor = ring_factor(curve.op, inside) if inside > 1 else 0.0
    if curve.op == "all-reduce" and place.intra.switched and inside > 2:
        factor = min(factor, 1.0)
    least = factor * nbytes / place.intra.bandwidth_Bps
    if curve.crosses:
        domains, hosts = -(-curve.ranks // curve.inside), max(1, place.domain // place.gpus_per_host)
        rate = place.nics_per_host * hosts * place.inter.bandwidth_Bps
        least = np.maximum(least, ring_factor(curve.op, domains) * nbytes / rate)
    return least
