"""One engine's queue and KV cache: waiting and admitted requests, free blocks, and blocks of prompts that stay cached."""

from collections import OrderedDict, deque

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
        active, count = self._active, 0
        for key in ids:
            if key not in active:
                count += self.pieces[key]
        return count * self.per_id

    def acquire(self, ids: tuple[int, ...]) -> None:
        active = self._active
        for key in ids:
            count = active.get(key, 0)
            if not count:
                self.idle -= self._idle.pop(key, 0)
            active[key] = count + 1

    def release(self, ids: tuple[int, ...]) -> int:
        """Return how many blocks no request uses any more; they stay cached. The end of a prompt is evicted first."""
        active, left = self._active, 0
        for key in reversed(ids):
            count = active[key] - 1
            if count:
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
    """The blocks of a cache, counted exactly: a request has those of its tokens so far, or of all that it will have (``reserved``).

    Its states take a fixed number of blocks more.
    """

    __slots__ = ("book", "free_blocks", "plain", "prefixes", "rules", "running", "waiting")

    def __init__(self, rules: Rules, book: Book) -> None:
        self.rules, self.book = rules, book
        self.waiting: deque[int] = deque()
        self.free_blocks = rules.blocks
        self.running = 0
        self.prefixes = Prefixes(book.pieces, max(1, book.prefix_block // rules.block)) if book.prefixes else None
        self.plain = not book.prefixes and not book.hit_rate  # nothing is cached of a prompt that nobody has computed

    def cached_tokens(self, i: int) -> int:
        """Return the tokens of a waiting request that are not computed: all where another worker has, else at most all but one."""
        book = self.book
        most = book.target[i] - 1
        if self.computed_elsewhere(i):
            return most + 1
        if self.prefixes is None:
            return min(most, int(book.hit_rate * book.input_len[i]))
        return min(most // self.rules.block * self.rules.block, self.prefixes.match(self._ids(i)) * book.prefix_block)

    def needed(self, i: int, ahead: int = 0) -> int:
        """Count the blocks that a request takes when admitted; one that decodes at once may have a token more by the step's end."""
        more = ahead if ahead and self.computed_elsewhere(i) and not self.rules.reserved else 0
        if self.prefixes is None:
            return -(-(self._tokens_with_blocks(i) + more) // self.rules.block) + self.rules.states
        return self._own_blocks(i, self._tokens_with_blocks(i) + more) + self.prefixes.new_blocks(self._ids(i))

    def cached_and_needed(self, i: int, ahead: int = 0) -> tuple[int, int]:
        """Return the tokens of a waiting request that need not be computed, and the blocks that it takes."""
        book, rules, prefixes = self.book, self.rules, self.prefixes
        if rules.reserved or not (self.plain or prefixes):
            return self.cached_tokens(i), self.needed(i, ahead)
        tokens, cached = book.target[i], 0  # as the two functions above, but many times as fast
        if book.prefilled_elsewhere[i] and not rules.prompts_only and not book.preemptions[i]:
            needed, cached = -(-(tokens + ahead) // rules.block), tokens
        else:
            needed = -(-tokens // rules.block)
            if prefixes and book.prefixes:
                cached = min((tokens - 1) // rules.block * rules.block, prefixes.match(book.prefixes[i]) * book.prefix_block)
        if prefixes and book.prefixes:
            needed = max(0, needed - book.shared[i] * prefixes.per_id) + prefixes.new_blocks(book.prefixes[i])
        return cached, needed + rules.states

    def admit(self, i: int, needed: int) -> bool:
        """Admit a request where its blocks are free; return whether it is."""
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        self.running += 1
        if self.prefixes:
            self.prefixes.acquire(self._ids(i))
            self.prefixes.evict(self.free_blocks)
        return True

    def release(self, i: int, tokens: int) -> None:
        """Release the blocks of a request that has so many tokens."""
        tokens = self._tokens_with_blocks(i) if self.rules.reserved else tokens
        self.running -= 1
        if self.prefixes is None:
            self.free_blocks += -(-tokens // self.rules.block) + self.rules.states
            return
        self.free_blocks += self._own_blocks(i, tokens) + self.prefixes.release(self._ids(i))

    def allocate(self, blocks: int) -> None:
        self.free_blocks -= blocks
        if self.prefixes:
            self.prefixes.evict(self.free_blocks)

    def _tokens_with_blocks(self, i: int) -> int:
        """Return the tokens that admission allocates blocks for."""
        book = self.book
        return book.input_len[i] + book.output_len[i] if self.rules.reserved else book.target[i]

    def computed_elsewhere(self, i: int) -> bool:
        """Return whether another worker computed the prompt of a request, and its cache was moved here."""
        return self.book.prefilled_elsewhere[i] and not self.rules.prompts_only and not self.book.preemptions[i]

    def _own_blocks(self, i: int, tokens: int) -> int:
        """Count the blocks that no other request can share: of tokens and of states."""
        blocks = -(-tokens // self.rules.block)
        if self.prefixes:
            blocks -= self.book.shared[i] * self.prefixes.per_id
        return (blocks if blocks > 0 else 0) + self.rules.states

    def _ids(self, i: int) -> tuple[int, ...]:
        """Return the ids of the runs of whole blocks that a prompt has."""
        return self.book.prefixes[i] if self.book.prefixes else ()
