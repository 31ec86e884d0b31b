"""Drafted tokens of a question: what drafts them, whether it can here, how many are accepted, and from where on they do not pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from commtax.catalog.techniques import DRAFTS, changes_of, missed
from commtax.cost.caches import KvPool, kv_pool
from commtax.cost.drafting import acceptance_of, tokens_per_step
from commtax.cost.inventory import stage_layers
from commtax.cost.memory import with_draft_layers
from commtax.question import Question
from commtax.records import replace
from commtax.rules import Broken, check, refusal
from commtax.spec import Drafter
from commtax.statement import Note
from commtax.units import plural

if TYPE_CHECKING:
    from commtax.catalog.drafters import MeasuredAcceptance
    from commtax.cost.closed_form import ClosedLoopLoad

DRAFTED: Mapping[str, Broken] = {
    "acceptance": lambda q: q.techniques.acceptance > 1,
    "both": lambda q: q.techniques.acceptance >= 0 and q.techniques.accepted_length,
    "length": lambda q: (
        q.speculative and q.techniques.accepted_length and not 1 <= q.techniques.accepted_length <= q.speculative + 1
    ),
    "drafter": lambda q: q.speculative and q.techniques.drafter and q.techniques.drafter not in q.engine.drafts.drafters,
    "model": lambda q: q.speculative and q.techniques.drafter == "draft" and not q.techniques.draft_model,
}


def drafter_of(q: Question) -> Drafter | None:
    """Return what drafts the tokens that steps check, or None where nothing does or the drafter is not named."""
    techniques = q.techniques
    if not q.speculative or not techniques.drafter:
        return None
    from commtax import catalog
    from commtax.catalog.drafters import drafter  # not for those who draft nothing

    other = catalog.model(techniques.draft_model) if techniques.draft_model else None
    return drafter(techniques.drafter, q.model, q.speculative, other)


def check_drafts(q: Question) -> None:
    """Check that the engine has the drafter and the model has layers for it, and that acceptances can be."""
    drafts, length, able = q.speculative, q.techniques.accepted_length, q.engine.drafts.drafters
    others = f"; it has {', '.join(able)}" if able else ""
    check("drafts", DRAFTED, q, most=drafts + 1, length=(1 if length < 1 else drafts + 1,), able=able, others=others)
    if q.techniques.drafter and drafts:
        drafter_of(q)


def measured_here(q: Question) -> MeasuredAcceptance | None:
    """Return the measured acceptances that stand for this drafter, model and kind of text."""
    if not q.techniques.drafter:
        return None
    from commtax.catalog.drafters import measured_acceptance  # not for those who draft nothing

    return measured_acceptance(q.techniques.drafter, q.model.architecture, q.speculative, q.techniques.draft_text)


def with_accepted_tokens(q: Question) -> Question:
    """Return the question with the tokens that its steps yield: as set, else as measured for the drafter, else one."""
    techniques, drafts, per_step = q.techniques, q.speculative, 1.0
    if drafts and techniques.accepted_length:
        per_step = techniques.accepted_length
    elif drafts and techniques.acceptance >= 0:
        per_step = tokens_per_step(drafts, techniques.acceptance)
    elif drafts and (runs := measured_here(q)):
        per_step = runs.length if runs.drafts == drafts else tokens_per_step(drafts, acceptance_of(runs.drafts, runs.length))
    return q if per_step == techniques.per_step else replace(q, techniques=replace(techniques, per_step=per_step))


def stage_pool(q: Question, stage: int, pp: int, block_size: int) -> KvPool:
    """Return how a stage keeps keys and values. Those of a drafter lie on the last."""
    layers, model = stage_layers(q.model, pp, q.engine.sends.odd_layers)[stage], q.model
    if stage == pp - 1 and q.speculative:
        model = with_draft_layers(model, drafter_of(q))
        layers = range(layers.start, model.num_layers)
    return kv_pool(model, q.plan, layers, block_size, q.engine.states)


def drafted_load(load: ClosedLoopLoad, q: Question) -> ClosedLoopLoad:
    """Return a closed loop's load with the tokens that steps yield, and the rows that they have of each request."""
    return replace(load, per_step=with_accepted_tokens(q).techniques.per_step, rows=1 + q.speculative) if q.speculative else load


def is_accepted_known(q: Question) -> bool:
    """Return whether somebody states, or measured, how many drafts are accepted."""
    return not q.speculative or _is_acceptance_set(q) or measured_here(q) is not None


def _is_acceptance_set(q: Question) -> bool:
    return q.techniques.acceptance >= 0 or q.techniques.accepted_length > 0


def need_accepted(q: Question) -> None:
    """Refuse times per token where the tokens that a step yields are unknown."""
    if not is_accepted_known(q):
        raise refusal("drafts.accepted", q, on=f" on {q.techniques.draft_text}" if q.techniques.draft_text else "")


def accepted_width(q: Question) -> float:
    """Return the half-width of ln(tokens per step with drafts), where no acceptance is set."""
    if not q.speculative or _is_acceptance_set(q):
        return 0.0
    from commtax.catalog.drafters import accepted_spread  # not for those who draft nothing

    per_step = q.techniques.per_step
    return math.log1p(accepted_spread(measured_here(q), q.model.key) * (per_step - 1) / per_step)


def draft_width(q: Question) -> float:
    """Return the half-width of ln(what drafts bring to a run) where no acceptance is set, with the errors of published gains."""
    width = accepted_width(q)
    return math.hypot(width, missed(DRAFTS, 1.0, q.techniques.per_step)) if width else 0.0


def most_per_step(q: Question) -> float:
    """Return the tokens that a step yields at most: all drafts, where no acceptance is set."""
    return 1.0 + q.speculative if accepted_width(q) else q.techniques.per_step


def accepted_as(q: Question) -> str:
    """Say whose acceptance a gain rests on, where none is set: ``with llama-3.1-8b on MT-Bench``."""
    runs = None if _is_acceptance_set(q) or not q.speculative else measured_here(q)
    return runs.borrowed_from(q.model.key) if runs else ""


def draft_notes(q: Question) -> Iterator[Note]:
    """Note how many tokens a step yields, where that number is from, and what is not counted."""
    drafter, drafts = q.techniques.drafter, q.speculative
    if not drafts:
        return
    usual = drafter not in ("", "draft") and changes_of(drafter).get("speculative") == drafts
    which = f", which {drafter}=N sets" if usual else ""
    rate = f"{q.techniques.per_step:.2f} tokens per sequence per step with {plural(drafts, 'draft')}{which}"
    if _is_acceptance_set(q):
        yield Note("drafts", f"{rate}, as set")
    elif runs := measured_here(q):
        near = "" if runs.drafts == drafts else f", measured with {runs.drafts}"
        yield Note("drafts", f"{rate}{near} ({runs.source})")
    else:
        yield Note("drafts", "how many drafts are accepted is not known here (--acceptance): tokens/s count none of them")
    if not drafter:
        yield Note("drafter", "who drafts is not said (--technique mtp, eagle3 …): drafting is priced at nothing")
