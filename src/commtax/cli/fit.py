"""``commtax fit``."""

from dataclasses import replace

import click

from commtax.catalog.loader import suggest
from commtax.cli.options import Verb, VerbSubject
from commtax.cli.order import Order, refuse, verb_command
from commtax.cli.pasting import LOOKED_AT, prompt_sizes
from commtax.judgement.engine_limits import LENGTH
from commtax.statement import Note, Refusal
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fit_advice import add_advice
from commtax.verbs.fitting import Fit, holds
from commtax.verbs.settling import settle
from commtax.verbs.train_fitting import TrainFit, train_holds


@click.command("fit", cls=Verb)
@verb_command("fit", VerbSubject.SERVER)
def fit_command(order: Order) -> None:
    """Check whether it fits, and how much KV cache is left. Without -tp: the smallest TP (x PP) that fits."""
    from commtax.report.exact_bytes import fit_document, show_fit

    if order.options.phase not in ("serve", "train"):
        raise Refusal.of(f"serve or train{suggest(order.options.phase, ('serve', 'train'))}", phase=order.options.phase)
    judged = train_holds(settle(order.question)) if order.question.trains else _serving_fit(order)
    order.output.answer(fit_document, show_fit, judged, code=0 if judged.fits else 1)


def _serving_fit(order: Order) -> Fit | TrainFit:
    options, q = order.options, order.question
    refuse(options, ["batch"], "belongs to --phase train; serving takes --max-num-seqs")
    if options.context is not None:  # of a server, the longest request
        refuse(options, [LENGTH], "give it or --context, not both")
        q = q.but(max_model_len=int(options.context))
    refuse(options, ["sequence_parallel"], "changes nothing that is held while serving")
    judged = add_advice(holds(q, chosen=options.tp is not None, stages=options.pp))
    servers = order.launch.servers if order.launch else None
    if not servers or not servers.prefill_workers or not judged.fits:
        return judged
    theirs = add_advice(holds(prompter(q.but(prefill_tp=servers.prefill_tp, prefill_dp=servers.prefill_dp))))
    remarks, sizes = order.output.remarks, prompt_sizes(servers)
    if theirs.fits:
        remarks.append(f"servers for prompts, {sizes}: fit too")
        return judged
    remarks[:] = [remark for remark in remarks if not (isinstance(remark, Note) and remark.code == LOOKED_AT)]
    q = theirs.question  # beside which other servers have the GPUs that this one leaves
    theirs = replace(theirs, question=replace(q, notes=tuple(note for note in q.notes if note.code != "idle-gpus")))
    others = f"those that decode do (--tp {int(judged.question.plan.tp)})"
    remarks.append(f"looked at: a server for prompts, {sizes}, which does not fit; {others}")
    return theirs
