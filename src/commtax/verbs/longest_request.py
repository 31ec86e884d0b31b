"""``max_model_len``: an engine starts only where its cache holds one request of that length, in each pool of workers."""

import math
from collections.abc import Mapping

import numpy as np

from commtax.arrays import cache_answers
from commtax.question import Question
from commtax.records import replace
from commtax.spec import SIZES, Condition, Number
from commtax.statement import Note, Refusal
from commtax.units import format_bytes
from commtax.verbs.cache_room import cache_tokens, full_length_requests
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fitting import add_advice, holds, judged_by_memory, longest_request
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


def _is_judged(q: Question) -> bool:
    """Whether memory says what a server has room for: of one plan, and unless somebody says it."""
    return q.requests.kv_tokens is None and not any(np.ndim(getattr(q.plan, axis)) for axis in SIZES)


def why_it_does_not_start(q: Question) -> str:
    """Which workers lack room for one request of full length, how much, and what would help; "" where all have it."""
    if not q.limits.max_model_len or not _is_judged(q):
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


def own_length_notes(q: Question, tokens: Number) -> list[Note]:
    """That servers have no room for one request of the model's own length, which they take where nobody says another, and up to
    which length figures hold; nothing where they have it, or where not even requests of so many ``tokens`` have room."""
    if q.limits.max_model_len or q.trains or not _is_judged(q):
        return []
    pools = {kind: workers for kind, workers in pools_of(q).items() if full_length_requests(workers) < 1}
    short = {kind: _own_length(replace(workers.normal(), limits=workers.limits)) for kind, workers in pools.items()}
    most = min((longest for longest, _ in short.values()), default=0)
    if most < np.max(tokens):
        return []
    own, name = f"the checkpoint's own {q.model.max_len:,} tokens", q.engine.name
    lacks = " and ".join(f"each GPU{kind} is {format_bytes(lack)} short" for kind, (_, lack) in short.items())
    verdict = f"{name} would not start with {own}" if q.engine.memory.refuses_to_start else f"{name} has no room for {own}"
    return [Note("own-length", f"{verdict}: {lacks}; the figures hold with --max-model-len {most} or less")]


@cache_answers
def _own_length(workers: Question) -> tuple[int, float]:
    """The longest request that workers have room for, and what a rank lacks for one of the model's own length."""
    judged = holds(judged_by_memory(workers))
    return longest_request(judged), judged.shortfall_bytes


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
