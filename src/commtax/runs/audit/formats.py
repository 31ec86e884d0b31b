"""The registry of what a run leaves behind: each format is one entry here, which names how it is known, its reader and its audit.

A file that holds data (JSON, a database) is of one format. A text may hold several: an engine's start-up, NCCL's own lines and the
table that a benchmark printed, one below the other, and then each is read. The refusal of any other file says how it begins.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

from commtax.files import LOG_BYTES, FileStream, Watch, decode_text, open_stream, table
from commtax.redaction import redact
from commtax.runs.evidence import prefixes
from commtax.runs.evidence.finding import Section
from commtax.runs.logs import crashes, flight, llamacpp_log, nccl_log, training_log
from commtax.runs.logs.engine_logs import ENGINE_LOGS, StartupLog, lines, tgi_log
from commtax.runs.logs.flight_audit import audit_analysis, audit_flight
from commtax.runs.logs.llamacpp_log import audit_timings
from commtax.runs.logs.nccl_audit import audit_nccl
from commtax.runs.logs.startup_audit import audit_crash, audit_log
from commtax.runs.logs.training_audit import audit_training
from commtax.runs.machines import smi, topology
from commtax.runs.machines.smi_audit import audit_links, audit_monitor, audit_states
from commtax.runs.machines.topology import audit_topology
from commtax.runs.results import bench, collective_tests
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.collective_audit import audit_collectives
from commtax.runs.traces.profilers.readers import READERS, TraceReader
from commtax.runs.traces.trace import Trace
from commtax.runs.traces.trace_audit import audit_traces
from commtax.statement import Refusal
from commtax.thresholds import counts

COUNT = counts(__name__)

_TOKEN = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|[{}\[\]:]')
LOOKED_FOR = (
    "looked for traces of profilers (PyTorch, Nsight Systems, rocprofv3), logs (engines, NCCL, training, crashes), results "
    "(of benchmarks, nccl-tests) and what nvidia-smi, amd-smi or rocm-smi print"
)


def hint(head: bytes) -> str:
    """What such a file most likely is, and where it belongs; "" where nothing is known.

    >>> hint(b"<!DOCTYPE html><html>"), hint(b"hello")
    ('; it seems to be a web page: save the file itself', '')
    """
    text = decode_text(head)
    likely = next((row["is"] for row in table("runs/audit/hints.toml")["hint"] if all(sign in text for sign in row["signs"])), "")
    return f"; it seems to be {likely}" if likely else ""


def beginning(head: bytes) -> str:
    """In words, from a file's beginning.

    >>> beginning(b'{"a": {"b": 1}, "c": 2}'), beginning(b"\\n hello\\n"), beginning(b"")
    ('found JSON with the keys a, c', "found a text that begins with 'hello'", 'found nothing: it is empty')
    """
    text = redact(decode_text(head)).lstrip()
    if not text:
        return "found nothing: it is empty"
    if b"\0" in head:
        return "found bytes that are no text"
    keys = top_keys(text) if text[0] in "{[" else []
    if keys or text[0] == "{":
        return f"found JSON with the keys {', '.join(keys)}" if keys else "found JSON without keys"
    return f"found a text that begins with '{_printable(text.splitlines()[0].strip())}'"


def is_text(head: bytes) -> bool:
    """Whether a file's beginning may be a text: some logs hold a few zero bytes, and UTF-16 says that it is.

    >>> is_text(b"a log\\0\\n" * 9), is_text("log".encode("utf-16")), is_text(bytes(64) + b"a log")
    (True, True, False)
    """
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.count(0) * COUNT.most_zeros <= len(head)


def _printable(text: str) -> str:
    """As much as is shown, without signs that end a line or steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text[: COUNT.most_signs])


def top_keys(text: str) -> list[str]:
    """The first keys of the outermost object, or of the first in a list."""
    keys: list[str] = []
    depth, last = 0, ""
    for match in _TOKEN.finditer(text):
        sign = match[0]
        if sign in ("{", "["):
            depth += sign == "{" or depth > 0  # objects of a list count from the first on
        elif sign in ("}", "]"):
            depth -= 1
            if depth <= 0:
                break
        elif sign != ":":
            last = match[1]
        elif depth == 1 and len(keys) < COUNT.most_keys:
            keys.append(_printable(last))
    return keys


