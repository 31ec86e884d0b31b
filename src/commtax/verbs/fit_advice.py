"""What would make a model fit, or give its caches more room: engine limits, smaller numbers, larger plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Unpack

from commtax import catalog
from commtax.catalog.techniques import changes_of, technique
from commtax.judgement.engine_limits import SHARE, Changes, best_changes, caches_are_small, changes_to_try
from commtax.judgement.starting import SEQS
from commtax.options import check_taken
from commtax.records import replace
from commtax.spec import CACHE_SPLIT, SIZES, Cluster, Model
from commtax.statement import Note, OptionValue, Refusal
from commtax.units import format_bytes, plural
from commtax.verbs.cache_room import limits_of
from commtax.verbs.fitting import Fit, candidates, holds, judge, largest_max_num_seqs, longest_request, screen
from commtax.verbs.keywords import FitOptions
from commtax.verbs.settling import AUTO_EP, Settled, resolve_question
from commtax.words import words


def fit(model: str | Model, cluster: str | Cluster, *, advise: bool = True, **options: Unpack[FitOptions]) -> Fit:
    """Does it fit, and how much room is left for KV? Without ``tp``: the smallest TP (x PP) that holds ``max_model_len`` tokens.
    Where nothing fits, ``advise`` looks for the nearest changes that would (``advice``).

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
    """Return the same plan with the engine limits that let it hold more requests of full length.

    None where its caches have memory enough, or where no limit is worth it.
    """
    asked = judged.question
    if not caches_are_small(judged.kv_bytes / asked.cluster.chip.visible_bytes):
        return None

    def held(changes: Changes) -> float:
        found = judge(with_limits(asked, changes))
        most = found.question.limits.max_num_seqs if judged.fits else 1.0  # what does not fit shall hold one request
        return min(found.max_concurrency, most) if found.is_safe else 0.0

    changes = limits_worth_changing(judged, held, held)
    return judge(with_limits(asked, changes)) if changes else None


def limits_worth_changing(judged: Fit, gain: Callable[[Changes], float], room: Callable[[Changes], float] | None = None) -> Changes:
    """Return the engine limits whose ``gain`` for a replica is worth a change; those with which it starts as it is come first."""
    asked, engine = judged.question, judged.question.engine
    tried = changes_to_try(asked.limits, engine.memory.utilization_of, engine.serves.chunked)

    def held(changes: Changes) -> Fit:
        return judge(with_limits(asked, changes))

    return best_changes(gain, room or (lambda on: held(on).kv_tokens), tried, lambda on: held(on).fits)


def with_limits(asked: Settled, changes: Changes) -> Settled:
    """Return a question with all limits said with some of them changed; a share of memory that the engine chose is chosen anew."""
    usual = limits_of(replace(asked, limits=replace(asked.limits, gpu_memory_utilization=0.0)))
    own = {SHARE: 0.0} if usual == asked.limits else {}
    changed = replace(asked, limits=replace(asked.limits, **{**own, **changes}))
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
    """Return options to set, and why in brackets."""
    return words("advice", settings=settings, why=f" ({why})" * bool(why))


def _advice(failed: Fit) -> list[Note]:
    """Return the nearest changes that would make it fit, each tried, as options to set."""
    asked, room = failed.question, failed.question.limits
    if failed.over_bytes:
        left = room.kv_cache_memory_bytes - failed.over_bytes
        own = OptionValue("kv-cache-memory-bytes", f"{left:.0f}")
        return [_advise([own], "what the chip has left")] if left > 0 else plans_with_room(failed)
    roomier = failed.roomier
    changes = [_advise(changed_limits(roomier, failed))] if roomier and roomier.fits else []
    most = largest_max_num_seqs(failed)
    seqs = [OptionValue("max-num-seqs", str(most))] if most < room.max_num_seqs else []
    if failed.stopped_by == SEQS:
        changes.append(_advise(seqs, "a block for the state of each"))
    elif longest := longest_request(failed):
        changes.append(_advise([OptionValue("max-model-len", str(longest)), *seqs], "the longest request that fits as it is"))
    if not asked.plan.weights_dtype and not asked.model.quant:
        smaller = (dtype for dtype in ("fp8", "int4") if judge(asked.vary(weights_dtype=dtype)).fits)
        changes += [_advise([OptionValue("dtype", dtype)], "smaller weights") for dtype in islice(smaller, 1)]
    if asked.plan.kv_dtype != "fp8" and judge(asked.vary(kv_dtype="fp8")).fits:
        changes.append(_advise([OptionValue("kv-dtype", "fp8")]))
    return changes + plans_with_room(failed)


def plans_with_room(failed: Fit, enough: Callable[[Fit], bool] = attrgetter("fits")) -> list[Note]:
    """Return the nearest plans that have room enough: the same with split caches, and one of at least as many GPUs."""
    asked, base, plan = failed.question, failed.question.cluster, failed.question.plan
    own, now, dp, spread = (plan.tp, plan.pp), int(plan.tp) * int(plan.pp), int(plan.dp), bool(plan.ep > 1)
    full, unit = catalog.whole_host(base), catalog.whole_unit(base)
    may_fit = screen(asked, spread)
    wanted = asked.plain().but(
        ep=AUTO_EP if spread else 1, replicas=1, sequence_parallel=asked.engine.trains.sequence_parallel, profile=None
    )
    places = [base] + [catalog.with_hosts(base, n * unit, full) for n in (1, 2, 4, 8, 16, 32, 64)]
    for place in {place.key: place for place in places if place.num_gpus >= now * dp}.values():
        for candidate in candidates(wanted.but(cluster=place), may=lambda t, p: t * p >= now and (t, p) != own and may_fit(t, p)):
            if enough(judge(candidate)):
                size = int(candidate.plan.tp) * int(candidate.plan.pp)
                sizes = [OptionValue("tp", str(candidate.plan.tp))]
                sizes += [OptionValue("pp", str(candidate.plan.pp))] if candidate.plan.pp != 1 or plan.pp != 1 else []
                sizes += [OptionValue("cluster", place.key)] if place.key != base.key else []
                return [*_split_caches(asked, enough), _advise(sizes, plural(size * dp, "GPU"))]
    return _split_caches(asked, enough)


def _split_caches(asked: Settled, enough: Callable[[Fit], bool]) -> list[Note]:
    """Return the fewest ranks of tp that have room enough where they split the cache of each sequence."""
    for text in () if asked.requests.disaggregated else technique(CACHE_SPLIT).at_usual_values:
        with suppress(Refusal):
            if enough(judge(asked.but(**changes_of(text)))):
                return [_advise([OptionValue(*text.split("="))])]
    return []


def without_adapters(judged: Fit) -> Fit | None:
    """The same without its LoRA adapters; None where it has none."""
    asked = judged.question
    return judge(asked.vary(lora_rank=0, max_loras=1)) if asked.plan.lora_rank else None
