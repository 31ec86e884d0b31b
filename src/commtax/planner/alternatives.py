"""What stands beside an answer: each of two clusters by itself (pools that span both have to beat the sum of both), other types of
weights, engine limits that make more room; and remedies where no plan is good, each tried before it is offered."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from commtax import catalog
from commtax.cost.memory import on_chip
from commtax.judgement.engine_limits import Changes, memory_binds
from commtax.judgement.leading import UNCHECKED
from commtax.judgement.margins import is_close
from commtax.planner import serving_search
from commtax.planner.columns import USUAL, ServingColumns, ServingPlans, ground, objective_value, power, request_s
from commtax.planner.money import counted_tokens_per_s, paid, per_million
from commtax.planner.reasons import TITLES, against_codes, against_note, distance_words, missed_times, more_words
from commtax.question import EVEN, Question
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Cluster
from commtax.statement import Note, Refusal
from commtax.units import format_money, format_seconds, plural, round_up_seconds
from commtax.verbs.disaggregation import where_prompts_run
from commtax.verbs.fit_advice import changed_limits, limit_costs, limits_worth_changing, make_room, room_words
from commtax.verbs.fitting import Fit, holds, judged_by_memory
from commtax.verbs.settling import describe_layout, replan
from commtax.words import words

Placed = tuple[ServingPlans, ServingColumns, int]  # a row of some plans of an answer
RowLoads = Callable[[ServingPlans, ServingColumns, int], ServingColumns]  # the good loads of a row's plan, best first
SUMMED = ("throughput", "cost")  # objectives by which what counts of two clusters is what both give
SMALLER = ("fp8", "int4")
MOST_HOSTS = 64


def questions_alone(put: Question) -> Iterator[Question]:
    """Yield the same question of each of two clusters, that for prompts first. There is none where one cluster does both."""
    ahead, goal = put.requests.prefill_cluster, put.goal
    if not ahead:
        return
    alone = put.but(prefill_cluster=None, prefill_usd_per_gpu_hour=0.0)
    yield replace(alone, cluster=ahead, engine=on_chip(put.engine, ahead.chip)).but(usd_per_gpu_hour=goal.prefill_usd_per_gpu_hour)
    yield alone


def alone_words(answer: ServingPlans) -> Iterator[str]:
    """Yield whether to split: what each cluster and both deliver alone beside two pools, and what unchecked pools on each would."""
    if not answer.alone:
        return
    usual = bool(answer.places)
    good = [(one, *(one.answered if usual else (one.plans, one.recommended))) for one in answer.alone if len(one.plans)]
    lost = [f"{one.question.cluster.key} has no plan within the limits" for one in answer.alone if not len(one.plans)]
    one_pool = ", in one pool" * all(rows.mode[i] == 0 for _, rows, i in good)
    alone = "; ".join([*(_one_alone(*placed) for placed in good), *lost])
    yield f"{_judged(answer, good) if good else ''}each cluster by itself{one_pool}: {alone}"
    split = [(one, rows, _unchecked_place(one, rows, i)) for one, rows, i in good]
    if any(rows.mode[i] > listed.mode[j] for (_, rows, i), (_, listed, j) in zip(split, good, strict=True)):
        together = f": {_sum_words(answer, split)}" * (answer.question.goal.objective in SUMMED)
        plans = "; ".join(_one_alone(*placed) for placed in split) + together
        yield words("alone-in-pools", plans=plans, against=against_note(UNCHECKED))


def usual_limits(answers: Sequence[ServingPlans]) -> dict[str, float]:
    """Return limits that the usual points of all answers keep with the required confidence, so that each has a plan within them."""
    usual = [(a, a.usual.plans, a.usual.recommended, a.question.goal.confidence) for a in answers]
    sure = {name: [float(a.estimate(rows, i, name).sure(confidence)) for a, rows, i, confidence in usual] for name in TITLES}
    return {name: max(map(round_up_seconds, seconds)) for name, seconds in sure.items()}


def _unchecked_place(one: ServingPlans, rows: ServingColumns, chosen: int) -> int:
    """Return the best row with two pools where it is ahead of the recommended one, else the recommended one."""
    value = (objective_value if rows is one.plans else power)(one.question, rows)
    pools = np.flatnonzero(rows.mode == 1)[:1].tolist()
    return next((i for i in pools if UNCHECKED in against_codes(one.question, rows, i) and value[i] > value[chosen]), chosen)


def _one_alone(one: ServingPlans, rows: ServingColumns, i: int) -> str:
    q = one.question
    times = f", TTFT {format_seconds(rows.ttft_s[i])}, TPOT {format_seconds(rows.tpot_s[i])}" if not q.goal.times else ""
    request = f"requests of {format_seconds(request_s(q, rows)[i])}, " if q.goal.objective == "latency" else ""
    usd = f" ({format_money(one.usd_per_million_tokens(rows)[i])} per million)" if q.goal.usd_per_gpu_hour else ""
    return f"{q.cluster.key} {request}{rows.tokens_per_s[i]:,.0f} tokens/s{usd} with {one.workers(rows, i)}{times}"


def _sums(good: Sequence[Placed]) -> tuple[float, int, float]:
    """Sum tokens/s, GPUs and dollars per hour. Where no price is known, a GPU counts one dollar."""
    spent = sum((one.question.goal.usd_per_gpu_hour or 1.0) * float(rows.gpus[i]) for one, rows, i in good)
    return sum(float(rows.tokens_per_s[i]) for _, rows, i in good), sum(int(rows.gpus[i]) for _, rows, i in good), spent


def _judged(answer: ServingPlans, good: Sequence[Placed]) -> str:
    """Judge whether two pools beat both clusters alone, on as many GPUs or else per dollar (or GPU), and by how much in both."""
    goal, (rows, first), (rate, gpus, spent) = answer.question.goal, answer.answered, _sums(good)
    if goal.objective not in SUMMED:
        alone = max(float(objective_value(one.question, each)[i]) for one, each, i in good)
        return f"{_split_verdict(answer, alone / float(objective_value(answer.question, rows)[first]))}; "
    pools = (goal.usd_per_gpu_hour or 1.0) * float(paid(goal, rows.gpus[first], rows.prefill_gpus[first]))
    as_many = np.flatnonzero(rows.gpus == gpus)[:1].tolist() if goal.objective == "throughput" else []
    beside, lead = (as_many or [first])[0], rate / float(rows.tokens_per_s[first]) / spent * pools
    more = rate / float(rows.tokens_per_s[beside])
    recommended, unit = f"these two pools on {plural(int(rows.gpus[first]), 'GPU')}", "dollar" if goal.usd_per_gpu_hour else "GPU"
    cheaper = f"{more_words(lead)} tokens{'/s' * (unit == 'GPU')} per {unit}"
    than = f"{recommended} and {cheaper}" if more_words(lead) != more_words(more) else recommended
    if beside != first:
        best = f"the best two pools on as many ({rows.tokens_per_s[beside]:,.0f} with {answer.workers(rows, beside)})"
        than = f"{best}, and {cheaper} than {recommended}"
    sums, ratio = f"without a split, {_sum_words(answer, good)}, {more_words(more)} tokens/s than {than}", more if as_many else lead
    who = " when nobody waits" * any(one.places for one in answer.alone)
    if answer.places:  # the objective there is tokens/s over the time of a request
        alone_s = sum(float(each.tokens_per_s[i] * request_s(one.question, each)[i]) for one, each, i in good) / rate
        pools_s, who = float(request_s(answer.question, rows)[beside]), f" when users wait ({USUAL})"
        sums += f", in requests of {format_seconds(alone_s)} instead of {format_seconds(pools_s)}"
        ratio = float(np.sqrt(ratio * pools_s / alone_s))  # two figures that err
    return f"{_split_verdict(answer, ratio)}{who}: {sums}; "


def _split_verdict(answer: ServingPlans, ratio: float) -> str:
    """Say whether to split prompts from decoding, by the objective without a split over that with two pools."""
    if (answer.question.goal.objective != "gpus" or ratio == 1) and is_close(answer.question, ratio, pools=True):
        return "whether to split prompts from decoding is too close to call, measure both"
    return f"it is better {'not ' * (ratio > 1)}to split prompts from decoding"


def _sum_words(answer: ServingPlans, good: Sequence[Placed]) -> str:
    (rate, gpus, spent), q = _sums(good), answer.question
    price = format_money(float(per_million(spent, counted_tokens_per_s(q, rate)))) if q.goal.usd_per_gpu_hour else ""
    usd = f" ({price} per million)" if price else ""
    return f"{rate:,.0f} tokens/s{usd}{' together' * (len(good) > 1)} on {plural(gpus, 'GPU')}"


def best_of_types(answer: ServingPlans) -> Iterator[str]:
    """Yield a line for each requested type, the best first, and a warning that smaller types change the model's answers."""
    dtypes, rows = answer.question.goal.dtypes, answer.plans
    if len(dtypes) < 2:
        return
    first = {index: int(places[0]) for index in range(len(dtypes)) if len(places := np.flatnonzero(rows.dtype == index))}
    for index, i in sorted(first.items(), key=lambda pair: pair[1]):
        behind = f" ({distance_words(answer, i, beside='tokens/s')})" if i else ""
        rate = f"{float(rows.tokens_per_s[i]):,.0f} tokens/s{behind} at TTFT {format_seconds(rows.ttft_s[i])}"
        tpot = f" and TPOT {format_seconds(rows.tpot_s[i])}" if answer.question.requests.output_len > 1 else ""
        yield f"best in {dtypes[index] or 'its own type'}: {answer.workers(rows, i)}, {rate}{tpot}"
    for index in (index for index in range(len(dtypes)) if index not in first):
        lost = [r for r in answer.rejected if r.dtype == index]
        why = f"{lost[-1].family} {lost[-1].reason}" if lost else "no plan is good"
        yield f"none in {dtypes[index] or 'its own type'}: {why}"
    model = answer.question.model
    stored = DTYPE_BYTES.get(model.quant.dtype if model.quant else model.dtype, 2.0)
    if smaller := [name for name in dtypes if name and DTYPE_BYTES.get(name, stored) < stored]:
        yield f"weights in {' and '.join(smaller)} change the model's answers: accuracy is not predicted"


