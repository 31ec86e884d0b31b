"""Text and tables as lines of a width, for Rich on a terminal and without it in a pipe, where it would take too long to load.

Numbers are never folded. A narrow screen lacks the least important columns; where the others have no room, rows are short records.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, Self

from commtax.records import dataclass
from commtax.spelling import escape_controls

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions
    from rich.text import Text as RichText

BETWEEN = 2  # columns
WIDE_TEXT = 36  # columns from which on text is no name, and may fold to many lines
SHORT = 16  # columns of a name that is folded only where it must
# Lines that a name may fold to, and columns that long text is content with: first generously, then where else is no room
MOST_LINES, ENOUGH = (2, 3), (WIDE_TEXT, 24)
EXCEPTIONS = 10  # of so many names one may fold to a line more than the others, which leaves them room for another column
Choice = tuple[tuple[int, ...], tuple[int, ...]]  # the columns that are shown, by their numbers, and their widths
FURTHER, NOTED = 4, 2  # columns that a sentence is indented by from its second line on, and where it has a mark or is indented
MOST_NAMES = 2  # columns of text that head a record


@dataclass(frozen=True, slots=True)
class Needs:
    """What one column needs: its whole width, and what it is content with where cells and names fold to some lines."""

    whole: int
    by_lines: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...] = ()  # of each that folds, the widths of its words

    @classmethod
    def of(cls, name: str, cells: Sequence[str], folds: bool) -> "Needs":
        widest = max(map(width_of, cells), default=0)
        whole = max(widest, width_of(name))
        if not folds:
            return cls(whole, tuple(max(widest, narrowest(name, lines)) for lines in MOST_LINES))
        few, most = (sorted(narrowest(cell, lines) for cell in (name, *cells)) for lines in MOST_LINES)
        named = max(few[-1 - len(cells) // EXCEPTIONS], most[-1]), most[-1]
        first, *others = (width if width <= WIDE_TEXT else enough for width, enough in zip(named, ENOUGH, strict=True))
        return cls(whole, (whole if whole <= SHORT else first, *others), tuple(map(word_widths, cells)))

    def lines(self, width: int) -> list[int]:
        return [count_lines(words, width) for words in self.cells]


class Console(Protocol):
    """Where answers are drawn: Rich's, ``Pipe``, or what keeps them."""

    @property
    def width(self) -> int: ...

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Telling:
    """How much a console is told, and what it is told of the rest."""

    details: bool = False  # formulae, sources and all notes too
    wider: str = ""  # who shows columns that there was no room for
    further: str = ""  # who tells notes that were held back; "": nobody need know


COMMAND = Telling(False, "a wider terminal or --json shows all", "--details")  # as a command's answer is told


def telling(console: Console) -> Telling:
    wish = getattr(console, "telling", None)
    return wish if isinstance(wish, Telling) else Telling()


class Text:
    """Pieces of text with their styles, whose lines all have that of the first."""

    __slots__ = ("pieces",)

    def __init__(self, text: str = "", style: str = "") -> None:
        self.pieces = [(text, style)]

    def append(self, text: str, style: str = "") -> Self:
        self.pieces.append((text, style))
        return self

    @property
    def style(self) -> str:
        return self.pieces[0][1]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def lines(self, width: int) -> "list[Text]":
        """Fold the sentence, all of which has one style."""
        whole = escape_controls(str(self))
        leading = len(whole) - len(whole.lstrip(" "))
        indent = leading + NOTED if leading or whole.startswith("· ") else FURTHER
        return [Text(line, self.style) for line in fold(whole, width, indent)]

    def styled(self) -> "RichText":
        """Return the text as Rich takes it: a line that is as long as it is."""
        from rich.text import Text as Styled

        (text, style), *others = self.pieces
        styled = Styled(text, style=style, no_wrap=True, overflow="ignore")
        for more, other in others:
            styled.append(more, style=other)
        return styled

    def __rich_console__(self, _: "RichConsole", options: "ConsoleOptions") -> "Iterator[RichText]":
        yield from (line.styled() for line in ([self] if options.no_wrap else self.lines(options.max_width)))


