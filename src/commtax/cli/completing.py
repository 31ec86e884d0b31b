"""What the Tab key offers: verbs, options, and what options take. To be quick, it imports neither NumPy nor click."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict, cast

from commtax.options import Option, taken_by
from commtax.shipped_tables import PACKAGE, table

SHELL = "_COMMTAX_COMPLETE"  # the variable that names the shell
FILES = ":files"  # an answer that stands for files, which shells know better
GROUPS = ("profile", "measure")
HELP = {"--help": "Show what it answers, and its options.", "--help-all": "Explain all options."}
Offers = dict[str, str]  # what may be typed, each with what it is


class CatalogueFacts(TypedDict, total=False):
    """What is offered of a file of the catalogue."""

    name: str
    aliases: list[str]
    gpus_per_host: list[int]
    version: str
    versions: dict[str, object]


def answer(shell: str, words: Sequence[str]) -> str:
    """Return the lines for a shell: each offer as it wants them, and ``:files`` where it is to offer files too."""
    words = list(words) or [""]
    offers = offered(words)
    if shell == "bash":  # which breaks words at "=" itself
        typed = _join_at_equals(words)[-1]
        lines = [value.rpartition("=")[2] if "=" in typed and value != FILES else value for value in offers]
    elif shell == "zsh":
        escaped = {value if value == FILES else value.replace(":", "\\:"): what for value, what in offers.items()}
        lines = [f"{value}:{what}" if what else value for value, what in escaped.items()]
    else:
        lines = [f"{value}\t{what}" if what else value for value, what in offers.items()]
    return "".join(f"{line}\n" for line in lines)


def offered(words: list[str]) -> Offers:
    """Return what the last word, which is being typed, may become."""
    *before, typed = _join_at_equals(words)
    deep = 2 if before and before[0] in GROUPS else 1
    verb, rest = " ".join(before[:deep]), before[deep:]
    if len(before) < deep:
        pages = table(os.path.join("cli", "helps.toml"))["command"]
        inside = f"{before[0]} " if before else ""
        names = [name for name in pages if name.startswith(inside) and " " not in name[len(inside) :]]
        others = {"--help": "All commands.", "--version": "The version."} if not before else {}
        return _starting({name[len(inside) :]: pages[name]["asks"] for name in names} | others, typed)
    flags: dict[str, Option] = {}  # by each spelling that the verb prefers
    also = table(os.path.join("cli", "completion.toml"))["also"].get(verb, "")
    for name, option in {**taken_by(also), **taken_by(verb.replace(" ", "-"))}.items():
        for spelling in option.flags or (f"--{name.replace('_', '-')}",):
            flags |= dict.fromkeys(spelling.split("/"), option)
    flag, equals, value = typed.partition("=")
    if equals and flag in flags:
        return {f"{flag}={one}" if one != FILES else one: what for one, what in _values(verb, flags[flag], value).items()}
    if rest and rest[-1] in flags and flags[rest[-1]].kind != "flag":
        return _values(verb, flags[rest[-1]], typed)
    if typed.startswith("-"):
        return _starting({flag: option.help for flag, option in flags.items()} | HELP, typed)
    position = 0
    for ahead, word in zip(["", *rest], rest, strict=False):
        taker = flags.get(ahead) or flags.get(f"-{ahead}")  # -tp is --tp
        position += not word.startswith("-") and not (taker is not None and taker.kind != "flag")
    return _starting(_argument(verb, rest, position, typed), typed)


def _join_at_equals(words: list[str]) -> list[str]:
    whole: list[str] = []
    for word in words:
        if whole and (word == "=" or whole[-1].endswith("=")) and whole[-1].startswith("--"):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


def _values(verb: str, option: Option, typed: str) -> Offers:
    tables = table(os.path.join("cli", "completion.toml"))
    takes = tables["verbs"].get(verb, {}).get(option.name, tables["options"].get(option.name, option.words))
    if not takes and option.kind in ("path", "FILE", "DIR", "FOLDER"):
        takes = "files"
    return _starting(_named(takes, typed), typed)


def _argument(verb: str, rest: list[str], position: int, typed: str) -> Offers:
    """Return what may stand at a place of a command line that no option claims."""
    places = table(os.path.join("cli", "completion.toml"))["arguments"].get(verb, ())
    if not places:
        return {}
    takes = places[min(position, len(places) - 1)]
    if takes == "named":  # catalog KIND NAME
        takes = next((w for w in rest if not w.startswith("-")), "")
    elif position >= len(places) and takes != "files":
        return {}
    return _named(takes if takes in KINDS or takes == "files" else takes.split(), typed)


def _named(takes: str | Iterable[str], typed: str) -> Offers:
    """Return the names of a kind, or the words themselves, and behind a comma the next of several."""
    if takes == "files":
        return {FILES: ""}
    if not isinstance(takes, str):
        return dict.fromkeys(takes, "")
    kind, several, _ = takes.partition(",")
    if kind not in KINDS:
        return {}
    done = typed[: typed.rfind(",") + 1] if several else ""
    return {f"{done}{name}" if name != FILES else name: what for name, what in KINDS[kind](typed[len(done) :]).items()}


def _starting(offers: Offers, typed: str) -> Offers:
    return {value: what for value, what in offers.items() if value == FILES or value.lower().startswith(typed.lower())}


def _stems(kind: str) -> list[str]:
    return sorted(name.rpartition(".")[0] for name in os.listdir(os.path.join(PACKAGE, "catalog", kind)) if "." in name)


def _facts(kind: str, key: str) -> CatalogueFacts:
    return cast(CatalogueFacts, table(os.path.join("catalog", kind, f"{key}.toml")))


def _models(typed: str) -> Offers:
    """Return the keys of models, with files, or behind an owner's slash ids of the Hub."""
    rows = [row for family in table(os.path.join("catalog", "hub_models.toml"))["family"] for row in family["rows"]]
    if "/" in typed:
        ids = {name: row[0] for row in rows for name in (row[1], *row[4])}
        bundled: Offers = {}
        for key in _stems("models"):
            with open(os.path.join(PACKAGE, "catalog", "models", f"{key}.json"), encoding="utf-8") as file:
                bundled |= {name: key for name in json.load(file).get("aliases", ()) if "/" in name}
        return ids | bundled | {FILES: ""}
    return dict.fromkeys(sorted({*_stems("models"), *(row[0] for row in rows)}), "") | {FILES: ""}


