"""``max_model_len`` and ``max_num_seqs``: an engine starts only where its cache holds one request of that length, and a block for
the state of each sequence where it wants one, in each pool of workers."""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from commtax.arrays import cache_answers
from commtax.judgement import starting
from commtax.question import Question
from commtax.records import replace
from commtax.spec import SIZES, Condition, Number
from commtax.statement import Note, OptionValue, Refusal
from commtax.units import format_bytes
from commtax.verbs.cache_room import cache_tokens, full_length_requests, most_seqs_to_start, needs_blocks_for_states
from commtax.verbs.checking import longest_taken
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fit_advice import add_advice
from commtax.verbs.fitting import Fit, holds, judged_by_memory, largest_max_num_seqs, longest_request
from commtax.verbs.settling import Settled, settle
from commtax.words import words

Asked = TypeVar("Asked", bound=Question)
ROUND = 256  # lengths that nobody said are whole multiples of this many tokens


def starts(workers: Question) -> Condition:
    """Whether workers start with the limits that were asked for; true where none were. Arrays as the plan."""
    length, seqs = workers.limits.max_model_len, workers.limits.max_num_seqs
    return starting.starts(full_length_requests(workers) if length else 1, seqs, most_seqs_to_start(workers) if seqs else np.inf)


def pools_of(q: Question) -> Mapping[str, Question]:
    """Each kind of workers, by what they do."""
    asked = q if isinstance(q, Settled) else settle(q)
    return {" for prompts": prompter(asked), " for decoding": asked.plain()} if q.requests.disaggregated else {"": asked.plain()}


def check_lengths(q: Question) -> Question:
    """Refuse requests that are all longer than servers take: by their mean length, or the shortest of a trace."""
    told, trace = q.limits.max_model_len, q.offered.trace
    tokens = int(np.max(q.requests.tokens) if trace is None else np.min(trace.input_len + trace.output_len))
    if tokens <= longest_taken(q):
        return q
    if told:
        rule = f"fewer than input_len + output_len = {tokens:,}; nearest valid: {tokens}"
        raise Refusal.of(rule, (tokens,), max_model_len=told)
    rule = f"more than the {q.model.max_len:,} positions of {q.model.key}"
    if trace is not None:
        raise Refusal.about(trace=f"the shortest request has {tokens:,} tokens with its answer, {rule}")
    most = q.model.max_len - int(np.max(q.requests.output_len))
    nearest = f"; nearest valid input_len: {most}" if most > 0 else ""
    rule = f"with output_len it makes {tokens:,} tokens, {rule}{nearest}"
    raise Refusal.of(rule, (most,) if nearest else (), input_len=int(np.max(q.requests.input_len)))


def _is_judged(q: Question) -> bool:
    """Whether memory says what a server has room for: of one plan, and unless somebody says it."""
    return q.requests.kv_tokens is None and not any(np.ndim(getattr(q.plan, axis)) for axis in SIZES)


def why_it_does_not_start(q: Question) -> Note:
    """Which workers lack room with the limits that were asked for, how much, and what would help, under the limit's name; empty
    where all have it."""
    if not (q.limits.max_model_len or q.limits.max_num_seqs) or not _is_judged(q):
        return Note("", "")
    for kind, workers in pools_of(q).items():
        if starts(workers):
            continue
        shortest = {} if workers.limits.max_model_len else {starting.LENGTH: 1}  # which nobody asked for
        judged = add_advice(holds(judged_by_memory(workers.but(**shortest))))
        remedies = ", or with ".join(judged.advice)
        more = f"it would start with {remedies}" if remedies else "use more GPUs or a smaller model"
        return Note(judged.stopped_by, f"{lack_words(judged, kind)}; {more}")
    return Note("", "")


def lack_words(judged: Fit, kind: str = "") -> Note:
    """Return what workers of a kind lack to start."""
    limits, name = judged.question.limits, judged.question.engine.name
    if judged.holds_one:
        return words("lack-blocks", workers=kind, blocks=judged.kv_blocks, engine=name, seqs=limits.max_num_seqs)
    return words("lack-bytes", workers=kind, short=judged.shortfall_bytes, length=limits.max_model_len)


def own_limits_notes(q: Question, tokens: Number) -> list[Note]:
    """That servers do not start with the model's own length or the engine's own number of sequences, which they take where nobody
    says others, and up to which figures hold; nothing where they do, or where not even requests of so many ``tokens`` have room."""
    if q.trains or not _is_judged(q):
        return []
    told = {} if q.limits.max_num_seqs else {kind: told_max_num_seqs(workers) for kind, workers in pools_of(q).items()}
    most = " and ".join(f"{seqs}{kind}" for kind, seqs in told.items() if seqs)
    lack = words("own-seqs", engine=q.engine.name, seqs=str(q.engine.serves.max_seqs))
    return [*_length_notes(q, tokens), *([words("own-limits", lack=lack, limit=most)] if most else [])]


def _length_notes(q: Question, tokens: Number) -> list[Note]:
    if q.limits.max_model_len:
        return []
    pools = {kind: workers for kind, workers in pools_of(q).items() if full_length_requests(workers) < 1}
    short = {kind: _own_length(replace(workers.normal(), limits=workers.limits)) for kind, workers in pools.items()}
    most = min((longest for longest, _ in short.values()), default=0)
    if most < np.max(tokens):
        return []
    own, name = f"the checkpoint's own {q.model.max_len:,} tokens", q.engine.name
    lacks = " and ".join(f"each GPU{kind} is {format_bytes(lack)} short" for kind, (_, lack) in short.items())
    verdict = f"{name} would not start with {own}" if q.engine.memory.refuses_to_start else f"{name} has no room for {own}"
    return [words("own-limits", lack=f"{verdict}: {lacks}", limit=OptionValue("max-model-len", str(most)))]


def told_max_num_seqs(workers: Question, wanted: int = 0) -> int:
    """The ``max_num_seqs`` that servers should be told: as wanted, as far as they start with it; 0, the engine's own, where nothing
    is wanted and they start with that."""
    if not needs_blocks_for_states(workers):
        return wanted
    return _told_max_num_seqs(replace(workers.normal(), limits=replace(workers.limits, max_num_seqs=wanted)))


def startable(workers: Asked) -> Asked:
    """The same with as many sequences as its servers start with."""
    limits = workers.limits
    return replace(workers, limits=replace(limits, max_num_seqs=told_max_num_seqs(workers, limits.max_num_seqs)))


@cache_answers
def _told_max_num_seqs(workers: Question) -> int:
    judged = holds(judged_by_memory(workers))
    most = largest_max_num_seqs(judged)
    return most if most < judged.question.limits.max_num_seqs else workers.limits.max_num_seqs


@cache_answers
def _own_length(workers: Question) -> tuple[int, float]:
    """The longest request that workers have room for, and what a rank lacks for one of the model's own length."""
    judged = holds(judged_by_memory(workers))
    return longest_request(judged), judged.shortfall_bytes


def check_starts(q: Question) -> None:
    """Refuse what would not start."""
    if why := why_it_does_not_start(q):
        raise Refusal.of(f"does not start: {why}", **{why.code: getattr(q.limits, why.code)})


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
