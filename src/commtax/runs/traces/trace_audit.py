"""Traces of a job: what happened in it, what that costs and who is to blame; and whether it is what was claimed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from commtax.runs.evidence.finding import Claim, CollectiveRow, Finding, KernelRow, Section, SentCollectives, StepRow, Usage
from commtax.runs.traces.accounts import REPEATED, WHOLE, TracedJob
from commtax.runs.traces.causes import blame, causes
from commtax.runs.traces.claim_check import (
    NO_DEVICE,
    both_means,
    compare_with_claim,
    layer_notes,
    per_step,
    place_notes,
    waiting_findings,
)
from commtax.runs.traces.meeting import spans
from commtax.runs.traces.run_differences import typical_by_rank
from commtax.runs.traces.trace import KINDS, Collective, Trace, holding
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.timeline import Column, Timeline
from commtax.units import format_seconds, plural

COUNT, LEVEL = thresholds(__name__)


def step_rows(job: TracedJob) -> tuple[StepRow, ...]:
    """Every step of every rank, each second once."""
    rows = []
    for place, (trace, ran, (begin, end)) in enumerate(zip(job.traces, job.covered, job.windows, strict=True)):
        compute, exposed, hidden, copy, _ = ran.spent(begin, end)
        idle = np.maximum(0, end - begin - compute - exposed - copy)
        usual = np.isin(np.arange(len(begin)), job.usual[place])
        columns = (job.job_s(place, begin), compute, exposed, hidden, copy, idle, usual)
        figures = zip(*(c.tolist() for c in columns), strict=True)
        rows += [StepRow(trace.rank, s.index, s.name, *told) for s, told in zip(trace.steps, figures, strict=True)]
    return tuple(rows)


_Kind = tuple[str, str, str, int, float | None]


def collective_rows(job: TracedJob) -> tuple[CollectiveRow, ...]:
    """Collectives by kind, algorithm, group and size: what one rank has of them, the mean of those that have any; dearest first."""
    kinds: dict[_Kind, list[Column]] = {}
    called = _roles(job)
    for place, trace in enumerate(job.traces):
        start, end = spans(trace)
        waited = np.nan_to_num(job.waiting[place])
        hidden = job.covered[place].compute.within(start, end)
        keys: dict[_Kind, int] = {}
        told = ((c.op, c.algorithm, called[c.group, c.ranks], c.ranks, c.nbytes) for c in trace.collectives)
        code = np.fromiter((keys.setdefault(k, len(keys)) for k in told), int, len(start))
        columns = (np.ones(len(start)), end - start - waited, waited, hidden)
        figures = [np.bincount(code, weights=x, minlength=len(keys)) for x in columns]
        for key, at in keys.items():
            kinds.setdefault(key, []).append(np.array([f[at] for f in figures]))
    rows = []
    for (op, algorithm, group, ranks, nbytes), parts in kinds.items():
        count, wire, wait, under = np.mean(parts, axis=0).tolist()
        total = None if nbytes is None else nbytes * round(count)
        rows.append(CollectiveRow(op, algorithm, group, ranks, round(count), total, wire, wait, under))
    return tuple(sorted(_merge_rows(rows), key=lambda r: -(r.wire_s + r.wait_s)))


def _roles(job: TracedJob) -> Mapping[tuple[str, int], str]:
    """What a row calls each group, by its name and size: those of one size that no rank shares do the same on different ranks."""
    held: dict[tuple[str, int], set[int]] = {}
    for place, trace in enumerate(job.traces):
        for group in dict.fromkeys((c.group, c.ranks) for c in trace.collectives):
            held.setdefault(group, set()).add(place)
    roles: list[tuple[int, set[int], list[str]]] = []
    for (name, size), places in held.items():
        alike = (r for r in roles if name and r[2][0] and r[0] == size and r[1].isdisjoint(places))
        role = next(alike, None)
        if role is None:
            roles.append(role := (size, set(), []))
        role[1].update(places)
        role[2].append(name)
    more = (f" and {len(names) - 1} more" if len(names) > 1 else "" for _, _, names in roles)
    return {(name, size): names[0] + others for (size, _, names), others in zip(roles, more, strict=True) for name in names}


def _merge_rows(rows: list[CollectiveRow]) -> Iterator[CollectiveRow]:
    """Rows as they are, but one row for messages of many sizes."""
    alike: dict[tuple[str, str, str, int], list[CollectiveRow]] = {}
    for row in rows:
        alike.setdefault((row.op, row.algorithm, row.group, row.ranks), []).append(row)
    for key, of_kind in alike.items():
        if len(of_kind) <= COUNT.most_sizes:
            yield from of_kind
            continue
        sizes = [r.nbytes for r in of_kind]
        nbytes = None if any(n is None for n in sizes) else float(sum(n or 0.0 for n in sizes))
        sums = (sum(getattr(r, name) for r in of_kind) for name in ("wire_s", "wait_s", "hidden_s"))
        yield CollectiveRow(*key, sum(r.count for r in of_kind), nbytes, *sums)


def sent_a_step(job: TracedJob) -> Mapping[tuple[str, int], SentCollectives]:
    """By kind and group size what one rank sends in a usual step, the mean of those that send any."""
    ranks: dict[tuple[str, int], list[SentCollectives]] = {}
    for place, trace in enumerate(job.traces):
        start, end = spans(trace)
        waited, hidden = np.nan_to_num(job.waiting[place]), job.covered[place].compute.within(start, end)
        inside = {trace.steps[at].index for at in job.usual[place].tolist()}
        calls: dict[tuple[str, int], list[int]] = {}
        for i, c in enumerate(trace.collectives):
            if c.step in inside:
                calls.setdefault((c.op, c.ranks), []).append(i)
        for key, rows in calls.items():
            times = [float(x[rows].sum()) / len(inside) for x in (end - start - waited, waited, hidden)]
            ranks.setdefault(key, []).append(_mean_sent([trace.collectives[i] for i in rows], times, len(inside)))
    return {key: _mean(of_ranks) for key, of_ranks in ranks.items()}


def _mean_sent(calls: Sequence[Collective], times: Sequence[float], steps: int) -> SentCollectives:
    """Collectives alike of some steps in one of them; ``times`` of one: wire, waiting and hidden."""
    sizes, (wire, wait, hidden) = [c.nbytes for c in calls], times
    nbytes = None if None in sizes else float(sum(n or 0.0 for n in sizes)) / steps
    named = Counter(c.algorithm for c in calls if c.algorithm)
    return SentCollectives(len(calls) / steps, nbytes, wire, wait, hidden, tuple(name for name, _ in named.most_common()))


def _mean(sent: Sequence[SentCollectives]) -> SentCollectives:
    count, wire, wait, hidden = (float(np.mean([getattr(s, f) for s in sent])) for f in ("count", "wire_s", "wait_s", "hidden_s"))
    sizes = [s.nbytes for s in sent]
    nbytes = None if None in sizes else float(np.mean([n or 0.0 for n in sizes]))
    return SentCollectives(count, nbytes, wire, wait, hidden, tuple(dict.fromkeys(a for s in sent for a in s.algorithms)))


def kernel_rows(job: TracedJob) -> tuple[KernelRow, ...]:
    """Device work by name in a step of a rank, dearest first."""
    counts: dict[tuple[str, int], list[float]] = {}
    steps = max(1, sum(len(t.steps) for t in job.traces))
    for place in range(len(job.traces)):
        for key, (count, seconds) in named_work(job, place).items():
            sums = counts.setdefault(key, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + count / steps, sums[1] + seconds / steps
    dearest = sorted(counts.items(), key=lambda item: -item[1][1])[: COUNT.most_kernels]
    return tuple(KernelRow(name, KINDS[kind], *sums) for (name, kind), sums in dearest)


def named_work(job: TracedJob, place: int) -> Mapping[tuple[str, int], tuple[int, float]]:
    """Of each name and kind how often it ran in a rank's steps, and how long together."""
    line = job.traces[place].timeline
    inside = np.flatnonzero(holding(np.column_stack(job.windows[place]), line.start_s) >= 0)
    kinds = line.kind.tolist()
    keys: dict[tuple[str, int], int] = {}
    code = np.fromiter((keys.setdefault((line.name[i], kinds[i]), len(keys)) for i in inside.tolist()), int, len(inside))
    counts = np.bincount(code, minlength=len(keys))
    sums = np.bincount(code, weights=(line.end_s - line.start_s)[inside], minlength=len(keys))
    return {key: (int(counts[i]), float(sums[i])) for key, i in keys.items()}


