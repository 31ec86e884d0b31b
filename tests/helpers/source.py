"""The source as data: every file parsed once, for whoever holds it against a rule."""

import ast
from functools import cache

from paths import ROOT, SOURCE

FILES = sorted(SOURCE.rglob("*.py"))
LABORATORY = ROOT / "laboratory"
EVERY = [*FILES, *sorted(LABORATORY.rglob("*.py"))]
"""With the laboratory, which lies beside ``src``."""


@cache
def nodes(path):
    """All that a file holds."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def place(path):
    """A file as it is named in messages: below ``commtax``, or below ``laboratory``."""
    return str(path.relative_to(SOURCE if path.is_relative_to(SOURCE) else LABORATORY))


def unit(path):
    """The package or module of the top level that a file belongs to; of the wing of runs the room in it."""
    return unit_of(path.relative_to(SOURCE).with_suffix("").parts)


def unit_of(parts):
    return ".".join(parts[: 2 if parts[0] == "runs" and parts[1:] != ("__init__",) else 1])


def module_name(path):
    parts = path.relative_to(SOURCE.parent if path.is_relative_to(SOURCE) else LABORATORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