def answer_with_room(answer: ServingPlans, loads: RowLoads, search: Callable[[Question], ServingPlans]) -> ServingPlans | None:
    """Return what a whole search answers with the engine limits that gain most on the recommended plan, if any gains enough."""
    rows, first, q = answer.plans, answer.recommended, answer.question
    if rows.mode[first] or not memory_binds(float(rows.kv_headroom[first])):
        return None

    def worth(changes: Changes) -> float:
        points = loads(replace(answer, question=q.but(**changes)), rows, first) if changes else rows.row(first)
        return float(max(objective_value(q, points), default=0.0))

    changes = limits_worth_changing(recommended_fit(answer), worth)
    roomier = search(q.but(**changes)) if changes else None
    return roomier if roomier and len(roomier.plans) else None


def recommended_fit(answer: ServingPlans) -> Fit:
    """Return what a replica of the recommended plan holds, as ``fit`` judges it."""
    return holds(judged_by_memory(answer.put(answer.plans, answer.recommended)).but(disaggregated=False))


def roomier_words(answer: ServingPlans) -> list[Note]:
    """Note what other engine limits bring where memory binds, and what they cost."""
    roomier = answer.roomier
    if not roomier:
        return []
    now, then, i, j = answer.plans, roomier.plans, answer.recommended, roomier.recommended
    fits = recommended_fit(roomier), recommended_fit(answer)
    where = "" if roomier.layout(then, j) == answer.layout(now, i) else f"{roomier.gpu_words(then, j)}, "
    gain = float(then.tokens_per_s[j] / now.tokens_per_s[i]) - 1
    ttft, tpot = (format_seconds(float(seconds[j])) for seconds in (then.ttft_s, then.tpot_s))
    figures = f"{plural(int(then.concurrency[j]), 'client')}, {then.tokens_per_s[j]:,.0f} tokens/s ({gain:+.0%})"
    limits = {"room": room_words(*fits), "settings": changed_limits(*fits), "costs": limit_costs(*fits)}
    return [words("roomier", where=where, figures=figures, ttft=ttft, tpot=tpot, **limits)]


