"""``commtax worth``."""

import click

from commtax.cli.options import GivenOptions, Verb, VerbSubject, add_verb_options
from commtax.cli.order import read
from commtax.cli.output import write_page
from commtax.verbs.worth import worth_of


@click.command("worth", cls=Verb)
@click.argument("model", required=False)
@add_verb_options("worth")
def worth_command(model: str | None, **options: object) -> None:
    """What each technique is worth here: overlap, fused collectives, wide experts, context parallelism, drafts.

    Every technique that the engine has, on this step or on these requests: gain, range, where it flips, and its flag.

    commtax worth deepseek-v3 --cluster 8xh200-sxm -tp 8 --batch 32
    """
    from commtax.report import worths

    given = GivenOptions(options)
    of_requests = given.concurrency is not None or given.request_rate is not None
    order = read(model or "", given, "worth", VerbSubject.LOOP if of_requests else VerbSubject.STEP)
    weighed = worth_of(order.question, of_requests)
    if given.html:
        from commtax.web.pages import worth_page

        write_page(given.html, worth_page, weighed)
    order.output.answer(worths.worth_document, worths.show_worth, weighed)
