"""The best plans for a cluster: ``commtax.plan("llama-3.1-70b", "2x8xh100-sxm", tpot_s="30ms")``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

from commtax.planner import serving, training
from commtax.planner.answers import ServingPlans, TrainPlans
from commtax.planner.changes import changes
from commtax.planner.explain import explain, explain_training
from commtax.question import MAX_CONCURRENCY, Question
from commtax.spec import Cluster, Engine, Model, Profile
from commtax.verbs import checking
from commtax.verbs.asking import unsettled
from commtax.verbs.options import RequestOptions


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
    **options: Unpack[RequestOptions],
) -> ServingPlans:
    """Price all legal plans at every concurrency up to ``max_concurrency`` a copy and rank those that fit and meet the limits.

    ``disaggregated=False`` leaves out plans with workers of their own for prompts. ``kv_dtype``, ``max_num_batched_tokens``,
    ``max_num_seqs`` and ``gpu_memory_utilization`` are what a launch command says for all of them. A ``profile``'s constants are
    laid over the catalogue's. Limits are seconds, or text such as ``"30ms"``.
    """
    usual: RequestOptions = {"input_len": 512, "output_len": 128, "disaggregated": True}
    limits = {"ttft_s": checking.seconds(ttft_s, "ttft_s"), "tpot_s": checking.seconds(tpot_s, "tpot_s")}
    put = unsettled(model, cluster, {**usual, **options, "dtype": dtypes[0]})
    put = put.but(**limits, objective=objective, dtypes=tuple(dict.fromkeys(dtypes)), max_concurrency=max_concurrency)
    price = put.cluster.chip.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    return best_serving(put.but(usd_per_gpu_hour=price))


def best_serving(put: Question) -> ServingPlans:
    """The serving plans of a question, and why the first is the first, or what would have to change."""
    answer = serving.searched(put)
    if len(answer.plans):
        return replace(answer, why=tuple(explain(answer, 0)))
    return replace(answer, would_take=tuple(changes(answer)))


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
