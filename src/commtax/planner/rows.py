"""One row of an answer: its question, its GPUs in words, its price, and how sure its figures are."""

import math
from collections.abc import Mapping

import numpy as np

from commtax.cost.serving import Load, decoding_seqs
from commtax.ledger import Z80
from commtax.planner.columns import Array, Columns, ServingPlans, TrainColumns, TrainPlans, sizes_of
from commtax.question import Question
from commtax.spec import SIZES, Plan
from commtax.units import plural
from commtax.verbs.asking import describe_gpus, settled
from commtax.verbs.billing import StepBill, price
from commtax.verbs.fitting import cache_tokens, step_limits
from commtax.verbs.serving import Simulation, serve

SERVED_PARTS = {"replicas": "{} replicas", "pp": "{} stages", "dp": "attention DP {}"}
TRAINED_PARTS = {"dp": "DP {}", "cp": "CP {}", "pp": "{} stages"}
"""What a plan is made of beside tp, where there are several of it, as it is told."""


def put(q: Question, rows: Columns, i: int) -> Question:
    """Row ``i`` as a question about one copy."""
    return q.but(**sizes_of(rows, i), weights_dtype=q.goal.dtypes[int(rows.dtype[i])])


def longest(a: ServingPlans, rows: Columns, i: int) -> int:
    """Tokens of the longest request that row ``i`` should take: 0, the model's own length, where a copy's cache holds it.

    Else what requests of varied lengths may need, in whole 256s, as far as the cache holds it.
    """
    asked, wanted = settled(put(a.question, rows, i)), a.question.requests
    degrees = {int(asked.plan.tp), int(rows.prefill_tp[i]) or int(asked.plan.tp)}
    kv = int(min(float(cache_tokens(asked.but(tp=tp))) for tp in degrees))
    if kv >= asked.model.max_len:
        return 0
    varied = math.ceil((1 + wanted.spread) * wanted.tokens / 256) * 256
    return int(max(wanted.tokens, min(varied, kv, asked.model.max_len)))


def simulation(a: ServingPlans, rows: Columns, i: int) -> Simulation:
    """Row ``i`` as ``simulate`` has it: one copy, or all workers of a split."""
    copies, clients, asked = int(rows.replicas[i]), int(rows.concurrency[i]), put(a.question, rows, i)
    if not int(rows.mode[i]):
        return serve(asked.but(concurrency=clients // copies, disaggregated=False))
    workers = {"prefill_tp": int(rows.prefill_tp[i]), "prefill_workers": int(rows.prefill_replicas[i])}
    return serve(asked.but(concurrency=clients, disaggregated=True, decode_workers=copies, **workers))


def range_of(a: ServingPlans, rows: Columns, i: int, name: str = "tpot_s") -> tuple[float, float]:
    """The 80 % range of a figure of row ``i``; priced for the rows that are shown alone."""
    value, factor = float(getattr(rows, name)[i]), math.exp(Z80 * float(simulation(a, rows, i).sigma_of(name)))
    return value / factor, value * factor


def usd_per_million_tokens(a: ServingPlans, rows: Columns) -> Array:
    return np.asarray(a.question.goal.usd_per_gpu_hour * rows.gpus / 3600 / rows.tokens_per_s * 1e6)


def step_of(a: ServingPlans, rows: Columns, i: int) -> StepBill:
    """The decode step that row ``i`` runs in the middle of its requests' lives."""
    wanted = a.question.requests
    middle = wanted.input_len + max(0, wanted.output_len // 2 - 1)
    return price(put(a.question, rows, i).but(batch=_decoding(a.question, rows, i), context=middle))


def _decoding(q: Question, rows: Columns, i: int) -> int:
    """Requests of a decode step: all that run, less those that still wait for their first token."""
    wanted, seqs = q.requests, float(rows.running[i])
    if rows.mode[i]:
        return max(1, int(seqs))
    load = Load(seqs, wanted.input_len, wanted.output_len, spread=wanted.spread)
    return max(1, math.ceil(float(decoding_seqs(load, seqs, step_limits(q)[0], int(rows.pp[i]), q.engine))))


def gpu_words(a: ServingPlans, rows: Columns, i: int) -> str:
    """GPUs reconciled: ``16 GPUs = 4 replicas x TP 4``, and those that idle."""
    workers = _copy(rows, i, SERVED_PARTS)
    if rows.mode[i]:
        workers = f"{int(rows.prefill_replicas[i])} x TP {int(rows.prefill_tp[i])} for prompts + {workers} to decode"
    return _reconciled(a.question, int(rows.gpus[i]), workers)


def train_gpu_words(a: TrainPlans, rows: TrainColumns, i: int) -> str:
    """GPUs reconciled: ``512 GPUs = DP 16 x 4 stages x TP 8``, and those that idle."""
    return _reconciled(a.question, int(rows.gpus[i]), _copy(rows, i, TRAINED_PARTS))


def _copy(rows: Columns | TrainColumns, i: int, parts: Mapping[str, str]) -> str:
    several = [text.format(int(getattr(rows, name)[i])) for name, text in parts.items() if getattr(rows, name)[i] > 1]
    return " x ".join([*several, f"TP {int(rows.tp[i])}"]) + (f", experts over {int(rows.ep[i])}" if rows.ep[i] > 1 else "")


def _reconciled(q: Question, used: int, workers: str) -> str:
    there = q.cluster.num_gpus
    return f"{plural(used, 'GPU')} = {workers}" + (f" ({there - used:,} of {there:,} GPUs idle)" if used < there else "")


def train_bill_of(a: TrainPlans, rows: TrainColumns, i: int) -> StepBill:
    """The priced step of row ``i``, line by line."""
    sizes = {axis: int(getattr(rows, axis)[i]) for axis in (*SIZES, "micro_batch")}
    return price(a.kinds[int(rows.kind[i])].but(batch=a.question.goal.global_batch // sizes["dp"], **sizes))


def describe_kind(plan: Plan) -> str:
    piped = f", interleaved in {plan.chunks}" if plan.chunks > 1 else ""
    return f"ZeRO {plan.zero}, recompute {plan.recompute}{piped}"


def describe_training(q: Question) -> str:
    return f"{describe_gpus(q.plan)}, microbatch {int(q.micro_batch)}, {describe_kind(q.plan)}"
