"""Text folded to a width: at spaces alone, and never between a number and its unit or a degree and its size."""

import re
from collections.abc import Sequence

_LETTERS = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u259f\u25c6]*")
"""Signs that take one column each."""
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
    """Columns that a text takes on a terminal."""
    if text.isascii() or _LETTERS.fullmatch(text):
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(sign) in ("Mn", "Me") else 1 + (east_asian_width(sign) in "WF") for sign in text)


def narrowest(text: str, lines: int) -> int:
    """The least width at which a text folds to so many lines, and nothing that belongs together comes apart."""
    words = word_widths(text)
    low, high = max(words), width_of(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count_lines(words, middle) <= lines else (middle + 1, high)
    return high


def word_widths(text: str) -> tuple[int, ...]:
    """Of what never comes apart."""
    return tuple(width_of(word) for word in _JOINED.sub(_GLUE, text).split(" "))


def count_lines(words: Sequence[int], width: int) -> int:
    """Lines that words of such widths, none of them wider, take."""
    lines, filled = 1, -1
    for word in words:
        filled += 1 + word
        if filled > width and filled > word:
            lines, filled = lines + 1, word
    return lines


def fold(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most ``width`` columns, all but the first indented; nothing but spaces at the breaks is left out.

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
