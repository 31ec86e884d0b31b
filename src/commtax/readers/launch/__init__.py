"""A pasted launch command -> the plan, the limits and the engine in it.

``vllm serve``, ``python -m sglang.launch_server``, ``trtllm-serve``, ``trtllm-bench``, ``torchrun … pretrain_gpt.py`` and
``torchrun … -m torchtitan.train``, with shell quoting, variables, environment in front, docker around it, several lines. What is
not understood is listed in ``unread``, never dropped.
"""

import ast
import os
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace

from commtax.files import read_text
from commtax.readers.launch.flags import ENGINES, IMAGES, STARTS, Reading, Value, dialect, plain
from commtax.readers.launch.meaning import LOAD, Place, launched
from commtax.readers.launch.meaning import Launch as Launch
from commtax.statement import Refusal

PROGRAMS = "vllm serve, sglang.launch_server, trtllm-serve, trtllm-bench, torchrun … pretrain_gpt.py or torchtitan.train"
LOUD, QUIET = ("NCCL_", "VLLM_", "SGLANG_", "TRTLLM_", "ROCM_QUICK_"), ("VLLM_NIXL_",)
"""Variables that may change what a server does, and those of them that are addresses."""
ASKING = tuple(variable for engine in ENGINES for variable in dialect(engine).libraries)
"""Variables that choose an engine's collectives; scripts export them above the command."""
TORCHRUN_SWITCHES = ("standalone", "no-python", "m", "module")
NO_FILES: Mapping[str, str] = {}
MAX_SIGNS = 65_536  # of what is pasted, variables put in
HERE = (  # cat > FILE << END, and turned round
    re.compile(r"cat\s{0,9}>\s{0,9}(?P<name>\S{1,200}?)\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\r?$"),
    re.compile(r"cat\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\s{0,9}>\s{0,9}(?P<name>\S{1,200})\r?$"),
)
ARRAY = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=\(((?:[^()]|\([^()]*+\))*+)\)")
ASSIGNED = re.compile(r"^[ \t]*+(?:export[ \t]++)?([A-Za-z_]\w*+)=(\"[^\"]*+\"|'[^']*+'|[^\s;]*+)[ \t]*+;?[ \t]*+$", re.M)
COMMENT = re.compile(r"""('[^']*+'|"(?:[^"\\]|\\.)*+"|\\.|[^\s'"\\#][^\s'"\\]*+)|(?<!\S)#[^\n]*+""", re.S)
USED = re.compile(r"\"?\$\{?([A-Za-z_]\w*)(?:\[@\])?\}?\"?")


def parse(text: str) -> Launch:
    """Read a command, or a script that contains one.

    >>> launch = parse("CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 128k --foo 3")
    >>> launch.engine, launch.model, launch.options, launch.unread
    ('vllm', 'meta-llama/Llama-3.1-8B', {'tp': 2, 'max_model_len': 128000}, ('--foo 3',))
    """
    if len(text) > MAX_SIGNS:
        raise Refusal(f"from: longer than {MAX_SIGNS:,} signs; paste the command that starts the engine alone", "from")
    if "LLM(" in text:
        return _read("vllm", keywords(text), [], "", NO_FILES)
    script, written = without_files(text)
    called = list(commands(script))
    exported = [word for args in called if args[0] == "export" for word in args[1:] if word.partition("=")[0] in ASKING]
    launches = [launch for args in called if (launch := _command([*exported, *args], written))]
    if not launches:
        raise Refusal(f"from '{' '.join(text.split())[:60]}': no launch command found ({PROGRAMS})", "from")
    return _joined(launches)


def _command(args: list[str], written: Mapping[str, str]) -> Launch | None:
    """One command's launch, or None where it is something else."""
    image = next((w for w in args if any(i in w for i in IMAGES) and not w.startswith("-")), "")
    last = max((at for at in range(len(args)) if _program(args, at)[1]), default=-1)
    for at, word in enumerate(args):
        engine, skip = _program(args, at)
        if not skip and word == image and at > last:
            engine, skip = next(e for i, e in IMAGES.items() if i in image), 1  # the image's entry point is the server
        if skip:
            version = re.search(r":v?(\d+(?:\.\d+)+\w*)$", image[-100:])
            return _read(engine, args[at + skip :], args[:at], version[1] if version else "", written)
    return None


def _program(args: list[str], at: int) -> tuple[str, int]:
    """The program that starts at a word, and how many words name it (0: none)."""
    word, following = args[at].rsplit("/", 1)[-1], args[at + 1] if at + 1 < len(args) else ""
    for program, first, then, count in STARTS:
        if word == first and (following.startswith(then) if first == "-m" else following == then or not then):
            return program, count
    return "", 0


def _read(engine: str, args: list[str], before: list[str], version: str, written: Mapping[str, str]) -> Launch:
    """The flags of one program in the engine's own meaning; ``before`` it stand its variables and what starts it."""
    reading = Reading()
    env = dict(w.split("=", 1) for w in before if re.match(r"[A-Za-z_]\w*=", w))
    if engine == "torchrun":
        engine, args = _split_torchrun(args, reading)
    reading.values["library"] = _library(engine, env)
    reading.unread += [f"{k}={v}" for k, v in env.items() if k.startswith(LOUD) and not k.startswith(QUIET)]
    loose = reading.take(args, dialect(engine))
    for file, named in (("file", "--config"), ("balancer", "load_balancer")):  # the first may name the second
        if file in reading.values:
            _read_file(str(reading.values.pop(file)), named, written, engine, reading)
    if (hosts := _srun(before)) and "nnodes" not in reading.values:
        reading.values["nnodes"] = hosts
    launch = launched(engine, reading, loose, env)
    devices = env.get("CUDA_VISIBLE_DEVICES")
    place = replace(launch.place, devices=tuple(devices.split(",")) if devices and launch.phase == "serve" else ())
    return replace(launch, version=version, place=place)


