"""What a step's collectives are of, by counts of other events: layers, shards or gradients, where nobody says which model ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.job_rows import named_work
from commtax.runs.traces.repetition import WHOLE
from commtax.runs.traces.trace import Trace
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import plural
from commtax.wordings import patterns

SAYS = patterns(__name__)
COUNT, LEVEL = thresholds(__name__)


def layer_notes(job: TracedJob) -> Iterator[Note]:
    """What the counts of a usual step decompose into: two all-reduces a layer, or the gathers and scatters of sharded weights."""
    trace = job.traces[0]
    if not trace.steps or trace.steps[0].name == WHOLE:
        return
    counts = per_step(job)
    steps = len(job.traces[0].steps)
    work = {name: count / steps for (name, kind), (count, _) in named_work(job, 0).items() if kind == 0}
    found = [n for name, n in work.items() if SAYS.attention.search(name[:200]) and not SAYS.not_attention.search(name[:200])]
    layers = max(found, default=0.0)
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
        yield Note(
            "gradients", _gradient_words(reduces, round(trace.gradients / len(trace.steps)), has_unbucketed_gradients(trace))
        )
    elif reduces > 2 or (reduces and trace.training):
        yield Note("layers", f"{plural(reduces, 'all-reduce')} per step{_layer_words(reduces, layers, trace.training)}")


def has_sharded_weights(counts: Mapping[str, int]) -> bool:
    """Whether a step's collectives are those of sharded weights: gathered in both passes, gradients scattered once."""
    gathers, scatters = counts.get("all-gather", 0), counts.get("reduce-scatter", 0)
    return bool(scatters) and gathers >= LEVEL.twice * scatters


def has_unbucketed_gradients(trace: Trace) -> bool:
    """Whether there is an all-reduce for each gradient that was accumulated, but for a few of a loss or a norm in each step."""
    reduces = sum(c.op == "all-reduce" for c in trace.collectives)
    few, cut = COUNT.few_others * len(trace.steps), LEVEL.others * trace.gradients  # a file may end within a step
    return trace.gradients > few and -cut <= reduces - trace.gradients <= max(few, cut)


def _gradient_words(reduces: int, gradients: int, each: bool) -> str:
    """All-reduces of a step beside the gradients that it accumulates."""
    if each:
        return f"{reduces} all-reduces per step, one for each of {gradients} gradients (AccumulateGrad): they are not bucketed"
    said = f"{plural(reduces, 'all-reduce')} and {plural(gradients, 'gradient')} (AccumulateGrad) per step"
    if reduces > gradients:
        return f"{said}: not all of them are of gradients"
    return f"{said}: {'one bucket' if reduces == 1 else f'at most {reduces} buckets'} of gradients"


def _layer_words(count: int, layers: int, training: bool) -> str:
    """Whether two a layer make a count, by another count that tells of layers."""
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
    """Collectives of each kind in a usual step of the first rank."""
    trace = job.traces[0]
    by_op: dict[str, dict[int, int]] = {}
    for c in trace.collectives:
        if c.step >= 0:
            held = by_op.setdefault(c.op, {})
            held[c.step] = held.get(c.step, 0) + 1
    steps = [s.index for s in trace.steps]
    return {op: int(median(held.get(s, 0) for s in steps)) for op, held in by_op.items()}
