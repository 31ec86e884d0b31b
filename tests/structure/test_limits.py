"""Limits of the source: how long, how wide, how untyped, and names that mean one thing. Allowances only ever shrink."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from source import EVERY, FILES, module_name, nodes, place

ALLOWED = tomllib.loads(Path(__file__).with_name("allowances.toml").read_text())
OPEN = re.compile(r"Any|(?:dict|list|tuple|Mapping|MutableMapping|Sequence)\[.*\bAny\b.*\]")
"""What says nothing of what it holds. An array of NumPy whose type of element is free is not among it."""


def test_files_stay_small():
    assert not {place(path): lines for path in EVERY if (lines := path.read_text().count("\n")) > 700}


def test_folders_stay_small():
    sizes = Counter(path.parent for path in EVERY)
    large = {place(folder / "x").removesuffix("/x"): count for folder, count in sizes.items() if count > 25}
    assert not {folder: count for folder, count in large.items() if count > ALLOWED["folders"].get(folder, 0)}


def functions():
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.end_lineno - node.lineno + 1, f"{place(path)}:{node.name}", node


def test_functions_stay_short():
    lengths = sorted(length for length, _, _ in functions())
    assert lengths[len(lengths) // 2] <= 9
    assert lengths[int(len(lengths) * 0.9)] <= 22
    assert not [(name, length) for length, name, _ in functions() if length > 50]


def test_functions_take_few_arguments():
    many = {}
    for _, name, node in functions():
        given = node.args
        count = len(given.args) + len(given.kwonlyargs) + len(given.posonlyargs)
        if count > 14:
            many[name] = count
    assert not many


def test_records_stay_small():
    large = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and place(path) != "verbs/keywords.py":  # keywords of functions are no record
                fields = sum(isinstance(x, ast.AnnAssign) for x in node.body)
                if fields > 25:
                    large[f"{place(path)}:{node.name}"] = fields
    assert not large


def open_aliases():
    """(module, name) of everything at the top of a module that is another name for Any, or for a table of it."""
    return {
        (module_name(path), node.targets[0].id)
        for path in EVERY
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and OPEN.fullmatch(ast.unparse(node.value))
    }


def open_names(path, aliases):
    own = {name for module, name in aliases if module == module_name(path)}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            near = {name for module, name in aliases if f"{module}.".startswith(f"{node.module}.")}
            own |= {alias.asname or alias.name for alias in node.names if alias.name in near}
    return {"Any", *own}


def test_untyped_lines_are_rare():
    """Lines that say Any, or an alias of it."""
    aliases, lines = open_aliases(), Counter()
    for path in EVERY:
        names = open_names(path, aliases)
        lines[place(path)] = len({node.lineno for node in nodes(path) if isinstance(node, ast.Name) and node.id in names})
    assert lines.total() <= ALLOWED["untyped_lines"], lines.most_common(20)


def test_a_class_name_means_one_thing():
    """So many classes of one name: whoever gives one of them a name of its own takes the name off the list."""
    classes = Counter(node.name for path in EVERY for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert {name: count for name, count in sorted(classes.items()) if count > 1} == ALLOWED["classes"]


def test_a_file_name_occurs_at_most_twice():
    names = Counter(path.name for path in EVERY if path.name != "__init__.py")
    assert {name: count for name, count in sorted(names.items()) if count > 2} == ALLOWED["files"]