def _library(engine: str, env: dict[str, str]) -> str:
    """Whose collectives the environment asks for, by the engine's table; "": the engine's own. What was understood is taken out."""
    found = ""
    for variable, words in dialect(engine).libraries.items():
        if env.get(variable, "").upper() in words:
            found = words[env.pop(variable).upper()]
    return found


def _srun(before: list[str]) -> int:
    """Hosts that a job launcher in front names."""
    text = " ".join(before)
    called = re.search(r"\b(?:srun|salloc)\b", text)
    nodes = re.compile(r"(?:-N|--nodes)[= ](\d{1,9})\b").search(text, called.end()) if called else None
    return int(nodes[1]) if nodes else 0


def _read_file(name: str, named: str, written: Mapping[str, str], engine: str, reading: Reading) -> None:
    """Settings of a YAML file beside the command: ``a:`` / ``  b: 1`` is the flag ``a.b``."""
    text = written.get(name)
    if text is None and os.path.exists(name):
        text = read_text(name, f"from: {named}")
    if text is None:
        reading.unread.append(f"{named} {name} (no such file here)")
        return
    above, flags = "", []
    for line in text.splitlines():
        if match := re.match(r"(\s*+)([\w-]++)\s*+:(.*)", line):
            above = match[2] if not match[1] else above
            path = match[2] if not match[1] else f"{above}.{match[2]}"
            value = match[3].partition("#")[0].strip()
            flags += [f"--{path}={value}"] if value else []
    reading.take(flags, dialect(engine))


def _split_torchrun(args: list[str], reading: Reading) -> tuple[str, list[str]]:
    """torchrun's own flags, then the program and its words."""
    own, at = dialect("torchrun").flags, 0
    while at < len(args) and args[at].startswith("-"):
        flag, equals, value = args[at].partition("=")
        name = plain(flag)
        if name in own:
            reading.values[own[name][0]] = value or (args[at + 1] if at + 1 < len(args) else "")
        at += 1 if equals or name in TORCHRUN_SWITCHES else 2
    program = args[at] if at < len(args) else ""
    if "torchtitan" in program:
        return "torchtitan", args[at + 1 :]
    if re.search(r"(pretrain|megatron)\w*", program) or any("tensor-model-parallel" in plain(w) for w in args):
        return "megatron", args[at + 1 :]
    raise Refusal(f"from: torchrun starts '{program}', which is neither Megatron's pretrain_*.py nor torchtitan.train", "from")


def _joined(launches: list[Launch]) -> Launch:
    """Equal servers are counted; a benchmark beside a server adds its lengths; servers for prompts join those that decode."""
    bench = next((x for x in launches if _is_bench(x)), None)
    servers = [x for x in launches if x is not bench] or launches
    ahead = [x for x in servers if x.servers.role == "prefill"]
    first = _counted([x for x in servers if x.servers.role != "prefill"] or ahead)
    if ahead and first.servers.role == "decode":
        prompts = _counted(ahead)
        tp, dp, count = prompts.number("tp", 1), prompts.number("dp", 1), prompts.servers.count
        first = replace(first, servers=replace(first.servers, prefill_tp=tp, prefill_dp=dp, prefill_workers=count))
    if bench is None or bench in servers:
        return first
    return replace(first, options={**_without_load(first), **{name: bench.options[name] for name in LOAD if name in bench.options}})


def _is_bench(launch: Launch) -> bool:
    """Whether a command sends requests."""
    return "concurrency" in launch.options or "request_rate" in launch.options


def _counted(launches: list[Launch]) -> Launch:
    """The first of several servers, with as many as are its equals; parts of one job are one job."""
    first = next((x for x in launches if not _is_bench(x)), launches[0])
    alike = [x for x in launches if _bare(x) == _bare(first)]
    parts = (first.place.nnodes or 1) > 1 and bool(first.place.address)  # commands of one job meet at one address
    count = len({x.place.address for x in alike}) if parts else len(alike)
    if count < 2:
        return first
    return replace(first, servers=replace(first.servers, count=count), place=replace(first.place, devices=()))


def _bare(launch: Launch) -> Launch:
    """What replicas have in common."""
    return replace(launch, place=Place(launch.place.nnodes, launch.place.gpus_per_node), options=_without_load(launch))


def _without_load(launch: Launch) -> dict[str, Value]:
    return {name: value for name, value in launch.options.items() if name not in LOAD}


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


def _without_comments(text: str) -> str:
    """A script without what follows a # at the start of a word; inside quotes it is a sign like any other.

    >>> _without_comments("a 'b #c' #d")
    "a 'b #c' "
    """
    return COMMENT.sub(lambda match: match[1] or "", text)


def _unfolded(text: str, values: dict[str, str]) -> str:
    """The text with its variables put in; they may hold each other many times over, so that there is a limit."""
    pieces, at, size = [], 0, 0
    for use in USED.finditer(text):
        pieces += [text[at : use.start()], values.get(use[1], use[0]).replace("\n", " ")]
        at, size = use.end(), size + len(pieces[-1]) + len(pieces[-2])
        if size > MAX_SIGNS:
            raise Refusal(f"from: its variables make more than {MAX_SIGNS:,} signs of it; paste the command alone", "from")
    return "".join([*pieces, text[at:]])
