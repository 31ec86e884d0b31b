"""One rank's trace, whichever profiler wrote it: a timeline, the collectives in it, and the steps that they belong to.

A step is what somebody named (the profiler, vLLM, SGLang), or what repeats (CUDA graph launches).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from commtax.runs.evidence.finding import Usage
from commtax.statement import Note
from commtax.thresholds import levels
from commtax.timeline import Column, Timeline, merge_spans
from commtax.wordings import patterns

KINDS = ("compute", "comm", "copy", "wait")  # what a lane does; one that waits for an event does nothing
Span = tuple[float, float]
Spans = Sequence[Span] | Column  # starts and ends, as tuples or as rows of two
EVER: Span = (-math.inf, math.inf)
SAYS = patterns(__name__)
_BACKWARD = "autograd::engine::evaluate_function"
_TRAINING = ("Optimizer.step", "Optimizer.zero_grad", _BACKWARD)
LEVEL = levels(__name__)
_SGLANG_PHASES = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "TARGET_VERIFY": "decode"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Ordered spans without overlap, as their edges. ``sums`` is how much is covered until each edge."""

    edges: Column
    sums: Column

    def within(self, begin_s: Column, end_s: Column) -> Column:
        """Return the covered seconds of each window."""
        if not len(self.edges):
            return np.zeros(np.shape(end_s))
        return np.interp(end_s, self.edges, self.sums) - np.interp(begin_s, self.edges, self.sums)

    def seconds(self, begin_s: float, end_s: float) -> float:
        return float(self.within(np.array(begin_s), np.array(end_s)))

    @property
    def gaps(self) -> tuple[Column, Column]:
        """When each pause between two spans begins, and how long it is."""
        return self.edges[1:-1:2], self.edges[2::2] - self.edges[1:-1:2]


def coverage(start_s: Column, end_s: Column) -> Coverage:
    """Return what any of the spans covers."""
    spans = merge_spans(start_s, end_s)
    sums = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])
    return Coverage(spans.ravel(), np.repeat(sums, 2)[1:-1])


@dataclass(frozen=True, slots=True)
class DeviceCoverage:
    """What one rank's device did: under compute, under compute or communication, and under anything but waiting."""

    compute: Coverage
    comm: Coverage
    either: Coverage
    anything: Coverage

    def spent(self, begin_s: Column, end_s: Column) -> tuple[Column, Column, Column, Column, Column]:
        """Return seconds of each window: compute, communication exposed and hidden under it, copies, and anything at all."""
        compute, comm, either, anything = (c.within(begin_s, end_s) for c in (self.compute, self.comm, self.either, self.anything))
        exposed, hidden, copy = (np.maximum(0.0, x) for x in (either - compute, comm + compute - either, anything - either))
        return compute, exposed, hidden, copy, anything


def device_coverage(timeline: Timeline) -> DeviceCoverage:
    """Return all four coverages of a timeline. A stream that waits for another is not busy."""

    def of(*kinds: str) -> Coverage:
        mask = np.isin(timeline.kind, [timeline.kinds.index(k) for k in kinds if k in timeline.kinds])
        return coverage(timeline.start_s[mask], timeline.end_s[mask])

    return DeviceCoverage(of("compute"), of("comm"), of("compute", "comm"), of("compute", "comm", "copy"))


