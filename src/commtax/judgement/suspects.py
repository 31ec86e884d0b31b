"""Which of several explanations of the same figures may be the cause, by how likely each makes them."""

from collections.abc import Mapping
from math import exp

from commtax.thresholds import levels

LEVEL = levels(__name__)


def likelihoods(weights: Mapping[str, float]) -> dict[str, float]:
    """Return each explanation's share of the likelihood of all, from logarithms.

    >>> likelihoods({"clock": 0.0, "link": 0.0})
    {'clock': 0.5, 'link': 0.5}
    """
    most = max(weights.values())
    shares = {name: exp(weight - most) for name, weight in weights.items()}
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def suspects(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Return the likeliest explanation and those that it does not stand out from. One alone is the cause.

    >>> suspects({"clock": 0.9, "everything": 0.1}), suspects({"clock": 0.4, "everything": 0.6})
    (('clock',), ('everything', 'clock'))
    """
    ordered = sorted(shares, key=lambda name: -shares[name])
    return tuple(name for name in ordered if name == ordered[0] or shares[name] * LEVEL.stands_out > shares[ordered[0]])
