"""A pasted launch command -> the plan, the limits and the engine in it.

``vllm serve``, ``python -m sglang.launch_server``, ``trtllm-serve``, ``trtllm-bench``, ``torchrun … pretrain_gpt.py`` and
``torchrun … -m torchtitan.train``, with shell quoting, variables, environment in front, docker around it, several lines. What is
not understood is listed in ``unread``, never dropped.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from commtax.files import read_text
from commtax.readers.launch_flags import ENGINES, NOTHING, TORCHRUN, UNMODELLED, Flags
from commtax.readers.launch_meaning import AUTO_EP, MEANINGS
from commtax.statement import Refusal
from commtax.units import parse_count, parse_fraction

PROGRAMS = "vllm serve, sglang.launch_server, trtllm-serve, trtllm-bench, torchrun … pretrain_gpt.py or torchtitan.train"
RULES = {
    "int": "a whole number from 1 to 2^48 is needed",
    "count": "a whole number is needed, such as 4096 or 32k",
    "share": "a fraction above 0 and at most 1 is needed",
    "ratio": "a fraction from 0 to 1 is needed",
}
"""What the kinds of values must be."""
MAX_SIGNS = 65_536  # of what is pasted, variables put in
HERE = (  # cat > FILE << END, and turned round
    re.compile(r"cat\s{0,9}>\s{0,9}(?P<name>\S{1,200}?)\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\r?$"),
    re.compile(r"cat\s{0,9}<<-?\s{0,9}['\"]?(?P<end>\w{1,99})['\"]?\s{0,9}>\s{0,9}(?P<name>\S{1,200})\r?$"),
)
ARRAY = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=\(((?:[^()]|\([^()]*+\))*+)\)")
ASSIGNED = re.compile(r"^[ \t]*+(?:export[ \t]++)?([A-Za-z_]\w*+)=(\"[^\"]*+\"|'[^']*+'|[^\s;]*+)[ \t]*+;?[ \t]*+$", re.M)
COMMENT = re.compile(r"""('[^']*+'|"(?:[^"\\]|\\.)*+"|\\.|[^\s'"\\#][^\s'"\\]*+)|(?<!\S)#[^\n]*+""", re.S)
USED = re.compile(r"\"?\$\{?([A-Za-z_]\w*)(?:\[@\])?\}?\"?")
LOUD, QUIET = ("NCCL_", "VLLM_", "SGLANG_", "TRTLLM_"), ("VLLM_NIXL_",)
"""Variables that may change what a server does, and those of them that are addresses."""
IMAGES = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang", "tensorrt-llm/release": "trtllm"}


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command says; None or "" is what it leaves to the engine."""

    engine: str
    version: str = ""
    phase: str = "serve"  # or train
    model: str = ""
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None  # AUTO_EP: over tp x dp
    cp: int | None = None
    servers: int = 1  # equal servers beside each other
    role: str = ""  # "prefill" or "decode" where a server does one of them
    prefill_tp: int | None = None  # of the servers for prompts beside those that decode
    prefill_workers: int | None = None
    dtype: str = ""
    kv_dtype: str = ""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    eager: bool = False
    library: str = ""  # nccl where the engine's own all-reduce is switched off
    ep_backend: str = ""
    speculative: int | None = None
    concurrency: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    spread: float | None = None  # of the lengths that a benchmark draws, as a share of their mean to either side
    nnodes: int | None = None
    gpus_per_node: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    context: int | None = None
    recompute: str = ""
    sequence_parallel: bool = False
    schedule: str = ""
    chunks: int | None = None
    stage_layers: int | None = None  # of a chunk, where that is told instead
    zero: int | None = None
    hsdp: int | None = None
    async_axes: str = ""
    shape: tuple[tuple[str, int], ...] = ()  # of a model that is told by its sizes (Megatron)
    devices: tuple[str, ...] = ()
    address: str = ""  # where the hosts of one job meet
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes = {name: getattr(self, name) or 1 for name in ("tp", "pp", "dp", "ep", "cp")}
        if sizes["ep"] == AUTO_EP:
            sizes["ep"] = sizes["tp"] * sizes["dp"]
        return sizes

    def chunks_of(self, layers: int) -> int | None:
        """Chunks a rank of a model with so many layers."""
        whole = (self.pp or 1) * (self.stage_layers or 0)  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and self.schedule else self.chunks

    @property
    def num_gpus(self) -> int:
        sizes = self.axes
        one = sizes["tp"] * sizes["pp"] * sizes["dp"] * sizes["cp"]
        return one * self.servers + (self.prefill_workers or 0) * (self.prefill_tp or 1)


def parse(text: str) -> Launch:
    """Read a command, or a script that contains one.

    >>> found = parse("CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 128k --foo 3")
    >>> found.engine, found.model, found.tp, found.max_model_len, found.unread
    ('vllm', 'meta-llama/Llama-3.1-8B', 2, 128000, ('--foo 3',))
    """
    if len(text) > MAX_SIGNS:
        raise Refusal(f"from: longer than {MAX_SIGNS:,} signs; paste the command that starts the engine alone", "from")
    if "LLM(" in text:
        return _read("vllm", _python(text), {}, [], "")
    plain, files = _without_files(text)
    found = [launch for words in _commands(plain) if (launch := _command(words, files))]
    if not found:
        raise Refusal(f"from '{' '.join(text.split())[:60]}': no launch command found ({PROGRAMS})", "from")
    return _joined(found)


def _python(text: str) -> list[str]:
    """Keywords of a call ``LLM(model=…, tensor_parallel_size=2)`` as flags."""
    try:
        calls = [n for n in ast.walk(ast.parse(text.strip())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "LLM"]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nested too deep for Python's own reader
        raise Refusal("from: this LLM(…) is not Python that can be read", "from") from None
    words: list[str] = []
    for keyword in calls[0].keywords if calls else ():
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ast.unparse(keyword.value)
        words += [f"--{keyword.arg}"] if value is True else [] if value is False else [f"--{keyword.arg}", str(value)]
    return words + [str(a.value) for a in (calls[0].args if calls else ()) if isinstance(a, ast.Constant)]


def _without_files(text: str) -> tuple[str, dict[str, str]]:
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


def _commands(text: str) -> Iterator[list[str]]:
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


def _command(words: list[str], files: dict[str, str]) -> Launch | None:
    """One command's launch, or None where it is something else."""
    image = next((w for w in words if any(i in w for i in IMAGES) and not w.startswith("-")), "")
    last = max((at for at in range(len(words)) if _program(words, at)[0]), default=-1)
    for at, word in enumerate(words):
        engine, skip = _program(words, at)
        if not engine and word == image and at > last:
            engine, skip = next(e for i, e in IMAGES.items() if i in image), 1  # the image's entry point is the server
        if engine:
            version = re.search(r":v?(\d+(?:\.\d+)+\w*)$", image[-100:])
            return _read(engine, words[at + skip :], _environment(words[:at]), words[:at], version[1] if version else "", files)
    return None


