"""Formats of what a run leaves behind: each is one reader and one entry here, recognised by what is inside a file.

A file that holds data (JSON, a database) is of one format. A text may hold several: an engine's start-up, NCCL's own lines and the
table that a benchmark printed, one below the other, and then each is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from commtax.files import LOG_BYTES, Stream, decoded, opened
from commtax.readers import bench, collective_tests, kineto, prefixes, smi, training_log, vllm_log
from commtax.readers.bench import Bench
from commtax.readers.collective_tests import CollectiveTests
from commtax.readers.smi import Links, Monitor
from commtax.readers.trace import Trace
from commtax.readers.training_log import TrainingLog
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal

HEAD_BYTES = 65536  # of a file, in which what it is shows
Left = Trace | StartupLog | TrainingLog | CollectiveTests | Links | Monitor | tuple[Bench, ...]
"""What one format finds in a file."""


class Source:
    """A file that somebody handed over: its beginning, and all of it when it is asked for."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.path = stream, stream.path

    @cached_property
    def head(self) -> bytes:
        return self.stream.head(HEAD_BYTES)

    @cached_property
    def begins(self) -> str:
        """The first sign of the text that is no space, behind whatever a launcher wrote; "" for the bracket of a log's line."""
        text = prefixes.plain(decoded(self.head[:8192])).lstrip()
        return "" if text[:1] == "[" and text[1:].lstrip()[:1] not in ("{", "[", "]", "") else text[:1]

    @cached_property
    def text(self) -> str:
        """All of it as its program wrote it."""
        return prefixes.plain(decoded(self.stream.whole(LOG_BYTES)))


@dataclass(frozen=True, slots=True)
class Format:
    """``fits`` looks at a file, ``read`` takes what it says."""

    kind: str  # log | trace | bench | training | collectives | links | monitor
    described: str
    fits: Callable[[Source], bool]
    read: Callable[[Source], Left]


DATA = (
    Format(
        "trace",
        "a PyTorch profiler trace (traceEvents)",
        lambda source: kineto.looks_like(source.head),
        lambda source: kineto.read(source.stream),
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
    Format(
        "training",
        "a training log (Megatron, torchtitan, DeepSpeed, Composer)",
        lambda source: training_log.looks_like(source.text),
        lambda source: training_log.parse(source.text),
    ),
    Format(
        "collectives",
        "nccl-tests or rccl-tests output",
        lambda source: collective_tests.looks_like(source.text),
        lambda source: collective_tests.parse(decoded(source.stream.whole(LOG_BYTES)), source.path.name),
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


def read(path: Path) -> list[Left]:
    """What a file says, unpacked where it is packed."""
    with opened(path) as stream:
        source = Source(stream)
        return [f.read(source) for f in formats_of(source)]
