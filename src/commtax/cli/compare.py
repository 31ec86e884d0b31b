"""``commtax compare``."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from commtax.cli.options import Verb, VerbSubject
from commtax.cli.order import Order, refuse, verb_command
from commtax.cli.pasting import placement_by_topology
from commtax.judgement.engine_limits import LENGTH
from commtax.question import OUTPUT_LEN
from commtax.spec import SIZES, Plan
from commtax.statement import Refusal
from commtax.units import parse_count
from commtax.verbs.comparing import compare_question, compared_plans, replicas_in


@click.command("compare", cls=Verb)
@verb_command("compare", VerbSubject.STEPS)
def compare_command(order: Order) -> None:
    """Compare a step over a range of batches, lengths, degrees or links, or plans side by side, and where their order flips."""
    options = order.options
    order.output.read(order.question.cluster)
    if bool(options.plans) == bool(options.over):
        raise Refusal.about(over="give --over AXIS=VALUES or --plans tp1,tp2 …, one of them")
    if options.over:
        refuse(options, ("links", "batches"), "belongs to --plans; with --over write it as an axis")
        refuse(options, ("clients", "answer_len"), "belongs to --plans")
    refuse(options, ("tokens", "measured_mfu"), "belongs to bill, not to compare")
    if not (options.clients or order.launch):  # a pasted command says it of its server
        refuse(options, (LENGTH,), "belongs to whole requests of --plans; give their clients with --concurrency")
    if options.plans:
        _compare_plans(order)
    from commtax.report import comparisons

    comparison = compare_question(order.question, list(options.over), global_batch=options.global_batch)
    if all(row.bill is None for row in comparison.rows):
        raise Refusal.about(over=f"nothing on this range is legal; first: {comparison.rows[0].refused}")
    if options.plot:
        comparisons.plot_comparison(comparison, Path(options.plot))
    document, rows = comparisons.comparison_document, comparisons.comparison_rows
    order.output.answer(document, comparisons.show_comparison, comparison, rows=rows)


def _compare_plans(order: Order) -> NoReturn:
    from commtax.report import comparisons

    options, q = order.options, order.question
    refuse(options, SIZES, "the plans say it; leave it out beside --plans")
    if options.global_batch and options.batches:
        raise Refusal.about(batches="give them or global_batch, not both")
    usual = int(options.global_batch or 1)
    if not options.global_batch and options.batch is not None:  # which counts the sequences of one replica, in every verb
        copies = {name: replicas_in(name) for name in options.plans.split(",")}
        usual = int(options.batch) * next(iter(copies.values()))
        if len(set(copies.values())) > 1:
            have = ", ".join(f"{name} {count}" for name, count in copies.items())
            rule = f"it counts sequences per replica, and the plans' replicas differ ({have}); say how many all of them share"
            raise Refusal(f"batch={int(options.batch)}: {rule}, such as --batches {int(options.batch)}", "batch")
    batches = [parse_count(b, "batches") for b in options.batches.split(",")] if options.batches else [usual]
    remarks: list[str] = []
    placed = placement_by_topology(options.topo, q.cluster, remarks) if options.topo else None
    where = (lambda sizes: placed(Plan(**sizes)).cluster) if placed else None
    links, clients = [name for name in options.links.split(",") if name], options.clients or []
    if options.answer_len and not clients:
        raise Refusal.about(output_len="belongs to whole requests; give their clients with --concurrency")
    q = q.but(input_len=int(q.context), output_len=options.answer_len or OUTPUT_LEN)
    table = compared_plans(q, options.plans.split(","), links, batches, where, clients)
    if all(row.bill is None for row in table.rows):
        raise Refusal.about(plans=f"none of them is legal; first: {table.rows[0].refused}")
    table = replace(table, notes=tuple(dict.fromkeys(remarks)))
    if options.plot:
        comparisons.plot_plans(table, Path(options.plot))
    order.output.answer(comparisons.plans_document, comparisons.show_plans, table, rows=comparisons.plan_rows)
