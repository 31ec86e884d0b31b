"""A whole run: engines built from what a fleet is, all requests sent through them."""

from collections.abc import Callable
from dataclasses import field, replace
from heapq import heappush
from math import inf
from typing import Self

from commtax.cost.surface import Surface
from commtax.records import dataclass
from commtax.sim.serving.book import Book, Rules, book_of
from commtax.sim.serving.fleet import Clients, alone, router, together
from commtax.sim.serving.pipeline import Pipeline
from commtax.sim.serving.replica import Replica
from commtax.spec.stream import Stream


@dataclass(frozen=True, slots=True)
class Workers:
    """Engines of one kind, all alike."""

    rules: Rules
    surface: Surface
    count: int = 1
    ranks: int = 1  # attention data parallelism: ranks with queues of their own that step together
    stages: int = 1

    def scaled(self, factor: float) -> Self:
        return replace(self, surface=self.surface.scaled(factor))

    def build(self, book: Book, first: int = 0) -> list[Replica]:
        numbers = range(first, first + self.count)
        if self.stages > 1:
            return [Pipeline(self.rules, book, self.surface, self.stages, n) for n in numbers]
        return [Replica(self.rules, book, self.surface, self.ranks, n) for n in numbers]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that decode, or do everything; those of prompts alone where the two are apart, and how caches move between them."""

    workers: Workers
    router: str = "round-robin"
    prompts: Workers | None = None
    moved_s: Callable[[int], float] = field(default=lambda _: 0.0)  # seconds that a prompt of so many tokens keeps a link busy

    def scaled(self, factor: float) -> Self:
        """The same engines with all steps longer by a factor."""
        return replace(self, workers=self.workers.scaled(factor), prompts=self.prompts.scaled(factor) if self.prompts else None)


@dataclass(slots=True)
class Run:
    """All that happened."""

    book: Book
    engines: list[Replica]  # that decode
    prompt_engines: list[Replica] = field(default_factory=list)
    stopped: bool = False  # before all were answered

    @property
    def answered(self) -> int:
        """Requests that are, while it runs: a watcher may ask at any time."""
        return sum(len(engine.ended) for engine in self.engines)


def run(
    stream: Stream, fleet: Fleet, hit_rate: float = 0.0, watch: Callable[[Run], None] | None = None, enough: float = inf
) -> Run:
    """Send a stream of requests through a fleet until all are answered, or, where nobody's answer hangs on others', ``enough``.

    ``watch`` is shown the run when it begins; whoever watches may interrupt it, and has what happened until then.
    """
    book = book_of(stream, hit_rate, fleet.workers.rules.block)
    engines = fleet.workers.build(book)
    ran = Run(book, engines, fleet.prompts.build(book, len(engines)) if fleet.prompts else [])
    if watch is None:
        _send(ran, fleet, stream, enough)
        return ran
    try:
        watch(ran)
        _send(ran, fleet, stream)
    except KeyboardInterrupt:
        ran.stopped = True
    return ran


def _send(ran: Run, fleet: Fleet, stream: Stream, enough: float = inf) -> None:
    book, engines, everyone = ran.book, ran.engines, range(len(stream))
    if fleet.prompts:
        _apart(book, fleet, ran.prompt_engines, engines, stream.in_flight)
        return
    if len(engines) == 1 or (fleet.router == "round-robin" and stream.in_flight == inf):  # each has its own share of requests
        for engine in engines:
            own = everyone[engine.number :: len(engines)]
            if own:
                alone(engine, Clients(book, stream.in_flight, own), enough if len(engines) == 1 else inf)
        return
    clients = Clients(book, stream.in_flight, everyone)
    route = router(fleet.router, engines)
    if clients.cap < inf:
        for engine in engines:
            engine.on_done = lambda _, now: clients.answered(now)
    together(engines, clients, lambda i, now: route(i, now).offer(i, now), clients.cap < inf)


def _apart(book: Book, fleet: Fleet, before: list[Replica], engines: list[Replica], cap: float) -> None:
    """Prompts on workers of their own; a prompt's cache goes over its worker's link, one after the other, to who decodes it.

    Clients that never wait do not care who has answered: then all prompts are computed first, and those who decode follow.
    """
    waits = cap < inf
    clients = Clients(book, cap, range(len(book.arrival_s)))
    pending = clients.pending if waits else list[tuple[float, int]]()
    enter, decode = router(fleet.router, before), router("least-loaded", engines)
    free = [0.0] * len(before)  # when the link of a worker has moved what was before

    def prompted(i: int, now: float) -> None:
        if book.output_len[i] == 1:
            clients.answered(now)
            return
        worker = book.served_by[i] - len(engines)
        free[worker] = max(free[worker], now) + fleet.moved_s(book.input_len[i])
        book.elsewhere[i], book.moved_s[i] = True, free[worker] - now
        heappush(pending, (free[worker], i))

    def send(i: int, now: float) -> None:
        (decode if book.elsewhere[i] else enter)(i, now).offer(i, now)

    for engine in before:
        engine.on_done = prompted
    if waits:
        for engine in engines:
            engine.on_done = lambda _, now: clients.answered(now)
        together([*before, *engines], clients, send, feedback=True)
    else:
        if fleet.router == "round-robin":  # each has its own share of requests
            for place, engine in enumerate(before):
                alone(engine, Clients(book, inf, range(place, len(book.arrival_s), len(before))))
        else:
            together(before, clients, send, feedback=False)
        clients.pending = pending
        together(engines, clients, send, feedback=False)
