"""What fits to train: ``commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8)``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import ClassVar, Literal, Unpack

from commtax.answer import Answer
from commtax.cost import legality
from commtax.cost.memory import TrainMemory, training_memory
from commtax.options import check_taken
from commtax.records import dataclass
from commtax.spec import Cluster, Model
from commtax.verbs import checking
from commtax.verbs.billing import USABLE
from commtax.verbs.fitting import check_memory
from commtax.verbs.keywords import TrainFitOptions
from commtax.verbs.settling import Settled, resolve_question, settle


@dataclass(frozen=True, slots=True)
class TrainFit(Answer):
    """Whether a training plan fits in a rank's memory; where not, what would.

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
    """Does training fit? What a rank of the first stage holds against the share of the chip that a run can use.

    >>> import commtax
    >>> judged = commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8, zero=3)
    >>> judged.fits, f"{judged.memory.total / 2**30:.0f} GiB"
    (True, '38 GiB')
    """
    checking.share(gpu_memory_utilization, "gpu_memory_utilization")
    put = resolve_question(model, cluster, check_taken("train_fit", options), "train")
    return train_holds(settle(put.but(gpu_memory_utilization=gpu_memory_utilization)))


def train_holds(asked: Settled) -> TrainFit:
    """The training plan of a question judged, with the first change that would make it fit."""
    check_memory(asked)
    judged = _train_judge(asked)
    if judged.fits:
        return judged
    helps = (options for options, changed in _train_tries(asked) if _train_judge(changed).fits)
    return replace(judged, advice=tuple(islice(helps, 1)))


def _train_judge(asked: Settled) -> TrainFit:
    budget = asked.cluster.chip.visible_bytes * (asked.limits.gpu_memory_utilization or USABLE)
    return TrainFit(asked, training_memory(asked.model, asked.plan, asked.step, asked.engine), budget)


def _train_tries(asked: Settled) -> Iterator[tuple[str, Settled]]:
    """Recomputation, sharding, both with split sequences, wider tp, then a pipeline too: options to add, and the question so."""
    plan, sharded = asked.plan, 3 if asked.engine.trains.master_is_parameter or asked.plan.pp == 1 else 1
    yield "--recompute full", asked.vary(recompute="full")
    if plan.dp > 1:
        yield from ((f"--zero {z}", asked.vary(zero=z)) for z in range(plan.zero + 1, sharded + 1))
    if plan.tp > 1 and not plan.sequence_parallel:
        split, stages = asked.vary(sequence_parallel=True), range(plan.zero, (sharded if plan.dp > 1 else plan.zero) + 1)
        words = [(f"--sequence-parallel{f' --zero {z}' if z > plan.zero else ''}", split.vary(zero=z)) for z in stages]
        yield from words
        yield from ((f"{said} --recompute full", tried.vary(recompute="full")) for said, tried in words)
    degrees = legality.legal_values("tp", asked.model, asked.cluster, plan, asked.engine)
    wide = asked.vary(sequence_parallel=True, recompute="full")
    yield from ((f"-tp {t} --sequence-parallel --recompute full", wide.vary(tp=t)) for t in degrees if t > plan.tp)
    widest = max((t for t in degrees if t <= asked.cluster.domain), default=1)
    room = asked.cluster.num_gpus // (widest * int(plan.dp))
    for deep in range(2, min(room, asked.model.num_layers) + 1):
        if plan.zero <= 1 and asked.model.num_layers % deep == 0:
            options = f"-tp {widest} -pp {deep} --sequence-parallel --recompute full"
            yield options, wide.vary(tp=widest, pp=deep)
