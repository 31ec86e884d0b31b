"""What a search answers, as plain records; ``rows`` and ``explain`` say more about one of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from commtax.planner.columns import Array, Columns, Rejected, Table
from commtax.question import Question
from commtax.spec import SIZES

NO_SERVING = Columns.joined([])


@dataclass(frozen=True, slots=True)
class ServingPlans:
    """Good plans best first, rejected families, the nearest plans where none is good, the Pareto front."""

    trains: ClassVar[Literal[False]] = False
    question: Question
    candidates: int = 0
    plans: Columns = NO_SERVING
    near: Columns = NO_SERVING
    front: Columns = NO_SERVING
    rejected: tuple[Rejected, ...] = ()
    why: tuple[str, ...] = ()  # of the first plan
    would_take: tuple[str, ...] = ()  # where no plan is good: what would have to change

    def to_frame(self) -> Any:
        """The good plans as a pandas table, where pandas is there."""
        return self.plans.frame("tokens_per_s_per_gpu", "tokens_per_s_per_user")


@dataclass(frozen=True, slots=True)
class TrainColumns(Table):
    """One row a plan."""

    kind: Array  # index in ``kinds``
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    cp: Array
    micro_batch: Array
    step_s: Array
    mfu: Array
    memory_bytes: Array
    bubble_fraction: Array
    exposed_comm_fraction: Array

    @property
    def gpus(self) -> Array:
        return np.asarray(self.tp * self.cp * self.pp * self.dp)


NO_TRAINING = TrainColumns.joined([])


@dataclass(frozen=True, slots=True)
class TrainPlans:
    """Plans that fit, fastest first; where none fits, the nearest."""

    trains: ClassVar[Literal[True]] = True
    question: Question
    kinds: tuple[Question, ...]  # ZeRO stage, recomputation and schedule, each one for all plans of a group
    candidates: int = 0
    plans: TrainColumns = NO_TRAINING
    near: TrainColumns = NO_TRAINING
    rejected: tuple[Rejected, ...] = ()
    why: tuple[str, ...] = ()

    def splits(self) -> Array:
        """Index of the fastest plan of each split of the GPUs, fastest first."""
        p = self.plans
        return np.sort(np.unique(np.stack([getattr(p, axis) for axis in SIZES]), axis=1, return_index=True)[1])

    def to_frame(self) -> Any:
        """The plans as a pandas table, where pandas is there."""
        return self.plans.frame()


@dataclass(frozen=True, slots=True)
class Standing:
    """A plan that somebody runs already, at its best load, and its place among the good plans."""

    words: str
    rows: Any  # ``Columns`` or ``TrainColumns`` of one row; none where it cannot run
    rank: int = 0  # 0: it is not good
    gain: float = 1.0  # the winner's worth over its own
    reason: str = ""  # why it is not good
