"""Whether servers start, with room for one request of full length in each pool, and what would make a model fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import TypeVar, Unpack

import numpy as np

from commtax import catalog
from commtax.arrays import cache_answers
from commtax.catalog.techniques import changes_of, technique
from commtax.judgement import engine_limits
from commtax.judgement.engine_limits import SEQS, SHARE, Changes, best_changes, caches_are_small, changes_to_try
from commtax.options import check_taken
from commtax.question import Question
from commtax.records import replace
from commtax.rules.questions import longest_taken
from commtax.spec import CACHE_SPLIT, SIZES, Cluster, Condition, Model, Number
from commtax.statement import Note, OptionValue, Refusal
from commtax.units import format_bytes, plural
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fitting import Fit, candidates, holds, judge, judged_by_memory, largest_max_num_seqs, longest_request, screen
from commtax.verbs.keywords import FitOptions
from commtax.verbs.kv_caches import cache_tokens, full_length_requests, limits_of, most_seqs_to_start, needs_blocks_for_states
from commtax.verbs.settling import AUTO_EP, Settled, resolve_question, settle
from commtax.words import words


def fit(model: str | Model, cluster: str | Cluster, *, advise: bool = True, **options: Unpack[FitOptions]) -> Fit:
    """Judge whether a model fits, and how much room is left for KV. Without ``tp`` it is the smallest TP (x PP) that holds
    ``max_model_len`` tokens. Where nothing fits, ``advise`` looks for the nearest changes that would (``advice``).

    >>> fit("llama-3.1-70b", "8xh100-sxm").question.plan.tp
    4
    """
    if "phase" in options:
        raise Refusal.about(phase="fit is about serving; train_fit is about training")
    put = resolve_question(model, cluster, check_taken("fit", options))
    tp, pp, *_ = (options.get(axis) for axis in SIZES)
    judged = holds(put, chosen=tp is not None, stages=int(put.plan.pp) if pp else None)
    return add_advice(judged) if advise else judged


def add_advice(judged: Fit) -> Fit:
    """Return what does not fit with the nearest changes that would, and what has little room with engine limits that make more."""
    judged = replace(judged, roomier=make_room(judged))
    return judged if judged.fits else replace(judged, advice=tuple(_advice(judged)))


def make_room(judged: Fit) -> Fit | None:
    """Return the same plan with engine limits that make room for more requests, None where caches are large or none is worth it."""
    q, small = judged.question, caches_are_small(judged.kv_bytes / judged.question.cluster.chip.visible_bytes)

    def capacity(changes: Changes) -> float:
        other = judge(with_limits(q, changes))
        most = other.question.limits.max_num_seqs if judged.fits else 1.0  # what does not fit shall hold one request
        return min(other.max_concurrency, most) if other.is_safe else 0.0

    changes = limits_worth_changing(judged, capacity, capacity) if small else None
    return judge(with_limits(q, changes)) if changes else None


def limits_worth_changing(judged: Fit, gain: Callable[[Changes], float], room: Callable[[Changes], float] | None = None) -> Changes:
    """Return the engine limits whose ``gain`` for a replica is worth a change, those with which it starts as it is first."""
    q, engine = judged.question, judged.question.engine
    tried = changes_to_try(q.limits, engine.memory.utilization_of, engine.serves.chunked)
    room = room or (lambda on: judge(with_limits(q, on)).kv_tokens)
    return best_changes(gain, room, tried, lambda on: judge(with_limits(q, on)).fits)


def with_limits(q: Settled, changes: Changes) -> Settled:
    """Return a question with all limits explicit and some changed. A share of memory that the engine chose is chosen anew."""
    usual = limits_of(replace(q, limits=replace(q.limits, gpu_memory_utilization=0.0)))
    changed = replace(q, limits=replace(q.limits, **{**({SHARE: 0.0} if usual == q.limits else {}), **changes}))
    return replace(changed, limits=limits_of(changed))


def changed_limits(roomier: Fit, judged: Fit) -> list[OptionValue]:
    """Return the limits in which two differ: ``--max-num-seqs 64 --gpu-memory-utilization 0.95``."""
    now, then = judged.question.limits, roomier.question.limits
    differ = (name for name in (SEQS, "max_num_batched_tokens", SHARE) if getattr(then, name) != getattr(now, name))
    return [OptionValue(name.replace("_", "-"), f"{getattr(then, name):g}") for name in differ]


def room_words(roomier: Fit, judged: Fit) -> Note:
    """Return what the caches of a replica hold with other engine limits, and as it is."""
    each, settings = "data-parallel rank" if judged.question.plan.dp > 1 else "replica", changed_limits(roomier, judged)
    return words("room", settings=settings, roomier=roomier.kv_tokens, rank=each, tokens=judged.kv_tokens)


def limit_costs(roomier: Fit, judged: Fit) -> str:
    """Return what other engine limits cost."""
    now, then = judged.question.limits, roomier.question.limits
    costs = [f"at most {then.max_num_seqs:,} sequences run at once"] * (then.max_num_seqs != now.max_num_seqs)
    if then.max_num_batched_tokens != now.max_num_batched_tokens:
        costs.append(f"prompts are cut into chunks of {then.max_num_batched_tokens:,} tokens, which delays first tokens")
    if then.gpu_memory_utilization != now.gpu_memory_utilization:
        left = judged.question.cluster.chip.visible_bytes * (1 - then.gpu_memory_utilization)
        costs.append(f"{format_bytes(left)} of each GPU is left for what the engine does not count")
    return "; ".join(costs)


def _advise(settings: Sequence[OptionValue], why: str = "") -> Note:
    return words("advice", settings=settings, why=f" ({why})" * bool(why))


def _advice(failed: Fit) -> list[Note]:
    q, room = failed.question, failed.question.limits
    if failed.over_bytes:
        left = room.kv_cache_memory_bytes - failed.over_bytes
        setting = OptionValue("kv-cache-memory-bytes", f"{left:.0f}")
        return [_advise([setting], "what the chip has left")] if left > 0 else plans_with_room(failed)
    roomier = failed.roomier
    changes = [_advise(changed_limits(roomier, failed))] if roomier and roomier.fits else []
    most = largest_max_num_seqs(failed)
    seqs = [OptionValue("max-num-seqs", str(most))] if most < room.max_num_seqs else []
    if failed.stopped_by == SEQS:
        changes.append(_advise(seqs, "a block for the state of each"))
    elif longest := longest_request(failed):
        changes.append(_advise([OptionValue("max-model-len", str(longest)), *seqs], "the longest request that fits as it is"))
    if not q.plan.weights_dtype and not q.model.quant:
        smaller = (dtype for dtype in ("fp8", "int4") if judge(q.vary(weights_dtype=dtype)).fits)
        changes += [_advise([OptionValue("dtype", dtype)], "smaller weights") for dtype in islice(smaller, 1)]
    if q.plan.kv_dtype != "fp8" and judge(q.vary(kv_dtype="fp8")).fits:
        changes.append(_advise([OptionValue("kv-dtype", "fp8")]))
    return changes + plans_with_room(failed)


def plans_with_room(failed: Fit, enough: Callable[[Fit], bool] = attrgetter("fits")) -> list[Note]:
    """Return the nearest plans with room: the same with split caches, and one of as many GPUs or more, as few as possible."""
    q, base, plan = failed.question, failed.question.cluster, failed.question.plan
    current, now, dp, spread = (plan.tp, plan.pp), int(plan.tp) * int(plan.pp), int(plan.dp), bool(plan.ep > 1)
    full, unit = catalog.whole_host(base), catalog.whole_unit(base)
    may_fit = screen(q, spread)
    wanted = q.plain().but(ep=AUTO_EP if spread else 1, replicas=1, profile=None)
    wanted = wanted.but(sequence_parallel=q.engine.trains.sequence_parallel)
    places = [base] + [catalog.with_hosts(base, n * unit, full) for n in (1, 2, 4, 8, 16, 32, 64)]
    places = list({place.key: place for place in places if place.num_gpus >= now * dp}.values())
    split = _split_caches(q, enough)
    for place in places:
        for other in candidates(wanted.but(cluster=place), may=lambda t, p: t * p >= now and (t, p) != current and may_fit(t, p)):
            if enough(judge(other)):
                tp, pp = int(other.plan.tp), int(other.plan.pp)
                sizes = [OptionValue("tp", str(tp))] + [OptionValue("pp", str(pp))] * (pp != 1 or plan.pp != 1)
                sizes += [OptionValue("cluster", place.key)] * (place.key != base.key)
                return [*split, _advise(sizes, plural(tp * pp * dp, "GPU"))]
    return split


def _split_caches(q: Settled, enough: Callable[[Fit], bool]) -> list[Note]:
    """Return the fewest ranks of tp with room where they split each sequence's cache, which changes nothing else."""
    for text in () if q.requests.disaggregated else technique(CACHE_SPLIT).at_usual_values:
        with suppress(Refusal):
            if enough(judge(q.but(**changes_of(text)))):
                return [_advise([OptionValue(*text.split("="))])]
    return []


