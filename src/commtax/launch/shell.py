"""Words of commands: of scripts with variables and here-documents, of containers with a shell among them, of Python calls."""

import ast
import operator
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping

from commtax.files import Json, list_of, object_of
from commtax.statement import Refusal

SHELLS = ("sh", "bash", "dash", "zsh", "ash")
VARIABLE = re.compile(r"\$?\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::?[-=]([^{}$]*+))?\}|([A-Za-z_]\w*))")
SUM = re.compile(r"\$\(\(([\w\s+*/%()$-]{1,99}?)\)\)")
MAX_SIGNS = 65_536  # of what is pasted, variables put in
HERE = (  # cat > FILE << END, and turned round
    re.compile(r"cat\s{0,9}>\s{0,9}(?P<name>\S{1,200}?)\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\r?$"),
    re.compile(r"cat\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\s{0,9}>\s{0,9}(?P<name>\S{1,200})\r?$"),
)
ARRAY = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=\(((?:[^()]|\([^()]*+\))*+)\)")
ASSIGNED = re.compile(r"^[ \t]*+(?:export[ \t]++)?([A-Za-z_]\w*+)=(\"[^\"]*+\"|'[^']*+'|[^\s;]*+)[ \t]*+;?[ \t]*+$", re.M)
COMMENT = re.compile(r"""('[^']*+'|"(?:[^"\\]|\\.)*+"|\\.|[^\s'"\\#][^\s'"\\]*+)|(?<!\S)#[^\n]*+""", re.S)
LINE = re.compile(r"""('[^']*+'|"(?:[^"\\]|\\.)*+"|\\.)|\n""", re.S)  # the end of one, quotes and what is quoted passed over
USED = re.compile(r"\"?\$\{?([A-Za-z_]\w*)(?:\[@\])?\}?\"?")
OPERATORS: dict[type, Callable[[int, int], int]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATORS |= {ast.Div: operator.floordiv, ast.Mod: operator.mod}


def split(text: str) -> list[str]:
    """Split a line of shell into words, at blanks where its quotes do not match.

    >>> split("vllm serve 'a b' --x")
    ['vllm', 'serve', 'a b', '--x']
    """
    text = text.replace("\\\n", " ")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def script_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the script of a shell among the words, its arguments put in, and no words. Without one: "" and the words.

    >>> script_of(["/bin/sh", "-c", "exec vllm serve \\"$@\\"", "--", "x"])
    ('exec vllm serve x', [])
    """
    for at in (i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] in SHELLS):
        flag = next((i for i in range(at + 1, len(words)) if re.fullmatch(r"-[a-z]*c", words[i])), -1)
        if flag > 0 and flag + 1 < len(words) and all(w.startswith("-") for w in words[at + 1 : flag]):
            script, arguments = words[flag + 1], shlex.join(words[flag + 3 :])
            return script.replace('"$@"', arguments).replace("$@", arguments), []
    return "", words


def substitute_variables(text: str, values: Mapping[str, str]) -> str:
    """Return the text with ``$(NAME)``, ``${NAME:-usual}`` and ``$NAME`` put in where they are set, and sums worked out.

    >>> substitute_variables("-tp $(TP) -dp ${DP:-4} -pp $((A * 2)) $HOME", {"TP": "8", "A": "3"})
    '-tp 8 -dp 4 -pp 6 $HOME'
    """

    def put(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        return values.get(name) or (match[3] if match[2] and match[3] is not None else match[0])

    def evaluate(match: re.Match[str]) -> str:  # bare names are variables in a sum
        written = re.sub(r"[A-Za-z_]\w*", lambda name: values.get(name[0], name[0]), match[1])
        try:
            return str(_value(ast.parse(written.strip(), mode="eval").body))
        except (SyntaxError, ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
            return match[0]

    for _ in range(3):  # values may hold variables
        after = SUM.sub(evaluate, VARIABLE.sub(put, text))
        if after == text or len(after) > MAX_SIGNS:
            break
        text = after
    return text


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError


def assignments(part: Json) -> dict[str, str]:
    """Return variables from a list of names and values, a list of ``A=1``, or a mapping. Values from elsewhere are left out.

    >>> assignments([{"name": "A", "value": "1"}, "B=2"]), assignments({"C": "3"})
    ({'A': '1', 'B': '2'}, {'C': '3'})
    """
    if isinstance(part, dict):
        return {str(k): v for k, v in part.items() if isinstance(v, str)}
    variables: dict[str, str] = {}
    for entry in list_of(part):
        if isinstance(entry, str) and "=" in entry:
            variables |= dict([entry.split("=", 1)])
        elif isinstance(name := object_of(entry).get("name"), str) and isinstance(value := object_of(entry).get("value"), str):
            variables[name] = value
    return variables


def keywords(text: str, name: str) -> list[str]:
    """Return the keywords of a call such as ``LLM(model=…, tensor_parallel_size=2)`` as flags."""
    try:
        calls = [n for n in ast.walk(ast.parse(text.strip())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nested too deep for Python's own reader
        raise Refusal(f"from: this {name}(…) is not Python that can be read", "from") from None
    flags: list[str] = []
    for keyword in calls[0].keywords if calls else ():
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ast.unparse(keyword.value)
        flags += [f"--{keyword.arg}"] if value is True else [] if value is False else [f"--{keyword.arg}", str(value)]
    return flags + [str(a.value) for a in (calls[0].args if calls else ()) if isinstance(a, ast.Constant)]


def split_here_documents(text: str) -> tuple[str, dict[str, str]]:
    """Return the script without its here-documents, and those by the name of the file they are written to."""
    lines, files, kept, at = text.split("\n"), dict[str, str](), list[str](), 0
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if word := re.match(r"\s*+(\w++)", line):
            ends.setdefault(word[1], []).append(number)
    while at < len(lines):
        opening = next((m for pattern in HERE if (m := pattern.search(lines[at]))), None)
        later = ends.get(opening["end"], []) if opening else []
        place = bisect_right(later, at)
        if opening and place < len(later):
            files[opening["name"]] = "\n".join(lines[at + 1 : later[place]])
            kept.append(lines[at][: opening.start()])
            at = later[place]
        else:
            kept.append(lines[at])
        at += 1
    return "\n".join(kept), files


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command, with comments, continuations and the script's own variables resolved.

    >>> list(commands("X=1\\na 'b #c' $X #d"))
    [['X=1'], ['a', 'b #c', '1']]
    """
    text = COMMENT.sub(lambda match: match[1] or "", text.replace("\\\n", " ").replace("\r", ""))
    values = {m[1]: m[2] for m in ARRAY.finditer(text)}
    text = ARRAY.sub("", text)
    for m in ASSIGNED.finditer(text):
        values.setdefault(m[1], m[2].strip("\"'"))
    for _ in range(3):  # variables may hold variables
        pieces, at, size = [], 0, 0
        for use in USED.finditer(text):
            pieces += [text[at : use.start()], values.get(use[1], use[0]).replace("\n", " ")]
            at, size = use.end(), size + len(pieces[-1]) + len(pieces[-2])
            if size > MAX_SIGNS:
                raise Refusal(f"from: its variables make more than {MAX_SIGNS:,} signs of it; paste the command alone", "from")
        text = "".join([*pieces, text[at:]])
    reader = shlex.shlex(LINE.sub(lambda m: m[1] or " ; ", text), posix=True, punctuation_chars=";&|")
    reader.whitespace_split, reader.commenters = True, ""
    try:
        args = list(reader)
    except ValueError as error:
        raise Refusal(f"from: the command's quotes do not match ({error})", "from") from None
    command: list[str] = []
    for word in [*args, ";"]:
        if not set(word) <= set(";&|"):
            command.append(word)
        elif command:
            yield command
            command = []
