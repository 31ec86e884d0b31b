"""What happened in a job, as rows: steps, collectives, kernels, and a typical step as a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from commtax.runs.evidence.finding import CollectiveRow, KernelRow, SentCollectives, StepRow
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.meeting import spans
from commtax.runs.traces.trace import KINDS, Collective, holding
from commtax.thresholds import counts
from commtax.timeline import Column, Timeline

COUNT = counts(__name__)


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
