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
from commtax.spec import KERNEL_PACES, Cluster, Workload
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
    """One result with its file's label and all that is reported of its deployment."""

    label: str
    result: BenchmarkRun
    reported: ReportedDeployment

    @property
    def is_batch(self) -> bool:
        """Whether requests came and went together."""
        return self.result.kind == "latency"

    @property
    def clients(self) -> int:
        """The clients of a closed loop, by the result or its command, 0 if neither states them."""
        return int(self.result.concurrency or self.reported.load.concurrency)


def measured_runs(results: Sequence[LabelledResult], cluster: Cluster) -> MeasurementFiles:
    """Return the runs of all results that lack nothing."""
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
    if "tp" not in one.reported.options:
        yield ASSUMED_TP


def name_some(labels: Sequence[str]) -> str:
    """Name the first few labels, and count the others."""
    more = len(labels) - COUNT.most_named
    return ", ".join(labels[: COUNT.most_named]) + (f" and {more} others" if more > 0 else "")


def refuse_missing(wanted_of: Mapping[str, Sequence[str]], lacking: Sequence[str] = ()) -> None:
    """Ask in one sentence for all that no file states, and for options of the call that are ``lacking``."""
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
    """Return the options that a result's question needs and nobody states."""
    if reason_unusable(one):
        return []
    prompt, answer = _lengths(one)
    loaded = one.is_batch or one.clients or _rate(one)
    wanted = SimulateOptions(input_len=prompt, output_len=answer, concurrency=1 if loaded else 0)
    batch = BillOptions(batch=_batch(one) if one.is_batch else 1)
    return [name for name, value in {"model": one.reported.model, **wanted, **batch}.items() if not value]


def reason_unusable(one: LabelledResult) -> str:
    """Explain why a result teaches nothing about a step, "" if it does."""
    result, reported = one.result, one.reported
    if result.failed:
        return f"{result.failed} requests failed, and what failed is not in the means"
    if result.accepted > 1:
        return f"{result.accepted:g} tokens per step under speculative decoding, which hides the time of a step"
    if reported.drafts or any(note.code == "drafted" for note in result.notes):
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
    """Explain why a served result has no known and steady load, "" if it has one."""
    result = one.result
    if result.tool == "prometheus" and not one.reported.load.concurrency:  # its own count is an average over all loads
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
    """Return whether clients wait for answers before they send again: no rate is set, or none that is kept up with."""
    if not one.clients:
        return False
    return not _rate(one) or _falls_behind(one) or come_at_once(replace(one.result, concurrency=float(one.clients)))


def _falls_behind(one: LabelledResult) -> bool:
    answered = one.result.requests_per_s
    return bool(answered) and falls_behind(_rate(one), answered or 0.0)


def _rate(one: LabelledResult) -> float:
    """Return the request rate per second, 0 if none is set or none that limits."""
    rate = one.result.request_rate or one.reported.load.request_rate
    return rate if 0 < rate < float("inf") else 0.0


def _in_flight(one: LabelledResult) -> float:
    """Return the mean number of requests in flight by Little's law, 0 if it cannot be computed."""
    result = one.result
    if counted := _number(result.facts.get("mean concurrency")):
        return counted
    rate = result.requests_per_s or (result.requests / result.duration_s if result.requests and result.duration_s else 0.0)
    first, each, whole = (result.seconds(metric, "mean") or 0.0 for metric in ("ttft", "tpot", "e2el"))
    parts = first + ((result.output_len or 1.0) - 1) * each if first and each else 0.0
    return rate * (whole or parts)


def _lengths(one: LabelledResult) -> tuple[int, int]:
    """Return prompt and output tokens, by the result or its command, 0 where neither states them."""
    sent = one.reported.load
    return round(one.result.input_len or sent.input_len), round(one.result.output_len or sent.output_len)


def _batch(one: LabelledResult) -> int:
    return one.result.batch or one.reported.load.batch or one.clients


