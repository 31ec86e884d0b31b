"""Where answers go: a terminal, or a JSON document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import click

from commtax.spec import Cluster
from commtax.spelling import visible


def terminal() -> Any:
    """A console that never folds tables beyond recognition: 160 columns in a pipe, at least 100 on a terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which is an answer of ours

        def render(self, *args: Any, **words: Any) -> Iterator[Any]:
            for piece in super().render(*args, **words):
                yield piece if piece.control else Segment(visible(piece.text), piece.style)

    console = Terminal(highlight=False, markup=False, emoji=False)  # names and files hold brackets and colons of their own
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = 160 if piped else max(100, console.width)
    return console


def remarks() -> list[str]:
    """Remarks of the running command on what was pasted; they join the answer's own."""
    context = click.get_current_context(silent=True)
    joined: list[str] = context.meta.setdefault("commtax.remarks", []) if context else []
    return joined


def carried() -> dict[str, Any]:
    """Limits and devices of what was pasted, for a command that is written again (``--emit``)."""
    context = click.get_current_context(silent=True)
    limits: dict[str, Any] = context.meta.setdefault("commtax.carried", {}) if context else {}
    return limits


def how_read(place: Cluster) -> Cluster:
    """The cluster; how an unusual name of it was read joins the remarks."""
    if place.remark:
        remarks().append(place.remark)
    return place


def show_remarks() -> None:
    """Below an answer that has no notes of its own."""
    if remarks():
        from commtax.report.tables import notes

        notes(terminal(), remarks())


def print_json(document: object, **more: object) -> None:
    """A document, and what else the command tells in it."""
    from commtax.report.documents import plain

    tree = plain(document) | plain(more)
    if remarks():
        tree["notes"] = list(dict.fromkeys([*tree.get("notes", []), *remarks()]))
    text = json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(re.sub(r"[\x7f-\x9f\ud800-\udfff]", lambda sign: f"\\u{ord(sign[0]):04x}", text))