def usage(timeline: Timeline, windows: Sequence[Span]) -> Usage:
    begin, end = np.array(windows, dtype=float).reshape(-1, 2).T
    *spent, _ = device_coverage(timeline).spent(begin, end)
    return Usage(*(float(np.sum(seconds)) for seconds in (end - begin, *spent)))


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its driver describes it, "" and 0 where it does not. ``count``: as many alike are in the host."""

    name: str = ""
    memory_bytes: float = 0.0
    num_sms: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. ``nbytes`` is the full tensor (as in ``ledger.Item``), None where it is unknown."""

    op: str
    nbytes: float | None
    ranks: int  # 0: unknown
    start_s: float
    end_s: float
    name: str
    step: int = -1  # index into the trace's steps; -1: in none
    graph: bool = False  # replayed from a CUDA graph
    group: str = ""  # its process group as the trace calls it
    members: tuple[int, ...] = ()  # ranks of that group, where they are listed
    algorithm: str = ""  # ring, tree, nvls, one-shot …, with the protocol, where the kernel's name states it
    lane: int = -1  # index into the timeline's lanes

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace. Times are seconds since ``origin_ns``. ``issued`` counts collectives that the host called, by kind."""

    rank: int
    world: int
    origin_ns: int
    on_device: bool
    timeline: Timeline
    collectives: tuple[Collective, ...]
    steps: tuple[TraceStep, ...]
    issued: Mapping[str, int]
    device: Device | None = None
    training: bool = False  # something of training ran, in a step or not
    notes: tuple[Note, ...] = ()
    host: str = ""  # where it ran, where the file or its name states it
    partial: str = ""  # why the file was not read to its end
    replayed: float = 0.0  # of its kernels the share that came from graphs
    gradients: int = 0  # that were accumulated, each parameter's in each pass

    @property
    def begin_s(self) -> float:
        """When its first step or work begins."""
        return min([self.timeline.begin_s, *(s.start_s for s in self.steps[:1])])

    def usage(self, steps: Sequence[TraceStep]) -> Usage:
        """Return how some of the steps (the whole trace without any) were spent."""
        return usage(self.timeline, [(s.start_s, s.end_s) for s in steps] or [(self.timeline.begin_s, self.timeline.finish_s)])


def holding(spans: Spans, moments: Column) -> Column:
    """Return the index of the ordered span that holds each moment, or -1 for none.

    >>> holding([(0.0, 1.0), (2.0, 3.0)], np.array([0.5, 1.0, 2.0])).tolist()
    [0, -1, 1]
    """
    if not len(spans) or not len(moments):
        return np.full(len(moments), -1)
    edges = np.asarray(spans)
    last = np.searchsorted(edges[:, 0], moments, side="right") - 1
    return np.where((last >= 0) & (moments < edges[last, 1]), last, -1)


def timeline_of(rows: Sequence[tuple[str, float, float, str, str]], kinds: tuple[str, ...] = KINDS) -> Timeline:
    """Turn rows of lane, start, end, kind and name into columns."""
    lane, start, end, kind, name = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    lanes = tuple(dict.fromkeys(lane))
    codes = {name: i for i, name in enumerate(lanes)}
    codes_of_lanes, codes_of_kinds = ([codes[x] for x in lane], [kinds.index(k) for k in kind])
    starts, ends = np.array(start, dtype=float), np.array(end, dtype=float)
    return Timeline(np.array(codes_of_lanes, dtype=int), starts, ends, np.array(codes_of_kinds, dtype=int), name, lanes, kinds)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: its window (the device's, where there is one), the host's window, and what ran, where the name states it."""

    index: int
    name: str
    start_s: float
    end_s: float
    host: Span = EVER  # a replayed graph has no window of its own
    phase: str = ""  # decode | prefill | mixed | train | "": unknown
    decode_seqs: int = 0
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0  # that sequences which decode see, all together …
    past_tokens: int = 0  # … and prompts before them; 0: unknown

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def named_steps(annotations: Sequence[tuple[str, float, float]]) -> list[TraceStep]:
    """Make steps of annotations: the profiler's if there are any, else the engine's (vLLM's before SGLang's).

    >>> step = named_steps([("execute_context_0(0)_generation_4(4)", 0.0, 1.0)])[0]
    >>> step.phase, step.decode_seqs
    ('decode', 4)
    """
    for pattern in _step_patterns():
        named = sorted((a for a in annotations if pattern.match(a[0])), key=lambda a: a[1])
        if named:
            described = [_describe_batch(TraceStep(0, name, start, end, (start, end))) for name, start, end in named]
            return number_steps(extend_steps(described))
    return []


