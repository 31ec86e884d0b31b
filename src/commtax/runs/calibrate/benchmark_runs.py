"""Results of benchmarks into runs: the question that each answers, and what was measured; or why it cannot be used.

A closed loop is asked as it ran. An open loop has by Little's law as many requests in flight as its answered rate times their mean
latency, and is asked as a closed loop of as many clients: TPOT hangs on how many decode together, TTFT on how they came.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from commtax import catalog
from commtax.files import table
from commtax.judgement.overload import falls_behind
from commtax.question import PHASES
from commtax.runs.calibrate.measurements import MeasuredRun, MeasurementFiles
from commtax.runs.calibrate.said_deployments import SaidDeployment, client_engine
from commtax.runs.evidence.identity import another_chip
from commtax.runs.results.bench_record import HARDWARE, BenchmarkRun
from commtax.runs.results.expected_figures import come_at_once
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import format_figure
from commtax.verbs.closed_loop import simulate
from commtax.verbs.keywords import BillOptions, SimulateOptions

COUNT, LEVEL = thresholds(__name__)
FORMATS: Mapping[str, Mapping[str, str]] = table("runs/calibrate/number_formats.toml")
FLOATS_OF_4_BITS: Sequence[str] = table("runs/calibrate/number_formats.toml")["alike"]["floats"]
PRINT_LIMITS = ("vllm", "sglang")  # tools that print the limits that were set: where they print none, all came at once
MEDIANS = ("median", "p50")
OPEN_LOOP = "open loop: as many clients as were in flight on average (rate times latency), and TPOT alone, for TTFT holds the queue"
ASSUMED_TP = "no file says its tensor-parallel size: tp 1"


@dataclass(frozen=True, slots=True)
class LabelledResult:
    """One result, what its file is called, and all that is said of its deployment."""

    label: str
    result: BenchmarkRun
    said: SaidDeployment

    @property
    def is_batch(self) -> bool:
        """Whether requests came and went together."""
        return self.result.kind == "latency"

    @property
    def clients(self) -> int:
        """Of a closed loop, as the result says or the command that sent it; 0 where none is told."""
        return int(self.result.concurrency or self.said.load.concurrency)


def measured_runs(results: Sequence[LabelledResult], cluster: Cluster) -> MeasurementFiles:
    """The runs of all results of which nothing is missing."""
    checked = [(one, reason_unusable(one)) for one in results]
    usable = [one for one, why in checked if not why]
    tried: dict[tuple[object, ...], str] = {}
    runs, refused, notes = [], [f"{one.label}: {why}" for one, why in checked if why], dict[str, list[str]]()
    for one in usable:
        run = _run(one, cluster)
        if why := reason_unanswerable(run, tried) or ("" if run.measured else "no time per token and none to the first token"):
            refused.append(f"{one.label}: {why}")
            continue
        runs.append(run)
        for note in _notes(one):
            notes.setdefault(note, []).append(one.label)
    texts = tuple(f"{note} ({name_some(labels)})" for note, labels in notes.items())
    return MeasurementFiles(runs=tuple(runs), refused=tuple(refused), notes=texts)


def _notes(one: LabelledResult) -> Iterable[str]:
    if not one.is_batch and _in_flight(one) and not _is_closed(one):
        yield OPEN_LOOP
    if "tp" not in one.said.options:
        yield ASSUMED_TP


def name_some(labels: Sequence[str]) -> str:
    """The first of several names, and how many others there are."""
    more = len(labels) - COUNT.most_named
    return ", ".join(labels[: COUNT.most_named]) + (f" and {more} others" if more > 0 else "")


def refuse_missing(wanted_of: Mapping[str, Sequence[str]], lacking: Sequence[str] = ()) -> None:
    """Ask for all that no file says in one sentence; ``lacking`` are options of the whole call that nobody gave."""
    missing = {label: wanted for label, wanted in wanted_of.items() if wanted}
    names = list(dict.fromkeys((*lacking, *(name for wanted in missing.values() for name in wanted))))
    if not names:
        return
    flags = " ".join(f"--{name}".replace("_", "-") for name in names)
    if not missing:
        where = "say where this was measured with --cluster, such as 8xh100-sxm (commtax catalog clusters)"
        raise Refusal.about(cluster=where)
    quoted = [f"'{label}'" for label in missing]
    who = f"{name_some(quoted)} {'does' if len(missing) == 1 else 'do'} not say"
    raise Refusal(f"{who} {', '.join(names)}; add {flags}", names[0])


def missing_facts(one: LabelledResult) -> list[str]:
    """Options that nobody says of a result, and that its question needs."""
    if reason_unusable(one):
        return []
    prompt, answer = _lengths(one)
    loaded = one.is_batch or one.clients or _rate(one)
    wanted = SimulateOptions(input_len=prompt, output_len=answer, concurrency=1 if loaded else 0)
    batch = BillOptions(batch=_batch(one) if one.is_batch else 1)
    return [name for name, value in {"model": one.said.model, **wanted, **batch}.items() if not value]


def reason_unusable(one: LabelledResult) -> str:
    """Why a result tells nothing of a step; "" where it does."""
    result, said = one.result, one.said
    if result.failed:
        return f"{result.failed} requests failed, and what failed is not in the means"
    if result.accepted > 1:
        return f"{result.accepted:g} tokens per step under speculative decoding, which hides the time of a step"
    if said.drafts or any(note.code == "drafted" for note in result.notes):
        return "tokens are drafted (speculative decoding), which hides the time of a step"
    if invalid := [str(note) for note in result.notes if note.code == "invalid"]:
        return invalid[0]
    if result.stats.get("ttft", {}).get("mean") == 0:
        return "answers were not streamed: it has no time to the first token"
    if one.is_batch:
        return "" if _timed(one, "e2el") or _timed(one, "tpot") else "no mean time of a batch"
    if result.kind == "throughput" and not one.clients:
        return "throughput of a queue is not fitted; latency and serve are"
    return _reason_unloaded(one)


def _reason_unloaded(one: LabelledResult) -> str:
    """Why the load of a served result is not known, or is none that lasts."""
    result = one.result
    if result.tool == "prometheus" and not one.said.load.concurrency:  # its own count is an average over all loads
        return "a server's metrics since its start are of no one load; a result of its benchmark is"
    if _is_closed(one):
        return "" if _timed(one, "tpot") or _timed(one, "ttft") else "no mean time a token"
    rate = _rate(one)
    if not rate and result.request_rate:
        return "all requests at once, and no limit of concurrency: only closed loops (--max-concurrency) and rates are fitted"
    if not rate and result.tool in PRINT_LIMITS:
        return "neither a limit of concurrency nor a request rate is said; where there was one, --concurrency says it"
    if rate and _falls_behind(one):
        answered, sent = (format_figure(each or 0.0) for each in (result.requests_per_s, rate))
        return f"overloaded: {answered} of {sent} requests/s answered, and its queue grows with every request"
    if rate and not _in_flight(one):
        return "does not say how many requests were in flight: neither requests/s nor their latency"
    return "" if _timed(one, "tpot") else "no mean time a token"


def _is_closed(one: LabelledResult) -> bool:
    """Whether clients wait for their answers before they send again: no rate is set, or none that they keep up with."""
    if not one.clients:
        return False
    return not _rate(one) or _falls_behind(one) or come_at_once(replace(one.result, concurrency=float(one.clients)))


def _falls_behind(one: LabelledResult) -> bool:
    """Whether fewer requests are answered than are sent."""
    answered = one.result.requests_per_s
    return bool(answered) and falls_behind(_rate(one), answered or 0.0)


def _rate(one: LabelledResult) -> float:
    """Requests a second that were sent; 0 where no rate was set, or none that limits."""
    rate = one.result.request_rate or one.said.load.request_rate
    return rate if 0 < rate < float("inf") else 0.0


def _in_flight(one: LabelledResult) -> float:
    """By Little's law: requests in flight on average; 0 where it is not told."""
    result = one.result
    if counted := _number(result.facts.get("mean concurrency")):
        return counted
    rate = result.requests_per_s or (result.requests / result.duration_s if result.requests and result.duration_s else 0.0)
    first, each, whole = (result.seconds(metric, "mean") or 0.0 for metric in ("ttft", "tpot", "e2el"))
    parts = first + ((result.output_len or 1.0) - 1) * each if first and each else 0.0
    return rate * (whole or parts)


