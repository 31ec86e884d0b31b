"""What the techniques of a plan are worth in it, each alone, as its users are told."""

from collections.abc import Iterator
from dataclasses import replace

from commtax.catalog.techniques import technique
from commtax.planner.columns import ServingPlans, sizes_of
from commtax.spec import SERVING_AXES
from commtax.verbs.costly_settings import costly_settings
from commtax.verbs.settling import Settled, replan, settle
from commtax.verbs.worth import Scale, TechniqueWorth

NO_DRAFTS = {"speculative": 0, "drafter": ""}
"""Steps of prompts check none."""


def prompt_step(q: Settled) -> Settled:
    """A full step of prompts of the same plan."""
    tokens = int(max(1, min(q.limits.max_num_batched_tokens or q.engine.serves.max_batched_tokens, q.model.max_len)))
    return q.but(phase="prefill", batch=1, context=tokens, **NO_DRAFTS)


def worth_of_techniques(answer: ServingPlans, i: int) -> Iterator[str]:
    """One sentence on the techniques of row ``i``, none where it has none: what each alone gains on a step, and how surely."""
    rows, exchange = answer.plans, answer.exchange_of(answer.plans, i)
    if not exchange.techniques:
        return
    steps = [Scale(q, flips=False) for q in _steps_without(answer, i)]
    told = [_told(word, steps) for word in exchange.techniques.split(",")]
    kind = "decode steps, or on those of prompts" if not rows.mode[i] else "decode steps, or on its prompt workers'"
    yield f"techniques, each alone on its {kind}: {'; '.join(told)}"


def kept_settings(answer: ServingPlans, i: int) -> Iterator[str]:
    """One sentence on settings that all plans keep and that cost row ``i``, none where none does."""
    q = answer.simulation(answer.plans, i).question
    told = [f"{row.flag}: {row.gain - 1:+.0%} tokens/s" for row in costly_settings(q, Scale(q, True, flips=False).figures)]
    if told:
        yield f"every plan keeps what is set, and it costs; dropping {', '.join(told)} here, with as many clients"


def _steps_without(answer: ServingPlans, i: int) -> tuple[Settled, Settled]:
    """A decode step of row ``i`` and a step of prompts on the workers that compute them, both without techniques."""
    rows = answer.plans
    own = replace(answer.exchange_of(rows, i), techniques="").asked
    kinds = own | {"weights_dtype": answer.question.goal.dtypes[int(rows.dtype[i])]}
    workers = rows.prompter(i) if rows.mode[i] else rows.plan_of(i)
    ahead: dict[str, int] = {axis: int(getattr(workers, axis)) for axis in SERVING_AXES}
    step = answer.step_of(rows, i).question
    decode = replan(answer.question, **sizes_of(rows, i), **kinds).but(batch=step.batch, context=step.context)
    return settle(decode), prompt_step(settle(replan(answer.question, **ahead, **kinds)))


def _told(word: str, steps: list[Scale]) -> str:
    one = technique(word.partition("=")[0])
    able = [row for row in (step.weigh(one, word) for step in steps) if not row.refused]
    best = max(able, key=lambda row: row.gain, default=None)
    return f"{word} {_gain_words(best)}" if best else f"{word} with the others alone"


def _gain_words(row: TechniqueWorth) -> str:
    if row.verdict == "changes nothing":
        return "next to nothing here"
    ends = f"{row.gain - 1:+.0%} tokens/s ({row.low - 1:+.0%} to {row.high - 1:+.0%})"
    assumed = row.technique.group == "drafts" and ", with drafts accepted as published: measure your own"
    return ends + (assumed or "") + (", undecided" if row.verdict == "undecided" else "")
