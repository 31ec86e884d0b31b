"""Results of benchmarks into runs, and traces of profilers into steps; or why one of them cannot be used."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from commtax import catalog
from commtax.catalog.hardware import recognise
from commtax.files import table
from commtax.judgement.overload import falls_behind
from commtax.options import taken_by
from commtax.question import PHASES
from commtax.runs.audit.reported_deployments import ReportedDeployment, client_engine
from commtax.runs.calibrate.measurements import MeasuredRun, MeasuredStep, MeasurementFiles
from commtax.runs.evidence.identity import another_chip
from commtax.runs.results.bench_record import HARDWARE, TABLE, BenchmarkRun
from commtax.runs.results.expected_figures import come_at_once
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.claim_check import MOMENT_S, UNTOLD, work_seconds
from commtax.runs.traces.meeting import spans
from commtax.runs.traces.trace import Trace, TraceStep, distinct, middle
from commtax.spec import KERNEL_PACES, Cluster, Model, Workload
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import format_figure, plural
from commtax.verbs.closed_loop import simulate
from commtax.verbs.keywords import BillOptions, SimulateOptions

COUNT, LEVEL = thresholds(__name__)

FORMATS: Mapping[str, Mapping[str, str]] = table("runs/calibrate/number_formats.toml")
FLOATS_OF_4_BITS: Sequence[str] = table("runs/calibrate/number_formats.toml")["alike"]["floats"]
MEDIANS = ("median", "p50")
OPEN_LOOP = "open loop: as many clients as were in flight on average (rate times latency), and TPOT alone, for TTFT holds the queue"
ASSUMED_TP = "no file says its tensor-parallel size: tp 1"


@dataclass(frozen=True, slots=True)
class LabelledResult:
    """One result, what its file is called, and all that is said of its deployment."""

    label: str
    result: BenchmarkRun
    said: ReportedDeployment

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
    if not rate and result.tool in TABLE["print_limits"]:
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


def deployment_options(label: str, said: ReportedDeployment, usual_engine: str, stored: str = "") -> dict[str, object]:
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


BILLED = frozenset(taken_by("bill()"))
SLOWED = "under a profiler the host takes longer than without one: what a trace says of host times counts for less"
UNNAMED = "nobody named its steps, and what repeats may be a layer; engines name theirs, and torch.profiler.record_function any"
ONE_RANK = "one rank of several is here: of each kind of collective the quickest count, for the others may hold waiting"


@dataclass(frozen=True, slots=True)
class LabelledTraces:
    """Traces of one job, one for each rank that is here, what their file is called, and all that is said of their deployment."""

    label: str
    traces: tuple[Trace, ...]
    said: ReportedDeployment


def label_jobs(files: Sequence[tuple[str, Trace]]) -> list[tuple[str, tuple[Trace, ...]]]:
    """Traces by job: those of several ranks together, where each is there once; all others alone."""
    worlds: dict[int, list[tuple[str, Trace]]] = {}
    for name, trace in files:
        worlds.setdefault(trace.world, []).append((name, trace))
    jobs: list[list[tuple[str, Trace]]] = []
    for world, held in worlds.items():
        whole = world > 1 and len({trace.rank for _, trace in held}) == len(held)
        jobs += [held] if whole else [[one] for one in held]
    return [(_job_label([name for name, _ in job]), tuple(distinct([trace for _, trace in job]))) for job in jobs]


def _job_label(names: Sequence[str]) -> str:
    """The file of the first rank, and how many others there are."""
    return names[0] + (f" and {plural(len(names) - 1, 'other rank')}" if len(names) > 1 else "")


def measured_steps(found: Sequence[LabelledTraces], cluster: Cluster) -> MeasurementFiles:
    """The steps of all traces that tell some."""
    steps: list[MeasuredStep] = []
    refused: list[str] = []
    notes: dict[str, list[str]] = {}
    for one in found:
        if why := reason_untold(one):
            refused.append(f"{one.label}: {why}")
            continue
        device = one.traces[0].device
        known = recognise(device.name, device.memory_bytes, device.num_sms) if device else ()
        if known and cluster.chip.key not in known:
            raise Refusal(f"'{one.label}': the trace is of {' or '.join(known)}, not of {cluster.chip.key}", "cluster")
        options = deployment_options(one.label, one.said, PHASES["decode"].engine)
        asked = {name: value for name, value in options.items() if name in BILLED}
        told = _Told(one, TracedJob.of(one.traces), asked)
        made = list(told.steps(cluster)) if told.job.named else []
        steps += made
        why = "no step in it decodes or runs prompts" if told.job.named else UNNAMED
        refused += [] if made else [f"{one.label}: {why}"]
        for note in told.notes(made):
            notes.setdefault(note, []).append(one.label)
    texts = tuple(f"{note} ({name_some(labels)})" for note, labels in notes.items())
    return MeasurementFiles(steps=tuple(steps), refused=tuple(refused), notes=texts)


def missing_step_facts(one: LabelledTraces) -> list[str]:
    """Options that nobody says of a trace's steps, and that their price needs."""
    if reason_untold(one):
        return []
    load, steps = one.said.load, one.traces[0].steps
    described = [s for s in steps if s.phase]
    lengths = bool(described) and all(map(_says_lengths, described))
    wanted = BillOptions(batch=load.batch or len(described), context=load.input_len or int(lengths))
    return [name for name, value in {"model": one.said.model, **wanted}.items() if not value]


