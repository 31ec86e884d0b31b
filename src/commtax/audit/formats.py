"""Formats of what a run leaves behind: each is one reader and one entry here, recognised by what is inside a file.

A file that holds data (JSON, a database) is of one format. A text may hold several: an engine's start-up, NCCL's own lines and the
table that a benchmark printed, one below the other, and then each is read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from commtax.audit import unknown
from commtax.evidence import prefixes
from commtax.evidence.thresholds import counts
from commtax.files import LOG_BYTES, Stream, Watch, decoded, opened
from commtax.logs import (
    crashes,
    flight,
    flight_text,
    llamacpp_log,
    nccl_log,
    sglang_log,
    tgi_log,
    training_log,
    trtllm_log,
    vllm_log,
)
from commtax.logs.crashes import Crash
from commtax.logs.flight import Dump
from commtax.logs.flight_text import Analysis
from commtax.logs.llamacpp_log import Timings
from commtax.logs.nccl_log import NcclLog
from commtax.logs.startup import StartupLog, lines
from commtax.logs.training_log import TrainingLog
from commtax.machines import matrices, smi, smi_query
from commtax.machines.matrices import Matrices
from commtax.machines.smi import Links, Monitor
from commtax.machines.smi_query import States
from commtax.results import bench, collective_json, collective_tests
from commtax.results.bench_record import Bench
from commtax.results.collective_tests import CollectiveTests
from commtax.statement import Refusal
from commtax.traces.profilers import chrome, kineto, nsys, rocprof
from commtax.traces.trace import Trace

COUNT = counts(__name__)
Left = (
    Trace
    | StartupLog
    | NcclLog
    | Dump
    | Analysis
    | Timings
    | TrainingLog
    | CollectiveTests
    | Links
    | Monitor
    | Matrices
    | States
    | Crash
    | tuple[Bench, ...]
)
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
        return self.stream.head(COUNT.head_bytes)

    @cached_property
    def begins(self) -> str:
        """The first sign of the text that is no space, behind whatever a launcher wrote; "" for the bracket of a log's line."""
        text = prefixes.plain(prefixes.unpacked(decoded(self.head[:8192]))).lstrip()
        return "" if text[:1] == "[" and text[1:].lstrip()[:1] not in ("{", "[", "]", "") else text[:1]

    @cached_property
    def raw(self) -> str:
        """All of its text, with what launchers wrote before its lines."""
        return prefixes.unpacked(decoded(self.stream.whole(LOG_BYTES)))

    @cached_property
    def text(self) -> str:
        """All of it as its program wrote it."""
        return prefixes.plain(self.raw)

    @cached_property
    def crash(self) -> Crash | None:
        """The error with which it ended, of other programs than engines, whose readers tell theirs themselves."""
        if not crashes.may(self.raw) or any(engine.looks_like(self.text) for engine in (vllm_log, sglang_log, trtllm_log)):
            return None
        return crashes.find(lines(self.raw))


@dataclass(frozen=True, slots=True)
class Format:
    """``fits`` looks at a file, ``read`` takes what it says."""

    kind: str  # log | trace | flight | bench | training | collectives | links | monitor | topology | state | crash
    described: str
    fits: Callable[[Source], bool]
    read: Callable[[Source], Found]


