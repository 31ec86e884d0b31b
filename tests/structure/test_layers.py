"""The architecture is a test: who may import whom, and where heavy things may live."""

import ast
import re
import subprocess
import sys

from paths import ROOT
from source import FILES, module_name, nodes, place, unit

# From the top down: a row imports only rows below it, and siblings never import each other.
ROWS = [
    {"__main__"},
    {"cli"},
    {"web"},
    {"report"},
    {"planner", "audit"},
    {"calibrate"},
    {"traces", "logs", "results", "machines"},
    {"evidence"},
    {"launch"},
    {"verbs"},
    {"sim"},
    {"napkin"},
    {"cost", "catalog"},
    {"judgement"},
    {"question"},
    {"timeline", "ledger", "spelling", "thresholds"},
    {"spec"},
    {"units", "arrays", "files", "patterns", "options"},
    {"statement", "toml_text"},
    {"records", "shipped_tables", "answer", "counting", "redaction"},
]
LEVEL = {name: level for level, row in enumerate(reversed(ROWS)) for name in row}
ONLY_IN = {
    "torch": set(),
    "fastapi": {"web"},
    "uvicorn": {"web"},
    "starlette": {"web"},
    "pydantic": {"web"},
    "rich": {"report", "cli"},
    "click": {"cli"},
    "yaml": {"launch"},
}


def imports(path):
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module if node.level == 0 else "a relative import"
            if node.module == "commtax":
                yield from (f"commtax.{alias.name}" for alias in node.names)


def is_upward(own, module):
    """Whether an import does not point down, or brings something heavy to where it may not live."""
    top, *rest = module.split(".")
    if top == "commtax" and rest and rest[0] != own and rest[0] in LEVEL:
        return LEVEL[rest[0]] >= LEVEL[own]
    return module == "a relative import" or own not in ONLY_IN.get(top, {own})


def test_imports_point_down():
    placed = [path for path in FILES if unit(path) != "__init__"]
    assert not {unit(path) for path in placed} - LEVEL.keys(), "no row in the layers"
    assert not [f"{place(path)} imports {module}" for path in placed for module in imports(path) if is_upward(unit(path), module)]


def test_only_the_top_prints():
    silent = [path for path in FILES if unit(path) not in ("cli", "report")]
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


def test_the_map_shows_the_rows():
    """The picture of docs/orientation.md, names before its explanations."""
    picture = (ROOT / "docs" / "orientation.md").read_text().split("```")[1]
    drawn = [set(re.split(r"\s{2,}", line)[0].split(", ")) for line in picture.strip().splitlines()]
    assert drawn == ROWS[1:]