def _program(words: list[str], at: int) -> tuple[str, int]:
    """The engine that starts at a word ("": none), and how many words name it."""
    word, following = words[at].rsplit("/", 1)[-1], words[at + 1] if at + 1 < len(words) else ""
    if word == "vllm" and following in ("serve", "bench"):
        return "vllm", 3 if following == "bench" else 2
    if word == "sglang" and following == "serve":
        return "sglang", 2
    if word == "trtllm-serve" and following == "disaggregated":  # what joins servers is none
        return "", 0
    if word == "trtllm-serve":
        return "trtllm", 2 if following == "serve" else 1
    if word == "trtllm-bench":
        return "trtllm", 1
    if word == "-m" and following.startswith(("vllm.entrypoints", "sglang.", "tensorrt_llm.serve")):
        return {"v": "vllm", "s": "sglang", "t": "trtllm"}[following[0]], 2
    if word == "torchrun" or (word == "-m" and following.startswith("torch.distributed.")):
        return "torchrun", 1 if word == "torchrun" else 2
    return ("torchtitan", 1) if word == "run_train.sh" else ("", 0)


def _environment(words: list[str]) -> dict[str, str]:
    pairs = [w.split("=", 1) for w in words if re.match(r"[A-Za-z_]\w*=", w)]
    return dict(pairs)


