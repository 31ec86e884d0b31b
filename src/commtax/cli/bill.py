"""``commtax bill``."""

import click

from commtax.cli.options import Verb, VerbSubject
from commtax.cli.order import Order, refuse, verb_command
from commtax.cli.output import write_page
from commtax.options import taken_by
from commtax.question import Question
from commtax.records import replace
from commtax.statement import Note, Refusal
from commtax.units import parse_tokens
from commtax.verbs.billing import price, question_traffic
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.fit_advice import default_limits_notes
from commtax.verbs.settling import settle

TIMED = [name for name, option in taken_by("bill").items() if option.part == "what_if" and name not in taken_by("traffic()")]
"""Options that change seconds alone."""


@click.command("bill", cls=Verb)
@verb_command("bill", VerbSubject.STEP)
def bill_command(order: Order) -> None:
    """What one step costs: every kernel and collective, what binds, and what would change it."""
    from commtax.report import bills

    given = order.given
    tokens = parse_tokens(given.tokens, "tokens") if given.tokens else 0.0
    measured = given.measured_mfu
    if measured is not None and not 0 < measured <= 1:
        raise Refusal(f"measured_mfu={measured:g}: above 0 and at most 1 (write 40% or 0.4)", "measured_mfu")
    if given.exact:
        _show_exact(order)
    asked = settle(order.question)
    priced = price(asked)
    explained = ExplainedStep(replace(priced, notes=(*_own_length(order, asked), *priced.notes)))
    if given.emit:
        order.output.emitted = order.commands(explained.bill)
    if given.html:
        from commtax.web.pages import bill_page

        write_page(given.html, bill_page, explained)
    if given.why:
        from commtax.report.bills import show_why, why_document
        from commtax.verbs.why import why

        order.output.answer(why_document, show_why, why(explained.bill, given.why))
    order.output.answer(bills.bill_document, bills.show_bill, explained, tokens, measured)


def _own_length(order: Order, q: Question) -> list[Note]:
    """That servers would not start with the model's own length: this one, or those for prompts that were pasted beside it."""
    servers = order.launch.servers if order.launch else None
    if servers and servers.prefill_workers and q.phase != "prefill":
        q = order.question.but(disaggregated=True, prefill_tp=servers.prefill_tp, prefill_dp=servers.prefill_dp, replicas=1)
    return default_limits_notes(q, int(q.context) + 1)


def _show_exact(order: Order) -> None:
    from commtax.report.exact_bytes import show_traffic, traffic_document

    given, q = order.given, order.question
    if q.profile or given.html:
        raise Refusal("profile: holds seconds, and --exact has none" if q.profile else "html: draws seconds, and --exact has none")
    refuse(given, ["why"], "explains seconds, and --exact has none")
    refuse(given, ["emit"], "comes with a priced step; leave --exact out")
    refuse(given, ("tokens", "measured_mfu"), "needs seconds, and --exact has none")
    refuse(given, [*TIMED, *["eager"] * q.trains], "changes seconds, and --exact has none")
    order.output.answer(traffic_document, show_traffic, question_traffic(settle(q)))
