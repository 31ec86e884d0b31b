"""The labs' contract: tests run ``solution.py``; ``LAB_IMPL=starter`` (or a file's path) grades another implementation."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load(folder: Path, choice: str) -> ModuleType:
    """The implementation of one lab: ``starter``, ``solution``, or any Python file."""
    path = folder / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    path = path if path.is_file() else folder / choice
    if not path.is_file():
        pytest.fail(f"LAB_IMPL={choice}: no such file ({path}); use starter, solution or a file's path")
    name = f"{folder.name}_{path.stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> ModuleType:
    """The implementation under test, loaded when a test runs: a broken file fails tests, never their collection."""
    return load(request.path.parent, os.environ.get("LAB_IMPL", "solution"))
