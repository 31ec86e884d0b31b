"""The words of notes, reasons and remedies: ``words.toml`` has each once, and every surface spells its options in a way of its own.

An entry is a piece of text, or a list of pieces. ``{name}`` is a figure, or a note that stands inside this one. ``{name:spec}`` is
a figure in one of ``FORMATS`` or of Python's, and of several notes what stands between them. ``{--option}`` and
``{--option:value}`` name an option to set. A piece of a list is left out where it names an option that the surface does not have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from string import Formatter

from commtax.shipped_tables import table
from commtax.statement import Note, OptionValue
from commtax.units import format_bytes, format_figure, format_money, format_seconds, plural

Spell = Callable[[str, str], str]
"""How a surface spells an option and the value to set it to; "" where it has no such option."""
Figures = Mapping[str, object]
FORMATS: Mapping[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "figure": format_figure,
    "money": format_money,
}
SHORT = ("tp", "pp")  # options with one dash


def words(code: str, /, **figures: object) -> Note:
    """Return the note with this code, worded for a terminal.

    >>> words("first-token-wait", wait_s=1.5)
    'requests spend most of their time waiting for the first token (1.5 s): set a limit on that (--ttft)'
    """
    return Note(code, _worded(code, figures, flag), figures)


def spelled(text: str, spell: Spell) -> str:
    """Return a text in the words of another surface. One that the table does not have stays as it is.

    >>> spelled(words("first-token-wait", wait_s=1.5), lambda option, value: "")
    'requests spend most of their time waiting for the first token (1.5 s): set a limit on that'
    """
    return _worded(text.code, text.figures, spell) if isinstance(text, Note) and text.figures is not None else str(text)


def flag(option: str, value: str) -> str:
    """Return an option as a command takes it.

    >>> flag("max-num-seqs", "64"), flag("tp", "2"), flag("ttft", "")
    ('--max-num-seqs 64', '-tp 2', '--ttft')
    """
    return f"{'-' if option in SHORT else '--'}{option}{' ' * bool(value)}{value}"


def flags(settings: Sequence[OptionValue]) -> str:
    """Return options as a command takes them.

    >>> flags(settings_of({"zero": 1, "sequence_parallel": True}))
    '--zero 1 --sequence-parallel'
    """
    return " ".join(flag(*setting) for setting in settings)


def settings_of(changes: Mapping[str, object]) -> list[OptionValue]:
    """Return changed fields of a question as options to set."""
    return [OptionValue(name.replace("_", "-"), "" if value is True else str(value)) for name, value in changes.items()]


def opening(text: str) -> str:
    """Return a remark as a sentence of its own.

    >>> opening("clients move in lockstep")
    'Clients move in lockstep.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def settings_in(note: str) -> Sequence[OptionValue]:
    """Return the options that a remedy names."""
    settings = note.figures.get("settings", ()) if isinstance(note, Note) and note.figures else ()
    return settings if isinstance(settings, list) else ()


def inside(text: str) -> Iterator[str]:
    """Yield the texts that stand inside a note, and those inside them."""
    for value in (text.figures if isinstance(text, Note) and text.figures else {}).values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                yield one
                yield from inside(one)


@cache
def _pieces(code: str) -> Sequence[str]:
    entry = table("words.toml")[code]
    return [entry] if isinstance(entry, str) else list(entry)


def _worded(code: str, figures: Figures, spell: Spell) -> str:
    pieces = _pieces(code)
    return "".join(_filled(piece, figures, spell, optional=len(pieces) > 1) for piece in pieces)


def _filled(piece: str, figures: Figures, spell: Spell, optional: bool) -> str:
    """Return a piece with its figures, "" where it is ``optional`` and names an option that the surface does not have."""
    parts = list[str]()
    for literal, field, spec, _ in Formatter().parse(piece):
        parts.append(literal)
        if field is None:
            continue
        value, format_ = figures.get(field), spec or ""
        if field.startswith("--"):
            value, format_ = OptionValue(field.removeprefix("--"), format_.format_map(figures)), ""
        settings = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, OptionValue)]
        if optional and not all(spell(*setting) for setting in settings):
            return ""
        parts.append(_figure(value, format_, spell))
    return "".join(parts)


def _figure(value: object, spec: str, spell: Spell) -> str:
    """Return a figure in a format. ``n GPU`` counts GPUs."""
    if isinstance(value, str):
        return spelled(value, spell)
    if isinstance(value, OptionValue):
        return spell(*value) or f"{value.option.replace('-', ' ')} {value.value}".rstrip()
    if isinstance(value, Sequence):
        return spec.join(_figure(one, "", spell) for one in value)
    assert isinstance(value, int | float)
    if spec.startswith("n "):
        return plural(value, spec.removeprefix("n "))
    return FORMATS[spec](value) if spec in FORMATS else format(value, spec)
