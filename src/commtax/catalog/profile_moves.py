"""What a profile's runs moved, and how sure it is: for people who open the file or ask what it holds."""

import math
from collections.abc import Iterator

from commtax.catalog.posterior import Change, posterior_of
from commtax.ledger import Z80
from commtax.spec import Deployment, Profile


def moves_of(own: Profile) -> Iterator[tuple[Deployment, dict[str, Change]]]:
    """Each deployment with the constants that its runs tell something of: those that are surer than before any run."""
    for deployment in dict.fromkeys(lesson.deployment for lesson in own.lessons):
        changes = posterior_of(own).changes(deployment)
        yield deployment, {name: x for name, x in changes.items() if range_words(x.after) != range_words(x.before)}


def range_words(sigma: float) -> str:
    """The 80 % range of a constant whose logarithm has a standard deviation.

    >>> range_words(0.1), range_words(0.3)
    ('±14%', '±47%')
    """
    return f"±{math.expm1(Z80 * sigma):.0%}"


def move_words(change: Change) -> tuple[str, str, str]:
    """How far a constant moved, its 80 % range now, and before any run."""
    return f"{math.expm1(change.log):+.0%}", range_words(change.after), range_words(change.before)
