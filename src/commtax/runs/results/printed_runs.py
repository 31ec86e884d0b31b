"""A printed run: what its labels mean, whoever printed them, what the commands above it say, and the result that both make."""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from commtax.files import Json, JsonObject, table
from commtax.runs.results.bench_record import ASKED, METRICS, TABLE, BenchmarkRun, SentLoad, result, spread_of
from commtax.spec import SIZES
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.wordings import patterns

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

LABELS = table("runs/results/labels.toml")
_WORDS, _STATISTICS, UNITS = (LABELS[kind] for kind in ("words", "statistics", "units"))
_FILLERS, _RATES, STRINGS = (frozenset(LABELS[kind]) for kind in ("fillers", "rates", "strings"))
MINUTE_S = 60.0
_PATHS = frozenset(frozenset(path.split()) for path in LABELS["paths"])


@dataclass(frozen=True, slots=True)
class LabelMeaning:
    """``kind``: time | rate | count | string, or "" for statistics or a unit alone."""

    field: str = ""
    kind: str = ""
    statistics: tuple[str, ...] = ()
    unit_s: float | None = None  # of a time; of a rate the time it is over

    @property
    def measured(self) -> bool:
        return self.kind in ("time", "rate") and self.field not in LABELS["set"]


def _words(label: str) -> Iterable[str]:
    split = SAYS.camel.sub(" ", label[: COUNT.longest]).lower()
    plain = SAYS.remark.sub(" ", split.translate(str.maketrans("_-–", "   ")))
    for token in SAYS.token.findall(plain):
        yield from _WORDS.get(token, token).split()


@lru_cache(maxsize=4096)
def meaning(label: str) -> LabelMeaning:
    """Return the meaning of a label.

    >>> meaning("P99 TTFT (ms)"), meaning("Output_tokens/min").field, meaning("Peak output token throughput (tok/s)").field
    (LabelMeaning(field='ttft', kind='time', statistics=('p99',), unit_s=0.001), 'output_tokens_per_s', '')
    """
    words, kept = list(_words(label)), []
    statistics: list[str] = []
    unit_s: float | None = None
    rate = False
    ranked = "percentile" in words or "percentiles" in words
    for at, word in enumerate(words):
        after = at > 0 and words[at - 1] in ("/", "per")
        if word in ("/s", "/min") or (after and (word in ("min", "minute") or UNITS.get(word) == 1.0)):
            rate, unit_s = True, MINUTE_S if "min" in word else 1.0
        elif statistic := statistic_of(word, ranked):
            statistics.append(statistic)
        elif word in UNITS and unit_s is None:
            unit_s = UNITS[word]
        elif word in _RATES:
            rate = True
        elif word not in _FILLERS and word not in ("/", "percentile", "percentiles"):
            kept.append(word)
    return _meaning_of_words(frozenset(kept), tuple(statistics), unit_s, rate)


def statistic_of(word: str, ranked: bool) -> str:
    """Return ``mean``, ``p99`` …, taking numbers for ranks beside the word percentile or with a mark such as % or p.

    >>> statistic_of("p99.9", False), statistic_of("50%", False), statistic_of("95", True), statistic_of("95", False)
    ('p99.9', 'median', 'p95', '')
    >>> statistic_of("p99d", True)
    ''
    """
    if word in _STATISTICS:
        return str(_STATISTICS[word])
    share = word.rstrip("%th") if word[0].isdigit() and (ranked or not word[-1].isdigit()) else word[1:] if word[0] == "p" else ""
    if not share.replace(".", "", 1).isdecimal() or float(share) > 100:
        return ""
    return "median" if float(share) == 50 else f"p{float(share):g}"


_OF_KIND = (LABELS[kind].items() for kind in ("times", "rates_of", "counts"))
_TIMES, _RATES_OF, _COUNTS = ({frozenset(text.split()): name for name, texts in kind for text in texts} for kind in _OF_KIND)


def _meaning_of_words(words: frozenset[str], statistics: tuple[str, ...], unit_s: float | None, rate: bool) -> LabelMeaning:
    if rate:
        unit_words = words - {"tokens"} if len(words) > 1 else words
        return LabelMeaning(_RATES_OF.get(unit_words, ""), "rate", statistics, unit_s or 1.0)
    if words in _TIMES and (unit_s is not None or words not in _COUNTS):
        return LabelMeaning(_TIMES[words], "time", statistics, unit_s)
    if words in _COUNTS and unit_s is None:
        return LabelMeaning(_COUNTS[words], "count", statistics)
    if len(words) == 1 and words <= STRINGS:
        return LabelMeaning(next(iter(words)), "string")
    if words in _PATHS:
        return LabelMeaning("path", "string")
    return LabelMeaning("", "" if not words else "unknown", statistics, unit_s)


