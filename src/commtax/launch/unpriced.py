"""Flags that engines have and no price has: what each would have changed, for those that are well known (``unpriced.toml``)."""

import re
from collections.abc import Iterable

from commtax.files import table
from commtax.launch.flags import flag_name, flags_of, usual_key
from commtax.statement import STRANGE, Note

TABLE = table("launch/unpriced.toml")


def would_change(engine: str, key: str) -> str:
    """What a flag or variable would have changed; "" where that is not known. What stands below it is told by it."""
    for known in (TABLE.get(engine, {}), TABLE["any"]):
        parts = key.split(".")
        for size in range(len(parts), 0, -1):
            if phrase := known.get(".".join(parts[:size])):
                return str(phrase)
    return ""


def unread_remarks(engine: str, unread: Iterable[str], where: str = "answer") -> list[str]:
    """What is said of words that are not in an answer: first those that mean nothing to us, then those whose effect is known.

    >>> unread_remarks("vllm", ["--foo 3", "--cpu-offload-gb 4"])[1]
    'not in the answer: --cpu-offload-gb 4 (weights in host memory, sent to the GPU in every step)'
    """
    told = {word: would_change(engine, _key(engine, word)) for word in unread}
    strange, known = (
        [word for word, phrase in told.items() if not phrase],
        [f"{w} ({phrase})" for w, phrase in told.items() if phrase],
    )
    remarks: list[str] = [Note(STRANGE, f"not understood, and not in the {where}: {', '.join(strange)}")] if strange else []
    return remarks + ([f"not in the {where}: {', '.join(known)}"] if known else [])


def _key(engine: str, word: str) -> str:
    """The path of a flag, or a variable's name, of what was written."""
    name = re.split(r"[=\s]", word, maxsplit=1)[0]
    return usual_key(flags_of(engine), flag_name(name)) if name.startswith("-") else f"${name}"