class FileToRead:
    """A file that somebody handed over: its beginning, and all of it when it is asked for."""

    def __init__(self, stream: FileStream, nsys: str = "nsys") -> None:
        self.stream, self.path = stream, stream.path
        self.nsys = nsys  # the program that opens reports of Nsight Systems

    @cached_property
    def head(self) -> bytes:
        return self.stream.head(COUNT.head_bytes)

    @cached_property
    def is_json(self) -> bool:
        """Whether its text begins as JSON does, behind whatever a launcher wrote; the bracket of a log's line is none."""
        text = prefixes.strip_prefixes(prefixes.unpack_docker(decode_text(self.head[:8192]))).lstrip()
        return text[:1] == "{" or (text[:1] == "[" and text[1:].lstrip()[:1] in ("{", "[", "]", ""))

    @cached_property
    def raw(self) -> str:
        """All of its text, with what launchers wrote before its lines."""
        return prefixes.unpack_docker(decode_text(self.stream.whole(LOG_BYTES)))

    @cached_property
    def text(self) -> str:
        """All of it as its program wrote it."""
        return prefixes.strip_prefixes(self.raw)

    @cached_property
    def crash(self) -> crashes.Crash | None:
        """The error with which it ended, of other programs than engines, whose readers tell theirs themselves."""
        if not crashes.may_hold_error(self.raw) or any(engine.looks_like(self.text) for engine in ENGINE_LOGS):
            return None
        return crashes.find(lines(self.raw))


@dataclass(frozen=True, slots=True)
class Format:
    """``fits`` looks at a file and ``read`` takes what it says, a ``record`` or a list of them, which ``audit`` judges.

    ``together``: records of all ranks of a job are judged at once. ``by_place``: they tell nothing of a model, and need none.
    """

    kind: str  # log | trace | flight | bench | training | collectives | links | monitor | topology | state | crash
    described: str
    record: type
    audit: Callable[..., Section]
    fits: Callable[[FileToRead], bool]
    read: Callable[[FileToRead], object]
    together: bool = False
    by_place: bool = False


class TextReader(Protocol):
    """A module that reads one kind of text."""

    def looks_like(self, text: str, /) -> bool: ...
    def parse(self, text: str, /) -> object: ...


Fits = Callable[[FileToRead], bool]
Reads = Callable[[FileToRead], object]


def _trace(by: TraceReader) -> Format:
    def fits(source: FileToRead) -> bool:
        return by.fits(source.head, source.path)

    def read(source: FileToRead) -> object:
        return by.read(source.stream, source.nsys)

    return Format("trace", by.described, Trace, audit_traces, fits, read, together=True)


def _collectives(described: str, fits: Fits, read: Reads) -> Format:
    return Format("collectives", described, collective_tests.CollectiveTests, audit_collectives, fits, read, by_place=True)


def _bench(described: str, fits: Fits, read: Reads) -> Format:
    return Format("bench", described, tuple, audit_bench, fits, read)


def _on_text(looks_like: Callable[[str], bool], parse: Callable[[str], object], raw: bool = False) -> tuple[Fits, Reads]:
    """How a text is known and read: as its program wrote it, or ``raw``, with what launchers wrote before its lines."""

    def text(source: FileToRead) -> str:
        return source.raw if raw else source.text

    return lambda s: looks_like(text(s)), lambda s: parse(text(s))


def _text_format(
    kind: str, described: str, record: type, audit: Callable[..., Section], reader: TextReader, raw: bool = False, **more: bool
) -> Format:
    """A format of texts that has a module of its own."""
    fits, read = _on_text(reader.looks_like, reader.parse, raw)
    return Format(kind, described, record, audit, fits, read, **more)


