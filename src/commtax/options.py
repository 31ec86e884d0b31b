"""The one table of options, ``options.toml``: what each is, where the question keeps it, and which verbs take it.

Keywords of functions, flags of commands, checks of plain numbers, the page's keys and refusals are made from these records. A verb
is a command (``bill``) or a function (``bill()``).
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from commtax import HOMES, fetch
from commtax.records import dataclass
from commtax.shipped_tables import table
from commtax.statement import Refusal

Entry = Mapping[str, Any]
MOST_NAMED = 4  # functions that a refusal names


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as a verb has it."""

    name: str
    field: str = ""  # of the question: PART.FIELD, or FIELD of its own; "": none
    type: str = ""  # of the keyword
    kind: str = "TEXT"  # of a flag's value
    default: object = None
    group: str = "Output"  # that help lists it in
    help: str = ""
    flags: tuple[str, ...] = ()  # where they are not its name with dashes
    spelled: tuple[str, ...] = ()  # flags of engines that mean it
    multiple: bool = False
    required: bool = False
    metavar: str | None = None  # where the name of its kind is too vague
    verbs: tuple[str, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why a command has no use for it
    serving: bool | tuple[str, ...] = False  # belongs to serving alone; of some commands, where not of all
    beside: str = ""  # the kind of question that it belongs to alone
    otherwise: str = ""  # the option that a pasted value becomes in verbs that have no such one
    drawn: bool = False  # sets which requests come, as a trace does
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    endless: bool = False  # infinity means something
    rule: str = ""  # a check that has a name
    words: tuple[str, ...] = ()  # all that there are

    @property
    def part(self) -> str:
        """The part of the question that holds it, "" for a field of its own."""
        return self.field.rpartition(".")[0]

    @property
    def key(self) -> str:
        """The field's name, which is the option's where the question has no such field."""
        return self.field.rpartition(".")[2] or self.name

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def bounded(self) -> bool:
        """Whether the table restricts the option's values."""
        return bool(self.rule or self.words) or self.least is not None or self.above is not None

    def serves(self, command: str) -> bool:
        """Return whether a command refuses it in training."""
        return self.serving if isinstance(self.serving, bool) else command in self.serving

    def but(self, entry: Mapping[str, object]) -> "Option":
        """Return the same option with what is otherwise for a verb."""
        changes: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        return dataclasses.replace(self, **(changes | {"default": None} if changes.pop("optional", False) else changes))


@cache
def _tables() -> Entry:
    return table("options.toml")


@cache
def options() -> Mapping[str, Option]:
    sets, made = _tables()["sets"], dict[str, Option]()
    for name, entry in _tables()["option"].items():
        verbs = [verb for word in entry.get("verbs", ()) for verb in (sets[word[1:]] if word.startswith("@") else (word,))]
        made[name] = Option(name).but({**entry, "verbs": verbs})
    return made


@cache
def taken_by(verb: str) -> Mapping[str, Option]:
    """Return the options of a verb, as it has them. Those that it alone has say their kind."""
    taken = {name: option for name, option in options().items() if verb in option.verbs}
    for name, entry in _tables()["verb"].get(verb, {}).items():
        taken[name] = (Option(name) if "kind" in entry and name not in taken else options()[name]).but(entry)
    return taken


def refused_by(command: str) -> Mapping[str, str]:
    """Return the options that a command has no use for, and why."""
    return {name: option.refused[command] for name, option in options().items() if command in option.refused}


def check_taken(function: str, chosen: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options where the function takes them all, and refuse with its reason any that it has no use for."""
    for name in chosen:
        if name not in taken_by(f"{function}()"):
            reason = refused_by(_tables()["commands"].get(function, function)).get(name)
            right, others = _right_keyword(function, name)
            text = f"{function} has no such keyword{others}" if reason is None else reason
            raise Refusal(f"{name}: {text}", name, right)
    return chosen


def _right_keyword(function: str, name: str) -> tuple[list[str], str]:
    """Return what somebody may have meant, and how to say it: the name in Python, another function that has it, or a near name."""
    from difflib import get_close_matches

    taken, other = keywords_of(function), _spelled_otherwise().get(name, name)
    named = f'{other}={{"{name}": "50ms"}}' if other == "slo" else other
    if other in taken:
        return [other], f"; it is called {named}"
    takers = [taker for taker in _functions() if other in keywords_of(taker)]
    takers = [taker for taker in takers if taker.startswith(function) or function.startswith(taker)] or takers
    if takers:
        return [], f"; {', '.join(f'commtax.{taker}' for taker in takers[:MOST_NAMED])} would take {named}"
    nearest = get_close_matches(name, taken, 1)
    return nearest, f"{f'; the nearest is {nearest[0]}' if nearest else ''}; there are {', '.join(taken)}"


def _functions() -> Mapping[str, Callable[..., object]]:
    return {name: fetch(name) for names in HOMES.values() for name in names if name.islower()}


def keywords(function: str) -> dict[str, str]:
    """Return what each option of a public function means, by its keyword. What else it takes is in its ``help()``.

    >>> keywords("bill")["tp"]
    'Tensor-parallel size (also -tp).'
    """
    if function not in _functions():
        raise Refusal.of(f"one of {', '.join(_functions())}", tuple(_functions()), function=function)
    return {name: option.help for name, option in taken_by(f"{function}()").items()}


def keywords_of(function: str) -> list[str]:
    """Return all keywords of a public function: those that it writes down, and the options that it takes."""
    from inspect import Parameter, signature

    written = signature(_functions()[function]).parameters.values()
    named = [one.name for one in written if one.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return list(dict.fromkeys([*named, *taken_by(f"{function}()")]))


def _spelled_otherwise() -> Mapping[str, str]:
    """Return keywords by their names in commands and engines: ``tensor_parallel_size`` is ``tp``."""
    flags = {flag: name for name, option in options().items() for flag in (*option.flags, *option.spelled)}
    limits = {name: "slo" for name, option in taken_by("plan").items() if option.group == "Limits"}
    return {flag.lstrip("-").replace("-", "_"): name for flag, name in flags.items()} | limits | dict(_tables()["keywords"])


def option_called(name: str) -> Option | None:
    """Return the option of a name, or of the name that commands and engines have for it."""
    key = name.replace("-", "_")
    return options().get(key) or options().get(_spelled_otherwise().get(key, ""))


def page_keys() -> Mapping[str, Entry]:
    """Return the keys of the page's links, in their order."""
    return dict(_tables()["page"])
