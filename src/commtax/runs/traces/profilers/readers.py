"""The profilers whose traces are read, each with how it is known; a file is of the first that fits."""

from collections.abc import Callable
from pathlib import Path

from commtax.files import FileStream, open_stream
from commtax.records import dataclass
from commtax.runs.traces.profilers import chrome, nsys, rocprof
from commtax.runs.traces.trace import Trace
from commtax.thresholds import counts

Head = bytes
COUNT = counts(__name__)


@dataclass(frozen=True, slots=True)
class TraceReader:
    """``fits`` sees a file's beginning and its path; ``read`` gives its traces. A program is named that opens Nsight's reports."""

    described: str
    fits: Callable[[Head, Path], bool]
    read: Callable[[FileStream, str], list[Trace]]


READERS = (
    TraceReader("an Nsight Systems export (.sqlite)", lambda head, _: nsys.looks_like(head), lambda stream, _: nsys.read(stream)),
    TraceReader(
        "an Nsight Systems report (.nsys-rep)",
        lambda _, path: path.name.endswith(nsys.REPORTS),  # what they hold nobody else reads
        lambda stream, program: nsys.read_report(stream.path, program),
    ),
    TraceReader("rocprofv3's JSON", lambda head, _: rocprof.looks_like(head), lambda stream, _: rocprof.read(stream)),
    TraceReader(
        "a table of rocprofv3", lambda head, _: rocprof.looks_like_table(head), lambda stream, _: rocprof.read_streams([stream])
    ),
    TraceReader(
        "a Perfetto trace",
        lambda _, path: path.name.endswith(rocprof.PERFETTO),
        lambda stream, _: rocprof.refuse_perfetto(stream.path),
    ),
    TraceReader("a trace of ours", lambda head, _: chrome.is_own(head), lambda stream, _: chrome.read_own(stream)),
    TraceReader("a PyTorch profiler trace", lambda head, _: chrome.looks_like(head), lambda stream, _: chrome.read(stream)),
)


def read_traces(path: Path, program: str = "nsys") -> list[Trace] | None:
    """The traces of a file; None where it is none of a profiler."""
    with open_stream(path) as stream:
        head = stream.head(COUNT.head_bytes)
        reader = next((one for one in READERS if one.fits(head, path)), None)
        return reader.read(stream, program) if reader else None


def holds_events(path: Path) -> bool:
    """Whether a file holds events of a profiler for certain."""
    with open_stream(path) as stream:
        return b'"traceEvents"' in stream.head(COUNT.head_bytes)
