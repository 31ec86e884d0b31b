"""Nanoseconds of a trace's microseconds, exactly: as a float where that holds them, as text where it does not."""

import math

import numpy as np

from commtax.timeline import Column

LARGE_US = 2.0**43
"""From here on a float does not hold microseconds with all three digits behind the point."""
LATEST_NS, EARLIEST_NS, LONGEST_NS = 2**62, -(2**60), 2**60  # so that differences fit in eight bytes; 2**62 is the year 2116


def ns(microseconds: object) -> int:
    """Nanoseconds from microseconds, whether whole, with a fraction, or with a fraction kept as text.

    >>> ns(5), ns("1712195495527376.234"), ns(-5.25)
    (5000, 1712195495527376234, -5250)
    """
    if isinstance(microseconds, int):
        return microseconds * 1000
    text = str(microseconds)
    value = float(text)
    if -LARGE_US < value < LARGE_US:
        whole = math.floor(value)
        return whole * 1000 + round((value - whole) * 1000)
    whole_text, point, fraction = text.partition(".")
    if not point or "e" in fraction or "E" in fraction:
        return round(value * 1000) if "e" in text or "E" in text else int(text) * 1000
    return int(whole_text) * 1000 + (-1 if whole_text.startswith("-") else 1) * round(float(f"0.{fraction}") * 1000)


def span(ts: object, dur: object) -> tuple[int, int]:
    """Start and end; a time that no clock shows is a ``ValueError``."""
    start, lasting = ns(ts), max(0, ns(dur))
    if not EARLIEST_NS < start < LATEST_NS or lasting >= LONGEST_NS:
        raise ValueError("a time beyond any clock")
    return start, start + lasting


def all_ns(microseconds: Column) -> Column:
    """As ``ns`` for floats that hold all digits."""
    whole = np.floor(microseconds)
    found: Column = (whole * 1000).astype(np.int64) + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return found
