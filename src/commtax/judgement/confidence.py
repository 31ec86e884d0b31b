"""How sure a limit is kept: a figure with its 80% range, the probability that it stays below a limit, and the figure that it stays
below with a given probability.

The logarithm of a figure's error is taken to have Student's t distribution with two degrees of freedom, with the range's ends at 10
and 90%; each side of the figure has its own width:

    F(t) = 1/2 + t / (2 sqrt(2 + t^2))        t(p) = (2 p - 1) / sqrt(2 p (1 - p))

Errors of published serving runs are like that and not normal: of those within the 80% range, three quarters lie within its inner
half, but one in ten of all lies beyond 1.5 times the range (normal: 1.28 times; ``benchmarks/decisions.py``). Whatever lengthens
the steps of an engine on a chip lengthens all times: several limits are kept with the probability of the least sure one.
"""

from collections.abc import Iterator, Mapping
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from commtax.question import EVEN
from commtax.records import dataclass
from commtax.spec import Number
from commtax.statement import Refusal
from commtax.units import parse_fraction

RULE = "above 0 and below 100%, such as 80%, 0.8 or 80; 50% goes by the central prediction"
END = 0.8 / sqrt(0.18)  # t(0.9): where the upper end of an 80% range lies
LEAST, MOST = 0.01, 0.99  # nearest valid confidences, said where one is refused
WIDEST = 0.5  # margin that may be asked for


def deviations(probability: float) -> float:
    """Return the error that is not exceeded with a probability, in half-widths of the 80% range.

    >>> deviations(0.5), round(deviations(0.9), 9), round(deviations(0.8), 3)
    (0.0, 1.0, 0.562)
    """
    return (2 * probability - 1) / sqrt(2 * probability * (1 - probability)) / END


def probability_of(widths: float) -> float:
    """Return the probability that an error is at most so many half-widths of the 80% range.

    >>> round(probability_of(deviations(0.8)), 9)
    0.8
    """
    t = widths * END
    return 0.5 + t / (2 * sqrt(2 + t * t))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 80% range.

    >>> round(Estimate(30.0, 27.0, 33.0).sure(0.9), 1), round(Estimate(30.0, 27.0, 33.0).kept(33.0), 2)
    (33.0, 0.9)
    """

    value: Number
    low: Number
    high: Number

    def sure(self, confidence: float) -> Number:
        """Return the limit that it keeps with this probability: value x (end / value)^widths, by the end on that side."""
        if confidence == EVEN:
            return self.value
        widths = deviations(confidence)
        return self.value * (self.high / self.value if widths > 0 else self.value / self.low) ** widths

    def kept(self, limit: float) -> float:
        """Return the probability that one figure is at most the limit. Without a range it is 0 or 1."""
        value, low, high = float(self.value), float(self.low), float(self.high)
        if limit == inf or not 0 < low < high:
            return 1.0 if value <= limit else 0.0
        width = np.log(high / value) if limit >= value else np.log(value / low)
        return probability_of(float(np.log(limit / value) / width)) if width > 0 else float(value <= limit)


def estimate_through(value: float, surely: float, confidence: float) -> Estimate:
    """Return the estimate of a figure that is stated at a confidence instead of at the ends of its range."""
    width = (surely / value) ** (1 / deviations(confidence))
    return Estimate(value, value / width, value * width)


class JudgedLimit(NamedTuple):
    """A limit on a mean."""

    name: str
    value: float
    limit: float
    probability: float  # that a run keeps it

    @property
    def kept(self) -> bool:
        return self.value <= self.limit


def judged_limits(figures: Mapping[str, Estimate], limits: Mapping[str, float]) -> Iterator[JudgedLimit]:
    """Yield each limit judged against its figure.

    >>> [(x.name, x.kept, round(x.probability, 2)) for x in judged_limits({"tpot_s": Estimate(30, 27, 33)}, {"tpot_s": 33})]
    [('tpot_s', True, 0.9)]
    """
    for name, limit in limits.items():
        yield JudgedLimit(name, float(figures[name].value), limit, figures[name].kept(limit))


def confidence_of(value: object, name: str = "confidence") -> float:
    """Return a probability from its usual spellings: from 1 on a number counts per cent.

    >>> confidence_of("80%"), confidence_of("0.8"), confidence_of(80)
    (0.8, 0.8, 0.8)
    """
    share = _share_of(value, name, f"a probability is needed, {RULE}", "80%")
    if not 0 < share < 1:
        nearest = LEAST if share <= 0 else MOST
        raise Refusal(f"{name}={value}: a probability is {RULE}; nearest valid: {nearest:.0%}", name, (f"{nearest:.0%}",))
    return share


def margin_of(value: object, name: str = "margin") -> float | None:
    """Return a margin from its usual spellings: 0.05, ``5%`` or 5."""
    if value is None or value == "":
        return None
    share = _share_of(value, name, "a share is needed, such as 5%", "5%")
    if not 0 <= share <= WIDEST:
        nearest = f"{min(max(share, 0.0), WIDEST):.0%}"
        raise Refusal(f"{name}={value}: a share from 0 to {WIDEST:.0%}, such as 5%; nearest valid: {nearest}", name, (nearest,))
    return share


def _share_of(value: object, name: str, wanted: str, example: str) -> float:
    """Parse a share, where a plain number of 1 or more is a percentage."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
        raise Refusal(f"{name}={value!r}: {wanted}", name, (example,))
    share = parse_fraction(value if isinstance(value, str) else float(value), name)
    return share / 100 if share >= 1 and not (isinstance(value, str) and value.endswith("%")) else share


def percent(probability: float) -> str:
    """Return a probability as text: the ends are never quite reached.

    >>> percent(0.914), percent(0.997), percent(0.99999), percent(0.0001)
    ('91%', '99.7%', '>99.9%', '<1%')
    """
    if not 0.005 <= probability < 0.9995:
        return "<1%" if probability < 0.005 else ">99.9%"
    return f"{probability:.0%}" if probability < 0.995 else f"{probability:.1%}"
