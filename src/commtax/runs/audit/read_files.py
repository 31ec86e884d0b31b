"""What was handed over, read: files, and folders with all that is in them; large ones at once, those of one job together."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from commtax import catalog
from commtax.catalog.hardware import recognise
from commtax.catalog.models import known_model
from commtax.files import Watch
from commtax.runs.audit import formats
from commtax.runs.audit.formats import kind_of
from commtax.runs.evidence.identity import names_of
from commtax.runs.logs.engine_logs import StartupLog
from commtax.spec import Model
from commtax.statement import Note, Refusal
from commtax.thresholds import thresholds
from commtax.units import plural

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.sharedctypes import Synchronized

    from commtax.runs.audit.reported_deployments import ReportedDeployment
    from commtax.runs.logs.flight import Dump
    from commtax.runs.logs.training_log import TrainingLog
    from commtax.runs.machines.smi import Links
    from commtax.runs.results.bench_record import BenchmarkRun
    from commtax.runs.traces.trace import Trace

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


def by_job(signs: Sequence[JobSigns], names: Sequence[str]) -> list[list[int]]:
    """Return the indices of each job's files, jobs in the order of their first files."""
    jobs = (job for world in _worlds(list(enumerate(signs))) for job in _split_clashing(world, names))
    return sorted(sorted(at for at, _ in job) for job in jobs)


def _worlds(files: Files) -> list[Files]:
    """Group by world size, where files that report none join the only job that does, if its ranks leave room for them."""
    groups = _group_files(files, lambda one: one[1].world)
    unknown = groups.pop(0, [])
    if unknown and len(groups) == 1 and not _clash(joined := [*next(iter(groups.values())), *unknown]):
        return [joined]
    return [*groups.values(), *([unknown] if unknown else [])]


def _split_clashing(files: Files, names: Sequence[str]) -> Iterator[Files]:
    """Split files of one world size by device, then by time, then one by one, as long as ranks clash."""
    if not _clash(files):
        yield files
    elif files[0][1].world == 1:
        yield from ([one] for one in files)
    else:
        for place in _group_files(files, lambda one: one[1].place).values():
            for moment in _split_into_runs(place, names) if _clash(place) else [place]:
                alone = _clash(moment) and not any(signs.meets for _, signs in moment)
                yield from _group_files(moment, lambda one: names[one[0]]).values() if alone else [moment]


def _split_into_runs(files: Files, names: Sequence[str]) -> list[Files]:
    """Split files whose ranks clash into runs: by long pauses, or by whatever else leaves no clash where ranks are reported."""
    long_after = _moments(files, LEVEL.apart_s)
    if not files[0][1].world:
        return long_after
    called = _group_files(files, lambda one: _name_without_rank(names[one[0]], one[1].rank))
    alike = list(called.values()) if min(map(len, called.values())) > 1 else [files]
    sooner = (_moments(files, LEVEL.apart_s / 2**i) for i in range(1, COUNT.shorter))
    return next((parts for parts in chain([long_after, alike], sooner) if not any(map(_clash, parts))), long_after)


def _name_without_rank(name: str, rank: int) -> str:
    """Return a file's name with its rank replaced by ``#``.

    >>> _name_without_rank("run2-rank0.json", 0), _name_without_rank("run2-rank1.json", 1)
    ('run2-rank#.json', 'run2-rank#.json')
    """
    return re.sub(rf"(?<!\d)0*{rank}(?!\d)", "#", name)


def _clash(files: Files) -> bool:
    return len({signs.rank for _, signs in files}) < len(files)


def _moments(files: Files, apart_s: float) -> list[Files]:
    """Split by time: a file that begins this long after all before it have ended belongs to another run."""
    ordered = sorted(files, key=lambda one: one[1].begin_s)
    moments, until = [ordered[:1]], ordered[0][1].end_s
    for at, signs in ordered[1:]:
        if signs.begin_s > until + apart_s:
            moments.append([])
        moments[-1].append((at, signs))
        until = max(until, signs.end_s)
    return moments


def _group_files(files: Files, key: Callable[[tuple[int, JobSigns]], Hashable]) -> dict[Hashable, Files]:
    groups: dict[Hashable, Files] = {}
    for one in files:
        groups.setdefault(key(one), []).append(one)
    return groups


_counted: Synchronized[int]  # bytes that all processes have read, in each of them
Run = Sequence[Path]  # files that are read together
ReadRecords = list[object] | Refusal  # what they hold, or why nothing


