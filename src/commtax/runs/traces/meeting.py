"""Collectives of several ranks, each found on all of its ranks, with the ranks' clocks aligned by what ends on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commtax.runs.traces.trace import Collective, Trace
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.timeline import Column

COUNT, LEVEL = thresholds(__name__)

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Clock:
    """What is added to a rank's own time. It grows by ``drift`` from ``at_s`` on."""

    offset_s: float = 0.0
    drift: float = 0.0
    at_s: float = 0.0

    def job_s(self, local_s: Column) -> Column:
        return local_s + self.offset_s + self.drift * (local_s - self.at_s)

    def local_s(self, job_s: Column) -> Column:
        return (job_s - self.offset_s + self.drift * self.at_s) / (1 + self.drift)


def clock_between(ours: Column, theirs: Column) -> tuple[Clock, float]:
    """Return the clock that moves their ends onto ours, and how far apart they then still are (median)."""
    apart = ours - theirs
    clock = Clock(float(np.median(apart)), 0.0, float(theirs[0]))
    rest = float(np.median(np.abs(apart - clock.offset_s)))
    third = len(apart) // 3
    if len(apart) < COUNT.drift_ends:
        return clock, rest
    order = np.argsort(theirs)
    early, late = order[:third], order[-third:]
    rise = float(np.median(apart[late]) - np.median(apart[early]))
    run = float(np.median(theirs[late]) - np.median(theirs[early]))
    if run <= 0 or abs(rise) < max(LEVEL.drift_s, 4 * rest / np.sqrt(third)):
        return clock, rest
    at = float(np.median(theirs[early]))
    drifting = Clock(float(np.median(apart[early])), rise / run, at)
    left = float(np.median(np.abs(drifting.job_s(theirs) - ours)))
    return (drifting, left) if left < rest else (clock, rest)


def align_clocks(ranks: int, together: Mapping[Pair, tuple[Column, Column]], loose: Sequence[Column]) -> list[Clock]:
    """Return a clock for each rank: by ends that two ranks share, nearest first, else by ends that coincide."""
    links = sorted((clock_between(*ends)[1], pair) for pair, ends in together.items() if len(ends[0]))
    clocks: dict[int, Clock] = {0: Clock()}
    while len(clocks) < ranks:
        step = next((pair for _, pair in links if (pair[0] in clocks) != (pair[1] in clocks)), None)
        if step is None:
            new = min(set(range(ranks)) - set(clocks))  # next to an aligned rank, by messages between them
            near = new - 1 if new - 1 in clocks else min(clocks, key=lambda r: abs(r - new))
            usual = clocks[near].offset_s
            offset = coinciding_offset(clocks[near].job_s(loose[near]), loose[new], usual)
            clocks[new] = Clock(usual if offset is None else offset)
            continue
        aligned, new = step if step[0] in clocks else step[::-1]
        ours, theirs = together[step] if step[0] == aligned else together[step][::-1]
        clocks[new] = clock_between(clocks[aligned].job_s(ours), theirs)[0]
    return [clocks[r] for r in range(ranks)]


def coinciding_offset(ours: Column, theirs: Column, usual: float = 0.0) -> float | None:
    """Return the clock offset at which most ends coincide, the usual one unless another is far better, or None where too few do."""
    a, b = ours[: COUNT.most_ends], theirs[: COUNT.most_ends]
    if len(a) < 4 or len(b) < 4:
        return None
    apart = np.sort((a[:, None] - b[None, :]).ravel())
    counts = np.searchsorted(apart, apart + LEVEL.coincide_s, side="right") - np.arange(len(apart))
    most = int(counts.max())
    finest = int((np.searchsorted(apart, apart + LEVEL.fine_s, side="right") - np.arange(len(apart))).max())
    for width, best_there in ((LEVEL.fine_s, finest), (LEVEL.coincide_s, most)):  # short messages lie closer than clocks may differ
        near = apart[np.abs(apart - usual) <= width / 2]
        if len(near) >= max(4, LEVEL.stay * best_there):
            return float(np.median(near))
    if most < LEVEL.coincide_share * min(len(a), len(b)) or most < 4:
        return None
    best = np.flatnonzero(counts >= 0.97 * most)
    at = best[np.argmin(np.abs(apart[best]))]
    return float(np.median(apart[at : at + counts[at]]))


