"""What to type instead: answers to the mistakes that newcomers make on a command line. Read only when one was made."""

import os
import re
from contextlib import suppress
from difflib import get_close_matches

import click

from commtax import catalog
from commtax.catalog.models import bundled_model
from commtax.catalog.techniques import techniques
from commtax.cli.help import helps
from commtax.options import options, taken_by
from commtax.shipped_tables import table
from commtax.statement import Refusal
from commtax.units import listed

USUAL = "8xh100-sxm"
UNITS = ("us", "ms", "s", "min")
NEAR = 0.7  # share of two names that is alike, from which on one may be a misspelling of the other
MOST_NAMED = 4  # commands that an answer names


def what_to_type(error: click.UsageError, arguments: list[str]) -> str:
    """Return a hint for a common mistake, or "" for any other."""
    verb = arguments[0] if arguments else ""
    if isinstance(error, click.NoSuchOption):
        return _of_option(error, verb, arguments)
    if error.message.startswith("Got unexpected extra argument"):
        return _of_words(re.findall(r"\((.*)\)", error.message)[0].split(), verb, arguments)
    if error.message.startswith("No such command"):
        if bundled_model(verb):
            ask = f"commtax fit {verb} --cluster {USUAL}"
            return f"'{verb}' is a model; ask something about it: {ask} (all commands: commtax --help)"
        if _is_cluster(verb):
            return f"'{verb}' is a cluster; ask what runs on it: commtax fit llama-3.1-70b --cluster {verb}"
        near = get_close_matches(verb, [name for name in helps()["command"] if " " not in name], 1)
        return f"'{verb}' is no command; {f'did you mean {near[0]}? ' if near else ''}commtax --help lists all"
    if error.message.endswith("requires an argument."):
        flag = error.message.split("'")[1]
        key = next((n for n, option in taken_by(verb).items() if flag in (*option.flags, f"--{n.replace('_', '-')}")), "")
        return f"{flag}: write what it is, such as {flag} {USUAL}" if key == "cluster" else ""
    return ""


def of_value(error: ValueError, arguments: list[str]) -> str:
    """Return the option that takes a share or a technique, where one stands in the place of a count, or "" for other errors."""
    name = error.argument if isinstance(error, Refusal) else ""
    flag = table(os.path.join("cli", "mistakes.toml"))["shares"].get(name, "")
    value = _value_of(f"--{name.replace('_', '-')}", arguments)
    if "technique" not in name and value.partition("=")[0] in techniques():
        return f"{name}: '{value[:40]}' is a technique: write --technique {value[:40]}"
    number = value.removesuffix("%")
    share = float(number) / (100 if value.endswith("%") else 1) if _is_number(number) else 0
    return f"{error}; a share is {flag} {share:.0%}" if flag and 0 < share < 1 else ""


def _of_option(error: click.NoSuchOption, verb: str, arguments: list[str]) -> str:
    """Return the name that an option has here, or which commands take it."""
    flag = error.option_name
    name, value = flag.lstrip("-"), _value_of(flag, arguments)
    if text := next((row["says"] for row in table(os.path.join("cli", "mistakes.toml"))["instead"] if name in row["options"]), ""):
        cluster = f"{value}x{USUAL.partition('x')[2]}" if value.isdigit() else USUAL  # 8 are eight of the usual GPUs
        with suppress(ValueError):  # h100 is a host of them
            chip = catalog.chip(value)
            cluster = f"{chip.gpus_per_host}x{chip.key}"
        return f"{flag}: {text.format(value=value or '…', cluster=cluster)}"
    takers = [taker for taker in options()[key].verbs if "(" not in taker] if (key := name.replace("-", "_")) in options() else []
    if takers:
        return f"{flag}: {verb} has no such option; {listed(takers[:MOST_NAMED])} {'take' if len(takers) > 1 else 'takes'} it"
    if technique := next((one for one in techniques().values() if name in (one.key, *one.also)), None):
        word = value if value and (value in technique.words or not technique.words) else next(iter(technique.words), "")
        return f"{flag}: a technique: write --technique {'='.join(filter(None, (technique.key, word)))}"
    near = get_close_matches(name, [one.lstrip("-") for one in error.possibilities or ()], 1, NEAR)
    return f"No such option '{flag}'{f'. Did you mean --{near[0]}?' if near else f'; commtax {verb} --help lists all'}"


def _value_of(flag: str, arguments: list[str]) -> str:
    for position, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == flag:
            follower = arguments[position + 1] if position + 1 < len(arguments) else ""
            return value if equals else "" if follower.startswith("-") else follower
    return ""


def _of_words(words: list[str], verb: str, arguments: list[str]) -> str:
    """Return what words too many mean: a unit behind a space, a cluster or a technique without its option, a second model."""
    if not words:
        return ""
    first = words[0]
    before = arguments[arguments.index(first) - 1] if first in arguments[1:] else ""
    if first in UNITS and _is_number(before):
        return f"'{before} {first}': write it as one word, {before}{first}"
    option = arguments[arguments.index(before) - 1] if before in arguments[1:] else ""
    if before.isdigit() and option in ("-c", "--cluster") and _is_cluster(f"{before}x{first}"):
        return f"cluster '{before} {first}': write it as one word, --cluster {before}x{catalog.chip(first).key}"
    if "cluster" in taken_by(verb) and _is_cluster(first):
        return f"'{first}' is a cluster: write --cluster {first}"
    if "technique" in taken_by(verb) and first.partition("=")[0] in techniques():
        return f"'{first}' is a technique: write --technique {first}"
    return ""


def _is_cluster(text: str) -> bool:
    try:
        catalog.cluster(text)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d+(\.\d+)?", text))