def _lengths(one: LabelledResult) -> tuple[int, int]:
    """Prompt and output tokens: as the result has them, or as was said of it; 0 where nobody tells."""
    sent = one.said.load
    return round(one.result.input_len or sent.input_len), round(one.result.output_len or sent.output_len)


def _batch(one: LabelledResult) -> int:
    return one.result.batch or one.said.load.batch or one.clients


def _run(one: LabelledResult, cluster: Cluster) -> MeasuredRun:
    prompt, answer = _lengths(one)
    options = cast(SimulateOptions, _deployment(one, cluster))
    # How lengths vary; equal ones are what the engines' own benchmarks send unless told.
    told = one.result.spread
    options |= SimulateOptions(input_len=prompt, output_len=answer, spread=told if told is not None else one.said.load.spread)
    options |= SimulateOptions(prefix_cache=one.result.hit_rate) if one.result.hit_rate else {}
    options |= _load(one)
    metrics: tuple[str, ...] = ("tpot", "ttft") if _is_closed(one) else ("tpot",)
    metrics = ("e2el",) if one.is_batch and _timed(one, "e2el") else metrics
    timed = {metric: found for metric in metrics if (found := _timed(one, metric))}
    extra = 1.0 if one.is_batch or _is_closed(one) else LEVEL.open_loop
    named = {"e2el": "e2e"}
    measured = {named.get(metric, metric): seconds for metric, (seconds, _) in timed.items()}
    noise = {named.get(metric, metric): noise * extra for metric, (_, noise) in timed.items()}
    return MeasuredRun(one.said.model, cluster, options, measured, noise, one.label)