def read_runs(runs: Sequence[Run], nsys: str, watch: Watch | None = None, processes: int = 1) -> list[ReadRecords]:
    """Read each run of files. ``nsys`` opens reports of Nsight Systems, and 0 processes means one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(processes or cores, len(runs))
    sizes = sorted(map(_text_bytes, runs))
    if count < 2 or sum(sizes[:-1]) < COUNT.worth_bytes:
        return [_read(run, nsys, watch) for run in runs]
    import multiprocessing  # here, because most runs need no second process
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")  # another thread of this process may hold what a fork would need
    counter = context.Value("Q", 0)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin, (counter,))
    try:
        largest_first = sorted(range(len(runs)), key=lambda i: _text_bytes(runs[i]), reverse=True)
        tasks = {i: pool.submit(_read, runs[i], nsys, _count) for i in largest_first}
        _attend(set(tasks.values()), counter, watch)
        return [tasks[i].result() for i in range(len(runs))]
    except BrokenProcessPool:
        raise Refusal("files: a process that read one of them was ended (is there memory for all of them?)", "file") from None
    except BaseException:  # an interrupt: nobody waits for the others
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attend(tasks: set[Future[ReadRecords]], counter: Synchronized[int], watch: Watch | None) -> None:
    """Wait until all are done or one has failed, and tell how far they are."""
    from concurrent.futures import wait

    reported = 0
    while tasks:
        done, tasks = wait(tasks, timeout=LEVEL.every_s)
        if watch and counter.value > reported:
            further = counter.value - reported
            reported += further
            watch(further)
        if any(task.exception() for task in done):
            return


def _begin(counter: Synchronized[int]) -> None:
    """Set up a process of the pool, which leaves interrupts to its parent."""
    global _counted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _counted = counter


def _read(run: Run, nsys: str, watch: Watch | None) -> ReadRecords:
    try:
        if len(run) == 1:
            return formats.read(run[0], nsys, watch)
        from commtax.runs.traces.profilers import rocprof

        return list(rocprof.read_tables(run))
    except Refusal as refusal:
        return refusal


def _count(further: int) -> None:
    with _counted.get_lock():
        _counted.value += further


def _text_bytes(run: Run) -> int:
    """Estimate the uncompressed size of files, skipping those that cannot be examined."""
    total = 0
    for path in run:
        with suppress(OSError, ValueError):
            total += os.stat(path).st_size * (COUNT.unpacked if path.suffix == ".gz" else 1)
    return total


ANY = "any model"
JOBS = ("trace", "flight")  # kinds of which each rank of a job leaves a file


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """All records with the names of their files, and notes on files of a folder that hold none.

    ``jobs`` are the traces and the flight recorders' dumps of ``left``, those of one job together; ``launches`` is what scripts
    and YAML beside them start.
    """

    left: tuple[tuple[str, object], ...]
    notes: tuple[Note, ...] = ()
    jobs: tuple[Sequence[tuple[str, Trace | Dump]], ...] = ()
    launches: tuple[ReportedDeployment, ...] = ()

    @property
    def traces(self) -> list[tuple[str, Trace]]:
        return [(name, cast("Trace", record)) for name, record in self.left if kind_of(record).kind == "trace"]


def read_all(paths: Sequence[Path], nsys: str = "nsys", *, watch: Watch | None = None, processes: int = 1) -> ReadFiles:
    """Read the named files, all of which must be recognised, and the recognised files of the named folders.

    ``nsys`` opens reports of Nsight Systems; ``watch`` is told of bytes as they are read; 0 processes: one for each core.
    """
    if not paths:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    named = dict(_files(paths))
    by_run: dict[str, list[Path]] = {}
    for file in named:
        each = ""
        if file.name.endswith((".csv", ".csv.gz")):
            from commtax.runs.traces.profilers.rocprof import run_of

            each = run_of(file)
        by_run.setdefault(each or str(file), []).append(file)
    runs = list(by_run.values())
    often = Counter(run[0].name for run in runs)
    left: list[tuple[str, object]] = []
    passed: dict[Path, Refusal] = {}
    for run, records in zip(runs, read_runs(runs, nsys, watch, processes), strict=True):
        if isinstance(records, Refusal):
            passed |= dict.fromkeys(run, records)
        else:
            name, whole = run[0].name, str(run[0])  # ranks of a job may lie in folders of their own
            left += [(whole if often[name] > 1 and kind_of(one).kind not in JOBS else name, one) for one in records]
    launches, remarks = dict[Path, "ReportedDeployment"](), list[str]()
    if passed:
        from commtax.runs.audit.reported_deployments import launches_in

        launches = launches_in(passed, remarks)
    for path, refusal in passed.items():
        if named[path] and path not in launches:
            raise refusal
    if not left:
        if not Path(paths[0]).is_dir():
            reads = f"audit reads what a server wrote; commtax fit --from {paths[0]} says what its log will say"
            raise Refusal(f"file '{paths[0]}': it starts a server, and {reads}", "file")
        contents = f"none of its {plural(len(passed), 'file')} is recognised" if passed else "no file is in it"
        raise Refusal(f"file '{paths[0]}': a folder, and {contents}", "file")
    read = gather(left, [path.name for path in passed if path not in launches])
    return replace(read, launches=tuple(launches.values()), notes=(*read.notes, *(Note("launch", remark) for remark in remarks)))


def gather(records: Sequence[tuple[str, object]], passed: Sequence[str] = ()) -> ReadFiles:
    """Group records by jobs. ``passed`` names the files that hold none."""
    joined, notes = _join_counters(list(records)), list[Note]()
    if passed:
        more = f" and {len(passed) - COUNT.most_named} more" if len(passed) > COUNT.most_named else ""
        shown = f"{', '.join(passed[: COUNT.most_named])}{more}"
        notes.append(Note("passed over", f"{plural(len(passed), 'file')} of the folder not recognised, and left out: {shown}"))
    traces = [(name, cast("Trace", record)) for name, record in joined if kind_of(record).kind == "trace"]
    dumps = [(name, cast("Dump", one)) for name, one in joined if (kind := kind_of(one)).kind == "flight" and kind.together]
    jobs: list[list[tuple[str, Trace | Dump]]] = []
    if traces:
        from commtax.runs.traces.trace import distinct

        for job in by_job([trace_signs(t) for _, t in traces], [n for n, _ in traces]):
            ranked = distinct([traces[at][1] for at in job])
            jobs.append([(traces[at][0], trace) for at, trace in zip(job, ranked, strict=True)])
    others = [(name, record) for name, record in joined if kind_of(record).kind != "trace"]
    left = [*others, *(one for job in jobs for one in job)]
    recorded = [[dumps[at] for at in job] for job in by_job([dump_signs(d) for _, d in dumps], [n for n, _ in dumps])]
    return ReadFiles(tuple(left), tuple(notes), (*jobs, *recorded))


def _join_counters(left: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Join the link counters of several files, first to last, into one record: their difference is the traffic."""
    counters = [(name, cast("Links", record)) for name, record in left if kind_of(record).kind == "links"]
    if len(counters) < 2:
        return left
    names, seen = ", ".join(name for name, _ in counters), counters[0][1]
    for _, later in counters[1:]:
        seen = seen.and_then(later)
    return [*((name, record) for name, record in left if kind_of(record).kind != "links"), (names, seen)]


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the files in order, each with whether it was named, from folders only the files directly inside."""
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        if len(inside) > COUNT.most_files:
            many = f"{len(inside):,} files in one folder, more than the {COUNT.most_files:,} that are read"
            raise Refusal(f"file '{path}': {many}", "file")
        yield from ((p, False) for p in inside)


def model_of(read: ReadFiles) -> Model:
    """Return the model of the first log or benchmark result, or any model if no file needs one."""
    trained = (_trained_model(cast("TrainingLog", record)) for _, record in read.left if kind_of(record).kind == "training")
    runs = (cast("BenchmarkRun", run) for _, record in read.left if isinstance(record, tuple) for run in record)
    measured = (known_model(run.model) for run in runs if run.model)
    logs = (record for _, record in read.left if isinstance(record, StartupLog))
    started = (known_model(name) for log in logs for name in names_of(log.model) if name)
    launched = (known_model(record.model) for record in read.launches if record.model)
    if model := next(filter(None, chain(trained, measured, started, launched)), None):
        return model
    if all(kind_of(record).by_place for _, record in read.left):
        return replace(catalog.model(next(iter(catalog.keys("models")))), key=ANY)
    raise Refusal("model: name what ran with --model; the files do not tell it", "model")


def _trained_model(log: TrainingLog) -> Model | None:
    from commtax.runs.logs.training_audit import logged_plan

    return logged_plan(log).model


def place_of(read: ReadFiles) -> str:
    """Return the cluster of the first trace that lists its devices, or "" if no single chip matches them."""
    for _, trace in read.traces:
        if trace.device:
            chips = recognise(trace.device.name, trace.device.memory_bytes, trace.device.num_sms)
            return f"{max(1, trace.device.count)}x{chips[0]}" if len(chips) == 1 else ""
    return ""