class Sketch(Text):
    """A line of a drawing made of signs: where there are pictures, one stands in its place."""

    __slots__ = ()

    def lines(self, width: int) -> list[Text]:
        """Keep the line, since whoever draws keeps to the width, and fold what is said of a drawing."""
        return [self] if width_of(str(self)) <= width else super().lines(width)


@dataclass(frozen=True, slots=True)
class DrawnTable:
    """Cells in columns, of which those whose names start with '>' are right-aligned and never folded."""

    columns: Sequence[str]
    rows: list[list[str | Text]] = field(default_factory=list)
    title: str = ""
    expendable: Sequence[str] = ()  # names of columns that a narrow screen can do without, the least important first
    wider: str = ""  # who shows them

    @property
    def names(self) -> list[str]:
        return [name.lstrip(">") for name in self.columns]

    def lines(self, width: int) -> list[Text]:
        """Draw columns where there is room for those that are needed, else records, and below them name what is not shown."""
        if not self.columns:
            return []
        cells = [[escape_controls(str(cell)).replace("\n", " ") for cell in row] for row in self.rows]
        columns = [list(column) for column in zip(self.names, *cells, strict=True)]
        order = [some for name in self.expendable if (some := [i for i, other in enumerate(self.names) if other == name])]
        choice = choose(columns, [not name.startswith(">") for name in self.columns], order, width)
        title = Text(self.title, "bold").lines(width) if self.title else []
        if choice is None:
            records = (self._record(row, shown, width) for row, shown in zip(self.rows, cells, strict=True))
            return [*title, *(line for one in records for line in one)]
        head = [] if not any(self.names) else list(self._across(choice, self.names, ["dim"] * len(self.names), top=False))
        body = [line for row, shown in zip(self.rows, cells, strict=True) for line in self._across(choice, shown, _styles(row))]
        missing = [name for i, name in enumerate(self.names) if i not in choice[0] and name]
        if not missing:
            return [*title, *head, *body]
        ways = f"; {self.wider}" if self.wider else ""
        left_out = Text(f"  not shown at {width} columns: {', '.join(dict.fromkeys(missing))}{ways}", "dim")
        return [*title, *head, *body, *left_out.lines(width)]

    def _across(self, choice: "Choice", cells: Sequence[str], styles: Sequence[str], top: bool = True) -> Iterator[Text]:
        """Yield a row in as many lines as its cells fold to. Names stand right above the first."""
        folded = [fold(cells[i], width) for i, width in zip(*choice, strict=True)]
        height = max(map(len, folded))
        tall = [[*lines, *[""] * (height - len(lines))] if top else [*[""] * (height - len(lines)), *lines] for lines in folded]
        for parts in zip(*tall, strict=True):
            line = Text()
            for i, width, part in zip(*choice, parts, strict=True):
                space = " " * (width - width_of(part))
                before, after = (space, "") if self.columns[i].startswith(">") else ("", space)
                line.append(before).append(part, styles[i]).append(after + " " * BETWEEN)
            while line.pieces[1:] and not line.pieces[-1][0].strip():
                line.pieces.pop()
            text, style = line.pieces[-1]
            line.pieces[-1] = text.rstrip(), style
            yield line

    def _record(self, row: Sequence[str | Text], cells: Sequence[str], width: int) -> Iterator[Text]:
        numbers = [i for i, name in enumerate(self.columns) if name.startswith(">")]
        first = min(numbers[0] if numbers else 1, MOST_NAMES)  # column behind the name
        pairs = [f"{name} {cell}".strip() for name, cell in zip(self.names[first:], cells[first:], strict=True) if cell.strip()]
        head = [cell for cell in cells[:first] if cell] or pairs[:1]
        yield from Text("  ".join(head), _styles(row)[max(first - 1, 0)] or "bold").lines(width)
        yield from (Text(f"  {line}") for line in _packed(pairs if first else pairs[1:], width - NOTED))

    def __rich_console__(self, _: "RichConsole", options: "ConsoleOptions") -> "Iterator[RichText]":
        yield from (line.styled() for line in self.lines(options.max_width))


