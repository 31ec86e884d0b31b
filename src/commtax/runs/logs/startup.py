"""What an engine says at its start: one record whatever the engine, and a reader made from a table of its wordings.

A table (``vllm_log.toml``, ``sglang_log.toml``, …) has ``signs`` that such a log holds, numbers (``gib``,
``count``) and words (``text``) with the wordings of all versions, and the keys of a printed configuration.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from commtax.files import table
from commtax.records import record_from
from commtax.runs.logs import crashes
from commtax.thresholds import counts
from commtax.units import GiB
from commtax.wordings import ModulePatterns, patterns

FAILURE, READY = "failure", "ready"  # settings: why it did not start or did not go on, and that it was ready to serve
STALLED = "stalled_s"  # a figure: how long a process has waited for others when the log ends
STAGE, ENDED = "stage", "ended"  # … the last step of a start that it names, and that its process was ended
SAY_READY = ("vllm", "sglang", "tgi")  # engines with a line that ends their start
COUNT = counts(__name__)
SAYS = patterns(__name__)
_NUMBER = r"(-?\d[\d,]{0,30}(?:\.\d{1,30})?)"


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker as it introduced itself; -1 where an axis is not named."""

    rank: int
    dp: int = -1
    pp: int = -1
    tp: int = -1
    ep: int = -1


@dataclass(frozen=True, slots=True)
class Moment:
    """What a serving engine counted in one line: requests, tokens a second, and how full its cache was (0 to 1)."""

    running: int
    waiting: int | None  # None where the line does not say
    tokens_per_s: float
    cache_share: float | None = None
    cached_tokens: int | None = None
    graph: bool | None = None  # whether the step replayed a CUDA graph
    prompt_tokens_per_s: float = 0.0
    prefix_hits: float | None = None  # share of prompt tokens that were cached
    let_in: int = 0  # requests whose prompts began in it


@dataclass(frozen=True, slots=True)
class ClaimedMemory:
    """What one worker on a CPU claims of the memory of its node, and how much the node has."""

    node: int
    nbytes: float
    node_bytes: float


@dataclass(frozen=True, slots=True)
class StartupLog:
    """What one start says: what the engine was told, how its ranks lie, and the memory of the tightest rank.

    "", 0 or None where the log does not say.
    """

    engine: str = "vllm"  # as the catalogue calls it
    version: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)  # all that it printed of its configuration
    tp: int = 0
    pp: int = 0
    dp: int = 0
    ep: int = 0
    block_size: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    gpu_memory_utilization: float = 0.0
    world_size: int = 0
    ranks: tuple[Rank, ...] = ()
    backend: str = ""
    allreduce_backends: tuple[str, ...] = ()
    custom_allreduce_disabled: str = ""  # the reason given
    weights_bytes: tuple[tuple[str, float], ...] = ()  # worker and what it loaded
    figures: Mapping[str, float] = field(default_factory=dict)  # what else was counted, the least over the workers
    available_kv_bytes: float | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    max_concurrency: float | None = None
    moments: tuple[Moment, ...] = ()
    claims: tuple[ClaimedMemory, ...] = ()  # of workers on CPUs

    def said(self, name: str) -> str:
        """A setting; "" where it was not printed, or left to the engine."""
        value = self.settings.get(name, "")
        return "" if value in ("None", "auto") else value

    @property
    def model(self) -> str:
        return self.said("model")

    @property
    def is_ready(self) -> bool:
        """Whether it was ready to serve, whatever came later."""
        return bool(self.moments) or READY in self.settings

    @property
    def is_settled(self) -> bool:
        """Whether memory is shared out: all that a start tells of its plan is there."""
        return any(x is not None for x in (self.kv_tokens, self.kv_blocks, self.available_kv_bytes, self.max_concurrency))

    @property
    def stops(self) -> bool:
        """Whether it stops before the line that ends a start; where an engine has none, before memory was shared out."""
        if self.is_ready or FAILURE in self.settings:
            return False
        return self.engine in SAY_READY or ENDED in self.settings or not self.is_settled


@dataclass(slots=True)
class StartupFacts:
    """What was read so far: figures with their worker, ranks by number, and all else by field."""

    figures: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    concurrency: list[tuple[int, float]] = field(default_factory=list)  # of requests as long as this
    ranks: dict[int, Rank] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)

    def note(self, name: str, worker: str, value: float) -> None:
        if len(noted := self.figures.setdefault(name, [])) < COUNT.most_moments:
            noted.append((worker, value))

    def slowest(self, name: str) -> None:
        """Of a time, keep the worker's that took longest: all others wait for it."""
        if noted := self.figures.get(name):
            self.figures[name] = [max(noted, key=lambda pair: pair[1])]

    def fail(self, lines: Iterable[str]) -> None:
        """Why it ended, where its lines end in an error: the root of it, rather than what the engine says last."""
        crash = crashes.find(lines)
        if crash and (crash.ended or not (self.moments or READY in self.settings)):  # a server outlives the error of a request
            self.settings[FAILURE] = crash.said

    def record(self, engine: str) -> StartupLog:
        """All of it by field; of figures the least over the workers."""
        facts = self.facts | {name: min(value for _, value in values) for name, values in self.figures.items()}
        weights = dict(self.figures.get("weights_bytes") or self.figures.get("torch_bytes") or ())
        length, concurrency = min(self.concurrency, key=lambda c: c[1], default=(0, None))
        facts |= {"max_model_len": length} if length else {}
        blocks = facts.get("kv_blocks")
        if concurrency and blocks and "block_size" not in facts:  # which those who print blocks leave out
            facts["block_size"] = round(concurrency * length / blocks)
        if facts.get("switched_off") and self.settings.get("device_config") != "cpu":  # CPUs never have it, and say so
            facts.setdefault("custom_allreduce_disabled", "disable_custom_all_reduce=True")
        facts |= {"ranks": tuple(self.ranks[r] for r in sorted(self.ranks)), "weights_bytes": tuple(sorted(weights.items()))}
        facts["claims"] = tuple(self.facts.get("claims", {}).values())
        facts |= {"engine": engine, "settings": self.settings, "moments": tuple(self.moments)}
        figures = {name: value for name, value in facts.items() if name in self.figures and name not in _FIELDS}
        return replace(record_from(StartupLog, facts | {"figures": figures}), max_concurrency=concurrency)


