"""How the ranks of a job spent their steps, side by side: compute, wire and waiting, idle time, each second once; and as rows.

Ranks that meet take equally long for a step, so that whoever waits least is the one the others wait for. Steps without a name are
found by what repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from commtax.runs.evidence.finding import REPEATED, WHOLE, CollectiveRow, KernelRow, SentCollectives, StepRow
from commtax.runs.traces.meeting import MESSAGE, Meetings, meet, spans
from commtax.runs.traces.trace import KINDS, DeviceCoverage, Trace, TraceStep, device_coverage, holding, period
from commtax.thresholds import thresholds
from commtax.timeline import Column, Timeline

COUNT, LEVEL = thresholds(__name__)


def repeated_steps(trace: Trace) -> list[list[TraceStep]]:
    """Return steps by the period of the busiest lane's names, and by that of the collectives' kinds and sizes, if any."""
    line = trace.timeline
    if not len(line.start_s):
        return []
    busiest = int(np.argmax(np.bincount(line.lane[line.kind != line.kinds.index("copy")], minlength=len(line.lanes))))
    chosen = np.flatnonzero(line.lane == busiest)
    chosen = chosen[np.argsort(line.start_s[chosen], kind="stable")]
    called = sorted(trace.collectives, key=lambda c: c.start_s)
    calls = [f"{c.op} {c.nbytes} {c.group}" for c in called], np.array([c.start_s for c in called])
    seen = [([line.name[i] for i in chosen.tolist()], line.start_s[chosen]), calls]
    return [_steps(starts, length, line.finish_s) for names, starts in seen if (length := period_of(names)) > 1]


def between_collectives(trace: Trace) -> list[TraceStep]:
    """Return the spans from each collective to the next, to compare ranks where all kernels are alike."""
    starts = np.sort([c.start_s for c in trace.collectives])
    return _steps(starts, 1, trace.timeline.finish_s) if len(starts) >= COUNT.fewest else []


def likeliest(candidates: Sequence[list[TraceStep]]) -> list[TraceStep]:
    """Return the fewest steps, since layers repeat as well as steps do, but not so few that they may be chance."""
    enough = [steps for steps in candidates if len(steps) >= COUNT.fewest] or list(candidates)
    return min(enough, key=len, default=[])


def with_steps(trace: Trace, steps: Sequence[TraceStep]) -> Trace:
    """Return the trace with these steps, and its collectives assigned to them."""
    steps = [replace(s, phase="train") for s in steps] if trace.training else list(steps)
    at = holding([(s.start_s, s.end_s) for s in steps], np.array([c.start_s for c in trace.collectives]))
    collectives = tuple(replace(c, step=i) for c, i in zip(trace.collectives, at.tolist(), strict=True))
    return replace(trace, steps=tuple(steps), collectives=collectives)


def _steps(starts: Column, length: int, finish_s: float) -> list[TraceStep]:
    """Return whole periods, each until the next begins."""
    begins = starts[::length].tolist()
    count = len(starts) // length
    ends = [*begins[1:], finish_s][:count]
    return [TraceStep(i, REPEATED, b, e) for i, (b, e) in enumerate(zip(begins[:count], ends, strict=True))]


def period_of(names: Sequence[str]) -> int:
    """Return the number of names after which all repeat (some may differ), or 0 where they do not.

    >>> period_of(["a", "b", "b", "c"] * 3 + ["a"]), period_of(["a", "b", "c"])
    (4, 0)
    """
    codes: dict[str, int] = {}
    signs = np.fromiter((codes.setdefault(n, len(codes)) for n in names), int, len(names))
    if len(signs) <= COUNT.exact and (exact := period(signs.tolist())):
        return exact
    # The distance at which the rarest regular name comes again, if nearly all others do too.
    counts = np.bincount(signs, minlength=len(codes))
    for code in np.argsort(counts, kind="stable")[: COUNT.rare].tolist():
        if counts[code] < COUNT.fewest:
            continue
        apart = np.diff(np.flatnonzero(signs == code))
        length = int(np.median(apart))
        regular = float(np.mean(apart == length)) >= LEVEL.regular
        if regular and 1 < length <= len(signs) // 2 and float(np.mean(signs[length:] == signs[:-length])) >= LEVEL.period_like:
            return length
    return 0


@dataclass(frozen=True, slots=True)
class Accounts:
    """Seconds of each rank (rows) in each step (columns). ``begin_s`` is the job's time, or a single trace's own."""

    begin_s: Column
    total_s: Column
    compute_s: Column
    wire_s: Column  # exposed communication but for waiting
    wait_s: Column  # exposed
    hidden_s: Column  # wire under compute
    copy_s: Column
    idle_s: Column
    host_s: Column  # no compute, and no collective whose end was waited for: idle, whether communication runs or not
    starved_s: Column  # waiting in messages whose other end was done before

    @property
    def step_s(self) -> float:
        """A typical step."""
        return float(np.median(self.total_s)) if self.total_s.size else 0.0

    def usual(self, name: str) -> Column:
        """Return each rank's mean over the middle half of its steps by length, as the typical step that is shown (``typical``)."""
        count = self.total_s.shape[1]
        kept = np.argsort(self.total_s, axis=1, kind="stable")[:, count // 4 : count - count // 4]
        return np.asarray(np.take_along_axis(getattr(self, name), kept, axis=1).mean(axis=1))

    @property
    def usual_s(self) -> float:
        """The length of such a step, the mean of the ranks."""
        return float(self.usual("total_s").mean()) if self.total_s.size else 0.0

    def together(self, most: int) -> tuple[Accounts, Column]:
        """Join consecutive steps into at most so many columns, and return the first step of each."""
        count = self.total_s.shape[1]
        size = max(1, -(-count // most))
        first = np.arange(0, count - count % size or count, size)
        sums = {f.name: sum_columns(getattr(self, f.name), first) for f in fields(self)}
        return replace(self, **{**sums, "begin_s": self.begin_s[:, first]}), first


def sum_columns(rows: Column, first: Column) -> Column:
    """Sum columns in bundles that start at the given ones, leaving out an incomplete bundle at the end."""
    size = int(first[1] - first[0]) if len(first) > 1 else rows.shape[1]
    return np.add.reduceat(rows[:, : int(first[-1]) + size if len(first) else 0], first, axis=1)


@dataclass(frozen=True)  # without slots: what is used often is cached
class TracedJob:
    """The ranks of one job with their steps, in order, and what they met in (None: one rank alone)."""

    traces: tuple[Trace, ...]
    meetings: Meetings | None

    @staticmethod
    def of(traces: Sequence[Trace]) -> TracedJob:
        """Return the job with steps in all traces: named ones, what repeats, or all of a trace as one."""
        ordered = tuple(sorted(traces, key=lambda t: t.rank))
        met = meet(ordered) if len(ordered) > 1 else None
        if not all(t.steps for t in ordered):
            ordered = _with_common_steps(ordered, met)
        ordered = _extend_steps(ordered)
        return TracedJob(ordered, replace(met, traces=ordered) if met else None)

    def job_s(self, place: int, local_s: Column) -> Column:
        """Convert moments of one trace to the job's time, which starts at its first event."""
        return self.meetings.job_s(place, local_s) if self.meetings else local_s - self.traces[place].begin_s

    @cached_property
    def covered(self) -> tuple[DeviceCoverage, ...]:
        return tuple(device_coverage(t.timeline) for t in self.traces)

    @cached_property
    def windows(self) -> tuple[tuple[Column, Column], ...]:
        """Begins and ends of each rank's steps, without overlap."""
        windows = []
        for t in self.traces:
            begin, end = np.array([s.start_s for s in t.steps]), np.array([s.end_s for s in t.steps])
            windows.append((begin, np.minimum(end, np.append(begin[1:], [np.inf] * min(1, len(begin))))))
        return tuple(windows)

    def step_of(self, place: int, at_s: Column) -> Column:
        """Return the step of one rank that holds each moment, or -1 before the first."""
        return np.searchsorted(self.windows[place][0], at_s, side="right") - 1

    @cached_property
    def waiting(self) -> tuple[Column, ...]:
        """Of each rank's collectives the seconds before the last rank came, nan where the other ranks are not here."""
        waits = [np.full(len(t.collectives), np.nan) for t in self.traces]
        if (met := self.meetings) is not None:
            waited = met.seconds - met.wire_s[met.of]
            for place, of_rank in enumerate(waits):
                mine = met.place == place
                of_rank[met.index[mine]] = waited[mine]
        return tuple(waits)

    @cached_property
    def alone(self) -> tuple[Column, ...]:
        """For messages whose sender or receiver is missing, the time beyond that of the quickest message."""
        lengths, loose, took = [], [], [np.zeros(0)]
        for trace, waited in zip(self.traces, self.waiting, strict=True):
            start, end = spans(trace)
            message = np.array([c.op == MESSAGE for c in trace.collectives], dtype=bool)
            lengths.append(end - start)
            loose.append(message & np.isnan(waited) if len(self.traces) > 1 else np.zeros(len(start), dtype=bool))
            took.append((end - start - np.nan_to_num(waited))[message])  # the wire of those that met, all of those that did not
        every = np.concatenate(took)
        quickest = float(np.quantile(every, LEVEL.quickest)) if len(every) else 0.0
        return tuple(np.where(m, np.maximum(0.0, x - quickest), np.nan) for x, m in zip(lengths, loose, strict=True))

    @cached_property
    def named(self) -> bool:
        """Whether steps were named. What merely repeats may be a layer or a microbatch, and begin anywhere in it."""
        return not any(s.name in (REPEATED, WHOLE) for t in self.traces for s in t.steps[:1])

    @cached_property
    def gathered(self) -> bool:
        """Whether all ranks share collectives, which align the clocks of all."""
        met = self.meetings
        if met is None or not len(met.first):
            return False
        message = np.array([c.op == MESSAGE for c in met.calls], dtype=bool)[met.of]
        return len(np.unique(met.place[~message])) == len(self.traces)

    @cached_property
    def synchronised(self) -> bool:
        """Whether the ranks' clocks are known: they share collectives, or their own clocks show most messages at both ends."""
        if self.gathered or self.meetings is None:
            return self.gathered
        sent = sum(c.op == MESSAGE for t in self.traces for c in t.collectives)
        paired = sum(2 for c in self.meetings.calls if c.op == MESSAGE)
        return paired >= LEVEL.paired * max(1, sent) and all(abs(c.offset_s) <= LEVEL.clocks_s for c in self.meetings.clocks)

    @cached_property
    def common(self) -> tuple[Column, ...]:
        """Of each rank the indices of steps that all ranks have, those of one moment in one place."""
        shifts = self._shifts()
        first = max(shifts)
        last = min(s + len(t.steps) for s, t in zip(shifts, self.traces, strict=True))
        steps = np.arange(first, max(first, last))
        kept = self._usual(steps - shifts[0])
        return tuple(steps[kept] - s for s in shifts)

    def _shifts(self) -> list[int]:
        """Return what to add to a rank's step numbers to get the first rank's, or 0 where the clocks are unknown."""
        met, shifts = self.meetings, np.zeros(len(self.traces), dtype=int)
        if met is None or not self.synchronised:
            return shifts.tolist()
        order = np.argsort(met.place, kind="stable")
        rows = np.concatenate([[0], np.cumsum(np.bincount(met.place, minlength=len(self.traces)))])
        at = np.zeros(len(met.place), dtype=int)
        lead = met.first[met.of]
        for place, trace in enumerate(self.traces):  # the first of a collective's ranks comes before all others
            mine = order[rows[place] : rows[place + 1]]
            at[mine] = self.step_of(place, spans(trace)[0][met.index[mine]])
            led = mine[lead[mine] != mine]
            if len(led):
                shifts[place] = int(np.median(at[lead[led]] + shifts[met.place[lead[led]]] - at[led]))
        return shifts.tolist()

    def _usual(self, steps: Column) -> Column:
        """Return a mask of the first rank's steps that have the usual number of collectives."""
        if not len(steps):
            return np.zeros(0, dtype=bool)
        steps_of_calls = self.step_of(0, spans(self.traces[0])[0])
        counts = np.bincount(steps_of_calls[steps_of_calls >= 0], minlength=int(steps[-1]) + 1)[steps]
        values, times = np.unique(counts, return_counts=True)
        if times.max() < LEVEL.usual * len(steps):
            return np.ones(len(steps), dtype=bool)
        usual = values[np.argmax(times)]
        return np.asarray(np.abs(counts - usual) <= max(1.0, LEVEL.like * usual))

    @cached_property
    def accounts(self) -> Accounts:
        """All ranks' steps that they have in common."""
        rows = [self._account(place) for place in range(len(self.traces))]
        pairs = list(zip(rows, self.common, strict=True))
        return Accounts(*(np.array([getattr(row, f.name)[steps] for row, steps in pairs]) for f in fields(Accounts)))

    @cached_property
    def _phased(self) -> Column:
        """Which common steps are of the commonest phase: an engine's prompts and tokens are not of one length."""
        phases = [self.traces[0].steps[at].phase for at in self.common[0].tolist()]
        usual = Counter(phases).most_common(1)[0][0] if phases else ""
        return np.array([phase == usual for phase in phases], dtype=bool)

    @cached_property
    def usual(self) -> tuple[Column, ...]:
        """Of each rank the indices of the steps that are like most, which stand for the typical step."""
        return tuple(steps[self._phased] for steps in self.common)

    @cached_property
    def typical(self) -> Accounts:
        """All ranks' usual steps."""
        return Accounts(*(getattr(self.accounts, f.name)[:, self._phased] for f in fields(Accounts)))

    def _account(self, place: int) -> Accounts:
        """Return one rank's seconds in all its steps."""
        ran, (begin, end) = self.covered[place], self.windows[place]
        compute, exposed, under, copy, anything = ran.spent(begin, end)
        start, finish = spans(self.traces[place])
        alone = np.nan_to_num(self.alone[place])
        waited = np.where(np.isnan(self.waiting[place]), alone, self.waiting[place])
        # Without waiting it would have ended so much earlier: what is exposed of it is waiting first.
        shown = np.minimum(waited, finish - start - ran.compute.within(start, finish))
        wait = np.minimum(exposed, self._summed(place, start, start + waited, shown))
        hidden = np.maximum(0.0, self._summed(place, start, finish, finish - start - waited) - (exposed - wait))
        hidden = np.minimum(hidden, under)  # no more than lies under compute
        idle, host = np.maximum(0.0, end - begin - anything), self._summed(place, *self._pauses(place, finish))
        begun, starved = self.job_s(place, begin), self._summed(place, start, finish, alone)
        return Accounts(begun, end - begin, compute, exposed - wait, wait, hidden, copy, idle, host, starved)

    def _summed(self, place: int, start: Column, end: Column, seconds: Column) -> Column:
        """Sum the seconds of spans in each step, splitting a span between the steps in which it begins and ends."""
        begin, until = self.windows[place]
        first, last = self.step_of(place, start), self.step_of(place, end)
        length = np.maximum(end - start, 1e-12)
        share = np.where(first == last, 1.0, np.clip((until[np.maximum(first, 0)] - start) / length, 0.0, 1.0))
        rest = np.where(first == last, 0.0, np.clip((end - begin[np.maximum(last, 0)]) / length, 0.0, 1.0 - share))
        inside = np.append(share * seconds, rest * seconds)
        at = np.append(first, last)
        return np.bincount(at[at >= 0], weights=inside[at >= 0], minlength=len(begin))[: len(begin)]

    def _pauses(self, place: int, ends: Column) -> tuple[Column, Column, Column]:
        """Return the pauses of compute, and how much of each is the host's: what no collective explains."""
        ran = self.covered[place]
        since, length = ran.compute.gaps
        until, ordered = since + length, np.concatenate([[-np.inf], np.sort(ends)])
        ended = ordered[np.searchsorted(ordered, until + LEVEL.soon_s, side="right") - 1]
        behind = until - np.clip(ended, since, until)
        behind = np.where(behind <= np.maximum(LEVEL.launch_s, LEVEL.launch_share * length), behind, length)
        return since, until, np.maximum(behind, length - ran.comm.within(since, until))

    def paused_within(self, place: int) -> Column:
        """Return for each common step the pauses of one rank that lie inside it and that no input explains."""
        since, until, free = self._pauses(place, spans(self.traces[place])[1])
        inside = (self.step_of(place, since) == self.step_of(place, until)) & ~self._for_input(place, since, until)
        return self._summed(place, since[inside], until[inside], free[inside])[self.common[place]]

    def _for_input(self, place: int, since: Column, until: Column) -> Column:
        """Return which pauses end soon behind a message that was not awaited: it may be one that had to come first."""
        start, end = spans(self.traces[place])
        messages = np.flatnonzero([c.op == MESSAGE for c in self.traces[place].collectives])
        messages = messages[np.argsort(end[messages], kind="stable")]
        at = np.searchsorted(end[messages], until + LEVEL.soon_s, side="right") - 1
        if not len(messages) or self.meetings is None:
            return np.zeros(len(since), dtype=bool)
        last = messages[np.maximum(at, 0)]
        soon = until - end[last] <= np.maximum(LEVEL.launch_s, LEVEL.launch_share * (until - since))
        # How long the other ends of a rank's collectives had waited when it came to them; nan where they are not here.
        ahead, met = np.full(len(self.traces[place].collectives), np.nan), self.meetings
        if met is not None and len(met.first):
            mine = met.place == place
            earliest = np.minimum.reduceat(met.start_s, met.first)
            ahead[met.index[mine]] = met.start_s[mine] - earliest[met.of[mine]]
        awaited = ahead[last] > LEVEL.awaited * (start[last] - since)
        return np.asarray((at >= 0) & soon & (start[last] > since) & ~awaited)


def _extend_steps(traces: tuple[Trace, ...]) -> tuple[Trace, ...]:
    """Extend steps to the next, except where all ranks rest between the same two: if only one rests, the others wait for it."""
    rests = [tuple(a.end_s < b.start_s for a, b in pairwise(t.steps)) for t in traces]
    if len(set(rests)) == 1:
        return traces
    alike = len(set(map(len, rests))) == 1
    kept = [all(of_ranks) for of_ranks in zip(*rests, strict=True)] if alike else [False] * max(map(len, rests))
    extended = []
    for t in traces:
        pairs = zip(pairwise(t.steps), kept, strict=False)
        until = [step if rest else replace(step, end_s=following.start_s) for (step, following), rest in pairs]
        extended.append(replace(t, steps=(*until, *t.steps[-1:])))
    return tuple(extended)


def _with_common_steps(traces: tuple[Trace, ...], met: Meetings | None) -> tuple[Trace, ...]:
    """Give traces one rank's steps at the same moments of the job: named steps, else repeated ones."""
    named = next((place for place, t in enumerate(traces) if t.steps), None)
    repeated = [(place, steps) for place, t in enumerate(traces) for steps in repeated_steps(t)] if named is None else []
    chosen = likeliest([steps for _, steps in repeated])
    lead = named if named is not None else next((place for place, steps in repeated if steps is chosen), 0)
    steps = list(traces[lead].steps) or chosen or (between_collectives(traces[lead]) if met else [])
    if not steps or met is None:
        whole = [steps or [TraceStep(0, WHOLE, t.timeline.begin_s, t.timeline.finish_s)] for t in traces]
        return tuple(t if t.steps else with_steps(t, of_trace) for t, of_trace in zip(traces, whole, strict=True))
    moments = met.job_s(lead, np.array([(s.start_s, s.end_s) for s in steps]))
    local = [met.local_s(place, moments).tolist() for place in range(len(traces))]
    moved = ([replace(s, start_s=b, end_s=e) for s, (b, e) in zip(steps, at, strict=True)] for at in local)
    return tuple(t if t.steps else with_steps(t, there) for t, there in zip(traces, moved, strict=True))


def step_rows(job: TracedJob) -> tuple[StepRow, ...]:
    """Return every step of every rank, each second counted once."""
    rows = []
    for place, (trace, ran, (begin, end)) in enumerate(zip(job.traces, job.covered, job.windows, strict=True)):
        compute, exposed, hidden, copy, _ = ran.spent(begin, end)
        idle = np.maximum(0, end - begin - compute - exposed - copy)
        usual = np.isin(np.arange(len(begin)), job.usual[place])
        columns = (job.job_s(place, begin), compute, exposed, hidden, copy, idle, usual)
        figures = zip(*(c.tolist() for c in columns), strict=True)
        rows += [StepRow(trace.rank, s.index, s.name, *row) for s, row in zip(trace.steps, figures, strict=True)]
    return tuple(rows)


_Kind = tuple[str, str, str, int, float | None]


def collective_rows(job: TracedJob) -> tuple[CollectiveRow, ...]:
    """Return collectives by kind, algorithm, group and size, averaged over the ranks that have any, dearest first."""
    kinds: dict[_Kind, list[Column]] = {}
    called = _roles(job)
    for place, trace in enumerate(job.traces):
        start, end = spans(trace)
        waited = np.nan_to_num(job.waiting[place])
        hidden = job.covered[place].compute.within(start, end)
        keys: dict[_Kind, int] = {}
        kinds_of_calls = ((c.op, c.algorithm, called[c.group, c.ranks], c.ranks, c.nbytes) for c in trace.collectives)
        code = np.fromiter((keys.setdefault(k, len(keys)) for k in kinds_of_calls), int, len(start))
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
    """Return a label for each group by name and size. Disjoint groups of one size do the same on different ranks."""
    places_of_groups: dict[tuple[str, int], set[int]] = {}
    for place, trace in enumerate(job.traces):
        for group in dict.fromkeys((c.group, c.ranks) for c in trace.collectives):
            places_of_groups.setdefault(group, set()).add(place)
    roles: list[tuple[int, set[int], list[str]]] = []
    for (name, size), places in places_of_groups.items():
        alike = (r for r in roles if name and r[2][0] and r[0] == size and r[1].isdisjoint(places))
        role = next(alike, None)
        if role is None:
            roles.append(role := (size, set(), []))
        role[1].update(places)
        role[2].append(name)
    more = (f" and {len(names) - 1} more" if len(names) > 1 else "" for _, _, names in roles)
    return {(name, size): names[0] + others for (size, _, names), others in zip(roles, more, strict=True) for name in names}


def _merge_rows(rows: list[CollectiveRow]) -> Iterator[CollectiveRow]:
    """Yield the rows, with messages of many sizes merged into one."""
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
    """Return what one rank sends in a usual step by kind and group size, averaged over the ranks that send any."""
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
            wire, wait, under = (float(x[rows].sum()) / len(inside) for x in (end - start - waited, waited, hidden))
            alike = [trace.collectives[i] for i in rows]
            nbytes = None if any(c.nbytes is None for c in alike) else float(sum(c.nbytes or 0.0 for c in alike)) / len(inside)
            named = Counter(c.algorithm for c in alike if c.algorithm)
            algorithms = tuple(name for name, _ in named.most_common())
            ranks.setdefault(key, []).append(SentCollectives(len(rows) / len(inside), nbytes, wire, wait, under, algorithms))
    return {key: _mean(of_ranks) for key, of_ranks in ranks.items()}


def _mean(sent: Sequence[SentCollectives]) -> SentCollectives:
    count, wire, wait, hidden = (float(np.mean([getattr(s, f) for s in sent])) for f in ("count", "wire_s", "wait_s", "hidden_s"))
    sizes = [s.nbytes for s in sent]
    nbytes = None if None in sizes else float(np.mean([n or 0.0 for n in sizes]))
    return SentCollectives(count, nbytes, wire, wait, hidden, tuple(dict.fromkeys(a for s in sent for a in s.algorithms)))


def kernel_rows(job: TracedJob) -> tuple[KernelRow, ...]:
    """Return device work by name in a step of a rank, dearest first."""
    counts: dict[tuple[str, int], list[float]] = {}
    steps = max(1, sum(len(t.steps) for t in job.traces))
    for place in range(len(job.traces)):
        for key, (count, seconds) in named_work(job, place).items():
            sums = counts.setdefault(key, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + count / steps, sums[1] + seconds / steps
    dearest = sorted(counts.items(), key=lambda item: -item[1][1])[: COUNT.most_kernels]
    return tuple(KernelRow(name, KINDS[kind], *sums) for (name, kind), sums in dearest)


def named_work(job: TracedJob, place: int) -> Mapping[tuple[str, int], tuple[int, float]]:
    """Return how often each name and kind ran in a rank's steps, and for how long together."""
    line = job.traces[place].timeline
    inside = np.flatnonzero(holding(np.column_stack(job.windows[place]), line.start_s) >= 0)
    kinds = line.kind.tolist()
    keys: dict[tuple[str, int], int] = {}
    code = np.fromiter((keys.setdefault((line.name[i], kinds[i]), len(keys)) for i in inside.tolist()), int, len(inside))
    counts = np.bincount(code, minlength=len(keys))
    sums = np.bincount(code, weights=(line.end_s - line.start_s)[inside], minlength=len(keys))
    return {key: (int(counts[i]), float(sums[i])) for key, i in keys.items()}


def typical_step(job: TracedJob) -> Timeline | None:
    """Return the timeline of the median-length step on the first ranks, from zero and with the longest intervals alone."""
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
    lane = np.concatenate([line.lane[rows] + first for line, rows, first in zip(lines, parts, base, strict=False)])
    kind = np.concatenate([line.kind[rows] for line, rows in zip(lines, parts, strict=True)])
    start, end = np.concatenate(starts), np.concatenate(ends)
    names = [line.name[i] for line, rows in zip(lines, parts, strict=True) for i in rows.tolist()]
    kept = np.sort(np.argsort(start - end, kind="stable")[: COUNT.measured_intervals])
    return Timeline(lane[kept], start[kept], end[kept], kind[kept], tuple(names[i] for i in kept.tolist()), lanes, lines[0].kinds)
