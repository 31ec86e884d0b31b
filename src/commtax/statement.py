"""What is said to people, with what it is about beside it as data: nothing is ever decided by reading a sentence.

``Refusal`` names the argument and the nearest legal values, ``Note`` has a code, ``Source`` a kind. The latter two are text, so
that whoever shows them shows the sentence; whoever decides looks at ``code`` and ``kind``.

Change here what a refusal, a note or a source carries beside its words.
"""

from collections.abc import Sequence
from typing import Self

from commtax.redaction import redact


class Refusal(ValueError):  # noqa: N818
    """A question that cannot be answered: which rule it breaks, in which argument, and the nearest values that do not."""

    def __init__(self, rule: str, argument: str = "", nearest: Sequence[float | str] = (), kind: str = "") -> None:
        super().__init__(redact(rule))  # which may quote what was given
        self.argument, self.nearest, self.kind = argument, tuple(nearest), kind

    @classmethod
    def of(cls, rule: str, nearest: Sequence[float | str] = (), **given: object) -> Self:
        """The same of an option by its name and what was given for it: ``chunks=0: rule``, or ``dtype 'x': rule`` of a text."""
        ((name, value),) = given.items()
        return cls(f"{name} '{value}': {rule}" if isinstance(value, str) else f"{name}={value}: {rule}", name, nearest)

    @classmethod
    def about(cls, **rule: str) -> Self:
        """A rule that an option by its name breaks, whatever was given for it."""
        ((name, text),) = rule.items()
        return cls(f"{name}: {text}", name)

    def as_kind(self, kind: str) -> Self:
        """The same of one of the kinds below."""
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, tuple[float | str, ...], str]]:
        return type(self), (str(self), self.argument, self.nearest, self.kind)  # it may have to leave another process


ALREADY_ON, OTHER_ENGINES, OTHER_CHIPS, OTHER_MODELS, UNSAID = "on", "engines", "chips", "models", "unsaid"
"""Kinds of refusals of techniques: on anyway, not in this engine, not for these chips or this model, or a figure is missing."""


STRANGE, COSTLY = "not-understood", "may-cost"
"""Codes of what is said of pasted words that mean nothing to us, with which answers begin, and of those that have no price and may
cost, with which answers begin that weigh settings or plans."""
MEANS = "means"  # the code of means of requests that were also simulated in time


class Note(str):
    """A remark beside an answer; ``code`` says which one it is."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, text: str) -> Self:
        note = super().__new__(cls, text)
        note.code = code
        return note

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return self.code, str(self)


KINDS = ("datasheet", "by definition", "measured", "calibrated", "transferred", "assumed")
"""Where a number comes from, from the surest on."""


class Source(str):
    """Where a price comes from. Lines of one ``basis`` err together; their sentences may differ."""

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
        """The text without the kind that it begins with, for sentences that have said the kind already."""
        return self.removeprefix(f"{self.kind}: ")
