"""What fits to train, ``commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8)``, and options that a plan left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, product
from typing import ClassVar, Literal, Unpack

from commtax import catalog
from commtax.answer import Answer
from commtax.cost.memory import TrainMemory, training_memory
from commtax.options import check_taken
from commtax.question import Changes
from commtax.records import dataclass
from commtax.rules import legality, values
from commtax.spec import Cluster, Model
from commtax.statement import Note, OptionValue
from commtax.verbs.billing import USABLE, StepBill, price
from commtax.verbs.fitting import check_memory
from commtax.verbs.keywords import TrainFitOptions
from commtax.verbs.settling import Settled, changed, resolve_question, settle
from commtax.words import flags, settings_of, words

MOST_ADVISED = 3
RECOMPUTED = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class TrainFit(Answer):
    """Whether a training plan fits in a rank's memory, and else what would.

    >>> import commtax
    >>> judged = commtax.train_fit("llama-3.1-70b", "8xh100-sxm", dp=8, batch=8, zero=0)
    >>> judged.fits, judged.shortfall_bytes > 2**40
    (False, True)
    """

    trains: ClassVar[Literal[True]] = True
    question: Settled
    memory: TrainMemory
    budget_bytes: float
    advice: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return bool(self.memory.total <= self.budget_bytes)

    @property
    def shortfall_bytes(self) -> float:
        return max(0.0, float(self.memory.total) - self.budget_bytes)


def train_fit(
    model: str | Model, cluster: str | Cluster, *, gpu_memory_utilization: float = USABLE, **options: Unpack[TrainFitOptions]
) -> TrainFit:
    """Judge whether training fits: what a rank of the first stage holds against the share of the chip that a run can use.

    >>> import commtax
    >>> judged = commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8, zero=3)
    >>> judged.fits, f"{judged.memory.total / 2**30:.0f} GiB"
    (True, '38 GiB')
    """
    values.share(gpu_memory_utilization, "gpu_memory_utilization")
    put = resolve_question(model, cluster, check_taken("train_fit", options), "train")
    return train_holds(settle(put.but(gpu_memory_utilization=gpu_memory_utilization)))


def train_holds(q: Settled) -> TrainFit:
    """Judge the training plan of a question, with the changes that would make it fit, the cheapest in time first."""
    check_memory(q)
    judged = train_judge(q)
    return judged if judged.fits else replace(judged, advice=tuple(_advice(q)))


def train_judge(q: Settled) -> TrainFit:
    """Judge a training plan without advice."""
    budget = q.cluster.chip.visible_bytes * (q.limits.gpu_memory_utilization or USABLE)
    return TrainFit(q, training_memory(q.model, q.plan, q.step, q.engine), budget)


def _advice(question: Settled) -> Iterator[Note]:
    changes = _least_changes(question) or _with_more_gpus(question)
    priced = sorted((float(price(q).step_s), flags(settings), q.plan.num_gpus, settings) for settings, q in changes)
    now = float(price(question).step_s)
    for step_s, _, gpus, settings in priced[:MOST_ADVISED]:
        more = f" on {gpus} GPUs" if gpus > question.plan.num_gpus else ""
        yield words("advice-training", settings=settings, time=f"{step_s / now - 1:+.0%} time", gpus=more)


def _least_changes(q: Settled) -> list[tuple[list[OptionValue], Settled]]:
    plan, micro = q.plan, int(q.micro_batch)
    further = RECOMPUTED[RECOMPUTED.index(plan.recompute) + 1 :] if plan.recompute in RECOMPUTED else RECOMPUTED[-1:]
    ladders: list[list[Changes]] = [
        [{}, *([{"sequence_parallel": True}] if plan.tp > 1 and not plan.sequence_parallel else [])],
        [{}, *({"recompute": kind} for kind in further)],
        [{}, *({"zero": stage} for stage in range(plan.zero + 1, 4) if plan.dp > 1)],
        [{}, *({"micro_batch": micro >> halved} for halved in range(1, micro.bit_length()))],
    ]
    fitting: dict[tuple[int, ...], tuple[list[OptionValue], Settled]] = {}
    for rungs in sorted(product(*(range(len(ladder)) for ladder in ladders)), key=sum):
        if any(all(a <= b for a, b in zip(less, rungs, strict=True)) for less in fitting):
            continue
        chosen = {name: value for ladder, rung in zip(ladders, rungs, strict=True) for name, value in ladder[rung].items()}
        if (other := _if_legal(q, chosen)) and train_judge(other).fits:
            fitting[rungs] = settings_of(chosen), other
    return list(fitting.values())


def _if_legal(q: Settled, changes: Changes) -> Settled | None:
    with suppress(ValueError):  # this engine or these sizes cannot have it
        return changed(q, *changes.items())
    return None


def _with_more_gpus(question: Settled) -> list[tuple[list[OptionValue], Settled]]:
    """Return wider tp, or the widest of a host and a pipeline: the fewest GPUs on which it fits, with what must change beside."""
    plan, cluster = question.plan, question.cluster
    degrees = legality.legal_values("tp", question.model, cluster, plan, question.engine)
    widest = max((t for t in degrees if t <= cluster.domain), default=1)
    sizes = [{"tp": t} for t in degrees if t > plan.tp]
    depths = range(2, cluster.num_gpus // (widest * int(plan.dp)) + 1)
    sizes += [{"tp": widest, "pp": deep} for deep in depths if question.model.num_layers % deep == 0]
    tried = ((size, larger) for size in sizes if (larger := _if_legal(question, size)))
    for _, same in groupby(sorted(tried, key=lambda one: one[1].plan.num_gpus), key=lambda one: one[1].plan.num_gpus):
        if fitting := [([*settings_of(size), *more], q) for size, larger in same for more, q in _least_changes(larger)]:
            return fitting
    return []


@dataclass(frozen=True, slots=True)
class CompletedPlan:
    """The same sizes with options that were left out."""

    options: str
    mfu: float
    memory_bytes: float
    fits: bool


def completed_plans(b: StepBill, measured_mfu: float) -> list[CompletedPlan]:
    """Return what a run may have been that beat its plan by more than its range, or ran in memory that this plan does not have.

    First the plan of the same engine that comes nearest to what was measured; where that does not fit, the nearest that does.
    """
    width = math.log(float(b.step_s) / float(b.low_s))
    if measured_mfu <= float(b.mfu) * math.exp(width) and train_judge(b.question).fits:
        return []

    def rank(one: CompletedPlan) -> tuple[float, float]:
        """Return the distance and size: inside the range all are as near, and the smallest is the likeliest."""
        return max(0.0, abs(math.log(one.mfu / measured_mfu)) - width), one.memory_bytes

    completed = sorted(_priced(b.question, _left_out(b.question)), key=rank)
    if not completed or completed[0].fits:
        return completed[:1]
    fitting = [one for one in (*completed, *_of_other_engines(b.question)) if one.fits]
    return [completed[0], *sorted(fitting, key=rank)[:1]]


def _left_out(q: Settled) -> list[list[Changes]]:
    plan, chunks = q.plan, sorted({2, -(-q.model.num_layers // int(q.plan.pp))} - {1})
    options: list[tuple[object, list[Changes]]] = [
        (plan.tp > 1 and not plan.sequence_parallel, [{"sequence_parallel": True}]),
        (plan.dp > 1 and not plan.zero, [{"zero": 1}]),
        (plan.pp > 1 and plan.schedule == "1f1b", [{"schedule": "interleaved", "chunks": n} for n in chunks]),
        (plan.recompute == "none", [{"recompute": "full"}]),
    ]
    return [[{}, *values] for applies, values in options if applies]


def _priced(q: Settled, left_out: list[list[Changes]], before: Sequence[OptionValue] = ()) -> Iterator[CompletedPlan]:
    for chosen in sorted(product(*left_out), key=lambda choices: sum(map(bool, choices))):
        changes = {name: value for change in chosen for name, value in change.items()}
        with suppress(ValueError):  # this engine or these sizes cannot have it
            if options := flags([*before, *settings_of(changes)]):
                bill = price(q.but(**changes))
                yield CompletedPlan(options, float(bill.mfu), float(bill.memory_bytes_per_rank), train_judge(bill.question).fits)


def _of_other_engines(q: Settled) -> Iterator[CompletedPlan]:
    for engine in map(catalog.engine, catalog.keys("engines")):
        with suppress(ValueError):  # it cannot have these sizes
            if "train" in engine.phases and engine.key != q.engine.key:
                other = q.but(engine=engine, zero=engine.trains.zero, sequence_parallel=engine.trains.sequence_parallel)
                ways = [ways for ways in _left_out(other) if "recompute" not in ways[-1]]
                yield from _priced(other, ways, [OptionValue("engine", engine.key)])
