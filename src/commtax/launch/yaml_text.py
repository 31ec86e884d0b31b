"""YAML as people write it: keys in their order, comments beside lines, scripts as blocks."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from commtax.records import dataclass

PLAIN = re.compile(r"(?:--?)?[A-Za-z_/$][\w ./$(){}@+=,:-]*|\d+(?:Gi|gb|s)")  # needs no quotes, but for OTHERWISE
OTHERWISE = re.compile(r"(?i)(?:true|false|null|yes|no|on|off|y|n|~)|.*(?:: | #|:$| $).*|.*[{}].*", re.S)
Tree = object  # a mapping, a list, text, a number, a switch, or one of those with a comment


@dataclass(frozen=True, slots=True)
class Explained:
    """A value, and why it stands there."""

    value: Tree
    why: str


def yaml_text(documents: Sequence[Tree]) -> str:
    """Write documents one below the other.

    >>> print(yaml_text([{"a": {"b": Explained("1", "one")}, "c": [{"d": True, "e": "x: y"}, "sh"], "f": "g\\nh"}]))
    a:
      b: "1"  # one
    c:
    - d: true
      e: "x: y"
    - sh
    f: |
      g
      h
    """
    return "\n---\n".join("\n".join(_lines(document, "")) for document in documents)


def _lines(tree: Tree, indent: str) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", value, indent)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _entry(f"{indent}-", value, indent)


def _entry(head: str, value: Tree, indent: str) -> Iterator[str]:
    value, note = (value.value, f"  # {value.why}") if isinstance(value, Explained) else (value, "")
    if isinstance(value, str) and "\n" in value:
        yield f"{head} |{note}"
        yield from (f"{indent}  {line}".rstrip() for line in value.rstrip("\n").split("\n"))
    elif isinstance(value, Mapping | list | tuple) and value:
        below = list(_lines(value, indent + ("" if isinstance(value, list | tuple) and head[-1] == ":" else "  ")))
        if head[-1] == "-":  # its first key stands behind the dash
            below[0] = f"{head} {below[0].lstrip()}"
        else:
            yield f"{head}{note}"
        yield from below
    else:
        yield f"{head} {_scalar(value)}{note}"


def _scalar(value: Tree) -> str:
    if not isinstance(value, str):  # a number, a switch, nothing, or an empty mapping or list
        return json.dumps(value)
    if PLAIN.fullmatch(value) and not OTHERWISE.fullmatch(value):
        return value
    return "'" + value.replace("'", "''") + "'" if '"' in value or "\\" in value else f'"{value}"'
