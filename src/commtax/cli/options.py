"""Flags of commands, made from the table of options, and the kinds of values they take."""

import re
from collections.abc import Callable, Container, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click
import numpy as np

from commtax import options as table
from commtax.cli.help import GROUPS as GROUPS
from commtax.cli.help import Verb as Verb
from commtax.judgement.confidence import confidence_of, margin_of
from commtax.options import Option
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_count, parse_fraction, parse_seconds
from commtax.verbs.settling import AUTO_EP

Command = Callable[..., None]
Written = str | float  # a value as it was typed, or as a default
DETAILS = "details"  # the option that all answers are told with or without: no command need take it
# What people write behind a number of requests a second, and around a price of a GPU-hour
_PER_SECOND = re.compile(r"\s*(?:rps|qps|(?:req(?:uest)?s?\s*)?(?:/\s*s|/\s*sec|per second))\s*$", re.I)
_PER_HOUR = re.compile(r"^\s*(?:\$|USD)|(?:\$|USD)?\s*(?:/\s*h|/\s*hr|/\s*hour|per hour)?\s*$", re.I)
MAX_VALUES = 1_024  # values of one option that are shown


class CommandOptions(dict[str, Any]):
    """Options of a command line by name, as click has read them, each of them an attribute too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in table.options():
            return None  # which this verb does not have
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value


class VerbSubject(Enum):
    """What a verb's orders ask about."""

    STEP = "one step"
    STEPS = "steps beside each other"
    SERVER = "what a server holds"
    LOOP = "requests of a closed loop"
    SEARCH = "the best plan"

    @property
    def whole(self) -> bool:
        """Serving as a whole, and not a step of it."""
        return self in (VerbSubject.SERVER, VerbSubject.SEARCH)

    @property
    def several(self) -> bool:
        """All servers that share the requests, and not one of them."""
        return self in (VerbSubject.LOOP, VerbSubject.SEARCH)