def figures(value: str, label: LabelMeaning, usual_s: float | None = None) -> list[tuple[str, float]]:
    """Return statistics with their values in SI units, or nothing where the value is no figure or has no unit.

    >>> figures("0.623, 12.899, 4.401", meaning("first token latency(s)(min, max, ave)"))
    [('min', 0.623), ('max', 12.899), ('mean', 4.401)]
    >>> figures("100/100 (100.00%)", meaning("Completed requests")), figures("-3.1%", meaning("Mean TTFT (ms)"))
    ([('', 100.0)], [])
    >>> figures("20.88 ± 0.47 ms", meaning("TTFT")), figures("47.5 ± 1.07 tokens/s", meaning("Throughput"))
    ([('', 0.02088)], [('', 47.5)])
    """
    parts = value.strip("[]() ").split(", ") if len(label.statistics) > 1 else [value]
    statistics = label.statistics or ("",)
    if len(parts) != len(statistics):
        return []
    read = [(statistic, _figure(part, label, usual_s)) for statistic, part in zip(statistics, parts, strict=True)]
    return [(statistic, number) for statistic, number in read if number is not None]


def _figure(value: str, label: LabelMeaning, usual_s: float | None) -> float | None:
    match = SAYS.value.match(value)
    if match is None or SAYS.no_figure.match(match[2]):
        return None
    number, beside = float(match[1].replace(",", "")), match[2].lower()
    unit = SAYS.unit.match(beside)
    printed_s = UNITS.get(unit[0]) if unit and "/" not in beside[:12] else None
    if label.kind == "time":
        unit_s = printed_s or label.unit_s or usual_s
        return number * unit_s if unit_s else None
    if label.kind == "rate":
        over = meaning(f"x {beside}").unit_s if "/" in beside or "per" in beside else label.unit_s
        return number / (over or 1.0)
    return number if printed_s is None else None


def printed_whole(value: str) -> bool:
    """Return whether a number has no decimal point, as one that was set and not measured."""
    match = SAYS.value.match(value)
    return match is not None and "." not in match[1]


COMMAND = LABELS["command"]
CLIENTS, SERVERS = tuple(COMMAND["clients"]), tuple(COMMAND["programs"])
PROGRAMS = (*SERVERS, *CLIENTS, *COMMAND["others"])
FLAGS: Mapping[str, str] = {flag: name for name, flags in COMMAND["flags"].items() for flag in flags}
APART = "--enable-dp-attention"  # with which a size of tp is not one of ours


def is_command(line: str) -> bool:
    """Return whether a line is a command.

    >>> is_command("$ vllm serve m -tp 2"), is_command("vllm serve was started: 3")
    (True, False)
    """
    if len(line) > COUNT.longest_command or not (" -" in line or line.endswith("\\") or "serve " in line):
        return False
    return any(program in line for program in PROGRAMS) and SAYS.first.match(line) is not None and ": " not in line


def command_options(command: str) -> dict[str, str]:
    """Return the options of a command under our names. A client with neither rate nor cap sends all requests at once.

    >>> command_options("TP=1 vllm serve org/m --tensor-parallel-size=4")
    {'tp': '4', 'model': 'org/m'}
    """
    options = dict(_flags(command))
    if "model" not in options and (served := SAYS.served.search(command)):
        options["model"] = served[1]
    if any(client in command for client in CLIENTS):
        options = {name: value for name, value in options.items() if name not in SIZES}
        options |= {} if options.keys() & TABLE["pacing"] else TABLE["unpaced"]
    else:
        options.pop("count", "")
    return {name: value for name, value in options.items() if name != "tp" or APART not in command}


def _flags(command: str) -> Iterator[tuple[str, str]]:
    yield from ((FLAGS[name], value.strip("\"'")) for name, value in SAYS.assigned.findall(command) if name in FLAGS)
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else after
        if flag.startswith("-") and flag in FLAGS and value and "$" not in value and not (flag == "-m" and "python" in command):
            yield FLAGS[flag], value


class CommandContext:
    """What all commands until now say: of a server until the next, of a client until its next."""

    def __init__(self) -> None:
        self._server: dict[str, str] = {}
        self._client: dict[str, str] = {}
        self._used = False  # by a result: the next server is another

    def take(self, command: str) -> None:
        options = command_options(command)
        if any(client in command for client in CLIENTS):
            self._client = options
        elif self._used or not self._server:
            self._server, self._used = options, False
        else:  # servers beside each other: what they have in common
            self._server = {name: value for name, value in {**options, **self._server}.items() if options.get(name, value) == value}

    @property
    def facts(self) -> Mapping[str, str]:
        self._used = True
        options = {**self._client, **self._server}
        self._client.pop("count", "")  # the next result may be another run's
        return options


