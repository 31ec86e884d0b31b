"""Small engines with made-up prices: requests, rules and step tables that laws of the simulator are tried on."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np
from hypothesis import strategies as st

from commtax.cost.surface import Surface
from commtax.sim.serving.book import Book, Rules, book_of
from commtax.sim.serving.lane import BlockPool
from commtax.sim.serving.replica import Replica
from commtax.sim.serving.running import Clients, run_alone
from commtax.spec.stream import RequestStream

LONGEST = 128  # tokens of a toy request


def toy_surface(base_s=1e-2, seq_s=1e-3, row_s=1e-4, context_s=1e-6, prompt_s=1e-7, fixed_s=0.0, seqs=64, rows=512):
    """A step takes base + seq a decode + row a prompt token + what attention costs: linear but for one bend in its context."""
    count, contexts = np.arange(seqs + 1.0), [0.0, LONGEST / 2, LONGEST * 4.0]
    bent = np.array([0.0, LONGEST / 2, LONGEST * 6.0]) * context_s
    new, past = [1.0, 64.0, 512.0], [0.0, 128.0, 512.0]
    alone_s = base_s + seq_s * count
    mixed = np.array([[base_s + seq_s * samples + row_s * r for r in range(rows + 1)] for samples in (1, seqs + 1)])
    prompt = [[prompt_s * n * (p + n / 2) for n in new] for p in past]
    comm = np.zeros(seqs + 1), np.zeros(rows + 1)
    decode = count[:, None] * bent[None, :]
    return Surface(alone_s.tolist(), [1, seqs + 1], mixed, contexts, decode, new, past, prompt, prompt, fixed_s, *comm)


def constant_surface(step_s, seqs=8, rows=64):
    """Every step takes the same time, whatever is in it."""
    return toy_surface(step_s, 0.0, 0.0, 0.0, 0.0, 0.0, seqs, rows)


class WatchedPool(BlockPool):
    """A pool that never hands out what it has not."""

    __slots__ = ()

    def admit(self, i, needed):
        admitted = super().admit(i, needed)
        assert 0 <= self.free_blocks <= self.rules.blocks
        assert self.running <= self.rules.seqs
        return admitted

    def allocate(self, blocks):
        super().allocate(blocks)
        assert self.free_blocks >= 0

    def release(self, i, tokens):
        super().release(i, tokens)
        assert self.free_blocks <= self.rules.blocks
        if self.prefixes:
            assert self.prefixes.idle * self.prefixes.per_id <= self.free_blocks, "idle blocks are free ones"


def watched(replica):
    """The engine with pools that check each move."""
    pools = {id(lane.pool): WatchedPool(replica.rules, replica.book) for lane in replica.lanes}
    for lane in replica.lanes:
        lane.pool = pools[id(lane.pool)]
    replica.pools = list(pools.values())
    return replica


class Stepping(Replica):
    """An engine that looks at its queue after every step and never jumps."""

    def _undisturbed(self, begin, until, first, more):  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class Case:
    """A toy run: who asks, by which rules, at which prices."""

    stream: RequestStream
    rules: Rules
    prices: dict[str, float] = field(default_factory=dict)
    hit_rate: float = 0.0

    @cached_property
    def surface(self) -> Surface:
        return toy_surface(**self.prices)

    def but(self, **rules):
        return replace(self, rules=replace(self.rules, **rules))

    def run(self, kind=Replica, *extra, pieces=()) -> tuple[Book, Replica]:
        """One engine until all is answered; ``pieces``: it is run up to each of these moments first."""
        book = book_of(self.stream, self.hit_rate, self.rules.block)
        engine = watched(kind(self.rules, book, self.surface, *extra))
        if pieces:
            for i, at in enumerate(book.arrival_s):
                engine.submit(i, at)
            for until in pieces:
                engine.run(until)
            engine.run()
        else:
            run_alone(engine, Clients(book, self.stream.in_flight, range(len(self.stream))))
        return book, engine


def stream(arrivals, inputs, outputs, in_flight=inf, prefixes=None, block=4):
    columns = np.asarray(arrivals, float), np.asarray(inputs, np.int64), np.asarray(outputs, np.int64)
    return RequestStream(*columns, prefixes, block, in_flight)


@st.composite
def cases(draw, closed=True, shared=True):
    """Toy runs of every kind: little room, much load, long and short prompts, text that comes again."""
    count, seed = draw(st.integers(1, 30)), draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    longest_in, longest_out = draw(st.sampled_from([(8, 24), (60, 8), (40, 40)]))
    inputs, outputs = rng.integers(1, longest_in + 1, count), rng.integers(1, longest_out + 1, count)
    gap = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0]))
    in_flight = draw(st.sampled_from([inf, inf, 1, 3, 8])) if closed else inf
    prefixes = _prefixes(rng, inputs) if shared and draw(st.booleans()) else None
    asked = stream(np.cumsum(rng.exponential(gap, count)), inputs, outputs, in_flight, prefixes)
    least = -(-int(np.max(inputs + outputs)) // 4)
    rules = Rules(
        tokens=draw(st.sampled_from([16, 40, 128])), seqs=draw(st.integers(1, 12)),
        blocks=least + draw(st.sampled_from([0, 2, 10, 200])), block=4, prefill_first=draw(st.booleans()),
        chunked=draw(st.booleans()), reserved=draw(st.booleans()), ahead=draw(st.booleans()),
        prompts=draw(st.sampled_from([1, 2, 2**31])), patience=draw(st.sampled_from([0, 0, 4])),
        gathering=draw(st.sampled_from([0, 2])), delivery_s=draw(st.sampled_from([0.0, 0.013])),
        frontend_s=draw(st.sampled_from([0.0, 0.003])), token_s=draw(st.sampled_from([0.0, 0.0004])),
    )  # fmt: skip
    prices = {"seq_s": draw(st.sampled_from([0.0, 1e-3])), "context_s": draw(st.sampled_from([0.0, 1e-5]))}
    return Case(asked, rules, prices, draw(st.sampled_from([0.0, 0.0, 0.5])))


def _prefixes(rng, inputs):
    """A few texts that prompts are beginnings of: ids of whole blocks of 4 tokens."""
    texts = rng.integers(0, 3, len(inputs))
    return tuple(tuple(int(1000 * text + at) for at in range(n // 4)) for text, n in zip(texts, inputs, strict=True))