def without_adapters(judged: Fit) -> Fit | None:
    """Judge the same plan without its LoRA adapters, if it has any."""
    q = judged.question
    return judge(q.vary(lora_rank=0, max_loras=1)) if q.plan.lora_rank else None


AnyQuestion = TypeVar("AnyQuestion", bound=Question)
ROUND = 256  # lengths that were not requested are whole multiples of this many tokens


def starts(workers: Question) -> Condition:
    """Return whether workers start with the requested limits, if any. Arrays as the plan."""
    length, seqs = workers.limits.max_model_len, workers.limits.max_num_seqs
    most = most_seqs_to_start(workers) if seqs else np.inf
    return engine_limits.starts(full_length_requests(workers) if length else 1, seqs, most)


def pools_of(q: Question) -> Mapping[str, Question]:
    """Return the question of each kind of workers, by what they do."""
    settled = q if isinstance(q, Settled) else settle(q)
    plain = settled.plain()
    return {" for prompts": prompter(settled), " for decoding": plain} if q.requests.disaggregated else {"": plain}


def check_lengths(q: Question) -> Question:
    """Refuse requests that are all longer than servers take: by their mean length, or the shortest of a trace."""
    limit, trace = q.limits.max_model_len, q.offered.trace
    tokens = int(np.max(q.requests.tokens) if trace is None else np.min(trace.input_len + trace.output_len))
    if tokens <= longest_taken(q):
        return q
    if limit:
        rule = f"fewer than input_len + output_len = {tokens:,}; nearest valid: {tokens}"
        raise Refusal.of(rule, (tokens,), max_model_len=limit)
    rule = f"more than the {q.model.max_len:,} positions of {q.model.key}"
    if trace is not None:
        raise Refusal.about(trace=f"the shortest request has {tokens:,} tokens with its answer, {rule}")
    most = q.model.max_len - int(np.max(q.requests.output_len))
    rule = f"with output_len it makes {tokens:,} tokens, {rule}" + f"; nearest valid input_len: {most}" * (most > 0)
    raise Refusal.of(rule, (most,) * (most > 0), input_len=int(np.max(q.requests.input_len)))


