"""One engine's queue and KV cache: who waits, who is admitted, what is taken and given back."""

from collections import deque

from commtax.sim.serving.book import Book, Rules
from commtax.sim.serving.prefixes import Prefixes


class Pool:
    """Blocks are counted exactly: a request holds those of the tokens it has, or of all that it will have (``reserved``)."""

    __slots__ = ("book", "free", "prefixes", "rules", "running", "waiting")

    def __init__(self, rules: Rules, book: Book) -> None:
        self.rules, self.book = rules, book
        self.waiting: deque[int] = deque()
        self.free = rules.blocks
        self.running = 0
        self.prefixes = Prefixes(max(1, book.prefix_block // rules.block)) if book.prefixes else None

    def cached_tokens(self, i: int) -> int:
        """Tokens of a waiting request that need not be computed: at least one is, and whole blocks are found."""
        book, most = self.book, self.book.goal[i] - 1
        if self.prefixes is None:
            return min(most, int(book.hit_rate * book.input_len[i]))
        return min(most // self.rules.block * self.rules.block, self.prefixes.match(self._ids(i)) * book.prefix_block)

    def admit(self, i: int) -> bool:
        """Take the blocks of a request, where they are free."""
        ids = self._ids(i)
        needed = self._own_blocks(i, ids, self._kept(i))
        if self.prefixes:
            needed += self.prefixes.new_blocks(ids)
        if needed > self.free:
            return False
        self.free -= needed
        self.running += 1
        if self.prefixes:
            self.prefixes.hold(ids)
            self.prefixes.trim(self.free)
        return True

    def release(self, i: int, tokens: int) -> None:
        """Give back the blocks of a request that has so many tokens."""
        ids = self._ids(i)
        self.free += self._own_blocks(i, ids, self._kept(i) if self.rules.reserved else tokens)
        self.running -= 1
        if self.prefixes:
            self.free += self.prefixes.leave(ids)

    def grow(self, blocks: int) -> None:
        self.free -= blocks
        if self.prefixes:
            self.prefixes.trim(self.free)

    def _kept(self, i: int) -> int:
        """Tokens that admission asks room for."""
        return self.book.input_len[i] + self.book.output_len[i] if self.rules.reserved else self.book.goal[i]

    def _own_blocks(self, i: int, ids: tuple[int, ...], tokens: int) -> int:
        """Blocks that no other request can share."""
        return max(0, -(-tokens // self.rules.block) - (len(ids) * self.prefixes.per_id if self.prefixes else 0))

    def _ids(self, i: int) -> tuple[int, ...]:
        """Ids of whole blocks of the prompt."""
        return self.book.prefixes[i] if self.book.prefixes else ()
