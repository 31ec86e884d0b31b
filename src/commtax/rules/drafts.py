"""Drafted tokens of a question: what drafts them, whether it can here, how many are accepted, and from where on they do not pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from commtax.catalog.techniques import DRAFTS, changes_of, missed
from commtax.cost.caches import KvPool, kv_pool
from commtax.cost.drafting import acceptance_of, tokens_per_step
from commtax.cost.inventory import stage_layers
from commtax.cost.memory import with_draft_layers
from commtax.question import Question
from commtax.rules import Broken, check, refusal
from commtax.spec import Drafter
from commtax.statement import Note
from commtax.units import plural

if TYPE_CHECKING:
    from commtax.catalog.drafters import MeasuredAcceptance
    from commtax.cost.closed_form import ClosedLoopLoad


def drafter_of(q: Question) -> Drafter | None:
    """Return what drafts the tokens that steps check; None where nothing does, or the drafter is not named."""
    asked = q.techniques
    if not q.speculative or not asked.drafter:
        return None
    from commtax import catalog
    from commtax.catalog.drafters import drafter  # not for those who draft nothing

    other = catalog.model(asked.draft_model) if asked.draft_model else None
    return drafter(asked.drafter, q.model, q.speculative, other)


def check_drafts(q: Question) -> None:
    """Check that the engine has the drafter and the model has layers for it, and that acceptances can be."""
    drafts, length, able = q.speculative, q.techniques.accepted_length, q.engine.drafts.drafters
    others = f"; it has {', '.join(able)}" if able else ""
    check("drafts", DRAFTED, q, most=drafts + 1, length=(1 if length < 1 else drafts + 1,), able=able, others=others)
    if q.techniques.drafter and drafts:
        drafter_of(q)


DRAFTED: Mapping[str, Broken] = {
    "acceptance": lambda q: q.techniques.acceptance > 1,
    "both": lambda q: q.techniques.acceptance >= 0 and q.techniques.accepted_length,
    "length": lambda q: q.speculative and q.techniques.accepted_length and not _is_possible(q),
    "drafter": lambda q: q.speculative and q.techniques.drafter and q.techniques.drafter not in q.engine.drafts.drafters,
    "model": lambda q: q.speculative and q.techniques.drafter == "draft" and not q.techniques.draft_model,
}


def _is_possible(q: Question) -> bool:
    """Whether a step can yield so many tokens: its own, and drafts."""
    return 1 <= q.techniques.accepted_length <= q.speculative + 1


def measured_here(q: Question) -> MeasuredAcceptance | None:
    """Return the measured acceptances that stand for this drafter, model and kind of text."""
    asked = q.techniques
    if not asked.drafter:
        return None
    from commtax.catalog.drafters import measured_acceptance  # not for those who draft nothing

    return measured_acceptance(asked.drafter, q.model.architecture, q.speculative, asked.draft_text)


def with_accepted_tokens(q: Question) -> Question:
    """Return the question with the tokens that its steps yield: as set, else as measured for the drafter, else one."""
    asked, drafts, per_step = q.techniques, q.speculative, 1.0
    if drafts and asked.accepted_length:
        per_step = asked.accepted_length
    elif drafts and asked.acceptance >= 0:
        per_step = tokens_per_step(drafts, asked.acceptance)
    elif drafts and (known := measured_here(q)):
        per_step = known.length if known.drafts == drafts else tokens_per_step(drafts, acceptance_of(known.drafts, known.length))
    return q if per_step == asked.per_step else replace(q, techniques=replace(asked, per_step=per_step))


def stage_pool(asked: Question, stage: int, pp: int, block_size: int) -> KvPool:
    """Return how a stage keeps keys and values; a drafter's lie on the last."""
    layers, model = stage_layers(asked.model, pp, asked.engine.sends.odd_layers)[stage], asked.model
    if stage == pp - 1 and asked.speculative:
        model = with_draft_layers(model, drafter_of(asked))
        layers = range(layers.start, model.num_layers)
    return kv_pool(model, asked.plan, layers, block_size, asked.engine.states)


def drafted_load(load: ClosedLoopLoad, q: Question) -> ClosedLoopLoad:
    """Return a closed loop's load with the tokens that steps yield, and the rows that they have of each request."""
    return replace(load, per_step=with_accepted_tokens(q).techniques.per_step, rows=1 + q.speculative) if q.speculative else load


def is_accepted_known(q: Question) -> bool:
    """Whether somebody says, or measured, how many drafts are accepted."""
    asked = q.techniques
    return not q.speculative or asked.acceptance >= 0 or asked.accepted_length > 0 or measured_here(q) is not None


def need_accepted(q: Question) -> None:
    """Refuse times per token where the tokens that a step yields are unknown."""
    if not is_accepted_known(q):
        text = q.techniques.draft_text
        raise refusal("drafts.accepted", q, on=f" on {text}" if text else "")


def accepted_width(q: Question) -> float:
    """Return the half-width of ln(tokens per step with drafts), where no acceptance is set."""
    asked = q.techniques
    if not q.speculative or asked.acceptance >= 0 or asked.accepted_length:
        return 0.0
    from commtax.catalog.drafters import accepted_spread  # not for those who draft nothing

    return math.log1p(accepted_spread(measured_here(q), q.model.key) * (asked.per_step - 1) / asked.per_step)


def draft_width(q: Question) -> float:
    """Half-width of the logarithm of what drafts bring to a run, where nobody says how many are accepted: by those, and by how far
    published gains of drafts lie from predicted ones."""
    width = accepted_width(q)
    return math.hypot(width, missed(DRAFTS, 1.0, q.techniques.per_step)) if width else 0.0


def most_per_step(q: Question) -> float:
    """Return the tokens that a step yields at most: all drafts, where no acceptance is set."""
    return 1.0 + q.speculative if accepted_width(q) else q.techniques.per_step


def accepted_as(q: Question) -> str:
    """Say whose acceptance a gain rests on, where none is set: ``with llama-3.1-8b on MT-Bench``."""
    said = q.techniques.acceptance >= 0 or q.techniques.accepted_length
    known = None if said or not q.speculative else measured_here(q)
    return known.borrowed_from(q.model.key) if known else ""


def draft_notes(q: Question) -> Iterator[Note]:
    """Note how many tokens a step yields, where that number is from, and what is not counted."""
    asked, drafts = q.techniques, q.speculative
    if not drafts:
        return
    usual = asked.drafter not in ("", "draft") and changes_of(asked.drafter).get("speculative") == drafts
    which = f", which {asked.drafter}=N sets" if usual else ""
    told = f"{asked.per_step:.2f} tokens per sequence per step with {plural(drafts, 'draft')}{which}"
    if asked.acceptance >= 0 or asked.accepted_length:
        yield Note("drafts", f"{told}, as set")
    elif known := measured_here(q):
        near = "" if known.drafts == drafts else f", measured with {known.drafts}"
        yield Note("drafts", f"{told}{near} ({known.source})")
    else:
        yield Note("drafts", "how many drafts are accepted is not known here (--acceptance): tokens/s count none of them")
    if not asked.drafter:
        yield Note("drafter", "who drafts is not said (--technique mtp, eagle3 …): drafting is priced at nothing")
