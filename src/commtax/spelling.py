"""Options as the engines spell them, turned into ours before the command line is parsed."""

import re

from commtax.options import options
from commtax.redaction import redact
from commtax.spec import PARALLEL

_UNSEEN = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
_LIMIT = re.compile(r"(?:ttft|tpot|e2el?):")
ALIASES = {
    **{f"--{flag}-size": f"--{axis.name}" for axis in PARALLEL.values() for flag in axis.flags},
    **{f"-{name}": f"--{name}" for name in PARALLEL},
    **{flag: f"--{name.replace('_', '-')}" for name, option in options().items() for flag in option.spelled},
}


def normalise(argv: list[str]) -> list[str]:
    """Turn underscores to dashes, engine spellings to ours, and a bare ``-ep`` to ``--ep auto`` (tp x dp, as in vLLM).

    >>> normalise(["fit", "mixtral-8x7b", "--tensor_parallel_size=8", "-ep"])
    ['fit', 'mixtral-8x7b', '--tp=8', '--ep', 'auto']
    >>> normalise(["--goodput", "ttft:300", "tpot:20"])
    ['--goodput', 'ttft:300', '--goodput', 'tpot:20']
    """
    result: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return result + argv[position:]
        if not word.startswith("-") or _is_number(word):
            another = result[-2:-1] == ["--goodput"] and _LIMIT.match(word)  # vLLM's takes several words
            result += ["--goodput", word] if another else [word]
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        bare = name == "--enable-expert-parallel"
        name = ALIASES.get(name, name)
        result.append(name + equals + value)
        follower = argv[position + 1] if position + 1 < len(argv) else "-"
        if name == "--ep" and not equals and (bare or (not follower.isdigit() and follower != "auto")):
            result.append("auto")
    return result


def escape_controls(text: str) -> str:
    """Return text for people without secrets, in which no sign can command a terminal.

    Controls, marks that turn the reading direction and broken bytes are written out.

    >>> escape_controls("a\\x1b[31mb\\tc")
    'a\\\\x1b[31mb\\tc'
    """
    return _UNSEEN.sub(lambda sign: sign[0].encode("unicode_escape", "surrogatepass").decode("ascii"), redact(text))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