class Wordings:
    """A table of wordings, ready to read lines with."""

    def __init__(self, path: str) -> None:
        self.table = table(path)
        self.patterns = ModulePatterns(self.table["patterns"])
        self.signs: tuple[str, ...] = tuple(self.table["signs"])
        self.shapes = [re.compile(shape) for shape in self.table.get("shapes", ())]
        self.words: tuple[str, ...] = tuple(self.table["words"])
        self.figures = [
            (name, unit, re.compile(wording.replace("{n}", _NUMBER)))
            for kind, unit in _UNITS.items()
            for name, wordings in self.table.get(kind, {}).items()
            for wording in wordings
        ]
        self.texts = [(name, re.compile(wording)) for name, wordings in self.table["text"].items() for wording in wordings]

    def fits(self, text: str) -> bool:
        return any(sign in text for sign in self.signs) or any(shape.search(text) for shape in self.shapes)

    def says(self, line: str) -> bool:
        """Whether a line may say something: most of a long log do not, and are passed over."""
        return any(word in line for word in self.words)

    def hear(self, heard: StartupFacts, worker: str, line: str) -> None:
        """Take a line's figures, words and settings."""
        for name, unit, pattern in self.figures:
            if match := pattern.search(line):
                value = number(match[1])
                heard.note(name, worker, int(value) if isinstance(unit, int) else value * unit)
        for name, pattern in self.texts:
            if match := pattern.search(line):
                said = match[1].split(". To silence")[0].strip().rstrip(".")
                held = heard.facts if name in _FIELDS else heard.settings
                if name not in held or name not in self.table.get("first", ()):
                    held[name] = said[: COUNT.most_value]
        if any(sign in line for sign in self.table["configured"]):
            self._settings(heard, line)

    def _settings(self, heard: StartupFacts, line: str) -> None:
        """A printed configuration; the first value of a key counts, and the last is kept to compare runs by."""
        for quoted, bare, raw in SAYS.setting.findall(SAYS.drafter.sub("", line)):
            key = quoted or bare
            value = raw.strip("'\"").rstrip(".").removeprefix("torch.")[: COUNT.most_value]
            if (name := self.table["numbers"].get(key)) and SAYS.plain_number.fullmatch(value):
                number = float(value)
                heard.facts.setdefault(name, int(number) if number.is_integer() and name != "gpu_memory_utilization" else number)
            elif key == "disable_custom_all_reduce" and value == "True":
                heard.facts["switched_off"] = True
            self._keep(heard.settings, self.table["names"].get(key, key), value)

    def _keep(self, settings: dict[str, str], name: str, value: str) -> None:
        """What was said last; that something is left to the engine says less than what it took."""
        if name in settings:
            settings[name] = value if value not in ("None", "auto") else settings[name]
        elif name not in self.table["not_kept"] and len(settings) < COUNT.most_settings:
            settings[name] = value


_FIELDS = frozenset(StartupLog.__dataclass_fields__)
_UNITS = {"gib": float(GiB), "mib": 2.0**20, "count": 1, "share": 1.0, "bytes": 1.0, "seconds": 1.0}
"""What a line's number may be, and what it is multiplied by; counts are whole."""


def number(text: str) -> float:
    """``620,944`` as it is meant."""
    return float(text.replace(",", ""))


def lines(text: str) -> Iterator[str]:
    """Lines one by one, without colours and no longer than any that says something."""
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at : min(end, at + COUNT.most_signs)].rstrip("\r")
        yield SAYS.colour.sub("", line) if "\x1b" in line else line
        at = end + 1


def axes_of(worker: str) -> dict[str, int]:
    """The coordinates in a worker's name, or in how it introduces itself.

    >>> axes_of("DP0_TP1"), axes_of("DP rank 0, TP rank 1")
    ({'dp': 0, 'tp': 1}, {'dp': 0, 'tp': 1})
    """
    return {axis.lower(): int(n) for axis, n in re.findall(r"(DP|PP|TP|EP)(?: rank )?(\d{1,9})", worker)}


def last_start_line(rows: Callable[[], Iterable[tuple[str, str, bool]]]) -> int:
    """The number of the line with which the last start begins: the same process introduces itself again as another.

    Rows are a process's name, what tells its runs apart, and whether the line is such an introduction.
    """
    begun: dict[str, str] = {}
    first = 0
    for at, (who, run, starts) in enumerate(rows()):
        if starts:
            if begun.get(who, run) != run:
                first = at
                begun.clear()
            begun[who] = run
    return first
