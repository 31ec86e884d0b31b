"""Techniques by name, ``catalog/techniques.toml``, and what of a question each of them changes."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from commtax.catalog.loader import plain_record, suggest
from commtax.question import PARTS, Question
from commtax.shipped_tables import table
from commtax.spec import Technique
from commtax.statement import Refusal

NONE = "none"
"""What asks for no technique, among several that are compared."""


@lru_cache(maxsize=1)
def techniques() -> Mapping[str, Technique]:
    """All of them by key, in the order of the file."""
    return {
        key: plain_record(Technique, {"key": key, **entry}, "techniques.toml")
        for key, entry in table("catalog/techniques.toml").items()
    }


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Technique]:
    return {name: one for one in techniques().values() for name in (one.key, *one.also)}


def technique(name: str) -> Technique:
    """A technique by key or other name, underscores as dashes."""
    known, asked = _by_name(), name.strip().lower().replace("_", "-")
    if asked not in known:
        raise Refusal(
            f"technique '{name[:40]}': one of {', '.join(techniques())}{suggest(asked, known)}",
            "technique",
            tuple(techniques()),
        )
    return known[asked]


def asked_techniques(text: str) -> Iterator[tuple[Technique, tuple[str, ...]]]:
    """The techniques that a text asks for, each with its values: ``dbo,dcp=2,mtp=3:0.8``."""
    for word in text.split(","):
        name, equals, values = word.partition("=")
        if name.strip() == NONE and not equals:
            continue
        one = technique(name)
        told = values if equals else (one.usual.split() or [""])[0]
        given = tuple(value.strip() for value in told.split(":")) if equals or told else ()
        _check_values(one, given)
        yield one, given


def _check_values(one: Technique, given: tuple[str, ...]) -> None:
    needed = sum(not name.endswith("?") for name in one.takes)
    if len(given) > len(one.takes) or len(given) < needed or "" in given:
        told = ":".join(name.strip("?") for name in one.takes)
        rule = f"write {one.key}={told}" if one.takes else "takes no value"
        raise Refusal(f"technique '{one.key}={':'.join(given)}': {rule}", "technique")


def changes_of(text: str) -> dict[str, object]:
    """Fields of the question that techniques change, and what they become.

    >>> changes_of("dbo,mtp=3:0.8")
    {'two_batches': True, 'drafter': 'mtp', 'speculative': 3, 'acceptance': 0.8}
    """
    changes: dict[str, object] = {}
    for one, given in asked_techniques(text):
        changes |= one.sets
        changes |= {name.strip("?"): _value(one, value) for name, value in zip(one.takes, given, strict=False)}
    return changes


def techniques_on(q: Question) -> Iterator[tuple[Technique, str]]:
    """The techniques that are on in a question, each as ``--technique`` takes it; what a plan says by itself is among them."""
    on = {} if q.trains else {one.key: (one, text) for one in techniques().values() if (text := _text_where_on(q, one))}
    for one, text in on.values():
        if not any(one.sets and one.sets.items() < other.sets.items() for other, _ in on.values()):  # which another one includes
            yield one, text


def _text_where_on(q: Question, one: Technique) -> str:
    values = [value if (value := _field(q, name.strip("?"))) != one.sets.get(name.strip("?")) else None for name in one.takes]
    named = not one.words or values[0] in one.words.values()
    on = all(_field(q, name) == value for name, value in one.sets.items()) if one.sets else any(values) and named
    return _written(one, values) if on else ""


def _field(q: Question, name: str) -> object:
    """What a question's field says; None where it says what it says by itself."""
    for part, names in PARTS.items():
        if name in names:
            held = getattr(q, part)
            value, usual = getattr(held, name), getattr(type(held)(), name)
            return None if np.ndim(value) or value == usual else value
    return getattr(q, name) or None


def _written(one: Technique, values: list[object]) -> str:
    """A technique with its values as they are typed, those at the end that say nothing left out."""
    words = {ours: word for word, ours in reversed(list(one.words.items()))}
    said = [str(words.get(str(value), value)) if value else "" for value in values]
    while said and not said[-1]:
        said.pop()
    return f"{one.key}={':'.join(said)}" if said else one.key


def _value(one: Technique, text: str) -> object:
    """A value as it was typed: a number where it is one, else a word, in ours where the technique has its own."""
    if one.words:
        if text not in one.words:
            raise Refusal(f"technique '{one.key}={text}': one of {', '.join(one.words)}", "technique", tuple(one.words))
        return one.words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
