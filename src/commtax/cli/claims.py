"""``commtax claims``."""

import click

from commtax.cli.options import taking
from commtax.cli.output import Output


@click.command("claims")
@taking("claims")
def claims_command(as_json: bool) -> None:
    """What well-known texts say about the communication tax, and what the arithmetic says."""
    from commtax.claims import claims
    from commtax.report.catalog import show_claims

    Output(as_json).answer(lambda every: {"schema": "commtax.claims/1", "claims": every}, show_claims, claims())
