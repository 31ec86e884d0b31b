"""Whether more is asked of servers than they answer: predicted, by what they answer when there is always enough, or measured."""

from math import isfinite

from commtax.thresholds import levels
from commtax.units import format_figure

LEVEL = levels(__name__)


def overloaded(rate: float, capacity: float, longer: float = 1.0) -> bool:
    """Return whether requests come faster than servers answer whose steps take ``longer``. An unlimited rate overloads nothing.

    >>> overloaded(10.1, 10.0), overloaded(10.3, 10.0), overloaded(10.1, 10.0, longer=1.1)
    (False, True, True)
    """
    return isfinite(rate) and rate * longer >= LEVEL.sure * capacity


def load_words(rate: float, capacity: float) -> str:
    """Describe a load beside the capacity.

    >>> load_words(8.0, 5.641)
    '5.64 requests/s is the capacity, and 8 arrive'
    """
    return f"{format_figure(capacity)} requests/s is the capacity, and {format_figure(rate)} arrive"


def longest_steps(rate: float, capacity: float) -> float:
    """Return the factor by which steps may be longer than predicted before a rate overloads servers of this capacity.

    >>> round(longest_steps(10.0, 20.0), 2)
    2.04
    """
    return LEVEL.sure * capacity / rate


def falls_behind(rate: float, answered: float) -> bool:
    """Return whether a run of limited length answered clearly fewer requests per second than were sent.

    >>> falls_behind(10.0, 8.9), falls_behind(10.0, 9.1)
    (True, False)
    """
    return answered < LEVEL.kept_up * rate
