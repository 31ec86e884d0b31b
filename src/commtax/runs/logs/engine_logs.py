"""Logs of serving engines: one record whatever the engine, read by a table of its wordings (``vllm_log.toml`` …).

Wordings changed over the versions; all of them are read, whatever prefixes, colours and interleaved ranks surround them. Of several
starts in one file the last counts. Memory is counted in GiB whatever the unit says.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from commtax.files import table
from commtax.records import record_from
from commtax.runs.logs import crashes
from commtax.thresholds import counts
from commtax.units import GiB
from commtax.wordings import ModulePatterns, patterns

COUNT = counts(__name__)
SAYS = patterns(__name__)

FAILURE, READY = "failure", "ready"  # settings: why it did not start or did not go on, and that it was ready to serve
STALLED = "stalled_s"  # a figure: how long a process has waited for others when the log ends
STAGE, ENDED = "stage", "ended"  # … the last step of a start that it names, and that its process was ended
_NUMBER = r"(-?\d[\d,]{0,30}(?:\.\d{1,30})?)"


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker as it introduced itself, with -1 where an axis is not named."""

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
    """What one start reports: the engine's settings, the layout of its ranks, the tightest one's memory, empty where not logged."""

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
    custom_allreduce_disabled: str = ""  # the stated reason
    weights_bytes: tuple[tuple[str, float], ...] = ()  # worker and what it loaded
    figures: Mapping[str, float] = field(default_factory=dict)  # what else was counted, the least over the workers
    available_kv_bytes: float | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    max_concurrency: float | None = None
    moments: tuple[Moment, ...] = ()
    claims: tuple[ClaimedMemory, ...] = ()  # of workers on CPUs

    def setting(self, name: str) -> str:
        """Return a setting, or "" where it was not printed, or left to the engine."""
        value = self.settings.get(name, "")
        return "" if value in ("None", "auto") else value

    def prints(self, what: str, usual: bool = False) -> bool:
        """Return whether an engine prints something in its log, as the table of its wordings has it."""
        return bool(table(f"runs/logs/{self.engine}_log.toml").get("prints", {}).get(what, usual))

    @property
    def model(self) -> str:
        return self.setting("model")

    @property
    def is_ready(self) -> bool:
        """Whether it was ready to serve, whatever came later."""
        return bool(self.moments) or READY in self.settings

    @property
    def is_settled(self) -> bool:
        """Whether memory is shared out, so that all that a start prints of its plan is there."""
        return any(x is not None for x in (self.kv_tokens, self.kv_blocks, self.available_kv_bytes, self.max_concurrency))

    @property
    def stops(self) -> bool:
        """Whether it stops before the line that ends a start, or before memory is shared out where an engine has no such line."""
        if self.is_ready or FAILURE in self.settings:
            return False
        return self.prints("ready") or ENDED in self.settings or not self.is_settled


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
        """Keep the time of the slowest worker, for which all others wait."""
        if noted := self.figures.get(name):
            self.figures[name] = [max(noted, key=lambda pair: pair[1])]

    def fail(self, lines: Iterable[str]) -> None:
        """Record why it ended, where its lines end in an error: the root cause rather than the engine's last words."""
        crash = crashes.find(lines)
        if crash and (crash.ended or not (self.moments or READY in self.settings)):  # a server outlives the error of a request
            self.settings[FAILURE] = crash.sentence

    def record(self, engine: str) -> StartupLog:
        """Return all of it by field, with the least of each figure over the workers."""
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
        """Return whether a line may matter. Most of a long log do not."""
        return any(word in line for word in self.words)

    def hear(self, heard: StartupFacts, worker: str, line: str) -> None:
        """Take a line's figures, words and settings."""
        for name, unit, pattern in self.figures:
            if match := pattern.search(line):
                value = number(match[1])
                heard.note(name, worker, int(value) if isinstance(unit, int) else value * unit)
        for name, pattern in self.texts:
            if match := pattern.search(line):
                text = match[1].split(". To silence")[0].strip().rstrip(".")
                kept = heard.facts if name in _FIELDS else heard.settings
                if name not in kept or name not in self.table.get("first", ()):
                    kept[name] = text[: COUNT.most_value]
        if any(sign in line for sign in self.table["configured"]):
            for quoted, bare, raw in SAYS.setting.findall(SAYS.drafter.sub("", line)):
                key = quoted or bare
                printed = raw.strip("'\"").rstrip(".").removeprefix("torch.")[: COUNT.most_value]
                if (setting := self.table["numbers"].get(key)) and SAYS.plain_number.fullmatch(printed):
                    figure = float(printed)  # the first counts; of all else the last is kept, to compare runs by
                    whole = figure.is_integer() and setting != "gpu_memory_utilization"
                    heard.facts.setdefault(setting, int(figure) if whole else figure)
                elif key == "disable_custom_all_reduce" and printed == "True":
                    heard.facts["switched_off"] = True
                self._keep(heard.settings, self.table["names"].get(key, key), printed)

    def _keep(self, settings: dict[str, str], name: str, value: str) -> None:
        """Keep the last value of a setting, unless it leaves the choice to the engine and a choice is already there."""
        if name in settings:
            settings[name] = value if value not in ("None", "auto") else settings[name]
        elif name not in self.table["not_kept"] and len(settings) < COUNT.most_settings:
            settings[name] = value


