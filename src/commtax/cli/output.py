"""Where answers go: a terminal, a JSON document or a CSV, and a page of pictures."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NoReturn, TypeVar, TypeVarTuple

import click

from commtax import counting
from commtax.cli.options import DETAILS
from commtax.files import write_text
from commtax.records import dataclass
from commtax.redaction import redact
from commtax.report.drawing import COMMAND, Console, Pipe, Telling
from commtax.spec import Cluster
from commtax.spelling import escape_controls
from commtax.statement import STRANGE, Note

EMITTED = {  # titles of the commands that stand below an answer, to be copied
    "launch": "launch",
    "router": "values of the router, as router.yaml",
    "install": "install, with what is under launch as servers.yaml",
    "benchmark": "check the prediction",
    "collective": "check the collective that costs most",
}
Parts = TypeVarTuple("Parts")
Shown = TypeVar("Shown")


@dataclass
class Output:
    """The form of an answer. Its ``remarks`` on how the question was read join the answer's notes."""

    as_json: bool = False
    as_csv: bool = False
    remarks: list[str] = field(default_factory=list)
    emitted: dict[str, str] | None = None  # commands by what they are for, where they were asked for
    emit_file: str = ""  # where the first of them goes
    leading: Sequence[str] = (STRANGE,)  # codes of remarks that the answer begins with
    aside: str = ""  # said beside the answer to those who want details: it differs from run to run

    def answer(
        self,
        document: Callable[[*Parts], object],
        show: Callable[[Console, *Parts], None],
        *parts: *Parts,
        code: int = 0,
        rows: Callable[[*Parts], Sequence[Mapping[str, object]]] | None = None,
    ) -> NoReturn:
        """Tell the answer, whose parts all forms take, in the form that was asked for, and end with its exit code."""
        counting.finish()
        if self.as_json:
            self._print_json(document(*parts))
        elif self.as_csv and rows:
            from commtax.report.tables import csv_text

            click.echo(csv_text(rows(*parts)), nl=False)
            for remark in self.remarks:  # beside the table, not in it
                click.echo(redact(remark), err=True)
        else:
            from commtax.report.tables import notes, say

            console = terminal()
            leading = [remark for remark in self.remarks if isinstance(remark, Note) and remark.code in self.leading]
            for remark in leading:
                say(console, f"{remark}.", "bold red" if remark.code == STRANGE else "")
            show(console, *parts)
            for name, command in (self.emitted or {}).items():
                to_file = self.emit_file if name == "launch" else ""
                if to_file:
                    write_text(to_file, command + "\n", "emit_file")
                click.echo(f"# {EMITTED[name]}" + (f": written to {to_file}" if to_file else f"\n{command}"))
            if below := [remark for remark in self.remarks if remark not in leading]:
                notes(console, below)
            if self.aside and _telling().details:
                click.echo(self.aside, err=True)
        sys.stdout.flush()
        sys.exit(code)

    def _print_json(self, document: object) -> None:
        from commtax.report.documents import add_notes, to_object

        answer = to_object(document) | ({} if self.emitted is None else {"emit": self.emitted})
        add_notes(answer, list(map(redact, self.remarks)))
        text = json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False)
        click.echo(re.sub(r"[\x7f-\x9f\ud800-\udfff]", lambda sign: f"\\u{ord(sign[0]):04x}", text))

    def read(self, place: Cluster) -> Cluster:
        """Return the cluster, after a remark on how an unusual name of it was read."""
        if place.remark:
            self.remarks.append(place.remark)
        return place


def write_page(path: str, draw: Callable[[Shown, str], object], shown: Shown, page: str = "page") -> None:
    """Write a page's pictures of an answer, under the command as it was typed but for this file."""
    import shlex

    from commtax.web.assets import offline

    typed = click.get_current_context().obj
    kept = [w for before, w in zip(["", *typed], typed, strict=False) if before != "--html" and not w.startswith("--html")]
    write_text(path, offline(draw(shown, shlex.join(["commtax", *kept])), page), "html")


# What makes Rich take a pipe for a terminal
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS", "DATABRICKS_RUNTIME_VERSION")
LEAST, PIPED = 40, 160  # columns


def terminal() -> Console:
    """Return the console of answers: as wide as the terminal, at least 40 columns, and 160 in a pipe without COLUMNS."""
    columns = os.environ.get("COLUMNS", str(PIPED))
    if sys.stdout.isatty() or not columns.isdigit() or any(name in os.environ for name in COLOURED):
        return _rich()
    return Pipe(max(LEAST, int(columns)), _rich, _telling(), folds="COLUMNS" in os.environ)


def _telling() -> Telling:
    context = click.get_current_context(silent=True)
    return replace(COMMAND, details=bool(context and context.meta.get(DETAILS)))


def _rich(width: int = 0) -> Console:
    from rich import console as rich
    from rich.segment import Segment

    class Terminal(rich.Console):
        telling = _telling()

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which is an answer of ours

        def render(self, renderable: rich.RenderableType, options: rich.ConsoleOptions | None = None) -> Iterator[Segment]:
            for piece in super().render(renderable, options):
                yield piece if piece.control else Segment(escape_controls(piece.text), piece.style)

    console = Terminal(highlight=False, markup=False, emoji=False)  # names and files hold brackets and colons of their own
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = width or (PIPED if piped else max(LEAST, console.width))
    return console
