"""How other programs word what is read of them: ``wordings.toml`` of each room, expressions by module; and lines of their texts."""

import re
from collections.abc import Iterator, Mapping

from commtax.shipped_tables import room_table

_FILLED = re.compile(r"[^\n]+")
_ENDED = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++\Z")


def short_lines(text: str, most: int) -> Iterator[str]:
    """Yield the beginnings of all lines that are not empty, at most ``most`` signs of each.

    >>> list(short_lines("a\\n\\nlonger", 4))
    ['a', 'long']
    """
    return (text[m.start() : min(m.end(), m.start() + most)] for m in _FILLED.finditer(text))


def lines_with(mark: re.Pattern[str], text: str, most: int) -> Iterator[str]:
    """Yield the beginnings of those lines in which a mark stands. The others cost next to nothing.

    >>> list(lines_with(re.compile("step|loss"), "a\\nstep 1\\n\\nno\\na loss", 5))
    ['step ', 'a los']
    """
    at = 0
    while match := mark.search(text, at):
        begin, end = max(at, text.rfind("\n", at, match.start()) + 1), text.find("\n", match.end())
        yield text[begin : min(end, begin + most) if end >= 0 else begin + most]
        if end < 0:
            return
        at = end + 1


def split_lines(text: str) -> Iterator[str]:
    """Yield all lines, whichever way they end.

    >>> list(split_lines("a\\r\\n\\nb\\rc")), list(split_lines(""))
    (['a', '', 'b', 'c'], [])
    """
    return (m[0].rstrip("\r\n") for m in _ENDED.finditer(text))


class ModulePatterns:
    """The expressions of one module (a list is of alternatives) as attributes, each compiled when it is first used."""

    def __init__(self, texts: Mapping[str, str | list[str]]) -> None:
        self._texts = texts

    def __getattr__(self, name: str) -> re.Pattern[str]:
        try:
            text = self._texts[name]
            compiled = re.compile(text if isinstance(text, str) else f"(?:{'|'.join(text)})")
        except KeyError:
            raise AttributeError(name) from None
        vars(self)[name] = compiled
        return compiled


def patterns(module: str) -> ModulePatterns:
    """Return the patterns of a module, by its dotted name."""
    return ModulePatterns(room_table(module, "wordings.toml"))
