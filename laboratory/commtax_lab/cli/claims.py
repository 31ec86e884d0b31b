"""``commtax claims``."""

from collections.abc import Iterable

import click
from rich.table import Table

from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.report.drawing import Console
from commtax.report.tables import say
from commtax_lab.claims import DocumentClaim, claims


@click.command("claims", cls=Verb)
@add_verb_options("claims")
def claims_command(as_json: bool) -> None:
    """Recompute what well-known texts say about the communication tax."""
    Output(as_json).answer(lambda every: {"schema": "commtax.claims/1", "claims": every}, show_claims, claims())


def show_claims(console: Console, claims: Iterable[DocumentClaim]) -> None:
    """Show each claim: what the text says, what the arithmetic gives, and why they differ."""
    document = ""
    for claim in claims:
        if claim.document != document:
            document = claim.document
            say(console, f"\n{document}", style="bold")
        say(console, f"  {claim.key}", style="bold")
        for name in ("says", "arithmetic", "why"):
            hanging = Table.grid(padding=(0, 1))
            hanging.add_column(style="dim", no_wrap=True)
            hanging.add_row(f"    {name:<10}", getattr(claim, name))
            console.print(hanging)
