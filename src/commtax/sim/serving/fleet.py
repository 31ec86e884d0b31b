"""Clients, a router and several engines: who is sent where and when, until all requests are answered."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from commtax.sim.serving.book import Book
from commtax.sim.serving.replica import Replica

ROUND_TRIP_S = 1e-6  # from an answer to the client's next request: an engine has begun its next step by then
LOOK, LOOK_S = 256, 1.0  # requests and seconds between looks whether enough are answered
Route = Callable[[int, float], Replica]


class Clients:
    """They send each request when it arrives, but have no more than ``cap`` in flight: the next goes when one is answered."""

    def __init__(self, book: Book, cap: float, own: Sequence[int]) -> None:
        self.book, self.cap, self.own = book, cap, own
        self.sent = len(own) if cap == inf else min(int(cap), len(own))
        self.pending = [(book.arrival_s[i], i) for i in own[: self.sent]]
        heapify(self.pending)

    def answered(self, now: float) -> None:
        if self.sent < len(self.own):
            i = self.own[self.sent]
            self.sent += 1
            heappush(self.pending, (max(now + ROUND_TRIP_S, self.book.arrival_s[i]), i))


def alone(replica: Replica, clients: Clients, enough: float = inf) -> None:
    """One engine and its own clients: nobody else needs to be waited for. It answers all, or the first ``enough``."""

    def send(_: int = -1, now: float = -inf) -> None:
        if now > -inf:
            clients.answered(now)
        while clients.pending:
            at, i = heappop(clients.pending)
            replica.offer(i, at)

    if clients.cap < inf:
        replica.on_done = send
    replica.offer_all(sorted(clients.pending))
    clients.pending = []
    replica.run(enough=enough)


def together(
    engines: Sequence[Replica], clients: Clients, send: Callable[[int, float], None], feedback: bool, enough: float = inf
) -> None:  # fmt: skip
    """Engines that depend on each other, through the router or through answers: nobody runs past what may still reach it.

    The engine that is furthest behind goes on, up to the next request and, where answers bring new requests, up to the
    next engine's clock. They answer all, or where no answer brings one at least the first ``enough``.
    """
    if not feedback:
        _onwards(engines, clients, send, enough)
        return
    while True:
        now = clients.pending[0][0] if clients.pending else inf
        behind = min(engines, key=lambda engine: engine.clock)
        if behind.clock < now:
            others = min((e.clock for e in engines if e is not behind), default=inf)
            behind.go_on(min(now, max(others, nextafter(behind.clock, inf))))
        elif now < inf:
            _, i = heappop(clients.pending)
            send(i, now)
        else:
            return


def _onwards(engines: Sequence[Replica], clients: Clients, send: Callable[[int, float], None], enough: float) -> None:
    """The same where answers bring nothing new: before each request all go on up to it, in any order."""
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
            if _answered(clients.book, now) >= enough:
                return
            look = LOOK
    while enough < inf and (now := min(engine.clock for engine in engines)) < inf and _answered(clients.book, now) < enough:
        for engine in engines:
            engine.run(now + LOOK_S)
    if enough == inf:
        for engine in engines:
            engine.run()


def _answered(book: Book, now: float) -> int:
    """Requests that have their last token by then; who gets it later is not known while engines are no further."""
    return sum([done <= now for done in book.done_s])


def router(kind: str, engines: Sequence[Replica]) -> Route:
    """Which engine a request goes to: each in turn, the one with the fewest requests, or the one that knows most of its prompt."""
    turn = -1
    if len(engines) == 1:
        return lambda _, __: engines[0]

    def in_turn(_: int, __: float) -> Replica:
        nonlocal turn
        turn = (turn + 1) % len(engines)
        return engines[turn]

    def least(_: int, now: float) -> Replica:
        chosen, fewest = engines[0], engines[0].load(now)
        for engine in engines[1:]:
            load = engine.load(now)
            if load < fewest:
                chosen, fewest = engine, load
        return chosen

    def known(i: int, now: float) -> Replica:
        return min(engines, key=lambda engine: (-engine.knows(i), engine.load(now)))

    return {"round-robin": in_turn, "least-loaded": least, "prefix": known}[kind]
