"""Runs the cells of docs/notebook.ipynb and keeps what they show: ``python benchmarks/documents/notebook.py``, or ``make figures``.

A notebook is plain JSON, so that no Jupyter is needed: a cell shows what it prints and the value of its last line. Prose and code
are edited in the notebook itself. The same code writes the same file, to the byte.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
SHOWN = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
"""Forms beside plain text, and the methods that make them."""
Cell = dict[str, Any]


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, scope: dict[str, object]) -> tuple[str, object]:
    """What a cell prints, and the value of its last line: None where that is no expression, or ends in a semicolon."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), scope)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if isinstance(last, ast.Expr) else None
    return printed.getvalue(), value


def outputs(printed: str, value: object, number: int) -> list[Cell]:
    """Both as a notebook keeps them."""
    kept: list[Cell] = [{"name": "stdout", "output_type": "stream", "text": lines(printed)}] if printed else []
    if value is not None:
        made = {form: getattr(value, method)() for form, method in SHOWN.items() if hasattr(value, method)}
        data = {form: lines(text) for form, text in made.items() if text} | {"text/plain": lines(repr(value))}
        kept.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return kept


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    notebook, scope = json.loads(FILE.read_text()), dict[str, object]()
    os.chdir(FILE.parent)  # as Jupyter does
    for number, cell in enumerate(code_cells(notebook), 1):
        cell["outputs"] = outputs(*run_cell("".join(cell["source"]), scope), number)
        cell["execution_count"] = number
    FILE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
