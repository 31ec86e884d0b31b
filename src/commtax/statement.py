"""Text for readers with its subject beside it as data: no decision is ever made by reading a sentence.

A ``Refusal`` names its argument and the nearest legal values, a ``Note`` has a code and figures, a ``Source`` a kind. Notes and
sources are text, so that a surface can show them as they are; code that decides looks at ``code`` and ``kind``.
Change here what a refusal, a note or a source carries beside its words.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from commtax.redaction import redact

ALREADY_ON, OTHER_ENGINES, OTHER_CHIPS, OTHER_MODELS, UNSAID = "on", "engines", "chips", "models", "unsaid"
"""Kinds of refusals of techniques: on anyway, not in this engine, not for these chips or this model, or a figure is missing."""
STRANGE, COSTLY = "not-understood", "may-cost"
"""Codes of notes on pasted words that are not understood, with which answers begin, and on those that have no price and may cost,
with which answers begin that weigh settings or plans."""
MEANS = "means"  # the code of means of requests that were also simulated in time
KINDS = ("datasheet", "by definition", "measured", "calibrated", "transferred", "assumed")
"""Where a number comes from, from the surest on."""


class Refusal(ValueError):  # noqa: N818
    """A refused question: the rule that it breaks, in which argument, the nearest legal values, and the option as ``subject``."""

    def __init__(
        self, rule: str, argument: str = "", nearest: Sequence[float | str] = (), kind: str = "", subject: str = ""
    ) -> None:
        self.rule = redact(rule)  # which may quote input
        super().__init__(f"{redact(subject)}: {self.rule}" if subject else self.rule)
        self.argument, self.nearest, self.kind, self.subject = argument, tuple(nearest), kind, subject

    @classmethod
    def of(cls, rule: str, nearest: Sequence[float | str] = (), **option: object) -> Self:
        """Return a refusal of an option by its name and its value: ``chunks=0: rule``, or ``dtype 'x': rule`` of a text."""
        ((name, value),) = option.items()
        return cls(rule, name, nearest, subject=f"{name} '{value}'" if isinstance(value, str) else f"{name}={value}")

    @classmethod
    def about(cls, **rule: str) -> Self:
        """Return a refusal of an option by its name, whatever its value."""
        ((name, text),) = rule.items()
        return cls(text, name, subject=name)

    def as_kind(self, kind: str) -> Self:
        """Return the same, of one of the kinds above."""
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, tuple[float | str, ...], str, str]]:
        return type(self), (self.rule, self.argument, self.nearest, self.kind, self.subject)  # it may have to leave another process


def rule_of(error: ValueError) -> str:
    """Return the broken rule without its subject, for readers who know what was refused.

    >>> rule_of(Refusal.of("from 1 to 8", tp=9))
    'from 1 to 8'
    """
    return error.rule if isinstance(error, Refusal) else str(error)


class OptionValue(NamedTuple):
    """An option to set, by its name with dashes, and the value to set it to."""

    option: str
    value: str = ""


class Note(str):
    """A remark, a reason or a remedy, as a terminal prints it, with its code, and figures to word it anew (``words.py``)."""

    __slots__ = ("code", "figures")
    code: str
    figures: Mapping[str, object] | None

    def __new__(cls, code: str, text: str, figures: Mapping[str, object] | None = None) -> Self:
        note = super().__new__(cls, text)
        note.code, note.figures = code, figures
        return note

    def __getnewargs__(self) -> tuple[str, str, Mapping[str, object] | None]:  # type: ignore[override]
        return self.code, str(self), self.figures


class Source(str):
    """Where a price comes from. Lines of one ``basis`` err together, while their sentences may differ."""

    __slots__ = ("basis", "kind")
    kind: str
    basis: str

    def __new__(cls, kind: str, text: str = "", basis: str = "") -> Self:
        source = super().__new__(cls, text or kind)
        source.kind, source.basis = kind, basis or kind
        return source

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        return self.kind, str(self), self.basis

    @property
    def detail(self) -> str:
        """Return the text without the kind that it begins with, for sentences that name the kind already."""
        return self.removeprefix(f"{self.kind}: ")
