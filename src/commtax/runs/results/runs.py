"""One run as its labels tell it, and the result that it makes.

Labels may be keys of any tool's JSON: ``time_to_first_token: {mean: …}``, ``Average latency (s)``, ``results_ttft_s_mean``.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from commtax.files import Json, JsonObject
from commtax.runs.results.bench_record import ASKED, METRICS, TABLE, BenchmarkRun, SentLoad, result, spread_of
from commtax.runs.results.labels import LABELS, UNITS, LabelMeaning, figures, meaning, printed_whole
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.wordings import patterns

LOADS: Mapping[str, Mapping[str, float]] = LABELS["loads"]
CARRIED = tuple(name for name in LABELS["command"]["flags"] if name not in ("model", "count"))
"""What a command says that a result may carry too."""
COUNT, LEVEL = thresholds(__name__)
STRONG = frozenset({*METRICS, "requests_per_s", "output_tokens_per_s", "total_tokens_per_s"})
SAYS = patterns(__name__)
_KEY = re.compile(rb'"([A-Za-z][^"\\]{1,60})"\s{0,4}:')


@dataclass(frozen=True, slots=True)
class Dialect:
    """Whose text it is: the unit of times that have none, and metrics that it calls otherwise (""): not taken."""

    tool: str = "printed"
    unit_s: float | None = None
    latency_s: float | None = None  # of whole requests, whatever their label says
    metrics: Mapping[str, str] = field(default_factory=dict)


def dialect_of(text: str) -> Dialect:
    """By the first mark that a text has."""
    told: Mapping[str, str] = next((about for mark, about in LABELS["tools"].items() if mark in text), {})
    renamed = {metric: told[metric] for metric in METRICS if metric in told}
    return Dialect(told.get("tool", "printed"), UNITS.get(told.get("unit", "")), UNITS.get(told.get("latency", "")), renamed)


@dataclass(slots=True)
class PrintedRun:
    """Figures by field and statistic, in SI units, as they were printed first."""

    dialect: Dialect
    line: int = 0
    name: str = ""
    figures: dict[tuple[str, str], float] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def read(self, said: LabelMeaning, value: str) -> dict[tuple[str, str], float]:
        """What a label and its value say; nothing where either is not understood."""
        if said.field == "request_rate" and value.strip().lower().startswith("inf"):
            return {("request_rate", ""): math.inf}
        if said.field == "tokens_per_s" and (own := meaning(value.lstrip("0123456789., "))).field:
            said = LabelMeaning(own.field, "rate", said.statistics, own.unit_s)
        named = self._field(said, value)
        if said.field == "e2el" and self.dialect.latency_s:
            said = LabelMeaning("e2el", "time", said.statistics, self.dialect.latency_s)
        return {(named, s): n for s, n in figures(value, said, self.dialect.unit_s) if named}

    def _field(self, said: LabelMeaning, value: str) -> str:
        """A field as it is kept: what was measured of a number that may also be set stands apart, and a length is no total."""
        if said.field == "concurrency" and said.statistics != ("max",) and (said.statistics or not printed_whole(value)):
            return "mean_concurrency"
        if said.kind == "count" and said.field.endswith("_tokens") and said.statistics:
            return said.field.replace("_tokens", "_length")
        return self.dialect.metrics.get(said.field, said.field) if said.kind == "time" else said.field

    def put(self, said: LabelMeaning, value: str) -> bool:
        """Whether a label and its value are understood; what was said first stays."""
        if said.kind == "string":
            self.strings.setdefault(said.field, value.strip(" `*\"'|="))
            return True
        read = self.read(said, value)
        self.figures = {**read, **self.figures}
        return bool(read)

    @property
    def measured(self) -> int:
        return sum(name in STRONG or name == "tokens_per_s" for name, _ in self.figures)

    @property
    def strong(self) -> bool:
        return any(name in STRONG for name, _ in self.figures) or ("test" in self.strings and self.measured > 0)

    def one(self, name: str) -> float | None:
        """A figure that is no time of a request: its mean, where it has statistics."""
        told = {s: n for (f, s), n in self.figures.items() if f == name}
        return next((told[s] for s in ("", "mean", "max", "median") if s in told), None)


def make_benchmark(run: PrintedRun, told: Mapping[str, str]) -> BenchmarkRun:
    """A run's result; ``told`` is what a command above it says."""
    stats: dict[str, dict[str, float]] = {}
    for (name, statistic), value in run.figures.items():
        if name in (*METRICS, "queue"):
            stats.setdefault(name, {})[statistic or "mean"] = value
    d: dict[str, object] = {key: run.one(name) for name, key in TABLE["printed"].items()}
    d["completed"] = _requests(run)
    lengths = run.one("input_length"), run.one("output_length")
    d |= (told_apart := _tokens(run, lengths))
    rate = run.one("request_rate")
    if (asked := run.one("qps")) is not None:
        d, rate = (d, rate or asked) if d["request_throughput"] is not None else ({**d, "request_throughput": asked}, rate)
    at, known = SAYS.at.search(run.name), LOADS.get(run.name.lower(), {})
    named: dict[str, object] = {"max_concurrency" if key == "concurrency" else key: load for key, load in known.items()}
    load = named | ({"request_rate": at[1]} if at else {})
    model = run.strings.get("model") or told.get("model") or _model_in_path(run.strings.get("path", ""))
    d |= {"model": model, "request_rate": rate, "hardware": run.strings.get("hardware") or run.strings.get("gpu")} | load
    for key in CARRIED:
        d[key] = told.get(key) if d.get(key) is None else d[key]
    facts = {name: f"{n:g}" for key, name in TABLE["printed_facts"].items() if (n := run.one(key)) is not None}
    facts.pop("tokens/s" if told_apart else "", "")
    facts |= _unanswered_request_options(d["completed"], told) if run.one("failed") is None else {}
    backend = run.strings.get("backend") or run.strings.get("engine", "")
    if tested := SAYS.tested.fullmatch(run.strings.get("test", "")):
        return _llama_bench_result(run, tested[1], int(tested[2]), str(model))
    facts |= ({"backend": backend} if backend else {}) | ({"run": run.name} if run.name else {})
    spread = spread_of(lengths[1], run.figures.get(("output_length", "std")))
    kind = "latency" if (batch := _batch(run)) and not d.get("max_concurrency") else "serve"
    more = SentLoad(burstiness=math.inf) if run.name.startswith("constant") else SentLoad()
    told_of = {"notes": tuple(run.notes), "lengths": lengths, "facts": facts, **more}
    return result(run.dialect.tool, kind, d, stats, batch=batch, spread=spread, **told_of)


