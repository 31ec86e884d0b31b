"""Numbers that decide a finding or bound what is read of a stranger's file: ``thresholds.toml`` of each room, by module.

Each has its value, a reason in plain words, and its basis: ``guard`` (memory and time stay bounded), ``display`` (how much is
shown), ``judgement``, or what was measured; and the false alarms that it was set for, where they are known.
"""

from collections.abc import Mapping
from functools import cache
from typing import Generic, TypeVar

from commtax.shipped_tables import room_table

Number = TypeVar("Number", int, float)


class Thresholds(Generic[Number]):
    def __init__(self, values: Mapping[str, Number]) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Number:
        raise AttributeError(name)


@cache
def _module_rows(module: str) -> Mapping[str, Mapping[str, object]]:
    rows: Mapping[str, Mapping[str, object]] = room_table(module, "thresholds.toml")
    return rows


@cache
def counts(module: str) -> Thresholds[int]:
    """Return the whole numbers of a module: counts, bytes, signs."""
    return Thresholds({name: row["value"] for name, row in _module_rows(module).items() if isinstance(row["value"], int)})


@cache
def levels(module: str) -> Thresholds[float]:
    """Return the shares, ratios and seconds of a module."""
    return Thresholds({name: row["value"] for name, row in _module_rows(module).items() if isinstance(row["value"], float)})


def thresholds(module: str) -> tuple[Thresholds[int], Thresholds[float]]:
    return counts(module), levels(module)
