"""Formats of what a run leaves behind: each is one reader and one entry here, recognised by what is inside a file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commtax.files import LOG_BYTES, TRACE_BYTES, decoded, read_bytes
from commtax.readers import bench, kineto, prefixes, vllm_log
from commtax.readers.bench import Bench
from commtax.readers.trace import Trace
from commtax.readers.vllm_log import StartupLog
from commtax.statement import Refusal

HEAD_BYTES = 8192  # of a file, in which its first words stand behind whatever a launcher wrote
Left = Trace | StartupLog | tuple[Bench, ...]
"""What one file says."""


@dataclass(frozen=True, slots=True)
class Format:
    """``fits`` looks at a file's bytes, ``read`` takes them and the file's name."""

    kind: str  # log | trace | bench
    described: str
    fits: Callable[[bytes], bool]
    read: Callable[[bytes, Path], Left]
    most_bytes: int = LOG_BYTES


def printed(raw: bytes) -> str:
    """The text as its program wrote it."""
    return prefixes.plain(decoded(raw))


FORMATS = (
    Format(
        "trace",
        "a PyTorch profiler trace (traceEvents)",
        kineto.looks_like,
        lambda raw, path: kineto.parse(kineto.load(raw, path.name), path.name),
        TRACE_BYTES,
    ),
    Format(
        "bench",
        "a benchmark result (vllm bench, sglang.bench_serving, AIPerf)",
        lambda raw: printed(raw[:HEAD_BYTES])[:99].lstrip()[:1] in ("{", "["),
        lambda raw, path: bench.parse(printed(raw), str(path)),
    ),
    Format(
        "log",
        "a vLLM start-up log (model weights, KV cache size, rank lines)",
        lambda raw: vllm_log.looks_like(printed(raw)),
        lambda raw, _: vllm_log.parse(printed(raw)),
    ),
)


def format_of(raw: bytes, path: Path) -> Format:
    """The format of a file's bytes."""
    if len(raw) > LOG_BYTES and not any(f.fits(raw) for f in FORMATS if f.most_bytes > LOG_BYTES):
        raise Refusal(f"file '{path}': larger than {LOG_BYTES >> 20} MiB, and no trace; split it")
    fitting = next((f for f in FORMATS if f.fits(raw)), None)
    if fitting is None:
        *others, last = (f.described for f in (FORMATS[-1], *FORMATS[:-1]))
        raise Refusal(f"'{path}' is not recognised: looked for {', '.join(others)} and {last}")
    return fitting


def read(path: Path) -> Left:
    """What a file says, unpacked where it is packed."""
    raw = read_bytes(path, "file", most=TRACE_BYTES)
    return format_of(raw, path).read(raw, path)
