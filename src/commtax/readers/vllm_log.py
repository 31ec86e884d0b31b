"""vLLM start-up logs: what the engine says it loaded, how much KV cache it kept, and how it laid out its ranks.

The wording changed over the versions (``vllm_log.toml``); all of these are read, whatever prefixes, colours and interleaved
ranks surround them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from commtax.files import table
from commtax.readers import filled
from commtax.units import GiB

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BRACKETS = re.compile(r"\(([^()]*+)\)")
_WORKER = re.compile(r"\w*Worker|EngineCore|APIServer|MainProcess")
_PID = re.compile(r"\bpid=(\d+)")
_NUMBER = r"(-?\d[\d,]{0,30}(?:\.\d{1,30})?)"
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x")
_RANK = re.compile(r"rank (\d{1,9}) in world size (\d{1,9}) is assigned as (DP rank .*)")
_WORLD = re.compile(r"world_size=(\d{1,9}) rank=(\d{1,9}) ")
_BACKEND = re.compile(r"backend=(\w+)")
_BACKENDS = re.compile(r"Using \[([^\[\]]*+)\] all-reduce backends ")
_GROUP = re.compile(r" for group '(\w+):")
_START = re.compile(r"Initializing an? (?:V1 )?LLM engine|vLLM API server version")
_CONFIGURED = ("with config", "non-default args", "Namespace(", "Chunked prefill is enabled with")
_SETTING = re.compile(r"['\"]?\b([a-z][a-z_]+)['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[\w./+-]+)")
_TABLE = table("readers/vllm_log.toml")
_FIGURES = [  # what a line's number is, and how it is read
    (name, read, re.compile(wording.replace("{n}", _NUMBER)))
    for kind, read in (("gib", lambda text: _float(text) * GiB), ("count", lambda text: int(_float(text))))
    for name, wordings in _TABLE[kind].items()
    for wording in wordings
]
_TEXTS = [(name, re.compile(wording)) for name, wordings in _TABLE["text"].items() for wording in wordings]


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker as it introduced itself; -1 where an axis is not named."""

    rank: int
    dp: int = -1
    pp: int = -1
    tp: int = -1
    ep: int = -1


@dataclass(frozen=True, slots=True)
class StartupLog:
    """What one start says: what the engine was told, how its ranks lie, and the memory of the tightest rank.

    "", 0 or None where the log does not say.
    """

    version: str = ""
    quantization: str = ""
    kv_cache_dtype: str = ""
    prefix_caching: str = ""  # "True" or "False"
    tp: int = 0
    pp: int = 0
    dp: int = 0
    block_size: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    gpu_memory_utilization: float = 0.0
    world_size: int = 0
    ranks: tuple[Rank, ...] = ()
    backend: str = ""
    nccl_version: str = ""
    allreduce_backends: tuple[str, ...] = ()
    custom_allreduce_disabled: str = ""  # the reason given
    weights_bytes: tuple[tuple[str, float], ...] = ()  # worker and what it loaded
    available_kv_bytes: float | None = None
    kv_fixed: bool = False  # the KV memory was asked for, not what was left
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    max_concurrency: float | None = None


@dataclass(slots=True)
class _Heard:
    """What was read so far: figures with their worker, ranks by number, and all else by field."""

    figures: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    concurrency: list[tuple[int, float]] = field(default_factory=list)  # of requests as long as this
    ranks: dict[int, Rank] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def summed(self) -> dict[str, object]:
        """All of it by field; of figures the least over the workers."""
        facts = self.facts | {name: min(value for _, value in values) for name, values in self.figures.items()}
        weights = dict(self.figures.get("weights_bytes", ()))
        length, concurrency = min(self.concurrency, key=lambda c: c[1], default=(0, None))
        facts |= {"max_model_len": length} if length else {}
        if facts.get("switched_off") and facts.get("device") != "cpu":  # CPUs never have it, and their config says so
            facts.setdefault("custom_allreduce_disabled", "disable_custom_all_reduce=True")
        facts |= {"ranks": tuple(self.ranks[r] for r in sorted(self.ranks)), "weights_bytes": tuple(sorted(weights.items()))}
        return facts | {"kv_fixed": "fixed" in self.figures, "max_concurrency": concurrency}


def looks_like(text: str) -> bool:
    """Whether a text holds lines of a vLLM start-up."""
    figures = (pattern for _, _, pattern in _FIGURES)
    library = (pattern for name, pattern in _TEXTS if name == "nccl_version")
    return any(pattern.search(text) for pattern in (*figures, _CONCURRENCY, _RANK, _START, *library))