LOADS: Mapping[str, Mapping[str, float]] = LABELS["loads"]
CARRIED = tuple(name for name in LABELS["command"]["flags"] if name not in ("model", "count"))
"""Options of a command that a result may carry too."""
STRONG = frozenset({*METRICS, "requests_per_s", "output_tokens_per_s", "total_tokens_per_s"})
_KEY = re.compile(rb'"([A-Za-z][^"\\]{1,60})"\s{0,4}:')


@dataclass(frozen=True, slots=True)
class Dialect:
    """Whose text it is: the unit of times that have none, and metrics that it calls otherwise (""): not taken."""

    tool: str = "printed"
    unit_s: float | None = None
    latency_s: float | None = None  # of whole requests, whatever their label says
    metrics: Mapping[str, str] = field(default_factory=dict)


def dialect_of(text: str) -> Dialect:
    """Return the dialect of the first mark that a text has."""
    marked: Mapping[str, str] = next((about for mark, about in LABELS["tools"].items() if mark in text), {})
    renamed = {metric: marked[metric] for metric in METRICS if metric in marked}
    return Dialect(marked.get("tool", "printed"), UNITS.get(marked.get("unit", "")), UNITS.get(marked.get("latency", "")), renamed)


@dataclass(slots=True)
class PrintedRun:
    """Figures by field and statistic, in SI units, as they were printed first."""

    dialect: Dialect
    line: int = 0
    name: str = ""
    figures: dict[tuple[str, str], float] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def read(self, label: LabelMeaning, value: str) -> dict[tuple[str, str], float]:
        """Return what a label and its value mean, or nothing where either is not understood."""
        if label.field == "request_rate" and value.strip().lower().startswith("inf"):
            return {("request_rate", ""): math.inf}
        if label.field == "tokens_per_s" and (unit := meaning(value.lstrip("0123456789., "))).field:
            label = LabelMeaning(unit.field, "rate", label.statistics, unit.unit_s)
        named = self._field(label, value)
        if label.field == "e2el" and self.dialect.latency_s:
            label = LabelMeaning("e2el", "time", label.statistics, self.dialect.latency_s)
        return {(named, s): n for s, n in figures(value, label, self.dialect.unit_s) if named}

    def _field(self, label: LabelMeaning, value: str) -> str:
        """Return the field under which a value is kept, which separates measured from set concurrency, and lengths from totals."""
        if label.field == "concurrency" and label.statistics != ("max",) and (label.statistics or not printed_whole(value)):
            return "mean_concurrency"
        if label.kind == "count" and label.field.endswith("_tokens") and label.statistics:
            return label.field.replace("_tokens", "_length")
        return self.dialect.metrics.get(label.field, label.field) if label.kind == "time" else label.field

    def put(self, label: LabelMeaning, value: str) -> bool:
        """Store what a label and its value mean, unless stored before, and return whether they are understood."""
        if label.kind == "string":
            self.strings.setdefault(label.field, value.strip(" `*\"'|="))
            return True
        read = self.read(label, value)
        self.figures = {**read, **self.figures}
        return bool(read)

    @property
    def measured(self) -> int:
        return sum(name in STRONG or name == "tokens_per_s" for name, _ in self.figures)

    @property
    def strong(self) -> bool:
        return any(name in STRONG for name, _ in self.figures) or ("test" in self.strings and self.measured > 0)

    def one(self, name: str) -> float | None:
        """Return a figure other than a request's latency, or its mean if it has statistics."""
        statistics = {s: n for (f, s), n in self.figures.items() if f == name}
        return next((statistics[s] for s in ("", "mean", "max", "median") if s in statistics), None)


