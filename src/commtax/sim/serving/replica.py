"""One engine in time: steps one after the other, each as long as its lanes' batches are priced.

A plain engine has one lane, attention data parallelism one a rank with queues and caches of their own, a pipeline one a stage.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import ceil, inf
from typing import NamedTuple

from commtax.cost.surface import Surface
from commtax.sim.serving.book import Book, Rules
from commtax.sim.serving.lane import BlockPool, Chunk, Lane, steps_in, tokens_of

Span = tuple[float, float]
"""Begin and end. An end is computed once: one that differs by a rounding would come too late for the next step."""


class StepSegment(NamedTuple):
    """Steps of one lane that follow each other alike."""

    begin_s: float
    steps: int
    decodes: int  # requests that get a token in each
    first_s: float  # seconds of the first …
    more_s: float  # … and by how much each is longer than the one before
    late: int  # of the decodes: those that had to wait before the first
    stretch: float  # gaps between tokens at the clients over steps: the front end falls behind, or catches up
    tokens: int  # of prompts in each
    waiting: int
    free: int  # blocks
    lane: int


class LateTokens(NamedTuple):
    """Tokens that came more than a step after those before them: prompts went first, stages were busy, or the cache was full."""

    begin_s: float  # of the step that made them …
    step_s: float  # … and its length
    gap_s: float
    requests: int
    tokens: int  # of prompts in that step
    preempted: bool  # their requests had been preempted, and were computed again


class Replica:
    """An engine with its front end. ``clock`` is when its next step begins: infinite while it has nothing to do."""

    def __init__(self, rules: Rules, book: Book, surface: Surface, ranks: int = 1, number: int = 0) -> None:
        self.rules, self.book, self.number = rules, book, number
        self.streams = rules.token_s > 0
        self.lanes = [Lane(BlockPool(rules, book), surface) for _ in range(ranks)]
        self.pools = [lane.pool for lane in self.lanes]
        self.clock = inf
        self.seen = -inf  # who has come by then may be in the next step
        self.door = 0.0  # when the front end has taken the last request in …
        self.streamed = 0.0  # … and when it has sent all tokens so far to the clients
        self.times: list[float] = []  # when requests reach the scheduler …
        self.coming: list[int] = []  # … and which
        self.next = 0
        self.undecided = 0  # steps of decodes that pass before who waits is looked at again
        self.ready = False  # whether each rank has a prompt to compute …
        self.passed = 0  # … and steps of decodes since that changed, or since prompts were computed
        self.log: list[tuple[float, ...]] = []  # what a ``StepSegment`` has
        self.late: list[tuple[float, ...]] = []  # what a ``LateTokens`` has
        self.ended: list[float] = []  # when requests left
        self.on_done: Callable[[int, float], None] | None = None

    def submit(self, i: int, now: float) -> None:
        """Send a request to this engine, or its cache from where its prompt was computed."""
        book = self.book
        book.served_by[i] = self.number
        if book.sent_s[i] != book.sent_s[i]:  # not a number yet
            book.sent_s[i] = now
        self.door = max(self.door, now) + self.rules.frontend_s
        self.times.append(self.door + self.rules.delivery_s)
        self.coming.append(i)
        if self.clock == inf:
            self._idle()

    def submit_all(self, requests: Iterable[tuple[float, int]]) -> None:
        """Send many requests, each at its time, before the engine has run a step."""
        book, number, door, frontend_s, delivery_s = self.book, self.number, self.door, self.rules.frontend_s, self.rules.delivery_s
        for now, i in requests:
            book.served_by[i], book.sent_s[i] = number, now
            door = (door if door > now else now) + frontend_s
            self.times.append(door + delivery_s)
            self.coming.append(i)
        self.door = door
        if self.times:
            self._idle()

    def load(self, now: float) -> int:
        """Count the requests that were sent here and are not answered."""
        return len(self.coming) - bisect_right(self.ended, now)

    def cached_blocks(self, i: int) -> int:
        """Count the blocks of a prompt that are in this engine's cache."""
        ids = self.book.prefixes[i] if self.book.prefixes else ()
        if len(self.pools) == 1 and self.pools[0].prefixes:
            return self.pools[0].prefixes.match(ids)
        return max([pool.prefixes.match(ids) for pool in self.pools if pool.prefixes]) if ids else 0

    def run(self, until: float = inf, enough: float = inf) -> None:
        """Run all steps that begin before ``until``, or until ``enough`` requests are answered."""
        step, ended = self._step, self.ended
        while (now := self.clock) < until and (enough == inf or len(ended) < enough):
            step(now, until)

    def run_to_answer(self, until: float) -> None:
        """Run steps up to the next answer, which may bring a request to another engine, or that begin before ``until``."""
        answers = len(self.ended)
        while self.clock < until and len(self.ended) == answers:
            self._step(self.clock, until)

    def _idle(self) -> None:
        now = -inf if self.clock == inf else self.clock
        self.clock = self.seen = max(now, self.times[self.next]) if self.next < len(self.times) else inf

    def _step(self, begin: float, until: float) -> None:
        rules = self.rules
        if self.undecided and self._decodes(begin, secured=False):
            self._decode(begin, until)
            return
        if self.next < len(self.times) and self.times[self.next] <= self.seen:
            self._arrive()
        if len(self.lanes) > 1:
            self._step_ranks(begin, until)
            return
        lane = self.lanes[0]
        chunks = lane.schedule(begin)
        if rules.stint > 1:
            self.undecided = rules.stint
        if chunks:
            self._prompt_alone(begin, until, lane, chunks)
            return
        if rules.prefill_first:
            lane.allocate_next(begin)
        if lane.seqs:
            self._decode_alone(begin, until, lane)
        else:
            self._idle()

    def _step_ranks(self, begin: float, until: float) -> None:
        if self._patience() and self._decodes(begin, secured=False):
            self._decode(begin, until)
            return
        chunks = [lane.schedule(begin) for lane in self.lanes]
        self.undecided = self.rules.stint if self.rules.stint > 1 else 0
        if any(chunks):
            self._mixed(begin, chunks)
        elif self._decodes(begin, secured=not self.rules.prefill_first):
            self._decode(begin, until)
        else:
            self._idle()

    def _arrive(self) -> None:
        pools, first = self.pools, self.next
        self.next = bisect_right(self.times, self.seen, first)
        if len(pools) == 1:
            pools[0].waiting.extend(self.coming[first : self.next])
        for i in self.coming[first : self.next] if len(pools) > 1 else ():
            min(pools, key=lambda p: p.running + len(p.waiting)).waiting.append(i)

    def _patience(self) -> int:
        """Return the steps of decodes for which prompts wait: one rank's prompt delays all, so ranks compute theirs together."""
        if not self.rules.patience or len(self.pools) == 1 or not all(lane.seqs for lane in self.lanes):
            return 0
        wanted = [bool(lane.pool.waiting or lane.prompts) for lane in self.lanes]
        if all(wanted) != self.ready:
            self.ready, self.passed = all(wanted), 0
        most = self.rules.gathering if self.ready else self.rules.patience - 1
        self.passed %= most + 1  # a wait that was in vain, or for no prompt, begins again
        return most - self.passed if any(wanted) else 0

    def _decodes(self, begin: float, secured: bool) -> bool:
        """Return whether a lane has requests that decode, with their blocks allocated unless prompts go first."""
        if not secured:
            for lane in self.lanes:
                lane.allocate_next(begin)
        return any(lane.seqs for lane in self.lanes)

    def _mixed(self, begin: float, chunks: list[list[Chunk]]) -> None:
        self.passed, beside = 0, not self.rules.prefill_first
        each = [lane.seconds(chunk) for lane, chunk in zip(self.lanes, chunks, strict=True) if chunk or (beside and lane.seqs)]
        seconds = max(each)
        seconds -= self.rules.spread * (seconds - sum(each) / len(self.lanes))
        self._pass(begin, begin + seconds)
        for number, (lane, chunk) in enumerate(zip(self.lanes, chunks, strict=True)):
            self.finish(number, lane, chunk, (begin, begin + seconds), 1, seconds, 0.0)

    def _prompt_alone(self, begin: float, until: float, lane: Lane, chunks: list[Chunk]) -> None:
        """Run steps with prompts: one, or as many as pass before something changes while one prompt fills each of them."""
        self.passed = 0
        first, more, steps = lane.prompt_pace(chunks)
        if steps > 1:
            steps = min(steps, self._undisturbed(begin, until, first, more))
            steps = steps if self.rules.prefill_first else lane.steps_with_blocks(steps)
        end = begin + (steps * first + more * steps * (steps - 1) / 2)
        self._pass(end - first - more * (steps - 1) if steps > 1 else begin, end)
        self.finish(0, lane, chunks, (begin, end), steps, first, more)

    def finish(self, number: int, lane: Lane, chunks: list[Chunk], time: Span, steps: int, first: float, more: float) -> None:
        """Record one lane's part of steps with prompts, each of which computes as many tokens."""
        tokens, (begin, end) = tokens_of(chunks), time
        if self.rules.prefill_first or not lane.seqs:
            self.log.append((begin, steps, 0, first, more, 0, 1.0, tokens, len(lane.pool.waiting), lane.pool.free_blocks, number))
            if self.streams:
                self._stream(begin, 0)
        else:
            self._beside(number, lane, time, steps, first, more, tokens)
        first_s, seen = self.book.first_s, end if end > self.streamed else self.streamed
        for i in lane.prompted(chunks if steps == 1 else [(i, steps * new, past) for i, new, past in chunks]):
            if first_s[i] != first_s[i]:  # not a number yet
                first_s[i] = seen
            elif self.book.preemptions[i]:  # a prompt that is done again has made the next token
                self.book.preempted_s[i] += end
                self.late.append((begin, end - begin, seen - self.book.last_token_s.pop(i), 1, tokens, True))
            if not lane.join(i, seen):
                self._leave(i, end)

    def _beside(self, number: int, lane: Lane, time: Span, steps: int, first: float, more: float, tokens: int) -> None:
        """Record the tokens decoded beside prompts: one per step, or with accepted drafts several in equal parts of it."""
        if lane.surface.per_step == 1:
            self._tokens(number, lane, time, steps, first, more, tokens)
            return
        (begin, end), left = time, lane.whole_tokens(steps)
        each = (end - begin) / left
        while made := lane.undisturbed(left):
            self._tokens(number, lane, (begin, begin + made * each), made, each, 0.0, tokens)
            begin, left = begin + made * each, left - made

    def _decode(self, begin: float, until: float) -> None:
        if len(self.lanes) == 1:
            self._decode_alone(begin, until, self.lanes[0])
            return
        working = [(number, lane) for number, lane in enumerate(self.lanes) if lane.seqs]
        paces = [lane.pace() for _, lane in working]
        first, more, steps = longest(paces) if len(paces) > 1 else paces[0]
        steps = min(steps, self._undisturbed(begin, until, first, more))
        steps = min(lane.steps_with_blocks(steps) for _, lane in working)
        self.undecided = max(0, self.undecided - steps)
        self.passed += steps
        end = begin + (steps * first + more * steps * (steps - 1) / 2)
        self._pass(end - first - more * (steps - 1), end)
        for number, lane in working:
            self._tokens(number, lane, (begin, end), steps, first, more, 0)

    def _decode_alone(self, begin: float, until: float, lane: Lane) -> None:
        first, more, steps = lane.pace()
        if steps > 1:
            steps = lane.steps_with_blocks(min(steps, self._undisturbed(begin, until, first, more)))
        if self.undecided:
            self.undecided = max(0, self.undecided - steps)
        self.passed += steps
        end = begin + (steps * first + more * steps * (steps - 1) / 2)
        self._pass(end - first - more * (steps - 1), end)
        self._tokens(0, lane, (begin, end), steps, first, more, 0)

    def _undisturbed(self, begin: float, until: float, first: float, more: float) -> int:
        """Return the steps before ``until``, or before a request comes that chooses a rank or stands first in the only queue."""
        steps = 2**31 if until == inf else max(1, steps_in(until - begin, first, more))
        if self.undecided:  # no request is admitted before they have passed
            return min(steps, self.undecided)
        if self.rules.patience:
            steps = min(steps, self._patience() or steps)
        if self.next < len(self.times) and (len(self.pools) > 1 or not self.pools[0].waiting):
            tokens, each = steps_in(max(0.0, self.times[self.next] - begin), first, more), self.lanes[0].surface.per_step
            # those of whole steps, and of one step more where that was decided before
            whole = tokens + self.rules.ahead if each == 1 else ceil((ceil(tokens / each) + self.rules.ahead) * each)
            steps = min(steps, max(1, whole))
        return steps

    def _pass(self, last: float, end: float) -> None:
        """Advance time to ``end``. The last step began at ``last``, when a scheduler that works ahead decided the next one."""
        self.clock, self.seen = end, last if self.rules.ahead else end

    def _tokens(self, number: int, lane: Lane, time: Span, steps: int, first: float, more: float, tokens: int) -> None:
        """Record a token in each of ``steps`` for all requests that decode in a lane, and let complete requests leave."""
        begin, end = time
        pool, due, seen, stretch = lane.pool, begin, end, 1.0
        if self.streams:
            due = max(begin, self.streamed)
            self._stream(begin, steps * lane.seqs)
            seen = max(end, self.streamed)
            stretch = (seen - due) / (end - begin)
        late = self._waited(lane, begin, due, first * stretch, tokens) if lane.joined or lane.last_s < due else 0
        self.log.append((begin, steps, lane.seqs, first, more, late, stretch, tokens, len(pool.waiting), pool.free_blocks, number))
        lane.last_s = seen
        for i in lane.decoded(steps):
            self._leave(i, max(end, self.clock))  # no request leaves in the middle of a step

    def _stream(self, begin: float, tokens: int) -> None:
        self.streamed = max(self.streamed, begin) + tokens * self.rules.token_s

    def _waited(self, lane: Lane, begin: float, due: float, step_s: float, tokens: int) -> int:
        """Record the requests of a lane whose last token came before a step could begin to make the next, and count them."""
        groups = [(lane.last_s, lane.seqs - len(lane.joined)), *((at, 1) for at, _ in lane.joined)]
        late = [(begin, step_s, due - at + step_s, count, tokens, False) for at, count in groups if count and at < due]
        self.late += late
        lane.joined = []
        return sum(count for _, _, _, count, _, _ in late)

    def _leave(self, i: int, now: float) -> None:
        self.book.done_s[i] = seen = now if now > self.streamed else self.streamed
        self.ended.append(now)
        if self.on_done:
            self.on_done(i, seen)