def names_step(name: str) -> bool:
    """Return whether an annotation names a step.

    >>> names_step("ProfilerStep#3"), names_step("forward")
    (True, False)
    """
    return any(pattern.match(name) for pattern in _step_patterns())


def _step_patterns() -> tuple[re.Pattern[str], ...]:
    return SAYS.profiler, SAYS.vllm, SAYS.vllm_old, SAYS.sglang


def trains(name: str) -> bool:
    """Return whether a host event runs in training alone: the backward pass, or the optimizer.

    >>> trains("Optimizer.step#AdamW.step"), trains("autograd::engine::evaluate_function: MmBackward0"), trains("aten::mm")
    (True, True, False)
    """
    return name.startswith(_TRAINING)


def accumulates(name: str) -> bool:
    """Return whether a host event adds up the gradient of one parameter.

    >>> accumulates("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
    True
    """
    return name.startswith(_BACKWARD) and name.endswith("AccumulateGrad")


def mark_training(steps: Sequence[TraceStep], moments: Sequence[float] | Column) -> list[TraceStep]:
    """Mark steps without a phase in whose host window training ran. Replays have no window, and any moment counts."""
    at = np.sort(np.asarray(moments, dtype=float))
    begin, end = (np.searchsorted(at, [step.host[i] for step in steps]) for i in (0, 1))
    trains = (end > begin).tolist()
    return [replace(s, phase="train") if train and not s.phase else s for s, train in zip(steps, trains, strict=True)]


def main_span(spans: Spans, host_s: Callable[[float, float], float] = lambda *_: 0.0) -> tuple[float, float, int]:
    """Return the first start and last end of what belongs together, and how many spans are set apart from it.

    Strays stand behind (or, where an engine plans ahead, before) a pause that is long beside the step and far longer than they are.
    ``host_s`` tells how much of a pause was the host's own time, which is a step's too.

    >>> main_span([(0.0, 4.0), (5.0, 9.0), (500.0, 501.0)])
    (0.0, 9.0, 1)
    """
    unordered = np.asarray(spans, dtype=float).reshape(-1, 2)
    ordered = unordered[np.lexsort((unordered[:, 1], unordered[:, 0]))]
    start, end = ordered[:, 0], ordered[:, 1]
    until, before = np.maximum.accumulate(end), np.cumsum(end - start)
    total = before[-1]
    pause = start[1:] - until[:-1]
    least = np.maximum(total * LEVEL.stray_pause, np.minimum(before, total - before)[:-1] * LEVEL.stray_times)
    long = np.flatnonzero(pause > least).tolist()
    cuts = [i + 1 for i in long if pause[i] - host_s(float(until[i]), float(start[i + 1])) > least[i]]
    groups = [0, *cuts]
    kept = int(np.argmax(np.add.reduceat(end - start, groups)))
    first, last = groups[kept], [*cuts, len(ordered)][kept]
    return float(start[first]), float(end[first:last].max()), len(ordered) - (last - first)


def middle(steps: Sequence[TraceStep]) -> list[TraceStep]:
    """Return the middle half by length, whose mean is a typical step."""
    quarter = len(steps) // 4
    return sorted(steps, key=lambda s: s.seconds)[quarter : len(steps) - quarter]


def extend_steps(steps: Sequence[TraceStep]) -> list[TraceStep]:
    """Extend each step to the next, unless device and host both rest for longer than the step took."""
    extended = []
    for step, following in pairwise(steps):
        on_host = following.host[0] - step.host[1] if math.isfinite(step.host[1]) else math.inf  # unknown for replays
        rests = min(following.start_s - step.end_s, on_host) > step.seconds
        extended.append(step if rests else replace(step, end_s=following.start_s))
    return [*extended, *steps[-1:]]


