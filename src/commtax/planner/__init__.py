"""The best plans for a cluster: ``commtax.plan("llama-3.1-70b", "2x8xh100-sxm", tpot_s="30ms")``, and the place of another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import numpy as np

from commtax.judgement.confidence import confidence_of, margin_of
from commtax.options import check_taken
from commtax.planner import columns, serving_search, training_search
from commtax.planner.alternatives import alone_words, answer_with_room, questions_alone, roomier_words, to_fit, to_meet
from commtax.planner.columns import ServingColumns, ServingPlans, TrainColumns, TrainPlans, describe_kind
from commtax.planner.exchanges import requested_way
from commtax.planner.money import Prices, with_prices
from commtax.planner.ranking import best_first
from commtax.planner.reasons import best_times, explain, explain_training
from commtax.planner.serving_search import at_loads
from commtax.planner.space import WIDE
from commtax.planner.technique_sets import kept_settings, search_with_techniques, shared_gain, technique_sets_of, untried_gain
from commtax.question import AUTO, CONFIDENCE, SEQUENCE_LEN, Question
from commtax.records import dataclass, record_from, replace
from commtax.rules import values
from commtax.spec import SIZES, Cluster, Model, Plan
from commtax.statement import Note, Refusal
from commtax.verbs.billing import price
from commtax.verbs.disaggregation import describe_pools
from commtax.verbs.fit_advice import default_limits_notes
from commtax.verbs.keywords import CompareOptions, PlanOptions, PlanTrainingOptions
from commtax.verbs.settling import describe_gpus, describe_layout, replan, resolve_question, settle
from commtax.words import words


@dataclass(frozen=True, slots=True)
class StandingPlan:
    """A plan that somebody runs already, at its best load, and its place among the good plans."""

    plan: str  # in words
    rows: ServingColumns | TrainColumns  # one; none where it cannot run
    rank: int = 0  # 0: it is not good
    gain: float = 1.0  # the winner's worth over its own
    reason: str = ""  # why it is not good
    remark: str = ""  # that its servers would not start as they are, and how they would
    tuned: StandingPlan | None = None  # the same sizes, with the exchange, copies of experts and techniques that serve them best


def plan(
    model: str | Model,
    cluster: str | Cluster,
    *,
    ttft_s: float | str = math.inf,
    tpot_s: float | str = math.inf,
    objective: str = "throughput",
    dtypes: tuple[str, ...] = ("",),
    max_concurrency: int | None = None,
    usd_per_gpu_hour: float | tuple[float, float] | None = None,
    cost_of: str = "output",
    confidence: float | str = CONFIDENCE,
    margin: float | str | None = None,
    techniques: str = "",
    **options: Unpack[PlanOptions],
) -> ServingPlans:
    """Return the best serving plans for a cluster, why one is recommended, and why the others lost.

    >>> import commtax
    >>> found = commtax.plan("llama-3.1-8b", "2xh100-sxm", ttft_s="500ms", tpot_s="15ms")
    >>> found.why[0]
    '2 GPUs = 2 replicas x TP 1'

    All legal plans are priced at every concurrency; those that fit and meet the limits are ranked. Clients of all copies are at
    most ``max_concurrency``, else as many as caches hold and 1,024 of a rank. ``recommended`` is the index of the simplest plan
    that the best, the first, beats by no more than ``margin`` (0.05 or ``"5%"``; left out, how far ratios of two plans err).

    ``techniques="auto"`` also tries techniques that gain on good plans; ``"dbo,mtp=1+dcp=2"`` tries each of these sets.

    ``workload`` is ``"chat"``, ``"rag"``, ``"code"`` or ``"batch"``, and says the lengths that are left out. Without a limit on
    TTFT, plans whose first tokens come later than interactive use bears do not lead, unless it is a batch.

    ``disaggregated=False`` leaves out plans with workers of their own for prompts; with a ``prefill_cluster`` those alone are
    tried, prompts there and decoding on ``cluster`` (of two prices that of prompt GPUs is the first). What a launch command sets
    (``kv_dtype``, ``max_num_seqs`` …) holds for all plans. Limits are seconds, or text such as ``"30ms"``; each is kept with the
    probability ``confidence`` (0.8 or ``"80%"``) by the range of its time, with 0.5 by the central prediction. Plans are ranked
    by central predictions. Dollars are spread over the tokens of outputs, with ``cost_of="total"`` over those of prompts too.

    A request rate: ``commtax.plan_fleet``. Several clusters: ``commtax.plan_several``. Training: ``commtax.plan_training``.
    """
    if not isinstance(cluster, str | Cluster):
        raise Refusal.about(cluster="plans are searched on one; commtax.plan_several takes several")
    input_len, output_len = serving_search.usual_lengths(options.get("workload", ""))
    usual = PlanOptions(disaggregated=True, input_len=input_len, output_len=output_len)
    limits = {"ttft_s": values.seconds(ttft_s, "ttft_s"), "tpot_s": values.seconds(tpot_s, "tpot_s")}
    put = resolve_question(model, cluster, {**usual, **check_taken("plan", options), **CompareOptions(dtype=dtypes[0])})
    put = put.but(**limits, objective=objective, dtypes=tuple(dict.fromkeys(dtypes)), max_concurrency=max_concurrency)
    put = put.but(confidence=confidence_of(confidence), margin=margin_of(margin), technique_sets=technique_sets_of(techniques))
    return best_serving(with_prices([put.but(cost_of=cost_of)], usd_per_gpu_hour)[0])


def best_serving(put: Question) -> ServingPlans:
    """Return the serving plans of a question, and why one is recommended, or what would have to change: tried before it is said."""
    answer = _search(put)
    if len(answer.plans):
        answer = replace(answer, alone=tuple(map(_search, questions_alone(put))))
        answer, first = replace(answer, roomier=answer_with_room(answer, _loads_of, _search)), answer.recommended
        techniques = (*kept_settings(answer), *untried_gain(answer), *shared_gain(answer))
        (name, delivered, *others), lengths = explain(answer, first), _length_notes(answer)
        split = alone_words(replace(answer, places=()))  # the usual point has its own words
        return replace(answer, why=(name, delivered, *split, *others, *techniques, *lengths, *roomier_words(answer)))
    return replace(answer, would_take=tuple(to_meet(answer) if len(answer.near) else to_fit(answer.question)))


def _loads_of(answer: ServingPlans, rows: ServingColumns, i: int) -> ServingColumns:
    """Return the loads of one row's plan that keep the limits of an answer's question, best first."""
    dtype = answer.question.goal.dtypes[int(rows.dtype[i])]
    standing = serving_standing(answer, rows.sizes(i), int(rows.replicas[i]), dtype, tuned=True)
    assert isinstance(standing.rows, ServingColumns)
    return standing.rows.take(slice(0 if standing.reason else None))


def _search(put: Question) -> ServingPlans:
    return search_with_techniques(put) if AUTO in put.goal.technique_sets else serving_search.search_serving(put)


def plan_training(
    model: str | Model,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int = SEQUENCE_LEN,
    margin: float | str | None = None,
    train_tokens: float = 1e12,
    usd_per_gpu_hour: Prices = None,
    **options: Unpack[PlanTrainingOptions],
) -> TrainPlans:
    """Return the fastest training plans for a global batch. Days and dollars are those of ``train_tokens``.

    >>> import commtax
    >>> found = commtax.plan_training("llama-3.2-1b", "2xh100-sxm", global_batch=16, seq=2048)
    >>> found.gpu_words(found.plans, found.recommended)
    '2 GPUs = DP 2 x TP 1'

    All sizes and microbatches are priced for each ZeRO stage, recomputation and schedule. The fastest is recommended; with a
    ``margin``, the simplest that it beats by no more than that.
    """
    trained = CompareOptions(sequence_parallel=True, context=seq)
    put = resolve_question(model, cluster, {**check_taken("plan_training", options), **trained}, "train")
    goal = put.but(global_batch=global_batch, margin=margin_of(margin), train_tokens=float(train_tokens))
    return best_training(with_prices([goal], usd_per_gpu_hour)[0])


def best_training(put: Question) -> TrainPlans:
    """Return the training plans of a question, and why one is recommended."""
    answer = training_search.search_training(put)
    return replace(answer, why=tuple(explain_training(answer, answer.recommended))) if len(answer.plans) else answer


def serving_standing(
    answer: ServingPlans,
    sizes: Mapping[str, int],
    replicas: int,
    dtype: str = "",
    clients: int = 0,
    prompts: Plan | None = None,
    tuned: bool = False,
) -> StandingPlan:
    """Rank ``replicas`` copies of a plan (tp, pp, dp, ep) among the answer's, at ``clients`` of the whole or at their best load.
    ``prompts`` are servers of their own for prompts (tp, dp and how many as replicas), which the copies decode for. All run
    as the question says; ``tuned``, with the exchange, the copies of experts and the techniques that serve them best."""
    q, copies = answer.question, replace(record_from(Plan, sizes), replicas=replicas)
    pools = prompts and ((prompts.replicas, prompts), (replicas, copies))
    name, index = describe_pools(q.places, *pools) if pools else describe_layout(copies), _index(q, dtype)
    if lack := _lack(q, copies, prompts):
        return _cannot(answer, name, lack)
    priced, refused = list[ServingColumns](), ""
    for by, exchange in enumerate(answer.exchanges):
        unlike = by != requested_way(q, bool(prompts)) and not tuned
        if unlike or (exchange.wide and copies.ep < WIDE) or not (exchange.apart if prompts else exchange.shared):
            continue
        run = replan(q, weights_dtype=q.goal.dtypes[index], replicas=replicas, **sizes, **exchange.changes)
        try:
            priced.append(at_loads(run, prompts, clients, index, by))
        except ValueError as error:
            refused = refused or str(error)
    if not priced:
        return _cannot(answer, name, refused)
    every = ServingColumns.joined(priced)
    good, near = (rows.take(slice(1)) for rows in best_first(q, every))
    best, missed = (good, "") if len(good) else (near, f"exceeds the limit: {best_times(answer, every)}")
    rank, gain = _rank_and_gain(answer, good) if len(good) else (0, 1.0)
    remark = "; ".join(default_limits_notes(answer.servers(best, 0), q.requests.tokens))  # do they start with the model's length?
    return StandingPlan(answer.gpu_words(best, 0), best, rank, gain, missed, remark)


def _lack(q: Question, copies: Plan, prompts: Plan | None) -> str:
    """Return what a plan lacks: separate workers for prompts, or GPUs on its cluster or on either of two."""
    if q.requests.prefill_cluster and not prompts:
        return f"has no separate prompt workers to run on {q.requests.prefill_cluster.key}"
    decoding, prompting = int(copies.all_gpus), int(prompts.all_gpus) if prompts else 0
    needed = zip((prompting, decoding) if len(q.places) > 1 else (decoding + prompting,), q.places, strict=True)
    return next((f"needs {n} GPUs, but {place.key} has {place.num_gpus}" for n, place in needed if n > place.num_gpus), "")


def _rank_and_gain(answer: ServingPlans, row: ServingColumns) -> tuple[int, float]:
    """Return the rank that one plan would have among an answer's, and the winner's worth over its worth."""
    q, (theirs, values) = answer.question, (columns.order(answer.question, rows) for rows in (answer.plans, row))
    better = (theirs[0] > values[0]) | ((theirs[0] == values[0]) & (theirs[1] > values[1]))
    if q.goal.objective == "gpus":  # as many GPUs are no tie
        better |= (theirs[0] == values[0]) & (theirs[1] == values[1]) & (theirs[2] > values[2] * (1 + 1e-8))
    gain = float(columns.objective_value(q, answer.plans)[0] / columns.objective_value(q, row)[0]) if len(answer.plans) else 1.0
    return 1 + int(np.sum(better)), gain


def _length_notes(answer: ServingPlans) -> list[Note]:
    """Note that the recommended servers would not start with the model's full length, and what length ``--emit`` sets."""
    rows, i = answer.plans, answer.recommended
    if answer.question.limits.max_model_len or not (longest := answer.longest(rows, i)):
        return []
    notes = default_limits_notes(answer.servers(rows, i), answer.question.requests.tokens)
    return [words("own-length", notes=notes, longest=longest)] if notes else []