MESSAGE = "send-recv"
TICK_S = 1e-9  # of a profiler's clock
Key = tuple[str, str, tuple[int, ...], int, int]


@dataclass(frozen=True)  # without slots: what is used often is cached
class Meetings:
    """Collectives that several ranks' traces hold, as columns: a row for each rank of each, rows of one side by side.

    ``by_clock``: all ranks were in each of them at one moment of their own clocks; ``start_s`` and ``end_s`` are of the aligned
    clocks, from the job's first event.
    """

    ranks: tuple[int, ...]
    traces: tuple[Trace, ...]
    place: Column  # of a row: index into ``ranks``
    index: Column  # of a row: into its trace's collectives
    first: Column  # row at which each collective begins
    clocks: tuple[Clock, ...]
    shifts: tuple[float, ...]  # from each trace's own zero to its clock
    unmatched: int
    by_clock: bool

    def job_s(self, place: int, local_s: Column) -> Column:
        """Convert moments of one trace to the job's time."""
        return self.clocks[place].job_s(np.asarray(local_s) + self.shifts[place]) - self.zero_s

    def local_s(self, place: int, job_s: Column) -> Column:
        """Convert moments of the job to one trace's own time."""
        return self.clocks[place].local_s(job_s + self.zero_s) - self.shifts[place]

    @cached_property
    def zero_s(self) -> float:
        begins = [c.job_s(np.array(t.begin_s + s)) for t, c, s in zip(self.traces, self.clocks, self.shifts, strict=True)]
        return float(min(begins))

    @cached_property
    def _spans(self) -> tuple[Column, Column, Column]:
        """Start and end on the job's clock, and duration, of each row."""
        start, end, lasted = (np.zeros(len(self.place)) for _ in range(3))
        for place, trace in enumerate(self.traces):
            mine = self.place == place
            begin, finish = spans(trace)
            rows = self.index[mine]
            start[mine], end[mine] = self.job_s(place, begin[rows]), self.job_s(place, finish[rows])
            lasted[mine] = finish[rows] - begin[rows]
        return start, end, lasted

    @property
    def start_s(self) -> Column:
        return self._spans[0]

    @property
    def end_s(self) -> Column:
        return self._spans[1]

    @property
    def seconds(self) -> Column:
        """How long each row lasted."""
        return self._spans[2]

    @property
    def sizes(self) -> Column:
        """Ranks of each collective that are here."""
        return np.diff(np.append(self.first, len(self.place)))

    @cached_property
    def of(self) -> Column:
        """The collective that each row belongs to."""
        return np.repeat(np.arange(len(self.first)), self.sizes)

    @cached_property
    def wire_s(self) -> Column:
        """Of each collective the least over its ranks: one that comes late finds the others waiting."""
        return np.minimum.reduceat(self.seconds, self.first) if len(self.first) else np.zeros(0)

    @cached_property
    def calls(self) -> list[Collective]:
        """Each collective as the first of its ranks saw it."""
        pairs = zip(self.place[self.first].tolist(), self.index[self.first].tolist(), strict=True)
        return [self.traces[place].collectives[index] for place, index in pairs]

    @cached_property
    def lanes(self) -> list[int]:
        """Of each collective its lane on the first of its ranks, counted among the lanes of its kind."""
        counted = [_lanes(t) for t in self.traces]
        return [counted[p][i] for p, i in zip(self.place[self.first].tolist(), self.index[self.first].tolist(), strict=True)]


def spans(trace: Trace) -> tuple[Column, Column]:
    """Return starts and ends of a trace's collectives."""
    count = len(trace.collectives)
    start = np.fromiter((c.start_s for c in trace.collectives), float, count)
    return start, np.fromiter((c.end_s for c in trace.collectives), float, count)