class Kind(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A kind of values: what help calls it, and what reads one from a text or a default, told the option's name."""

    def __init__(self, name: str, read: Callable[[Written, str], object]) -> None:
        self.name, self.read = name, read

    def convert(self, value: Written, param: click.Parameter | None, _ctx: click.Context | None) -> object:
        return self.read(value, param.name if param and param.name else "value")


def _positive_count(value: Written, name: str, other: str = "") -> int:
    """Read a whole number, which is at least 1 where somebody gives it."""
    count = parse_count(value, name)
    if count < 1 and isinstance(value, str):
        raise Refusal(f"{name}={count}: a whole number of at least 1 is needed{other}")
    return count


def _counts(value: Written, name: str) -> list[int]:
    return [parse_count(part, name) for part in str(value).split(",")]


def _counts_or_count(value: Written, name: str) -> int | np.ndarray:
    num_values = str(value).count(",") + 1
    if num_values > MAX_VALUES:
        raise Refusal(f"{name}: {num_values:,} values, more than the {MAX_VALUES:,} that are shown", name)
    counts = _counts(value, name)
    return counts[0] if len(counts) == 1 else np.array(counts)


def _rates(value: Written, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(_PER_SECOND.sub("", part)) for part in str(value).split(",") if value)
    except ValueError:
        raise Refusal(f"{name} '{value}': numbers of requests a second are needed, such as 2,6", name) from None


def _number(value: Written, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        bare = re.match(r"\d+(?:\.\d+)?(?=\s*[a-zA-Z/])", str(value))
        raise Refusal(f"{name}: '{str(value)[:40]}' is not a number{f'; write {bare[0]}' if bare else ''}", name) from None


def _prices(value: object, name: str) -> float | list[float | None]:
    """Read the price of a GPU-hour, or one for each cluster, None for the catalogue's: ``2.5``, ``2.5,4`` or ``2.5,``."""
    try:
        parts = [_PER_HOUR.sub("", part) for part in str(value).split(",")]
        if len(parts) == 1:
            return float(parts[0])
        return [float(part) if part.strip() else None for part in parts]
    except ValueError:
        wanted = "a number of dollars (write 2.5, or 2.5,4 for two clusters)"
        raise Refusal(f"{name}: '{str(value)[:40]}' is not {wanted}", name) from None


JOINED = "joined"  # names that commas may stand between: given twice, both are named, and where one is needed both are refused
POWERS = tuple("KMGT")  # in a size without more, powers of two, as nccl-tests has it
COUNTED = ("", *"0123456789+-.")  # signs that a whole number begins with; what else is a distribution
KINDS: Mapping[str, Kind | click.Path | type] = {  # what the table calls the kinds of values
    "count": Kind("N", parse_count),
    "counts": Kind("N,N", _counts),
    "several": Kind("N[,N…]", _counts_or_count),
    "some": Kind("N", _positive_count),
    "experts": Kind("N", lambda value, name: AUTO_EP if value == "auto" else _positive_count(value, name, ", or auto")),
    "length": Kind("N|DIST", lambda text, name: parse_count(text, name) if str(text).strip()[:1] in COUNTED else str(text).strip()),
    "integer": int,
    "number": Kind("X", _number),
    "rate": Kind("RATE", lambda value, name: _number(_PER_SECOND.sub("", str(value)), name)),  # "20 rps" and "20/s" are 20
    "rates": Kind("R,R", _rates),
    "share": Kind("SHARE", parse_fraction),
    "confidence": Kind("80%", confidence_of),
    "margin": Kind("5%", margin_of),
    "time": Kind("TIME", lambda value, name: parse_seconds(str(value), name)),
    "bytes": Kind("SIZE", parse_bytes),
    "size": Kind("SIZE", lambda value, name: parse_bytes(f"{value}iB" if str(value)[-1:] in POWERS else value, name)),
    "prices": Kind("USD[,USD]", _prices),
    "names": Kind("NAMES", lambda value, _: [name for name in str(value).split(",") if name]),
    JOINED: str,
    "path": click.Path(path_type=Path),
    "flag": bool,
}


def add_verb_options(verb: str, left_out: Container[str] = (), **others: Mapping[str, object]) -> Callable[[Command], Command]:
    """Add the flags of a verb, and those that it refuses with a reason. ``others`` has what only code knows of some of them."""

    def add(command: Command) -> Command:
        for name, reason in table.refused_by(verb).items():
            command = _refused_option(table.options()[name], reason)(command)
        for name, option in reversed(list(table.taken_by(verb).items())):
            if name not in left_out:
                command = _flag(option.but(others.get(name, {})))(command)
        return command

    return add


def _flag(option: Option) -> Callable[[Command], Command]:
    if option.name == DETAILS:
        return click.option(*option.spellings, is_flag=True, expose_value=False, callback=_keep_details, help=option.help)
    if option.kind == "flag":
        return click.option(*option.spellings, option.name, is_flag=True, default=bool(option.default), help=option.help)
    kind = KINDS.get(option.kind)
    rest = CommandOptions(type=kind, metavar=option.metavar if kind else option.kind, help=option.help)
    if option.kind == JOINED:
        rest |= {"multiple": True, "default": ()}
        rest.callback = lambda _context, _param, values: ",".join(dict.fromkeys(values)) or option.default
    elif option.required:
        rest.required = True
    else:
        rest |= {"default": option.default, "multiple": option.multiple}
    return click.option(*option.spellings, option.name, **rest)


def _keep_details(context: click.Context, _param: click.Parameter, value: bool) -> None:
    context.meta[DETAILS] = value


def _refused_option(option: Option, reason: str) -> Callable[[Command], Command]:
    """Return a flag that help does not list and that is refused with its reason."""

    def refuse(_context: click.Context, _param: click.Parameter, value: object) -> None:
        if value:
            raise Refusal(f"{option.name}: {reason}", option.name)

    is_flag = option.kind == "flag"
    return click.option(*option.spellings, option.name, is_flag=is_flag, hidden=True, expose_value=False, callback=refuse)
