"""Published collectives against the prices of their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.cost.collectives import choose, ring_factor
from commtax.cost.placement import Span
from commtax.cost.pricing import price, spread_of
from commtax.readers.published.collectives import Curve
from commtax.readers.published.rows import Asked, Entry
from commtax.spec import Fabric, Path
from commtax.statement import Refusal
from commtax.validate.records import Answered, Array, Records, around, of_answers, unpriced


def answers(asked: Sequence[Asked[Curve]]) -> Records:
    """Every row priced, or with its reason: rows of one curve by one call."""
    curves: dict[Curve, list[Entry]] = {}
    for one in asked:
        if one.question is not None:
            curves.setdefault(one.question, []).extend(one.entries)
    unread: list[Answered] = [(entry, None) for one in asked if one.question is None for entry in one.entries]
    priced = [pair for curve, entries in curves.items() for pair in _curve(curve, entries)]
    return of_answers(sorted([*unread, *priced], key=lambda pair: pair[0].row))


def _curve(curve: Curve, entries: list[Entry]) -> list[Answered]:
    sizes = np.array([entry.size for entry in entries])
    try:
        predicted, width, floor = seconds(curve, sizes)
    except ValueError as error:
        return [(unpriced(entry, error), None) for entry in entries]
    known = curve.crosses or catalog.fabric(curve.library, curve.cluster).label.kind == "calibrated"
    if not known:
        entries = [replace(entry, hint=", ".join(filter(None, (entry.hint, "link assumed")))) for entry in entries]
    rows = zip(predicted, np.broadcast_to(width, sizes.shape), floor, strict=True)
    return list(zip(entries, (around(float(p), 1 + float(s), float(f)) for p, s, f in rows), strict=True))


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
