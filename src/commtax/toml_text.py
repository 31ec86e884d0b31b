"""Tables as TOML text that a person enjoys reading: the standard library reads TOML, and writes none."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real

Tree = Mapping[str, object]
WIDTH = 132  # columns that a table may take on one line
DIGITS = 6  # of a number that is measured: more than anything measured is sure of
MOST_WHOLE = 1e14  # whole numbers below are counts and bytes, and keep every digit
LONG = 1e7  # round numbers from here on are written with an exponent
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_UNSEEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def write_toml(document: Tree, comments: Iterable[str] = ()) -> str:
    """Write the whole text, under lines of comment.

    >>> print(write_toml({"name": "box", "chip": {"key": "cpu", "rates": {"fp32": 3.5e12}}, "run": [{"clients": 8.0}]}), end="")
    name = "box"
    <BLANKLINE>
    [chip]
    key = "cpu"
    rates = { fp32 = 3.5e12 }
    <BLANKLINE>
    [[run]]
    clients = 8
    """
    head = [f"# {_UNSEEN.sub(' ', line)}".rstrip() for line in comments]
    return "\n".join([*head, *([""] if head else []), *_table(document, ())]).rstrip() + "\n"


def shorten(value: float) -> float:
    """Return a number as it is written: whole ones as they are, others with a few digits.

    >>> shorten(0.123456789), shorten(64.0), shorten(2**33), shorten(1234567.8)
    (0.123457, 64, 8589934592, 1234570)
    """
    near = float(value)
    if near == near and abs(near) < MOST_WHOLE and near.is_integer():
        return int(near)
    short = float(f"{near:.{DIGITS}g}")
    return int(short) if abs(short) < MOST_WHOLE and short.is_integer() else short


def shorten_all(value: object) -> object:
    """Return a document with all of its numbers as they are written."""
    if isinstance(value, Mapping):
        return {key: shorten_all(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [shorten_all(inner) for inner in value]
    return value if isinstance(value, (bool, str)) or not isinstance(value, Real) else shorten(float(value))


def _table(table: Tree, way: tuple[str, ...], depth: int = 0) -> Iterator[str]:
    """Yield values, then tables, then lists of tables: TOML has no way back from a header, below which lines are indented."""
    inner = {key: value for key, value in table.items() if not _on_a_line(key, value, way)}
    indent = "  " * max(0, depth - 1)
    yield from (f"{indent}{_key(key)} = {_value(value)}" for key, value in table.items() if key not in inner)
    for key, value in sorted(inner.items(), key=lambda pair: isinstance(pair[1], (list, tuple))):
        here = (*way, key)
        name, indent = ".".join(map(_key, here)), "  " * depth
        for one in value if isinstance(value, (list, tuple)) else ():
            yield from ("", f"{indent}[[{name}]]", *_table(one, here, depth + 1))
        if isinstance(value, Mapping):
            alone = value and all(isinstance(part, Mapping) and not _on_a_line(k, part, here) for k, part in value.items())
            yield from _table(value, here, depth) if alone else ("", f"{indent}[{name}]", *_table(value, here, depth + 1))


def _on_a_line(key: str, value: object, way: Sequence[str]) -> bool:
    """Return whether a value stands on one line: no table, or a table of values that is short enough."""
    if isinstance(value, Mapping):
        plain = way and not any(isinstance(inner, Mapping) or _holds_tables(inner) for inner in value.values())
        return bool(plain) and len(f"{key} = {_value(value)}") <= WIDTH
    return not _holds_tables(value)


def _holds_tables(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(inner, Mapping) for inner in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        short = shorten(value)
        text = f"{short:.{DIGITS}g}"
        if isinstance(short, int) and (abs(short) < LONG or float(text) != short):
            return str(short)
        return re.sub(r"e\+?(-?)0*", r"e\1", text)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return _text(str(value))


def _text(text: str) -> str:
    """Quote a text as JSON does, which TOML reads. Half of a surrogate pair becomes a question mark."""
    whole = json.dumps(re.sub("[\ud800-\udfff]", "?", text), ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", whole)