def parse(text: str) -> StartupLog:
    """Read a log; of several starts in one file the last counts.

    >>> log = parse("(Worker_TP1 pid=7) INFO 11-15 04:59:15 [x.py:1] Model loading took 7.51 GiB memory and 2.1 seconds")
    >>> log.weights_bytes[0][0], round(log.weights_bytes[0][1] / 2**30, 2)
    ('TP1', 7.51)
    """
    heard = _Heard()
    for worker, line in _last_start(text):
        _figures(heard, worker, line)
        _layout(heard, line)
        _settings(heard, line)
    return filled(StartupLog, heard.summed())


def _last_start(text: str) -> Iterable[tuple[str, str]]:
    """Workers and their lines since the last start: the same process name with another pid introduces itself again."""
    rows: list[tuple[str, str]] = []
    begun: dict[str, str] = {}
    for line in _COLOUR.sub("", text).splitlines():
        worker = next((inside for inside in _BRACKETS.findall(line) if _WORKER.match(inside)), "")
        match, who = _PID.search(worker), worker.split(" pid=")[0].split(",")[0]
        pid = match[1] if match else ""
        if _START.search(line):
            if who in begun and begun[who] != pid:
                rows.clear()
                begun.clear()
            begun[who] = pid
        rows.append((_label(who, pid), line))
    return rows


def _label(who: str, pid: str) -> str:
    """``TP1``, ``DP0_TP1``, ``rank 0`` from a worker's name; its pid where it has no number (old versions)."""
    if match := re.search(r"(?:DP\d+|PP\d+|TP\d+|EP\d+)(?:_(?:DP|PP|TP|EP)\d+)*", who):
        return match[0]
    if match := re.search(r"rank=(\d+)", who):
        return f"rank {match[1]}"
    return f"pid {pid}" if pid and "Worker" in who else "rank 0"


def axes_of(worker: str) -> dict[str, int]:
    """The coordinates in a worker's name, or in how it introduces itself.

    >>> axes_of("DP0_TP1"), axes_of("DP rank 0, TP rank 1")
    ({'dp': 0, 'tp': 1}, {'dp': 0, 'tp': 1})
    """
    return {axis.lower(): int(n) for axis, n in re.findall(r"(DP|PP|TP|EP)(?: rank )?(\d{1,9})", worker)}


def _figures(heard: _Heard, worker: str, line: str) -> None:
    """Memory, tokens, blocks and concurrency."""
    for name, read, pattern in _FIGURES:
        if match := pattern.search(line):
            heard.figures.setdefault(name, []).append((worker, read(match[1])))
    if match := _CONCURRENCY.search(line):
        heard.concurrency.append((int(_float(match[1])), _float(match[2])))
    for name, pattern in _TEXTS:
        if match := pattern.search(line):
            heard.facts[name] = match[1].split(". To silence")[0].strip().rstrip(".")


def _layout(heard: _Heard, line: str) -> None:
    """Ranks, groups, backends, and whether the custom all-reduce is off."""
    facts = heard.facts
    if match := _RANK.search(line):
        heard.ranks[int(match[1])] = Rank(int(match[1]), **axes_of(match[3]))
        facts["world_size"] = int(match[2])
    if (match := _WORLD.search(line)) and (backend := _BACKEND.search(line, match.end())):
        heard.ranks.setdefault(int(match[2]), Rank(int(match[2])))
        facts |= {"world_size": int(match[1]), "backend": backend[1]}
    if (match := _BACKENDS.search(line)) and (group := _GROUP.search(line, match.end() - 1)) and group[1] == "tp":
        facts["allreduce_backends"] = tuple(re.findall(r"[\w.]+", match[1]))


def _settings(heard: _Heard, line: str) -> None:
    """The configuration: ``with config: …``, ``non-default args: {…}``, ``args: Namespace(…)``."""
    facts = heard.facts
    for key, raw in _SETTING.findall(line) if any(sign in line for sign in _CONFIGURED) else ():
        value = raw.strip("'\"").rstrip(".")
        if (name := _TABLE["numbers"].get(key)) and re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", value):
            number = float(value)
            facts.setdefault(name, int(number) if number.is_integer() and name != "gpu_memory_utilization" else number)
        elif (name := _TABLE["names"].get(key)) and value not in ("None", "auto"):
            facts.setdefault(name, value.removeprefix("torch."))
        elif key == "disable_custom_all_reduce" and value == "True":
            facts["switched_off"] = True


def _float(text: str) -> float:
    return float(text.replace(",", ""))
