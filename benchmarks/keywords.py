"""Typed keywords of the public functions, from the table of options: ``python benchmarks/keywords.py`` writes verbs/keywords.py.

Editors complete names by these types, and a type checker checks them. A test fails where the file is not what the table says.
"""

import textwrap
from pathlib import Path

from commtax.options import taken_by

FILE = Path(__file__).parents[1] / "src" / "commtax" / "verbs" / "keywords.py"
FUNCTIONS = (
    *("bill", "train_bill", "traffic", "fit", "train_fit", "simulate", "serve"),
    *("plan", "plan_fleet", "plan_training", "compare", "compare_plans", "worth", "audit_run", "expect", "pipeline"),
)
HEAD = '''"""Keywords of the public functions, for editors and checkers of types. Written by benchmarks/keywords.py."""

# ruff: noqa: UP013
# fmt: off
from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

from commtax.spec import Cluster, Engine, Number, Profile
from commtax.spec.stream import Lengths, RequestStream

Numbers = Number | Sequence[int]
Profiles = str | PathLike[str] | Profile | Sequence[str | PathLike[str] | Profile]
'''
WIDTH = 128


def class_name(function: str) -> str:
    return f"{function.replace('_', ' ').title().replace(' ', '')}Options"


def typed(name: str, types: dict[str, str]) -> str:
    """A record of keywords, none of which has to be given."""
    pairs = " ".join(f'"{key}":\0{kind.replace(" ", chr(0))},' for key, kind in types.items())
    wrapped = textwrap.wrap(f"{pairs[:-1]}}},\0total=False)", WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = "\n".join(f"    {line}" for line in wrapped).replace("\0", " ")
    return f'{name} = TypedDict("{name}", {{\n{lines}\n'


def text() -> str:
    """The whole file."""
    records = [typed(class_name(f), {name: option.type for name, option in taken_by(f"{f}()").items()}) for f in FUNCTIONS]
    return "\n".join([HEAD, *records])


if __name__ == "__main__":
    FILE.write_text(text())
