"""The registry of what a run leaves behind: ``formats.toml`` says how each format is recognised, who reads it and who judges it.

A file that holds data (JSON, a database) is of one format. A text may hold several: an engine's start-up, NCCL's own lines and the
table that a benchmark printed, one below the other, and then each is read. A reader is imported when a file may be of its format.
The refusal of any other file says how it begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from commtax.files import LOG_BYTES, FileStream, Watch, decode_text, open_stream, table
from commtax.records import dataclass
from commtax.redaction import redact
from commtax.runs.evidence import prefixes
from commtax.runs.evidence.finding import Section
from commtax.statement import Refusal
from commtax.thresholds import counts

if TYPE_CHECKING:
    from commtax.runs.traces.trace import Trace

COUNT = counts(__name__)

_TOKEN = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|[{}\[\]:]')
LOOKED_FOR = (
    "looked for traces of profilers (PyTorch, Nsight Systems, rocprofv3), logs (engines, NCCL, training, crashes), results "
    "(of benchmarks, nccl-tests) and what nvidia-smi, amd-smi or rocm-smi print"
)


def hint(head: bytes) -> str:
    """Return what such a file most likely is, and where it belongs, or "" if nothing matches.

    >>> hint(b"<!DOCTYPE html><html>"), hint(b"hello")
    ('; it seems to be a web page: save the file itself', '')
    """
    text = decode_text(head)
    likely = next((row["is"] for row in table("runs/audit/hints.toml")["hint"] if all(sign in text for sign in row["signs"])), "")
    return f"; it seems to be {likely}" if likely else ""


def beginning(head: bytes) -> str:
    """Describe a file's beginning in words.

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
    """Return whether a file's beginning may be a text: some logs hold a few zero bytes, and UTF-16 begins with a mark.

    >>> is_text(b"a log\\0\\n" * 9), is_text("log".encode("utf-16")), is_text(bytes(64) + b"a log")
    (True, True, False)
    """
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.count(0) * COUNT.most_zeros <= len(head)


def _printable(text: str) -> str:
    """Return as much as is shown, without signs that end a line or steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text[: COUNT.most_signs])


def top_keys(text: str) -> list[str]:
    """Return the first keys of the outermost object, or of the first in a list."""
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
    """A file to be read: its beginning, and all of it when a format needs it."""

    def __init__(self, stream: FileStream, nsys: str = "nsys") -> None:
        self.stream, self.path, self.name, self.place = stream, stream.path, stream.path.name, str(stream.path)
        self.nsys = nsys  # the program that opens reports of Nsight Systems

    @cached_property
    def head(self) -> bytes:
        return self.stream.head(COUNT.head_bytes)

    @cached_property
    def begins(self) -> str:
        return decode_text(self.head)

    @cached_property
    def is_json(self) -> bool:
        """Whether the text begins as JSON behind a launcher's prefix (the bracket that opens a log line is no JSON)."""
        text = prefixes.strip_prefixes(prefixes.unpack_docker(decode_text(self.head[:8192]))).lstrip()
        return text[:1] == "{" or (text[:1] == "[" and text[1:].lstrip()[:1] in ("{", "[", "]", ""))

    @cached_property
    def raw(self) -> str:
        """All of its text, with what launchers wrote before its lines."""
        return prefixes.unpack_docker(decode_text(self.stream.whole(LOG_BYTES)))

    @cached_property
    def text(self) -> str:
        """All of its text as its program wrote it."""
        return prefixes.strip_prefixes(self.raw)

    @cached_property
    def crash(self) -> object:
        """The error with which it ended, if any."""
        return _fetched("runs.logs.engine_logs:crash_of")(self.raw, self.text)


def _fetched(name: str) -> Callable[..., object]:
    """Import the function that a name of the registry stands for."""
    module, _, path = name.partition(":")
    return cast("Callable[..., object]", reduce(getattr, path.split("."), cast("object", import_module(f"commtax.{module}"))))


