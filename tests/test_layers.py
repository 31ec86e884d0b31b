"""The architecture is a test: who may import whom, and where heavy things may live."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "commtax"

# From the top down: a row imports only rows below it, and siblings never import each other.
ROWS = [
    {"__main__"},
    {"cli"},
    {"web"},
    {"measure"},
    {"report"},
    {"planner", "audit", "calibrate", "validate", "emit"},
    {"sim", "readers"},
    {"claims"},
    {"api"},
    {"napkin"},
    {"cost", "catalog"},
    {"timeline", "ledger"},
    {"spec"},
    {"units", "spelling", "arrays", "files", "patterns"},
    {"statement"},
]
LEVEL = {name: level for level, row in enumerate(reversed(ROWS)) for name in row}
ONLY_IN = {
    "torch": {"measure"},
    "fastapi": {"web"},
    "uvicorn": {"web"},
    "starlette": {"web"},
    "pydantic": {"web"},
    "rich": {"report", "cli"},
    "click": {"cli"},
}
FILES = sorted(SOURCE.rglob("*.py"))


def unit(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
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
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
    assert not calls or unit(path) in ("cli", "report")


def test_importing_commtax_needs_numpy_and_the_standard_library_only():
    code = (
        "import sys, commtax; commtax.fit('llama-3.1-8b', '8xh100-sxm');"
        "bad = [m for m in ('click', 'rich', 'torch', 'fastapi', 'pydantic', 'huggingface_hub') if m in sys.modules];"
        "assert not bad, bad"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_stay_small():
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := p.read_text().count("\n")) > 500}
    assert not long
