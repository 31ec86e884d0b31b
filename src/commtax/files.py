"""Files from anywhere, read within limits, as JSON within a depth, and written whole or not at all, and what their documents hold.

What cannot be read or written is a ``ValueError`` of one line that names the argument, the file and the rule.
"""

import errno
import gc
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from commtax.shipped_tables import table as table
from commtax.statement import Refusal

MiB = 2**20
CONFIG_BYTES = 16 * MiB  # a config.json, a launch command, a topology, a profile
TABLE_BYTES = 32 * MiB  # a table of rows: a cell of three signs takes twenty times its text
OUTPUT_BYTES = 64 * MiB  # an output of a benchmark
LOG_BYTES = 128 * MiB  # a log of an engine
PIPE_BYTES = 1024 * MiB  # what comes through a pipe
TRACE_BYTES = 16384 * MiB  # a profiler's trace, which is read in pieces
JSON_MEMORY_BYTES = 800 * MiB  # what the parsed objects of a file may take
MAX_DEPTH = 64  # lists and objects inside each other

_GZIP = b"\x1f\x8b"
_GZIP_MOST = 1032  # deflate packs no better than this
_GZIP_WINDOW = 31  # what zlib calls a gzip file of any window
_CHUNK = MiB
_PACKED = MiB // 4
_SIGN_BYTES = {",": 72, "[": 96, "{": 200, ":": 110}  # the most that what follows a sign costs as a Python object, text aside
_STREAMS = ("/dev/", "/proc/")
_CONNECTED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_KINDS = {"d": "a folder", "p": "a pipe", "c": "a device", "b": "a device", "s": "a socket"}  # as ``ls -l`` marks them
ELSEWHERE = ("/", ".", "~", "$")  # what the name of a place begins with, and no name that others know
Named = str | os.PathLike[str]
Watch = Callable[[int], None]  # hears how many more bytes on the disk have been read
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A parsed document of others: any key may be missing and any value of another type, so that its reader checks both."""
JsonObject = dict[str, Json]


def expand_home(name: Named) -> Path:
    """Return a path with ``~`` for a home. The name of no user stays as it is.

    >>> str(expand_home("~no-such-user/x"))
    '~no-such-user/x'
    """
    return Path(os.path.expanduser(name))


def read_bytes(path: Named, what: str = "file", *, most: int = CONFIG_BYTES) -> bytes:
    """Read a regular file's bytes, unpacked where they are gzip, and never more than ``most``."""
    with open_stream(path, what, most=most) as stream:
        return stream.whole(most)


class FileStream:
    """An open file from its beginning, unpacked where it is gzip, as often as it is read."""

    def __init__(self, file: IO[bytes], path: Named, what: str, watch: Watch | None = None) -> None:
        self._file, self.path, self.what = file, Path(path), what
        self._watch, self._reported = watch, 0
        self.size = os.fstat(file.fileno()).st_size
        """Bytes on the disk, as packed as they are."""

    @property
    def packed(self) -> bool:
        self._file.seek(0)
        return _read_available(self._file, 2) == _GZIP

    @property
    def done(self) -> int:
        """Bytes of the file on the disk that have been taken since the last beginning."""
        return self._file.tell()

    def pieces(self, size: int = _CHUNK) -> Iterator[bytes]:
        """Yield all of it, in pieces of at most ``size`` bytes. A damaged gzip file ends with a refusal, after what is readable."""
        packed = self.packed
        self._file.seek(0)
        try:
            for piece in _unpack_gzip(self._file, size) if packed else iter(lambda: _read_available(self._file, size), b""):
                if self._watch and (further := self.done - self._reported) > 0:
                    self._reported += further
                    self._watch(further)
                yield piece
        except (zlib.error, EOFError) as error:
            raise Refusal(f"{self.what} '{self.path}': the gzip file is damaged or cut off ({error})") from None

    def judge(self, size: int, most: int) -> None:
        """Refuse more bytes than are read of such a file."""
        _check_size(size, most, self.path, self.what)

    def head(self, size: int) -> bytes:
        """Return its first bytes, as many as are readable."""
        taken = b""
        with suppress(Refusal):
            for piece in self.pieces(size):
                taken += piece
                if len(taken) >= size:
                    break
        return taken[:size]

    def whole(self, most: int) -> bytes:
        """Return all of it, and never more than ``most`` bytes: a small file may unpack to a very large one."""
        if not self.packed:
            _check_size(self.size, most, self.path, self.what)
        elif self.size * _GZIP_MOST > most:  # count before anything is kept
            for _ in self._counted(most):
                pass
        return b"".join(self._counted(most))

    def _counted(self, most: int) -> Iterator[bytes]:
        total, state = 0, " unpacked" if self.packed else ""
        for piece in self.pieces():
            total += len(piece)
            _check_size(total, most, self.path, self.what, state)
            yield piece


@contextmanager
def open_stream(path: Named, what: str = "file", *, most: int = PIPE_BYTES, watch: Watch | None = None) -> Iterator[FileStream]:
    """Open a regular file, or a pipe that the shell connected, and report every further byte that is read to ``watch``."""
    with _open_regular(path, what, most) as file:
        yield FileStream(file, path, what, watch)


