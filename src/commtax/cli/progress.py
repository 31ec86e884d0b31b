"""How far a long simulation is, on a terminal's standard error alone; Ctrl-C ends it with what it has."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from commtax.question import Question
from commtax.sim.serving.running import Run

LONG = 25_000  # requests that take about two seconds
EVERY_S = 0.5
Watch = Callable[[Run], None]


@contextmanager
def watched(requests: float) -> Iterator[Watch]:
    """A watcher of a run of so many requests."""
    over = Event()
    shows = requests >= LONG and sys.stderr.isatty()

    def watch(ran: Run) -> None:
        if shows:
            Thread(target=_tell, args=(ran, over), daemon=True).start()

    try:
        yield watch
    finally:
        over.set()
        if shows:
            sys.stderr.write("\r\x1b[K")


def _tell(ran: Run, over: Event) -> None:
    whole = len(ran.book.arrival_s)
    while not over.wait(EVERY_S):
        sys.stderr.write(
            f"\r{ran.answered:,} of {whole:,} requests answered ({ran.answered / whole:.0%}); Ctrl-C: the answer so far\x1b[K"
        )
        sys.stderr.flush()


def counted(many: Sequence[Question], what: str) -> Iterator[Question]:
    """One question after the other, with how many there have been."""
    for number, one in enumerate(many, 1):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what.replace('_', ' ')}: {number} of {len(many)}\x1b[K")
            sys.stderr.flush()
        yield one
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
