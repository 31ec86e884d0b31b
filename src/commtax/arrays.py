"""Scalars and arrays alike."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

PLAIN = (int, float, np.generic)
P = ParamSpec("P")
T = TypeVar("T")


def some(condition: Any) -> bool:
    """Whether a condition holds anywhere; quick for one.

    >>> some(np.bool_(True)), some(np.array([False, True])), some(False)
    (True, True, False)
    """
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)


def remembered(make: Callable[P, T], most: int = 1024) -> Callable[P, T]:
    """A pure function that keeps its last answers; where an argument holds arrays, it makes each anew."""
    kept = cast(Callable[P, T], lru_cache(maxsize=most)(make))

    @wraps(make)
    def answer(*args: P.args, **given: P.kwargs) -> T:
        try:
            hash((args, *given.values()))
        except TypeError:
            return make(*args, **given)
        return kept(*args, **given)

    return answer


def a_few_remembered(make: Callable[P, T]) -> Callable[P, T]:
    """The same where an answer takes megabytes."""
    return remembered(make, 64)


def pick(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; a plain number where all three are.

    >>> pick(True, 1, 2), pick(np.array([True, False]), 1, 2).tolist()
    (1, [1, 2])
    """
    if isinstance(condition, (bool, np.bool_)) and isinstance(yes, PLAIN) and isinstance(no, PLAIN):
        return yes if condition else no  # many times faster than np.where for one number
    return np.where(condition, yes, no)[()]
