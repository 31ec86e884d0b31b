"""The prefix cache: blocks of prompts that stay when their requests end, until others need the room."""

from collections import OrderedDict


class Prefixes:
    """Ids of resident blocks: those that running requests hold, and idle ones in the order in which they were left."""

    __slots__ = ("_held", "_idle", "per_id")

    def __init__(self, per_id: int) -> None:
        self.per_id = per_id  # blocks of the cache that an id stands for
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def match(self, ids: tuple[int, ...]) -> int:
        """How many ids from the first on are resident."""
        count = 0
        for key in ids:
            if key not in self._held and key not in self._idle:
                break
            count += 1
        return count

    def new_blocks(self, ids: tuple[int, ...]) -> int:
        """Blocks that holding these takes from the others: those that nobody holds now."""
        return sum(key not in self._held for key in ids) * self.per_id

    def hold(self, ids: tuple[int, ...]) -> None:
        for key in ids:
            self._idle.pop(key, None)
            self._held[key] = self._held.get(key, 0) + 1

    def leave(self, ids: tuple[int, ...]) -> int:
        """Returns the blocks that nobody holds any more; they stay resident. The end of a prompt goes first when room is needed."""
        free = 0
        for key in reversed(ids):
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
                self._idle[key] = None
                free += self.per_id
        return free

    def trim(self, free: int) -> None:
        """Idle blocks make room: no more of them than there are free ones."""
        while len(self._idle) * self.per_id > free:
            self._idle.popitem(last=False)
