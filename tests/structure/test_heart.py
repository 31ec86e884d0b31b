"""The heart is readable in an evening: docs/heart.md names every file that prices a settled dense step, and they are few."""

import ast
import json
import re
import subprocess
import sys

from paths import ROOT
from tables import tables

DATA = tables(__file__)
SOURCE = ROOT / "src" / "commtax"
MOST_LINES, MOST_MODULES = 6_000, 70
NAMED = sorted(set(re.findall(r"^\* `([\w/]+\.py)`", (ROOT / "docs" / "heart.md").read_text(), re.M)))


def priced():
    """The modules that pricing imports, and the files of the package that a settled step runs, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", DATA["priced"]], capture_output=True, text=True, check=True)
    imported, ran = json.loads(done.stdout)
    return imported, {name.removeprefix(f"{SOURCE}/") for name in ran if name.startswith(str(SOURCE))}


def test_a_dense_step_runs_nothing_else():
    imported, ran = priced()
    assert not ran - set(NAMED)
    assert len(imported) <= MOST_MODULES, sorted(imported)


def test_the_files_are_few():
    assert sum((SOURCE / name).read_text().count("\n") for name in NAMED) <= MOST_LINES


def test_each_file_says_what_may_be_changed_there():
    opened = {name: ast.get_docstring(ast.parse((SOURCE / name).read_text())) or "" for name in NAMED}
    assert not [name for name, words in opened.items() if not re.search(r"\bChange\b|\bAdd\b", words)]
