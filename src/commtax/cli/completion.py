"""``commtax completion``: the script that a shell loads."""

from pathlib import Path

import click

from commtax.cli.help import Verb
from commtax.statement import Refusal

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Verb)
@click.argument("shell")
def completion_command(shell: str) -> None:
    """Print what a shell has to load for the Tab key to complete commtax."""
    if shell not in SHELLS:
        raise Refusal.of(f"one of {', '.join(SHELLS)}", SHELLS, shell=shell)
    click.echo(Path(__file__).with_name(f"completion.{shell}").read_text(encoding="utf-8"), nl=False)
