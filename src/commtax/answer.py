"""What every answer can do beside having figures: show itself, and be handed on to tables, pictures and files.

``report.answers``, far above, knows how; the package registers it here, and it is fetched when somebody looks. Whoever only wants
figures imports nothing of it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from matplotlib.figure import Figure
    from pandas import DataFrame


manners: dict[str, Callable[[], object]] = {}
"""How kinds of answers from wings above ``report`` are shown, by the names of their classes."""


def register(teller: Callable[[], ModuleType], more: Mapping[str, Callable[[], object]]) -> None:
    """Say who shows answers, and how those are shown that ``report`` does not know."""
    global _teller
    _teller = teller
    manners.update(more)


_teller: Callable[[], ModuleType]


class Answer:
    """An answer of commtax: figures as attributes, one screen of words for ``print``, and ways out."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        setattr(cls, "__repr__", Answer.__repr__)  # noqa: B010 (before a data class writes its own)

    def __repr__(self) -> str:
        """Return at most one screen of what the command prints."""
        return str(_teller().to_text(self))

    def _repr_html_(self) -> str:
        """Return the same with a picture, as notebooks show it: no scripts, nothing fetched, on light and on dark."""
        return str(_teller().to_html(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``: plain numbers, texts, lists and dictionaries."""
        return dict(_teller().to_dict(self))

    def to_frame(self, library: str = "") -> DataFrame:
        """Return a table of its rows, in words and numbers, of ``"pandas"`` or ``"polars"``: the first that is installed."""
        table: DataFrame = _teller().to_frame(self, library)
        return table

    def plot(self, path: str = "") -> Figure:
        """Return a figure of Matplotlib (``pip install 'commtax[plot]'``), written to a file where ``path`` names one."""
        figure: Figure = _teller().to_figure(self, path)
        return figure
