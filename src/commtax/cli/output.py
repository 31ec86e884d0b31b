"""Where answers go: a terminal, a JSON document or a CSV, and a page of pictures."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NoReturn, TypeVar, TypeVarTuple

import click

from commtax.files import write_text
from commtax.records import dataclass
from commtax.report.drawing import Console, Pipe
from commtax.spec import Cluster
from commtax.spelling import escape_controls

EMITTED = {"launch": "launch", "benchmark": "check the prediction", "collective": "check the collective that costs most"}
"""Titles of the commands that stand below an answer, to be copied."""
Parts = TypeVarTuple("Parts")
Shown = TypeVar("Shown")


@dataclass
class Output:
    """How an answer is told; ``remarks`` on how things were read join its own notes."""

    as_json: bool = False
    as_csv: bool = False
    remarks: list[str] = field(default_factory=list)
    emitted: dict[str, str] | None = None  # commands by what they are for, where they were asked for

    def answer(
        self,
        document: Callable[[*Parts], object],
        show: Callable[[Console, *Parts], None],
        *parts: *Parts,
        code: int = 0,
        rows: Callable[[*Parts], Sequence[Mapping[str, object]]] | None = None,
    ) -> NoReturn:
        """Tell the answer, whose parts all forms take, in the form that was asked for, and end with its exit code."""
        if self.as_json:
            self._print_json(document(*parts))
        elif self.as_csv and rows:
            from commtax.report.tables import csv_text

            click.echo(csv_text(rows(*parts)), nl=False)
            for remark in self.remarks:  # beside the table, not in it
                click.echo(remark, err=True)
        else:
            console = terminal()
            show(console, *parts)
            for name, command in (self.emitted or {}).items():
                click.echo(f"# {EMITTED[name]}")
                click.echo(command)
            if self.remarks:
                from commtax.report.tables import notes

                notes(console, self.remarks)
        sys.stdout.flush()
        sys.exit(code)

    def read(self, place: Cluster) -> Cluster:
        """The cluster; how an unusual name of it was read joins the remarks."""
        if place.remark:
            self.remarks.append(place.remark)
        return place

    def _print_json(self, document: object) -> None:
        """A document of plain values, or of records that become such."""
        from commtax.report.documents import to_object

        answer = to_object(document) | ({} if self.emitted is None else {"emit": self.emitted})
        if self.remarks:
            said = answer.get("notes")
            answer["notes"] = list(dict.fromkeys([*(said if isinstance(said, list) else []), *self.remarks]))
        text = json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False)
        click.echo(re.sub(r"[\x7f-\x9f\ud800-\udfff]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def write_page(path: str, draw: Callable[[Shown, str], object], shown: Shown, page: str = "page") -> None:
    """A page's pictures of an answer, under the command as it was typed but for this file."""
    from commtax.web.assets import offline

    typed = click.get_current_context().obj
    kept = [w for before, w in zip(["", *typed], typed, strict=False) if before != "--html" and not w.startswith("--html")]
    import shlex

    write_text(path, offline(draw(shown, shlex.join(["commtax", *kept])), page), "html")


COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS", "DATABRICKS_RUNTIME_VERSION")
"""What makes Rich take a pipe for a terminal."""


def terminal() -> Console:
    """A console that never folds tables beyond recognition: 160 columns in a pipe, at least 100 on a terminal."""
    columns = os.environ.get("COLUMNS", "160")
    if sys.stdout.isatty() or not columns.isdigit() or any(name in os.environ for name in COLOURED):
        return _rich()
    return Pipe(max(100, int(columns)), _rich)


def _rich(width: int = 0) -> Console:
    from rich import console as rich
    from rich.segment import Segment

    class Terminal(rich.Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which is an answer of ours

        def render(self, renderable: rich.RenderableType, options: rich.ConsoleOptions | None = None) -> Iterator[Segment]:
            for piece in super().render(renderable, options):
                yield piece if piece.control else Segment(escape_controls(piece.text), piece.style)

    console = Terminal(highlight=False, markup=False, emoji=False)  # names and files hold brackets and colons of their own
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = width or (160 if piped else max(100, console.width))
    return console
