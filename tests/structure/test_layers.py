"""The architecture is a test: who may import whom, and where heavy things may live."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from paths import SOURCE

# From the top down: a row imports only rows below it, and siblings never import each other.
ROWS = [
    {"__main__"},
    {"cli"},
    {"web"},
    {"study"},
    {"measure"},
    {"report"},
    {"planner", "audit", "calibrate", "validate", "emit"},
    {"readers"},
    {"claims"},
    {"verbs"},
    {"sim"},
    {"napkin"},
    {"cost", "catalog"},
    {"question"},
    {"timeline", "ledger", "spelling"},
    {"spec"},
    {"units", "arrays", "files", "patterns"},
    {"statement"},
    {"records", "kept"},
]
LEVEL = {name: level for level, row in enumerate(reversed(ROWS)) for name in row}
ONLY_IN = {
    "torch": {"measure", "study"},
    "fastapi": {"web"},
    "uvicorn": {"web"},
    "starlette": {"web"},
    "pydantic": {"web"},
    "rich": {"report", "cli"},
    "click": {"cli"},
    "yaml": {"readers"},
}
FILES = sorted(SOURCE.rglob("*.py"))


@cache
def nodes(path):
    """All that a file holds, read once for every rule."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def unit(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path):
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            assert node.module is not None
            yield node.module
            if node.module == "commtax":
                yield from (f"commtax.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path):
    own = unit(path)
    if own == "__init__":
        return
    assert own in LEVEL, f"{own} has no row in the layers"
    for module in imports(path):
        top, *rest = module.split(".")
        if top in ONLY_IN:
            assert own in ONLY_IN[top], f"{path.name} imports {top}"
        if top != "commtax" or not rest or rest[0] == own or rest[0] not in LEVEL:
            continue
        assert LEVEL[rest[0]] < LEVEL[own], f"{own} imports {rest[0]}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_top_prints(path):
    calls = [n for n in nodes(path) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
    assert not calls or unit(path) in ("cli", "report")


def test_importing_commtax_needs_numpy_and_the_standard_library_only():
    code = (
        "import sys, commtax; commtax.fit('llama-3.1-8b', '8xh100-sxm');"
        "heavy = 'click', 'rich', 'msgspec', 'yaml', 'torch', 'fastapi', 'pydantic', 'huggingface_hub';"
        "bad = [m for m in heavy if m in sys.modules];"
        "assert not bad, bad"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_stay_small():
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := p.read_text().count("\n")) > 450}
    assert not long


def modules():
    """Every module by its dotted name."""
    names = {}
    for path in FILES:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


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
    known = modules()
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


def functions():
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.end_lineno - node.lineno + 1, f"{path.relative_to(SOURCE)}:{node.name}", node


def test_functions_stay_short():
    lengths = sorted(length for length, _, _ in functions())
    assert lengths[len(lengths) // 2] <= 7
    assert lengths[int(len(lengths) * 0.9)] <= 20
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
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(x, ast.AnnAssign) for x in node.body)
                if fields > 25:
                    large[f"{path.relative_to(SOURCE)}:{node.name}"] = fields
    assert not large


def test_tables_of_anything_are_rare():
    free = re.compile(r"dict\[str, Any\]|Mapping\[str, Any\]|\*\*\w+: Any")
    lines = [f"{p.relative_to(SOURCE)}: {line.strip()}" for p in FILES for line in p.read_text().splitlines() if free.search(line)]
    assert len(lines) <= 60, "\n".join(lines)


def test_an_axis_stands_in_few_files():
    """What a new parallel axis would touch: everything else loops over the table of axes."""
    named = [str(p.relative_to(SOURCE)) for p in FILES if re.search(r"\bcp\b", p.read_text())]
    assert len(named) <= 12, named
