"""What fits to train: ``commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8)``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, product
from typing import ClassVar, Literal, Unpack

from commtax.answer import Answer
from commtax.cost import legality
from commtax.cost.memory import TrainMemory, training_memory
from commtax.options import check_taken
from commtax.question import Changes
from commtax.records import dataclass
from commtax.spec import Cluster, Model
from commtax.statement import Note, OptionValue
from commtax.verbs import checking
from commtax.verbs.billing import USABLE, price
from commtax.verbs.fitting import check_memory
from commtax.verbs.keywords import TrainFitOptions
from commtax.verbs.settling import Settled, changed, resolve_question, settle
from commtax.words import flags, settings_of, words

MOST_ADVISED = 3
RECOMPUTED = ("none", "selective", "full")


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
    """The training plan of a question judged, with the changes that would make it fit, the cheapest in time first."""
    check_memory(asked)
    judged = train_judge(asked)
    return judged if judged.fits else replace(judged, advice=tuple(_advice(asked)))


def train_judge(asked: Settled) -> TrainFit:
    """… without advice."""
    budget = asked.cluster.chip.visible_bytes * (asked.limits.gpu_memory_utilization or USABLE)
    return TrainFit(asked, training_memory(asked.model, asked.plan, asked.step, asked.engine), budget)


def _advice(asked: Settled) -> Iterator[Note]:
    """Yield the changes that would make it fit, the shortest steps first."""
    fitting = _least_changes(asked) or _with_more_gpus(asked)
    priced = sorted((float(price(q).step_s), flags(settings), q.plan.num_gpus, settings) for settings, q in fitting)
    now = float(price(asked).step_s)
    for step_s, _, gpus, settings in priced[:MOST_ADVISED]:
        more = f" on {gpus} GPUs" if gpus > asked.plan.num_gpus else ""
        yield words("advice-training", settings=settings, time=f"{step_s / now - 1:+.0%} time", gpus=more)


def _least_changes(asked: Settled) -> list[tuple[list[OptionValue], Settled]]:
    """Return all sets of options on the same GPUs with which it fits, and with none of them less far."""
    plan, micro = asked.plan, int(asked.micro_batch)
    ladders: list[list[Changes]] = []
    if plan.tp > 1 and not plan.sequence_parallel:
        ladders.append([{"sequence_parallel": True}])
    further = RECOMPUTED[RECOMPUTED.index(plan.recompute) + 1 :] if plan.recompute in RECOMPUTED else RECOMPUTED[-1:]
    ladders.append([{"recompute": kind} for kind in further])
    if plan.dp > 1:
        ladders.append([{"zero": stage} for stage in range(plan.zero + 1, 4)])
    smaller = (micro >> halved for halved in range(1, micro.bit_length()))
    ladders.append([{"micro_batch": size} for size in smaller])
    ladders = [[{}, *ladder] for ladder in ladders]
    found: dict[tuple[int, ...], tuple[list[OptionValue], Settled]] = {}
    for rungs in sorted(product(*(range(len(ladder)) for ladder in ladders)), key=sum):
        if any(all(a <= b for a, b in zip(less, rungs, strict=True)) for less in found):
            continue
        chosen = {name: value for ladder, rung in zip(ladders, rungs, strict=True) for name, value in ladder[rung].items()}
        other = _if_legal(asked, chosen)
        if other and train_judge(other).fits:
            found[rungs] = settings_of(chosen), other
    return list(found.values())


def _if_legal(asked: Settled, changes: Changes) -> Settled | None:
    try:
        return changed(asked, *changes.items())
    except ValueError:
        return None  # this engine or these sizes cannot have it


def _with_more_gpus(asked: Settled) -> list[tuple[list[OptionValue], Settled]]:
    """Return wider tp, or the widest of a host and a pipeline: the fewest GPUs on which it fits, with what must change beside."""
    plan = asked.plan
    degrees = legality.legal_values("tp", asked.model, asked.cluster, plan, asked.engine)
    widest = max((t for t in degrees if t <= asked.cluster.domain), default=1)
    room = asked.cluster.num_gpus // (widest * int(plan.dp))
    sizes = [{"tp": t} for t in degrees if t > plan.tp]
    sizes += [{"tp": widest, "pp": deep} for deep in range(2, room + 1) if asked.model.num_layers % deep == 0]
    tried = ((size, larger) for size in sizes if (larger := _if_legal(asked, size)))
    by_gpus = groupby(sorted(tried, key=lambda one: one[1].plan.num_gpus), key=lambda one: one[1].plan.num_gpus)
    fitting = (
        [([*settings_of(size), *more], q) for size, larger in same for more, q in _least_changes(larger)] for _, same in by_gpus
    )
    return next(filter(None, fitting), [])
