"""Numbers and arrays alike.
Change here what makes one formula serve both; it knows no unit and no noun."""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

import numpy as np

from commtax.records import Condition, Number

Array = np.ndarray
PLAIN = (int, float, np.generic)
MANY = 4096  # elements from which it pays to look for equal ones …
SEEN = 4  # … and how many of them must be alike, on average
P = ParamSpec("P")
T = TypeVar("T")


def holds_anywhere(condition: Condition) -> bool:
    """Return whether a condition holds anywhere, quickly for a single one.

    >>> holds_anywhere(np.bool_(True)), holds_anywhere(np.array([False, True])), holds_anywhere(False)
    (True, True, False)
    """
    return bool(condition.any()) if isinstance(condition, np.ndarray) else bool(condition)


def cache_answers(make: Callable[P, T], most: int = 1024) -> Callable[P, T]:
    """Return a pure function that keeps its last answers. Where an argument holds arrays, it computes each anew."""
    kept = cast(Callable[P, T], lru_cache(maxsize=most)(make))

    @wraps(make)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, *kwargs.values()))
        except TypeError:
            return make(*args, **kwargs)
        return kept(*args, **kwargs)

    return answer


def cache_few_answers(make: Callable[P, T]) -> Callable[P, T]:
    """Return a function that keeps few answers, because each takes megabytes."""
    return cache_answers(make, 64)


def unique_values(values: Array | Sequence[float], axis: int | None = None) -> Array:
    """Return ``np.unique``, which looks for masked arrays, and imports them, unless more is requested of it.

    >>> unique_values([3, 1, 3]).tolist()
    [1, 3]
    """
    return np.unique(values, return_index=True, axis=axis)[0]


def pick(condition: Condition, yes: Number, no: Number) -> Number:
    """Return ``yes`` where the condition holds, else ``no``, as a plain number where all three are.

    >>> pick(True, 1, 2), pick(np.array([True, False]), 1, 2).tolist()
    (1, [1, 2])
    """
    if isinstance(condition, (bool, np.bool_)) and isinstance(yes, PLAIN) and isinstance(no, PLAIN):
        return yes if condition else no  # many times faster than np.where for one number
    return np.where(condition, yes, no)[()]


def unique_with_places(*values: Number) -> tuple[tuple[Number, ...], Array] | None:
    """Return the different ones among many numbers (of several arrays: tuples of them), and where each stands.
    None where they are few, or most of them are different, or their shapes are: then nothing is gained.

    >>> (sizes, one), at = unique_with_places(np.tile([8, 2], 5000), 1)
    >>> sizes.tolist(), one, at[:3].tolist()
    ([2, 8], 1, [1, 0, 1])
    """
    arrays = [x for x in values if isinstance(x, np.ndarray)]
    if len({x.shape for x in arrays}) != 1 or arrays[0].size < MANY:
        return None
    size, codes, distinct = 1, np.zeros((), dtype=np.intp), []
    for values_of in map(_levels, arrays):
        if values_of is None or size * len(values_of[0]) * SEEN > arrays[0].size:
            return None
        levels, at = values_of
        distinct.append(levels)
        codes, size = codes * len(levels) + at, size * len(levels)
    here = np.zeros(size, dtype=bool)
    here[codes] = True
    places = np.unravel_index(np.flatnonzero(here), [len(levels) for levels in distinct])
    few = iter([levels[i] for levels, i in zip(distinct, places, strict=True)])
    return tuple(next(few) if isinstance(x, np.ndarray) else x for x in values), (np.cumsum(here) - 1)[codes]


def _levels(values: Array) -> tuple[Array, Array] | None:
    """Return the distinct numbers of an array, sorted, and the index of each element's, as long as a sample has them all."""
    levels = unique_values(values.ravel()[:: max(1, values.size // MANY)])
    if len(levels) * SEEN > MANY:
        return None
    for _ in range(2):
        at = np.minimum(np.searchsorted(levels, values), len(levels) - 1)
        others = values[levels[at] != values]
        if not others.size:
            return levels, at
        levels = unique_values(np.concatenate([levels, others[: SEEN * MANY]]))
    return None


def spread(value: T, at: Array) -> T | Array:
    """Return what was computed of different numbers, where each stands."""
    return value[at] if isinstance(value, np.ndarray) and value.ndim else value