def _is_judged(q: Question) -> bool:
    """Return whether memory decides a server's room: of one plan, and unless ``kv_tokens`` sets it."""
    return q.requests.kv_tokens is None and not any(np.ndim(getattr(q.plan, axis)) for axis in SIZES)


def why_it_does_not_start(q: Question) -> Note:
    """Return which workers lack room with the requested limits, and what would help, under the limit's name, else an empty note."""
    if not (q.limits.max_model_len or q.limits.max_num_seqs) or not _is_judged(q):
        return Note("", "")
    for kind, workers in ((kind, workers) for kind, workers in pools_of(q).items() if not starts(workers)):
        shortest = {} if workers.limits.max_model_len else {engine_limits.LENGTH: 1}  # which was not requested
        judged = add_advice(holds(judged_by_memory(workers.but(**shortest))))
        remedies = ", or with ".join(judged.advice)
        more = f"it would start with {remedies}" if remedies else "use more GPUs or a smaller model"
        return Note(judged.stopped_by, f"{lack_words(judged, kind)}; {more}")
    return Note("", "")


def lack_words(judged: Fit, kind: str = "") -> Note:
    """Describe what workers of a kind lack to start."""
    limits, name = judged.question.limits, judged.question.engine.name
    if judged.holds_one:
        return words("lack-blocks", workers=kind, blocks=judged.kv_blocks, engine=name, seqs=limits.max_num_seqs)
    return words("lack-bytes", workers=kind, short=judged.shortfall_bytes, length=limits.max_model_len)


