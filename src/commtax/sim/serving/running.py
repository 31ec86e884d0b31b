"""A whole run: engines built from what a fleet is, clients and a router that send them all requests, until all are answered."""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import cycle
from math import inf, nan, nextafter
from typing import Self

from commtax.cost.surface import Surface
from commtax.records import dataclass
from commtax.sim.serving.book import Book, Rules, book_of
from commtax.sim.serving.replica import Pipeline, Replica
from commtax.spec.stream import RequestStream

ROUND_TRIP_S = 1e-6  # from an answer to the client's next request: an engine has begun its next step by then
LOOK, LOOK_S = 256, 1.0  # requests and seconds between looks whether enough are answered
Send = Callable[[int, float], None]


class Clients:
    """They send each request when it arrives, but have no more than ``cap`` in flight: the next goes when one is answered."""

    def __init__(self, book: Book, cap: float, numbers: Sequence[int]) -> None:
        self.book, self.cap, self.numbers = book, cap, numbers
        self.sent = len(numbers) if cap == inf else min(int(cap), len(numbers))
        self.pending = [(book.arrival_s[i], i) for i in numbers[: self.sent]]
        heapify(self.pending)

    def answered(self, now: float) -> None:
        if self.sent < len(self.numbers):
            i = self.numbers[self.sent]
            self.sent += 1
            heappush(self.pending, (max(now + ROUND_TRIP_S, self.book.arrival_s[i]), i))


def run_alone(replica: Replica, clients: Clients, enough: float = inf) -> None:
    """Run one engine with its own clients, until it has answered all requests or the first ``enough``."""

    def send(_: int = -1, now: float = -inf) -> None:
        if now > -inf:
            clients.answered(now)
        while clients.pending:
            at, i = heappop(clients.pending)
            replica.submit(i, at)

    if clients.cap < inf:
        replica.on_done = send
    replica.submit_all(sorted(clients.pending))
    clients.pending = []
    replica.run(enough=enough)


def run_together(engines: Sequence[Replica], clients: Clients, send: Send, feedback: bool, enough: float = inf) -> None:
    """Run engines that depend on each other, through the router or through answers: none runs past what may still reach it.

    The engine that is furthest behind goes on, up to the next request and, where answers bring new requests, up to the
    next engine's clock. They answer all, or where no answer brings one at least the first ``enough``.
    """
    if not feedback:
        _run_without_feedback(engines, clients, send, enough)
        return
    while True:
        now = clients.pending[0][0] if clients.pending else inf
        behind = min(engines, key=lambda engine: engine.clock)
        if behind.clock < now:
            others = min((e.clock for e in engines if e is not behind), default=inf)
            behind.run_to_answer(min(now, max(others, nextafter(behind.clock, inf))))
        elif now < inf:
            send(heappop(clients.pending)[1], now)
        else:
            return


def _run_without_feedback(engines: Sequence[Replica], clients: Clients, send: Send, enough: float) -> None:
    """Run engines whose answers bring no new requests: before each request all advance up to it, in any order."""
    look = enough  # requests that come before it is looked again whether enough are answered
    while clients.pending:
        now = clients.pending[0][0]
        for engine in engines:
            if engine.clock < now:
                engine.run(now)
        now, i = heappop(clients.pending)
        send(i, now)
        look -= 1
        if look <= 0:
            if _count_answered(clients.book, now) >= enough:
                return
            look = LOOK
    while enough < inf and (now := min(engine.clock for engine in engines)) < inf and _count_answered(clients.book, now) < enough:
        for engine in engines:
            engine.run(now + LOOK_S)
    if enough == inf:
        for engine in engines:
            engine.run()


def _count_answered(book: Book, now: float) -> int:
    return sum([done <= now for done in book.done_s])


