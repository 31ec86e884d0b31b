"""Which of two plans is better, and when predictions cannot tell: the margin within which two figures are too close to call."""

from collections.abc import Sequence

from commtax.files import table
from commtax.question import Question


def margin(q: Question, pools: bool = False) -> float:
    """Return the share by which the best plan may exceed the recommended one: as requested, else within which the order is unknown.
    In training nothing: its plans differ by flags of one program, and a run of months pays for each per cent."""
    if q.goal.margin is not None:
        return q.goal.margin
    return 0.0 if q.trains else ratio_error(q, pools)


def ratio_error(q: Question, pools: bool = False) -> float:
    """Return how far the ratio of two plans' predictions may be off (``pools``: just one has two): the order is not certain."""
    inside = q.cluster.num_hosts == 1 and not q.requests.prefill_cluster
    level = table("judgement/margin.toml")
    errors = level["training" if q.trains else "ratio"]
    usual = min(level["most"], max(level["least"], errors["dense" if q.model.experts is None else "mixtures"]))
    return float(max(usual, errors["pools_in_one_host" if inside else "pools"]) if pools else usual)


def is_close(q: Question, ratio: float, pools: bool = False) -> bool:
    """Return whether one figure over another is too close to 1 to call which is larger."""
    return max(ratio, 1 / ratio) <= 1 + ratio_error(q, pools)


def ranges_overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the ranges (figure, low, high) of two figures overlap, so that their order is too close to call."""
    return one[1] <= other[2] and other[1] <= one[2]
