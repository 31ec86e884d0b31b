"""Traces of profilers into steps: what ran in a typical one, and the seconds of each kind of its work; or why they tell nothing.

Kernels are told apart by their names, collectives lose what they wait for other ranks, and the host has what is left between a
step's beginning and the next one's. A step that decodes is told beside one with prompts, where a trace holds both.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.catalog.hardware import recognise
from commtax.options import taken_by
from commtax.question import PHASES
from commtax.runs.calibrate.benchmark_runs import ASSUMED_TP, deployment_options, name_some
from commtax.runs.calibrate.measurements import MeasuredStep, MeasurementFiles
from commtax.runs.calibrate.said_deployments import SaidDeployment
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.meeting import spans
from commtax.runs.traces.trace import Trace, TraceStep, distinct, middle
from commtax.runs.traces.work_kinds import MOMENT_S, UNTOLD, work_seconds
from commtax.spec import KERNEL_PACES, Cluster, Workload
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import plural
from commtax.verbs.keywords import BillOptions

COUNT, LEVEL = thresholds(__name__)
BILLED = frozenset(taken_by("bill()"))
SLOWED = "under a profiler the host takes longer than without one: what a trace says of host times counts for less"
UNNAMED = "nobody named its steps, and what repeats may be a layer; engines name theirs, and torch.profiler.record_function any"
ONE_RANK = "one rank of several is here: of each kind of collective the quickest count, for the others may hold waiting"


@dataclass(frozen=True, slots=True)
class LabelledTraces:
    """Traces of one job, one for each rank that is here, what their file is called, and all that is said of their deployment."""

    label: str
    traces: tuple[Trace, ...]
    said: SaidDeployment


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


def missing_facts(one: LabelledTraces) -> list[str]:
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
        return float((wire * np.clip(1 - hidden / np.maximum(lasted, LEVEL.shortest_s), 0.0, 1.0)).sum()) / len(steps)

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
