"""Where no plan is good: what would have to change, tried before it is said."""

import math
from collections.abc import Iterator

from commtax import catalog
from commtax.planner import serving_search
from commtax.planner.columns import ServingPlans, ground
from commtax.planner.reasons import SAID, missed_times
from commtax.question import EVEN, Question
from commtax.spec import DTYPE_BYTES, Cluster
from commtax.statement import Refusal
from commtax.units import format_seconds, round_up_seconds
from commtax.verbs.disaggregation import where_prompts_run
from commtax.verbs.fit_advice import limit_flags, make_room
from commtax.verbs.fitting import Fit, holds, judged_by_memory
from commtax.verbs.settling import describe_layout, replan

SMALLER = ("fp8", "int4")
MOST_HOSTS = 64


def to_fit(asked: Question) -> Iterator[str]:
    """The least GPUs that would hold the model, of each pool that does not, and the types in which those there would."""
    put = replan(asked, max_model_len=max(asked.limits.max_model_len, int(asked.requests.tokens)))
    pools = {"": put}
    if put.requests.prefill_cluster:
        pools = {" for prompts": where_prompts_run(put), " for decoding": put}
    first = put.goal.dtypes[0]
    if len(pools) == 1 and (roomier := make_room(near := _fit(put, first))) and roomier.fits:
        yield f"{limit_flags(roomier, near)} ({describe_layout(roomier.question.plan)} fits)"
    for kind, q in pools.items():
        if len(pools) > 1 and _fit(q, first).fits:
            continue
        for place in larger_clusters(q.cluster):
            if (held := _fit(q.but(cluster=place), first)).fits:
                yield f"{place.key}{kind} (TP {int(held.question.plan.tp)} x PP {int(held.question.plan.pp)} fits)"
                break
    for dtype in _smaller_types(put):
        if all(_fit(q, dtype).fits for q in pools.values()):
            yield f"weights in {dtype} (--dtype {dtype})"
            break


def _fit(q: Question, dtype: str) -> Fit:
    return holds(judged_by_memory(q).but(weights_dtype=dtype), chosen=False)


def larger_clusters(here: Cluster) -> Iterator[Cluster]:
    """The same chips, more of them: a whole host, then hosts by doubling."""
    hosts, each = here.num_hosts, catalog.whole_host(here)
    hosts = hosts * 2 if each == here.gpus_per_host else hosts
    while hosts <= MOST_HOSTS:
        yield catalog.with_hosts(here, hosts, each)
        hosts *= 2


def _smaller_types(q: Question) -> list[str]:
    """Types with fewer bytes a weight than any that was tried, in which some plan is legal."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    least = min(DTYPE_BYTES.get(name or stored, 2.0) for name in q.goal.dtypes)
    return [name for name in SMALLER if DTYPE_BYTES[name] < least and _has_legal_plan(q.but(weights_dtype=name))]


def _has_legal_plan(q: Question) -> bool:
    """Whether the model may be run in its type: the tiles of some divide by no number of ranks."""
    try:
        return bool(ground(q))
    except Refusal:
        return False


def to_meet(answer: ServingPlans) -> Iterator[str]:
    q, goal, near = answer.question, answer.question.goal, answer.near
    ttft, tpot = float(near.sure_ttft_s[0]), float(near.sure_tpot_s[0])
    broken = missed_times(
        q, near, dict.fromkeys(SAID, 0)
    )  # of these limits, times that the nearest plan keeps as surely as is wanted
    kept = [f"{SAID[name]} {format_seconds(round_up_seconds(float(getattr(near, f'sure_{name}')[0])))}" for name in broken]
    yield f"limits of {' and '.join(kept)}"
    if (sure := max(answer.kept(near, i) for i in range(len(near)))) >= EVEN:
        yield f"a confidence of {math.floor(100 * sure)}% (--confidence {math.floor(100 * sure)}%)"
    for dtype in _smaller_types(q):
        other = serving_search.search_serving(q.but(weights_dtype=dtype, dtypes=(dtype,)))
        best = other.plans if len(other.plans) else other.near
        if len(best):
            times = f"TPOT {format_seconds(float(best.tpot_s[0]))}, TTFT {format_seconds(float(best.ttft_s[0]))}"
            yield f"weights in {dtype} (--dtype {dtype}: {'meets them' if len(other.plans) else 'at best ' + times})"
            break
    if ttft > goal.ttft_s:
        yield f"prompts {ttft / goal.ttft_s:.1f} x as short"
    yield "faster GPUs, or more of them" if tpot > goal.tpot_s else "more GPUs"