_FIELDS = frozenset(StartupLog.__dataclass_fields__)
_UNITS = {"gib": float(GiB), "mib": 2.0**20, "count": 1, "share": 1.0, "bytes": 1.0, "seconds": 1.0}
"""What a line's number may be, and what it is multiplied by; counts are whole."""


def number(text: str) -> float:
    """Return the number that a text such as ``620,944`` means."""
    return float(text.replace(",", ""))


def lines(text: str) -> Iterator[str]:
    """Yield lines without colours, cut to the longest length that may matter."""
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at : min(end, at + COUNT.most_signs)].rstrip("\r")
        yield SAYS.colour.sub("", line) if "\x1b" in line else line
        at = end + 1


def axes_of(worker: str) -> dict[str, int]:
    """Return the coordinates in a worker's name or introduction.

    >>> axes_of("DP0_TP1"), axes_of("DP rank 0, TP rank 1")
    ({'dp': 0, 'tp': 1}, {'dp': 0, 'tp': 1})
    """
    return {axis.lower(): int(n) for axis, n in re.findall(r"(DP|PP|TP|EP)(?: rank )?(\d{1,9})", worker)}


def last_start_line(rows: Callable[[], Iterable[tuple[str, str, bool]]]) -> int:
    """Return the line of the last start, where rows are a process, what tells its runs apart, and whether it introduces itself."""
    begun: dict[str, str] = {}
    first = 0
    for at, (who, run, starts) in enumerate(rows()):
        if starts:
            if begun.get(who, run) != run:
                first = at
                begun.clear()
            begun[who] = run
    return first


Introduced = tuple[str, str, bool]  # a process's name, what distinguishes its runs, and whether a line introduces it


class _EngineReading:
    """One log of one engine, line by line. An engine adds its workers' names, its own lines, and what follows from them all."""

    tells_failure = True

    def __init__(self, says: Wordings, text: str) -> None:
        self.wordings, self.says, self.text, self.heard = says, says.patterns, text, StartupFacts()

    def introduced(self) -> Iterator[Introduced]:
        """Yield for each line whether a process begins with it."""
        return iter(())

    def worker(self, line: str) -> str:
        raise NotImplementedError

    def take(self, worker: str, line: str) -> None:
        self.wordings.hear(self.heard, worker, line)

    def finish(self) -> None:
        """Derive what follows from all lines."""

    def read(self, engine: str) -> StartupLog:
        first = last_start_line(self.introduced)
        for line in filter(self.wordings.says, islice(lines(self.text), first, None)):
            self.take(self.worker(line), line)
        self.finish()
        if self.tells_failure:
            self.heard.fail(islice(lines(self.text), first, None) if crashes.may_hold_error(self.text) else ())
        return self.heard.record(engine)


