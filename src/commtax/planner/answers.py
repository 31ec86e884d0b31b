"""What a search answers, as plain records; ``rows`` and ``explain`` say more about one of their rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from commtax.planner.columns import Columns, Rejected, empty
from commtax.planner.space import Array
from commtax.question import Question
from commtax.spec import SIZES
from commtax.statement import Refusal


@dataclass(frozen=True, slots=True)
class ServingPlans:
    """Good plans best first, rejected families, the nearest plans where none is good, the Pareto front."""

    question: Question
    candidates: int = 0
    plans: Columns = empty()  # noqa: RUF009
    near: Columns = empty()  # noqa: RUF009
    front: Columns = empty()  # noqa: RUF009
    rejected: tuple[Rejected, ...] = ()
    why: tuple[str, ...] = ()  # of the first plan
    would_take: tuple[str, ...] = ()  # where no plan is good: what would have to change

    def to_frame(self) -> Any:
        """The good plans as a pandas table, where pandas is there."""
        names = [f.name for f in fields(self.plans)] + ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]
        return _frame(self.plans, names)


@dataclass(frozen=True, slots=True)
class TrainColumns:
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

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def gpus(self) -> Array:
        return np.asarray(self.tp * self.cp * self.pp * self.dp)

    def take(self, where: Array) -> TrainColumns:
        return TrainColumns(*(np.asarray(getattr(self, f.name)[where]) for f in fields(self)))


NO_TRAINING = TrainColumns(*(np.array([]) for _ in fields(TrainColumns)))


@dataclass(frozen=True, slots=True)
class TrainPlans:
    """Plans that fit, fastest first; where none fits, the nearest."""

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
        return _frame(self.plans, [f.name for f in fields(self.plans)])


def _frame(rows: Columns | TrainColumns, names: list[str]) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise Refusal("to_frame: needs pandas (pip install pandas)") from None
    return pd.DataFrame({name: getattr(rows, name) for name in names})


@dataclass(frozen=True, slots=True)
class Standing:
    """A plan that somebody runs already, at its best load, and its place among the good plans."""

    words: str
    rows: Any  # ``Columns`` or ``TrainColumns`` of one row; none where it cannot run
    rank: int = 0  # 0: it is not good
    gain: float = 1.0  # the winner's worth over its own
    reason: str = ""  # why it is not good
