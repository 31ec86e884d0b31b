"""``max_model_len``: an engine starts only where its cache holds one request of that length, in each pool of workers."""

import math
from collections.abc import Mapping

import numpy as np

from commtax.question import Question
from commtax.spec import SIZES, Condition
from commtax.statement import Refusal
from commtax.units import format_bytes
from commtax.verbs.cache_room import cache_tokens, full_length_requests
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fitting import add_advice, holds, judged_by_memory
from commtax.verbs.settling import Settled, settle

ROUND = 256  # lengths that nobody said are whole multiples of this many tokens


def starts(workers: Question) -> Condition:
    """Whether workers have room for one request of the length that was asked for; true where none was. Arrays as the plan."""
    return full_length_requests(workers) >= 1 if workers.limits.max_model_len else True


def pools_of(q: Question) -> Mapping[str, Question]:
    """Each kind of workers, by what they do."""
    asked = q if isinstance(q, Settled) else settle(q)
    return {" for prompts": prompter(asked), " for decoding": asked.plain()} if q.requests.disaggregated else {"": asked.plain()}


def check_lengths(q: Question) -> Question:
    """Requests must not be longer than servers take."""
    most, tokens = q.limits.max_model_len, int(np.max(q.requests.tokens))
    if most and tokens > most:
        rule = f"fewer than input_len + output_len = {tokens:,}; nearest valid: {tokens}"
        raise Refusal.of(rule, (tokens,), max_model_len=most)
    return q


def why_it_does_not_start(q: Question) -> str:
    """Which workers lack room for one request of full length, how much, and what would help; "" where all have it."""
    if not q.limits.max_model_len or q.requests.kv_tokens is not None or any(np.ndim(getattr(q.plan, axis)) for axis in SIZES):
        return ""
    for kind, workers in pools_of(q).items():
        if starts(workers):
            continue
        judged = add_advice(holds(judged_by_memory(workers)))
        lack = f"each GPU{kind} is {format_bytes(judged.shortfall_bytes)} short"
        remedies = ", or with ".join(judged.advice)
        more = f"it would fit with {remedies}" if remedies else "use more GPUs or a smaller model"
        return f"{lack} even for one request of {q.limits.max_model_len:,} tokens (--max-model-len); {more}"
    return ""


def check_starts(q: Question) -> Question:
    """Refuse what would not start."""
    if why := why_it_does_not_start(q):
        raise Refusal.of(f"does not fit: {why}", max_model_len=q.limits.max_model_len)
    return q


def length_to_start_with(q: Question, longest: float) -> int:
    """The ``max_model_len`` that servers should be told: as asked; 0, the model's own, where all caches hold that.

    Else what the ``longest`` of their requests needs, in whole steps of ``ROUND``, as far as the caches hold it.
    """
    if q.limits.max_model_len:
        return q.limits.max_model_len
    room = min(int(cache_tokens(workers)) for workers in pools_of(q).values())
    if room >= q.model.max_len:
        return 0
    return int(max(q.requests.tokens, min(math.ceil(longest / ROUND) * ROUND, room, q.model.max_len)))