def to_fit(base: Question) -> Iterator[Note]:
    """Yield the least GPUs that would hold the model, of each pool that does not, and the types in which those there would."""
    put = replan(base, max_model_len=max(base.limits.max_model_len, int(base.requests.tokens)))
    pools = {" for prompts": where_prompts_run(put), " for decoding": put} if put.requests.prefill_cluster else {"": put}
    first = put.goal.dtypes[0]
    if len(pools) == 1 and (roomier := make_room(near := _fit(put, first))) and roomier.fits:
        yield words("remedy-limits", settings=changed_limits(roomier, near), plan=describe_layout(roomier.question.plan))
    for kind, q in pools.items():
        if len(pools) > 1 and _fit(q, first).fits:
            continue
        for place in larger_clusters(q.cluster):
            if (judged := _fit(q.but(cluster=place), first)).fits:
                plan = judged.question.plan
                yield words("remedy-gpus", cluster=place.key, pool=kind, tp=int(plan.tp), pp=int(plan.pp))
                break
    for dtype in _smaller_types(put):
        if all(_fit(q, dtype).fits for q in pools.values()):
            yield words("remedy-weights", dtype=dtype)
            break


def _fit(q: Question, dtype: str) -> Fit:
    return holds(judged_by_memory(q).but(weights_dtype=dtype), chosen=False)


