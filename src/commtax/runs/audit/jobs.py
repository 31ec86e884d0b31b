"""Which files are of one job: its ranks have one number of ranks in common, and each is there once.

Ranks that clash are of different jobs where their devices differ, where they ran at other times, where their files are called after
different runs, or where they never meet anybody; else nobody told them their rank, and they are numbered.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from commtax.runs.logs.flight import Dump
from commtax.runs.traces.trace import Trace
from commtax.thresholds import thresholds

COUNT, LEVEL = thresholds(__name__)


@dataclass(frozen=True, slots=True)
class JobSigns:
    """What tells the job of a file: ``world`` is 0 where it tells none, ``meets`` is false where it holds no collective."""

    rank: int
    world: int
    place: Hashable
    begin_s: float
    end_s: float
    meets: bool


def trace_signs(trace: Trace) -> JobSigns:
    origin_s, device = trace.origin_ns * 1e-9, trace.device
    place = device and (device.name, device.memory_bytes)
    begin, end = origin_s + trace.timeline.begin_s, origin_s + trace.timeline.finish_s
    return JobSigns(trace.rank, trace.world, (trace.on_device, place), begin, end, bool(trace.collectives or trace.issued))


def dump_signs(dump: Dump) -> JobSigns:
    moments = [e.created_s for e in dump.entries] or [0.0]
    world = max((len(members) for members in dump.groups.values()), default=0)
    return JobSigns(dump.rank, world, dump.library, min(moments), max(moments), True)


Files = list[tuple[int, JobSigns]]  # each with its place among those that were given


def by_job(given: Sequence[JobSigns], names: Sequence[str]) -> list[list[int]]:
    """Places of the files of each job, jobs in the order of their first files; ``names`` are those of the files."""
    found = (job for world in _worlds(list(enumerate(given))) for job in _split_clashing(world, names))
    return sorted(sorted(at for at, _ in job) for job in found)


def _worlds(files: Files) -> list[Files]:
    """By the number of ranks; files that tell none are of the only job that does, if their ranks are free in it."""
    groups = _group_files(files, lambda one: one[1].world)
    unknown = groups.pop(0, [])
    if unknown and len(groups) == 1 and not _clash(joined := [*next(iter(groups.values())), *unknown]):
        return [joined]
    return [*groups.values(), *([unknown] if unknown else [])]


def _split_clashing(files: Files, names: Sequence[str]) -> Iterator[Files]:
    """Files of one number of ranks, by device, by time, and one by one, as long as ranks clash."""
    if not _clash(files):
        yield files
    elif files[0][1].world == 1:
        yield from ([one] for one in files)
    else:
        for place in _group_files(files, lambda one: one[1].place).values():
            for moment in _runs(place, names) if _clash(place) else [place]:
                alone = _clash(moment) and not any(signs.meets for _, signs in moment)
                yield from _group_files(moment, lambda one: names[one[0]]).values() if alone else [moment]


def _runs(files: Files, names: Sequence[str]) -> list[Files]:
    """Files whose ranks clash, by run: by long pauses; where ranks are told, by whatever leaves none of them together."""
    long_after = _moments(files, LEVEL.apart_s)
    if not files[0][1].world:
        return long_after
    called = _group_files(files, lambda one: _name_without_rank(names[one[0]], one[1].rank))
    alike = list(called.values()) if min(map(len, called.values())) > 1 else [files]
    sooner = (_moments(files, LEVEL.apart_s / 2**i) for i in range(1, COUNT.shorter))
    return next((parts for parts in chain([long_after, alike], sooner) if not any(map(_clash, parts))), long_after)


def _name_without_rank(name: str, rank: int) -> str:
    """What a file is called beside its rank.

    >>> _name_without_rank("run2-rank0.json", 0), _name_without_rank("run2-rank1.json", 1)
    ('run2-rank#.json', 'run2-rank#.json')
    """
    return re.sub(rf"(?<!\d)0*{rank}(?!\d)", "#", name)


def _clash(files: Files) -> bool:
    return len({signs.rank for _, signs in files}) < len(files)


def _moments(files: Files, apart_s: float) -> list[Files]:
    """By time: those that begin so long after all before them have ended are another run."""
    ordered = sorted(files, key=lambda one: one[1].begin_s)
    found, until = [ordered[:1]], ordered[0][1].end_s
    for at, signs in ordered[1:]:
        if signs.begin_s > until + apart_s:
            found.append([])
        found[-1].append((at, signs))
        until = max(until, signs.end_s)
    return found


def _group_files(files: Files, key: Callable[[tuple[int, JobSigns]], Hashable]) -> dict[Hashable, Files]:
    groups: dict[Hashable, Files] = {}
    for one in files:
        groups.setdefault(key(one), []).append(one)
    return groups