def meet(traces: Sequence[Trace]) -> Meetings:
    """Match the collectives of all ranks, and align the ranks' clocks by them."""
    if len(traces) < 2:
        raise Refusal("traces: at least two ranks are needed to tell the wire from waiting", "traces")
    if len({t.rank for t in traces}) < len(traces):
        raise Refusal(f"traces: ranks {', '.join(str(t.rank) for t in traces)}: each rank once", "traces")
    ordered = tuple(sorted(traces, key=lambda t: t.rank))
    exchanged = _is_exchange(ordered)
    lists = [_RankCollectives.of(t, (t.origin_ns - ordered[0].origin_ns) * 1e-9, exchanged) for t in ordered]
    keys = dict.fromkeys(key for x in lists for key in x.keyed)
    matches = [rows for key in keys for rows in _match_key(lists, key)]
    together: dict[tuple[int, int], tuple[Column, Column]] = {}
    for places, rows in matches:
        for other in range(1, len(places)):
            pair = (places[0], places[other])
            ends = lists[pair[0]].end[rows[:, 0]], lists[pair[1]].end[rows[:, other]]
            before = together.get(pair)
            together[pair] = ends if before is None else (np.append(before[0], ends[0]), np.append(before[1], ends[1]))
    messages = [np.flatnonzero([c.op == MESSAGE and not exchanged for c in t.collectives]) for t in ordered]
    clocks = align_clocks(len(lists), together, [x.end[m] for x, m in zip(lists, messages, strict=True)])
    matches = _join_whole_job(ordered, lists, [part for match in matches for part in _split_match(lists, match, clocks)], clocks)
    matches += _messages(lists, messages, clocks, _Places.of(ordered, matches))
    return _join_matches(ordered, lists, matches, clocks)


def _is_exchange(traces: Sequence[Trace]) -> bool:
    """Return whether messages are exchanges of all ranks (an all-to-all named so): as many on each, ending together."""
    ends = [np.array([c.end_s for c in t.collectives if c.op == MESSAGE]) for t in traces]
    if len(ends) < 3 or len({len(e) for e in ends}) > 1 or len(ends[0]) < 3:
        return False
    return bool(_distances(ends).max() <= LEVEL.noise_s + LEVEL.shifted * float(np.mean(np.abs(np.diff(ends[0])))))


def _join_matches(ordered: tuple[Trace, ...], lists: list[_RankCollectives], matches: list[_Rows], clocks: list[Clock]) -> Meetings:
    """Join the rows of all matches, in the order in which their first ranks saw them."""
    places = [np.tile(np.array(p, dtype=int), len(rows)) for p, rows in matches]
    each = [np.full(len(rows), len(p), dtype=int) for p, rows in matches]
    flat = [rows.ravel() for _, rows in matches]
    place, index, sizes = (np.concatenate([np.zeros(0, dtype=int), *parts]) for parts in (places, flat, each))
    first = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(int) if len(sizes) else np.zeros(0, dtype=int)
    order = np.lexsort((index[first], place[first]))
    taken = np.concatenate([np.arange(first[m], first[m] + sizes[m]) for m in order]) if len(order) else np.zeros(0, dtype=int)
    starts = np.concatenate([[0], np.cumsum(sizes[order])])[:-1].astype(int) if len(order) else first
    counts = [len(x.start) for x in lists]
    base = np.concatenate([[0], np.cumsum(counts)])[:-1]
    at = base[place[taken]] + index[taken] if len(taken) else taken
    begin, end = np.concatenate([x.start for x in lists])[at], np.concatenate([x.end for x in lists])[at]  # on each rank's clock
    inside = bool(len(starts)) and bool(np.all(np.maximum.reduceat(begin, starts) < np.minimum.reduceat(end, starts)))
    lost = max(counts) - int(np.bincount(place, minlength=len(lists))[int(np.argmax(counts))])
    shifts, ranks = tuple(x.shift for x in lists), tuple(t.rank for t in ordered)
    return Meetings(ranks, ordered, place[taken], index[taken], starts, tuple(clocks), shifts, lost, inside)