def _run(one: LabelledResult, cluster: Cluster) -> MeasuredRun:
    facts, (prompt, answer) = one.result.facts, _lengths(one)
    if why := another_chip(facts.get(HARDWARE, ""), cluster.chip.key):
        raise Refusal(f"'{one.label}': {why}", "cluster")
    stored = FORMATS["weights"].get((facts.get("precision") or facts.get("quantization") or "").lower(), "")
    usual_engine = client_engine(one.result) or PHASES["decode"].engine
    options = cast(SimulateOptions, deployment_options(one.label, one.reported, usual_engine, stored))
    if cache := FORMATS["cache"].get(facts.get("kv_cache_dtype", "").lower(), ""):
        options.setdefault("kv_dtype", cache)
    # How lengths vary; equal ones are what the engines' own benchmarks send unless told.
    spread = one.reported.load.spread if one.result.spread is None else one.result.spread
    options |= SimulateOptions(input_len=prompt, output_len=answer, spread=spread)
    options |= SimulateOptions(prefix_cache=one.result.hit_rate) if one.result.hit_rate else {}
    options |= _load(one)
    metrics = ["e2el"] if one.is_batch and _timed(one, "e2el") else ["tpot", "ttft"] if _is_closed(one) else ["tpot"]
    timed = {metric: timing for metric in metrics if (timing := _timed(one, metric))}
    extra = 1.0 if one.is_batch or _is_closed(one) else LEVEL.open_loop
    timed = {"e2e" if metric == "e2el" else metric: timing for metric, timing in timed.items()}
    measured = {metric: seconds for metric, (seconds, _) in timed.items()}
    noise = {metric: noise * extra for metric, (_, noise) in timed.items()}
    return MeasuredRun(one.reported.model, cluster, options, measured, noise, one.label)


def _load(one: LabelledResult) -> SimulateOptions:
    """Return the clients and their number of requests, which is omitted for an open loop without a burst at its start."""
    if one.is_batch:
        return SimulateOptions(concurrency=_batch(one), num_prompts=_batch(one))
    if not _is_closed(one):
        return SimulateOptions(concurrency=max(1, round(_in_flight(one))))
    count = one.result.requests
    sent = SimulateOptions(num_prompts=count) if count else SimulateOptions()
    return sent | SimulateOptions(concurrency=min(one.clients, count or one.clients))


def _timed(one: LabelledResult, metric: str) -> tuple[float, float] | None:
    """Return a mean (else a median) in seconds with its relative noise, or None if there is no plausible time."""
    stats = one.result.stats.get(metric, {})
    if metric == "tpot" and "mean" not in stats:  # the means of whole requests and of first tokens may tell it
        first, whole = (one.result.stats.get(name, {}).get("mean", 0.0) for name in ("ttft", "e2el"))
        answer = one.result.output_len or 0.0
        if first and whole > first and answer > 1:
            return (whole - first) / (answer - 1), 1.0
    noisy = LEVEL.median_ttft if metric == "ttft" else LEVEL.median_tpot
    means = [(stats[name], 1.0 if name == "mean" else noisy) for name in ("mean", *MEDIANS) if name in stats]
    return next(((s, noise) for s, noise in means if LEVEL.shortest_s <= s < LEVEL.longest_s), None)


def deployment_options(label: str, reported: ReportedDeployment, usual_engine: str, stored: str = "") -> dict[str, object]:
    """Return a deployment's options as reported, with ``stored`` as the weights' format where nobody states it."""
    engine, version = reported.engine
    engine = engine or usual_engine
    options: dict[str, object] = {"tp": 1, **reported.options, "engine": f"{engine}@{version}" if version else engine}
    try:
        model = catalog.model(reported.model)
    except Refusal as refusal:
        raise Refusal(f"'{label}': {refusal}; say --model", "model") from None
    dtype = str(options.pop("dtype", "")) or stored
    in_checkpoint = {quant.dtype for quant in model.quant.formats} if model.quant else set()
    alike = in_checkpoint & set(FLOATS_OF_4_BITS) if dtype in FLOATS_OF_4_BITS else in_checkpoint & {dtype}
    if dtype and not alike:
        options["dtype"] = dtype
    return options