def number_steps(steps: Iterable[TraceStep]) -> list[TraceStep]:
    return [replace(s, index=i) for i, s in enumerate(s for s in steps if s.phase != "empty")]


def _describe_batch(step: TraceStep) -> TraceStep:
    if match := SAYS.vllm.match(step.name) or SAYS.vllm_old.match(step.name):
        prefills, decodes = int(match["prefills"]), int(match["decodes"])
        groups = match.groupdict()
        tokens, seen = _tokens(groups.get("tokens", ""))
        cached = _tokens(groups.get("decoded", ""))[1]
        phase = "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else "empty"
        step = replace(step, phase=phase, decode_seqs=decodes, prefill_seqs=prefills, prefill_tokens=tokens)
        return replace(step, cached_tokens=cached, past_tokens=max(0, seen - tokens))
    if match := SAYS.sglang.match(step.name):
        phase, size = _SGLANG_PHASES.get(match[1], ""), int(match[2])
        if phase == "decode":
            return replace(step, phase=phase, decode_seqs=size)
        return replace(step, phase=phase, prefill_seqs=size, prefill_tokens=int(match[3] or 0))
    return step


def _tokens(text: str) -> tuple[int, int]:
    """Return new tokens, and all that their queries see, 0 where the name has no number.

    >>> _tokens("128"), _tokens("sq8155sk8430sqsq7475785sqsk7671310")
    ((128, 0), (8155, 8430))
    """
    new = re.match(r"(?:sq)?(\d{1,12}+)(?!\d)(?:sk(\d{1,12}+)(?!\d))?", text)
    return (int(new[1]), int(new[2] or 0)) if new else (0, 0)


def graph_steps(launches: Iterable[tuple[float, Hashable, float, float]]) -> list[TraceStep]:
    """Make steps of replayed graphs (launch, kernels, start, end of each), one of each shortest period that repeats."""
    replays = sorted(launches, key=lambda r: r[0])
    length = period([names for _, names, _, _ in replays])
    if not length:
        return []
    groups = [replays[i : i + length] for i in range(0, len(replays) - length + 1, length)]
    steps = [TraceStep(i, "graph replay", g[0][2], max(r[3] for r in g)) for i, g in enumerate(groups)]
    return number_steps(extend_steps(steps))


def period(signs: Sequence[object]) -> int:
    """Return the smallest period with which a sequence repeats at least once in full, or 0 if there is none."""
    borders = [0] * len(signs)  # how much of the beginning ends here (Knuth, Morris and Pratt)
    for at in range(1, len(signs)):
        length = borders[at - 1]
        while length and signs[at] != signs[length]:
            length = borders[length - 1]
        borders[at] = length + (signs[at] == signs[length])
    length = len(signs) - borders[-1] if signs else 0
    return length if length <= len(signs) // 2 else 0


def distinct(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces, renumbered in order and with a note where two have the same rank."""
    ranks = [t.rank for t in traces]
    if len(set(ranks)) == len(ranks):
        return list(traces)
    several = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    text = f"ranks are numbered as the files were given: they tell {several if len(set(ranks)) > 1 else f'rank {ranks[0]} each'}"
    renumbered = []
    for rank, trace in enumerate(traces):
        label, notes = f"rank {trace.rank} ", (*trace.notes, Note("numbered ranks", text))
        lanes = (f"rank {rank} {lane.removeprefix(label)}" if lane.startswith(label) else lane for lane in trace.timeline.lanes)
        renumbered.append(replace(trace, rank=rank, timeline=replace(trace.timeline, lanes=tuple(lanes)), notes=notes))
    return renumbered


@lru_cache(maxsize=4096)
def phase_of(name: str) -> str:
    """Return the phase that a step's name states, or "".

    >>> phase_of("execute_context_0(0)_generation_4(4)"), phase_of("ProfilerStep#3")
    ('decode', '')
    """
    return next((step.phase for step in named_steps([(name, 0.0, 1.0)])), "")