def _split_match(lists: list[_RankCollectives], match: _Rows, clocks: list[Clock]) -> Iterator[_Rows]:
    """Yield a match whole where its group is listed or ends together on the aligned clocks, else the parts that do."""
    places, rows = match
    if len(places) < 3 or len(rows) < 2 or lists[places[0]].listed[rows[0, 0]]:
        yield match
        return
    ends = np.column_stack([clocks[p].job_s(lists[p].end[rows[:, i]]) for i, p in enumerate(places)])
    lasted = np.median([lists[p].end[rows[:, i]] - lists[p].start[rows[:, i]] for i, p in enumerate(places)])
    left = list(range(len(places)))
    while left:
        apart = np.median(np.abs(ends[:, left] - ends[:, left[:1]]), axis=0)
        group = [i for i, far in zip(left, apart.tolist(), strict=True) if far <= max(LEVEL.paired_s, LEVEL.parted * lasted)]
        left = [i for i in left if i not in group]
        if len(group) > 1:
            yield tuple(places[i] for i in group), rows[:, group]


def _join_whole_job(
    traces: Sequence[Trace], lists: list[_RankCollectives], matches: list[_Rows], clocks: list[Clock]
) -> list[_Rows]:
    """Return the matches, joining unlisted groups into one of all ranks where very long collectives end in all at once."""
    by_op: dict[str, list[int]] = {}
    for at, (places, rows) in enumerate(matches):
        if not lists[places[0]].listed[rows[0, 0]]:
            by_op.setdefault(traces[places[0]].collectives[rows[0, 0]].op, []).append(at)
    for parts in filter(lambda same: len(same) > 1, by_op.values()):
        groups = [matches[at] for at in parts]
        every = [p for places, _ in groups for p in places]
        if sorted(every) != list(range(len(traces))):
            continue
        ends = [clocks[places[0]].job_s(lists[places[0]].end[rows[:, 0]]) for places, rows in groups]
        wires = [np.min([(x := lists[p]).end[r] - x.start[r] for p, r in zip(g, at.T, strict=True)], axis=0) for g, at in groups]
        orders = [np.argsort(e, kind="stable") for e in ends]
        near = [order[_nearest(ends[0], e[order])] for e, order in zip(ends, orders, strict=True)]
        apart = np.max([np.abs(e[n] - ends[0]) for e, n in zip(ends, near, strict=True)], axis=0)
        long = np.max([w[n] > LEVEL.long * np.median(w) for w, n in zip(wires, near, strict=True)], axis=0)
        of_all = np.flatnonzero((apart <= LEVEL.paired_s) & long)
        if not len(of_all) or any(len(np.unique(n[of_all])) < len(of_all) for n in near):
            continue
        together = np.column_stack([rows[n[of_all]] for (_, rows), n in zip(groups, near, strict=True)])
        for at, (places, rows), n in zip(parts, groups, near, strict=True):
            matches[at] = places, np.delete(rows, n[of_all], axis=0)
        matches.append((tuple(range(len(traces))), together[:, np.argsort(every)]))
    return [match for match in matches if len(match[1])]


_Rows = tuple[tuple[int, ...], Column]  # places of ranks, and for each collective the index on each of them


@dataclass(frozen=True, slots=True)
class _RankCollectives:
    """One rank's collectives as columns, on its own clock but from a common zero."""

    rank: int
    start: Column
    end: Column
    signs: Column  # of what kind and size
    listed: Column  # whether its group's members are
    shift: float
    keyed: dict[Key, Column]  # by group and kind: their indices, in order

    @staticmethod
    def of(trace: Trace, shift: float, exchanged: bool = False) -> _RankCollectives:
        start, end = spans(trace)
        keyed: dict[Key, list[int]] = {}
        lanes = _lanes(trace)
        for i, c in enumerate(trace.collectives):
            if exchanged or c.op != MESSAGE:
                lane = -1 if c.members or c.group else lanes[i]
                keyed.setdefault((c.op, c.group, c.members, c.ranks, lane), []).append(i)
        sizes = (-1.0 if c.nbytes is None or c.op == "all-to-all" else c.nbytes for c in trace.collectives)
        signs = np.fromiter(sizes, float, len(start))
        listed = np.fromiter((len(c.members) > 1 for c in trace.collectives), bool, len(start))
        indices = {key: np.array(rows) for key, rows in keyed.items()}
        return _RankCollectives(trace.rank, start + shift, end + shift, signs, listed, shift, indices)


def _lanes(trace: Trace) -> list[int]:
    """Return for each collective the order in which its stream began to have one of its kind. Host threads are uninformative."""
    begun: dict[str, dict[int, int]] = {}
    return [(of_op := begun.setdefault(c.op, {})).setdefault(c.lane, len(of_op)) for c in trace.collectives]


