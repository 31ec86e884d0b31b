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
ALIKE = {  # what several functions take alike is written once
    "SharedStepOptions": ("bill", "simulate", "serve", "compare", "compare_plans", "worth"),
    "SharedTrainingOptions": ("train_bill", "traffic", "train_fit"),
    "SharedLimitOptions": ("fit", "simulate", "serve", "plan", "plan_fleet", "worth", "audit_run"),
}
HEAD = '''"""Keywords of the public functions, for editors and checkers of types. Written by benchmarks/keywords.py."""

# ruff: noqa: E702
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


def typed(name: str, above: list[str], types: dict[str, str]) -> str:
    """A record of keywords, none of which has to be given; those of the records above it are its own, too."""
    pairs = "; ".join(f"{key}: {kind}".replace(" ", "\0") for key, kind in types.items())
    wrapped = textwrap.wrap(pairs, WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = "\n".join(f"    {line.rstrip(';')}" for line in wrapped or ["pass"]).replace("\0", " ")
    return f"class {name}({', '.join(above or ['TypedDict'])}, total=False):\n{lines}\n"


def text() -> str:
    """The whole file."""
    left = {f: {name: option.type for name, option in taken_by(f"{f}()").items()} for f in FUNCTIONS}
    above: dict[str, list[str]] = {f: [] for f in FUNCTIONS}
    records = []
    for base, functions in ALIKE.items():
        shared = {name: kind for name, kind in left[functions[0]].items() if all(left[f].get(name) == kind for f in functions)}
        records.append(typed(base, [], shared))
        for f in functions:
            above[f].append(base)
            left[f] = {name: kind for name, kind in left[f].items() if name not in shared}
    records += [typed(class_name(f), above[f], left[f]) for f in FUNCTIONS]
    return "\n".join([HEAD, *records])


if __name__ == "__main__":
    FILE.write_text(text())
