"""Lines of a stranger's text, one at a time: none that is empty, and no more of each than is looked at."""

import re
from collections.abc import Iterator

_LINE = re.compile(r"[^\n]+")


def short_lines(text: str, most: int) -> Iterator[str]:
    """The beginnings of all lines that are not empty; a text may be all line ends, or all one line.

    >>> list(short_lines("a\\n\\nlonger", 4))
    ['a', 'long']
    """
    return (text[m.start() : min(m.end(), m.start() + most)] for m in _LINE.finditer(text))