def _index(q: Question, dtype: str) -> int:
    """Return the index of a type among those that were searched, by default the checkpoint's, else the first."""
    wanted = (dtype,) if dtype else ("", q.model.quant.dtype if q.model.quant else q.model.dtype)
    return next((i for i, name in enumerate(q.goal.dtypes) if name in wanted), 0)


def _cannot(answer: ServingPlans | TrainPlans, name: str, reason: str) -> StandingPlan:
    return StandingPlan(name, answer.plans.take(slice(0)), reason=reason)


def training_standing(answer: TrainPlans, run: Question) -> StandingPlan:
    """Return a training plan of some kind beside the answer's, for the same global batch."""
    plan, micro, total = run.plan, int(run.micro_batch), answer.question.goal.global_batch
    name = ", ".join([*(f"{axis} {getattr(plan, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep")), describe_kind(plan)])
    if total % (plan.dp * micro):
        return _cannot(answer, name, f"{plan.dp} replicas and microbatches of {micro} do not divide {total} sequences")
    try:
        b = price(settle(run.but(batch=total // plan.dp)))
    except ValueError as error:
        return _cannot(answer, name, str(error))
    sizes = [np.array([getattr(plan, axis)]) for axis in SIZES]
    row = training_search.columns(b, 0, training_search.unpriced(*sizes, np.array([micro])))
    described = f"{describe_gpus(b.question.plan)}, microbatch {micro}, {describe_kind(b.question.plan)}"
    budget = training_search.BUDGET * run.cluster.chip.visible_bytes
    if row.memory_bytes[0] > budget:
        need = f"{float(row.memory_bytes[0]) / 2**30:.1f} GiB per rank of {budget / 2**30:.1f}"
        return StandingPlan(described, row, reason=f"does not fit: {need}")
    rank = 1 + int(np.sum(answer.plans.step_s < float(row.step_s[0]) * (1 - 1e-9)))
    return StandingPlan(described, row, rank, float(row.step_s[0] / answer.plans.step_s[0]) if len(answer.plans) else 1.0)
