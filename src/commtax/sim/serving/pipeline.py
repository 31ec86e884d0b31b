"""A pipeline in time: batches pass the stages behind each other, and share one queue and one cache.

A request stays with the batch that it joined. As many batches are in flight as there are stages; with fewer requests than
that, stages starve.
"""

from math import inf

from commtax.cost.surface import Surface
from commtax.sim.serving.book import Book, Rules
from commtax.sim.serving.lane import Chunk, Lane
from commtax.sim.serving.replica import Replica

Batch = tuple[list[Chunk], float, float]
"""Chunks of prompts in a batch, when it entered the first stage, and seconds until it left the last."""


class Pipeline(Replica):
    """An engine with a lane for each of its ``stages``; a step takes as long as all of them, and each stage a part of it."""

    def __init__(self, rules: Rules, book: Book, surface: Surface, stages: int, number: int = 0) -> None:
        super().__init__(rules, book, surface, 1, number)
        self.lanes += [Lane(self.pools[0], surface) for _ in range(stages - 1)]
        self.out = [inf] * stages  # when the batch of a lane leaves the last stage; infinite: it has none
        self.batches: list[Batch | None] = [None] * stages
        self.busy = [0.0] * stages  # until when a stage works on batches that entered before

    def _step(self, begin: float, until: float) -> None:  # noqa: ARG002
        turn = self.out.index(begin)
        lane, batch = self.lanes[turn], self.batches[turn]
        if batch:
            self._complete(turn, lane, batch)
        self.seen = begin
        if self.next < len(self.times) and self.times[self.next] <= begin:
            self._arrive()
        chunks = lane.form(begin)
        if not chunks and self.rules.prefill_first:
            lane.secure(begin)
        if chunks or lane.seqs:
            self._enter(turn, lane, chunks, begin)
        else:
            self.out[turn], self.batches[turn] = inf, None
        self._idle()

    def _enter(self, turn: int, lane: Lane, chunks: list[Chunk], begin: float) -> None:
        """A batch goes through the stages, each as soon as the batches before it have left that."""
        each = (lane.seconds(chunks) if chunks else lane.surface.decoding(lane.seqs, lane.cached)[0]) / len(self.lanes)
        now, busy = begin, self.busy
        for stage, until in enumerate(busy):
            now = (now if now > until else until) + each
            busy[stage] = now
        self.batches[turn], self.out[turn] = (chunks, begin, now - begin), begin + (now - begin)  # to the last bit when it ends

    def _complete(self, turn: int, lane: Lane, batch: Batch) -> None:
        """What a batch has computed becomes true when it leaves the last stage."""
        chunks, begin, seconds = batch
        if chunks:
            self.finish(turn, lane, chunks, (begin, begin + seconds), 1, seconds, 0.0)
        else:
            self._tokens(turn, lane, (begin, begin + seconds), 1, seconds, 0.0, 0)

    def _idle(self) -> None:
        """The next batch leaves, or a request comes and an empty lane takes it."""
        pool = self.pools[0]
        if inf in self.out:
            empty = self.out.index(inf)
            if pool.waiting and pool.running < self.rules.seqs and pool.needed(pool.waiting[0], 1) <= pool.free:
                self.out[empty] = self.clock
            elif self.next < len(self.times):
                coming = max(self.times[self.next], self.clock if self.clock < inf else 0.0)
                if coming < min(self.out):
                    self.out[empty] = coming
        self.clock = min(self.out)
