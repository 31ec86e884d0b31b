"""Versions of engines and libraries: which of those that were measured stands for one that was not."""

import re
from collections.abc import Iterable


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a version: ``1.0.0rc3`` is 1, 0, 0."""
    return tuple(int(number[0]) for part in version.removeprefix("v").split(".") if (number := re.match(r"\d{1,9}", part)))


def nearest(version: str, known: Iterable[str]) -> str:
    """The newest known version that is not newer, else the oldest.

    >>> nearest("0.5.12", ["0.5.10", "0.5.14"]), nearest("0.4", ["0.5.10", "0.5.14"])
    ('0.5.10', '0.5.10')
    """
    wanted, measured = parts(version), sorted(known, key=parts)
    older = [v for v in measured if parts(v) <= wanted]
    return older[-1] if older else measured[0]


def is_same_version(version: str, measured: str) -> bool:
    """Whether one of them is the other, or says less of it: 0.5 and 0.5.14."""
    one, other = parts(version), parts(measured)
    return one[: len(other)] == other[: len(one)]
