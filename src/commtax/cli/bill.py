"""``commtax bill``."""

import click

from commtax.cli.options import Verb, VerbSubject
from commtax.cli.order import Order, refuse, verb_command
from commtax.cli.output import write_page
from commtax.options import taken_by
from commtax.question import Question
from commtax.records import replace
from commtax.statement import Refusal
from commtax.units import parse_tokens
from commtax.verbs.billing import price, question_traffic
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.fit_advice import default_limits_notes
from commtax.verbs.settling import settle

# Options that change seconds alone
TIMED = [name for name, option in taken_by("bill").items() if option.part == "what_if" and name not in taken_by("traffic()")]


@click.command("bill", cls=Verb)
@verb_command("bill", VerbSubject.STEP)
def bill_command(order: Order) -> None:
    """Price one step: every kernel and collective, what binds, and what would change it."""
    from commtax.report import bills

    options = order.options
    tokens, measured = parse_tokens(options.tokens, "tokens") if options.tokens else 0.0, options.measured_mfu
    if measured is not None and not 0 < measured <= 1:
        raise Refusal(f"measured_mfu={measured:g}: above 0 and at most 1 (write 40% or 0.4)", "measured_mfu")
    if options.exact:
        _show_exact(order)
    priced = price(settle(order.question))
    q: Question = priced.question
    servers = order.launch.servers if order.launch else None
    if servers and servers.prefill_workers and q.phase != "prefill":  # whose lengths the servers for prompts need too
        q = order.question.but(disaggregated=True, prefill_tp=servers.prefill_tp, prefill_dp=servers.prefill_dp, replicas=1)
    starts = default_limits_notes(q, int(q.context) + 1)  # whether servers would start with the model's own length
    explained = ExplainedStep(replace(priced, notes=(*starts, *priced.notes)))
    if options.emit:
        order.output.emitted = order.commands(explained.bill)
    if options.html:
        from commtax.web.pages import bill_page

        write_page(options.html, bill_page, explained)
    if options.why:
        from commtax.verbs.why import why

        order.output.answer(bills.why_document, bills.show_why, why(explained.bill, options.why))
    order.output.answer(bills.bill_document, bills.show_bill, explained, tokens, measured)


def _show_exact(order: Order) -> None:
    from commtax.report.exact_bytes import show_traffic, traffic_document

    options, q = order.options, order.question
    if q.profile or options.html:
        raise Refusal("profile: holds seconds, and --exact has none" if q.profile else "html: draws seconds, and --exact has none")
    refuse(options, ["why"], "explains seconds, and --exact has none")
    refuse(options, ["emit"], "comes with a priced step; leave --exact out")
    refuse(options, ("tokens", "measured_mfu"), "needs seconds, and --exact has none")
    refuse(options, [*TIMED, *["eager"] * q.trains], "changes seconds, and --exact has none")
    order.output.answer(traffic_document, show_traffic, question_traffic(settle(q)))