def _crash(source: Source) -> Crash:
    assert source.crash is not None  # or it would not fit
    return source.crash


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
        "flight",
        "a flight recorder's dump (nccl_trace_rank_N, or its JSON)",
        lambda source: flight.looks_like(source.head),
        lambda source: flight.read(source.stream),
    ),
    Format(
        "collectives",
        "the JSON of nccl-tests or rccl-tests",
        lambda source: source.begins in ("{", "[") and collective_json.looks_like(source.head),
        lambda source: collective_tests.parse(collective_json.as_text(source.text, source.path.name), source.path.name),
    ),
    Format(
        "bench",
        "a benchmark result (vllm bench, sglang.bench_serving, AIPerf, GenAI-Perf, GuideLLM, InferenceX)",
        lambda source: source.begins in ("{", "[") and bench.looks_like_data(source.head),
        lambda source: bench.parse(source.text, str(source.path)),
    ),
)
"""Of which a file has one, the first that fits."""
TEXTS = (
    Format(
        "log",
        "a vLLM log (model weights, KV cache size, rank lines, throughput)",
        lambda source: vllm_log.looks_like(source.text),
        lambda source: vllm_log.parse(source.text),
    ),
    Format(
        "log",
        "an SGLang log (ServerArgs, weights, KV cache, batches)",
        lambda source: sglang_log.looks_like(source.text),
        lambda source: sglang_log.parse(source.text),
    ),
    Format(
        "log",
        "a TensorRT-LLM log",
        lambda source: trtllm_log.looks_like(source.text),
        lambda source: trtllm_log.parse(source.text),
    ),
    Format(
        "log",
        "a start of Text Generation Inference",
        lambda source: tgi_log.looks_like(source.text) and source.crash is None,
        lambda source: tgi_log.parse(source.text),
    ),
    Format(
        "log",
        "a log of llama.cpp (timings, buffers)",
        lambda source: llamacpp_log.looks_like(source.raw),
        lambda source: llamacpp_log.parse(source.raw),
    ),
    Format(
        "log",
        "a log of NCCL or RCCL (NCCL_DEBUG=INFO, or PyTorch's watchdog)",
        lambda source: nccl_log.looks_like(source.text),
        lambda source: nccl_log.parse(source.text),
    ),
    Format(
        "flight",
        "an analysis of flight recorders (torchfrtrace, a table with missing_ranks)",
        lambda source: flight_text.looks_like(source.raw),
        lambda source: flight_text.parse(source.raw),
    ),
    Format(
        "bench",
        "a printed benchmark result, an MLPerf summary or a server's metrics",
        lambda source: bench.looks_like_text(source.raw),
        lambda source: bench.parse_text(source.raw, str(source.path)),
    ),
    Format(
        "training",
        "a training log (Megatron, NeMo, torchtitan, MaxText, DeepSpeed, Composer)",
        lambda source: training_log.looks_like(source.text),
        lambda source: training_log.parse(source.text),
    ),
    Format(
        "collectives",
        "nccl-tests or rccl-tests output",
        lambda source: collective_tests.looks_like(source.text),
        lambda source: collective_tests.parse(source.raw, source.path.name),
    ),
    Format(
        "links",
        "nvidia-smi nvlink counters or states",
        lambda source: smi.looks_like_links(source.text),
        lambda source: smi.parse_links(source.text),
    ),
    Format(
        "monitor",
        "an nvidia-smi dmon table",
        lambda source: smi.looks_like_monitor(source.text),
        lambda source: smi.parse_monitor(source.text),
    ),
    Format(
        "crash",
        "a log that ends in an error (a traceback, a signal, an exit code)",
        lambda source: source.crash is not None,
        _crash,
    ),
    Format(
        "state",
        "states of GPUs (nvidia-smi and its -q, -q -x and --query-gpu; amd-smi, rocm-smi)",
        lambda source: smi_query.looks_like(source.text),
        lambda source: smi_query.parse(source.text),
    ),
    Format(
        "topology",
        "a matrix of GPUs (nvidia-smi topo -m, topo -p2p; rocm-smi --showtopo)",
        lambda source: matrices.looks_like(source.text),
        lambda source: matrices.parse(source.text),
    ),
)
"""Of which a text has all that fit."""


def formats_of(source: Source) -> list[Format]:
    """The format of a file's data, or all those of its text."""
    texts = TEXTS if unknown.is_text(source.head) else ()
    fitting = next(([f] for f in DATA if f.fits(source)), None) or [f for f in texts if f.fits(source)]
    if not fitting:
        *others, last = (f.described for f in (*TEXTS, *DATA))
        raise Refusal(f"'{source.path}' is not recognised: {unknown.found(source.head)}; looked for {', '.join(others)} and {last}")
    return fitting


def kinds(path: Path) -> list[str]:
    """What a file is."""
    with opened(path) as stream:
        return [f.kind for f in formats_of(Source(stream))]


def runs(files: Iterable[Path]) -> list[list[Path]]:
    """Files that are read together, in order: the tables of one run of rocprofv3; each of all others alone."""
    found: dict[str, list[Path]] = {}
    for path in files:
        found.setdefault(rocprof.run_of(path) or str(path), []).append(path)
    return list(found.values())


def read_run(paths: Sequence[Path], program: str = "nsys", watch: Watch | None = None) -> list[Left]:
    """What files say that belong together; ``program`` opens reports of Nsight Systems, ``watch`` is told of bytes read."""
    return read(paths[0], program, watch) if len(paths) == 1 else list(rocprof.read_tables(paths))


def read(path: Path, program: str = "nsys", watch: Watch | None = None) -> list[Left]:
    """What a file says, unpacked where it is packed; of a text all that any format can read."""
    said: list[Left] = []
    refused: list[Refusal] = []
    with opened(path, watch=watch) as stream:
        source = Source(stream, program)
        for fitting in formats_of(source):
            try:
                found = fitting.read(source)
            except Refusal as refusal:
                refused.append(refusal)
            else:
                said += found if isinstance(found, list) else [found]
    if refused and not said:
        raise refused[0]
    return said