class _Vllm(_EngineReading):
    """What vLLM loaded, how much KV cache it kept, and how it laid out its ranks."""

    def __init__(self, says: Wordings, text: str) -> None:
        super().__init__(says, text)
        self.workers: set[tuple[str, int]] = set()  # coordinates in their names

    def introduced(self) -> Iterator[Introduced]:
        for line in lines(self.text):
            starts = (" LLM engine" in line or "vLLM API server" in line) and bool(self.says.start.search(line))
            yield (*self._process(line), True) if starts else ("", "", False)

    def _process(self, line: str) -> tuple[str, str]:
        """Return name and pid of the process that wrote a line, where it has them."""
        named = [inside for inside in self.says.brackets.findall(line[:2000]) if self.says.worker.match(inside)]
        worker = next((name for name in named if "Worker" in name), named[0] if named else "")  # Ray's stand behind their engine
        match = self.says.pid.search(worker)
        return worker.split(" pid=")[0].split(",")[0], match[1] if match else ""

    def worker(self, line: str) -> str:
        """Return ``TP1``, ``DP0_TP1`` or ``rank 0`` from a worker's name, or its pid where it has no number (old versions)."""
        who, pid = self._process(line)
        if match := self.says.coordinates.search(who):
            return match[0]
        if match := re.search(r"rank=(\d+)", who):
            return f"rank {match[1]}"
        return f"pid {pid}" if pid and "Worker" in who else "rank 0"

    def take(self, worker: str, line: str) -> None:
        self.workers |= axes_of(worker).items()
        super().take(worker, line)
        match = self.says.claim.search(line) if "requested memory" in line else None
        if match and all(x.count(".") < 2 for x in match.group(1, 3)):
            claims = self.heard.facts.setdefault("claims", {})
            if len(claims) < COUNT.most_moments:
                claims[worker] = ClaimedMemory(int(match[2]), float(match[3]) * GiB, float(match[1]) * GiB)
        self._layout(line)
        self._served(line)
        self._stalled(worker, line)

    def finish(self) -> None:
        """Take weights from the account of all memory where only that has them, and ranks from workers' names likewise."""
        heard, workers = self.heard, self.workers
        if used := heard.figures.get("used_weights_bytes"):
            heard.figures.setdefault("weights_bytes", used)
        if loaded := heard.figures.get("weights_s"):  # of several, the model's: a drafter is loaded after it
            heard.figures.setdefault("loading_s", list(dict(reversed(loaded)).items()))
        for name in ("loading_s", "compile_s", "init_s", "preempted", STALLED):
            heard.slowest(name)
        if not heard.ranks and workers:
            heard.ranks = {0: Rank(0, **{axis: max(at for name, at in workers if name == axis) for axis, _ in workers})}

    def _layout(self, line: str) -> None:
        """Read ranks, groups, backends, and requests of full length."""
        heard, facts, says = self.heard, self.heard.facts, self.says
        if max(len(heard.ranks), len(heard.concurrency)) >= COUNT.most_moments:
            return
        if match := says.concurrency.search(line):
            heard.concurrency.append((int(number(match[1])), number(match[2])))
        if match := says.rank.search(line):
            heard.ranks[int(match[1])] = Rank(int(match[1]), **axes_of(match[3]))
            facts["world_size"] = int(match[2])
        if (match := says.world.search(line)) and (backend := says.backend.search(line, match.end())):
            heard.ranks.setdefault(int(match[2]), Rank(int(match[2])))
            facts |= {"world_size": int(match[1]), "backend": backend[1]}
        if (match := says.backends.search(line)) and (group := says.group.search(line, match.end() - 1)) and group[1] == "tp":
            facts["allreduce_backends"] = tuple(re.findall(r"[\w.]+", match[1]))

    def _stalled(self, worker: str, line: str) -> None:
        """Accumulate how long processes wait for others at the end of the log. Progress after a wait clears it."""
        figures = self.heard.figures
        if match := self.says.stalled.search(line):
            waited = dict(figures.get(STALLED, ()))
            figures[STALLED] = [*(waited | {worker: waited.get(worker, 0.0) + float(match[1])}).items()]
        elif STALLED in figures:
            works = "generation throughput: 0.0 " not in line and self.says.moment.search(line)
            if "startup complete" in line or works:
                del figures[STALLED]

    def _served(self, line: str) -> None:
        """Read a line that a serving engine writes every few seconds. Those of an idle one count nothing."""
        if "generation throughput" not in line or len(self.heard.moments) >= COUNT.most_moments:
            return
        keys = dict[str, float]()
        for match in self.says.moment.finditer(line):
            key, value = filter(None, match.groups())
            keys.setdefault("Waiting" if key == "Pending" else key, float(value))  # of the GPU's cache before the host's
        rate, running, waiting = (keys.get(key) for key in ("generation", "Running", "Waiting"))
        if running is None or not (rate or running or waiting):
            return
        usage, hits = (keys[key] / 100 if key in keys else None for key in ("KV cache usage", "Prefix cache hit rate"))
        prompts, waits = keys.get("prompt", 0.0), None if waiting is None else int(waiting)
        self.heard.moments.append(Moment(int(running), waits, rate or 0.0, usage, prompt_tokens_per_s=prompts, prefix_hits=hits))


