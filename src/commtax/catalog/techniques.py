"""Techniques by name, ``catalog/techniques.toml``, and what of a question each of them changes."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from commtax.catalog.loader import plain_record, suggest
from commtax.options import option_called, options
from commtax.question import PARTS, Question
from commtax.shipped_tables import table
from commtax.spec import Plan, Technique
from commtax.statement import UNSAID, Refusal
from commtax.units import listed

VALUES = table("catalog/technique_values.toml")
COUNTED = {"least": 0, "most": 2**16, "whole": True}  # bounds of counts that have none there
NONE = "none"  # what asks for no technique, among several that are compared


@lru_cache(maxsize=1)
def techniques() -> Mapping[str, Technique]:
    """Return all of them by key, in the order of the file."""
    entries = table("catalog/techniques.toml").items()
    return {key: plain_record(Technique, {"key": key, **entry}, "techniques.toml") for key, entry in entries}


def technique(name: str) -> Technique:
    """Return a technique by key or other name, underscores as dashes."""
    by_name = {name: one for one in techniques().values() for name in (one.key, *one.also)}
    if (key := name.strip().lower().replace("_", "-")) not in by_name:
        option, rule = option_called(key), f"one of {', '.join(techniques())}{suggest(key, by_name)}"
        if option and (takers := [verb for verb in option.verbs if "(" not in verb]):
            rule = f"no technique, but an option of {listed(takers)}: {option.spellings[0]}"
        raise Refusal(f"technique '{name[:40]}': {rule}", "technique", tuple(techniques()))
    return by_name[key]


def parse_techniques(text: str) -> Iterator[tuple[Technique, tuple[str, ...]]]:
    """Yield the techniques that a text names, each with its values: ``dbo,dcp=2,mtp=3:0.8``."""
    for word in text.split(","):
        name, equals, values = word.partition("=")
        if name.strip() == NONE and not equals:
            continue
        one = technique(name)
        text_values = values if equals else (one.usual.split() or [""])[0]
        parts = tuple(value.strip() for value in text_values.split(":")) if equals or text_values else ()
        needed = sum(not name.endswith("?") for name in one.takes)
        if not needed <= len(parts) <= len(one.takes) or "" in parts:
            words = [VALUES.get(name.strip("?"), {}).get("word", "VALUE") for name in one.takes]
            form = ":".join(words[: needed or None]) + "".join(f"[:{word}]" for word in words[needed:] if needed)
            rule = f"write {one.key}={form}{'' if needed else f' or {one.key}'}" if words else "takes no value"
            text = f"{one.key}{'=' * bool(parts)}{':'.join(parts)}"
            raise Refusal(rule if parts else f"needs a value; {rule}", "technique", kind=UNSAID, subject=f"technique '{text}'")
        yield one, parts


def changes_of(text: str) -> dict[str, object]:
    """Return the fields of the question that techniques change, and what they become.

    >>> changes_of("dbo,mtp=3:0.8")
    {'two_batches': True, 'drafter': 'mtp', 'speculative': 3, 'acceptance': 0.8}
    """
    changes: dict[str, object] = {}
    for one, parts in parse_techniques(text):
        values = {name.strip("?"): _value(one, name.strip("?"), value) for name, value in zip(one.takes, parts, strict=False)}
        fields = {**one.sets, **values}
        if twice := [name for name, value in fields.items() if changes.get(name, value) != value]:
            rule = f"{one.key} and one before it both set {twice[0]}; name one of them"
            raise Refusal(f"technique '{text[:60]}': {rule}", "technique")
        changes |= fields
    return changes


def techniques_on(q: Question) -> Iterator[tuple[Technique, str]]:
    """Yield the techniques that are on in a question, each as ``--technique`` takes it, with those that a plan implies."""
    on = [] if q.trains else [one for one in techniques().values() if is_on(one, q)]
    for one in on:
        if not any(one.sets and one.sets.items() < other.sets.items() for other in on):  # which another one includes
            taken = [(name.strip("?"), field_value(q, name.strip("?"))) for name in one.takes]
            values = [None if is_default(name, value) or value == one.sets.get(name) else value for name, value in taken]
            words = {ours: word for word, ours in reversed(list(one.words.items()))}
            written = [str(words.get(str(value), value)) if value else "" for value in values]
            while written and not written[-1]:
                written.pop()
            yield one, f"{one.key}={':'.join(written)}" if written else one.key


def is_on(one: Technique, q: Question) -> bool:
    """Return whether all that a technique sets is set, and what it takes is not what nobody says."""
    taken = {name.strip("?") for name in one.takes}
    if not has_changes(q, {name: value for name, value in one.sets.items() if name not in taken}):
        return False
    needed = [name for name in one.takes if not name.endswith("?")] or [name for name in taken if name in one.sets or not one.sets]
    values = [(name, field_value(q, name)) for name in needed]
    return all(not is_default(name, value) and (not one.words or value in one.words.values()) for name, value in values)


def has_changes(q: Question, changes: Mapping[str, object]) -> bool:
    return all(field_value(q, name) == value for name, value in changes.items())


def field_value(q: Question, name: str) -> object:
    """Return a field of the question, whichever of its parts it belongs to, or None for no such field, or several values."""
    part = _part_of(name)
    value = getattr(getattr(q, part) if part else q, name, None)
    return None if isinstance(value, np.ndarray) else value


def default_of(name: str) -> object:
    part = _part_of(name)
    return getattr(Plan() if part == "plan" else Question.__dataclass_fields__[part].default, name, 0) if part else 0


def is_default(name: str, value: object) -> bool:
    """Return whether a field's value is what it is where nobody says."""
    return value is None or value == default_of(name)


def _part_of(name: str) -> str:
    return next((part for part, names in PARTS.items() if name in names), "")


def _value(one: Technique, name: str, text: str) -> object:
    """Read a typed value: a number within its bounds where its field is one, else a word, in ours where there are such."""
    if one.words:
        if text not in one.words:
            raise Refusal(f"technique '{one.key}={text[:40]}': one of {', '.join(one.words)}", "technique", tuple(one.words))
        return one.words[text]
    counted, bounds = name in options() and options()[name].type == "int", VALUES.get(name, {})
    if "most" not in bounds and not counted:
        return text
    low, high, whole = (bounds.get(key, usual) for key, usual in COUNTED.items())
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        rule = f"a {'whole ' * whole}number from {low:g} to {high:g} is needed for {name}"
        raise Refusal(f"technique '{one.key}={text[:40]}': {rule}", "technique", (int(low) if whole else low,))
    return value


DRAFTS, OTHERS = "drafts", "others"
"""Kinds of techniques that miss alike: what drafts come to hangs on the tokens that they yield, all else on the step's time."""


def kind_of(group: str) -> str:
    return DRAFTS if group == DRAFTS else OTHERS


def width(effect: float, least: float, share: float) -> float:
    """Half of the range of a gain's logarithm, by the size of the effect: sqrt(least^2 + (share effect)^2).

    >>> round(width(0.4, 0.03, 0.1), 3)
    0.05
    """
    return math.hypot(least, share * effect)


def missed(kind: str, gain: float, tokens: float = 1.0) -> float:
    """Half of the 80 % range of the logarithm of a predicted gain, for a step that yields so many tokens per sequence."""
    return width(max(abs(math.log(gain)), math.log(max(1.0, tokens))), **table("catalog/technique_misses.toml")[kind])
