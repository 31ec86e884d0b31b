"""Shell text -> commands: here-documents set aside, comments, continuations and the script's own variables resolved."""

from __future__ import annotations

import ast
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator

from commtax.statement import Refusal

MAX_SIGNS = 65_536  # of what is pasted, variables put in
HERE = (  # cat > FILE << END, and turned round
    re.compile(r"cat\s{0,9}>\s{0,9}(?P<name>\S{1,200}?)\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\r?$"),
    re.compile(r"cat\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\s{0,9}>\s{0,9}(?P<name>\S{1,200})\r?$"),
)
ARRAY = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=\(((?:[^()]|\([^()]*+\))*+)\)")
ASSIGNED = re.compile(r"^[ \t]*+(?:export[ \t]++)?([A-Za-z_]\w*+)=(\"[^\"]*+\"|'[^']*+'|[^\s;]*+)[ \t]*+;?[ \t]*+$", re.M)
COMMENT = re.compile(r"""('[^']*+'|"(?:[^"\\]|\\.)*+"|\\.|[^\s'"\\#][^\s'"\\]*+)|(?<!\S)#[^\n]*+""", re.S)
USED = re.compile(r"\"?\$\{?([A-Za-z_]\w*)(?:\[@\])?\}?\"?")


def keywords(text: str) -> list[str]:
    """Keywords of a call ``LLM(model=…, tensor_parallel_size=2)`` as flags."""
    try:
        calls = [n for n in ast.walk(ast.parse(text.strip())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "LLM"]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nested too deep for Python's own reader
        raise Refusal("from: this LLM(…) is not Python that can be read", "from") from None
    flags: list[str] = []
    for keyword in calls[0].keywords if calls else ():
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ast.unparse(keyword.value)
        flags += [f"--{keyword.arg}"] if value is True else [] if value is False else [f"--{keyword.arg}", str(value)]
    return flags + [str(a.value) for a in (calls[0].args if calls else ()) if isinstance(a, ast.Constant)]


def without_files(text: str) -> tuple[str, dict[str, str]]:
    """The script without its here-documents, and those by the name of the file they are written to."""
    lines, files, kept, at = text.split("\n"), dict[str, str](), list[str](), 0
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if word := re.match(r"\s*+(\w++)", line):
            ends.setdefault(word[1], []).append(number)
    while at < len(lines):
        found = next((m for pattern in HERE if (m := pattern.search(lines[at]))), None)
        later = ends.get(found["end"], []) if found else []
        place = bisect_right(later, at)
        if found and place < len(later):
            files[found["name"]] = "\n".join(lines[at + 1 : later[place]])
            kept.append(lines[at][: found.start()])
            at = later[place]
        else:
            kept.append(lines[at])
        at += 1
    return "\n".join(kept), files


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command, with comments, continuations and the script's own variables resolved."""
    text = _without_comments(text.replace("\\\n", " ").replace("\r", ""))
    values = {m[1]: m[2] for m in ARRAY.finditer(text)}
    text = ARRAY.sub("", text)
    for m in ASSIGNED.finditer(text):
        values.setdefault(m[1], m[2].strip("\"'"))
    for _ in range(3):  # variables may hold variables
        text = _unfolded(text, values)
    reader = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|")
    reader.whitespace_split, reader.commenters = True, ""
    try:
        words = list(reader)
    except ValueError as error:
        raise Refusal(f"from: the command's quotes do not match ({error})", "from") from None
    command: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set(";&|"):
            command.append(word)
        elif command:
            yield command
            command = []


def _without_comments(text: str) -> str:
    """A script without what follows a # at the start of a word; inside quotes it is a sign like any other.

    >>> _without_comments("a 'b #c' #d")
    "a 'b #c' "
    """
    return COMMENT.sub(lambda found: found[1] or "", text)


def _unfolded(text: str, values: dict[str, str]) -> str:
    """The text with its variables put in; they may hold each other many times over, so that there is a limit."""
    pieces, at, size = [], 0, 0
    for found in USED.finditer(text):
        pieces += [text[at : found.start()], values.get(found[1], found[0]).replace("\n", " ")]
        at, size = found.end(), size + len(pieces[-1]) + len(pieces[-2])
        if size > MAX_SIGNS:
            raise Refusal(f"from: its variables make more than {MAX_SIGNS:,} signs of it; paste the command alone", "from")
    return "".join([*pieces, text[at:]])
