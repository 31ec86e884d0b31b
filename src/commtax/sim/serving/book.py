"""An engine's rules, and the book of all requests: their lengths, arrivals, and the times of their lives."""

from collections.abc import Sequence
from dataclasses import field, fields
from itertools import chain, pairwise
from math import nan
from typing import Self

from commtax.arrays import cache_few_answers
from commtax.records import dataclass
from commtax.spec.engine import Scheduling
from commtax.spec.stream import RequestStream

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which one engine decides what a step computes, and its capacity."""

    tokens: int  # of a step at most
    seqs: int  # requests that run at once at most
    blocks: int  # of the KV cache
    block: int = 16  # tokens of a block
    states: int = 0  # blocks whose room the states of a request take, from its admission to its end
    prefill_first: bool = False  # prompts run in steps of their own, before decoding goes on
    chunked: bool = True  # prompts are cut to the step's tokens
    follows: bool = False  # chunks of a prompt follow each other through the stages of a pipeline
    reserved: bool = False  # a request is admitted when its whole output has room; else blocks are taken as it grows
    ahead: bool = False  # the next step is decided when the present one begins: who comes meanwhile waits for one more
    prompts: int = 2**31  # prompts of a step at most
    stint: int = 1  # steps of decodes that pass before who waits is looked at again
    patience: int = 0  # steps of decodes after which ranks compute the prompts that wait; 0: at once …
    gathering: int = 0  # … and after which they do when each of them has one
    spread: float = 0.0  # share of a prompt's seconds that is all ranks' work, whosever prompt it is: its experts
    prompts_only: bool = False  # decoding happens elsewhere
    delivery_s: float = 0.0  # a request's way to the scheduler, and its first token's way back
    frontend_s: float = 0.0  # the front end takes this long for a request, one after the other …
    token_s: float = 0.0  # … and for a token that it streams

    @classmethod
    def of(cls, serves: Scheduling, tokens: int, seqs: int, blocks: int, block: int) -> Self:
        """Return the rules of an engine's file, with the capacity that the engine has."""
        habits = serves.prefill_first, serves.chunked, serves.chunks_follow, serves.kv_reserved, serves.ahead
        limits = serves.prompts_per_step, serves.steps_per_decision, serves.rank_patience, serves.rank_gathering
        return cls(tokens, seqs, blocks, block, 0, *habits, *limits)


@dataclass(slots=True)
class Book:
    """Columns over all requests. Lists, because they are read and written one by one."""

    arrival_s: list[float]
    input_len: list[int]
    output_len: list[int]
    prefixes: tuple[Ids, ...] | None = None  # runs of pieces of text that are never apart, each by the id of its first …
    pieces: dict[int, int] = field(default_factory=dict)  # … and how many each has
    shared: list[int] = field(default_factory=list)  # pieces of each request
    prefix_block: int = 16
    hit_rate: float = 0.0  # share of a prompt that is cached, where no prefixes say which
    sent_s: list[float] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)  # its first step begins
    first_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    prefilled_elsewhere: list[bool] = field(default_factory=list)  # its prompt was computed by another worker than decodes it …
    transfer_s: list[float] = field(default_factory=list)  # … and its cache moved this long, waiting for the link included
    cached: list[int] = field(default_factory=list)  # prompt tokens that were in the cache when it started
    preemptions: list[int] = field(default_factory=list)  # times that it was preempted
    preempted_s: list[float] = field(default_factory=list)  # between a preemption and the next token
    last_token_s: dict[int, float] = field(default_factory=dict)  # of preempted requests: when their last token came
    served_by: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)  # tokens to compute before its next token
    left: list[int] = field(default_factory=list)  # tokens that it still makes, that one included

    def __post_init__(self) -> None:
        size = len(self.arrival_s)
        self.sent_s, self.started_s, self.first_s, self.done_s = ([nan] * size for _ in range(4))
        self.prefilled_elsewhere, self.transfer_s, self.preempted_s = [False] * size, [0.0] * size, [0.0] * size
        self.cached, self.preemptions, self.served_by = [0] * size, [0] * size, [0] * size
        self.target, self.left = list(self.input_len), list(self.output_len)

    def only(self, rows: Sequence[int]) -> "Book":
        """Return the book of some of its requests."""
        book = Book([], [], [], None, self.pieces, [], self.prefix_block, self.hit_rate)
        for f in fields(self):
            if (column := getattr(self, f.name)) and isinstance(column, (list, tuple)):
                setattr(book, f.name, [column[i] for i in rows])
        return book


def book_of(stream: RequestStream, hit_rate: float = 0.0, block: int = 1) -> Book:
    """Return an empty book for a cache with blocks of so many tokens: an id stands for at least one block, of whole text."""
    columns = stream.arrival_s.tolist(), stream.input_len.tolist(), stream.output_len.tolist()
    joined = -(-block // stream.block)
    if stream.prefixes is None:
        return Book(*columns, prefix_block=stream.block, hit_rate=hit_rate)
    whole = _whole_pieces(stream.prefixes, columns[1], stream.block, joined)
    return Book(*columns, *_runs_of_pieces(whole), [len(ids) for ids in whole], stream.block * joined, hit_rate)


def _whole_pieces(prefixes: tuple[Ids, ...], lengths: list[int], block: int, joined: int) -> tuple[Ids, ...]:
    if joined == 1 and all(len(ids) * block <= tokens for ids, tokens in zip(prefixes, lengths, strict=True)):
        return prefixes
    names, renumbered, whole = dict[Ids, int](), dict[Ids, Ids](), []
    for ids, tokens in zip(prefixes, lengths, strict=True):
        kept = ids[: min(len(ids), tokens // block) // joined * joined]
        if kept not in renumbered:
            pieces = (kept[at : at + joined] for at in range(0, len(kept), joined))
            renumbered[kept] = kept if joined == 1 else tuple(names.setdefault(piece, len(names)) for piece in pieces)
        whole.append(renumbered[kept])
    return tuple(whole)


@cache_few_answers
def _runs_of_pieces(prefixes: tuple[Ids, ...]) -> tuple[tuple[Ids, ...], dict[int, int]]:
    """Join pieces that always follow each other into runs named by their first piece, and count the pieces of each run.

    >>> _runs_of_pieces(((0, 1, 2, 3), (0, 1, 7), (0, 1, 2, 3)))
    (((0, 2), (0, 7), (0, 2)), {0: 2, 2: 2, 7: 1})
    """
    distinct = dict.fromkeys(prefixes)
    if len(set(chain.from_iterable(distinct))) == sum(map(len, distinct)):  # no two share any
        return tuple([ids[:1] for ids in prefixes]), {ids[0]: len(ids) for ids in distinct if ids}
    after, before, first = dict[int, int](), dict[int, int](), {ids[0] for ids in distinct if ids}
    for ids in distinct:
        for key, other in pairwise(ids):
            if after.setdefault(key, other) != other:
                first.update((after[key], other))
            if before.setdefault(other, key) != key:
                first.add(other)
    first.update(after[ids[-1]] for ids in distinct if ids and ids[-1] in after)
    runs, pieces = dict[Ids, Ids](), dict[int, int]()
    for ids in distinct:
        begins = [place for place, key in enumerate(ids) if key in first]
        runs[ids] = tuple([ids[place] for place in begins])
        pieces.update((ids[place], end - place) for place, end in pairwise([*begins, len(ids)]))
    return tuple([runs[ids] for ids in prefixes]), pieces
