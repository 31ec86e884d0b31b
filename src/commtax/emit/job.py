"""What is launched, and the words that all engines' commands share."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from commtax.question import Question
from commtax.spec import Model, Plan
from commtax.statement import Refusal

SERVING = ("vllm", "sglang", "trtllm")
MASTER = "$MASTER_ADDR"


@dataclass(frozen=True, slots=True)
class Job:
    """A plan cut into equal servers: ``dp`` groups inside each, ``servers`` of them beside each other."""

    engine: str
    question: Question
    dp: int
    servers: int = 1
    address: str = MASTER  # where the hosts of one server meet

    @property
    def plan(self) -> Plan:
        return self.question.plan

    @property
    def gpus(self) -> int:
        """GPUs of one server."""
        return int(self.plan.tp) * int(self.plan.pp) * int(self.plan.cp) * self.dp

    @property
    def hosts(self) -> int:
        """Hosts of one server."""
        return math.ceil(self.gpus / self.question.cluster.gpus_per_host)


def model_id(model: Model) -> str:
    """The name that the Hub knows, or a folder's path; else our own. Quoted: a path may hold what a shell would run."""
    name = next((a for a in model.aliases if "/" in a), model.key)
    if not name.isprintable():
        raise Refusal(f"emit: no command can hold the model's name {name!r}; rename the folder", "emit")
    return shlex.quote(name)


def above_one(size: float) -> int:
    """A size that is worth a flag, else 0."""
    return int(size) if size > 1 else 0
