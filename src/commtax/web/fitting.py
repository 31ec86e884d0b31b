"""Whether it fits, as the page asks: the plan of its controls, and what every other TP size of the cluster would leave."""

from commtax.question import AS_IT_IS
from commtax.report.documents import Record, Value
from commtax.report.exact_bytes import fit_document, fit_words, held_parts, lack_sentence
from commtax.report.view.state import State, arguments, command_line, on_page, refusal
from commtax.verbs.fit_advice import add_advice
from commtax.verbs.fitting import Fit, holds
from commtax.verbs.settling import settle
from commtax.verbs.train_fitting import TrainFit, train_holds


def fit_answer(state: State) -> Record:
    return fit_document(_judge(state))


def memory_answer(state: State) -> Record:
    """The same, and how the page shows it."""
    judged = _judge(state)
    lack = "" if judged.fits else f". {lack_sentence(judged)}"
    length = "" if judged.trains else f", for requests of up to {judged.question.limits.max_model_len:,.0f} tokens"
    words = arguments(state)
    if not judged.trains:
        for name in ("--batch", "--context", "--phase"):
            if name in words:
                at = words.index(name)
                del words[at : at + 2]
        words += ["--max-model-len", str(state.longest), *(["-tp", "1"] if state["tp"] == 1 else [])]  # else the smallest is found
    powers = {2**i for i in range(state.question.cluster.num_gpus.bit_length())}
    return {
        **fit_document(judged),
        "sentence": f"{fit_words(judged)}{length}{lack}.",
        "advised": [on_page(line) for line in judged.advice],
        "parts": _parts(judged),
        "capacity_bytes": float(judged.question.cluster.chip.visible_bytes),
        "sizes": [_size(state, tp) for tp in sorted(powers | {int(state["tp"])})],
        "command": command_line(state, "fit", *words),
    }


def _parts(judged: Fit | TrainFit) -> list[Record]:
    """Return what a rank holds part by part, each with the part of the bar that it is drawn in."""
    whole = len(judged.weights) if isinstance(judged, Fit) else 0  # these come first, and are one part of the bar
    held = enumerate(held_parts(judged))
    return [
        {"name": name, "of": "weights" if i < whole else name, "nbytes": nbytes, "note": note} for i, (name, nbytes, note) in held
    ]


def _judge(state: State) -> Fit | TrainFit:
    q = state.question
    if q.trains:
        return train_holds(settle(q))
    return add_advice(holds(q.but(what_if=AS_IT_IS, sequence_parallel=False, max_model_len=state.longest)))


def _size(state: State, tp: int) -> Record:
    patch: dict[str, Value] = {"tp": tp} if tp == state["tp"] else {"tp": tp, "rep": 1}  # so many need not have room
    try:
        judged = _judge(state.but(patch))
    except (ValueError, OverflowError) as error:
        rule = refusal(error) if isinstance(error, ValueError) else error
        return {"tp": tp, "refused": str(rule), "patch": None}
    row: Record = {"tp": tp, "refused": "", "fits": judged.fits, "patch": patch}
    if judged.trains:
        held = float(judged.memory.total)
        return row | {"weights_bytes": float(judged.memory.parameters), "free_bytes": float(judged.budget_bytes) - held}
    row |= {"weights_bytes": judged.weights_bytes, "kv_bytes": max(0.0, judged.kv_bytes)}
    return row | {"kv_tokens": max(0, judged.kv_tokens), "requests": max(0.0, judged.max_concurrency)}
