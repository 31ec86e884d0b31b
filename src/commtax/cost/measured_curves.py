"""What a machine's own collectives across hosts took over what its constants say: read between measured sizes and ranks."""

import numpy as np

from commtax.arrays import Array
from commtax.spec import Network, NetworkCurve, Number


def curve_of(network: Network, op: str) -> NetworkCurve | None:
    return next((curve for curve in network.curves if curve.op == op), None)


def factor_over(network: Network, op: str, nbytes: Number, ranks: Number) -> Number:
    """How many times as long as the constants say a collective takes; 1 where nobody measured it."""
    curve = curve_of(network, op)
    return np.exp(_between(np.log(curve.factor), curve, nbytes, ranks)) if curve else 1.0


def sigma_over(curve: NetworkCurve, nbytes: Number, ranks: Number, domain: int) -> Number:
    """Deviation of the logarithm: more, the farther size, ranks and hosts are from those that were measured."""
    knots = np.log2(curve.nbytes)
    knot, share = _place(knots, np.log2(np.maximum(nbytes, 1)))
    octaves = np.append(np.diff(knots), 0.0)[knot] * share * (1 - share)  # of a walk that is known at both ends
    away = np.min([np.abs(np.log2(np.maximum(ranks, 1) / seen)) for seen in curve.ranks], axis=0)
    reshaped = abs(np.log2(domain / curve.domain)) if curve.domain else 0.0
    more = octaves * curve.drift**2 + away * curve.grown**2 + reshaped * curve.reshaped**2
    return np.asarray(np.sqrt(_between(np.square(curve.sigma), curve, nbytes, ranks) + more))[()]


def _between(rows: Array, curve: NetworkCurve, nbytes: Number, ranks: Number) -> Number:
    """The value at a size and a number of ranks: straight lines over logarithms; beyond the ends what stands there."""
    size, size_share = _place(np.log2(curve.nbytes), np.log2(np.maximum(nbytes, 1)))
    group, group_share = _place(np.log2(curve.ranks), np.log2(np.maximum(ranks, 1)))
    later, larger = np.minimum(size + 1, len(curve.nbytes) - 1), np.minimum(group + 1, len(curve.ranks) - 1)
    few, many = (rows[at, size] * (1 - size_share) + rows[at, later] * size_share for at in (group, larger))
    return np.asarray(few * (1 - group_share) + many * group_share)[()]


def _place(knots: Array, at: Number) -> tuple[Array, Array]:
    """The last knot that is not beyond, and the share of the way to the next."""
    place = np.asarray(np.interp(at, knots, np.arange(len(knots))))
    return place.astype(int), place % 1
