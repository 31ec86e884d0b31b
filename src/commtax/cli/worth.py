"""``commtax worth``."""

import click
from click.core import ParameterSource

from commtax.cli.options import CommandOptions, Verb, VerbSubject, add_verb_options
from commtax.cli.order import read
from commtax.cli.output import write_page
from commtax.statement import Refusal
from commtax.verbs.loads import LOADS
from commtax.verbs.worth import check_loads, worth_of


@click.command("worth", cls=Verb)
@click.argument("model", required=False)
@add_verb_options("worth")
def worth_command(model: str | None, **flags: object) -> None:
    """Weigh each technique here: overlap, fused collectives, wide experts, context parallelism, drafts."""
    from commtax.report import worths

    options, source_of = CommandOptions(flags), click.get_current_context().get_parameter_source
    of_requests = check_loads({name: value for name, value in flags.items() if source_of(name) is ParameterSource.COMMANDLINE})
    order = read(model or "", CommandOptions(options), "worth", VerbSubject.LOOP if of_requests else VerbSubject.STEP)
    if not of_requests and options.batch is None and order.launch and any(order.launch.options.get(name) for name in LOADS):
        of_requests = True  # of a benchmark that was pasted
        order = read(model or "", CommandOptions(options), "worth", VerbSubject.LOOP)
    if of_requests and order.launch and order.launch.servers.prefill_workers:
        raise Refusal("from: simulate and diff price requests of two pools; --batch N weighs one server that decodes", "from")
    weighed = worth_of(order.question, of_requests)
    if options.html:
        from commtax.web.pages import worth_page

        write_page(options.html, worth_page, weighed)
    order.output.answer(worths.worth_document, worths.show_worth, weighed)
