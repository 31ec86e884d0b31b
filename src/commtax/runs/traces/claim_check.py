"""Traces of a job against what was claimed: what is sent (counts and bytes, exactly) and what it should take (seconds)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import numpy as np

from commtax.catalog.hardware import MEMORY_SPREAD, is_like, recognise
from commtax.ledger import Line
from commtax.runs.evidence.collective_names import UNNAMED
from commtax.runs.evidence.finding import AGREE, DISAGREE, REPEATED, UNKNOWN, WHOLE, Claim, Finding, Section, Usage
from commtax.runs.traces.accounts import TracedJob, named_work
from commtax.runs.traces.trace import KINDS, Collective, Device, Trace, TraceStep, holding, middle, named_steps, timeline_of
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.timeline import Column, Timeline
from commtax.units import format_bytes, format_seconds, plural
from commtax.verbs.billing import StepBill, question_traffic
from commtax.verbs.explained_step import ENDS, layer_of
from commtax.verbs.settling import settle
from commtax.wordings import patterns

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)


def layer_notes(job: TracedJob) -> Iterator[Note]:
    """Note what the counts of a usual step consist of: two all-reduces a layer, or gathers and scatters of sharded weights."""
    trace = job.traces[0]
    if not trace.steps or trace.steps[0].name == WHOLE:
        return
    counts = per_step(job)
    steps = len(job.traces[0].steps)
    work = {name: count / steps for (name, kind), (count, _) in named_work(job, 0).items() if kind == 0}
    named = ((name[:200], n) for name, n in work.items())
    layer_counts = [n for name, n in named if SAYS.attention_block.search(name) and not SAYS.not_attention.search(name)]
    layers = max(layer_counts, default=0.0)
    norms = sum(n for name, n in work.items() if SAYS.norm.search(name[:200]))
    sound = layers >= 1 and abs(layers - round(layers)) < 0.01 and (not norms or norms >= layers)
    layers = round(layers) if sound else 0
    reduces, gathers, scatters = (counts.get(op, 0) for op in ("all-reduce", "all-gather", "reduce-scatter"))
    if has_sharded_weights(counts):
        of = f"{layers} layers{' and the embedding' if scatters > layers else ''}"
        of = of if layers and scatters in (layers, layers + 1) else f"{scatters} shards"
        whose = f"weights of {of} gathered for both passes, and their gradients scattered"
        yield Note("layers", f"{gathers} all-gathers and {scatters} reduce-scatters per step = {whose}")
    elif reduces and trace.gradients:
        gradients = round(trace.gradients / len(trace.steps))
        yield Note("gradients", _gradient_words(reduces, gradients, has_unbucketed_gradients(trace)))
    elif reduces > 2 or (reduces and trace.training):
        yield Note("layers", f"{plural(reduces, 'all-reduce')} per step{_layer_words(reduces, layers, trace.training)}")


def has_sharded_weights(counts: Mapping[str, int]) -> bool:
    """Return whether a step's collectives are those of sharded weights: gathered in both passes, gradients scattered once."""
    gathers, scatters = counts.get("all-gather", 0), counts.get("reduce-scatter", 0)
    return bool(scatters) and gathers >= LEVEL.twice * scatters


def has_unbucketed_gradients(trace: Trace) -> bool:
    """Return whether each accumulated gradient has its all-reduce, apart from a few of a loss or a norm."""
    reduces = sum(c.op == "all-reduce" for c in trace.collectives)
    few, cut = COUNT.few_others * len(trace.steps), LEVEL.others * trace.gradients  # a file may end within a step
    return trace.gradients > few and -cut <= reduces - trace.gradients <= max(few, cut)


def _gradient_words(reduces: int, gradients: int, each: bool) -> str:
    """Describe the all-reduces of a step beside the gradients that it accumulates."""
    if each:
        return f"{reduces} all-reduces per step, one for each of {gradients} gradients (AccumulateGrad): they are not bucketed"
    text = f"{plural(reduces, 'all-reduce')} and {plural(gradients, 'gradient')} (AccumulateGrad) per step"
    if reduces > gradients:
        return f"{text}: not all of them are of gradients"
    return f"{text}: {'one bucket' if reduces == 1 else f'at most {reduces} buckets'} of gradients"


