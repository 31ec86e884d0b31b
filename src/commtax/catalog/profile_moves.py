"""What a profile's runs moved, and how sure it is: for people who open the file or ask what it holds."""

import math
from collections.abc import Iterator

from commtax.catalog.posterior import Change, posterior_of
from commtax.spec import Deployment, Profile


def moves_of(own: Profile) -> Iterator[tuple[Deployment, dict[str, Change]]]:
    """Each deployment with the constants that its runs tell something of: those that are surer than before any run."""
    for deployment in dict.fromkeys(lesson.deployment for lesson in own.lessons):
        changes = posterior_of(own).changes(deployment)
        yield deployment, {name: x for name, x in changes.items() if share(x.after) != share(x.before)}


def share(log: float) -> str:
    """A logarithm as per cent.

    >>> share(0.1), share(-0.1)
    ('11%', '-10%')
    """
    return f"{math.expm1(log):.0%}"


def move_words(change: Change) -> tuple[str, str, str]:
    """How far a constant moved, its deviation now, and before any run."""
    return f"{math.expm1(change.log):+.0%}", f"±{share(change.after)}", f"±{share(change.before)}"