def default_limits_notes(q: Question, tokens: Number) -> list[Note]:
    """Return notes that servers do not start with the default length or number of sequences, and up to which limits the figures
    hold, or none where they start, or where not even requests of so many ``tokens`` fit."""
    if q.trains or not _is_judged(q):
        return []
    allowed = {} if q.limits.max_num_seqs else {kind: max_num_seqs_to_start(workers) for kind, workers in pools_of(q).items()}
    most = " and ".join(f"{seqs}{kind}" for kind, seqs in allowed.items() if seqs)
    lack = words("own-seqs", engine=q.engine.name, seqs=str(q.engine.serves.max_seqs))
    return [*_length_notes(q, tokens), *([words("own-limits", lack=lack, limit=most)] if most else [])]


def _length_notes(q: Question, tokens: Number) -> list[Note]:
    if q.limits.max_model_len:
        return []
    pools = {kind: workers for kind, workers in pools_of(q).items() if full_length_requests(workers) < 1}
    short = {kind: _longest_to_start(replace(workers.normal(), limits=workers.limits)) for kind, workers in pools.items()}
    most = min((longest for longest, _ in short.values()), default=0)
    if most < np.max(tokens):
        return []
    length, name = f"the checkpoint's own {q.model.max_len:,} tokens", q.engine.name
    lacks = " and ".join(f"each GPU{kind} is {format_bytes(lack)} short" for kind, (_, lack) in short.items())
    verdict = f"{name} would not start with {length}" if q.engine.memory.refuses_to_start else f"{name} has no room for {length}"
    return [words("own-limits", lack=f"{verdict}: {lacks}", limit=OptionValue("max-model-len", str(most)))]


def max_num_seqs_to_start(workers: Question, wanted: int = 0) -> int:
    """Return the ``max_num_seqs`` to start servers with: the largest up to the wanted one, or 0 where the engine's own will do."""
    if not needs_blocks_for_states(workers):
        return wanted
    return _max_num_seqs_to_start(replace(workers.normal(), limits=replace(workers.limits, max_num_seqs=wanted)))


def startable(workers: AnyQuestion) -> AnyQuestion:
    """Return the same workers with as many sequences as they start with."""
    seqs = max_num_seqs_to_start(workers, workers.limits.max_num_seqs)
    return replace(workers, limits=replace(workers.limits, max_num_seqs=seqs))


@cache_answers
def _max_num_seqs_to_start(workers: Question) -> int:
    judged = holds(judged_by_memory(workers))
    most = largest_max_num_seqs(judged)
    return most if most < judged.question.limits.max_num_seqs else workers.limits.max_num_seqs


@cache_answers
def _longest_to_start(workers: Question) -> tuple[int, float]:
    """Return the longest request that workers have room for, and what a rank lacks for one of the model's own length."""
    judged = holds(judged_by_memory(workers))
    return longest_request(judged), judged.shortfall_bytes


def check_starts(q: Question) -> None:
    """Refuse what would not start."""
    if why := why_it_does_not_start(q):
        raise Refusal.of(f"does not start: {why}", **{why.code: getattr(q.limits, why.code)})


def length_to_start_with(q: Question, longest: float) -> int:
    """Return the ``max_model_len`` to start servers with: as requested, or 0, the model's own, where all caches hold that.

    Else what the ``longest`` of their requests needs, in whole steps of ``ROUND``, as far as the caches hold it.
    """
    if q.limits.max_model_len:
        return q.limits.max_model_len
    room = min(int(cache_tokens(workers)) for workers in pools_of(q).values())
    if room >= q.model.max_len:
        return 0
    return int(max(q.requests.tokens, min(math.ceil(longest / ROUND) * ROUND, room, q.model.max_len)))
