"""``commtax fit``."""

import click

from commtax.cli.options import COPIES, KEPT, LAID, LORA, PASTED, WHERE, About, Verb, taking
from commtax.cli.order import Order, ordered, refuse
from commtax.cli.pasting import prompt_sizes
from commtax.question import SEQUENCE_LEN
from commtax.statement import Refusal
from commtax.verbs.apart import prompter
from commtax.verbs.asking import settle
from commtax.verbs.fitting import Fit, advised, holds
from commtax.verbs.train_fitting import TrainFit, train_holds

SERVED = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes"),
    *("recurrent_dtype", "state_slots", "tower", *COPIES),
)
"""What of a server alone its memory depends on."""


@click.command("fit", cls=Verb)
@taking(
    *(*WHERE, *PASTED, *LAID, *LORA, "phase", *SERVED, "gpu_memory_utilization", "batch", "context", *KEPT, "profile", "as_json"),
    tp={"default": None, "help": "Tensor-parallel size (-tp); left out: the smallest that fits (training: 1)."},
    pp={"default": None},
    phase={"default": "serve", "help": "serve (default) or train."},
    batch={"help": "Training: sequences per replica and step."},
    context={"help": f"Training: sequence length.  [default: {SEQUENCE_LEN}]"},
)
@ordered(About.SERVER, (*SERVED, "kv_dtype", "max_loras"))
def fit_command(order: Order) -> None:
    """Does it fit, and how much KV cache is left? Without -tp: the smallest TP (x PP) that fits.

    commtax fit llama-3.1-70b --cluster 8xh100-sxm --max-model-len 128k
    """
    from commtax.report.exact import fit_document, show_fit

    if order.given["phase"] not in ("serve", "train"):
        raise Refusal(f"phase '{order.given['phase']}': serve or train", "phase", ("serve", "train"))
    judged = train_holds(settle(order.question)) if order.question.trains else _served(order)
    order.output.answer(fit_document, show_fit, judged, code=0 if judged.fits else 1)


def _served(order: Order) -> Fit | TrainFit:
    given, q = order.given, order.question
    refuse(given, ["batch"], "belongs to --phase train; serving takes --max-num-seqs")
    refuse(given, ["context"], "belongs to --phase train; serving takes --max-model-len")
    refuse(given, ["sequence_parallel"], "changes nothing that is held while serving")
    judged = advised(holds(q, chosen=given["tp"] is not None, stages=given["pp"]))
    servers = order.launch.servers if order.launch else None
    if not servers or not servers.prefill_workers or not judged.fits:
        return judged
    asked = q.but(prefill_tp=servers.prefill_tp, prefill_dp=servers.prefill_dp, max_num_seqs=0)
    theirs = advised(holds(prompter(asked)))
    verdict = "fit too" if theirs.fits else "these do not fit, and theirs is the answer"
    order.output.remarks.append(f"servers for prompts, {prompt_sizes(servers)}: {verdict}")
    return judged if theirs.fits else theirs
