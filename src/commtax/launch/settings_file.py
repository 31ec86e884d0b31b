"""A file of settings beside a command, as TensorRT-LLM has it: YAML of keys below keys, read line by line and written."""

import re
from collections.abc import Iterator, Mapping

from commtax.launch.manifest import load_documents
from commtax.statement import Refusal

LINE = re.compile(r"([ \t]*+)([\w-]++)[ \t]*+:(.*)")


def settings_of(text: str) -> Iterator[tuple[str, str]]:
    """Paths of settings and what they say; a place that somebody is to fill in is no YAML, so that lines are read by themselves.

    >>> list(settings_of("a:\\n  b:\\n    c: 1  # one\\n  d: {e: 2}\\nf: null"))
    [('a.b.c', '1'), ('a.d.e', '2'), ('f', 'null')]
    """
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        indent = len(match[1])
        above = [(deep, key) for deep, key in above if deep < indent]
        value = re.sub(r"(?:^|\s)#.*", "", match[3]).strip()
        path = ".".join([*(key for _, key in above), match[2]])
        above.append((indent, match[2]))
        if value:
            yield from _ends(path, _flow(value))


def _flow(value: str) -> object:
    """What stands in one line: keys in braces, or the text itself."""
    if not value.startswith("{"):
        return value.strip("\"'")
    try:
        found = load_documents(value, "")
    except Refusal:
        return value
    return found[0] if found else value


def _ends(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _ends(f"{path}.{key}", below)
    else:
        yield path, str(value)


def settings_lines(tree: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Settings as YAML.

    >>> list(settings_lines({"a": {"b": 1}, "c": True, "d": None}))
    ['a:', '  b: 1', 'c: true', 'd: null']
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from settings_lines(value, indent + "  ")
        else:
            word = str(value).lower() if isinstance(value, bool) else "null" if value is None else value
            yield f"{indent}{key}: {word}"
