"""One engine's queue and KV cache: who waits, who is admitted, what is taken and given back, and which blocks of prompts stay."""

from collections import OrderedDict, deque

from commtax.sim.serving.book import Book, Rules


class Prefixes:
    """Resident pieces of text, by the runs that they always come in: those that running requests hold, and idle ones in the order
    in which they were left."""

    __slots__ = ("_held", "_idle", "idle", "per_id", "pieces")

    def __init__(self, pieces: dict[int, int], per_id: int) -> None:
        self.pieces, self.per_id = pieces, per_id  # of each run, and blocks of the cache that one stands for
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()  # with the pieces that are left of each
        self.idle = 0  # pieces of all of them

    def match(self, ids: tuple[int, ...]) -> int:
        """How many pieces from the first on are resident."""
        held, idle, pieces, count = self._held, self._idle, self.pieces, 0
        for key in ids:
            whole = pieces[key]
            left = whole if key in held else idle.get(key, 0)
            count += left
            if left < whole:
                break
        return count

    def new_blocks(self, ids: tuple[int, ...]) -> int:
        """Blocks that holding these takes from the others: those that nobody holds now."""
        held, count = self._held, 0
        for key in ids:
            if key not in held:
                count += self.pieces[key]
        return count * self.per_id

    def hold(self, ids: tuple[int, ...]) -> None:
        held = self._held
        for key in ids:
            count = held.get(key, 0)
            if not count:
                self.idle -= self._idle.pop(key, 0)
            held[key] = count + 1

    def leave(self, ids: tuple[int, ...]) -> int:
        """Returns the blocks that nobody holds any more; they stay resident. The end of a prompt goes first when room is needed."""
        held, left = self._held, 0
        for key in reversed(ids):
            count = held[key] - 1
            if count:
                held[key] = count
            else:
                del held[key]
                self._idle[key] = self.pieces[key]
                left += self.pieces[key]
        self.idle += left
        return left * self.per_id

    def trim(self, free: int) -> None:
        """Idle blocks make room: no more of them than there are free ones."""
        while self.idle * self.per_id > free:
            key, left = self._idle.popitem(last=False)
            gone = min(left, self.idle - free // self.per_id)
            self.idle -= gone
            if left > gone:
                self._idle[key] = left - gone
                self._idle.move_to_end(key, last=False)


class BlockPool:
    """Blocks are counted exactly: a request holds those of the tokens it has, or of all that it will have (``reserved``).

    Its states take the room of a fixed number of blocks more.
    """

    __slots__ = ("book", "free", "plain", "prefixes", "rules", "running", "waiting")

    def __init__(self, rules: Rules, book: Book) -> None:
        self.rules, self.book = rules, book
        self.waiting: deque[int] = deque()
        self.free = rules.blocks
        self.running = 0
        self.prefixes = Prefixes(book.pieces, max(1, book.prefix_block // rules.block)) if book.prefixes else None
        self.plain = not book.prefixes and not book.hit_rate  # nothing is cached of a prompt that nobody has computed

    def cached_tokens(self, i: int) -> int:
        """Tokens of a waiting request that need not be computed: all where another worker has, else at most all but one."""
        book = self.book
        most = book.goal[i] - 1
        if self.computed_elsewhere(i):
            return most + 1
        if self.prefixes is None:
            return min(most, int(book.hit_rate * book.input_len[i]))
        return min(most // self.rules.block * self.rules.block, self.prefixes.match(self._ids(i)) * book.prefix_block)

    def needed(self, i: int, ahead: int = 0) -> int:
        """Blocks that a request takes when it is admitted; one that decodes at once may have a token more by the step's end."""
        more = ahead if ahead and self.computed_elsewhere(i) and not self.rules.reserved else 0
        if self.prefixes is None:
            return -(-(self._kept(i) + more) // self.rules.block) + self.rules.states
        return self._own_blocks(i, self._kept(i) + more) + self.prefixes.new_blocks(self._ids(i))

    def wanted(self, i: int, ahead: int = 0) -> tuple[int, int]:
        """Of a waiting request: tokens that need not be computed, and blocks that it takes."""
        book, rules, prefixes = self.book, self.rules, self.prefixes
        if rules.reserved or not (self.plain or prefixes):
            return self.cached_tokens(i), self.needed(i, ahead)
        tokens, cached = book.goal[i], 0  # as those say, but many times as fast
        if book.elsewhere[i] and not rules.prompts_only and not book.thrown[i]:
            needed, cached = -(-(tokens + ahead) // rules.block), tokens
        else:
            needed = -(-tokens // rules.block)
            if prefixes and book.prefixes:
                cached = min((tokens - 1) // rules.block * rules.block, prefixes.match(book.prefixes[i]) * book.prefix_block)
        if prefixes and book.prefixes:
            needed = max(0, needed - book.shared[i] * prefixes.per_id) + prefixes.new_blocks(book.prefixes[i])
        return cached, needed + rules.states

    def admit(self, i: int, needed: int) -> bool:
        """Take the blocks of a request, where they are free."""
        if needed > self.free:
            return False
        self.free -= needed
        self.running += 1
        if self.prefixes:
            self.prefixes.hold(self._ids(i))
            self.prefixes.trim(self.free)
        return True

    def release(self, i: int, tokens: int) -> None:
        """Give back the blocks of a request that has so many tokens."""
        tokens = self._kept(i) if self.rules.reserved else tokens
        self.running -= 1
        if self.prefixes is None:
            self.free += -(-tokens // self.rules.block) + self.rules.states
            return
        self.free += self._own_blocks(i, tokens) + self.prefixes.leave(self._ids(i))

    def grow(self, blocks: int) -> None:
        self.free -= blocks
        if self.prefixes:
            self.prefixes.trim(self.free)

    def _kept(self, i: int) -> int:
        """Tokens that admission asks room for."""
        book = self.book
        return book.input_len[i] + book.output_len[i] if self.rules.reserved else book.goal[i]

    def computed_elsewhere(self, i: int) -> bool:
        """Whether another worker has computed its prompt, and its cache was moved here."""
        return self.book.elsewhere[i] and not self.rules.prompts_only and not self.book.thrown[i]

    def _own_blocks(self, i: int, tokens: int) -> int:
        """Blocks that no other request can share: of tokens and of states."""
        own = -(-tokens // self.rules.block)
        if self.prefixes:
            own -= self.book.shared[i] * self.prefixes.per_id
        return (own if own > 0 else 0) + self.rules.states

    def _ids(self, i: int) -> tuple[int, ...]:
        """Ids of the runs of whole blocks that the prompt has."""
        return self.book.prefixes[i] if self.book.prefixes else ()
