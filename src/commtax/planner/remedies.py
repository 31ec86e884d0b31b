"""Remedies where no plan is good: what would have to change, each tried before it is offered."""

import math
from collections.abc import Iterator

from commtax import catalog
from commtax.planner import serving_search
from commtax.planner.columns import ServingPlans, ground
from commtax.planner.reasons import TITLES, missed_times
from commtax.question import EVEN, Question
from commtax.spec import DTYPE_BYTES, Cluster
from commtax.statement import Note, Refusal
from commtax.units import format_seconds, round_up_seconds
from commtax.verbs.disaggregation import where_prompts_run
from commtax.verbs.fit_advice import changed_limits, make_room
from commtax.verbs.fitting import Fit, holds, judged_by_memory
from commtax.verbs.settling import describe_layout, replan
from commtax.words import words

SMALLER = ("fp8", "int4")
MOST_HOSTS = 64


def to_fit(base: Question) -> Iterator[Note]:
    """Yield the least GPUs that would hold the model, of each pool that does not, and the types in which those there would."""
    put = replan(base, max_model_len=max(base.limits.max_model_len, int(base.requests.tokens)))
    pools = {"": put}
    if put.requests.prefill_cluster:
        pools = {" for prompts": where_prompts_run(put), " for decoding": put}
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
    hosts, each = here.num_hosts, catalog.whole_host(here)
    hosts = hosts * 2 if each == here.gpus_per_host else hosts
    while hosts <= MOST_HOSTS:
        yield catalog.with_hosts(here, hosts, each)
        hosts *= 2


def _smaller_types(q: Question) -> list[str]:
    """Return the types with fewer bytes per weight than any that was tried, in which some plan is legal."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    least = min(DTYPE_BYTES.get(name or stored, 2.0) for name in q.goal.dtypes)
    return [name for name in SMALLER if DTYPE_BYTES[name] < least and _has_legal_plan(q.but(weights_dtype=name))]


def _has_legal_plan(q: Question) -> bool:
    """Return whether the model may be run in its type: the tiles of some divide by no number of ranks."""
    try:
        return bool(ground(q))
    except Refusal:
        return False


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