def _pairs(words: list[str], flags: Flags) -> Iterator[tuple[str, str | None, str]]:
    """(flag, value, both as written) in order; the flag is "" for a word that belongs to none."""
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("-") or _is_number(word):
            yield "", word, word
            continue
        name, equals, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        kind = (flags.get(name) or NOTHING.get(name) or ("", ""))[1]
        follows = at < len(words) and (not words[at].startswith("-") or _is_number(words[at]))
        if equals:
            yield name, value, word
        elif kind != "on" and follows:
            yield name, words[at], f"{word} {words[at]}"
            at += 1
        else:
            yield name, None, word


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


def _read(
    engine: str, words: list[str], env: dict[str, str], before: list[str], version: str, files: dict[str, str] | None = None
) -> Launch:
    """The flags of one program in the engine's own meaning."""
    given: dict[str, Any] = {}
    unread = [f"{k}={v}" for k, v in env.items() if k.startswith(LOUD) and not k.startswith(QUIET)]
    if engine == "torchrun":
        engine, words = _split_torchrun(words, given)
    flags = ENGINES[engine]
    positional = _take(words, flags, given, unread)
    if engine in ("vllm", "trtllm", "sglang") and "model" not in given:
        given["model"] = next((w for w in positional if w not in ("throughput", "latency")), "")
    for word in positional if engine == "torchtitan" else ():
        name, _, kind = word.replace("_", "-").partition(":")
        given |= {"recompute": kind} if name == "activation-checkpoint" else {}
    if "file" in given:
        _read_file(str(given.pop("file")), files or {}, flags, given, unread)
    if env.get("CUDA_VISIBLE_DEVICES"):
        given["devices"] = tuple(env["CUDA_VISIBLE_DEVICES"].split(","))
    given |= {"nnodes": n} if (n := _srun(before)) and "nnodes" not in given else {}
    notes: list[str] = []
    if engine == "torchtitan":
        given.setdefault("gpus_per_node", env.get("NGPU", "8") if "gpus_per_node" not in given else given["gpus_per_node"])
        for name, variable in (("flavour", "CONFIG"), ("family", "MODULE")):
            given.setdefault(name, env.get(variable, ""))
    told = MEANINGS[engine](given, notes, unread)
    return Launch(engine=engine, version=version, notes=tuple(notes), unread=tuple(unread), **told)


def _srun(before: list[str]) -> int:
    """Hosts that a job launcher in front names."""
    text = " ".join(before)
    called = re.search(r"\b(?:srun|salloc)\b", text)
    found = re.compile(r"(?:-N|--nodes)[= ](\d{1,9})\b").search(text, called.end()) if called else None
    return int(found[1]) if found else 0


def _take(words: list[str], flags: Flags, given: dict[str, Any], unread: list[str]) -> list[str]:
    """Fill ``given``; what has no meaning goes to ``unread``. Returns the words that belong to no flag."""
    loose = []
    for name, value, written in _pairs(words, flags):
        if not name:
            loose.append(written)
        if not name or (name in NOTHING and name not in flags):
            continue
        field, kind = flags.get(name, ("", ""))
        off = name.removeprefix("no-")
        if not field and off in flags and flags[off][1] == "on":
            given.pop(flags[off][0], None)
        elif not field:
            if name not in UNMODELLED or UNMODELLED[name] != value:
                unread.append(written)
        elif rule := _set(given, field, kind, value):
            raise Refusal(f"from: '{written}': {rule}", "from")
    return loose


