"""Which columns of a table a width has room for, and how wide each is.

Numbers are never folded. Text folds to a few lines; what a narrow screen can do without goes, the least important first. Where not
even the rest has room, there is no table: rows become short records instead.
"""

from collections.abc import Mapping, Sequence

from commtax.records import dataclass
from commtax.report.folding import count_lines, narrowest, width_of, word_widths

BETWEEN = 2  # columns
WIDE_TEXT = 36  # columns from which on text is no name, and may fold to many lines
SHORT = 16  # columns of a name that is folded only where it must
MOST_LINES, ENOUGH = (2, 3), (WIDE_TEXT, 24)
"""Lines that a name may fold to, and columns that long text is content with: first generously, then where else is no room."""
EXCEPTIONS = 10  # of so many names one may fold to a line more than the others, which leaves them room for another column


@dataclass(frozen=True, slots=True)
class Needs:
    """What one column needs: its whole width, and what it is content with where cells and names fold to some lines."""

    whole: int
    by_lines: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...] = ()  # of each that folds, the widths of its words

    @classmethod
    def of(cls, name: str, cells: Sequence[str], folds: bool) -> "Needs":
        own = max(map(width_of, cells), default=0)
        whole = max(own, width_of(name))
        if not folds:
            return cls(whole, tuple(max(own, narrowest(name, lines)) for lines in MOST_LINES))
        few, most = (sorted(narrowest(cell, lines) for cell in (name, *cells)) for lines in MOST_LINES)
        named = max(few[-1 - len(cells) // EXCEPTIONS], most[-1]), most[-1]
        first, *others = (width if width <= WIDE_TEXT else enough for width, enough in zip(named, ENOUGH, strict=True))
        return cls(whole, (whole if whole <= SHORT else first, *others), tuple(map(word_widths, cells)))

    def lines(self, width: int) -> list[int]:
        """How many lines each cell takes."""
        return [count_lines(words, width) for words in self.cells]


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns that are shown, by their numbers, and their widths."""

    kept: tuple[int, ...]
    widths: tuple[int, ...]


def choose(
    columns: Sequence[Sequence[str]], folds: Sequence[bool], expendable: Sequence[Sequence[int]], width: int
) -> Choice | None:
    """Columns (a name and cells each) that fit; ``expendable`` ones may be left out, the first first, some only together."""
    whole = [max(map(width_of, cells)) for cells in columns]
    if _total(whole) <= width:
        return Choice(tuple(range(len(columns))), tuple(whole))
    needs = [Needs.of(name, cells, fold) for (name, *cells), fold in zip(columns, folds, strict=True)]
    needed = [i for i in range(len(columns)) if not any(i in some for some in expendable)]
    for at in range(len(MOST_LINES)):
        if _total([needs[i].by_lines[at] for i in needed]) <= width:
            kept = needed
            for more in reversed(expendable):
                if _total([needs[i].by_lines[at] for i in (*kept, *more)]) <= width:
                    kept = sorted((*kept, *more))
            return Choice(tuple(kept), _spread([needs[i] for i in kept], at, width))
    return None


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + BETWEEN * (len(widths) - 1)


def _spread(needs: Sequence[Needs], at: int, width: int) -> tuple[int, ...]:
    """The room that is left goes, again and again, to the column where the least of it saves a line."""
    widths = [need.by_lines[at] for need in needs]
    left = width - _total(widths)
    heights = [need.lines(own) for need, own in zip(needs, widths, strict=True) if need.cells]
    folding = [i for i, need in enumerate(needs) if need.cells]
    while left:
        rows = dict(zip(folding, heights, strict=True))
        gains = [(more, i) for i in folding if (more := _least_gain(needs[i], widths[i], left, rows, i))]
        if not gains:
            break
        more, i = min(gains)
        widths[i], left = widths[i] + more, left - more
        heights[folding.index(i)] = needs[i].lines(widths[i])
    widths = list(widths)
    for i, need in enumerate(needs):
        more = min(left, need.whole - widths[i])
        if not need.cells and more == need.whole - widths[i]:
            widths[i], left = widths[i] + more, left - more
    return tuple(widths)


def _least_gain(need: Needs, width: int, left: int, rows: Mapping[int, Sequence[int]], i: int) -> int:
    """The least that a column must widen by for the table to have fewer lines; 0 where all that is left does not help."""
    others = [max(some) for some in zip(*(own for j, own in rows.items() if j != i), strict=True)] or [1] * len(need.cells)
    height = sum(map(max, rows[i], others))
    low, high = 1, min(left, need.whole - width) + 1
    most = high
    while low < high:
        middle = (low + high) // 2
        shorter = sum(map(max, need.lines(width + middle), others)) < height
        low, high = (low, middle) if shorter else (middle + 1, high)
    return high if high < most else 0