def reason_unanswerable(run: MeasuredRun, tried: dict[tuple[object, ...], str]) -> str:
    """Return the rule that a run's question breaks, "" if it has an answer, and ask each question once."""
    key = (run.model, *sorted((name, str(value)) for name, value in run.options.items()))
    if key not in tried:
        try:
            simulate(run.model, run.cluster, **run.options)
            tried[key] = ""
        except Refusal as refusal:
            tried[key] = str(refusal)
    return tried[key]


def _number(value: object) -> float:
    """Parse a number that may be stated as a text, 0 if it is none."""
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
    """Traces of one job, one for each rank at hand, with their file's label and all that is reported of their deployment."""

    label: str
    traces: tuple[Trace, ...]
    reported: ReportedDeployment


def label_jobs(files: Sequence[tuple[str, Trace]]) -> list[tuple[str, tuple[Trace, ...]]]:
    """Group traces by job: several ranks together if each occurs once, all others alone."""
    worlds: dict[int, list[tuple[str, Trace]]] = {}
    for name, trace in files:
        worlds.setdefault(trace.world, []).append((name, trace))
    jobs: list[list[tuple[str, Trace]]] = []
    for world, of_world in worlds.items():
        whole = world > 1 and len({trace.rank for _, trace in of_world}) == len(of_world)
        jobs += [of_world] if whole else [[one] for one in of_world]
    more = (f" and {plural(len(job) - 1, 'other rank')}" if len(job) > 1 else "" for job in jobs)
    return [(job[0][0] + others, tuple(distinct([trace for _, trace in job]))) for job, others in zip(jobs, more, strict=True)]


def measured_steps(jobs: Sequence[LabelledTraces], cluster: Cluster) -> MeasurementFiles:
    """Return the measured steps of all traces, with the traces that were refused and why."""
    steps: list[MeasuredStep] = []
    refused: list[str] = []
    notes: dict[str, list[str]] = {}
    for one in jobs:
        if why := reason_untold(one):
            refused.append(f"{one.label}: {why}")
            continue
        device = one.traces[0].device
        chips = recognise(device.name, device.memory_bytes, device.num_sms) if device else ()
        if chips and cluster.chip.key not in chips:
            raise Refusal(f"'{one.label}': the trace is of {' or '.join(chips)}, not of {cluster.chip.key}", "cluster")
        options = deployment_options(one.label, one.reported, PHASES["decode"].engine)
        billed = {name: value for name, value in options.items() if name in BILLED}
        traced = _TracedDeployment(one, TracedJob.of(one.traces), billed)
        made = list(traced.steps(cluster)) if traced.job.named else []
        steps += made
        why = "no step in it decodes or runs prompts" if traced.job.named else UNNAMED
        refused += [] if made else [f"{one.label}: {why}"]
        for note in traced.notes(made):
            notes.setdefault(note, []).append(one.label)
    texts = tuple(f"{note} ({name_some(labels)})" for note, labels in notes.items())
    return MeasurementFiles(steps=tuple(steps), refused=tuple(refused), notes=texts)


def missing_step_facts(one: LabelledTraces) -> list[str]:
    """Return the options that the price of a trace's steps needs and nobody states."""
    if reason_untold(one):
        return []
    load, steps = one.reported.load, one.traces[0].steps
    described = [s for s in steps if s.phase]
    cached = all(s.cached_tokens or not s.decode_seqs for s in described)
    lengths = bool(described) and cached and all(s.prefill_tokens or not s.prefill_seqs for s in described)
    wanted = BillOptions(batch=load.batch or len(described), context=load.input_len or int(lengths))
    return [name for name, value in {"model": one.reported.model, **wanted}.items() if not value]