def _styles(row: Sequence[str | Text]) -> list[str]:
    return [cell.style if isinstance(cell, Text) else "" for cell in row]


def _packed(pairs: Sequence[str], width: int) -> Iterator[str]:
    """Yield pairs beside each other, each whole, as many as a line has room for. A long one has lines of its own."""
    line = ""
    for pair in pairs:
        joined = f"{line} · {pair}" if line else pair
        if width_of(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        *full, line = fold(pair, width, NOTED)
        yield from full
    if line:
        yield line


class Pipe:
    """A console that leads into a file or a program, where sentences are whole unless somebody said how wide it is (``folds``)."""

    def __init__(self, width: int, rich: Callable[[int], Console], telling: Telling, folds: bool = False) -> None:
        self.width, self._rich, self.telling, self._folds = width, rich, telling, folds

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None:
        if any(not isinstance(one, Text | DrawnTable) for one in objects):
            self._rich(self.width).print(*objects, soft_wrap=soft_wrap)
            return
        lines = list[str]()
        for one in objects:
            if isinstance(one, DrawnTable) or (self._folds and not soft_wrap and isinstance(one, Text)):
                lines += [str(line) for line in one.lines(self.width)]
            else:
                lines.append(escape_controls(str(one)).rstrip())
        try:
            sys.stdout.write("".join(f"{line}\n" for line in lines or [""]))
        except BrokenPipeError:
            raise BrokenPipeError from None  # without its number: click would exit with 1, which is an answer of ours


def choose(columns: Sequence[Sequence[str]], folds: Sequence[bool], spare: Sequence[Sequence[int]], width: int) -> Choice | None:
    """Choose columns (a name and cells each) that fit. ``spare`` ones may go, the first first, some only together."""
    whole = [max(map(width_of, cells)) for cells in columns]
    if _total(whole) <= width:
        return tuple(range(len(columns))), tuple(whole)
    needs = [Needs.of(name, cells, fold) for (name, *cells), fold in zip(columns, folds, strict=True)]
    needed = [i for i in range(len(columns)) if not any(i in some for some in spare)]
    for at in range(len(MOST_LINES)):
        if _total([needs[i].by_lines[at] for i in needed]) <= width:
            kept = needed
            for more in reversed(spare):
                if _total([needs[i].by_lines[at] for i in (*kept, *more)]) <= width:
                    kept = sorted((*kept, *more))
            return tuple(kept), _spread([needs[i] for i in kept], at, width)
    return None


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + BETWEEN * (len(widths) - 1)


def _spread(needs: Sequence[Needs], at: int, width: int) -> tuple[int, ...]:
    """Give the room that is left, again and again, to the column where the least of it saves a line."""
    widths = [need.by_lines[at] for need in needs]
    left = width - _total(widths)
    heights = [need.lines(width) for need, width in zip(needs, widths, strict=True) if need.cells]
    folding = [i for i, need in enumerate(needs) if need.cells]
    while left:
        rows = dict(zip(folding, heights, strict=True))
        gains = [(more, i) for i in folding if (more := _least_gain(needs[i], widths[i], left, rows, i))]
        if not gains:
            break
        more, i = min(gains)
        widths[i], left = widths[i] + more, left - more
        heights[folding.index(i)] = needs[i].lines(widths[i])
    for i, need in enumerate(needs):
        more = min(left, need.whole - widths[i])
        if not need.cells and more == need.whole - widths[i]:
            widths[i], left = widths[i] + more, left - more
    return tuple(widths)


def _least_gain(need: Needs, width: int, left: int, rows: Mapping[int, Sequence[int]], i: int) -> int:
    """Return the least that a column must widen by for the table to have fewer lines, or 0 where all that is left does not help."""
    others = [max(some) for some in zip(*(cells for j, cells in rows.items() if j != i), strict=True)] or [1] * len(need.cells)
    height = sum(map(max, rows[i], others))
    low, high = 1, min(left, need.whole - width) + 1
    most = high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sum(map(max, need.lines(width + middle), others)) < height else (middle + 1, high)
    return high if high < most else 0


# Signs that take one column each
_LETTERS = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u259f\u25c6]*")
_GLUE = "\0"  # a space that no line ends at
_UNITS = (
    *("ns", "µs", "us", "ms", "s", "minutes?", "hours?", "days?", "years?", "%", "x", "±"),
    *("[KMGTP]i?B", "B", "[KMGTP]?i?B/s", "[KMGTP]?FLOP(?:/s)?", "tokens?(?:/s)?", "requests?(?:/s)?"),
    *("GPUs?", "clients?", "ranks?", "stages?", "replicas?", "layers?", "columns", "◆", "◇"),
)
_TOGETHER = (
    rf"(?<=[\d%]) (?=(?:{'|'.join(_UNITS)})(?![\w/]))",  # 25.4 ms
    r"(?<=\b[TPDEC]P) (?=\d)",  # TP 4
    r"(?<=[=x±≤$<>]) (?=[\d±])|(?<=<=) (?=\d)| (?=<= |≤ |= \S)",  # TTFT <= 500 ms, x 2 stages
    r"(?<=·) (?=\S)",  # a note's mark
)
_JOINED = re.compile("|".join(_TOGETHER))
_AFTER = "/-_:,.&?="  # signs that a word too long for a line is best broken after


