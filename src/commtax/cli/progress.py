"""How far a command is and how long it will take, on a terminal's standard error: from the second second on, in one line.

Computations count their steps (``commtax.counting``). COMMTAX_PROGRESS=always writes into a pipe too, =never nothing at all.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from commtax.counting import listening
from commtax.files import MiB
from commtax.units import format_seconds

LARGE = 32 * MiB  # bytes on the disk that take about two seconds
EVERY_S = 0.5
USUAL_WIDTH = 80  # of terminals that do not say theirs
PATIENCE_S = 1.0  # before the first line
LEAST_LEFT = 0.4  # of the time that was left when work was last counted: what is not counted yet may take longer
TOLD_FROM = 0.005  # share done from which the time left can be told
STOP = "; Ctrl-C: the answer so far"
Done = Callable[[], tuple[float, str]]  # the share that is done, and what that is, in words


def tell(text: str = "") -> None:
    """Write one line, which the next takes the place of."""
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()


def progress_line(what: str, share: float, elapsed_s: float, done: str = "", left_s: float | None = None) -> str:
    """Return how much is done and about how long the rest takes, or how long it has taken where that is unclear.

    >>> progress_line("searching plans", 0.25, 4.0)
    'searching plans: 25%, about 12 s left'
    >>> progress_line("simulating", 0.5, 10.0, "500 of 1,000 requests")
    'simulating: 500 of 1,000 requests (50%), about 10 s left'
    """
    if share < TOLD_FROM:
        return f"{what}: {done or f'{format_seconds(round(elapsed_s))} so far'}"
    left = format_seconds(max(1, round(elapsed_s * (1 - share) / share if left_s is None else left_s)))
    return f"{what}: {f'{done} ({share:.0%})' if done else f'{share:.0%}'}, about {left} left"


class Meter:
    """The work at hand, how much of it is done, and since when."""

    def __init__(self) -> None:
        self.what, self.ends, self.began, self.share, self.on = "", "", 0.0, 0.0, False
        self.counted = self.whole_s = 0.0  # the share when work was last counted, and how long all of it takes at that pace
        self._done: Done | None = None

    def start(self, what: str, done: Done | None = None, ends: str = "") -> None:
        self.what, self.ends, self.began, self._done = what, ends, time.monotonic(), done
        self.share = self.counted = self.whole_s = 0.0

    def is_at(self, share: float) -> None:
        if share and share != self.counted:
            self.counted, self.whole_s = share, (time.monotonic() - self.began) / share
        self.share = max(self.share, share)

    def line(self, width: int) -> str:
        """Return the line as it stands now, within so many columns: what Ctrl-C does is left out first.

        Between two counts the seconds that are left pass, but for a part of them, for what is counted next may take longer.
        """
        share, done = self._done() if self._done else (self.share, "")
        elapsed_s, left_s = time.monotonic() - self.began, None
        if self.counted and share == self.share:
            left_s = max(self.whole_s - elapsed_s, LEAST_LEFT * self.whole_s * (1 - self.counted))
            share = self.share = max(share, elapsed_s / (elapsed_s + left_s))
        line = progress_line(self.what, share, elapsed_s, done, left_s)
        return f"{line}{self.ends}" if len(line + self.ends) <= width else line[:width]

    def clear(self) -> None:
        """Clear the line: the answer comes."""
        if self.on:
            self.on = False
            tell()


METER = Meter()


def is_watched() -> bool:
    wish = os.environ.get("COMMTAX_PROGRESS", "")
    return wish == "always" or (wish != "never" and sys.stderr.isatty())


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Show how far it is as long as this lasts, until the answer is printed."""
    if not what or not is_watched():
        yield
        return
    over = Event()
    METER.start(what)
    METER.on = True
    Thread(target=_draw, args=(over,), daemon=True).start()
    try:
        with listening(METER.is_at, METER.clear):
            yield
    finally:
        over.set()
        METER.clear()


def _draw(over: Event) -> None:
    width = (os.get_terminal_size(2).columns if sys.stderr.isatty() else 0) or USUAL_WIDTH
    pause = PATIENCE_S
    while not over.wait(pause):
        if not METER.on:
            return
        tell(METER.line(width - 1))
        pause = EVERY_S


@contextmanager
def watch_reading(files: Sequence[Path]) -> Iterator[Callable[[int], None] | None]:
    """Yield what counts bytes as they are read, or None where nobody looks or little is to be read."""
    whole = 0
    for path in files:
        with suppress(OSError, ValueError):
            whole += sum(p.stat().st_size for p in (path.iterdir() if path.is_dir() else (path,)))
    if whole < LARGE or not is_watched():
        yield None
        return
    read = 0

    def watch(further: int) -> None:
        nonlocal read
        read += further

    def done() -> tuple[float, str]:
        return min(1.0, read / whole), f"{read / 1e6:,.0f} of {whole / 1e6:,.0f} MB"

    METER.start("reading", done)
    yield watch
    METER.start("looking for causes")
