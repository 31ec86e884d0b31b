"""How far a long simulation or the reading of large files is, on a terminal's standard error alone."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from commtax.files import MiB
from commtax.question import Question
from commtax.sim.serving.running import ServingRun

LONG = 25_000  # requests that take about two seconds
LARGE = 32 * MiB  # bytes on the disk that take about as long
EVERY_S = 0.5
BAR_SIGNS = 24
Watch = Callable[[ServingRun], None]


def tell(text: str = "") -> None:
    """One line that the next takes the place of."""
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()


@contextmanager
def watch_requests(requests: float) -> Iterator[Watch]:
    """A watcher of a run of so many requests."""
    over = Event()
    shows = requests >= LONG and sys.stderr.isatty()

    def watch(ran: ServingRun) -> None:
        if shows:
            Thread(target=_follow, args=(ran, over), daemon=True).start()

    try:
        yield watch
    finally:
        over.set()
        if shows:
            tell()


def _follow(ran: ServingRun, over: Event) -> None:
    whole = len(ran.book.arrival_s)
    while not over.wait(EVERY_S):
        tell(f"{ran.answered:,} of {whole:,} requests answered ({ran.answered / whole:.0%}); Ctrl-C: the answer so far")


def count_questions(many: Sequence[Question], what: str) -> Iterator[Question]:
    """One question after the other, with how many there have been."""
    for number, one in enumerate(many, 1):
        if sys.stderr.isatty():
            tell(f"{what.replace('_', ' ')}: {number} of {len(many)}")
        yield one
    if sys.stderr.isatty():
        tell()


@contextmanager
def watch_reading(files: Sequence[Path]) -> Iterator[Callable[[int], None] | None]:
    """Who is told of bytes as they are read; None where nobody looks or little is to be read."""
    whole = 0
    for path in files:
        with suppress(OSError, ValueError):
            whole += sum(p.stat().st_size for p in (path.iterdir() if path.is_dir() else (path,)))
    if whole < LARGE or not sys.stderr.isatty():
        yield None
        return
    done, shown = 0, time.monotonic()

    def watch(further: int) -> None:
        nonlocal done, shown
        done += further
        if time.monotonic() - shown < EVERY_S:
            return
        shown = time.monotonic()
        share = min(1.0, done / whole)
        bar = "=" * round(share * BAR_SIGNS)
        tell(f"reading [{bar:<{BAR_SIGNS}}] {done / 1e6:,.0f} of {whole / 1e6:,.0f} MB ({share:.0%})")

    try:
        yield watch
    finally:
        tell()