def _layer_words(count: int, layers: int, training: bool) -> str:
    """Describe whether two collectives a layer make a count, by the number of attention kernels."""
    if not layers and training:
        return ": gradient buckets, or two per layer and pass; neither gradients (AccumulateGrad) nor attention kernels are told"
    rest = count - 2 * layers if layers else count % 2
    if layers and rest not in (0, 1):
        return f": not two for each of the {layers} attention kernels"
    embedding = " + 1 for the vocabulary-parallel embedding" if rest else ""
    if layers:
        return f" = 2 x {layers} layers (counted by attention kernel){embedding}"
    return f": 2 x {count // 2} layers{embedding}, if each has two; no attention kernel counts them"


def per_step(job: TracedJob) -> Mapping[str, int]:
    """Return the collectives of each kind in a usual step of the first rank."""
    trace = job.traces[0]
    by_op: dict[str, dict[int, int]] = {}
    for c in trace.collectives:
        if c.step >= 0:
            counts = by_op.setdefault(c.op, {})
            counts[c.step] = counts.get(c.step, 0) + 1
    steps = [s.index for s in trace.steps]
    return {op: int(median(counts.get(s, 0) for s in steps)) for op, counts in by_op.items()}


MOMENT_S = LEVEL.moment_s
UNTOLD = ""
TOLD_IN_ORDER = ("experts", "attention", "products", "small")
"""A grouped product is of experts first, and so on: the first that fits."""


@lru_cache(maxsize=65536)
def work_of(name: str) -> str:
    """Return the kind of a kernel's work, or "" where its name is silent. What a compiler fused is named after all its parts.

    >>> work_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"), work_of("void flash::flash_fwd_splitkv_kernel<x>(y)")
    ('products', 'attention')
    >>> work_of("triton_red_fused_add_mm_rsqrt_0"), work_of("fused_moe_kernel"), work_of("kernel_7")
    ('small', 'experts', '')
    """
    text = name[: COUNT.name_signs]
    if SAYS.surely_small.search(text):
        return "small"
    return next((kind for kind in TOLD_IN_ORDER if getattr(SAYS, kind).search(text)), UNTOLD)


def work_seconds(job: TracedJob, place: int, steps: Sequence[TraceStep]) -> Mapping[str, float]:
    """Return the mean seconds of each kind of kernel in such steps of a rank, a moment's pause before the next kernel included."""
    line, begin, end = job.traces[place].timeline, *np.array([(s.start_s, s.end_s) for s in steps]).T
    inside = np.flatnonzero((line.kind == KINDS.index("compute")) & (holding(np.column_stack((begin, end)), line.start_s) >= 0))
    lasted = line.end_s[inside] - line.start_s[inside]
    pauses = pauses_after(job, place, line.end_s[inside])
    once = float(job.covered[place].compute.within(begin, end).sum()) / max(float(lasted.sum()), LEVEL.shortest_s)
    sums: dict[str, float] = {}
    for i, seconds in zip(inside.tolist(), (lasted * once + pauses).tolist(), strict=True):
        kind = work_of(line.name[i])
        sums[kind] = sums.get(kind, 0.0) + seconds / len(steps)
    return sums


def pauses_after(job: TracedJob, place: int, moments: Column) -> Column:
    """Return how long a device rests after each moment before it goes on, or 0 where it goes on at once or rests long."""
    starts, lengths = job.covered[place].either.gaps
    if not len(starts):
        return np.zeros(len(moments))
    at = np.clip(np.searchsorted(starts, moments - LEVEL.shortest_s), 0, len(starts) - 1)
    rests = (np.abs(starts[at] - moments) < LEVEL.shortest_s) & (lengths[at] <= MOMENT_S)
    return np.where(rests, lengths[at], 0.0)


BEFORE = ("tower", "embedding")  # of the parts that no layer has, those that run before the first
HOST, LANES = "host", {"comm": "communication"}
Row = tuple[str, float, float, str, str]


