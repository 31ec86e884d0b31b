"""Requests that pass the model together: those that decode, all one token a step, and those whose prompts are computed.
Where steps yield several tokens, accepted drafts among them, a step here is one of these tokens' part of it.

Decoding requests advance in step, so nothing is kept for each: a heap says at which step each ends, and the cache grows by
as many blocks as requests stand at the end of one (``phases``: requests by tokens minus steps, modulo a block).
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, sqrt

from commtax.cost.surface import Surface
from commtax.sim.serving.pool import BlockPool

Chunk = tuple[int, int, int]  # a request, tokens of its prompt that a step computes, and tokens before them
NOBODY = ()


class Lane:
    __slots__ = ("ahead", "cached", "ends", "joined", "last_s", "phases", "pool", "prompts", "seqs", "step", "surface", "taken")

    def __init__(self, pool: BlockPool, surface: Surface) -> None:
        self.pool, self.surface = pool, surface
        self.seqs = 0  # that decode
        self.cached = 0  # tokens in the cache of all of them
        self.step = 0
        self.taken = 0  # steps from this one on whose blocks are taken
        self.ahead = 0.0  # tokens that accepted drafts are ahead of whole ones
        self.ends: list[tuple[int, int]] = []
        self.phases = [0] * pool.rules.block
        self.prompts: list[tuple[int, int]] = []  # begun, and tokens that are done
        self.last_s = 0.0  # when those that decode got their last token …
        self.joined: list[tuple[float, int]] = []  # … but these, who joined at other times and have not decoded since

    @property
    def busy(self) -> bool:
        return self.seqs > 0 or bool(self.prompts)

    def form(self, begin: float) -> list[Chunk]:
        """Decide a step: first those that decode have their blocks, then prompts that were begun, then waiting ones.

        Nobody is let in by a step that had to throw others out.
        """
        pool = self.pool
        rules = pool.rules
        thrown = not rules.prefill_first and self.secure(begin)
        if not self.prompts and not pool.waiting:
            return []
        room = rules.tokens - (0 if rules.prefill_first else self.seqs)
        chosen: list[Chunk] = []
        if self.prompts:
            chosen = self._begun(room)
            room -= tokens_of(chosen)
        return chosen if thrown else self._let_in(chosen, room, begin)

    def _begun(self, room: int) -> list[Chunk]:
        """The next chunks of prompts that were begun, as far as there is room in the step."""
        pool = self.pool
        chosen: list[Chunk] = []
        for i, done in self.prompts:
            if room <= 0:
                break
            new = min(pool.book.goal[i] - done, room)
            chosen.append((i, new, done))
            room -= new
        return chosen

    def _let_in(self, chosen: list[Chunk], room: int, begin: float) -> list[Chunk]:
        """Waiting requests in turn, as long as step, cache and engine have room for the first of them."""
        pool, rules = self.pool, self.pool.rules
        waiting, goal = pool.waiting, pool.book.goal
        while waiting and room > 0 and pool.running < rules.seqs and len(chosen) < rules.prompts:
            i = waiting[0]
            done, needed = pool.wanted(i, self.taken)
            new = goal[i] - done
            if new > room and not rules.chunked and (chosen or new <= rules.tokens):
                break
            if not pool.admit(i, needed):
                break
            waiting.popleft()
            self._start(i, done, begin)
            if new:
                if new > room and rules.chunked:
                    new = room
                chosen.append((i, new, done))
                room -= new
        return chosen

    def _start(self, i: int, done: int, begin: float) -> None:
        book = self.pool.book
        if done == book.goal[i]:  # its prompt was computed elsewhere, with its first token
            book.first_s[i] = begin
            self._decode(i, begin)
            return
        if book.started_s[i] != book.started_s[i]:  # not a number yet
            book.started_s[i], book.cached[i] = begin, done
        self.prompts.append((i, done))

    def _decode(self, i: int, now: float) -> None:
        """A request whose tokens so far are in the cache, and one more is made now, begins to decode."""
        book = self.pool.book
        tokens = book.goal[i]
        book.left[i] -= 1
        if not self.seqs:
            self.last_s = now
        elif now != self.last_s:
            self.joined.append((now, i))
        self.seqs += 1
        self.cached += tokens
        self.phases[(tokens - self.step) % self.pool.rules.block] += 1
        heappush(self.ends, (self.step + book.left[i], i))

    def secure(self, begin: float) -> bool:
        """Take blocks for the next token of all that decode; where there are none, the youngest are thrown out. Whether any was."""
        thrown = False
        while self.pool.free < 2 * self.seqs and not self.fits(1):
            self._throw_out(begin)
            thrown = True
        if self.taken != 1:
            self._take(1)
        return thrown

    def _take(self, steps: int) -> None:
        """Blocks that so many steps need, less those that were taken ahead."""
        ahead, self.taken = self.taken, steps
        if steps == ahead or self.pool.rules.reserved or not self.seqs:
            return
        phases, block, step = self.phases, self.pool.rules.block, self.step + ahead
        if steps - ahead == 1:
            if grown := phases[-step % block]:
                self.pool.grow(grown)
            return
        whole, rest = divmod(steps - ahead, block)
        grown = whole * self.seqs
        for k in range(step, step + rest):
            grown += phases[-k % block]
        if grown:
            self.pool.grow(grown)

    def fits(self, steps: int) -> int:
        """For how many of so many steps the cache has blocks, those included that were taken ahead."""
        pool, seqs = self.pool, self.seqs
        block, free = pool.rules.block, pool.free
        if pool.rules.reserved or free >= seqs * (steps // block + 1):
            return steps
        for k in range(self.taken, steps):
            free -= self.phases[-(self.step + k) % block]
            if free < 0:
                return k
        return steps

    def _throw_out(self, begin: float) -> None:
        """The request that was sent last computes all its tokens again, before others that wait."""
        pool, book = self.pool, self.pool.book
        sent = [book.sent_s[i] for _, i in self.ends]
        end, i = self.ends.pop(sent.index(max(sent)))
        heapify(self.ends)
        tokens = self._leave(i, end - self.step)
        pool.release(i, tokens)
        book.goal[i], book.left[i] = tokens + 1, end - self.step
        book.thrown[i] += 1
        book.lost_s[i] -= begin
        book.token_s[i] = next((at for at, who in self.joined if who == i), self.last_s)
        self.joined = [(at, who) for at, who in self.joined if who != i]
        pool.waiting.appendleft(i)

    def _leave(self, i: int, left: int) -> int:
        """A request decodes no more; returns the tokens that it has in the cache."""
        book = self.pool.book
        tokens = book.input_len[i] + book.output_len[i] - 1 - left
        self.seqs -= 1
        self.cached -= tokens
        self.phases[(tokens - self.step) % self.pool.rules.block] -= 1
        return tokens

    def seconds(self, chunks: list[Chunk]) -> float:
        """Of a step with these chunks of prompts; decoding requests share it unless prompts run before them."""
        surface = self.surface
        beside = 0 if self.pool.rules.prefill_first else self.seqs
        return surface.mixing(beside, self.cached, tokens_of(chunks), len(chunks), surface.prompts_s(chunks))

    def prompt_pace(self, chunks: list[Chunk]) -> tuple[float, float, int]:
        """What ``pace`` tells, of steps with these chunks: several only where one prompt fills each and has more to come."""
        rules, (i, new, past) = self.pool.rules, chunks[0]
        left = self.pool.book.goal[i] - past
        if len(chunks) > 1 or left <= 2 * new or rules.stint > 1 or self.surface.per_step > 1:
            return self.seconds(chunks), 0.0, 1
        beside = 0 if rules.prefill_first else self.seqs
        first, more, holds = self.surface.prompting(beside, self.cached, new, past)
        steps = min((left - 1) // new, self.ends[0][0] - self.step) if beside else (left - 1) // new
        return first, more, steps if holds >= steps else max(1, ceil(holds))

    def pace(self) -> tuple[float, float, int]:
        """Of steps of decodes alone: seconds of the first, by how much each is longer than the one before, and for how many
        steps that and the batch stay as they are."""
        first, more, holds = self.surface.decoding(self.seqs, self.cached)
        steps = self.ends[0][0] - self.step
        return first, more, steps if holds >= steps else max(1, ceil(holds))

    def whole_tokens(self, steps: int) -> int:
        """Tokens that so many steps yield of each that decodes; what makes no whole one is kept for later."""
        wanted = steps * self.surface.per_step + self.ahead
        self.ahead = wanted % 1
        return int(wanted)

    def undisturbed(self, tokens: int) -> int:
        """… of which so many come before somebody has all, or before the cache is full."""
        return self.fits(min(tokens, self.ends[0][0] - self.step)) if self.seqs else 0

    def decoded(self, steps: int) -> Sequence[int]:
        """All that decode have made so many tokens; returns who is done."""
        if steps != self.taken:
            self._take(steps)
        self.taken = 0
        self.step = step = self.step + steps
        self.cached += steps * self.seqs
        ends = self.ends
        if not ends or ends[0][0] != step:
            return NOBODY
        done: list[int] = []
        while ends and ends[0][0] == step:
            _, i = heappop(ends)
            self.pool.release(i, self._leave(i, 0))
            done.append(i)
        return done

    def prompted(self, chunks: list[Chunk]) -> list[int]:
        """The chunks are computed; returns the requests whose prompts are done, each with one token more."""
        book, self.taken = self.pool.book, 0
        if not chunks:
            return []
        last, new, past = chunks[-1]  # the only one that a step's tokens may cut
        if len(chunks) == len(self.prompts) and past + new >= book.goal[last]:  # as most often
            self.prompts = []
            return [last] if len(chunks) == 1 else [i for i, _, _ in chunks]
        progress = {i: past + new for i, new, past in chunks}
        ready = [i for i, done in progress.items() if done >= book.goal[i]]
        if ready or len(chunks) > 1 or self.prompts:
            kept = ((i, progress.get(i, done)) for i, done in self.prompts)
            self.prompts = [(i, done) for i, done in kept if done < book.goal[i]]
        return ready

    def hand_on(self, chunks: list[Chunk]) -> list[tuple[int, int]]:
        """Keep the prompts that these chunks end; returns the others, whose next chunks need not wait for these to be computed."""
        reached, goal = {i: past + new for i, new, past in chunks}, self.pool.book.goal
        begun = [(i, reached.get(i, done)) for i, done in self.prompts]
        self.prompts = [(i, done) for i, done in begun if done >= goal[i]]
        return [(i, done) for i, done in begun if done < goal[i]]

    def join(self, i: int, now: float) -> bool:
        """A request with its prompt done, and a token now, decodes on; False where that was its last."""
        book = self.pool.book
        if book.left[i] > 1 and not self.pool.rules.prompts_only:
            self._decode(i, now)
            return True
        self.pool.release(i, book.goal[i])
        return False


def tokens_of(chunks: Sequence[Chunk]) -> int:
    """Tokens of prompts that a step computes."""
    return chunks[0][1] if len(chunks) == 1 else sum([new for _, new, _ in chunks])


def steps_in(seconds: float, first: float, more: float) -> int:
    """The least number of steps that take so long, when each is ``more`` longer than the one before: m first + more m (m - 1) / 2.

    >>> steps_in(1.0, 0.3, 0.0), steps_in(0.9, 0.3, 0.0), steps_in(1.0, 0.3, 0.1)
    (4, 3, 3)
    """
    if more <= 0:
        return ceil(seconds / first - 1e-9)
    half = first - more / 2
    return ceil((-half + sqrt(half * half + 2 * more * seconds)) / more - 1e-9)
