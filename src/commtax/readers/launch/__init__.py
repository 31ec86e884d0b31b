"""A pasted launch command, or the YAML that starts servers -> the plan, the limits and the engine in it.

``vllm serve``, ``python -m sglang.launch_server``, ``trtllm-serve``, ``trtllm-bench``, ``torchrun … pretrain_gpt.py`` and
``torchrun … -m torchtitan.train``, with shell quoting, variables, environment in front, docker around it, several lines. What is
not understood is listed in ``unread``, never dropped.
"""

import ast
import os
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from commtax.files import ELSEWHERE, read_text
from commtax.readers.launch.flags import COMMON, ENGINES, IMAGES, STARTS, Reading, Value, dialect, plain
from commtax.readers.launch.manifest import Served, is_manifest, settled
from commtax.readers.launch.manifest import read as read_manifest
from commtax.readers.launch.meaning import BENCHMARKS, LOAD, Place, launched
from commtax.readers.launch.meaning import Launch as Launch
from commtax.statement import Note, Refusal

PROGRAMS = "vllm serve, sglang.launch_server, trtllm-serve, trtllm-bench, torchrun … pretrain_gpt.py or torchtitan.train"
LOUD, QUIET = ("NCCL_", "VLLM_", "SGLANG_", "TRTLLM_", "ROCM_QUICK_"), tuple(COMMON.quiet.split())
"""Variables that may change what a server does, and those of them that are addresses, logs and places."""
ASKING = tuple(variable for engine in ENGINES for variable in dialect(engine).libraries)
"""Variables that choose an engine's collectives; scripts export them above the command."""
TORCHRUN_SWITCHES = ("standalone", "no-python", "m", "module")
NO_FILES: Mapping[str, str] = {}
Wanted = Callable[[str], bool]
"""Whether a model of this name is the one that was asked for."""
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


def parse(text: str, source: str = "", wanted: Wanted | None = None, choice: str = "") -> Launch:
    """Read a command, a script that contains one, or YAML that describes servers; ``source`` is the file that it came from.

    Where YAML describes servers of several models: the one called ``choice``, or those whose model is ``wanted``.

    >>> launch = parse("CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 128k --foo 3")
    >>> launch.engine, launch.model, launch.options, launch.unread
    ('vllm', 'meta-llama/Llama-3.1-8B', {'tp': 2, 'max_model_len': 128000}, ('--foo 3',))
    """
    if is_manifest(text):
        return _described(text, f" '{source}'" if source else "", wanted, choice)
    if len(text) > MAX_SIGNS:
        raise Refusal(f"from: longer than {MAX_SIGNS:,} signs; paste the command that starts the engine alone", "from")
    if "LLM(" in text:
        return _read("vllm", keywords(text), [], "", NO_FILES)
    script, written = without_files(text)
    called = list(commands(script))
    exported = [word for args in called if args[0] == "export" for word in args[1:] if word.partition("=")[0] in ASKING]
    launches = [launch for args in called if (launch := _command([*exported, *args], written))]
    if not launches:  # what a file holds is not told: it may be one that was named by mistake
        raise Refusal(f"from '{source or ' '.join(text.split())[:60]}': no launch command found ({PROGRAMS})", "from")
    return _joined(launches)