def router(kind: str, engines: Sequence[Replica]) -> Callable[[int, float], Replica]:
    """Return the router: each engine in turn, the one with fewest requests, or the one that caches most of a prompt."""
    if len(engines) == 1:
        return lambda _, __: engines[0]
    turns, prefixes = cycle(engines), engines[0].book.prefixes
    homes: dict[tuple[int, ...], list[Replica]] = {}  # of each first piece of text: engines that were sent prompts that begin so

    def prefix_aware(i: int, now: float) -> Replica:
        first = prefixes[i][:1] if prefixes else ()
        able = homes.setdefault(first, [])  # no other engine knows any of it
        if len(able) == 1 and able[0].cached_blocks(i):
            return able[0]
        blocks = [engine.cached_blocks(i) for engine in able]
        most = max(blocks, default=0)
        among = [engine for engine, cached in zip(able, blocks, strict=True) if cached == most] if most else engines
        chosen = min(among, key=lambda engine: engine.load(now))
        if first and chosen not in able:
            insort(able, chosen, key=lambda engine: engine.number)
        return chosen

    if kind == "prefix":
        return prefix_aware
    if kind == "round-robin":
        return lambda _, __: next(turns)
    return lambda _, now: min(engines, key=lambda engine: engine.load(now))


Pace = tuple[float, float]  # seconds at least, and for each token


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
        kind, lanes = (Pipeline, self.stages) if self.stages > 1 else (Replica, self.ranks)
        return [kind(self.rules, book, self.surface, lanes, n) for n in range(first, first + self.count)]


@dataclass(frozen=True, slots=True)
class Moves:
    """Caches between workers, in seconds at least and more for each token of the prompt."""

    alone_s: Pace = (0.0, 0.0)  # a cache that has the wire for itself
    out_s: Pace = (0.0, 0.0)  # that it keeps the links of the worker of its prompt busy …
    in_s: Pace = (0.0, 0.0)  # … and of the one that decodes it
    early_s: Pace = (0.0, 0.0)  # it begins to leave so long before its prompt is done