def _load(one: LabelledResult) -> SimulateOptions:
    """Clients, and how many requests they sent; of an open loop no number, for it has no burst at its start."""
    if one.is_batch:
        return SimulateOptions(concurrency=_batch(one), num_prompts=_batch(one))
    if not _is_closed(one):
        return SimulateOptions(concurrency=max(1, round(_in_flight(one))))
    count = one.result.requests
    sent = SimulateOptions(num_prompts=count) if count else SimulateOptions()
    return sent | SimulateOptions(concurrency=min(one.clients, count or one.clients))


def _timed(one: LabelledResult, metric: str) -> tuple[float, float] | None:
    """A mean in seconds and its noise; a median where there is no mean. None where neither is told, or none is a time."""
    stats = one.result.stats.get(metric, {})
    if metric == "tpot" and "mean" not in stats and (derived := _derived_tpot(one.result)):
        return derived, 1.0
    noisy = LEVEL.median_ttft if metric == "ttft" else LEVEL.median_tpot
    said = [(stats[name], 1.0 if name == "mean" else noisy) for name in ("mean", *MEDIANS) if name in stats]
    return next(((s, noise) for s, noise in said if LEVEL.shortest_s <= s < LEVEL.longest_s), None)


def _derived_tpot(result: BenchmarkRun) -> float:
    """From the means of whole requests and of first tokens, where they are all that is told."""
    first, whole = (result.stats.get(metric, {}).get("mean", 0.0) for metric in ("ttft", "e2el"))
    answer = result.output_len or 0.0
    return max(0.0, whole - first) / (answer - 1) if first and whole and answer > 1 else 0.0


def _deployment(one: LabelledResult, cluster: Cluster) -> dict[str, object]:
    """Options of the deployment: as was said, and number formats that the checkpoint does not have by itself."""
    if why := another_chip(one.result.facts.get(HARDWARE, ""), cluster.chip.key):
        raise Refusal(f"'{one.label}': {why}", "cluster")
    facts = one.result.facts
    said = (facts.get("precision") or facts.get("quantization") or "").lower()
    stored = FORMATS["weights"].get(said, "")
    options = deployment_options(one.label, one.said, client_engine(one.result) or PHASES["decode"].engine, stored)
    if cache := FORMATS["cache"].get(facts.get("kv_cache_dtype", "").lower(), ""):
        options.setdefault("kv_dtype", cache)
    return options


def deployment_options(label: str, said: SaidDeployment, usual_engine: str, stored: str = "") -> dict[str, object]:
    """Options of a deployment as was said; ``stored`` is the number format of weights where nobody says it."""
    engine, version = said.engine
    engine = engine or usual_engine
    options: dict[str, object] = {"tp": 1, **said.options, "engine": f"{engine}@{version}" if version else engine}
    try:
        model = catalog.model(said.model)
    except Refusal as refusal:
        raise Refusal(f"'{label}': {refusal}; say --model", "model") from None
    dtype = str(options.pop("dtype", "")) or stored
    if dtype and not _is_stored(dtype, model):
        options["dtype"] = dtype
    return options


def _is_stored(dtype: str, model: Model) -> bool:
    """Whether a checkpoint has weights of a format anyway."""
    kept = {quant.dtype for quant in model.quant.formats} if model.quant else set()
    return dtype in kept or (dtype in FLOATS_OF_4_BITS and bool(kept & set(FLOATS_OF_4_BITS)))


def reason_unanswerable(run: MeasuredRun, tried: dict[tuple[object, ...], str]) -> str:
    """The rule that the question of a run breaks; "" where it has an answer. Each question is asked once."""
    key = (run.model, *sorted((name, str(value)) for name, value in run.options.items()))
    if key not in tried:
        try:
            simulate(run.model, run.cluster, **run.options)
            tried[key] = ""
        except Refusal as refusal:
            tried[key] = str(refusal)
    return tried[key]


def _number(value: object) -> float:
    """A number that may be told as a text; 0 where it is none."""
    try:
        return float(str(value)) if value not in (None, "") else 0.0
    except ValueError:
        return 0.0