def larger_clusters(here: Cluster) -> Iterator[Cluster]:
    """Yield clusters of more of the same chips: a whole host, then hosts by doubling."""
    each = catalog.whole_host(here)
    hosts = here.num_hosts * (2 if each == here.gpus_per_host else 1)
    while hosts <= MOST_HOSTS:
        yield catalog.with_hosts(here, hosts, each)
        hosts *= 2


def _smaller_types(q: Question) -> Iterator[str]:
    """Yield the types with fewer bytes per weight than any that was tried, in which some plan is legal."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    least = min(DTYPE_BYTES.get(name or stored, 2.0) for name in q.goal.dtypes)
    for name in (name for name in SMALLER if DTYPE_BYTES[name] < least):
        with suppress(Refusal):  # the tiles of some types divide by no number of ranks
            ground(q.but(weights_dtype=name))
            yield name


def to_meet(answer: ServingPlans) -> Iterator[Note]:
    """Yield what would let a plan meet the limits: milder limits, a lower confidence, smaller weights, shorter prompts, GPUs."""
    q, goal, near = answer.question, answer.question.goal, answer.near
    ttft, tpot = float(near.sure_ttft_s[0]), float(near.sure_tpot_s[0])
    missed = missed_times(q, near, dict.fromkeys(TITLES, 0))  # the nearest plan keeps these as surely as is wanted
    kept = [f"{TITLES[name]} {format_seconds(round_up_seconds(float(getattr(near, f'sure_{name}')[0])))}" for name in missed]
    yield words("remedy-times", times=" and ".join(kept))
    if (sure := max(answer.kept(near, i) for i in range(len(near)))) >= EVEN:
        yield words("remedy-confidence", sure=f"{math.floor(100 * sure)}%")
    for dtype in _smaller_types(q):
        other = serving_search.search_serving(q.but(weights_dtype=dtype, dtypes=(dtype,)))
        best = other.plans if len(other.plans) else other.near
        if len(best):
            times = f"TPOT {format_seconds(float(best.tpot_s[0]))}, TTFT {format_seconds(float(best.ttft_s[0]))}"
            yield words("remedy-weights-tried", dtype=dtype, verdict="meets them" if len(other.plans) else f"at best {times}")
            break
    if ttft > goal.ttft_s:
        yield words("remedy-prompts", factor=ttft / goal.ttft_s)
    yield words("remedy-faster" if tpot > goal.tpot_s else "remedy-more")