def width_of(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii() or _LETTERS.fullmatch(text):
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(sign) in ("Mn", "Me") else 1 + (east_asian_width(sign) in "WF") for sign in text)


def narrowest(text: str, lines: int) -> int:
    """Return the least width at which a text folds to so many lines, and nothing that belongs together comes apart."""
    words = word_widths(text)
    low, high = max(words), width_of(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count_lines(words, middle) <= lines else (middle + 1, high)
    return high


def word_widths(text: str) -> tuple[int, ...]:
    """Return the widths of what never comes apart."""
    return tuple(width_of(word) for word in _JOINED.sub(_GLUE, text).split(" "))


def count_lines(words: Sequence[int], width: int) -> int:
    """Count the lines that words of such widths, none of them wider, take."""
    lines, filled = 1, -1
    for word in words:
        filled += 1 + word
        if filled > width and filled > word:
            lines, filled = lines + 1, word
    return lines


def fold(text: str, width: int, indent: int = 0) -> list[str]:
    """Fold a text to ``width`` columns, all lines but the first indented. Only spaces at the breaks are left out.

    >>> fold("a decode step takes 25.4 ms at TP 4", 24, 2)
    ['a decode step takes', '  25.4 ms at TP 4']
    """
    if width_of(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for piece in re.findall(r" *[^ ]+", _JOINED.sub(_GLUE, text)):
        if line.strip() and width_of(line) + width_of(piece) > width:
            lines.append(line)
            line = " " * indent + piece.lstrip(" ")
        else:
            line += piece
        while width_of(line) > width:
            most = next(i for i in range(len(line) + 1) if width_of(line[: i + 1]) > width)
            parted = [i for i in range(most, most // 2, -1) if line[i - 1] in _AFTER or line[i - 1] == _GLUE]
            at = max(1, parted[0] if parted else most)
            first, line = line[:at].rstrip(_GLUE), line[at:]
            lines.append(first)
            line = " " * indent + line
    return [one.replace(_GLUE, " ") for one in (*lines, line)]
