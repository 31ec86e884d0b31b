"""Profiler traces against what is sent (counts and bytes, exactly) and what it should take (seconds)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from commtax.api import StepBill, traffic
from commtax.audit.finding import AGREE, DISAGREE, UNKNOWN, Finding, Question, Section, compare, undecided
from commtax.audit.places import place_notes, placed
from commtax.readers.collective_names import UNNAMED
from commtax.readers.kineto import Collective, Trace
from commtax.readers.ranks import Meetings, meet
from commtax.readers.trace_steps import Step
from commtax.readers.usage import Usage
from commtax.units import format_seconds, plural

NOT_SENT = ("barrier",)  # control, which the lists of what is sent leave out
IDLE_SHARE = 0.10  # of a step: more than this idle on the device is worth naming
WAITING_SHARE = 0.10  # of a step: more than this spent waiting for one rank is a straggler


@dataclass(frozen=True, slots=True)
class _Workload:
    """The steps that are compared and what ran in them."""

    phase: str
    batch: int
    context: int
    told: bool  # by the trace, not by the user


def audit_traces(traces: Sequence[Trace], asked: Question, names: Sequence[str]) -> Section:
    """All ranks of one job (or one of them)."""
    traces = sorted(traces, key=lambda t: t.rank)
    notes = [*traces[0].notes, *place_notes(traces)]
    place = tuple(placed(traces[0], asked))
    if _is_training(traces[0]):
        return _training(traces, _contradictions(place), names, notes)
    work = _workload(traces[0], asked)
    chosen = [[s for s in t.steps if _is(s, work)] for t in traces]
    if not chosen[0]:
        missing = Finding("steps", None, None, reason=f"no {work.phase} steps of {plural(work.batch, 'sequence')} in the trace")
        return Section("trace", tuple(names), (*_contradictions(place), missing), tuple(notes))
    tokens = f"{work.context} {'cached' if work.phase == 'decode' else 'prompt'} tokens"
    source = "as its steps are named" if work.told else "as was said"
    notes.append(f"{plural(len(chosen[0]), work.phase + ' step')} of batch {work.batch} ({source}), {tokens}")
    meetings = meet(traces) if len(traces) > 1 else None
    priced = asked.bill(work.phase, work.batch, work.context)
    compared = (
        *_sent(traces, chosen, work, asked),
        *_taken(traces, chosen, priced, asked, meetings),
        *_waiting(traces, chosen[0], meetings, asked.tp),
    )
    ran = place if any(f.verdict == AGREE for f in compared) else _contradictions(place)
    return Section("trace", tuple(names), (*ran, *compared), tuple(notes), _spent(traces, chosen))


def _contradictions(place: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Where nothing of a step agrees, the right chip alone is no agreement of the run."""
    return tuple(f for f in place if f.verdict != AGREE)


def _is_training(trace: Trace) -> bool:
    """Whether its steps train: a trace may hold an engine's steps too, and then those are compared."""
    return trace.training and not any(s.phase not in ("", "train") for s in trace.steps)


def _training(traces: Sequence[Trace], place: tuple[Finding, ...], names: Sequence[str], notes: list[str]) -> Section:
    """Steps with a backward pass or an optimizer are no serving steps: they are shown, and not compared."""
    why = "training (a backward pass or an optimizer ran): only serving steps are compared"
    chosen = [list(t.steps) for t in traces]
    if not chosen[0]:
        return Section("trace", tuple(names), (*place, Finding("steps", None, None, reason=why)), tuple(notes))
    spent = [t.usage(steps).of(len(steps)) for t, steps in zip(traces, chosen, strict=True) if steps]
    findings = (
        *place,
        Finding("training step", None, median(s.seconds for s in chosen[0]), "s", reason=why),
        Finding("exposed communication a step", None, min(u.exposed_s for u in spent), "s", reason=why),
        *(undecided(f, f.reason) for f in _waiting(traces, chosen[0], meet(traces) if len(traces) > 1 else None, 1)),
    )
    notes.append(plural(len(chosen[0]), "training step"))
    return Section("trace", tuple(names), findings, tuple(notes), _spent(traces, chosen))


def _spent(traces: Sequence[Trace], chosen: Sequence[list[Step]]) -> tuple[tuple[int, Usage], ...]:
    """How a mean step of each rank was spent, where a device tells it."""
    found = zip(traces, chosen, strict=True)
    return tuple((t.rank, t.usage(steps).of(len(steps))) for t, steps in found if steps and t.on_device)


