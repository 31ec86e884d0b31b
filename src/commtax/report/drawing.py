"""Text and tables, drawn by Rich on a terminal and without it in a pipe: there it would take as long as many answers.

A pipe has no colours, and where all signs are as wide as a letter and a table fits, its cells only need to be padded. What is not
as simple is left to Rich, so that a pipe gets the same lines either way.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Protocol, Self

from commtax.records import dataclass

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

_LETTERS = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u259f\u25c6]*")
"""Signs that take one column each."""
_BETWEEN = 2  # columns


class Console(Protocol):
    """Where answers are drawn: Rich's, or ``Pipe``."""

    @property
    def width(self) -> int: ...

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None: ...


class Text:
    """Pieces of text with their styles; all have that of the first."""

    __slots__ = ("pieces",)

    def __init__(self, text: str = "", style: str = "") -> None:
        self.pieces = [(text, style)]

    def append(self, text: str, style: str = "") -> Self:
        self.pieces.append((text, style))
        return self

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def __rich__(self) -> "RichText":
        from rich.text import Text as Styled

        (text, style), *others = self.pieces
        styled = Styled(text, style=style)
        for more, own in others:
            styled.append(more, style=own)
        return styled


@dataclass(frozen=True, slots=True)
class DrawnTable:
    """Cells in columns; those whose names start with '>' are right-aligned."""

    columns: Sequence[str]
    rows: list[list[str | Text]] = field(default_factory=list)
    title: str = ""

    def __rich__(self) -> "RichTable":
        from rich.table import Table as Styled

        title, gaps = self.title or None, (0, _BETWEEN, 0, 0)
        drawn = Styled(title=title, box=None, pad_edge=False, title_justify="left", title_style="bold", padding=gaps)
        for name in self.columns:
            right = name.startswith(">")
            drawn.add_column(name.lstrip(">"), justify="right" if right else "left", header_style="dim", no_wrap=right)
        for row in self.rows:
            drawn.add_row(*row)
        return drawn

    def lines(self, width: int) -> list[str] | None:
        """Its lines, each as wide as the whole; None where that is not simple."""
        if self.title or not self.columns or not self.rows:
            return None
        cells = [[name.lstrip(">") for name in self.columns], *([str(cell) for cell in row] for row in self.rows)]
        if not all(map(_is_simple, chain(*cells))):
            return None
        rights = [name.startswith(">") for name in self.columns]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        if not all(widths) or sum(widths) + _BETWEEN * (len(widths) - 1) > width:
            return None
        gap = " " * _BETWEEN
        return [
            gap.join(text.rstrip().rjust(n) if right else text.ljust(n) for text, n, right in zip(row, widths, rights, strict=True))
            for row in cells
        ]


class Pipe:
    """A console that leads into a file or another program; ``rich`` makes the one that draws what is not simple."""

    def __init__(self, width: int, rich: Callable[[int], Console]) -> None:
        self.width, self._rich = width, rich

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None:
        lines = self._lines(objects, bool(soft_wrap))
        if lines is None:
            self._rich(self.width).print(*objects, soft_wrap=soft_wrap)
        else:
            try:
                sys.stdout.write("".join(f"{line}\n" for line in lines))
            except BrokenPipeError:
                raise BrokenPipeError from None  # without its number: click would exit with 1, which is an answer of ours

    def _lines(self, objects: Sequence[object], soft_wrap: bool) -> list[str] | None:
        if len(objects) == 1 and isinstance(objects[0], DrawnTable):
            return objects[0].lines(self.width)
        if len(objects) == 1 and isinstance(objects[0], Text) and soft_wrap:
            text = str(objects[0])
            return [text] if _is_simple(text) and (not text.endswith(" ") or len(text) <= self.width) else None
        return [""] if not objects else None


def _is_simple(text: str) -> bool:
    return (text.isascii() and text.isprintable()) or _LETTERS.fullmatch(text) is not None