def reason_untold(one: LabelledTraces) -> str:
    """Explain why traces teach nothing about a served step, "" if they do."""
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
    if one.reported.drafts:
        return "tokens are drafted (speculative decoding), and a step holds the drafts' kernels, too"
    if int(str(one.reported.options.get("pp", 1))) > 1:
        return "a rank of a pipeline holds its own stage's kernels only"
    return ""


@dataclass(frozen=True, slots=True)
class _TracedDeployment:
    """A traced job with what is reported of its deployment."""

    source: LabelledTraces
    job: TracedJob
    options: Mapping[str, object]

    def steps(self, cluster: Cluster) -> Iterator[MeasuredStep]:
        """Yield a typical decode step and one with prompts, as far as there are any."""
        reported = self.source.reported
        for work, chosen in self._kinds():
            places = range(len(chosen))
            ran = [work_seconds(self.job, place, chosen[place]) for place in places]
            pieces = {kind: float(np.mean([one.get(kind, 0.0) for one in ran])) for kind in (*KERNEL_PACES, UNTOLD)}
            kernels = sum(pieces.values())
            if pieces.pop(UNTOLD) > LEVEL.untold * kernels:
                pieces = {"kernels": kernels}
            sent = [self._sent_s(place, chosen[place]) for place in places]
            pieces["collectives"] = float(np.mean(sent))
            pieces["host"] = float(np.mean([self._host_s(place, chosen[place]) for place in places]))
            scatter = {"collectives": LEVEL.one_rank} if self._alone else {}
            parts, noise = {name: seconds for name, seconds in pieces.items() if seconds > 0}, scatter
            label = self.source.label + (" (prompts)" if work.prefill_seqs else "")
            apart = bool(reported.options.get("disaggregated"))
            yield MeasuredStep(reported.model, cluster, self.options, work, parts, noise, label, apart)

    def _kinds(self) -> Iterator[tuple[Workload, list[list[TraceStep]]]]:
        """Yield the commonest steps of both kinds on each rank. One step suffices, since prompts rarely share a length."""
        head = [s for s in self.job.traces[0].steps if s.phase != "train"]
        for prompts in (False, True):
            alike = Counter((s.decode_seqs, s.prefill_seqs, s.prefill_tokens) for s in head if bool(s.prefill_seqs) is prompts)
            if not alike:
                continue
            common = alike.most_common(1)[0][0]
            served = [[s for s in t.steps if s.phase != "train"] for t in self.job.traces]
            chosen = [[s for s in steps if (s.decode_seqs, s.prefill_seqs, s.prefill_tokens) == common] for steps in served]
            if all(chosen):
                kept = [sorted(middle(steps), key=lambda s: s.start_s) for steps in chosen]
                chosen_steps = kept[0]
                load, first = self.source.reported.load, chosen_steps[0]
                seqs = first.decode_seqs if first.phase else load.batch
                cached = float(np.mean([s.cached_tokens for s in chosen_steps])) or float(seqs * load.input_len)
                past = float(np.mean([s.past_tokens for s in chosen_steps]))
                tokens = first.prefill_tokens or first.prefill_seqs * load.input_len
                yield Workload(seqs, cached, first.prefill_seqs, tokens, past), kept

    @property
    def _alone(self) -> bool:
        """Whether its collectives met ranks whose traces are missing."""
        return bool(self.job.traces[0].collectives) and self.job.meetings is None

    def _sent_s(self, place: int, steps: Sequence[TraceStep]) -> float:
        """Return a step's communication that no compute hides, without waiting."""
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
        """Return a step's time beside kernels and collectives, 0 unless another step follows at once."""
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
        """Return the idle time of a device in a step, without the moments between kernels."""
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
        if "tp" not in self.source.reported.options:
            yield ASSUMED_TP
