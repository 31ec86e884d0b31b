"""What a study asks of an engine, whichever it is: the question, what a driver must say and do, and what its runs leave."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from commtax.runs.results.bench_record import METRICS, BenchmarkRun
from commtax.runs.traces.meeting import meet
from commtax.runs.traces.trace import Trace
from commtax.spec import Model
from commtax_lab.measure.launch import LOST_S
from commtax_lab.measure.study.recipe import StudyRun
from commtax_lab.measure.study.study_documents import AllReduces, Check, RunRecord

ALL_REDUCE = "all-reduce"
Done = Callable[[StudyRun, RunRecord], None]


@dataclass(frozen=True, slots=True)
class StudyOrder:
    """One study, from the command line."""

    out: Path
    recipe: str = "tp-study"
    engine: str = "builtin"
    model: str = ""
    random: bool = False
    layers: int = 0
    degrees: tuple[int, ...] = (1, 2)
    quick: bool = False
    dtype: str = ""
    device: str = ""
    impl: str = ""
    cluster: str = ""
    profile: str = ""
    dataset: str = ""
    vllm: str = ""
    vllm_args: str = ""
    name: str = ""
    lost_s: float = LOST_S


class Driver(ABC):
    """An engine that can be driven, and what is known of it here."""

    kinds: Sequence[str]  # of runs that it can do
    model: Model
    version: str
    device: str  # in words
    where: str  # the cluster that is priced; "" where nobody knows
    dtype: str
    eager: bool
    on_cpu: bool
    library: str = ""

    @abstractmethod
    def checks(self) -> list[Check]: ...

    @abstractmethod
    def run(self, todo: Sequence[StudyRun], done: Done) -> None:
        """Make all runs, and pass each record to ``done`` when it is there."""


def check(what: str, ok: bool | None, seen: str) -> Check:
    """Return one check made before runs began. None: it decides nothing."""
    return {"check": what, "ok": ok, "found": seen}


def allreduces(traces: Sequence[Trace]) -> AllReduces:
    """Summarise the decode steps' all-reduces: how many a step, how large, how long, and their share of the step.

    Counted on the first rank; timed as the least over ranks where there are several (the wire), else one rank's own.
    """
    ordered = sorted(traces, key=lambda t: t.rank)
    first = ordered[0]
    steps = [s for s in first.steps if s.phase == "decode"] or list(first.steps)
    indices = {s.index for s in steps}
    counted = [c for c in first.collectives if c.op == ALL_REDUCE and c.step in indices]
    met = meet(ordered) if len(ordered) > 1 else None
    wires = zip(met.calls, met.wire_s.tolist(), strict=True) if met else ()
    wire = [s for c, s in wires if c.op == ALL_REDUCE and c.step in indices] or [c.seconds for c in counted]
    counts = [sum(c.step == s.index for c in counted) for s in steps]
    sizes = [c.nbytes for c in counted if c.nbytes is not None]
    return {
        "how": f"profiler traces of {len(ordered)} rank(s)" + ("" if first.on_device else ", host times with the profiler on"),
        "allreduces": median(counts) if counts else 0,
        "allreduce_bytes": sum(sizes) / len(sizes) if sizes else None,
        "allreduce_s": median(wire) if wire else None,
        "comm_fraction": min(t.usage([s for s in t.steps if s.index in indices]).exposed_share for t in ordered),
        "wire_fraction": sum(wire) / sum(s.seconds for s in steps) if wire and steps else None,
        "step_s": median(s.seconds for s in steps) if steps else 0.0,
    }


def serving_record(b: BenchmarkRun) -> RunRecord:
    """Record a serving benchmark, whichever engine ran it."""
    stats = {m: {k: v for k, v in b.stats[m].items() if k in ("mean", "median", "p99")} for m in METRICS if m in b.stats}
    return {
        "stats_s": stats,
        "requests": b.requests,
        "failed": b.failed,
        "duration_s": b.duration_s,
        "requests_per_s": b.requests_per_s,
        "output_tokens_per_s": b.output_tokens_per_s,
        "input_len": b.input_len,
        "output_len": b.output_len,
    }
