"""One engine in time: steps one after the other, each as long as its lanes' batches are priced.

A plain engine has one lane. Attention data parallelism has one a rank, each with its own queue and cache, and all wait for
the longest. A pipeline (``pipeline.py``) has one a stage, which share queue and cache.
"""

from bisect import bisect_right
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from commtax.cost.surface import Surface
from commtax.sim.serving.book import Book, Rules
from commtax.sim.serving.lane import Chunk, Lane, steps_in
from commtax.sim.serving.pool import Pool


class Segment(NamedTuple):
    """Steps of one lane that follow each other alike."""

    begin_s: float
    steps: int
    decodes: int  # requests that get a token in each
    first_s: float  # seconds of the first …
    more_s: float  # … and by how much each is longer than the one before
    stalled: int  # of the decodes: those that had to wait before the first …
    stall_s: float  # … this long
    tokens: int  # of prompts
    waiting: int
    free: int  # blocks
    lane: int


class Replica:
    """An engine with its front end. ``clock`` is when its next step begins: infinite while it has nothing to do."""

    def __init__(self, rules: Rules, book: Book, surface: Surface, ranks: int = 1, number: int = 0) -> None:
        self.rules, self.book, self.number = rules, book, number
        self.lanes = [Lane(Pool(rules, book), surface) for _ in range(ranks)]
        self.pools = [lane.pool for lane in self.lanes]
        self.clock = inf
        self.seen = -inf  # who has come by then may be in the next step
        self.door = 0.0  # when the front end has taken the last request in …
        self.behind = 0.0  # … and how far it is behind with streaming tokens
        self.times: list[float] = []  # when requests reach the scheduler …
        self.coming: list[int] = []  # … and which
        self.next = 0
        self.log: list[Segment] = []
        self.ended: list[float] = []  # when requests left
        self.on_done: Callable[[int, float], None] | None = None

    def offer(self, i: int, now: float) -> None:
        """A request is sent to this engine, or its cache has come from where its prompt was computed."""
        book = self.book
        book.served_by[i] = self.number
        if book.sent_s[i] != book.sent_s[i]:  # not a number yet
            book.sent_s[i] = now
        self.door = max(self.door, now) + self.rules.door_s
        seen = self.door + self.rules.way_s
        self.times.append(seen)
        self.coming.append(i)
        if self.clock == inf:
            self._idle()

    def load(self, now: float) -> int:
        """Requests that were sent here and are not answered."""
        return len(self.coming) - bisect_right(self.ended, now)

    def knows(self, i: int) -> int:
        """Blocks of a prompt that are in its cache."""
        ids = self.book.prefixes[i] if self.book.prefixes else ()
        return max((pool.prefixes.match(ids) for pool in self.pools if pool.prefixes), default=0)

    def run(self, until: float = inf) -> None:
        """All steps that begin before ``until``."""
        while self.clock < until:
            self._step(self.clock, until)

    def _idle(self, now: float = -inf) -> None:
        """Nothing to do until the next request comes; one that came while the next step was decided already is there now."""
        self.clock = self.seen = max(now, self.times[self.next]) if self.next < len(self.times) else inf

    def _step(self, begin: float, until: float) -> None:
        self._arrive()
        chunks = [lane.form(begin) for lane in self.lanes]
        if any(chunks):
            self._mixed(begin, chunks)
        elif self._decodes(begin):
            self._decode(begin, until)
        else:
            self._idle(begin)

    def _arrive(self) -> None:
        """Requests that reached the scheduler in time wait for a step, at the rank with the fewest."""
        while self.next < len(self.times) and self.times[self.next] <= self.seen:
            pools = self.pools
            pool = pools[0] if len(pools) == 1 else min(pools, key=lambda p: p.running + len(p.waiting))
            pool.waiting.append(self.coming[self.next])
            self.next += 1

    def _decodes(self, begin: float) -> bool:
        """Whether a lane has requests that decode. Prompts that go before them have not looked for their blocks yet."""
        if self.rules.prefill_first:
            for lane in self.lanes:
                lane.secure(begin)
        return any(lane.seqs for lane in self.lanes)

    def _mixed(self, begin: float, chunks: list[list[Chunk]]) -> None:
        """One step of prompts, decodes beside them or not; ranks wait for the longest."""
        beside = not self.rules.prefill_first
        seconds = max(lane.seconds(own) for lane, own in zip(self.lanes, chunks, strict=True) if own or (beside and lane.seqs))
        self._pass(begin, begin + seconds)
        for number, (lane, own) in enumerate(zip(self.lanes, chunks, strict=True)):
            self.finish(number, lane, own, begin, seconds)

    def finish(self, number: int, lane: Lane, chunks: list[Chunk], begin: float, seconds: float) -> None:
        """One lane's part of a step with prompts."""
        tokens, end = sum(new for _, new, _ in chunks), begin + seconds
        if self.rules.prefill_first or not lane.seqs:
            lane.stalled = lane.stalled or lane.seqs
            lane.last_s = lane.last_s if lane.seqs else end
            self._write(Segment(begin, 1, 0, seconds, 0.0, 0, 0.0, tokens, len(lane.pool.waiting), lane.pool.free, number))
        else:
            self._tokens(number, lane, begin, 1, seconds, 0.0, tokens)
        for i in lane.prompted(chunks):
            self._token(i, end)
            if not lane.join(i):
                self._leave(i, end)

    def _decode(self, begin: float, until: float) -> None:
        """Steps of decodes alone, as many as pass before something changes."""
        working = [(number, lane) for number, lane in enumerate(self.lanes) if lane.seqs]
        paces = [lane.pace() for _, lane in working]
        first, more, steps = max(paces) if len(paces) > 1 else paces[0]
        steps = min(steps, self._undisturbed(begin, until, first, more))
        if len(paces) > 1:
            steps = min(steps, *(most for _, _, most in paces))
        steps = min(lane.fits(steps) for _, lane in working)
        seconds = steps * first + more * steps * (steps - 1) / 2
        self._pass(begin + seconds - first - more * (steps - 1), begin + seconds)
        for number, lane in working:
            self._tokens(number, lane, begin, steps, first, more, 0)

    def _undisturbed(self, begin: float, until: float, first: float, more: float) -> int:
        """Steps before a request comes that is let in at once, or before ``until``; who comes behind others changes nothing."""
        steps = 2**31 if until == inf else max(1, steps_in(until - begin, first, more))
        if self.next < len(self.times) and not any(pool.waiting for pool in self.pools):
            apart = max(0.0, self.times[self.next] - begin)
            steps = min(steps, max(1, steps_in(apart, first, more) + self.rules.ahead))
        return steps

    def _pass(self, last: float, end: float) -> None:
        """Time goes on to ``end``; the last step began at ``last``. A scheduler that works ahead decided then what comes next."""
        self.clock, self.seen = end, last if self.rules.ahead else end

    def _tokens(self, number: int, lane: Lane, begin: float, steps: int, first: float, more: float, tokens: int) -> None:
        """All that decode in a lane have got so many tokens, and who has got all leaves."""
        stall, pool = begin - lane.last_s if lane.stalled else 0.0, lane.pool
        end = begin + steps * first + more * steps * (steps - 1) / 2
        facts = (lane.stalled, stall, tokens, len(pool.waiting), pool.free, number)
        self._write(Segment(begin, steps, lane.seqs, first, more, *facts))
        lane.last_s, lane.stalled = end, 0
        for i in lane.decoded(steps):
            self._leave(i, end)

    def _write(self, segment: Segment) -> None:
        self.log.append(segment)
        if self.rules.token_s:
            seconds = segment.steps * (segment.first_s + segment.more_s * (segment.steps - 1) / 2)
            self.behind = max(0.0, self.behind + segment.steps * segment.decodes * self.rules.token_s - seconds)

    def _token(self, i: int, now: float) -> None:
        """A prompt is done and made a token: a request's first, or the next of one that had been thrown out."""
        book = self.book
        if book.first_s[i] != book.first_s[i]:  # not a number yet
            book.first_s[i] = now + self.behind
        elif book.thrown[i]:
            book.lost_s[i] += now

    def _leave(self, i: int, now: float) -> None:
        self.book.done_s[i] = now + self.behind
        self.ended.append(now)
        if self.on_done:
            self.on_done(i, now + self.behind)