@dataclass(frozen=True, slots=True)
class RecordKind:
    """A reader's record, with the fields that ``formats.toml`` describes."""

    kind: str  # log | trace | flight | bench | training | collectives | links | monitor | topology | state | crash
    audit: str
    together: bool = False
    by_place: bool = False

    @property
    def judge(self) -> Callable[..., Section]:
        """The audit of one record or, where they are judged ``together``, of those of all ranks."""
        return cast("Callable[..., Section]", _fetched(self.audit))


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one format are recognised and read, with the fields that ``formats.toml`` describes."""

    record: str
    described: str
    reader: str = ""
    looks_like: str = ""
    looked_at: str = "text"
    takes: Sequence[str] = ("text",)
    signs: Sequence[str] = ()
    pattern: str = ""
    ends: Sequence[str] = ()
    json: bool = False
    unless: str = ""

    @property
    def kind(self) -> str:
        return RECORDS[self.record].kind

    def fits(self, source: FileToRead) -> bool:
        """Return whether a file is of this format, by the cheapest checks first."""
        if (self.json and not source.is_json) or (self.ends and not source.name.endswith(tuple(self.ends))):
            return False
        looked = getattr(source, self.looked_at)
        words = source.begins if self.looked_at == "head" else looked
        if looked is None or (self.signs and not any(sign in words for sign in self.signs)):
            return False
        if (self.pattern and not re.search(self.pattern, words)) or (self.looks_like and not _fetched(self.looks_like)(looked)):
            return False
        return not (self.unless and getattr(source, self.unless))

    def read(self, source: FileToRead) -> object:
        arguments = [getattr(source, name) for name in self.takes]
        return _fetched(self.reader)(*arguments) if self.reader else arguments[0]


_REGISTRY = table("runs/audit/formats.toml")
RECORDS = {name: RecordKind(**row) for name, row in _REGISTRY["records"].items()}
DATA = tuple(Format(**{"looked_at": "head", "takes": ["stream"], **row}) for row in _REGISTRY["data"])
"""Of which a file has one, the first that fits."""
TEXTS = tuple(Format(**row) for row in _REGISTRY["text"])
"""Of which a text has all that fit."""


def kind_of(record: object) -> RecordKind:
    """Return what the registry says of a reader's record."""
    return RECORDS[f"{type(record).__module__.removeprefix('commtax.')}:{type(record).__name__}"]


def formats_of(source: FileToRead) -> list[Format]:
    """Return the format of a file's data, or all those of its text."""
    texts = TEXTS if is_text(source.head) else ()
    fitting = next(([f] for f in DATA if f.fits(source)), None) or [f for f in texts if f.fits(source)]
    if not fitting:
        raise Refusal(f"'{source.path}' is not recognised: {beginning(source.head)}; {LOOKED_FOR}{hint(source.head)}")
    return fitting


def kinds(path: Path) -> list[str]:
    """Return the kinds of a file's formats."""
    with open_stream(path) as stream:
        return [f.kind for f in formats_of(FileToRead(stream))]


def read(path: Path, program: str = "nsys", watch: Watch | None = None) -> list[object]:
    """Return the records of a file, decompressed if needed, and of a text with several formats those that can be read."""
    records: list[object] = []
    refused: list[Refusal] = []
    with open_stream(path, watch=watch) as stream:
        source = FileToRead(stream, program)
        for fitting in formats_of(source):
            try:
                record = fitting.read(source)
            except Refusal as refusal:
                refused.append(refusal)
            else:
                records += record if isinstance(record, list) else [record]
    if refused and not records:
        raise refused[0]
    return records


def read_traces(path: Path) -> list[Trace] | None:
    """Return the traces of a profiler's file, or None for any other file."""
    with open_stream(path) as stream:
        source = FileToRead(stream)
        fitting = next((f for f in DATA if f.kind == "trace" and f.fits(source)), None)
        return cast("list[Trace]", fitting.read(source)) if fitting else None
