"""``commtax worth``."""

import click
from click.core import ParameterSource

from commtax.cli.options import GivenOptions, Verb, VerbSubject, add_verb_options
from commtax.cli.order import read
from commtax.cli.output import write_page
from commtax.statement import Refusal
from commtax.verbs.loads import LOADS
from commtax.verbs.worth import check_loads, worth_of


@click.command("worth", cls=Verb)
@click.argument("model", required=False)
@add_verb_options("worth")
def worth_command(model: str | None, **options: object) -> None:
    """What each technique is worth here: overlap, fused collectives, wide experts, context parallelism, drafts."""
    from commtax.report import worths

    given = GivenOptions(options)
    said = click.get_current_context().get_parameter_source
    of_requests = check_loads({name: value for name, value in options.items() if said(name) is ParameterSource.COMMANDLINE})
    order = read(model or "", GivenOptions(given), "worth", VerbSubject.LOOP if of_requests else VerbSubject.STEP)
    if not of_requests and given.batch is None and order.launch and any(order.launch.options.get(name) for name in LOADS):
        of_requests = True  # of a benchmark that was pasted
        order = read(model or "", GivenOptions(given), "worth", VerbSubject.LOOP)
    if of_requests and order.launch and order.launch.servers.prefill_workers:
        raise Refusal("from: simulate and diff price requests of two pools; --batch N weighs one server that decodes", "from")
    weighed = worth_of(order.question, of_requests)
    if given.html:
        from commtax.web.pages import worth_page

        write_page(given.html, worth_page, weighed)
    order.output.answer(worths.worth_document, worths.show_worth, weighed)