def _match_key(lists: Sequence[_RankCollectives], key: Key) -> Iterator[_Rows]:
    """Yield the collectives under one key for each group of ranks that shares them."""
    places = [p for p, x in enumerate(lists) if key in x.keyed]
    for group in _groups(lists, key, places):
        # Indices of each collective on all ranks of its group: (collectives, ranks).
        base = lists[group[0]].keyed[key]
        columns, kept = [np.arange(len(base))], np.ones(len(base), dtype=bool)
        for place in group[1:]:
            ours, theirs = _two(lists[group[0]], base, lists[place], lists[place].keyed[key])
            column = np.full(len(base), -1)
            column[ours] = theirs
            kept &= column >= 0
            columns.append(column)
        chosen = [lists[p].keyed[key][column[kept]] for p, column in zip(group, columns, strict=True)]
        rows = np.column_stack(chosen)
        if len(rows):
            yield tuple(group), rows


def _groups(lists: Sequence[_RankCollectives], key: Key, places: list[int]) -> Iterable[list[int]]:
    """Return the ranks that share the collectives under a key: all of them where members are listed, else those ending together."""
    _, _, members, size, _ = key
    if len(places) < 2 or len(members) > 1:
        return [places] if len(places) > 1 else []
    if len(places) == 2 or size == len(places):
        return [places]
    apart = _distances([lists[p].end[lists[p].keyed[key]] for p in places])
    nearest = np.where(np.eye(len(places), dtype=bool), np.inf, apart).min(axis=1)
    near = apart <= LEVEL.apart_times * np.maximum(TICK_S, np.minimum(nearest[:, None], nearest[None, :]))
    if near.all() and 0 < size < len(places):
        return [g for i in range(0, len(places), size) if len(g := places[i : i + size]) > 1]
    left, groups = list(range(len(places))), []
    while left:
        group = [i for i in left if near[left[0], i]]
        groups.append([places[i] for i in group])
        left = [i for i in left if i not in group]
    return [g for g in groups if len(g) > 1]


def _distances(ends: list[Column]) -> Column:
    """Return how differently the time between collectives passes on each two ranks, whatever the offsets of their clocks."""
    count = min(COUNT.sampled, *(len(e) for e in ends))
    steps = np.array([np.diff(e[-count:]) for e in ends]) if count > 1 else np.zeros((len(ends), 1))
    return np.array([np.abs(steps - row).mean(axis=1) for row in steps])


def _two(a: _RankCollectives, ours: Column, b: _RankCollectives, theirs: Column) -> tuple[Column, Column]:
    """Return positions in two lists that are the same collective."""
    alike = len(ours) == len(theirs) and bool(np.all(a.signs[ours] == b.signs[theirs]))
    if alike and np.mean(np.maximum(a.start[ours], b.start[theirs]) < np.minimum(a.end[ours], b.end[theirs])) >= LEVEL.together:
        return np.arange(len(ours)), np.arange(len(ours))
    shifted = _shift_lists(a, ours, b, theirs, alike)
    if shifted is not None:
        return shifted
    order = np.argsort(b.end[theirs], kind="stable")
    forth = _nearest(a.end[ours], b.end[theirs][order])
    partner = order[forth]
    back = np.argsort(a.end[ours], kind="stable")
    mutual = back[_nearest(b.end[theirs][partner], a.end[ours][back])] == np.arange(len(ours))
    starts, ends = np.maximum(a.start[ours], b.start[theirs[partner]]), np.minimum(a.end[ours], b.end[theirs[partner]])
    kept = np.flatnonzero(mutual & (starts < ends))
    return kept, partner[kept]


