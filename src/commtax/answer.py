"""What every answer can do beside having figures: show itself, and be handed on to tables, pictures and files.

How an answer is told is known above, in ``report.answers``, which is fetched when somebody asks: whoever only wants figures
imports nothing of it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from matplotlib.figure import Figure
    from pandas import DataFrame


def _teller() -> ModuleType:
    return import_module("commtax.report.answers")


class Answer:
    """An answer of commtax: figures as attributes, one screen of words for ``print``, and ways out."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        setattr(cls, "__repr__", Answer.__repr__)  # noqa: B010 (before a data class writes its own)

    def __repr__(self) -> str:
        """At most one screen of what the command prints."""
        text: str = _teller().to_text(self)
        return text

    def _repr_html_(self) -> str:
        """The same with a picture, as notebooks show it: no scripts, nothing fetched, on light and on dark."""
        page: str = _teller().to_html(self)
        return page

    def to_dict(self) -> dict[str, Any]:
        """The document that the command prints with ``--json``: plain numbers, texts, lists and dictionaries."""
        return dict(_teller().to_dict(self))

    def to_frame(self, library: str = "") -> DataFrame:
        """A table of its rows, in words and numbers, of ``"pandas"`` or ``"polars"``: the first of them that is installed."""
        table: DataFrame = _teller().to_frame(self, library)
        return table

    def plot(self, path: str = "") -> Figure:
        """A figure of Matplotlib (``pip install 'commtax[plot]'``), written to a file where ``path`` names one."""
        figure: Figure = _teller().to_figure(self, path)
        return figure