def _clusters(typed: str) -> Offers:
    """Return hosts by name, and GPUs with as many before them as were typed, or as a host has."""
    counts, times, _ = typed.rpartition("x")
    chips = _stems("chips")
    if times and all(part.isdigit() for part in counts.split("x")):
        return {f"{counts}x{chip}": str(_facts("chips", chip).get("name", "")) for chip in chips}
    if "/" in typed or typed.endswith(".toml"):
        return {FILES: ""}
    hosts = {key: str(_facts("clusters", key).get("name", "")) for key in _stems("clusters")}
    whole = {f"{_facts('chips', chip).get('gpus_per_host', [8])[0]}x{chip}": "a whole host" for chip in chips}
    return hosts | whole | dict.fromkeys(chips, "one GPU") | {FILES: ""}


def _engines(typed: str) -> Offers:
    """Return the keys of engines, and behind an ``@`` the versions of one."""
    name, at, _ = typed.partition("@")
    if at and name in _stems("engines"):
        facts = _facts("engines", name)
        return {f"{name}@{version}": "" for version in (*facts.get("versions", ()), facts["version"])}
    return dict.fromkeys(_stems("engines"), "")


KINDS: Mapping[str, Callable[[str], Offers]] = {  # the names of each kind, from what is typed of one
    "models": _models,
    "clusters": _clusters,
    "chips": lambda _: dict.fromkeys(_stems("chips"), ""),
    "links": lambda _: {key: str(_facts("links", key).get("name", "")) for key in _stems("links")},
    "engines": _engines,
    "libraries": lambda _: dict.fromkeys(_stems("libraries"), ""),
    "lengths": lambda _: dict.fromkeys(_stems("lengths"), ""),
    "techniques": lambda _: {key: fact["title"] for key, fact in table(os.path.join("catalog", "techniques.toml")).items()},
}


def main() -> None:
    words = sys.argv[1:]
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.stdout.write(answer(os.environ[SHELL], words))