def _described(text: str, source: str, wanted: Wanted | None, choice: str) -> Launch:
    """The servers of YAML: those of one model, prompts and decoding together."""
    served, files, looked = read_manifest(text, source)
    read = [(s, _server(s, files)) for s in served if s.replicas]
    found = [(s.name, launch) for s, launch in read if launch]
    if not found:
        seen = f"{looked} container{'s' * (looked != 1)} looked at" if looked else "it has no container"
        raise Refusal(f"from{source}: this YAML starts no known server; {seen} (known: {PROGRAMS})", "from")
    names = [name for name, _ in found]
    if choice and choice not in names:
        raise Refusal(f"from{source}: no server '{choice}'; it has {', '.join(dict.fromkeys(names))}", "from", names)
    first = next((launch for name, launch in found if (name == choice if choice else wanted and wanted(launch.model))), found[0][1])
    taken = [launch for _, launch in found if launch.model == first.model]
    if any(x.servers.role == "prefill" for x in taken):  # those beside them decode, whether they say so or not
        taken = [replace(x, servers=replace(x.servers, role=x.servers.role or "decode")) for x in taken]
    unlike = [(name, launch) for name, launch in found if launch.model != first.model]
    others = [f"{name or launch.engine} ({launch.model or 'no model named'})" for name, launch in unlike]
    joined = _joined(taken if not choice else [launch for name, launch in found if name == choice])
    if others:
        more = f"servers of other models in the file are not in the answer: {', '.join(others)}; --from FILE#NAME takes one of them"
        joined = replace(joined, notes=(*joined.notes, Note("other models", more)))
    missed = [f"what starts {s.name or 'a container'} on {s.gpus} GPUs" for s, launch in read if s.gpus and not launch]
    joined = replace(joined, unread=(*joined.unread, *dict.fromkeys(missed)))
    return replace(joined, place=Place()) if joined.servers.prefill_workers else joined


def _server(served: Served, files: Mapping[str, str]) -> Launch | None:
    """The launch of one container, or None where it starts nothing that is known."""
    script, written = without_files(served.script)
    calls = list(commands(script)) if served.script else [list(served.words)]
    known = {**files, **written}
    for call in calls:
        launch = _command(call, known, served)
        if launch and not _is_bench(launch):
            return _placed(launch, served)
    return None


