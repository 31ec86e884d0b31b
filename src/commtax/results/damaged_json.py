"""JSON that ends too early, or is damaged somewhere: all that is whole before that place."""

import json

from commtax.files import Json, JsonObject
from commtax.thresholds import counts

COUNT = counts(__name__)
_DECODER = json.JSONDecoder()
_SPACE = " \n\r\t"


def read_damaged(text: str) -> tuple[Json, str]:
    """The value of a text as far as it goes, and the last key before the end; None where nothing is readable.

    >>> read_damaged('{"a": 1, "b": [{"c": 2, "d": {"e": 3}}, {"f": 4, "g": "ha')
    ({'a': 1, 'b': [{'c': 2, 'd': {'e': 3}}, {'f': 4}]}, 'f')
    """
    last = [""]
    begin = _skip_space(text, 0)
    value, _ = _value(text, begin, last, COUNT.depth) if text[begin : begin + 1] in ("{", "[") else (None, -1)
    return value, last[0]


def _value(text: str, at: int, last: list[str], depth: int) -> tuple[Json, int]:
    """A value and where it ends; -1 where it does not."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        opened = text[at : at + 1]
        if depth and opened in ("{", "["):
            return (_object if opened == "{" else _list)(text, at + 1, last, depth - 1), -1
        return None, -1
    if end == len(text) and text[at : at + 1] not in ("{", "[", '"'):  # a number may have had more digits
        return None, -1
    return value, end


def _object(text: str, at: int, last: list[str], depth: int) -> JsonObject:
    held: JsonObject = {}
    while at > 0:
        key, at = _value(text, _skip_space(text, at), last, 0)
        colon = _skip_space(text, at)
        if at < 0 or not isinstance(key, str) or text[colon : colon + 1] != ":":
            break
        value, at = _value(text, _skip_space(text, colon + 1), last, depth)
        if at < 0 and not value:
            break
        held[key] = value
        last[0] = key if at > 0 else last[0]
        at = _after_comma(text, at)
    return held


def _list(text: str, at: int, last: list[str], depth: int) -> list[Json]:
    held: list[Json] = []
    while at > 0:
        value, at = _value(text, _skip_space(text, at), last, depth)
        if at > 0 or value:
            held.append(value)
        at = _after_comma(text, at)
    return held


def _after_comma(text: str, at: int) -> int:
    """Behind the comma that follows; -1 where none does."""
    at = _skip_space(text, at) if at > 0 else at
    return at + 1 if at > 0 and text[at : at + 1] == "," else -1


def _skip_space(text: str, at: int) -> int:
    """Where the next sign is that is no space."""
    while 0 <= at < len(text) and text[at] in _SPACE:
        at += 1
    return at
