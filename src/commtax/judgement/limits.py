"""Whether predicted means keep limits: by the central prediction, with the probability that a run does."""

from collections.abc import Iterator, Mapping

from commtax.judgement.confidence import Estimate
from commtax.records import dataclass


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """A limit on a mean."""

    name: str
    value: float
    limit: float
    probability: float  # that a run keeps it

    @property
    def kept(self) -> bool:
        return self.value <= self.limit


def judged_limits(figures: Mapping[str, Estimate], limits: Mapping[str, float]) -> Iterator[JudgedLimit]:
    """Each limit against its figure.

    >>> [(x.name, x.kept, round(x.probability, 2)) for x in judged_limits({"tpot_s": Estimate(30, 27, 33)}, {"tpot_s": 33})]
    [('tpot_s', True, 0.9)]
    """
    for name, limit in limits.items():
        yield JudgedLimit(name, float(figures[name].value), limit, figures[name].kept(limit))
