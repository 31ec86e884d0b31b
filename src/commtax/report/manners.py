"""How a kind of answer shows itself in Python. Each module of ``report`` has those of its answers in ``MANNERS``, by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from commtax.records import dataclass
from commtax.report.documents import Record
from commtax.report.drawing import Console
from commtax.verbs.settling import describe_gpus

if TYPE_CHECKING:
    from commtax.question import Question
    from commtax.report.plots import BarRow, Figure
    from commtax.verbs.explained_step import LayerTimeline

LISTED = 10  # plans that a document lists, as ``plan`` does by default
Rows = list[Record]
T = TypeVar("T", contravariant=True)


@dataclass(frozen=True, slots=True)
class Manner(Generic[T]):
    """The functions that show a kind of answer on a terminal, document it, list its rows and draw it."""

    show: Callable[[Console, T], None]
    document: Callable[[T], object]
    rows: Callable[[T], Rows]
    plot: Callable[[T, Path | None], Figure]
    draw: Callable[[T], str] = lambda _: ""  # a picture for its page


def bars(
    rows: Callable[[T], Iterable[BarRow]], unit: str, title: Callable[[T], str], colours: Callable[[T], list[str]] = lambda _: []
) -> Callable[[T, Path | None], Figure]:
    """Return a function that plots rows of an answer as bars."""

    def plot(answer: T, path: Path | None) -> Figure:
        from commtax.report.plots import plot_bars  # not for those who draw nothing

        return plot_bars(list(rows(answer)), unit, title(answer), path, colours(answer))

    return plot


def question_title(q: Question) -> str:
    """Return what an answer is about: the model, the cluster and the plan."""
    return f"{q.model.key} on {q.cluster.key}: {describe_gpus(q.plan)}"


def layer_drawing(layer: LayerTimeline) -> str:
    from commtax.report.answer_pages import layer_picture  # not for those who print

    return layer_picture(layer)
