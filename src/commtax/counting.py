"""How far a long computation is. Who computes counts, and a listener hears of it; without one, nothing happens.

    for place in counted(places):        # each is an equal share of what is left to do
        with part(0.0, 0.3): ...         # or an explicit share

Shares lie inside each other: what is counted inside of a step is a share of that step.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[float], None]
_listener: Listener | None = None
_over: Callable[[], None] | None = None
_within = (0.0, 1.0)  # the shares of the whole between which the step at hand lies


@contextmanager
def listening(listener: Listener, over: Callable[[], None]) -> Iterator[None]:
    """Report progress from 0 to 1 to a listener while this lasts, and call ``over`` when the answer comes."""
    global _listener, _over, _within
    before = _listener, _over, _within
    _listener, _over, _within = listener, over, (0.0, 1.0)
    try:
        yield
    finally:
        _listener, _over, _within = before


def finish() -> None:
    """Announce that all is computed, and that what follows is the answer."""
    if _over:
        _over()


@contextmanager
def part(begin: float, end: float) -> Iterator[None]:
    """Count what happens here as this part of the step that it belongs to."""
    global _within
    low, high = before = _within
    _within = low + (high - low) * begin, low + (high - low) * end
    if _listener:
        _listener(_within[0])
    try:
        yield
    finally:
        _within = before
        if _listener:
            _listener(low + (high - low) * end)


def counted(items: Collection[T]) -> Iterator[T]:
    """Yield the items one after the other, each as an equal part."""
    whole = len(items)
    for number, item in enumerate(items):
        with part(number / whole, (number + 1) / whole):
            yield item
