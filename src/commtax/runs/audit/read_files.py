"""What was handed over, read: files, and folders with all that is in them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from commtax import catalog
from commtax.catalog.hardware import recognise
from commtax.catalog.models import known_model
from commtax.files import Watch
from commtax.runs.audit.formats import BY_RECORD
from commtax.runs.audit.jobs import by_job, dump_signs, trace_signs
from commtax.runs.audit.parallel_reading import read_runs
from commtax.runs.calibrate.said_deployments import SaidDeployment, launches_in
from commtax.runs.evidence.identity import names_of
from commtax.runs.logs.flight import Dump
from commtax.runs.logs.startup import StartupLog
from commtax.runs.logs.training_log import TrainingLog
from commtax.runs.logs.training_plan import logged_plan
from commtax.runs.machines.smi import Links
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.traces.profilers import rocprof
from commtax.runs.traces.trace import Trace, distinct
from commtax.spec import Model
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.units import plural

COUNT = counts(__name__)
ANY = "any model"


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """All that the files say, each with the name of its file; and notes on those of a folder that say nothing.

    ``jobs`` are the traces and the flight recorders' dumps of ``left``, those of one job together; ``launches`` is what scripts
    and YAML beside them start.
    """

    left: tuple[tuple[str, object], ...]
    notes: tuple[Note, ...] = ()
    jobs: tuple[Sequence[tuple[str, Trace | Dump]], ...] = ()
    launches: tuple[SaidDeployment, ...] = ()

    @property
    def traces(self) -> list[tuple[str, Trace]]:
        return [(name, said) for name, said in self.left if isinstance(said, Trace)]


def read_all(given: Sequence[Path], nsys: str = "nsys", *, watch: Watch | None = None, processes: int = 1) -> ReadFiles:
    """Files that are named must be read; of a folder those that are recognised are.

    ``nsys`` opens reports of Nsight Systems; ``watch`` is told of bytes as they are read; 0 processes: one for each core.
    """
    if not given:
        raise Refusal("file: at least one log, trace or benchmark result is needed")
    named = dict(_files(given))
    runs = _runs(named)
    often = Counter(paths[0].name for paths in runs)
    left: list[tuple[str, object]] = []
    passed: dict[Path, Refusal] = {}
    for paths, said in zip(runs, read_runs(runs, nsys, watch, processes), strict=True):
        if isinstance(said, Refusal):
            passed |= dict.fromkeys(paths, said)
        else:
            name, whole = paths[0].name, str(paths[0])  # ranks of a job may lie in folders of their own
            left += [(whole if often[name] > 1 and not isinstance(one, Trace | Dump) else name, one) for one in said]
    launches = launches_in(passed, remarks := list[str]())
    for path, refusal in passed.items():
        if named[path] and path not in launches:
            raise refusal
    if not left:
        if not Path(given[0]).is_dir():
            reads = f"audit reads what a server wrote; commtax fit --from {given[0]} says what its log will say"
            raise Refusal(f"file '{given[0]}': it starts a server, and {reads}", "file")
        found = f"none of its {plural(len(passed), 'file')} is recognised" if passed else "no file is in it"
        raise Refusal(f"file '{given[0]}': a folder, and {found}", "file")
    read = gather(left, [path.name for path in passed if path not in launches])
    told = tuple(Note("launch", remark) for remark in remarks)
    return replace(read, launches=tuple(launches.values()), notes=(*read.notes, *told))


def gather(found: Sequence[tuple[str, object]], passed: Sequence[str] = ()) -> ReadFiles:
    """What files say, each with the name of its file, put together by jobs; ``passed`` are those that say nothing."""
    joined, notes = _join_counters(list(found)), tuple(_passed_over(passed))
    traces = [(name, said) for name, said in joined if isinstance(said, Trace)]
    dumps = [(name, said) for name, said in joined if isinstance(said, Dump)]
    jobs: list[list[tuple[str, Trace | Dump]]] = []
    for job in by_job([trace_signs(t) for _, t in traces], [n for n, _ in traces]):
        ranked = distinct([traces[at][1] for at in job])
        jobs.append([(traces[at][0], trace) for at, trace in zip(job, ranked, strict=True)])
    others = [(name, said) for name, said in joined if not isinstance(said, Trace)]
    left = [*others, *(one for job in jobs for one in job)]
    recorded = [[dumps[at] for at in job] for job in by_job([dump_signs(d) for _, d in dumps], [n for n, _ in dumps])]
    return ReadFiles(tuple(left), notes, (*jobs, *recorded))


def _runs(files: Iterable[Path]) -> list[list[Path]]:
    """Files that are read together, in order: the tables of one run of rocprofv3; each of all others alone."""
    found: dict[str, list[Path]] = {}
    for path in files:
        found.setdefault(rocprof.run_of(path) or str(path), []).append(path)
    return list(found.values())


def _join_counters(left: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Counters of links that several files hold, first to last, as one record: their difference is what was carried."""
    counters = [(name, said) for name, said in left if isinstance(said, Links)]
    if len(counters) < 2:
        return left
    names, seen = ", ".join(name for name, _ in counters), counters[0][1]
    for _, later in counters[1:]:
        seen = seen.and_then(later)
    return [*((name, said) for name, said in left if not isinstance(said, Links)), (names, seen)]


def _files(given: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Files in order, and whether somebody named them; a folder's own files, and not those of folders in it."""
    for path in given:
        if not path.is_dir():
            yield path, True
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        if len(inside) > COUNT.most_files:
            many = f"{len(inside):,} files in one folder, more than the {COUNT.most_files:,} that are read"
            raise Refusal(f"file '{path}': {many}", "file")
        yield from ((p, False) for p in inside)


def _passed_over(names: Sequence[str]) -> Iterator[Note]:
    if names:
        more = f" and {len(names) - COUNT.most_named} more" if len(names) > COUNT.most_named else ""
        shown = f"{', '.join(names[: COUNT.most_named])}{more}"
        yield Note("passed over", f"{plural(len(names), 'file')} of the folder not recognised, and left out: {shown}")


def model_of(read: ReadFiles) -> Model:
    """The model that the first log or benchmark result tells; any where no file asks for one."""
    told = (logged_plan(said).model for _, said in read.left if isinstance(said, TrainingLog))
    runs = (run for _, said in read.left if isinstance(said, tuple) for run in said if isinstance(run, BenchmarkRun))
    measured = (known_model(run.model) for run in runs if run.model)
    started = (known_model(name) for _, said in read.left if isinstance(said, StartupLog) for name in names_of(said.model) if name)
    launched = (known_model(said.model) for said in read.launches if said.model)
    if model := next(filter(None, chain(told, measured, started, launched)), None):
        return model
    if all(BY_RECORD[type(said)].by_place for _, said in read.left):
        return replace(catalog.model(next(iter(catalog.keys("models")))), key=ANY)
    raise Refusal("model: name what ran with --model; the files do not tell it", "model")


def place_of(read: ReadFiles) -> str:
    """The cluster that a trace ran on, by the devices that its driver lists; "" where it lists none that one chip alone is like."""
    for _, trace in read.traces:
        if trace.device:
            known = recognise(trace.device.name, trace.device.memory_bytes, trace.device.num_sms)
            return f"{max(1, trace.device.count)}x{known[0]}" if len(known) == 1 else ""
    return ""