def _unanswered_request_options(answered: object, told: Mapping[str, str]) -> dict[str, str]:
    """How many requests a command asked for, where it is more than were answered."""
    count = told.get("count", "")
    more = isinstance(answered, int | float) and count.isdecimal() and len(count) < COUNT.most_digits and int(count) > answered
    return {ASKED: count} if more else {}


def _llama_bench_result(run: PrintedRun, what: str, tokens: int, model: str) -> BenchmarkRun:
    """A line of llama-bench: so many tokens of a prompt (pp), or generated one after the other (tg)."""
    rate = run.one("tokens_per_s") or math.inf
    stats = {"ttft": {"mean": tokens / rate}} if what == "pp" else {"tpot": {"mean": 1 / rate}}
    lengths = (float(tokens), None) if what == "pp" else (None, float(tokens))
    facts = {"decode tokens/s": f"{rate:g}"} if what == "tg" else {"prompt tokens/s": f"{rate:g}"}
    return result("llama.cpp", "latency", {"model": model}, stats, batch=1, lengths=lengths, facts=facts)


def _requests(run: PrintedRun) -> float | None:
    """Those that were answered: as told, all of them, or as their rate and the duration make them."""
    rate, duration = run.one("requests_per_s"), run.one("duration")
    counted = next((n for name in ("requests", "all_requests") if (n := run.one(name)) is not None), None)
    return float(round(rate * duration)) if counted is None and rate and duration and rate * duration < math.inf else counted


def _batch(run: PrintedRun) -> int | None:
    return int(batch) if (batch := run.one("batch")) and math.isfinite(batch) else None


def _tokens(run: PrintedRun, lengths: tuple[float | None, float | None]) -> dict[str, object]:
    """Tokens a second of which nobody says which: all beside output alone, else as requests and their lengths make them."""
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
    """The folder of a result that is called as a model may be: with a size or a hyphen in it."""
    folders = SAYS.named.findall(path[:400])
    return next((name for name in folders if "-" in name and re.search(r"\d", name) and "." not in name[-4:]), "")


def are_labels(head: bytes) -> bool:
    """Whether keys of JSON are such labels."""
    keys = (match[1].decode(errors="replace") for _, match in zip(range(COUNT.most_keys), _KEY.finditer(head), strict=False))
    return any(meaning(key).measured and meaning(key).field in ("ttft", "tpot", "itl") for key in set(keys))


def of_document(d: JsonObject) -> Iterator[BenchmarkRun]:
    """The result of a document that has at least two times or rates."""
    run = PrintedRun(dialect_of(" ".join(map(str, d))), 0)
    for _, (path, value) in zip(range(COUNT.most_leaves), _leaves(d, (), COUNT.depth), strict=False):
        said = next((said for n in (1, 2, 3) if (said := meaning(" ".join(path[-n:]))).field), None)
        if said:
            run.put(said, str(value))
    if run.measured >= COUNT.least:
        yield make_benchmark(run, {})


def _leaves(value: Json, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, dict) and depth:
        for key, held in value.items():
            yield from _leaves(held, (*path, str(key)[:60]), depth - 1)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool) and path:
        yield path, value