def read_text(path: Named, what: str = "file", *, most: int = CONFIG_BYTES) -> str:
    """Read a file's text. Bytes that are no UTF-8 become replacement signs."""
    return decode_text(read_bytes(path, what, most=most))


def read_json(path: Named, what: str = "file", *, most: int = CONFIG_BYTES, memory: int = JSON_MEMORY_BYTES) -> Json:
    return parse_json(read_bytes(path, what, most=most), f"{what} '{path}'", memory=memory)


def decode_text(raw: bytes) -> str:
    """Decode any bytes: UTF-8, or UTF-16 where its mark says so (PowerShell's ``>`` writes that).

    >>> decode_text("tp 8".encode("utf-16")), decode_text(b"tp \\xff")
    ('tp 8', 'tp \N{REPLACEMENT CHARACTER}')
    """
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def parse_json(text: bytes | str, name: str, *, memory: int = JSON_MEMORY_BYTES, depth: int | None = MAX_DEPTH) -> Json:
    """JSON within limits. The objects' memory is judged before they are made.

    >>> parse_json('{"tp": 8}', "x")
    {'tp': 8}
    >>> parse_json("[" * 100000, "x")
    Traceback (most recent call last):
    commtax.statement.Refusal: x: not valid JSON, or cut off (nested deeper than 64)
    """
    _judge_memory(text, name, memory)
    collecting = gc.isenabled()
    gc.disable()  # half the time of reading a large file would go into looking for garbage
    try:
        parsed: Json = json.loads(decode_text(text) if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise Refusal(f"{name}: not valid JSON, or cut off ({error})", name) from None
    except RecursionError:
        raise Refusal(f"{name}: not valid JSON, or cut off (nested deeper than {depth or 'Python reads'})", name) from None
    except ValueError:  # Python reads no more digits than this
        raise Refusal(f"{name}: a whole number has more than 4,300 digits", name) from None
    finally:
        if collecting:
            gc.enable()
    if depth is not None:
        _judge_depth(parsed, name, depth)
    return parsed


def parse_documents(text: str, name: str) -> list[Json]:
    """Parse all documents of a text: one, a list of them, or one a line.

    >>> parse_documents('{"tp": 1}\\n{"tp": 2}', "x"), parse_documents("[1, 2]", "x")
    ([{'tp': 1}, {'tp': 2}], [1, 2])
    """
    try:
        whole = parse_json(text, name)
    except ValueError:
        _judge_memory(text, name, JSON_MEMORY_BYTES)
        return [parse_json(line, name) for line in text.splitlines() if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def object_of(value: Json) -> JsonObject:
    """Return an object as it is, and an empty one in the place of anything else.

    >>> object_of({"tp": 8}), object_of([8]), list_of([8]), list_of(None), text_of("tp"), text_of(8)
    ({'tp': 8}, {}, [8], [], 'tp', '')
    """
    return value if isinstance(value, dict) else {}


def list_of(value: Json) -> list[Json]:
    """Return a list as it is, and an empty one in the place of anything else."""
    return value if isinstance(value, list) else []


def text_of(value: Json) -> str:
    """Return a text as it is, and "" in the place of anything else."""
    return value if isinstance(value, str) else ""


def need_object(value: Json) -> JsonObject:
    """Return an object, or raise a ``TypeError`` for readers that take a document as a whole or not at all."""
    if not isinstance(value, dict):
        raise TypeError(f"'{type(value).__name__}' object has no keys")
    return value


def need_list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"'{type(value).__name__}' object is not iterable")
    return value


def need_number(value: Json) -> float:
    """Return a number, or the number that a text spells, or raise a ``TypeError``."""
    return float(value)  # type: ignore[arg-type]


def need_whole(value: Json) -> int:
    """Return a whole number, the one that a text spells, or the whole part of any other number, or raise a ``TypeError``."""
    return int(value)  # type: ignore[arg-type]


def memory_of(text: bytes | str) -> int:
    """Return the most bytes that a JSON text can take as objects: its signs count lists, objects, keys and values.

    >>> memory_of("[1, 2]")
    174
    """
    count = text.count if isinstance(text, str) else lambda sign: text.count(sign.encode())
    return len(text) + sum(cost * count(sign) for sign, cost in _SIGN_BYTES.items())


def _judge_memory(text: bytes | str, name: str, memory: int) -> None:
    if memory_of(text) > memory:
        raise Refusal(f"{name}: might take more than {_size(memory)} of memory to read; split it", name)


def _judge_depth(parsed: Json, name: str, depth: int) -> None:
    level = [parsed]
    for _ in range(depth):
        inner = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list))
        level = [x for values in inner for x in values]
        if not level:
            return
    if any(isinstance(x, dict | list) for x in level):
        raise Refusal(f"{name}: not valid JSON, or cut off (nested deeper than {depth})", name)


def write_text(path: Named, text: str, what: str = "out") -> None:
    """Write a whole text, or leave what was there."""
    with replace_when_written(path, what) as part:
        part.write_bytes(text.encode("utf-8", errors="replace"))


