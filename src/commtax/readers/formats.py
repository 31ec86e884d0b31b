"""Formats of what a run leaves behind: each is one reader and one entry here, recognised by what is inside a file.

A file that holds data (JSON, a database) is of one format. A text may hold several: an engine's start-up, NCCL's own lines and the
table that a benchmark printed, one below the other, and then each is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from commtax.files import LOG_BYTES, Stream, decoded, opened
from commtax.readers import bench, chrome, kineto, nsys, prefixes, rocprof, vllm_log
from commtax.readers.bench import Bench
from commtax.readers.shaped import UNNUMBERED
from commtax.readers.trace import Trace
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal

HEAD_BYTES = 65536  # of a file, in which what it is shows
Left = Trace | StartupLog | tuple[Bench, ...]
"""What one format finds in a file."""
Found = Left | list[Trace]
"""… of which a file of several ranks holds several."""


class Source:
    """A file that somebody handed over: its beginning, and all of it when it is asked for."""

    def __init__(self, stream: Stream, nsys: str = "nsys") -> None:
        self.stream, self.path = stream, stream.path
        self.nsys = nsys  # the program that opens reports of Nsight Systems

    @cached_property
    def head(self) -> bytes:
        return self.stream.head(HEAD_BYTES)

    @cached_property
    def begins(self) -> str:
        """The first sign of the text that is no space, behind whatever a launcher wrote."""
        return prefixes.plain(decoded(self.head[:8192])).lstrip()[:1]

    @cached_property
    def text(self) -> str:
        """All of it as its program wrote it."""
        return prefixes.plain(decoded(self.stream.whole(LOG_BYTES)))


@dataclass(frozen=True, slots=True)
class Format:
    """``fits`` looks at a file, ``read`` takes what it says."""

    kind: str  # log | trace | bench
    described: str
    fits: Callable[[Source], bool]
    read: Callable[[Source], Found]


DATA = (
    Format(
        "trace",
        "an Nsight Systems export (.sqlite)",
        lambda source: nsys.looks_like(source.head),
        lambda source: nsys.read(source.stream),
    ),
    Format(
        "trace",
        "an Nsight Systems report (.nsys-rep)",
        lambda source: nsys.is_report(source.path),
        lambda source: nsys.read_report(source.path, source.nsys),
    ),
    Format(
        "trace",
        "rocprofv3's JSON (rocprofiler-sdk-tool)",
        lambda source: rocprof.looks_like(source.head),
        lambda source: rocprof.read(source.stream),
    ),
    Format(
        "trace",
        "a table of rocprofv3 (_kernel_trace.csv, _rccl_api_trace.csv)",
        lambda source: rocprof.looks_like_table(source.head),
        lambda source: rocprof.read_streams([source.stream]),
    ),
    Format(
        "trace",
        "a Perfetto trace (.pftrace, which is refused)",
        lambda source: rocprof.is_perfetto(source.path),
        lambda source: rocprof.refuse_perfetto(source.path),
    ),
    Format(
        "trace",
        "a trace of ours (simulate --timeline, pipeline --chrome-trace)",
        lambda source: chrome.is_own(source.head),
        lambda source: chrome.read_own(source.stream),
    ),
    Format(
        "trace",
        "a PyTorch profiler trace (traceEvents)",
        lambda source: kineto.looks_like(source.head),
        lambda source: chrome.read(source.stream),
    ),
    Format(
        "bench",
        "a benchmark result (vllm bench, sglang.bench_serving, AIPerf)",
        lambda source: source.begins in ("{", "["),
        lambda source: bench.parse(source.text, str(source.path)),
    ),
)
"""Of which a file has one, the first that fits."""
TEXTS = (
    Format(
        "log",
        "a vLLM start-up log (model weights, KV cache size, rank lines)",
        lambda source: vllm_log.looks_like(source.text),
        lambda source: vllm_log.parse(source.text),
    ),
)
"""Of which a text has all that fit."""


def formats_of(source: Source) -> list[Format]:
    """The format of a file's data, or all those of its text."""
    fitting = next(([f] for f in DATA if f.fits(source)), None) or [f for f in TEXTS if f.fits(source)]
    if not fitting:
        *others, last = (f.described for f in (*TEXTS, *DATA))
        raise Refusal(f"'{source.path}' is not recognised: looked for {', '.join(others)} and {last}")
    return fitting


def kinds(path: Path) -> list[str]:
    """What a file is."""
    with opened(path) as stream:
        return [f.kind for f in formats_of(Source(stream))]


def groups(files: Sequence[Path]) -> list[list[Path]]:
    """Files that are read together, each group in the place of its first: tables of one run of rocprofv3 are one trace."""
    runs: dict[str, list[Path]] = {}
    for path in files:
        runs.setdefault(rocprof.run_of(path) or str(path), []).append(path)
    return list(runs.values())


def read_group(paths: Sequence[Path], program: str = "nsys") -> list[Left]:
    """What files say that are read together."""
    return read(paths[0], program) if len(paths) == 1 else [*rocprof.read_tables(paths)]


def read_all(files: Sequence[Path], program: str = "nsys") -> list[tuple[str, Left]]:
    """What files say, each with the name of its file. ``program`` opens Nsight's reports."""
    return _numbered([(paths[0].name, said) for paths in groups(files) for said in read_group(paths, program)])


def _numbered(found: list[tuple[str, Left]]) -> list[tuple[str, Left]]:
    """Traces of which none tells its rank are numbered in the order of their files."""
    traces = [said for _, said in found if isinstance(said, Trace)]
    if len({t.rank for t in traces}) == len(traces) or not all(any(n.code == UNNUMBERED.code for n in t.notes) for t in traces):
        return found
    ranks = iter(range(len(traces)))
    return [(name, replace(said, rank=next(ranks)) if isinstance(said, Trace) else said) for name, said in found]


def read(path: Path, program: str = "nsys") -> list[Left]:
    """What a file says, unpacked where it is packed; ``program`` opens reports of Nsight Systems."""
    with opened(path) as stream:
        source = Source(stream, program)
        found = [f.read(source) for f in formats_of(source)]
    return [said for one in found for said in (one if isinstance(one, list) else [one])]
