"""English of the source: names that say what they hold, and first lines that begin with the verb. The glossary decides words."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from source import EVERY, nodes, place

ALLOWED = tomllib.loads(Path(__file__).with_name("english.toml").read_text())
BANNED = frozenset(ALLOWED["banned"])
NO_VERBS = frozenset(ALLOWED["no_verbs"])
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PROPERTIES = {"property", "cached_property", "computed_field", "fixture"}
"""What reads like a field is described like one, by a noun."""


def folder(path):
    return place(path).rpartition("/")[0] or "."


FOLDERS = sorted({folder(path) for path in EVERY})


def names(path):
    for node in nodes(path):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def is_banned(name):
    return BANNED & set(re.findall("[a-z]+", re.sub("([A-Z])", r" \1", name).lower()))


def first_lines(path):
    for node in nodes(path):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and (text := ast.get_docstring(node)):
            yield node, text.splitlines()[0]


def is_property(node):
    last = [getattr(mark, "func", mark) for mark in node.decorator_list]
    return any(getattr(mark, "attr", getattr(mark, "id", "")) in PROPERTIES for mark in last)


def begins_with_a_verb(line):
    word = line.split()[0].rstrip(",:")
    return word.isalpha() and word not in NO_VERBS and (not word.endswith("s") or word.endswith("ss"))


@pytest.mark.parametrize("where", FOLDERS)
def test_no_name_is_a_word_that_says_nothing(where):
    found = {f"{place(path)}: {name}" for path in EVERY if folder(path) == where for name in names(path) if is_banned(name)}
    assert not found - set(ALLOWED["exceptions"])


@pytest.mark.parametrize("where", FOLDERS)
def test_a_first_line_is_one_sentence_that_begins_with_a_verb(where):
    wrong = []
    for path in (path for path in EVERY if folder(path) == where):
        for node, line in first_lines(path):
            if ";" in line or (isinstance(node, FUNCTIONS) and not is_property(node) and not begins_with_a_verb(line)):
                wrong.append(f"{place(path)}:{node.lineno} {node.name}: {line}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_exception_is_a_name_that_is_given():
    given = {f"{place(path)}: {name}" for path in EVERY for name in names(path) if is_banned(name)}
    assert not set(ALLOWED["exceptions"]) - given
