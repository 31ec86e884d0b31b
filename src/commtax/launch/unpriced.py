"""Flags that engines have and no price has: what each would have changed, for those that are well known (``unpriced.toml``)."""

import re
from collections.abc import Iterable

from commtax.files import table
from commtax.launch.flags import flag_name, flags_of, usual_key
from commtax.statement import COSTLY, STRANGE, Note

TABLE = {
    section: {name: str(phrase) for names, phrase in rows.items() for name in names.split()}
    for section, rows in table("launch/unpriced.toml").items()
}
MAY_COST = frozenset(TABLE["costly"]["settings"].split())


def would_change(engine: str, key: str) -> str:
    """What a flag or variable would have changed; "" where that is not known. What stands below it is told by it."""
    for known in (TABLE.get(engine, {}), TABLE["any"]):
        parts = key.split(".")
        for size in range(len(parts), 0, -1):
            if phrase := known.get(".".join(parts[:size])):
                return phrase
    return ""


def unread_remarks(engine: str, unread: Iterable[str], where: str = "answer") -> list[str]:
    """Return what is said of words that are not in an answer: those that mean nothing to us, those that may cost, then others.

    >>> unread_remarks("vllm", ["--foo 3", "--cpu-offload-gb 4"])[1]
    'may cost, and not in the answer: --cpu-offload-gb 4 (weights in host memory, sent to the GPU in every step)'
    """
    kinds: dict[str, list[str]] = {STRANGE: [], COSTLY: [], "": []}
    for word in unread:
        key = _key(engine, word)
        phrase = would_change(engine, key)
        kind = STRANGE if not phrase else COSTLY if MAY_COST & {key, key.partition(".")[0]} else ""
        kinds[kind].append(f"{word} ({phrase})" if phrase else word)
    says = {STRANGE: "not understood, and not in", COSTLY: "may cost, and not in", "": "not in"}
    return [Note(kind, f"{says[kind]} the {where}: {', '.join(words)}") for kind, words in kinds.items() if words]


def _key(engine: str, word: str) -> str:
    """The path of a flag, or a variable's name, of what was written."""
    name = re.split(r"[=\s]", word, maxsplit=1)[0]
    return usual_key(flags_of(engine), flag_name(name)) if name.startswith("-") else f"${name}"