def _workload(trace: Trace, asked: Question) -> _Workload:
    """The user's words, else the commonest decode step (or the commonest step at all) of the trace."""
    described = [s for s in trace.steps if s.phase not in ("", "train")]
    context = asked.context or 1024
    if not described:
        return _Workload(asked.phase, asked.batch or 1, context, False)
    pool = [s for s in described if s.phase == asked.phase] or described
    phase = pool[0].phase
    if phase != "decode":
        common = Counter((s.prefill_seqs, s.prefill_tokens) for s in pool if s.phase == phase).most_common(1)[0][0]
        length = asked.context or (common[1] // common[0] if common[0] and common[1] else context)
        return _Workload(phase, asked.batch or max(1, common[0]), length, True)
    batch = asked.batch or Counter(s.decode_seqs for s in pool).most_common(1)[0][0]
    return _Workload(phase, batch, context, True)


def _is(step: Step, work: _Workload) -> bool:
    if not step.phase:
        return True
    size = step.decode_seqs if step.phase == "decode" else step.prefill_seqs
    return step.phase == work.phase and (step.phase == "mixed" or size == work.batch)


def _sent(traces: Sequence[Trace], chosen: Sequence[list[Step]], work: _Workload, asked: Question) -> Iterator[Finding]:
    """How many collectives a step has, and how many bytes they hold."""
    expected = traffic(
        asked.model, asked.cluster, phase=work.phase, batch=work.batch, context=work.context, eager=asked.eager, **asked.plan
    )
    lines = [i for i in expected.items if i.is_sent]
    measured = {c.op for t in traces for c in t.collectives if c.step >= 0} - set(NOT_SENT)
    steps = [(t, s) for t, found in zip(traces, chosen, strict=True) for s in found]
    kinds = [("", measured)] if UNNAMED in measured else [(op, {op}) for op in sorted({i.op for i in lines} | measured)]
    for op, taken in kinds:
        mine = [i for i in lines if not op or i.op == op]
        per_step = [[c for c in t.collectives if c.step == s.index and c.op in taken] for t, s in steps]
        found = [_count(op or "collectives", float(sum(i.count for i in mine)), [len(p) for p in per_step], work.phase, traces[0])]
        if op and any(per_step) and mine:
            found.append(_bytes(op, float(sum(i.count * i.nbytes for i in mine)), per_step))
        yield from (undecided(f, "a rank of a pipeline holds its own stage's only") if asked.pp > 1 else f for f in found)
    groups = {c.ranks for t in traces for c in t.collectives if c.ranks and c.op == "all-reduce"}
    if len(groups) == 1:
        yield compare("ranks of an all-reduce", asked.tp, groups.pop(), reason="another group than tensor parallelism's")


def _count(op: str, predicted: float, counts: list[int], phase: str, trace: Trace) -> Finding:
    least, most = min(counts), max(counts)
    reason = f"steps differ: {least} to {most}" if least != most else "other collectives than this plan issues"
    if most == 0 and trace.issued.get(op):
        reason = "the host called some, and none ran on the device"
    elif most == 0:
        reason = "none in the trace: TP was not applied, or kernels under a name that is not known"
    found = compare(f"{op} a {phase} step", predicted, median(counts), reason=reason)
    return found if least == most else Finding(found.item, predicted, median(counts), "", 0.0, DISAGREE, reason)


def _bytes(op: str, predicted: float, steps: list[list[Collective]]) -> Finding:
    sizes = [[c.nbytes for c in step] for step in steps]
    item = f"{op} bytes a step"
    if any(n is None for step in sizes for n in step):
        graph = any(c.graph for step in steps for c in step)
        why = "kernels replayed from a CUDA graph carry no size" if graph else "the trace has no message sizes (record_shapes)"
        return Finding(item, predicted, None, "bytes", reason=why)
    sums = [sum(n for n in step if n is not None) for step in sizes]
    return compare(item, predicted, median(sums), "bytes", reason="other rows (padding, batch) or another type than was said")


def _taken(
    traces: Sequence[Trace], chosen: Sequence[list[Step]], priced: StepBill, asked: Question, meetings: Meetings | None
) -> Iterator[Finding]:
    """Seconds: each kind of collective, the step, and the part of it in which nothing but communication runs."""
    indices = {s.index for s in chosen[0]}
    for op in sorted({x.item.op for x in priced.items if x.kind == "comm"}):
        lines = [x for x in priced.items if x.kind == "comm" and x.item.op == op]
        predicted = float(sum(x.total_s for x in lines)) / float(sum(x.item.count for x in lines))
        yield _judged(_one(op, predicted, indices, traces, asked, meetings), traces[0], asked)
    pairs = zip(traces, chosen, strict=True)
    spent = [t.usage(steps).of(len(steps)) for t, steps in pairs if steps]
    step, predicted_step = median(s.seconds for s in chosen[0]), float(priced.step_s)
    why = "profiling itself, host time, or other hardware than was said"
    if spent[0].idle_share > IDLE_SHARE and traces[0].on_device:
        why = f"the device idles {spent[0].idle_share:.0%} of it: host time, profiling included"
    yield _judged(asked.seconds(f"{priced.phase} step", predicted_step, step, why), traces[0], asked)
    exposed = min(u.exposed_s for u in spent)  # of the rank that waits least
    predicted = float(priced.comm_fraction) * predicted_step
    why = "other collectives, links or sizes than was said, or waiting"
    yield _judged(asked.seconds("exposed communication, of the step", predicted, exposed, why, predicted_step), traces[0], asked)


def _one(
    op: str, predicted: float, steps: set[int], traces: Sequence[Trace], asked: Question, meetings: Meetings | None
) -> Finding:
    """One collective: the least over ranks is the wire, where every rank of its group is here; else the wire is at most that."""
    mine = [c for c in traces[0].collectives if c.op == op and c.step in steps]
    times = [m.wire_s for m in meetings.matched if m.op == op and m.step in steps] if meetings else [c.seconds for c in mine]
    measured = median(times) if times else None
    how = "least over ranks" if meetings else "one rank, waiting included"
    why = "another path, link or size than was said" if times else "none in these steps"
    found = asked.seconds(f"one {op} ({how})", predicted, measured, why)
    group = _group(mine, asked.tp)
    if found.verdict == DISAGREE and group > len(traces) and (measured or 0.0) > predicted:
        return undecided(found, f"{len(traces)} of its {group} ranks here: the time may hold waiting for the others")
    return found


def _judged(found: Finding, trace: Trace, asked: Question) -> Finding:
    """Host times are no device times; where seconds are no yardstick at all, that is said already."""
    if trace.on_device or asked.distrust:
        return found
    return undecided(found, "the trace has no device: times are the host's, profiler included")


def _waiting(traces: Sequence[Trace], steps: Sequence[Step], meetings: Meetings | None, tp: int) -> Iterator[Finding]:
    """Waiting is not transfer: who comes last, and what the others lose."""
    if meetings is None:
        return
    if not meetings.matched:
        yield Finding("waiting for the slowest rank", 0.0, None, "share", reason="no collective could be matched over the ranks")
        return
    indices = {s.index for s in steps}
    waited = [sum(m.skew_s[i] for m in meetings.matched if m.step in indices) for i in range(len(traces))]
    worst = max(waited) / sum(s.seconds for s in steps)
    last = meetings.ranks[waited.index(min(waited))]
    each = ", ".join(f"rank {r} {format_seconds(s / len(steps))}" for r, s in zip(meetings.ranks, waited, strict=True))
    words = f"rank {last} comes last; waited a step: {each}"
    verdict = AGREE if worst <= WAITING_SHARE else DISAGREE if traces[0].on_device else UNKNOWN
    matched = f"{plural(len(meetings.matched), 'collective')} matched by {'clock' if meetings.by_clock else 'order'}"
    lost = f", {meetings.unmatched} not" if meetings.unmatched else ""
    reason = f"{words}; {matched}{lost}"
    found = Finding("waiting for the slowest rank, of the step", 0.0, worst, "share", WAITING_SHARE, verdict, reason)
    group = _group(traces[0].collectives, tp)
    absent = f"{len(traces)} of {group} ranks here: others may come later still; {reason}"
    yield undecided(found, absent) if verdict == AGREE and group > len(traces) else found


def _group(collectives: Iterable[Collective], tp: int) -> int:
    """Ranks that meet, as the trace tells them or else as was said."""
    return max((c.ranks for c in collectives), default=0) or tp
