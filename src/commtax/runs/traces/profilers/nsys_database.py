"""The database that Nsight Systems exports: which tables and columns are there, and their rows as far as they are readable.

Tables are made only where there is something to put into them, and columns came and went with the versions: nothing is asked for
that is not there. Views and virtual tables are never asked: they may run on for ever.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from commtax.files import TRACE_BYTES, FileStream
from commtax.statement import Refusal

HEADER = b"SQLite format 3\0"
PROCESS = 1 << 24  # of a serialised id, which holds host, process and thread
Row = tuple[Any, ...]
FAILURES = (sqlite3.Error, OverflowError, ValueError)  # the last where the library's own words are no text


class Database:
    """An open export. ``broken`` says why rows are missing, where they are."""

    def __init__(self, connection: sqlite3.Connection, name: str, size: int) -> None:
        self.name, self.broken = name, ""
        self._connection, self._most = connection, max(size, 1)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        plain = "type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' AND name NOT LIKE 'sqlite_%'"
        names = [str(row[0]) for row in self._asked(f"SELECT name FROM sqlite_master WHERE {plain} ORDER BY name")]
        self.tables = {t: {str(c[1]) for c in self._asked(f"PRAGMA table_info({_quote_name(t)})")} for t in names}

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.tables.get(table, set()) and table in self.tables

    def column(self, table: str, *names: str, other: str = "NULL") -> str:
        """The first of some columns that the table has, as SQL."""
        return next((_quote_name(n) for n in names if n in self.tables[table]), other)

    def rows(self, sql: str, *given: object) -> Iterator[Row]:
        """Rows one by one, until the file breaks off."""
        try:
            for count, row in enumerate(self._connection.execute(sql, given)):
                if count > self._most:  # no row is smaller than a byte
                    raise sqlite3.DatabaseError("more rows than the file has bytes")
                yield row
        except FAILURES as error:
            self.broken = _error_line(error)

    def first(self, table: str, *columns: str, where: str = "1") -> Row:
        """The first row of a table, or nothing."""
        if not self.has(table, *columns):
            return ()
        return next(self.rows(f"SELECT {', '.join(map(_quote_name, columns))} FROM {_quote_name(table)} WHERE {where} LIMIT 1"), ())

    def strings(self, used: Iterable[tuple[str, str]]) -> dict[int, str]:
        """The strings that some columns refer to, and no others: an export holds those of every call stack too."""
        asked = [f"SELECT {_quote_name(c)} FROM {_quote_name(t)}" for t, c in used if self.has(t, c)]
        if not asked:
            return {}
        return {i: str(value) for i, value in self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({' UNION '.join(asked)})")}

    def _asked(self, sql: str) -> list[Row]:
        try:
            return self._connection.execute(sql).fetchall()
        except FAILURES as error:
            if not self.broken and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT:
                self.broken = "the file is cut off or damaged"
                self._connection.execute("PRAGMA writable_schema = ON")  # fewer pages than it says are no reason to give up
                return self._asked(sql)
            why = _error_line(error)
            raise Refusal(f"trace '{self.name}': an SQLite database that cannot be read ({why})", "trace") from None


def _error_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _quote_name(name: str) -> str:
    """A name as SQL: ``end`` is a word of its own there.

    >>> _quote_name('end'), _quote_name('a"b')
    ('"end"', '"a""b"')
    """
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def database(path: Path, name: str) -> Iterator[Database]:
    """A database on the disk, opened so that nothing can change it."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise Refusal(f"trace '{name}': cannot be opened ({error})", "trace") from None
    with closing(connection):
        yield Database(connection, name, path.stat().st_size)


@contextmanager
def path_on_disk(stream: FileStream) -> Iterator[Path]:
    """Where the bytes of a file lie as they are: its own place, or a temporary one where it is packed or came through a pipe."""
    if stream.path.is_file():
        with stream.path.open("rb") as file:
            is_plain = file.read(len(HEADER)) == HEADER
        if is_plain:
            yield stream.path
            return
    with NamedTemporaryFile(suffix=".sqlite") as kept:
        for piece in stream.pieces():
            kept.write(piece)
            if kept.tell() > TRACE_BYTES:
                raise Refusal(f"trace '{stream.path.name}': larger than 1 GiB unpacked; unpack it first", "trace")
        kept.flush()
        yield Path(kept.name)
