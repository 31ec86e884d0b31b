"""The best plans for a cluster: ``commtax.plan("llama-3.1-70b", "2x8xh100-sxm", tpot_s="30ms")``."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Unpack

from commtax.planner import serving, training
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.planner.reasons import explain, explain_training, missed
from commtax.question import MAX_CONCURRENCY, Question
from commtax.spec import DTYPE_BYTES, Cluster, Engine, Model, Profile
from commtax.units import format_seconds
from commtax.verbs import checking
from commtax.verbs.asking import SearchOptions, only, unsettled
from commtax.verbs.fitting import holds

SMALLER = ("fp8", "int4")
MOST_HOSTS = 64


def plan(
    model: str | Model,
    cluster: str | Cluster,
    *,
    ttft_s: float | str = math.inf,
    tpot_s: float | str = math.inf,
    objective: str = "throughput",
    dtypes: tuple[str, ...] = ("",),
    max_concurrency: int = MAX_CONCURRENCY,
    usd_per_gpu_hour: float | None = None,
    **options: Unpack[SearchOptions],
) -> ServingPlans:
    """Price all legal plans at every concurrency up to ``max_concurrency`` a copy and rank those that fit and meet the limits.

    ``disaggregated=False`` leaves out plans with workers of their own for prompts. ``kv_dtype``, ``max_num_batched_tokens``,
    ``max_num_seqs`` and ``gpu_memory_utilization`` are what a launch command says for all of them. A ``profile``'s constants are
    laid over the catalogue's. Limits are seconds, or text such as ``"30ms"``.
    """
    usual: SearchOptions = {"input_len": 512, "output_len": 128, "disaggregated": True}
    limits = {"ttft_s": checking.seconds(ttft_s, "ttft_s"), "tpot_s": checking.seconds(tpot_s, "tpot_s")}
    put = unsettled(model, cluster, {**usual, **only(SearchOptions, options), "dtype": dtypes[0]})
    put = put.but(**limits, objective=objective, dtypes=tuple(dict.fromkeys(dtypes)), max_concurrency=max_concurrency)
    price = put.cluster.chip.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    return best_serving(put.but(usd_per_gpu_hour=price))


def best_serving(put: Question) -> ServingPlans:
    """The serving plans of a question, and why the first is the first, or what would have to change: tried before it is said."""
    answer = serving.searched(put)
    if len(answer.plans):
        return replace(answer, why=tuple(explain(answer, 0)))
    return replace(answer, would_take=tuple(_to_meet(answer) if len(answer.near) else _to_fit(answer)))


def plan_training(
    model: str | Model,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int = 4096,
    engine: str | Engine = "",
    dtype: str = "",
    profile: str | Profile | None = None,
) -> TrainPlans:
    """Price all sizes and microbatches for each ZeRO stage, recomputation and schedule; GPUs may idle."""
    names = {"engine": engine, "dtype": dtype, "profile": profile, "phase": "train", "sequence_parallel": True}
    return best_training(unsettled(model, cluster, {**names, "context": seq}).but(global_batch=global_batch))


def best_training(put: Question) -> TrainPlans:
    """The training plans of a question, and why the first is the first."""
    answer = training.searched(put)
    return replace(answer, why=tuple(explain_training(answer, 0))) if len(answer.plans) else answer


def _to_fit(answer: ServingPlans) -> Iterator[str]:
    """The least GPUs that would hold the model, and the types in which these would."""
    q = answer.question.but(max_model_len=int(answer.question.requests.tokens))
    for place in _larger(q.cluster):
        held = holds(q.but(cluster=place, weights_dtype=q.goal.dtypes[0]), chosen=False)
        if held.fits:
            yield f"{place.key} (TP {int(held.question.plan.tp)} x PP {int(held.question.plan.pp)} fits)"
            break
    for dtype in _smaller(q):
        if holds(q.but(weights_dtype=dtype), chosen=False).fits:
            yield f"weights in {dtype} (--dtype {dtype})"
            break


def _larger(here: Cluster) -> Iterator[Cluster]:
    """The same chips, more of them: a whole host, then hosts by doubling."""
    hosts, each = here.num_hosts, max(here.gpus_per_host, here.chip.gpus_per_host)
    hosts = hosts * 2 if each == here.gpus_per_host else hosts
    while hosts <= MOST_HOSTS:
        key = f"{hosts}x{each}x{here.chip.key}" if hosts > 1 else f"{each}x{here.chip.key}"
        yield replace(here, key=key, num_hosts=hosts, gpus_per_host=each)
        hosts *= 2


def _smaller(q: Question) -> list[str]:
    """Types with fewer bytes a weight than any that was tried."""
    stored = q.model.quant.dtype if q.model.quant else q.model.dtype
    least = min(DTYPE_BYTES.get(name or stored, 2.0) for name in q.goal.dtypes)
    return [name for name in SMALLER if DTYPE_BYTES[name] < least]


def _to_meet(answer: ServingPlans) -> Iterator[str]:
    q, goal, near = answer.question, answer.question.goal, answer.near
    ttft, tpot = float(near.ttft_s[0]), float(near.tpot_s[0])
    yield f"limits of {' and '.join(missed(q, ttft, tpot))}"
    for dtype in _smaller(q):
        other = serving.searched(q.but(weights_dtype=dtype, dtypes=(dtype,)))
        best = other.plans if len(other.plans) else other.near
        if len(best):
            times = f"TPOT {format_seconds(float(best.tpot_s[0]))}, TTFT {format_seconds(float(best.ttft_s[0]))}"
            yield f"weights in {dtype} (--dtype {dtype}: {'meets them' if len(other.plans) else 'at best ' + times})"
            break
    if ttft > goal.ttft_s:
        yield f"prompts {ttft / goal.ttft_s:.1f} x as short"
    yield "faster GPUs, or more of them" if tpot > goal.tpot_s else "more GPUs"