def _set(given: dict[str, Any], field: str, kind: str, value: str | None) -> str:
    """Keep a value; returns the rule that it breaks, "" where it breaks none. What is left to the engine is not kept."""
    if kind == "on":
        if str(value).lower() not in ("false", "0", "no"):
            given[field] = True
        return ""
    if value is None:
        return "the flag needs a value"
    if value.lower() in ("auto", "null", "none", "~") and kind != "text":
        return ""
    if "$" in value and kind != "text":
        return "the variable is not set in what was pasted"
    readers: dict[str, Any] = {"int": parse_count, "count": parse_count, "share": parse_fraction, "ratio": parse_fraction}
    try:
        found: Any = readers[kind](value, field) if kind in readers else value
    except ValueError:
        return RULES[kind]
    if found == -1 and field in ("shards", "max_model_len"):  # whatever is left; as long as fits
        return ""
    if (kind == "int" and found < 1) or (kind == "share" and not 0 < found <= 1) or (kind == "ratio" and not 0 <= found <= 1):
        return RULES[kind]
    given[field] = found
    return ""


def _read_file(name: str, files: dict[str, str], flags: Flags, given: dict[str, Any], unread: list[str]) -> None:
    """Settings of a YAML file beside the command: ``a:`` / ``  b: 1`` is the flag ``a.b``."""
    text = files.get(name)
    if text is None and os.path.exists(name):
        text = read_text(name, "from: --config")
    if text is None:
        unread.append(f"--config {name} (no such file here)")
        return
    above, words = "", []
    for line in text.splitlines():
        match = re.match(r"(\s*+)([\w-]++)\s*+:(.*)", line)
        if not match:
            continue
        above = match[2] if not match[1] else above
        path = match[2] if not match[1] else f"{above}.{match[2]}"
        value = match[3].partition("#")[0].strip()
        words += [f"--{path}={value}"] if value else []
    _take(words, {**flags, "print-iter-log": ("", "text")}, given, unread)


def _split_torchrun(words: list[str], given: dict[str, Any]) -> tuple[str, list[str]]:
    """torchrun's own flags, then the program and its words."""
    switches = {"standalone", "no-python", "m", "module"}
    at = 0
    while at < len(words):
        word, name = words[at], words[at].partition("=")[0].lstrip("-").replace("_", "-")
        if not word.startswith("-"):
            break
        if name in TORCHRUN:
            given[TORCHRUN[name][0]] = word.partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
        at += 1 if "=" in word or name in switches else 2
    program = words[at] if at < len(words) else ""
    if "torchtitan" in program or program.endswith("torchtitan/train.py"):
        return "torchtitan", words[at + 1 :]
    if re.search(r"(pretrain|megatron)\w*", program) or any("tensor-model-parallel" in w.replace("_", "-") for w in words):
        return "megatron", words[at + 1 :]
    raise Refusal(f"from: torchrun starts '{program}', which is neither Megatron's pretrain_*.py nor torchtitan.train", "from")


def _joined(found: list[Launch]) -> Launch:
    """Equal servers are counted; a benchmark beside a server adds its lengths; servers for prompts join those that decode."""
    bench = next((x for x in found if x.concurrency is not None), None)
    servers = [x for x in found if x is not bench] or found
    ahead = [x for x in servers if x.role == "prefill"]
    first = _counted([x for x in servers if x.role != "prefill"] or ahead)
    if ahead and first.role == "decode":
        prompts = _counted(ahead)
        first = replace(first, prefill_tp=prompts.tp or 1, prefill_workers=prompts.servers)
    if bench is not None and bench not in servers:
        first = replace(first, **{name: getattr(bench, name) for name in ("concurrency", "input_len", "output_len", "spread")})
    return first


def _counted(found: list[Launch]) -> Launch:
    """The first of several servers, with as many as are its equals; parts of one job are one job."""
    first = next((x for x in found if x.concurrency is None), found[0])
    alike = [x for x in found if _bare(x) == _bare(first)]
    parts = first.nnodes is not None and first.nnodes > 1 and bool(first.address)  # commands of one job meet at one address
    count = len({x.address for x in alike}) if parts else len(alike)
    return first if count < 2 else replace(first, servers=count, devices=())


def _bare(launch: Launch) -> Launch:
    """What replicas have in common."""
    return replace(launch, devices=(), address="", concurrency=None, input_len=None, output_len=None, spread=None)
