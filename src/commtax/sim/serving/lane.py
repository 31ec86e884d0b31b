"""The scheduler of one lane, its queue and the blocks of its cache, those of prompts that stay cached among them.

Where steps yield several tokens, accepted drafts among them, a step here is one token's part of it. Decoding requests advance in
step, so nothing is kept for each: a heap says at which step each ends, and the cache grows by as many blocks as requests stand at
the end of one (``phases``: requests by tokens minus steps, modulo a block).
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, sqrt

from commtax.cost.surface import Surface
from commtax.sim.serving.book import Book, Rules


class Prefixes:
    """Cached pieces of text by the runs that they always come in: those in use, and idle ones in the order of their release."""

    __slots__ = ("_active", "_idle", "idle", "per_id", "pieces")

    def __init__(self, pieces: dict[int, int], per_id: int) -> None:
        self.pieces, self.per_id = pieces, per_id  # of each run, and blocks of the cache that one stands for
        self._active: dict[int, int] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()  # with the pieces that are left of each
        self.idle = 0  # pieces of all of them

    def match(self, ids: tuple[int, ...]) -> int:
        """Count the pieces from the first on that are cached."""
        active, idle, pieces, count = self._active, self._idle, self.pieces, 0
        for key in ids:
            whole = pieces[key]
            left = whole if key in active else idle.get(key, 0)
            count += left
            if left < whole:
                break
        return count

    def new_blocks(self, ids: tuple[int, ...]) -> int:
        """Count the blocks that using these takes from others: those that no running request uses now."""
        active, pieces = self._active, self.pieces
        return sum([pieces[key] for key in ids if key not in active]) * self.per_id

    def acquire(self, ids: tuple[int, ...]) -> None:
        for key in ids:
            if not (count := self._active.get(key, 0)):
                self.idle -= self._idle.pop(key, 0)
            self._active[key] = count + 1

    def release(self, ids: tuple[int, ...]) -> int:
        """Release pieces and return how many blocks become idle. They stay cached, and the end of a prompt is evicted first."""
        active, left = self._active, 0
        for key in reversed(ids):
            if count := active[key] - 1:
                active[key] = count
            else:
                del active[key]
                self._idle[key] = self.pieces[key]
                left += self.pieces[key]
        self.idle += left
        return left * self.per_id

    def evict(self, free: int) -> None:
        """Evict idle blocks until there are no more of them than free ones."""
        while self.idle * self.per_id > free:
            key, left = self._idle.popitem(last=False)
            gone = min(left, self.idle - free // self.per_id)
            self.idle -= gone
            if left > gone:
                self._idle[key] = left - gone
                self._idle.move_to_end(key, last=False)


class BlockPool:
    """The blocks of a cache, counted exactly: of each request's tokens, so far or to its end (``reserved``), and of its states."""

    __slots__ = ("book", "free_blocks", "prefixes", "rules", "running", "waiting")

    def __init__(self, rules: Rules, book: Book) -> None:
        self.rules, self.book = rules, book
        self.waiting: deque[int] = deque()
        self.free_blocks = rules.blocks
        self.running = 0
        self.prefixes = Prefixes(book.pieces, max(1, book.prefix_block // rules.block)) if book.prefixes else None

    def needed(self, i: int, ahead: int = 0) -> int:
        """Count the blocks to admit a request."""
        return self.cached_and_needed(i, ahead)[1]

    def cached_and_needed(self, i: int, ahead: int = 0) -> tuple[int, int]:
        """Return the tokens of a waiting request that are cached already, and the blocks to admit it.

        All are cached where another worker computed them: then it decodes at once, and may have ``ahead`` tokens more.
        """
        book, rules, prefixes = self.book, self.rules, self.prefixes
        kept = tokens = book.target[i]
        if book.prefilled_elsewhere[i] and not rules.prompts_only and not book.preemptions[i]:
            kept, cached = tokens + ahead, tokens
        elif prefixes:
            cached = min((tokens - 1) // rules.block * rules.block, prefixes.match(self._ids(i)) * book.prefix_block)
        else:
            cached = min(tokens - 1, int(book.hit_rate * book.input_len[i]))
        if rules.reserved:
            kept = book.input_len[i] + book.output_len[i]
        return cached, self._private_blocks(i, kept) + (prefixes.new_blocks(self._ids(i)) if prefixes else 0)

    def admit(self, i: int, needed: int) -> bool:
        """Admit a request where its blocks are free, and return whether it was admitted."""
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        self.running += 1
        if self.prefixes:
            self.prefixes.acquire(self._ids(i))
            self.prefixes.evict(self.free_blocks)
        return True

    def release(self, i: int, tokens: int) -> None:
        """Release the blocks of a request, which has ``tokens``."""
        tokens = self.book.input_len[i] + self.book.output_len[i] if self.rules.reserved else tokens
        self.running -= 1
        self.free_blocks += self._private_blocks(i, tokens) + (self.prefixes.release(self._ids(i)) if self.prefixes else 0)

    def allocate(self, blocks: int) -> None:
        self.free_blocks -= blocks
        if self.prefixes:
            self.prefixes.evict(self.free_blocks)

    def _private_blocks(self, i: int, tokens: int) -> int:
        """Count the blocks that no other request can share: of tokens and of states."""
        blocks = -(-tokens // self.rules.block)
        if self.prefixes:
            blocks -= self.book.shared[i] * self.prefixes.per_id
        return (blocks if blocks > 0 else 0) + self.rules.states

    def _ids(self, i: int) -> tuple[int, ...]:
        return self.book.prefixes[i] if self.book.prefixes else ()


Chunk = tuple[int, int, int]  # a request, tokens of its prompt that a step computes, and tokens before them


class Lane:
    """Requests that share their steps, and the blocks of the cache that they take."""

    __slots__ = ("ahead", "cached", "ends", "joined", "last_s", "phases", "pool", "prompts", "seqs", "step", "surface", "taken")

    def __init__(self, pool: BlockPool, surface: Surface) -> None:
        self.pool, self.surface = pool, surface
        self.seqs = 0  # requests that decode
        self.cached = 0  # tokens in the cache of all of them
        self.step = 0
        self.taken = 0  # steps from this one on whose blocks are allocated
        self.ahead = 0.0  # tokens that accepted drafts are ahead of whole ones
        self.ends: list[tuple[int, int]] = []
        self.phases = [0] * pool.rules.block
        self.prompts: list[tuple[int, int]] = []  # begun, and tokens that are done
        self.last_s = 0.0  # when those that decode got their last token …
        self.joined: list[tuple[float, int]] = []  # … but these, who joined at other times and have not decoded since

    def schedule(self, begin: float) -> list[Chunk]:
        """Schedule a step: allocate blocks for who decodes, continue prompts that were begun, then, if none is preempted, admit."""
        pool, rules = self.pool, self.pool.rules
        preempted = not rules.prefill_first and self.allocate_next(begin)
        if not self.prompts and not pool.waiting:
            return []
        budget = rules.tokens - (0 if rules.prefill_first else self.seqs)
        chosen: list[Chunk] = []
        for i, done in self.prompts:  # that were begun go on, up to the step's token budget
            if budget <= 0:
                break
            new = min(pool.book.target[i] - done, budget)
            chosen.append((i, new, done))
            budget -= new
        return chosen if preempted else self._admit_waiting(chosen, budget, begin)

    def _admit_waiting(self, chosen: list[Chunk], budget: int, begin: float) -> list[Chunk]:
        """Admit waiting requests in turn, as long as token budget, free blocks and sequence limit allow the first of them."""
        pool, rules, book = self.pool, self.pool.rules, self.pool.book
        waiting, target = pool.waiting, book.target
        while waiting and budget > 0 and pool.running < rules.seqs and len(chosen) < rules.prompts:
            i = waiting[0]
            done, needed = pool.cached_and_needed(i, self.taken)
            new = target[i] - done
            waits = new > budget and not rules.chunked and (chosen or new <= rules.tokens)
            if waits or not pool.admit(i, needed):
                break
            waiting.popleft()
            if not new:  # its prompt was computed elsewhere, with its first token
                book.first_s[i] = begin
                self._decode(i, begin)
                continue
            if book.started_s[i] != book.started_s[i]:  # not a number yet
                book.started_s[i], book.cached[i] = begin, done
            self.prompts.append((i, done))
            chosen.append((i, min(new, budget) if rules.chunked else new, done))
            budget -= chosen[-1][1]
        return chosen

    def _decode(self, i: int, now: float) -> None:
        book = self.pool.book
        tokens = book.target[i]
        book.left[i] -= 1
        if not self.seqs:
            self.last_s = now
        elif now != self.last_s:
            self.joined.append((now, i))
        self.seqs += 1
        self.cached += tokens
        self.phases[(tokens - self.step) % self.pool.rules.block] += 1
        heappush(self.ends, (self.step + book.left[i], i))

    def allocate_next(self, begin: float) -> bool:
        """Allocate blocks for the next token of all that decode, and return whether the youngest were preempted for these."""
        preempted = False
        while self.pool.free_blocks < 2 * self.seqs and not self.steps_with_blocks(1):
            preempted = True
            self._preempt(begin)
        if self.taken != 1:
            self._take(1)
        return preempted

    def _take(self, steps: int) -> None:
        ahead, self.taken = self.taken, steps
        if steps == ahead or self.pool.rules.reserved or not self.seqs:
            return
        phases, block, step = self.phases, self.pool.rules.block, self.step + ahead
        if steps - ahead == 1:
            grown = phases[-step % block]
        else:
            whole, rest = divmod(steps - ahead, block)
            grown = whole * self.seqs + sum([phases[-k % block] for k in range(step, step + rest)])
        if grown:
            self.pool.allocate(grown)

    def steps_with_blocks(self, steps: int) -> int:
        """Return for how many of ``steps`` the cache has blocks, with those that were allocated ahead."""
        pool, seqs = self.pool, self.seqs
        block, free = pool.rules.block, pool.free_blocks
        if pool.rules.reserved or free >= seqs * (steps // block + 1):
            return steps
        for k in range(self.taken, steps):
            free -= self.phases[-(self.step + k) % block]
            if free < 0:
                return k
        return steps

    def _preempt(self, begin: float) -> None:
        """Preempt the request that was sent last: it computes all its tokens again, before others that wait."""
        pool, book = self.pool, self.pool.book
        sent = [book.sent_s[i] for _, i in self.ends]
        end, i = self.ends.pop(sent.index(max(sent)))
        heapify(self.ends)
        tokens = self._leave(i, end - self.step)
        pool.release(i, tokens)
        book.target[i], book.left[i] = tokens + 1, end - self.step
        book.preemptions[i] += 1
        book.preempted_s[i] -= begin
        book.last_token_s[i] = next((at for at, who in self.joined if who == i), self.last_s)
        self.joined = [(at, who) for at, who in self.joined if who != i]
        pool.waiting.appendleft(i)

    def _leave(self, i: int, left: int) -> int:
        book = self.pool.book
        tokens = book.input_len[i] + book.output_len[i] - 1 - left
        self.seqs -= 1
        self.cached -= tokens
        self.phases[(tokens - self.step) % self.pool.rules.block] -= 1
        return tokens

    def seconds(self, chunks: list[Chunk]) -> float:
        """Return the seconds of a step with these chunks of prompts, which decodes share unless prompts run before them."""
        beside = 0 if self.pool.rules.prefill_first else self.seqs
        return self.surface.mixing(beside, self.cached, tokens_of(chunks), len(chunks), self.surface.prompts_s(chunks))

    def prompt_pace(self, chunks: list[Chunk]) -> tuple[float, float, int]:
        """Return what ``pace`` does, of steps with these chunks: several only where one prompt fills each and has more to come."""
        rules, (i, new, past) = self.pool.rules, chunks[0]
        left = self.pool.book.target[i] - past
        if len(chunks) > 1 or left <= 2 * new or rules.stint > 1 or self.surface.per_step > 1:
            return self.seconds(chunks), 0.0, 1
        beside = 0 if rules.prefill_first else self.seqs
        first, more, holds = self.surface.prompting(beside, self.cached, new, past)
        steps = min((left - 1) // new, self.ends[0][0] - self.step) if beside else (left - 1) // new
        return first, more, steps if holds >= steps else max(1, ceil(holds))

    def pace(self) -> tuple[float, float, int]:
        """Return, of steps of decodes alone, seconds of the first, how much longer each next one is, and for how many steps."""
        first, more, holds = self.surface.decoding(self.seqs, self.cached)
        steps = self.ends[0][0] - self.step
        return first, more, steps if holds >= steps else max(1, ceil(holds))

    def whole_tokens(self, steps: int) -> int:
        """Return the tokens that ``steps`` yield for each request that decodes, and keep fractions for later steps."""
        wanted = steps * self.surface.per_step + self.ahead
        self.ahead = wanted % 1
        return int(wanted)

    def undisturbed(self, tokens: int) -> int:
        """Return how many of these tokens come before a request is complete, or before the cache is full."""
        return self.steps_with_blocks(min(tokens, self.ends[0][0] - self.step)) if self.seqs else 0

    def decoded(self, steps: int) -> Sequence[int]:
        """Record one token in each of ``steps`` for all requests that decode, and return those that are complete."""
        if steps != self.taken:
            self._take(steps)
        self.taken = 0
        self.step = step = self.step + steps
        self.cached += steps * self.seqs
        ends = self.ends
        if not ends or ends[0][0] != step:
            return ()
        done: list[int] = []
        while ends and ends[0][0] == step:
            done.append(heappop(ends)[1])
            self.pool.release(done[-1], self._leave(done[-1], 0))
        return done

    def prompted(self, chunks: list[Chunk]) -> list[int]:
        """Record that chunks are computed, and return the requests whose prompts are complete, each with one token more."""
        book, self.taken = self.pool.book, 0
        if not chunks:
            return []
        last, new, past = chunks[-1]  # the only one that a step's tokens may cut
        if len(chunks) == len(self.prompts) and past + new >= book.target[last]:  # as most often
            self.prompts = []
            return [i for i, _, _ in chunks]
        progress = {i: past + new for i, new, past in chunks}
        ready = [i for i, done in progress.items() if done >= book.target[i]]
        if ready or len(chunks) > 1 or self.prompts:
            kept = ((i, progress.get(i, done)) for i, done in self.prompts)
            self.prompts = [(i, done) for i, done in kept if done < book.target[i]]
        return ready

    def hand_on(self, chunks: list[Chunk]) -> list[tuple[int, int]]:
        """Keep the prompts that these chunks end, and return the others: their next chunks need not wait for these."""
        reached, target = {i: past + new for i, new, past in chunks}, self.pool.book.target
        begun = [(i, reached.get(i, done)) for i, done in self.prompts]
        self.prompts = [(i, done) for i, done in begun if done >= target[i]]
        return [(i, done) for i, done in begun if done < target[i]]

    def join(self, i: int, now: float) -> bool:
        """Let a request with its prompt and first token decode on, or return False where that token was its last."""
        book = self.pool.book
        if book.left[i] > 1 and not self.pool.rules.prompts_only:
            self._decode(i, now)
            return True
        self.pool.release(i, book.target[i])
        return False


def tokens_of(chunks: Sequence[Chunk]) -> int:
    """Return the tokens of prompts that a step computes."""
    return chunks[0][1] if len(chunks) == 1 else sum([new for _, new, _ in chunks])


def steps_in(seconds: float, first: float, more: float) -> int:
    """Return the least number of steps that take so long, each ``more`` longer than the one before: m first + more m (m - 1) / 2.

    >>> steps_in(1.0, 0.3, 0.0), steps_in(0.9, 0.3, 0.0), steps_in(1.0, 0.3, 0.1)
    (4, 3, 3)
    """
    if more <= 0:
        return ceil(seconds / first - 1e-9)
    half = first - more / 2
    return ceil((-half + sqrt(half * half + 2 * more * seconds)) / more - 1e-9)