def make_benchmark(run: PrintedRun, options: Mapping[str, str]) -> BenchmarkRun:
    """Return a run's result. ``options`` are those of the command above it."""
    stats: dict[str, dict[str, float]] = {}
    for (name, statistic), value in run.figures.items():
        if name in (*METRICS, "queue"):
            stats.setdefault(name, {})[statistic or "mean"] = value
    d: dict[str, object] = {key: run.one(name) for name, key in TABLE["printed"].items()}
    per_s, duration = run.one("requests_per_s"), run.one("duration")
    d["completed"] = next((count for name in ("requests", "all_requests") if (count := run.one(name)) is not None), None)
    if d["completed"] is None and per_s and duration and per_s * duration < math.inf:
        d["completed"] = float(round(per_s * duration))
    lengths = run.one("input_length"), run.one("output_length")
    d |= (split_tokens := _tokens(run, lengths))
    rate = run.one("request_rate")
    if (qps := run.one("qps")) is not None:
        d, rate = (d, rate or qps) if d["request_throughput"] is not None else ({**d, "request_throughput": qps}, rate)
    at, preset = SAYS.at.search(run.name), LOADS.get(run.name.lower(), {})
    named: dict[str, object] = {"max_concurrency" if key == "concurrency" else key: load for key, load in preset.items()}
    load = named | ({"request_rate": at[1]} if at else {})
    model = run.strings.get("model") or options.get("model") or _model_in_path(run.strings.get("path", ""))
    d |= {"model": model, "request_rate": rate, "hardware": run.strings.get("hardware") or run.strings.get("gpu")} | load
    for key in CARRIED:
        d[key] = options.get(key) if d.get(key) is None else d[key]
    facts = {name: f"{n:g}" for key, name in TABLE["printed_facts"].items() if (n := run.one(key)) is not None}
    facts.pop("tokens/s" if split_tokens else "", "")
    facts |= _unanswered_request_options(d["completed"], options) if run.one("failed") is None else {}
    backend = run.strings.get("backend") or run.strings.get("engine", "")
    if tested := SAYS.tested.fullmatch(run.strings.get("test", "")):
        return _llama_bench_result(run, tested[1], int(tested[2]), str(model))
    facts |= ({"backend": backend} if backend else {}) | ({"run": run.name} if run.name else {})
    spread = spread_of(lengths[1], run.figures.get(("output_length", "std")))
    size = run.one("batch")
    batch = int(size) if size and math.isfinite(size) else None
    kind = "latency" if batch and not d.get("max_concurrency") else "serve"
    more = SentLoad(burstiness=math.inf) if run.name.startswith("constant") else SentLoad()
    details = {"notes": tuple(run.notes), "lengths": lengths, "facts": facts, **more}
    return result(run.dialect.tool, kind, d, stats, batch=batch, spread=spread, **details)


def _unanswered_request_options(answered: object, options: Mapping[str, str]) -> dict[str, str]:
    """Return how many requests a command sent, where more than were answered."""
    count = options.get("count", "")
    more = isinstance(answered, int | float) and count.isdecimal() and len(count) < COUNT.most_digits and int(count) > answered
    return {ASKED: count} if more else {}


def _llama_bench_result(run: PrintedRun, what: str, tokens: int, model: str) -> BenchmarkRun:
    """Return the result of a line of llama-bench: so many tokens of a prompt (pp), or generated one after the other (tg)."""
    rate = run.one("tokens_per_s") or math.inf
    stats = {"ttft": {"mean": tokens / rate}} if what == "pp" else {"tpot": {"mean": 1 / rate}}
    lengths = (float(tokens), None) if what == "pp" else (None, float(tokens))
    facts = {"decode tokens/s": f"{rate:g}"} if what == "tg" else {"prompt tokens/s": f"{rate:g}"}
    return result("llama.cpp", "latency", {"model": model}, stats, batch=1, lengths=lengths, facts=facts)


def _tokens(run: PrintedRun, lengths: tuple[float | None, float | None]) -> dict[str, object]:
    """Decide of what an unlabelled token rate is: of all tokens beside an output rate, else as requests and lengths suggest."""
    rate, requests = run.one("tokens_per_s"), run.one("requests_per_s")
    if rate is None or run.one("total_tokens_per_s") is not None:
        return {}
    if run.one("output_tokens_per_s") is not None:
        return {"total_token_throughput": rate}
    for key, length in (("output_throughput", lengths[1]), ("total_token_throughput", sum(n or 0.0 for n in lengths))):
        if requests and length and abs(rate / (requests * length) - 1) <= LEVEL.like_tokens:
            return {key: rate}
    return {}


def _model_in_path(path: str) -> str:
    """Return the folder of a path that looks like a model's name: with a hyphen and a digit."""
    folders = SAYS.named.findall(path[:400])
    return next((name for name in folders if "-" in name and re.search(r"\d", name) and "." not in name[-4:]), "")


def are_labels(head: bytes) -> bool:
    """Return whether keys of JSON are such labels."""
    keys = (match[1].decode(errors="replace") for _, match in zip(range(COUNT.most_keys), _KEY.finditer(head), strict=False))
    return any(meaning(key).measured and meaning(key).field in ("ttft", "tpot", "itl") for key in set(keys))


def of_document(d: JsonObject) -> Iterator[BenchmarkRun]:
    """Yield the result of a document that has at least two times or rates."""
    run = PrintedRun(dialect_of(" ".join(map(str, d))), 0)
    for _, (path, value) in zip(range(COUNT.most_leaves), _leaves(d, (), COUNT.depth), strict=False):
        label = next((label for n in (1, 2, 3) if (label := meaning(" ".join(path[-n:]))).field), None)
        if label:
            run.put(label, str(value))
    if run.measured >= COUNT.least:
        yield make_benchmark(run, {})


def _leaves(value: Json, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)[:60]), depth - 1)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool) and path:
        yield path, value
