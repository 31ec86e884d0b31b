"""Drafted tokens of a question: what drafts them, whether it can here, how many are accepted, and from where on they do not pay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from commtax.catalog.technique_misses import DRAFTS, missed
from commtax.catalog.techniques import changes_of
from commtax.cost.caches import KvPool, kv_pool
from commtax.cost.drafting import acceptance_of, tokens_per_step
from commtax.cost.memory import with_draft_layers
from commtax.cost.tensors import stage_layers
from commtax.question import Question
from commtax.spec import Drafter
from commtax.statement import OTHER_ENGINES, UNSAID, Note, Refusal
from commtax.units import plural

if TYPE_CHECKING:
    from commtax.catalog.drafters import MeasuredAcceptance
    from commtax.cost.closed_form import ClosedLoopLoad


def drafter_of(q: Question) -> Drafter | None:
    """What drafts the tokens that its steps check; None: nothing does, or nobody says what."""
    asked = q.techniques
    if not q.speculative or not asked.drafter:
        return None
    from commtax import catalog
    from commtax.catalog.drafters import drafter  # not for those who draft nothing

    other = catalog.model(asked.draft_model) if asked.draft_model else None
    return drafter(asked.drafter, q.model, q.speculative, other)


def check_drafts(q: Question) -> None:
    """A drafter that the engine has and the model has layers for, and acceptances that can be."""
    asked, drafts = q.techniques, q.speculative
    share, length = asked.acceptance, asked.accepted_length
    if share > 1:
        raise Refusal(f"acceptance={share:g}: a share from 0 to 1 is needed; nearest valid: 1", "acceptance", (1,))
    if share >= 0 and length:
        raise Refusal(f"accepted_length={length:g}: say it or an acceptance ({share:g}), not both", "accepted_length")
    if drafts and length and not 1 <= length <= drafts + 1:
        nearest = 1 if length < 1 else drafts + 1
        rule = f"with {drafts} drafts a step yields from 1 to {drafts + 1} tokens; nearest valid: {nearest}"
        raise Refusal(f"accepted_length={length:g}: {rule}", "accepted_length", (nearest,))
    if not asked.drafter or not drafts:
        return
    if asked.drafter not in (has := q.engine.drafts.drafters):
        others = f"; it has {', '.join(has)}" if has else ""
        rule = f"{q.engine.name} has no such drafter{others}"
        raise Refusal(rule, "technique", has, OTHER_ENGINES, f"technique '{asked.drafter}'")
    if asked.drafter == "draft" and not asked.draft_model:
        rule = "name the model that drafts, as in draft=qwen3-0.6b:4:0.7"
        raise Refusal(rule, "technique", kind=UNSAID, subject="technique 'draft'")
    drafter_of(q)


def measured_here(q: Question) -> MeasuredAcceptance | None:
    """Measured acceptances that stand for this drafter, model and kind of text."""
    asked = q.techniques
    if not asked.drafter:
        return None
    from commtax.catalog.drafters import measured_acceptance  # not for those who draft nothing

    return measured_acceptance(asked.drafter, q.model.architecture, q.speculative, asked.draft_text)


def with_accepted_tokens(q: Question) -> Question:
    """The question with the tokens that its steps yield: as was said, else as the drafter was measured, else one."""
    asked, drafts, per_step = q.techniques, q.speculative, 1.0
    if drafts and asked.accepted_length:
        per_step = asked.accepted_length
    elif drafts and asked.acceptance >= 0:
        per_step = tokens_per_step(drafts, asked.acceptance)
    elif drafts and (known := measured_here(q)):
        per_step = known.length if known.drafts == drafts else tokens_per_step(drafts, acceptance_of(known.drafts, known.length))
    return q if per_step == asked.per_step else replace(q, techniques=replace(asked, per_step=per_step))


def stage_pool(asked: Question, stage: int, pp: int, block_size: int) -> KvPool:
    """How a stage keeps keys and values; a drafter's lie on the last."""
    layers, model = stage_layers(asked.model, pp, asked.engine.sends.odd_layers)[stage], asked.model
    if stage == pp - 1 and asked.speculative:
        model = with_draft_layers(model, drafter_of(asked))
        layers = range(layers.start, model.num_layers)
    return kv_pool(model, asked.plan, layers, block_size, asked.engine.states)


def drafted_load(load: ClosedLoopLoad, q: Question) -> ClosedLoopLoad:
    """A closed loop's load with the tokens that steps yield, and the rows that they have of each request."""
    return replace(load, per_step=with_accepted_tokens(q).techniques.per_step, rows=1 + q.speculative) if q.speculative else load


def is_accepted_known(q: Question) -> bool:
    """Whether somebody says, or measured, how many drafts are accepted."""
    asked = q.techniques
    return not q.speculative or asked.acceptance >= 0 or asked.accepted_length > 0 or measured_here(q) is not None


def need_accepted(q: Question) -> None:
    """Times per token need the tokens that a step yields."""
    if not is_accepted_known(q):
        asked = q.techniques
        on = f" on {asked.draft_text}" if asked.draft_text else ""
        rule = (
            f"how many drafts {q.model.key} accepts{on} is not known; give --acceptance 0.7 or --accepted-length 2.4, for example"
        )
        raise Refusal(rule, "acceptance", kind=UNSAID, subject=f"speculative={q.speculative}")


def accepted_width(q: Question) -> float:
    """Half-width of the logarithm of the tokens that a step with drafts yields, where nobody says how many are accepted."""
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
    """Tokens that a step yields at most: all drafts, where nobody says how many are accepted."""
    return 1.0 + q.speculative if accepted_width(q) else q.techniques.per_step


def accepted_as(q: Question) -> str:
    """Whose acceptance a gain rests on, where nobody says one: ``with llama-3.1-8b on MT-Bench``."""
    said = q.techniques.acceptance >= 0 or q.techniques.accepted_length
    known = None if said or not q.speculative else measured_here(q)
    return known.told_of(q.model.key) if known else ""


def draft_notes(q: Question) -> Iterator[Note]:
    """How many tokens a step yields, by whose word; what is not counted."""
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
