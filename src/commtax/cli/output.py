"""Where answers go: a terminal, or a JSON document."""

from __future__ import annotations

import json
import os
from typing import Any

import click


def terminal() -> Any:
    """A console that never folds tables beyond recognition: 160 columns in a pipe, at least 100 on a terminal."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which is an answer of ours

    console = Terminal(highlight=False)
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = 160 if piped else max(100, console.width)
    return console


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