@contextmanager
def replace_when_written(path: Named, what: str = "out") -> Iterator[Path]:
    """Yield a place to write to, of the same ending, that becomes ``path`` when all went well, and streams as they are."""
    _refuse_link(path, what)
    with _named_failure(path, what):
        if _is_stream(path):
            yield Path(path)
            return
        target = _target(path)
        with _new_file_beside(target) as part:
            yield part
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)


def refuse_overwriting(output: Named, inputs: Iterable[Named], what: str = "out") -> None:
    """Refuse an output that is also an input: it would be lost before it was read."""
    for name in inputs:
        with suppress(OSError, ValueError):
            if os.path.samefile(output, name):
                break
    else:
        return
    raise Refusal(f"{what} '{output}': is also an input, and would be lost; name another file")


def check_writable(path: Named, what: str = "out") -> None:
    """Refuse a place that cannot be written to before the work that is to go there."""
    _refuse_link(path, what)
    with _named_failure(path, what):
        if not _is_stream(path):
            with _new_file_beside(_target(path)):
                pass


def _refuse_link(path: Named, what: str) -> None:
    """Refuse a symbolic link, which may lead to a file that nobody meant to replace."""
    if os.path.islink(path) and not os.path.abspath(path).startswith(_STREAMS):
        raise Refusal(f"{what} '{path}': is a symbolic link, and what it leads to would be replaced; name that file itself", what)


def _target(path: Named) -> Path:
    """Return the file itself, in its real folder, and refuse to replace one that is protected."""
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected")
    return target


def _is_stream(path: Named) -> bool:
    """Return whether a path must be written in place: no regular file, an open one (/dev/stdout), or in a locked folder."""
    if os.path.abspath(path).startswith(_STREAMS):
        return True
    with suppress(OSError):
        return not stat.S_ISREG(os.stat(path).st_mode) or not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
    return False


@contextmanager
def _new_file_beside(target: Path) -> Iterator[Path]:
    """Yield a new empty file in the same folder, named before it is made, that is gone afterwards unless it was renamed."""
    ending = target.suffix if len(target.suffix) < 16 else ""
    part = target.parent / f".commtax-{os.getpid()}-{os.urandom(6).hex()}{ending}"
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def _named_failure(path: Named, what: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except FileNotFoundError:
        raise Refusal(f"{what} '{path}': cannot be written (no such folder)") from None
    except OSError as error:
        raise Refusal(f"{what} '{path}': cannot be written ({error.strerror or error})") from None


@contextmanager
def _open_regular(path: Named, what: str, most: int) -> Iterator[IO[bytes]]:
    """Open a regular file without waiting, or as a file the bytes of a pipe that the shell connected (``<(command)``)."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise Refusal(f"{what} '{path}': no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise Refusal(f"{what} '{path}': cannot be read ({getattr(error, 'strerror', '') or error})") from None
    mode = os.fstat(handle).st_mode
    kind = _KINDS.get(stat.filemode(mode)[0], "")
    if stat.S_ISFIFO(mode) and os.path.abspath(path).startswith(_CONNECTED):
        handle = _spool_pipe(handle, most)
        _check_size(os.fstat(handle).st_size, most, path, what)
    elif kind:
        os.close(handle)
        raise Refusal(f"{what} '{path}': is {kind}; a regular file is needed")
    with open(handle, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise Refusal(f"{what} '{path}': cannot be read ({error.strerror or error})") from None


def _read_available(file: IO[bytes], size: int) -> bytes:
    """Read what is there without waiting: a file that the kernel makes up (``/proc/kmsg``) may have nothing yet."""
    return file.read(size) or b""


def _spool_pipe(pipe: int, most: int) -> int:
    """Keep what comes through a pipe, a little more than ``most`` bytes of it, in an open file that has no name."""
    import tempfile  # half of what this file costs to import, for a pipe

    os.set_blocking(pipe, True)
    with open(pipe, "rb") as source, tempfile.TemporaryFile() as kept:
        while kept.tell() <= most and (piece := source.read(_CHUNK)):
            kept.write(piece)
        kept.seek(0)
        return os.dup(kept.fileno())


def _unpack_gzip(file: IO[bytes], size: int = _CHUNK) -> Iterator[bytes]:
    engine, packed = zlib.decompressobj(_GZIP_WINDOW), file.read(_PACKED)
    while packed:
        if piece := engine.decompress(packed, size):
            yield piece
        packed = engine.unused_data.lstrip(b"\0") if engine.eof else engine.unconsumed_tail  # a file may be padded with zeros
        packed = packed or file.read(_PACKED)
        if engine.eof and (packed := packed.lstrip(b"\0")):
            engine = zlib.decompressobj(_GZIP_WINDOW)  # several files, one behind the other
    if not engine.eof:
        raise EOFError("its end is missing")


def _check_size(size: int, most: int, path: Named, what: str, state: str = "") -> None:
    if size > most:
        raise Refusal(f"{what} '{path}': larger than {_size(most)}{state}, which is more than is read; split it")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024 / MiB:.3g} GiB" if nbytes >= 1024 * MiB else f"{nbytes / MiB:.3g} MiB"