def _seconds(pace: Pace, tokens: int) -> float:
    return pace[0] + pace[1] * tokens


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that decode, or do everything, and beside them those of prompts alone, with how caches move between the two."""

    workers: Workers
    router: str = "round-robin"
    prompts: Workers | None = None
    moves: Moves = Moves()
    decoded: Fraction = Fraction(1)  # share of the prompts whose caches come to these workers; others decode the rest

    def scaled(self, factor: float) -> Self:
        return replace(self, workers=self.workers.scaled(factor), prompts=self.prompts.scaled(factor) if self.prompts else None)


@dataclass(slots=True)
class ServingRun:
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
    stream: RequestStream,
    fleet: Fleet,
    hit_rate: float = 0.0,
    watch: Callable[[ServingRun], None] | None = None,
    enough: float = inf,
    prompted: bool = False,
) -> ServingRun:
    """Send a stream of requests through a fleet until all are answered, or, where no answer depends on others', ``enough``.

    ``watch`` gets the run when it begins, may interrupt it, and then has what happened until then. ``prompted``
    requests were computed elsewhere up to their first token.
    """
    book = book_of(stream, hit_rate, fleet.workers.rules.block)
    book.prefilled_elsewhere = [prompted] * len(stream)
    engines = fleet.workers.build(book)
    ran = ServingRun(book, engines, fleet.prompts.build(book, len(engines)) if fleet.prompts else [])
    try:
        if watch:
            watch(ran)
        _send(ran, fleet, stream, inf if watch else enough)
    except KeyboardInterrupt:
        if not watch:
            raise
        ran.stopped = True
    return ran


def _send(ran: ServingRun, fleet: Fleet, stream: RequestStream, enough: float) -> None:
    book, engines, everyone = ran.book, ran.engines, range(len(stream))
    if fleet.prompts:
        _run_disaggregated(book, fleet, ran.prompt_engines, engines, stream.in_flight, enough)
        return
    if len(engines) == 1 or (fleet.router == "round-robin" and stream.in_flight == inf):  # each has its own share of requests
        for engine in engines:
            if share := everyone[engine.number :: len(engines)]:
                run_alone(engine, Clients(book, stream.in_flight, share), enough if len(engines) == 1 else inf)
        return
    clients, route = Clients(book, stream.in_flight, everyone), router(fleet.router, engines)
    if clients.cap < inf:
        for engine in engines:
            engine.on_done = lambda _, now: clients.answered(now)
    run_together(engines, clients, lambda i, now: route(i, now).submit(i, now), clients.cap < inf)


def _run_disaggregated(book: Book, fleet: Fleet, before: list[Replica], engines: list[Replica], cap: float, enough: float) -> None:
    """Run prompts on workers of their own: all of them first where clients never wait for answers, and decoding follows."""
    waits, part, whole = cap < inf, fleet.decoded.numerator, fleet.decoded.denominator
    clients = Clients(book, cap, range(len(book.arrival_s)))
    wire = _Wire(book, fleet.moves, clients.pending if waits else [], len(before), engines)
    enter = router(fleet.router, before)

    def prompted(i: int, now: float) -> None:
        if book.output_len[i] == 1:
            clients.answered(now)
        else:
            book.done_s[i] = nan  # with its prompt alone
            wire.leaves(i, book.served_by[i] - len(engines), now, (i + 1) * part // whole > i * part // whole)

    def send(i: int, now: float) -> None:
        (wire.comes if book.prefilled_elsewhere[i] else enter(i, now).submit)(i, now)

    for engine in before:
        engine.on_done = prompted
    if waits:
        for engine in engines:
            engine.on_done = lambda _, now: clients.answered(now)
        run_together([*before, *engines], clients, send, feedback=True)
        return
    if fleet.router == "round-robin":  # each has its own share of requests
        for place, engine in enumerate(before):
            run_alone(engine, Clients(book, inf, range(place, len(book.arrival_s), len(before))))
    else:
        run_together(before, clients, send, feedback=False)
    clients.pending = wire.pending
    run_together(engines, clients, send, feedback=False, enough=enough)


class _Wire:
    """Links of workers of both kinds, each one cache after the other. Who decodes is chosen when a cache has left its worker:
    the one with the fewest requests, those on their way to it included."""

    def __init__(self, book: Book, moves: Moves, pending: list[tuple[float, int]], senders: int, engines: list[Replica]) -> None:
        self.book, self.moves, self.pending, self.engines = book, moves, pending, engines
        self.sent, self.taken = [0.0] * senders, [0.0] * len(engines)  # when links have moved what was before
        self.coming = [0] * len(engines)
        self.target: dict[int, int] = {}

    def leaves(self, i: int, worker: int, now: float, comes: bool) -> None:
        """Send the cache of a computed prompt after those before it, to one of these workers or to others."""
        tokens = self.book.input_len[i]
        begin = max(self.sent[worker], now - _seconds(self.moves.early_s, tokens))
        self.sent[worker] = begin + _seconds(self.moves.out_s, tokens)
        there = max(self.sent[worker], begin + _seconds(self.moves.alone_s, tokens))
        self.book.prefilled_elsewhere[i], self.book.transfer_s[i] = True, there - now
        if comes:
            heappush(self.pending, (there, i))
        else:
            self.book.first_s[i] = nan  # which its client gets elsewhere

    def comes(self, i: int, now: float) -> None:
        """Deliver a cache to the links of the worker that decodes it, where it waits for those before it."""
        if i in self.target:
            number = self.target.pop(i)
            self.coming[number] -= 1
            self.engines[number].submit(i, now)
            return
        loads = [engine.load(now) + more for engine, more in zip(self.engines, self.coming, strict=True)]
        number, busy = loads.index(min(loads)), _seconds(self.moves.in_s, self.book.input_len[i])
        self.taken[number] = there = max(self.taken[number], now - busy) + busy  # it came in while it was sent
        if there <= now:
            self.engines[number].submit(i, now)
            return
        self.target[i], self.coming[number] = number, self.coming[number] + 1
        self.book.transfer_s[i] += there - now
        heappush(self.pending, (there, i))
