"""The architecture is a test: who may import whom, and where heavy things may live."""

import ast
import re
import subprocess
import sys

from paths import ROOT
from source import FILES, module_name, nodes, place, unit, unit_of
from tables import tables

DATA = tables(__file__)


# From the top down: a row imports only rows below it, and siblings never import each other.
ROWS = [set(row) for row in DATA["rows"]]
LEVEL = {name: level for level, row in enumerate(reversed(ROWS)) for name in row}
ONLY_IN = {"torch": set(), "fastapi": {"web"}, "uvicorn": {"web"}, "starlette": {"web"}, "pydantic": {"web"}}
ONLY_IN |= {"rich": {"report", "cli", "runs.doors", "runs.report"}, "click": {"cli", "runs.doors"}, "yaml": {"launch"}}


def imports(path):
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module if node.level == 0 else "a relative import"
            if node.module in ("commtax", "commtax.runs"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif name := fetched(node):
            yield name


def fetched(node):
    """The module that ``import_module`` fetches by a name written down."""
    if isinstance(node, ast.Call) and "import_module" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
        return node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
    return ""


def is_upward(own, module):
    """Whether an import does not point down, or brings something heavy to where it may not live."""
    top, *rest = module.split(".")
    if top == "commtax" and rest and (other := unit_of(tuple(rest))) != own and other in LEVEL:
        return LEVEL[other] >= LEVEL[own]
    return module == "a relative import" or own not in ONLY_IN.get(top, {own})


def test_imports_point_down():
    placed = [path for path in FILES if unit(path) != "__init__"]
    assert not {unit(path) for path in placed} - LEVEL.keys(), "no row in the layers"
    assert not [f"{place(path)} imports {module}" for path in placed for module in imports(path) if is_upward(unit(path), module)]


def test_only_the_top_prints():
    silent = [path for path in FILES if unit(path) not in ("cli", "report", "runs.doors", "runs.report")]
    calls = [f"{place(path)}:{n.lineno}" for path in silent for n in nodes(path) if isinstance(n, ast.Call) and is_print(n)]
    assert not calls


def is_print(call):
    return getattr(call.func, "id", "") == "print"


def test_importing_commtax_needs_numpy_and_the_standard_library_only():
    code = (
        "import sys, commtax; commtax.fit('llama-3.1-8b', '8xh100-sxm');"
        "heavy = 'click', 'rich', 'msgspec', 'yaml', 'torch', 'fastapi', 'pydantic', 'huggingface_hub';"
        "bad = [m for m in heavy if m in sys.modules];"
        "assert not bad, bad"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_core_never_imports_the_laboratory():
    assert not [place(path) for path in FILES if any(module.startswith("commtax_lab") for module in imports(path))]


def imported(path, known):
    """Modules of this package that a file imports, wherever in it the import stands; ``from package import name`` is its module."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner & known
            if node.module in known and not {f"{node.module}.{alias.name}" for alias in node.names} <= known:
                yield node.module
        elif (name := fetched(node)) in known:
            yield name


def test_nothing_imports_in_a_circle():
    """Not even inside a package, inside a function, or for a type alone."""
    known = {module_name(path): path for path in FILES}
    graph = {name: set(imported(path, set(known))) - {name} for name, path in known.items()}
    graph["commtax"] = set()  # fetches names when they are asked for
    done, path = set(), []

    def walk(name):
        assert name not in path, f"circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        path.append(name)
        for other in sorted(graph[name]):
            walk(other)
        path.pop()
        done.add(name)

    for name in graph:
        walk(name)


def test_nobody_imports_the_readers_of_runs():
    """Commands and answers are found by name; whoever plans walks through none of them."""
    outside = [path for path in FILES if not unit(path).startswith("runs") and unit(path) != "__init__"]
    assert not [place(path) for path in outside if any(module.startswith("commtax.runs") for module in imports(path))]


def test_the_map_shows_the_rows():
    """The picture of docs/orientation.md, names before its explanations."""
    picture = (ROOT / "docs" / "orientation.md").read_text().split("```")[1]
    drawn = [set(re.split(r"\s{2,}", line)[0].split(", ")) for line in picture.strip().splitlines()]
    assert drawn == ROWS[1:]