def _placed(launch: Launch, served: Served) -> Launch:
    """A server on its hosts: a job of several may be one replica of a set that counts hosts."""
    nnodes = launch.place.nnodes or served.hosts
    count = -(-served.replicas // nnodes) if served.ordered else served.replicas if launch.phase == "serve" else 1
    here = replace(launch.place, nnodes=nnodes if nnodes > 1 and count == 1 else None)
    launch = replace(launch, servers=replace(launch.servers, count=count), place=here)
    if served.guessed:
        guess = f"settings named as {launch.engine}'s flags, and no command that says so: taken for {launch.engine}"
        launch = replace(launch, notes=(*launch.notes, Note("assumed engine", guess)))
    used, asked = launch.num_gpus // count, served.gpus * nnodes
    if not served.gpus or used == asked:
        return launch
    differs = f"each server asks for {asked} GPU{'s' * (asked != 1)}, and its plan uses {used}"
    return replace(launch, notes=(*launch.notes, Note("GPUs asked for", differs)))


def _command(args: list[str], written: Mapping[str, str], served: Served | None = None) -> Launch | None:
    """One command's launch, or None where it is something else."""
    image = served.image if served else next((w for w in args if any(i in w for i in IMAGES) and not w.startswith("-")), "")
    official = any(i in image for i in IMAGES)
    version = re.search(r":v?(\d+(?:\.\d+)+\w*)$", image[-100:]) if official else None
    last = max((at for at in range(len(args)) if _program(args, at)[1]), default=-1)
    for at, word in enumerate(args):
        engine, skip = _program(args, at)
        if not skip and official and word == image and at > last:
            engine, skip = next(e for i, e in IMAGES.items() if i in image), 1  # the image's entry point is the server
        if skip:
            return _read(engine, args[at + skip :], args[:at], version[1] if version else "", written, served)
    if served and served.engine and not served.script and _are_flags(args):  # of the entry point of its image
        return _read(served.engine, [w for w in args if w != "serve"], [], version[1] if version else "", written, served)
    return None


def _are_flags(words: list[str]) -> bool:
    """Whether words may be arguments of a server: flags, or a model and flags."""
    return not words or words[0] == "serve" or bool(re.match(r"-|[\w.-]{1,99}/[\w.-]{1,99}$", words[0]))


def _program(args: list[str], at: int) -> tuple[str, int]:
    """The program that starts at a word, and how many words name it (0: none)."""
    word, following = args[at].rsplit("/", 1)[-1], args[at + 1] if at + 1 < len(args) else ""
    for program, first, then, count in STARTS:
        if word == first and (following.startswith(then) if first == "-m" else following == then or not then):
            return program, count
    return "", 0


def _read(
    engine: str, args: list[str], before: list[str], version: str, written: Mapping[str, str], served: Served | None = None
) -> Launch:
    """The flags of one program in the engine's own meaning; ``before`` it stand its variables and what starts it."""
    reading = Reading()
    env = dict(served.env) if served else {}
    env |= dict(w.split("=", 1) for w in before if re.match(r"[A-Za-z_]\w*=", w))
    if engine == "torchrun":
        engine, args = _split_torchrun(args, reading)
    told = settled(engine, served.told, env) if served else {}
    reading.values["library"] = _library(engine, env)
    reading.unread += [f"{k}={v}" for k, v in env.items() if k.startswith(LOUD) and not k.startswith(QUIET)]
    loose = reading.take(args, dialect(engine))
    _take_told(reading, engine, told, loose)
    for file, named in (("file", "--config"), ("balancer", "load_balancer")):  # the first may name the second
        if file in reading.values:
            _read_file(str(reading.values.pop(file)), named, written, engine, reading)
    if (hosts := _srun(before)) and "nnodes" not in reading.values:
        reading.values["nnodes"] = hosts
    launch = launched(engine, reading, loose, env)
    devices = env.get("CUDA_VISIBLE_DEVICES")
    place = replace(launch.place, devices=tuple(devices.split(",")) if devices and launch.phase == "serve" else ())
    return replace(launch, version=version, place=place)


def _take_told(reading: Reading, engine: str, told: Mapping[str, str], loose: list[str]) -> None:
    """What stands around a container holds where its own words say nothing, and names a model that they only have a place of."""
    model = reading.text("model") or next((w for w in loose if w not in BENCHMARKS), "")
    if told.get("model") and (not model or model.startswith(ELSEWHERE) or "://" in model):
        reading.values["model"] = told["model"]
    own = dialect(engine)
    flags = [f"--{own.written[name]}={value}" for name, value in told.items() if name != "model" and name not in reading.values]
    reading.take(flags, own)


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
    text = written.get(name, written.get(name.rsplit("/", 1)[-1]))
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
    decoding = [x for x in servers if x.servers.role != "prefill"] or ahead
    first = _counted(decoding)
    left = _unlike(decoding, first)
    if ahead and first.servers.role == "decode":
        prompts = _counted(ahead)
        left += _unlike(ahead, prompts)
        tp, dp, count = prompts.number("tp", 1), prompts.number("dp", 1), prompts.servers.count
        first = replace(first, servers=replace(first.servers, prefill_tp=tp, prefill_dp=dp, prefill_workers=count))
    elif decoding is not ahead:
        left += ahead
    if left:
        others = f"not in the answer: {len(left)} other server{'s' * (len(left) != 1)} beside it, of other sizes or settings"
        first = replace(first, notes=(*first.notes, Note("other servers", others)))
    if bench is None or bench in servers:
        return first
    return replace(first, options={**_without_load(first), **{name: bench.options[name] for name in LOAD if name in bench.options}})


def _unlike(launches: list[Launch], first: Launch) -> list[Launch]:
    """Servers that are none of those that were counted; what only sends requests is none."""
    return [x for x in launches if _bare(x) != _bare(first) and not _is_bench(x)]


def _is_bench(launch: Launch) -> bool:
    """Whether a command sends requests."""
    return "concurrency" in launch.options or "request_rate" in launch.options


def _counted(launches: list[Launch]) -> Launch:
    """The first of several servers, with as many as are its equals; parts of one job are one job."""
    first = next((x for x in launches if not _is_bench(x)), launches[0])
    alike = [x for x in launches if _bare(x) == _bare(first)]
    parts = (first.place.nnodes or 1) > 1 and bool(first.place.address)  # commands of one job meet at one address
    count = len({x.place.address for x in alike}) if parts else sum(x.servers.count for x in alike)
    if count < 2 or first.phase == "train":  # one job, whose hosts are all started by the same command
        return first
    return replace(first, servers=replace(first.servers, count=count), place=replace(first.place, devices=()))


def _bare(launch: Launch) -> Launch:
    """What replicas have in common."""
    one = replace(launch.servers, count=1)
    return replace(launch, place=Place(launch.place.nnodes, launch.place.gpus_per_node), options=_without_load(launch), servers=one)


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
