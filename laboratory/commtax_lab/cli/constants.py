"""``commtax catalog constants``."""

import click

from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.statement import Refusal
from commtax_lab.census import census
from commtax_lab.report.census import census_document, show_census


@click.command("catalog constants", cls=Verb)
@click.argument("part", required=False, default="")
@add_verb_options("constants")
def constants_command(part: str, as_json: bool) -> None:
    """Every number that was fitted, or those of the files whose name has PART in it."""
    numbers = census()
    if part and not any(part in number.file for number in numbers):
        files = ", ".join(dict.fromkeys(number.file for number in numbers))
        raise Refusal(f"constants '{part}': no file with fitted numbers has this in its name; there are {files}", "name")
    Output(as_json).answer(census_document, show_census, numbers, part)