def typical_step(job: TracedJob) -> Timeline | None:
    """The step of median length on the first ranks, from its own beginning; of very many intervals the longest."""
    totals = job.accounts.total_s
    if not totals.size:
        return None
    middle = int(np.argsort(totals[0], kind="stable")[totals.shape[1] // 2])
    cuts, lines = [], [t.timeline for t in job.traces[: COUNT.measured_ranks]]
    windows = [(job.windows[p][0][job.common[p][middle]], job.windows[p][1][job.common[p][middle]]) for p in range(len(lines))]
    zero = min(float(job.job_s(p, np.array(begin))) for p, (begin, _) in enumerate(windows))
    for place, (line, (begin, end)) in enumerate(zip(lines, windows, strict=True)):
        rows = np.flatnonzero((line.end_s > begin) & (line.start_s < end))
        start, finish = np.maximum(line.start_s[rows], begin), np.minimum(line.end_s[rows], end)
        cuts.append((rows, job.job_s(place, start) - zero, job.job_s(place, finish) - zero))
    lanes = tuple(name for line in lines for name in line.lanes)
    base = np.concatenate([[0], np.cumsum([len(line.lanes) for line in lines])])
    parts, starts, ends = zip(*cuts, strict=True)
    lane = np.concatenate([line.lane[own] + first for line, own, first in zip(lines, parts, base, strict=False)])
    kind = np.concatenate([line.kind[own] for line, own in zip(lines, parts, strict=True)])
    start, end = np.concatenate(starts), np.concatenate(ends)
    names = [line.name[i] for line, own in zip(lines, parts, strict=True) for i in own.tolist()]
    kept = np.sort(np.argsort(start - end, kind="stable")[: COUNT.measured_intervals])
    return Timeline(lane[kept], start[kept], end[kept], kind[kept], tuple(names[i] for i in kept.tolist()), lanes, lines[0].kinds)


_FUSED = re.compile(r"fusion|fused|norm", re.I)


def audit_traces(traces: Sequence[Trace], claim: Claim | None, names: Sequence[str]) -> Section:
    """All ranks of one job (or one of them)."""
    job = TracedJob.of(traces)
    read, said, facts = tuple(_read(job)), tuple(_notes(job)), _facts(job)
    culprit, cost_s = blame(job)
    steps, sent = step_rows(job), sent_a_step(job)
    collectives, kernels, measured = collective_rows(job), kernel_rows(job), typical_step(job)
    spent = tuple((rank, used) for rank, _, used in typical_by_rank([s for s in steps if s.usual] or steps))
    findings, notes, usage = compare_with_claim(job, claim) if claim else (tuple(_step_findings(job, spent, sent)), (), spent)
    return Section(
        "trace",
        tuple(names),
        findings,
        (*read, *place_notes(job.traces), *notes, *said, *layer_notes(job)),
        usage if job.traces[0].on_device else (),
        causes(job, culprit, cost_s),
        culprit,
        steps,
        collectives,
        kernels,
        facts,
        measured,
        sent if any(t.steps for t in job.traces) else None,
    )


def _step_findings(
    job: TracedJob, usage: Sequence[tuple[int, Usage]], sent: Mapping[tuple[str, int], SentCollectives]
) -> Iterator[Finding]:
    """What a usual step holds and takes, where nobody says what it should; ``usage`` is how it was spent on each rank."""
    head = job.traces[0]
    why = "" if head.on_device else NO_DEVICE
    if not head.steps:
        return
    phase, spent = Counter(s.phase for s in head.steps).most_common(1)[0][0], job.typical
    named = WHOLE if head.steps[0].name == WHOLE else f"{phase} step".strip()
    yield Finding(Note("step", named), None, float(np.mean([used.total_s for _, used in usage])), "s", reason=why)
    for op, count in sorted(per_step(job).items()):
        yield Finding(Note("count", f"{op}s per step"), None, count, of=op)
        if (size := _bytes(sent, op)) is not None:
            yield Finding(Note("bytes", f"{op} bytes per step"), None, size, "bytes", of=op)
        item, mean = both_means(op, job.meetings is not None, wires := _wires(job, op))
        yield Finding(item, None, float(median(wires)), "s", reason=why, of=op)
        yield from [mean] if mean else []
    if head.on_device and spent.usual_s > 0:
        length, idle = np.maximum(spent.usual("total_s"), 1e-12), spent.usual("idle_s")
        exposed = spent.usual("wire_s") + spent.usual("wait_s")
        yield Finding("exposed communication, of the step", None, float(np.min(exposed / length)), "share")
        yield Finding("idle device, of the step", None, float(np.median(idle / length)), "share")
    yield from _outside_findings(job)
    usual = [[s for s in t.steps if s.phase == phase] or t.steps for t in job.traces]
    yield from (f.undecided(f.reason) for f in waiting_findings(job, usual, 1))


def _outside_findings(job: TracedJob) -> Iterator[Finding]:
    """What each rank computes in the whole trace, where its steps hold less than half of that."""
    for place, trace in enumerate(job.traces[: COUNT.most_ranks]):
        ran, (begin, end) = job.covered[place].compute, job.windows[place]
        total = ran.seconds(-math.inf, math.inf)
        inside = float(ran.within(begin, end).sum())
        if trace.on_device and inside < LEVEL.in_steps * total:
            item = Note("outside", f"rank {trace.rank}: compute in the whole trace")
            yield Finding(item, None, total, "s", reason=f"{format_seconds(inside)} of it in its steps")


def _bytes(sent: Mapping[tuple[str, int], SentCollectives], op: str) -> float | None:
    """What a usual step's collectives of a kind hold; None where some carry no size."""
    sizes = [s.nbytes for (kind, _), s in sent.items() if kind == op]
    return None if None in sizes else float(sum(n or 0.0 for n in sizes))


def _wires(job: TracedJob, op: str) -> list[float]:
    """The wires of a kind on the first rank: what other groups send may be of another size."""
    calls = [(c.seconds, w) for c, w in zip(job.traces[0].collectives, job.waiting[0].tolist(), strict=True) if c.op == op]
    return [lasted - w for lasted, w in calls if not math.isnan(w)] or [lasted for lasted, _ in calls]


def _read(job: TracedJob) -> Iterator[Note]:
    """What the reader of the first trace remarked, but that nobody named steps where they were found by repetition."""
    found = bool(job.traces[0].steps) and job.traces[0].steps[0].name == REPEATED
    return (n for n in job.traces[0].notes if not (found and n.code == "no steps"))


def _notes(job: TracedJob) -> Iterator[Note]:
    """How steps were found, clocks that differ, kernels that hold compute, files that end early."""
    head = job.traces[0]
    if head.steps and head.steps[0].name == REPEATED:
        each = format_seconds(median(s.seconds for s in head.steps))
        yield Note("repetition", f"{plural(len(head.steps), 'step')} of {each} found by repetition: nobody named them")
    fused = {c.name.split("<")[0].split("(")[0] for c in head.collectives if _FUSED.search(c.name[:300])}
    if fused:
        number = sum(bool(_FUSED.search(c.name[:300])) for c in head.collectives)
        which = ", ".join(sorted(fused)[:3])
        yield Note("fused", f"{number} collectives are fused with what follows ({which}): their time holds compute")
    if job.meetings and (most := max(abs(o) for o in offsets(job))) > LEVEL.skew_s:
        yield Note("clocks", f"clocks of the ranks differ by up to {format_seconds(most)}: aligned by what ends on all of them")
    for t in job.traces:
        if t.partial:
            yield Note("partial", f"rank {t.rank}: {t.partial}")


def offsets(job: TracedJob) -> list[float]:
    """What is added to each rank's clock."""
    return [float(c.job_s(np.array(c.at_s)) - c.at_s) for c in job.meetings.clocks] if job.meetings else [0.0]


def _facts(job: TracedJob) -> Mapping[str, str]:
    """What two runs may differ in."""
    head = job.traces[0]
    ranks = [t.rank for t in job.traces]
    facts = {"ranks": f"{len(ranks)}" + (f" of {head.world}" if head.world > len(ranks) else "")}
    if head.device:
        facts["device"] = head.device.name or "a device without a name"
    if hosts := sorted({t.host for t in job.traces if t.host}):
        facts["hosts"] = ", ".join(hosts[:16])
    if head.steps:
        name = head.steps[0].name
        how = name if name in (REPEATED, WHOLE) else "graph replays" if name == "graph replay" else "annotated"
        facts["steps"] = f"{len(head.steps)} ({how})"
    if head.on_device and (head.device or head.replayed):
        facts["kernels from graphs"] = f"{head.replayed:.0%}"
    if algorithms := sorted({f"{c.op} {c.algorithm}" for c in head.collectives if c.algorithm}):
        facts["algorithms"] = ", ".join(algorithms[:16])
    if sizes := sorted({c.ranks for c in head.collectives if c.ranks}):
        facts["group sizes"] = ", ".join(map(str, sizes[:16]))
    return facts
