"""The command line's frame: which verbs there are, and how a mistake becomes one line and an exit code."""

import io
import os
import sys
from importlib import import_module
from typing import TextIO

import click

from commtax import __version__
from commtax.spelling import escape_controls, normalise
from commtax.statement import Refusal

BAD_INPUT, FAULT = 2, 70
LONGEST = 1_000  # signs of an error's line
VERBS = (
    *("audit", "bill", "calibrate", "catalog", "compare", "expect", "fit"),
    *("pipeline", "plan", "profile", "simulate", "web", "worth"),
)
"""Each verb is a file of its name, with its command in it."""
LABORATORY = ("claims", "catalog constants", "measure", "validate")
"""Commands of the laboratory, which is a package of its own."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="commtax")
@click.option("--debug", is_flag=True, expose_value=False, help="Anywhere on the line: show where an error came from.")
def app() -> None:
    """What every collective of a distributed LLM costs, and what fits: arithmetic you can check.

    Exit codes: 0 an answer, 1 the answer is no, 2 bad input, 3 no verdict (audit or
    calibrate --check has nothing measured to judge by, a live rank died, or expect has only an assumed
    range), 70 a fault of commtax itself.
    """


def commands(arguments: list[str]) -> click.Group:
    """All commands that this line may want: the one it names, or all for the list of them."""
    first = arguments[0] if arguments else ""
    for name in [first] if first in VERBS else VERBS:
        if name not in app.commands:
            app.add_command(getattr(import_module(f"commtax.cli.{name}"), f"{name}_command"), name)
    if first not in VERBS or any(name.startswith(f"{first} ") for name in LABORATORY):
        add_laboratory(arguments)
    return app


def add_laboratory(arguments: list[str]) -> None:
    """The commands that the laboratory brings along; one that is not there is refused by name. Two words of one become one."""
    from importlib.metadata import entry_points

    found = {entry.name: entry for entry in entry_points(group="commtax.commands")}
    asked = f"{' '.join(arguments[:2])} "
    meant = next((name for name in LABORATORY if asked.startswith(f"{name} ")), "")
    if meant and meant not in found:
        raise Refusal(f"{meant}: belongs to the laboratory, which is not installed (pip install 'commtax[lab]')")
    for name in [meant] if meant else found:
        if meant or " " not in name:
            app.add_command(found[name].load(), name)
    arguments[: len(meant.split())] = [meant] if meant else []


def main(argv: list[str] | None = None) -> None:
    """Run a command; a mistake becomes one line on standard error and exit code 2, a fault of ours one line and 70."""
    typed = list(sys.argv[1:] if argv is None else argv)
    end = typed.index("--") if "--" in typed else len(typed)
    debug = "--debug" in typed[:end]
    arguments = normalise([w for i, w in enumerate(typed) if w != "--debug" or i > end])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these signs still gets the answer
    try:
        commands(arguments).main(arguments, prog_name="commtax", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.ctx.get_help() if usage.ctx else "")
        sys.exit(0)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough; that is no answer of ours
        _forget(sys.stdout)
        sys.exit(141)
    except Exception as error:
        text, code = error_line(error)
        try:
            if debug:
                import traceback

                traceback.print_exc()
            click.echo(f"error: {text}", err=True)
        except OSError:  # who closed standard error still gets the exit code
            _forget(sys.stderr)
        if isinstance(error, OSError):
            _forget(sys.stdout)
        sys.exit(code)


def error_line(error: Exception) -> tuple[str, int]:
    """An exception in one line that any terminal bears, and the exit code: 2 for bad input, 70 for a fault of ours."""
    if isinstance(error, click.ClickException):
        text, code = error.format_message(), BAD_INPUT
    elif isinstance(error, OverflowError):
        text, code = f"a number is too large to compute with ({error})", BAD_INPUT
    elif isinstance(error, OSError):
        text, code = f"{error.filename or 'the output'}: {error.strerror or error}", BAD_INPUT
    elif isinstance(error, ValueError):
        text, code = str(error), BAD_INPUT
    else:
        text, code = f"internal: {type(error).__name__}: {error}; run with --debug to see where, and please report it", FAULT
    line = escape_controls(" ".join(text.split()))
    return (line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"), code


def _forget(stream: TextIO) -> None:
    """What could not be written must not be tried again when Python ends."""
    if stream in (sys.__stdout__, sys.__stderr__):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
