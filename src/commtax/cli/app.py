"""The command line's frame: which verbs there are, and how a mistake becomes one line and an exit code."""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, TextIO
from unicodedata import normalize

import click

from commtax import __version__
from commtax.cli.help import HelpContext, helps, write_overview, write_start
from commtax.shipped_tables import table
from commtax.spelling import escape_controls, normalise
from commtax.statement import Refusal

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BAD_INPUT, FAULT = 2, 70
LONGEST = 1_000  # signs of an error's line
VERBS: dict[str, str] = table("cli/commands.toml")  # each verb and its module, with its command in it
LABORATORY = ("claims", "catalog constants", "measure", "validate")  # commands of the laboratory, which is a package of its own
READABLE = "commtax-readable"  # the name of the error handler of encoders


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Write signs that a terminal's encoding lacks as ASCII that reads alike, or as a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs: dict[str, str] = table("cli/signs.toml")["signs"]
    alike = {sign: text for text, some in signs.items() for sign in some}
    lost = error.object[error.start : error.end]
    return "".join(alike.get(sign) or normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?" for sign in lost), error.end


codecs.register_error(READABLE, _replace_unencodable)


class Commands(click.Group):
    """All verbs, each imported when it is named."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted({*VERBS, *(name for name in _laboratory() if " " not in name)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.add_command(getattr(import_module(f"commtax.{VERBS[cmd_name]}"), f"{cmd_name}_command"), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_overview(formatter, self.list_commands(ctx))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="commtax")
@click.option("--debug", is_flag=True, expose_value=False, help="Anywhere on the line: show where an error came from.")
def app() -> None:
    """Price every collective of a distributed LLM and say what fits: arithmetic you can check."""


def commands(arguments: list[str]) -> click.Group:
    """Return the command line with the command that this line names, or with all where it names none."""
    context = click.Context(app)
    for name in arguments[:1] or VERBS:
        app.get_command(context, name)
    if not arguments or any(name.split()[0] == arguments[0] for name in LABORATORY):
        add_laboratory(arguments)
    return app


def _laboratory() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="commtax.commands")}


def add_laboratory(arguments: list[str]) -> None:
    """Add the commands that the laboratory brings along, or refuse one that is not installed. A name of two words becomes one."""
    present, typed = _laboratory(), f"{' '.join(arguments[:2])} "
    meant = next((name for name in LABORATORY if typed.startswith(f"{name} ")), "")
    if meant and meant not in present:
        raise Refusal(f"{meant}: belongs to the laboratory, which is not installed (pip install 'commtax[lab]')")
    for name in [meant] if meant else [] if arguments else present:
        if meant or " " not in name:
            app.add_command(present[name].load(), name)
    arguments[: len(meant.split())] = [meant] if meant else []


def start_page() -> str:
    """Return what ``commtax`` alone prints: what it is for, and the questions that people bring."""
    formatter = HelpContext(app, **app.context_settings).make_formatter()
    write_start(formatter)
    return formatter.getvalue().rstrip("\n")


def main(argv: list[str] | None = None) -> None:
    """Run a command. A mistake becomes one line on standard error and exit code 2, a fault of ours one line and 70."""
    typed = list(sys.argv[1:] if argv is None else argv)
    end = typed.index("--") if "--" in typed else len(typed)
    debug = "--debug" in typed[:end]
    arguments = normalise([w for i, w in enumerate(typed) if w != "--debug" or i > end])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=READABLE)  # a terminal without these signs still gets the answer
    try:
        if not arguments:
            return click.echo(start_page())
        frame = commands(arguments)
        with _show_progress(arguments[0]):
            frame.main(arguments, prog_name="commtax", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as usage:  # of a command that has commands of its own
        click.echo(usage.ctx.get_help() if usage.ctx else "")
        sys.exit(0)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        exec("")  # Python remembers an interrupt inside exec of a text, and would end by the signal instead of the code
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough; that is no answer of ours
        _forget(sys.stdout)
        sys.exit(141)
    except Exception as error:
        text, code = error_line(error, arguments)
        try:
            if debug:
                import traceback

                traceback.print_exc()
            click.echo(f"error: {text}", file=sys.stderr)
        except OSError:  # who closed standard error still gets the exit code
            _forget(sys.stderr)
        if isinstance(error, OSError):
            _forget(sys.stdout)
        sys.exit(code)


def _show_progress(verb: str) -> AbstractContextManager[None]:
    if not sys.stderr.isatty() and "COMMTAX_PROGRESS" not in os.environ:
        return nullcontext()
    from commtax.cli.progress import watched

    return watched(helps()["command"].get(verb, {}).get("works", ""))


def error_line(error: Exception, arguments: Sequence[str] = ()) -> tuple[str, int]:
    """Return an exception as one line that any terminal can show, and its exit code: 2 for bad input, 70 for a fault of ours."""
    if isinstance(error, click.UsageError):
        from commtax.cli.mistakes import what_to_type

        text, code = what_to_type(error, list(arguments)) or error.format_message(), BAD_INPUT
    elif isinstance(error, click.ClickException):
        text, code = error.format_message(), BAD_INPUT
    elif isinstance(error, OverflowError):
        text, code = f"a number is too large to compute with ({error})", BAD_INPUT
    elif isinstance(error, OSError):
        text, code = f"{error.filename or 'the output'}: {error.strerror or error}", BAD_INPUT
    elif isinstance(error, ValueError):
        from commtax.cli.mistakes import of_value

        text, code = of_value(error, list(arguments)) or str(error), BAD_INPUT
    else:
        text, code = f"internal: {type(error).__name__}: {error}; run with --debug to see where, and please report it", FAULT
    line = escape_controls(" ".join(text.split()))
    return (line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"), code


def _forget(stream: TextIO) -> None:
    """Lead a stream that cannot be written nowhere, so that Python does not try again at its end."""
    if stream in (sys.__stdout__, sys.__stderr__):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