def priced_step(claim: Claim, section: Section) -> StepBill:
    """Return the bill of the section's commonest step, as far as step names describe it, else of the claimed one."""
    steps = [s for name, many in Counter(r.name for r in section.steps).items() for s in named_steps([(name, 0.0, 1.0)]) * many]
    phases = {s.phase for s in steps}
    phase = claim.question.phase
    if phase not in phases:
        phase = next((p for p in ("decode", "prefill", "mixed") if p in phases), phase)
    alike = [s for s in steps if s.phase == phase]
    sizes = Counter(s.decode_seqs if phase == "decode" else s.prefill_seqs for s in alike)
    lengths = Counter(s.prefill_tokens // s.prefill_seqs for s in alike if s.prefill_seqs and s.prefill_tokens)
    size = max(1, sizes.most_common(1)[0][0]) if sizes else 1
    length = lengths.most_common(1)[0][0] if lengths and phase == "prefill" else 1024  # names state no cached tokens
    return claim.bill(phase, claim.batch or size, claim.context or length)


def predicted_step(b: StepBill) -> Timeline:
    """Return a served step as a timeline, kernel after kernel: before the layers, equal layers, after them, and the host."""
    return timeline_of(list(_rows(b)), (*KINDS, HOST))


def _rows(b: StepBill) -> Iterator[Row]:
    drafts = [x for x in b.items if x.item.stage == "draft"]  # behind all others
    ends = [x for x in b.items if x.kind != HOST and x.item.part in ENDS and x.item.stage != "draft"]
    now = 0.0
    for line in (x for x in ends if x.item.part in BEFORE):
        yield from _laid_out(line, now)
        now += float(line.exposed_s)
    layer = layer_of(b)
    for number in range(b.question.model.num_layers):
        for bar in layer.bars:
            for start, end in (*bar.hidden, *bar.exposed):
                lane = LANES.get(bar.segment.lane, "compute")
                yield lane, now + start, now + end, bar.segment.lane, f"{bar.segment.name}, layer {number}"
        now += layer.length_s
    for line in (*(x for x in ends if x.item.part not in BEFORE), *drafts):
        yield from _laid_out(line, now)
        now += float(line.exposed_s)
    if (rest := float(b.step_s) - now) > 0:
        yield "host", now, now + rest, HOST, "scheduling and launches"


def _laid_out(line: Line, now: float) -> Iterator[Row]:
    if float(line.exposed_s) > 0:
        kind = "comm" if line.kind == "comm" else "compute"
        yield LANES.get(kind, "compute"), now, now + float(line.exposed_s), kind, line.item.what


NOT_SENT = ("barrier",)  # control, which the lists of what is sent leave out
TRAINING = "training (a backward pass or an optimizer ran): only serving steps are compared"
NO_DEVICE = "timed on the host; includes profiler overhead"
GUESSED = "steps were found by repetition, and what repeats may be a layer"
OWN_STAGE = "a rank of a pipeline holds its own stage's only"


@dataclass(frozen=True, slots=True)
class _Workload:
    """The steps that are compared and what ran in them."""

    phase: str
    batch: int
    context: int
    named: bool  # by the trace, not by the user

    def __str__(self) -> str:
        tokens = f"{self.context} {'cached' if self.phase == 'decode' else 'prompt'} tokens"
        return f"batch {self.batch} ({'as its steps are named' if self.named else 'as was said'}), {tokens}"


@dataclass(frozen=True, slots=True)
class _Steps:
    """A job, of each of its ranks the steps that are compared, and how a typical one of them was spent."""

    job: TracedJob
    chosen: Sequence[list[TraceStep]]
    usage: tuple[tuple[int, Usage], ...]

    @property
    def first(self) -> Trace:
        return self.job.traces[0]

    @property
    def step_s(self) -> float:
        """The length of a typical step, the mean of the ranks."""
        return float(np.mean([used.total_s for _, used in self.usage]))

    @property
    def exposed_s(self) -> float:
        """Of the rank that waits least."""
        return min(u.exposed_s for _, u in self.usage)


ComparedRun = tuple[tuple[Finding, ...], tuple[Note, ...], tuple[tuple[int, Usage], ...]]
"""Findings, notes, and how each rank's typical step was spent."""


def compare_with_claim(traced: TracedJob, claim: Claim) -> ComparedRun:
    """Compare a job's traces with a claim."""
    head = traced.traces[0]
    # A trace may hold an engine's steps beside those that train, and then the former are compared.
    trains = head.training and not any(s.phase not in ("", "train") for s in head.steps)
    work = _workload(head, claim)
    chosen = [[s for s in t.steps if s.name != WHOLE and (trains or _is_of_workload(s, work))] for t in traced.traces]
    shown = ((t, middle(steps)) for t, steps in zip(traced.traces, chosen, strict=True))
    job = _Steps(traced, chosen, tuple((t.rank, t.usage(steps).of(len(steps))) for t, steps in shown if steps))
    place = [_chip(head.device, claim)] if head.device else []
    place += [_world(head.world, claim)] if head.world and not head.training else []
    wrong = tuple(f for f in place if f.verdict != AGREE)  # where no step agrees, the right chip alone is no agreement of the run
    if not chosen[0]:
        why = TRAINING if trains else f"no {work.phase} steps of {plural(work.batch, 'sequence')} in the trace"
        return (*wrong, Finding("steps", None, None, reason=why)), (), ()
    spent = job.usage if head.on_device else ()
    if trains:  # steps with a backward pass or an optimizer are no serving steps: they are shown, and not compared
        shown_s = (("training step", job.step_s), ("exposed communication per step", job.exposed_s))
        plain = (Finding(item, None, seconds, "s", reason=TRAINING) for item, seconds in shown_s)
        waits = (f.undecided(f.reason) for f in waiting_findings(job.job, job.chosen, 1))
        return (*wrong, *plain, *waits), (Note("steps", plural(len(chosen[0]), "training step")),), spent
    step_note = Note("steps", f"{plural(len(chosen[0]), work.phase + ' step')} of {work}")
    priced = claim.bill(work.phase, work.batch, work.context)
    trusted = head.on_device or claim.distrust
    timed = (f if trusted else f.undecided(NO_DEVICE) for f in _seconds(job, priced, claim))
    compared = [*_traffic_findings(job, work, claim), *timed, *waiting_findings(traced, chosen, claim.tp)]
    if chosen[0][0].name == REPEATED:
        compared = [f.undecided(GUESSED) if f.verdict == DISAGREE else f for f in compared]
    ran = place if any(f.verdict == AGREE for f in compared) else wrong
    return (*ran, *compared), (step_note,), spent


def _workload(trace: Trace, claim: Claim) -> _Workload:
    """Return the claimed workload, else the commonest decode step of the trace, or its commonest step if none decodes."""
    described = [s for s in trace.steps if s.phase not in ("", "train")]
    context = claim.context or 1024
    if not described:
        return _Workload(claim.question.phase, claim.batch or 1, context, False)
    pool = [s for s in described if s.phase == claim.question.phase] or described
    phase = pool[0].phase
    if phase != "decode":
        common = Counter((s.prefill_seqs, s.prefill_tokens) for s in pool if s.phase == phase).most_common(1)[0][0]
        length = claim.context or (common[1] // common[0] if common[0] and common[1] else context)
        return _Workload(phase, claim.batch or max(1, common[0]), length, True)
    batch = claim.batch or Counter(s.decode_seqs for s in pool).most_common(1)[0][0]
    return _Workload(phase, batch, context, True)


def _is_of_workload(step: TraceStep, work: _Workload) -> bool:
    if not step.phase:
        return True
    size = step.decode_seqs if step.phase == "decode" else step.prefill_seqs
    return step.phase == work.phase and (step.phase == "mixed" or size == work.batch)


def _traffic_findings(job: _Steps, work: _Workload, claim: Claim) -> Iterator[Finding]:
    """Compare the number of collectives in a step, and their bytes."""
    step = claim.question.but(phase=work.phase, batch=work.batch, context=work.context)
    lines = [i for i in question_traffic(settle(step)).items if i.is_sent]
    measured = {c.op for t in job.job.traces for c in t.collectives if c.step >= 0} - set(NOT_SENT)
    steps = [(t, s) for t, steps in zip(job.job.traces, job.chosen, strict=True) for s in steps]
    kinds = [("", measured)] if UNNAMED in measured else [(op, {op}) for op in sorted({i.op for i in lines} | measured)]
    for op, taken in kinds:
        issued = [i for i in lines if not op or i.op == op]
        per_step = [[c for c in t.collectives if c.step == s.index and c.op in taken] for t, s in steps]
        count = float(sum(i.count for i in issued))
        findings = [_count(op or "collectives", count, [len(p) for p in per_step], work.phase, job.first)]
        if op and any(per_step) and issued:
            findings.append(_bytes(op, float(sum(i.count * i.nbytes for i in issued)), per_step))
        yield from (f.undecided(OWN_STAGE) if int(claim.plan.pp) > 1 else f for f in findings)
    groups = {c.ranks for t in job.job.traces for c in t.collectives if c.ranks and c.op == "all-reduce"}
    if len(groups) == 1:
        yield Finding("ranks of an all-reduce", claim.tp, groups.pop(), reason="another group than tensor parallelism's").judged()


def _count(op: str, predicted: float, counts: list[int], phase: str, trace: Trace) -> Finding:
    least, most = min(counts), max(counts)
    reason = f"steps differ: {least} to {most}" if least != most else "other collectives than this plan issues"
    if most == 0 and trace.issued.get(op):
        reason = "the host called some, and none ran on the device"
    elif most == 0:
        reason = "none in the trace: TP was not applied, or kernels under a name that is not known"
    item = Note("count", f"{op.removesuffix('s')}s per {phase} step")
    finding = Finding(item, predicted, median(counts), reason=reason, of=op).judged()
    return finding if least == most else replace(finding, verdict=DISAGREE, reason=reason)


def _bytes(op: str, predicted: float, steps: list[list[Collective]]) -> Finding:
    sizes = [[c.nbytes for c in step] for step in steps]
    item = Note("bytes", f"{op} bytes per step")
    if any(n is None for step in sizes for n in step):
        graph = any(c.graph for step in steps for c in step)
        why = "kernels replayed from a CUDA graph carry no size" if graph else "the trace has no message sizes (record_shapes)"
        return Finding(item, predicted, None, "bytes", reason=why, of=op)
    sums = [sum(n for n in step if n is not None) for step in sizes]
    why = "other rows (padding, batch) or another type than was said"
    return Finding(item, predicted, median(sums), "bytes", reason=why, of=op).judged()


def _seconds(job: _Steps, priced: StepBill, claim: Claim) -> Iterator[Finding]:
    for op in sorted({x.item.op for x in priced.items if x.kind == "comm"}):
        lines = [x for x in priced.items if x.kind == "comm" and x.item.op == op]
        yield from _one(op, float(sum(x.total_s for x in lines)) / float(sum(x.item.count for x in lines)), job, claim)
    idle, step_s = job.usage[0][1].idle_share, float(priced.step_s)
    why = "profiling itself, host time, or other hardware than was said"
    if idle > LEVEL.idle_share and job.first.on_device:
        why = f"the device idles {idle:.0%} of it: host time, profiling included"
    measured = job.step_s
    if measured < step_s:
        why = "a smaller model, batch or context than was said, or other hardware"
    yield claim.seconds(Note("step", f"{priced.question.phase} step"), step_s, measured, why)
    why = "other collectives, links or sizes than was said, or waiting"
    predicted = float(priced.comm_fraction) * step_s
    yield claim.seconds("exposed communication, of the step", predicted, job.exposed_s, why, step_s)


def both_means(op: str, met: bool, seconds: Sequence[float]) -> tuple[Note, Finding | None]:
    """Return the label of a kind of collectives, and a finding of their mean where a few take far longer than the rest."""
    how = "shortest over ranks" if met else "one rank, waiting included"
    mean, usual = float(np.mean(seconds or [0.0])), float(np.median(seconds or [0.0]))
    if max(mean, usual) <= LEVEL.uneven * min(mean, usual):
        return Note("collective", f"one {op} ({how})"), None
    other = Finding(Note("collective mean", f"one {op}, mean ({how})"), None, mean, "s", of=op)
    return Note("collective", f"one {op}, median ({how})"), other


def _one(op: str, predicted: float, job: _Steps, claim: Claim) -> Iterator[Finding]:
    """Compare one collective. The least time over ranks is the wire if its whole group is here, else an upper bound of it."""
    met, steps, ranks = job.job.meetings, {s.index for s in job.chosen[0]}, len(job.job.traces)
    called = [c for c in job.first.collectives if c.op == op and c.step in steps]
    times = [c.seconds for c in called]
    if met:
        times = [wire for c, wire in zip(met.calls, met.wire_s.tolist(), strict=True) if c.op == op and c.step in steps]
    measured = median(times) if times else None
    why = "another path, link or size than was said" if times else "none in these steps"
    item, mean = both_means(op, met is not None, times)
    finding = replace(claim.seconds(item, predicted, measured, why), of=op)
    group = _group(called, claim.tp)
    if finding.verdict == DISAGREE and group > ranks and (measured or 0.0) > predicted:
        finding = finding.undecided(f"{ranks} of its {group} ranks here: the time may hold waiting for the others")
    yield from (finding, *([mean] if mean else []))


def waiting_findings(job: TracedJob, chosen: Sequence[Sequence[TraceStep]], tp: int) -> Iterator[Finding]:
    """Report who comes last, and how long the others wait, which is no transfer."""
    met, steps = job.meetings, chosen[0]
    if met is None:
        return
    if not len(met.first):
        yield Finding("waiting for the slowest rank", 0.0, None, "share", reason="no collective could be matched over the ranks")
        return
    waited = []
    for trace, of_rank, waits in zip(job.traces, chosen, job.waiting, strict=True):
        kept = {s.index for s in of_rank}
        inside = np.array([c.step in kept for c in trace.collectives], dtype=bool)
        waited.append(float(np.nansum(waits[inside])) if inside.any() else 0.0)
    worst = max(waited) / sum(s.seconds for s in steps)
    shown = list(zip(met.ranks, waited, strict=True))
    if len(shown) > COUNT.most_ranks:
        shown = sorted(shown, key=lambda r: -r[1])[: COUNT.most_ranks]
    each = ", ".join(f"rank {r} {format_seconds(s / len(steps))}" for r, s in shown)
    matched = f"{plural(len(met.first), 'collective')} matched by {'time' if met.by_clock else 'order'}"
    lost = f", {met.unmatched} not" if met.unmatched else ""
    reason = f"rank {met.ranks[waited.index(min(waited))]} arrives last; waits per step: {each}; {matched}{lost}"
    verdict = AGREE if worst <= LEVEL.waiting_share else DISAGREE if job.traces[0].on_device else UNKNOWN
    group = _group(job.traces[0].collectives, tp)
    if verdict == AGREE and group > len(job.traces):
        verdict, reason = UNKNOWN, f"{len(job.traces)} of {group} ranks here: others may arrive later still; {reason}"
    item = "waiting for the slowest rank, share of the step"
    yield Finding(item, 0.0, worst, "share", LEVEL.waiting_share, reason, verdict=verdict)


def _group(collectives: Iterable[Collective], tp: int) -> int:
    """Return the number of ranks that meet, from the trace or else from the claim."""
    return max((c.ranks for c in collectives), default=0) or tp


def _chip(device: Device, claim: Claim) -> Finding:
    claimed, possible = claim.question.cluster.chip, recognise(device.name, device.memory_bytes, device.num_sms)
    item = Note("chip", f"memory of {device.name or 'its device'}")
    sizes = f"{format_bytes(device.memory_bytes)} and {device.num_sms} multiprocessors"
    finding = Finding(item, claimed.visible_bytes, device.memory_bytes, "bytes", MEMORY_SPREAD).judged()
    if claimed.key in possible:
        return replace(finding, verdict=AGREE)
    if possible:
        return replace(finding, verdict=DISAGREE, reason=f"the trace is of {' or '.join(possible)}, not of {claimed.key}")
    if not is_like(claimed, device.memory_bytes, device.num_sms):
        return replace(finding, verdict=DISAGREE, reason=f"{sizes} are not those of {claimed.key}")
    return finding.undecided(f"as large as {claimed.key}, under a name that the catalogue does not know")


def _world(world: int, claim: Claim) -> Finding:
    """Compare the ranks of the job. A multiple of the plan may mean replicas, or a trainer's job around an engine."""
    one = claim.tp * int(claim.plan.pp)
    whole = int(claim.plan.num_gpus)
    worlds = {one, one * int(claim.plan.dp), whole // int(claim.plan.dp), whole}
    predicted = world if world in worlds else one
    finding = Finding("ranks in the job", predicted, world, reason="more or fewer processes than the plan has").judged()
    if finding.verdict == DISAGREE and world % one == 0:
        return finding.undecided(f"{world // one} times the plan's: replicas, or a larger job around it")
    return finding


def place_notes(traces: Sequence[Trace]) -> Iterator[Note]:
    device, world, here = traces[0].device, traces[0].world, len(traces)
    if device:
        sizes = f"{format_bytes(device.memory_bytes)}, {device.num_sms} multiprocessors"
        present = f"devices of its host: {device.count} x {device.name or 'a device without a name'} ({sizes})"
        chips = recognise(device.name, device.memory_bytes, device.num_sms)
        yield Note("devices", f"{present}: {' or '.join(chips) or 'not in the catalogue'}")
    if world > here:
        ranks = ", ".join(str(t.rank) for t in traces[:8]) + (" …" if here > 8 else "")
        present = f"{here} of the job's {world} ranks {'is' if here == 1 else 'are'} here ({ranks})"
        yield Note("absent ranks", f"{present}: waiting for the others cannot be told from transfer")