ANALYSES = SimpleNamespace(looks_like=flight.looks_like_analysis, parse=flight.parse_analysis)
STATES = SimpleNamespace(looks_like=smi.looks_like_states, parse=smi.parse_states)
DATA = (
    *map(_trace, READERS),
    Format(
        "flight",
        "a flight recorder's dump",
        flight.Dump,
        audit_flight,
        lambda s: flight.looks_like(s.head),
        lambda s: flight.read(s.stream),
        together=True,
    ),
    _collectives(
        "the JSON of nccl-tests or rccl-tests",
        lambda s: s.is_json and collective_tests.looks_like_json(s.head),
        lambda s: collective_tests.parse(collective_tests.text_of_json(s.text, s.path.name), s.path.name),
    ),
    _bench("a benchmark result", lambda s: s.is_json and bench.looks_like_data(s.head), lambda s: bench.parse(s.text, str(s.path))),
)
"""Of which a file has one, the first that fits."""
TEXTS = (
    *(_text_format("log", log.described, StartupLog, audit_log, log) for log in ENGINE_LOGS),
    Format(
        "log",
        tgi_log.described,
        StartupLog,
        audit_log,
        lambda s: tgi_log.looks_like(s.text) and s.crash is None,
        lambda s: tgi_log.parse(s.text),
    ),
    _text_format("log", "a log of llama.cpp", llamacpp_log.Timings, audit_timings, llamacpp_log, raw=True),
    _text_format("log", "a log of NCCL, RCCL or PyTorch's watchdog", nccl_log.NcclLog, audit_nccl, nccl_log, together=True),
    _text_format(
        "flight",
        "an analysis of flight recorders",
        flight.Analysis,
        audit_analysis,
        SimpleNamespace(looks_like=flight.looks_like_analysis, parse=flight.parse_analysis),
        raw=True,
    ),
    _bench("a printed benchmark result", lambda s: bench.looks_like_text(s.raw), lambda s: bench.parse_text(s.raw, str(s.path))),
    _text_format("training", "a training log", training_log.TrainingLog, audit_training, training_log),
    _collectives(
        "nccl-tests or rccl-tests output",
        lambda s: collective_tests.looks_like(s.text),
        lambda s: collective_tests.parse(s.raw, s.path.name),
    ),
    Format("links", "nvidia-smi nvlink", smi.Links, audit_links, *_on_text(smi.looks_like_links, smi.parse_links), by_place=True),
    Format(
        "monitor",
        "nvidia-smi dmon",
        smi.Monitor,
        audit_monitor,
        *_on_text(smi.looks_like_monitor, smi.parse_monitor),
        by_place=True,
    ),
    Format(
        "crash",
        "a log that ends in an error",
        crashes.Crash,
        audit_crash,
        lambda s: s.crash is not None,
        lambda s: s.crash,
        by_place=True,
    ),
    _text_format(
        "state",
        "states of GPUs",
        smi.States,
        audit_states,
        SimpleNamespace(looks_like=smi.looks_like_states, parse=smi.parse_states),
        by_place=True,
    ),
    _text_format("topology", "a matrix of GPUs", topology.Matrices, audit_topology, topology, by_place=True),
)
"""Of which a text has all that fit."""
BY_RECORD = {one.record: one for one in (*DATA, *TEXTS)}


def formats_of(source: FileToRead) -> list[Format]:
    """The format of a file's data, or all those of its text."""
    texts = TEXTS if is_text(source.head) else ()
    fitting = next(([f] for f in DATA if f.fits(source)), None) or [f for f in texts if f.fits(source)]
    if not fitting:
        raise Refusal(f"'{source.path}' is not recognised: {beginning(source.head)}; {LOOKED_FOR}{hint(source.head)}")
    return fitting


def kinds(path: Path) -> list[str]:
    with open_stream(path) as stream:
        return [f.kind for f in formats_of(FileToRead(stream))]


def read(path: Path, program: str = "nsys", watch: Watch | None = None) -> list[object]:
    """What a file says, unpacked where it is packed; of a text all that any format can read."""
    said: list[object] = []
    refused: list[Refusal] = []
    with open_stream(path, watch=watch) as stream:
        source = FileToRead(stream, program)
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
