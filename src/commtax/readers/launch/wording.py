"""Words of containers: a shell's script among them, and variables put in where they stand."""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

SHELLS = ("sh", "bash", "dash", "zsh", "ash")
VARIABLE = re.compile(r"\$?\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::?[-=]([^{}$]*+))?\}|([A-Za-z_]\w*))")
SUM = re.compile(r"\$\(\(([\w\s+*/%()$-]{1,99}?)\)\)")
LONGEST = 65_536
OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def split(text: str) -> list[str]:
    """The words of one line of shell; where its quotes do not match, what blanks part.

    >>> split("vllm serve 'a b' --x")
    ['vllm', 'serve', 'a b', '--x']
    """
    text = text.replace("\\\n", " ")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def script_of(words: list[str]) -> tuple[str, list[str]]:
    """The script that a shell among the words is given, with its own arguments put in, and no words; else "" and the words.

    >>> script_of(["/bin/sh", "-c", "exec vllm serve \\"$@\\"", "--", "x"])
    ('exec vllm serve x', [])
    """
    for at, word in enumerate(words):
        if word.rsplit("/", 1)[-1] not in SHELLS:
            continue
        flag = next((i for i in range(at + 1, len(words)) if re.fullmatch(r"-[a-z]*c", words[i])), -1)
        if flag > 0 and flag + 1 < len(words) and all(w.startswith("-") for w in words[at + 1 : flag]):
            script, given = words[flag + 1], shlex.join(words[flag + 3 :])
            return script.replace('"$@"', given).replace("$@", given), []
    return "", words


def substituted(text: str, values: Mapping[str, str]) -> str:
    """The text with ``$(NAME)``, ``${NAME:-usual}`` and ``$NAME`` put in where they are known, and sums worked out.

    >>> substituted("-tp $(TP) -dp ${DP:-4} -pp $((A * 2)) $HOME", {"TP": "8", "A": "3"})
    '-tp 8 -dp 4 -pp 6 $HOME'
    """

    def put(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        usual = match[3] if match[2] and match[3] is not None else match[0]
        return values.get(name) or usual

    for _ in range(3):  # values may hold variables
        after = SUM.sub(lambda match: _worked_out(match, values), VARIABLE.sub(put, text))
        if after == text or len(after) > LONGEST:
            break
        text = after
    return text


def _worked_out(match: re.Match[str], values: Mapping[str, str]) -> str:
    """A sum of the shell, where all of it is known; bare names are variables there."""
    written = re.sub(r"[A-Za-z_]\w*", lambda name: values.get(name[0], name[0]), match[1])
    try:
        return str(_value(ast.parse(written.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return match[0]


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError


def assignments(part: Any) -> dict[str, str]:
    """Variables as a list of names and values, a list of ``A=1``, or a mapping; those from elsewhere are not known.

    >>> assignments([{"name": "A", "value": "1"}, "B=2"]), assignments({"C": "3"})
    ({'A': '1', 'B': '2'}, {'C': '3'})
    """
    if isinstance(part, dict):
        return {str(k): v for k, v in part.items() if isinstance(v, str)}
    found: dict[str, str] = {}
    for entry in part if isinstance(part, list) else ():
        if isinstance(entry, str) and "=" in entry:
            found |= dict([entry.split("=", 1)])
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("value"), str):
            found[entry["name"]] = entry["value"]
    return found