def _shift_lists(
    a: _RankCollectives, ours: Column, b: _RankCollectives, theirs: Column, alike: bool
) -> tuple[Column, Column] | None:
    """Shift lists until kinds and sizes agree and ends are at a constant distance, or return None where no shift fits."""
    m, n = len(ours), len(theirs)
    least = max(1, min(m, n) // 2)
    usual = float(np.mean(np.abs(np.diff(a.end[ours])))) if m > 1 else 0.0
    fits: list[tuple[float, int]] = []
    for shift in sorted(range(-(n - least), m - least + 1), key=lambda d: (abs(d), abs(d - (m - n))))[: COUNT.shifts]:
        lo, hi = max(0, shift), min(m, n + shift)
        i, j = ours[lo:hi], theirs[lo - shift : hi - shift]
        if not np.array_equal(a.signs[i], b.signs[j]):
            continue
        spread = float(np.mean(np.abs(np.diff(a.end[i] - b.end[j])))) if len(i) > 1 else 0.0
        if spread <= LEVEL.noise_s + usual * (LEVEL.ordered if alike and shift == 0 else LEVEL.shifted):
            fits.append((spread, shift))
    if not fits:
        return None
    best = min(fits)[0]
    shift = next(shift for spread, shift in fits if spread <= 1.5 * best + LEVEL.apart_s)  # the least that is as good as any
    lo, hi = max(0, shift), min(m, n + shift)
    return np.arange(lo, hi), np.arange(lo - shift, hi - shift)


def _nearest(at: Column, among: Column) -> Column:
    """Return the index of the sorted value that is nearest to each."""
    right = np.clip(np.searchsorted(among, at), 1, max(1, len(among) - 1))
    if len(among) == 1:
        return np.zeros(len(at), dtype=int)
    return np.where(at - among[right - 1] <= among[right] - at, right - 1, right)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where messages can go between: each rank's stage and its place in it, and of each rank's messages the stated pair."""

    stage: Column
    position: Column
    pair: list[Column]  # a number for each two ranks; -1: unknown

    @staticmethod
    def of(traces: Sequence[Trace], matches: Sequence[_Rows]) -> _Places:
        """Group consecutive ranks into stages: ranks that share collectives, and all ranks between them, form one."""
        apart = np.ones(len(traces) - 1, dtype=bool)
        for places, _ in sorted(matches, key=lambda m: -len(m[1])):
            joined = apart.copy()
            joined[min(places) : max(places)] = False
            apart = joined if joined.any() else apart
        stage = np.concatenate([[0], np.cumsum(apart)])
        begins = np.concatenate([[0], np.flatnonzero(apart) + 1])
        numbers: dict[tuple[int, ...], int] = {}
        members = ([c.members for c in t.collectives] for t in traces)
        numbered = [[numbers.setdefault(two, len(numbers)) if len(two) == 2 else -1 for two in each] for each in members]
        return _Places(stage, np.arange(len(traces)) - begins[stage], [np.array(of_rank, dtype=int) for of_rank in numbered])


def _messages(lists: Sequence[_RankCollectives], indices: Sequence[Column], clocks: Sequence[Clock], where: _Places) -> list[_Rows]:
    """Match messages whose two ends end together on the aligned clocks, preferring neighbours by stage at one moment."""
    place = np.concatenate([np.full(len(x), p) for p, x in enumerate(indices)]) if indices else np.zeros(0, dtype=int)
    if not len(place):
        return []
    index = np.concatenate(list(indices)).astype(int)
    end = np.concatenate([c.job_s(x.end[i]) for x, i, c in zip(lists, indices, clocks, strict=True)])
    order = np.argsort(end, kind="stable")
    moments = np.cumsum(np.concatenate([[0], np.diff(end[order]) > LEVEL.paired_s]))
    pair = np.concatenate([pairs_of_rank[i] for pairs_of_rank, i in zip(where.pair, indices, strict=True)])
    stage, position = where.stage[place], where.position[place]
    order = order[np.lexsort((stage[order], position[order], pair[order], moments))]
    moments = np.sort(moments)
    rows_by_pair: dict[tuple[int, int], list[tuple[int, int]]] = {}
    at = 0
    while at + 1 < len(order):
        a, b = order[at], order[at + 1]
        able = place[a] != place[b] if pair[a] >= 0 else stage[a] != stage[b]
        if moments[at] == moments[at + 1] and pair[a] == pair[b] and able:
            rows_by_pair.setdefault((int(place[a]), int(place[b])), []).append((int(index[a]), int(index[b])))
            at += 1
        at += 1
    return [(pair, np.array(rows)) for pair, rows in rows_by_pair.items()]