def _says_lengths(step: TraceStep) -> bool:
    """Whether a step's name tells what its sequences see, and how long its prompts are."""
    return bool((step.cached_tokens or not step.decode_seqs) and (step.prefill_tokens or not step.prefill_seqs))


def reason_untold(one: LabelledTraces) -> str:
    """Why traces tell nothing of a served step; "" where they do."""
    head = one.traces[0]
    described = any(s.phase not in ("", "train") for s in head.steps)
    if head.training and not described:
        return "a trace of training (a backward pass or an optimizer ran); steps of serving are calibrated on"
    if cut := next((trace.partial for trace in one.traces if trace.partial), ""):
        return f"not whole, and its last steps are missing or cut: {cut}"
    if not head.on_device:
        return "the trace has no device: its times are the host's, profiler included"
    if any(note.code == "simulated" for note in head.notes):
        return "written by commtax: a prediction, and no measurement"
    if one.said.drafts:
        return "tokens are drafted (speculative decoding), and a step holds the drafts' kernels, too"
    if int(str(one.said.options.get("pp", 1))) > 1:
        return "a rank of a pipeline holds its own stage's kernels only"
    return ""


@dataclass(frozen=True, slots=True)
class _Told:
    """A job with what is said of it."""

    given: LabelledTraces
    job: TracedJob
    options: Mapping[str, object]

    def steps(self, cluster: Cluster) -> Iterator[MeasuredStep]:
        """A typical step that decodes, and one with prompts, as far as there are some."""
        said = self.given.said
        for work, chosen in self._kinds():
            parts, noise = self._parts(chosen)
            label = self.given.label + (" (prompts)" if work.prefill_seqs else "")
            apart = bool(said.options.get("disaggregated"))
            yield MeasuredStep(said.model, cluster, self.options, work, parts, noise, label, apart)

    def _kinds(self) -> Iterator[tuple[Workload, list[list[TraceStep]]]]:
        """The commonest steps of both kinds, of each rank; prompts are rarely of one length, and one step tells."""
        head = [s for s in self.job.traces[0].steps if s.phase != "train"]
        for prompts in (False, True):
            alike = Counter((s.decode_seqs, s.prefill_seqs, s.prefill_tokens) for s in head if bool(s.prefill_seqs) is prompts)
            if not alike:
                continue
            common = alike.most_common(1)[0][0]
            chosen = [
                [s for s in t.steps if (s.decode_seqs, s.prefill_seqs, s.prefill_tokens) == common and s.phase != "train"]
                for t in self.job.traces
            ]
            if all(chosen):
                kept = [sorted(middle(steps), key=lambda s: s.start_s) for steps in chosen]
                yield self._work(kept[0]), kept

    def _work(self, steps: Sequence[TraceStep]) -> Workload:
        """What a step computes: as its name tells, else as was said."""
        load, first = self.given.said.load, steps[0]
        seqs = first.decode_seqs if first.phase else load.batch
        cached = float(np.mean([s.cached_tokens for s in steps])) or float(seqs * load.input_len)
        past = float(np.mean([s.past_tokens for s in steps]))
        tokens = first.prefill_tokens or first.prefill_seqs * load.input_len
        return Workload(seqs, cached, first.prefill_seqs, tokens, past)

    def _parts(self, chosen: Sequence[Sequence[TraceStep]]) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each part of a step, the mean of the ranks, and what its scatter is over the usual one."""
        places = range(len(chosen))
        ran = [work_seconds(self.job, place, chosen[place]) for place in places]
        parts = {kind: float(np.mean([one.get(kind, 0.0) for one in ran])) for kind in (*KERNEL_PACES, UNTOLD)}
        kernels = sum(parts.values())
        if parts.pop(UNTOLD) > LEVEL.untold * kernels:
            parts = {"kernels": kernels}
        sent = [self._sent_s(place, chosen[place]) for place in places]
        parts["collectives"] = float(np.mean(sent))
        parts["host"] = float(np.mean([self._host_s(place, chosen[place]) for place in places]))
        noise = {"collectives": LEVEL.one_rank} if self._alone else {}
        return {name: seconds for name, seconds in parts.items() if seconds > 0}, noise

    @property
    def _alone(self) -> bool:
        """Whether its collectives met ranks that are not here."""
        return bool(self.job.traces[0].collectives) and self.job.meetings is None

    def _sent_s(self, place: int, steps: Sequence[TraceStep]) -> float:
        """Communication of a step that no compute hides and nobody waits in."""
        trace, inside = self.job.traces[place], {s.index for s in steps}
        mine = np.array([i for i, c in enumerate(trace.collectives) if c.step in inside], int)
        if not len(mine):
            return 0.0
        start, end = (x[mine] for x in spans(trace))
        lasted, waited = end - start, self.job.waiting[place][mine]
        kinds = [(c.op, c.nbytes, c.ranks) for c in (trace.collectives[i] for i in mine.tolist())]
        quick = {kind: np.quantile(lasted[[k == kind for k in kinds]], LEVEL.quickest) for kind in dict.fromkeys(kinds)}
        wire = np.where(np.isnan(waited), np.minimum(lasted, [quick[kind] for kind in kinds]), lasted - waited)
        hidden = self.job.covered[place].compute.within(start, end)
        return float((wire * np.clip(1 - hidden / np.maximum(lasted, LEVEL.shortest_collective_s), 0.0, 1.0)).sum()) / len(steps)

    def _host_s(self, place: int, steps: Sequence[TraceStep]) -> float:
        """What a step has beside kernels and collectives, where another follows it at once: 0 where that cannot be told."""
        # Steps that decode and did not come from graphs, as they are served, tell nothing of a served host.
        prompts, eager = any(s.prefill_seqs for s in steps), bool(self.options.get("eager"))
        if not (prompts or eager or self.job.traces[0].replayed > LEVEL.replayed):
            return 0.0
        begins = {s.start_s for s in self.job.traces[place].steps}
        whole = [s for s in steps if s.end_s in begins]
        if not whole:
            return 0.0
        return min(self._rest_s(place, s) for s in whole)  # a profiler adds to it, and more to some

    def _rest_s(self, place: int, step: TraceStep) -> float:
        """What a device rests in a step, without the moments between kernels."""
        busy = self.job.covered[place].either
        starts, lengths = busy.gaps
        inside = (starts >= step.start_s) & (starts < step.end_s) & (lengths <= MOMENT_S)
        return step.seconds - busy.seconds(step.start_s, step.end_s) - float(lengths[inside].sum())

    def notes(self, made: Iterable[MeasuredStep]) -> Iterator[str]:
        parts = {name for step in made for name in step.parts}
        if "host" in parts:
            yield SLOWED
        elif parts:
            yield "no host time is told: its steps stand alone, or were launched without the graphs that serve them"
        if "kernels" in parts:
            yield "names of its kernels do not tell what they do: they are taken together"
        if self._alone and "collectives" in parts:
            yield ONE_RANK
        if "tp" not in self.given.said.options:
            yield ASSUMED_TP
