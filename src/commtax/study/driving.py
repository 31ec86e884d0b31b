"""What a study asks of an engine, whichever it is: the question, and what a driver must say and do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commtax.files import Document
from commtax.measure.launch import LOST_S
from commtax.spec import Model
from commtax.study.recipe import Run

Done = Callable[[Run, Document], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One study, from the command line."""

    out: Path
    recipe: str = "tp-study"
    engine: str = "builtin"
    model: str = ""
    random: bool = False
    layers: int = 0
    degrees: tuple[int, ...] = (1, 2)
    quick: bool = False
    dtype: str = ""
    device: str = ""
    impl: str = ""
    cluster: str = ""
    profile: str = ""
    dataset: str = ""
    vllm: str = ""
    vllm_args: str = ""
    name: str = ""
    lost_s: float = LOST_S


class Driver(ABC):
    """An engine that can be driven, and what is known of it here."""

    kinds: Sequence[str]  # of runs that it can do
    model: Model
    version: str
    device: str  # in words
    where: str  # the cluster that is priced; "" where nobody knows
    dtype: str
    eager: bool
    on_cpu: bool
    library: str = ""

    @abstractmethod
    def checks(self) -> list[Document]: ...

    @abstractmethod
    def run(self, todo: Sequence[Run], done: Done) -> None:
        """Run all; ``done`` receives each record when it is there."""


def check(what: str, ok: bool | None, found: str) -> Document:
    """One thing that was looked at before runs began; None: it decides nothing."""
    return {"check": what, "ok": ok, "found": found}