class _Sglang(_EngineReading):
    """The start and the lines of SGLang's scheduler, without caches of a speculative model and of windows."""

    def __init__(self, says: Wordings, text: str) -> None:
        super().__init__(says, text)
        self.pools: dict[str, dict[int, float]] = {}
        self.resumed: set[str] = set()

    def introduced(self) -> Iterator[Introduced]:
        """Yield which host's server printed its arguments. A second time means another start."""
        for at, line in enumerate(lines(self.text)):
            starts = "server_args=ServerArgs(" in line
            node = self.says.node.search(line) if starts else None
            yield (node[1] if node else "0"), str(at), starts

    def worker(self, line: str) -> str:
        match = self.says.worker.match(line)
        return match[1].strip().replace(" ", "_") if match else "rank 0"

    def take(self, worker: str, line: str) -> None:
        if "Load weight" in line and any(worker == who for who, _ in self.heard.figures.get("weights_bytes", ())):
            return  # a drafter is loaded after the model that it helps
        super().take(worker, line)
        if match := self.says.cache.search(line):  # the first pool of as many tokens is the model's own
            nbytes = sum(float(size) for size in self.says.size.findall(match[2])) * GiB
            self.pools.setdefault(worker, {}).setdefault(int(match[1]), nbytes)
        self._served(worker, line)

    def finish(self) -> None:
        """Take the cache of the worker that has least."""
        heard = self.heard
        if totals := [(sum(pool.values()), max(pool)) for pool in self.pools.values()]:
            heard.note("available_kv_bytes", "", min(totals)[0])
            heard.figures.setdefault("kv_tokens", [("", min(totals)[1])])
        workers = dict.fromkeys(worker for noted in heard.figures.values() for worker, _ in noted)
        heard.ranks = {at: Rank(at, **axes) for at, worker in enumerate(workers) if (axes := axes_of(worker))}
        heard.slowest("loading_s")
        if retracted := heard.figures.get("preempted"):  # each line counts those of its own step
            heard.figures["preempted"] = [("", sum(count for _, count in retracted))]
        if heard.settings.get("enable_dp_attention") == "True":  # replicas share the ranks that tp counts
            heard.facts["tp"] = max(1, heard.facts.get("tp", 1) // max(1, heard.facts.get("dp", 1)))

    def _served(self, worker: str, line: str) -> None:
        """Read a batch as the scheduler counts it. The first decode line after a pause counts the pause too, and is skipped."""
        match = self.says.batch.search(line)
        if not match or len(self.heard.moments) >= COUNT.most_moments:
            return
        # The count of a full cache comes before that of windows.
        counts_by_name: dict[str, str] = dict(reversed(self.says.count.findall(line, match.end())))
        if match[1] == "Prefill":
            if "#running-req: 0," in line:  # nothing else ran
                self.resumed.add(worker)
            self._counted(counts_by_name, prompts=_figure(counts_by_name, "input throughput (token/s)") or 0.0)
        elif worker in self.resumed:
            self.resumed.discard(worker)
        elif (rate := _figure(counts_by_name, "gen throughput (token/s)")) is not None:
            self._counted(counts_by_name, rate, graph={"True": True, "False": False}.get(counts_by_name.get("cuda graph", "")))

    def _counted(self, counts_by_name: dict[str, str], rate: float = 0.0, prompts: float = 0.0, graph: bool | None = None) -> None:
        """Record one line's counts. A terminal may cut what runs out of a line, which is then taken from the line before."""
        tokens = _figure(counts_by_name, "#token") or _figure(counts_by_name, "#full token")
        running, waiting, begun = (_figure(counts_by_name, name) for name in ("#running-req", "#queue-req", "#new-seq"))
        if running is None and waiting is not None and self.heard.moments:
            running = self.heard.moments[-1].running
        if running is not None:
            waits, cached = None if waiting is None else int(waiting), int(tokens) if tokens else None
            share = _figure(counts_by_name, "token usage")
            self.heard.moments.append(Moment(int(running), waits, rate, share, cached, graph, prompts, let_in=int(begun or 0)))


def _figure(counts_by_name: dict[str, str], name: str) -> float | None:
    value = counts_by_name.get(name, "").rstrip(".")
    return number(value) if value.replace(".", "", 1).isdecimal() else None


class _Trtllm(_EngineReading):
    """The start and iterations of PyTorch and compiled engines, where the last allocation of a cache counts."""

    def introduced(self) -> Iterator[Introduced]:
        """Yield each process's name of the version, which comes once, before the cache is allocated."""
        run = 0
        for line in lines(self.text):
            run += bool(self.says.allocated.search(line))
            yield "", str(run), "TensorRT-LLM version: " in line

    def worker(self, line: str) -> str:
        """Return the rank that a line names. Engines load one rank after the other, each without its number."""
        if match := self.says.rank.search(line):
            return f"rank {match[1] or match[2]}"
        loaded = len(self.heard.figures.get("weights_bytes", ())) if "Loaded engine size: " in line else 0
        return f"rank {loaded % max(1, self.heard.facts.get('world_size', 1))}"

    def take(self, worker: str, line: str) -> None:
        super().take(worker, line)
        if match := self.says.allocated.search(line):
            self.heard.figures["available_kv_bytes"] = [("", number(match[1]) * GiB)]
            self.heard.figures["kv_tokens"] = [("", int(match[2]))]
        if match := self.says.world.search(line):
            self.heard.facts["world_size"] = int(match[1])
        self._served(line)

    def _served(self, line: str) -> None:
        """Read an iteration that only decodes."""
        step = self.says.step.search(line) if len(self.heard.moments) < COUNT.most_moments else None
        states = self.says.states.search(line, step.end()) if step else None
        if not step or not states or int(states[1]) or not int(states[2]) or number(step[1]) <= 0:
            return
        tokens, scheduled = int(states[2]), self.says.scheduled.search(line)
        self.heard.moments.append(Moment(int(scheduled[1]) if scheduled else tokens, 0, tokens / number(step[1]) * 1e3))


class _Tgi(_EngineReading):
    """How many shards its launcher starts, which are tensor-parallel ranks, and whether the start ends."""

    tells_failure = False

    def worker(self, line: str) -> str:  # noqa: ARG002
        return ""

    def take(self, worker: str, line: str) -> None:
        super().take(worker, line)
        if (match := self.says.shard.search(line)) and len(self.heard.ranks) < COUNT.most_moments:
            self.heard.ranks[int(match[1])] = Rank(int(match[1]), tp=int(match[1]))
        if match := self.says.shards.search(line):
            self.heard.facts["tp"] = int(match[1])


class EngineLog:
    """The reader of one engine's logs, ``described`` as users read it."""

    def __init__(self, engine: str, reading: type[_EngineReading], described: str) -> None:
        self.engine, self.described = engine, described
        self._reading, self._wordings = reading, Wordings(f"runs/logs/{engine}_log.toml")

    def looks_like(self, text: str) -> bool:
        return self._wordings.fits(text)

    def parse(self, text: str) -> StartupLog:
        """Read a log.

        >>> log = vllm_log.parse("(Worker_TP1 pid=7) INFO 11-15 04:59:15 [x.py:1] Model loading took 7.51 GiB memory")
        >>> log.weights_bytes[0][0], round(log.weights_bytes[0][1] / 2**30, 2)
        ('TP1', 7.51)
        >>> log = sglang_log.parse("[12:29:21 TP1] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB")
        >>> log.kv_tokens, round(log.available_kv_bytes / 2**30, 2)
        (46611, 2.84)
        >>> trtllm_log.parse("[TensorRT-LLM] Allocated 1.01 GiB for max tokens in paged KV cache (8256).").kv_tokens
        8256
        >>> log = tgi_log.parse("INFO shard-manager: text_generation_launcher: Waiting for shard to be ready... rank=1")
        >>> log.ranks[0].tp, log.stops
        (1, True)
        """
        return self._reading(self._wordings, text).read(self.engine)


vllm_log, sglang_log = EngineLog("vllm", _Vllm, "a vLLM log"), EngineLog("sglang", _Sglang, "an SGLang log")
trtllm_log = EngineLog("trtllm", _Trtllm, "a TensorRT-LLM log")
tgi_log = EngineLog("tgi", _Tgi, "a start of Text Generation Inference")
ENGINE_LOGS = (vllm_log, sglang_log, trtllm_log)  # logs that tell how their engine ended, too


def crash_of(raw: str, text: str) -> crashes.Crash | None:
    """Return the error with which a program that is no engine ended (``text`` is ``raw`` without launchers' prefixes)."""
    if not crashes.may_hold_error(raw) or any(engine.looks_like(text) for engine in ENGINE_LOGS):
        return None
    return crashes.find(lines(raw))