def longest(paces: list[tuple[float, float, int]]) -> tuple[float, float, int]:
    """Return the pace of lanes that wait for each other: the longest step's, as long as it stays the longest and no lane changes.

    >>> longest([(3.0, 0.0, 50), (1.0, 0.5, 40)])
    (3.0, 0.0, 4)
    """
    first, more, _ = max(paces)
    overtaken = (ceil((first - start) / (faster - more)) for start, faster, _ in paces if faster > more)
    return first, more, max(1, min(*overtaken, *(most for _, _, most in paces)))


Batch = tuple[list[Chunk], float, float]
"""Chunks of prompts in a batch, when it entered the first stage, and seconds until it left the last."""


class Pipeline(Replica):
    """An engine with a lane for each of its ``stages``. A step takes as long as all of them, and each stage a part of it."""

    def __init__(self, rules: Rules, book: Book, surface: Surface, stages: int, number: int = 0) -> None:
        super().__init__(rules, book, surface, 1, number)
        self.lanes += [Lane(self.pools[0], surface) for _ in range(stages - 1)]
        self.out = [inf] * stages  # when the batch of a lane leaves the last stage; infinite: it has none
        self.batches: list[Batch | None] = [None] * stages
        self.busy = [0.0] * stages  # until when a stage works on batches that entered before
        self.following: list[tuple[int, int]] = []  # prompts begun whose next chunk any lane may take, and tokens that were

    def _step(self, begin: float, until: float) -> None:  # noqa: ARG002
        turn = self.out.index(begin)
        lane, batch = self.lanes[turn], self.batches[turn]
        if batch:
            due, entered, seconds = batch  # what it has computed becomes true when it leaves the last stage
            if due:
                self.finish(turn, lane, due, (entered, entered + seconds), 1, seconds, 0.0)
            else:
                self._tokens(turn, lane, (entered, entered + seconds), 1, seconds, 0.0, 0)
        self.seen = begin
        if self.next < len(self.times) and self.times[self.next] <= begin:
            self._arrive()
        lane.prompts, self.following = [*self.following, *lane.prompts], []
        chunks = lane.schedule(begin)
        if self.rules.follows:
            self.following = lane.hand_on(chunks)
        if not chunks and self.rules.prefill_first:
            lane.allocate_next(begin)
        if chunks or lane.seqs:
            self._enter(turn, lane, chunks, begin)
        else:
            self.out[turn], self.batches[turn] = inf, None
        self._idle()

    def _enter(self, turn: int, lane: Lane, chunks: list[Chunk], begin: float) -> None:
        each = (lane.seconds(chunks) if chunks else lane.surface.decoding(lane.seqs, lane.cached)[0]) / len(self.lanes)
        now, busy = begin, self.busy
        for stage, until in enumerate(busy):
            now = (now if now > until else until) + each
            busy[stage] = now
        self.batches[turn], self.out[turn] = (chunks, begin, now - begin), begin + (now - begin)  # to the last bit when it ends

    def _idle(self) -> None:
        pool = self.pools[0]
        if inf in self.out:
            empty = self.out.index(inf)
            admits = pool.waiting and pool.running < self.rules.seqs and pool.needed(pool.waiting[0], 1) <= pool.free_blocks
            if self.following or admits:
                self.out[empty] = self.clock
            elif self.next < len(self.times):
                coming = max(self.times[self.next], self.clock if self.clock < inf else 0.0)
                self.out[empty] = coming if coming < min(self.out) else inf
        self.clock = min(self.out)
