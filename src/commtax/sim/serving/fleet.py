"""Clients, a router and several engines: who is sent where and when, until all requests are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from commtax.sim.serving.book import Book
from commtax.sim.serving.replica import Replica

Route = Callable[[int, float], Replica]


class Clients:
    """They send each request when it arrives, but have no more than ``cap`` in flight: the next goes when one is answered."""

    def __init__(self, book: Book, cap: float, share: Sequence[int] | None = None) -> None:
        self.book = book
        self.order = range(len(book.arrival_s)) if share is None else share
        self.sent = 0
        self.cap = cap
        self.pending: list[tuple[float, int]] = []

    def start(self) -> None:
        count = len(self.order) if self.cap == inf else min(int(self.cap), len(self.order))
        self.pending = [(self.book.arrival_s[i], i) for i in self.order[:count]]
        heapify(self.pending)
        self.sent = count

    def answered(self, _: int, now: float) -> None:
        if self.sent < len(self.order):
            i = self.order[self.sent]
            self.sent += 1
            heappush(self.pending, (max(now, self.book.arrival_s[i]), i))


def alone(replica: Replica, clients: Clients) -> None:
    """One engine and its own clients: nobody else needs to be waited for."""
    clients.start()
    if clients.cap == inf:
        for now, i in sorted(clients.pending):
            replica.offer(i, now)
        replica.run()
        return
    replica.on_done = lambda i, now: _next(clients, replica, i, now)
    while clients.pending:
        now, i = heappop(clients.pending)
        replica.offer(i, now)
    replica.run()


def _next(clients: Clients, replica: Replica, i: int, now: float) -> None:
    clients.answered(i, now)
    while clients.pending:
        at, j = heappop(clients.pending)
        replica.offer(j, at)


def together(replicas: Sequence[Replica], clients: Clients, route: Route, feedback: bool) -> None:
    """Engines that depend on each other, through the router or through clients: nobody runs past what may still reach it.

    The engine that is furthest behind goes on, up to the next request and, where answers bring new requests, up to the
    next engine's clock.
    """
    clients.start()
    while True:
        now = clients.pending[0][0] if clients.pending else inf
        behind = min(replicas, key=lambda r: r.clock)
        if behind.clock < now:
            others = min((r.clock for r in replicas if r is not behind), default=inf) if feedback else inf
            behind.run(min(now, max(others, behind.clock * (1 + 1e-12) + 1e-12)))
        elif now < inf:
            _, i = heappop(clients.pending)
            route(i, now).offer(i, now)
        else:
            return
