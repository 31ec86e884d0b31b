"""Files of published figures: those that ship here in columns of their own, and folders in the larger tables' columns.

The rows that ship are a spread of the larger tables'; after their columns are renamed they are read in the same way.
A file of a folder is known by its columns, in any order and under any of their usual names; its own name tells only what they
leave open.
"""

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from itertools import islice
from pathlib import Path

from commtax.files import TABLE_BYTES, read_text
from commtax.statement import Refusal
from commtax_lab.published.kernel_tables import is_kernel_table, kind_of
from commtax_lab.published.rows import Row, names

FOLDERED = ("collectives", "serving_runs", "inference", "training_runs", "open_loop_runs", "steps")
"""Kinds of tables whose rows name their chip; of ``kernels`` the file or its folder may."""
KINDS = (*FOLDERED, "kernels", "h200")
ADDED = ("kind", "measured", "predicted", "low", "high", "fitted", "publisher", "apart", "skipped")
"""Columns that ``validate --rows`` adds."""
ENDINGS = (".csv", ".csv.gz", ".txt", ".txt.gz")
DEEPEST = 4  # folders inside each other that are looked into
MOST_FILES = 20_000
HEADER_BYTES = 65_536
SHIPPED = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True)
class Table:
    """One file of rows, of one kind of table."""

    name: str
    kind: str
    header: list[str]
    rows: Sequence[Sequence[str]]
    ships: bool = False
    folder: Path | None = None  # where the file lies, with what its rows name; None: it ships here

    @property
    def columns(self) -> list[str]:
        """The header under the larger tables' names."""
        return rename_columns(self.kind, self.header)

    def dicts(self) -> list[Row]:
        rows = dicts(self.columns, self.rows)
        return [_with_dated_source(row) for row in rows] if self.kind == "serving_runs" and "clients" in self.columns else rows


def shipped_tables(only: str = "") -> Iterator[Table]:
    """Yield every file that ships, our own H200 rows last. Kernels are in several, each with its kinds' columns."""
    for kind in KINDS:
        if only in ("", kind):
            for path in sorted(SHIPPED.glob(f"{kind}*.csv")):
                yield Table(f"published/{path.name}", kind, *read(path), ships=True)


def folder_tables(folder: Path, only: str = "") -> Iterator[Table]:
    for kind, path in paths(folder, only):
        yield Table(path.relative_to(folder).as_posix(), kind, *read(path), folder=path.parent)


def paths(folder: Path, only: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the tables of a folder and its subfolders, each once: a plain file before a gzipped one."""
    tables = [(kind, path) for path in _files(folder) if (kind := kind_of_table(path)) and only in ("", kind)]
    yield from sorted(tables, key=lambda one: (KINDS.index(one[0]), one[1]))


def _files(folder: Path) -> Iterator[Path]:
    """Yield files that may be tables."""
    left = MOST_FILES
    for place, folders, files in os.walk(folder, followlinks=True):
        deep = len(Path(place).relative_to(folder).parts)
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and deep < DEEPEST]
        for name in sorted(files):
            packed = name.endswith(".gz") and name.removesuffix(".gz") in files
            if name.endswith(ENDINGS) and not name.startswith(".") and not packed and left > 0:
                left -= 1
                yield Path(place) / name


def kind_of_table(path: Path) -> str:
    """Return the kind of table that a file is, by its columns, else by its name, or "" where it is none."""
    header = _header(path)
    if header and (kind := kind_of_columns(header, path.name)):
        return kind
    if "predicted" in header or not path.name.endswith((".csv", ".csv.gz")):
        return ""
    stem = path.name.partition(".")[0]
    return next((kind for kind in FOLDERED if stem.startswith(kind)), "kernels" if kind_of(path.name) else "")


def kind_of_columns(header: Sequence[str], name: str = "") -> str:
    """Return the kind of table that has these columns, or "" for none and for files that ``validate --rows`` wrote."""
    if {"measured", "predicted", "fitted", "skipped"} <= set(header):
        return ""
    for kind, choices in names()["recognised"].items():
        columns = set(rename_columns(kind, header))
        if any(columns.issuperset(wanted) for wanted in choices):
            return str(kind)
    return "kernels" if is_kernel_table(name, rename_columns("kernels", header)) else ""


def usual_columns(kind: str = "") -> str:
    """Return the columns that a kind of table is recognised by, in words, those of serving runs by default."""
    columns = names()["recognised"].get(kind or "serving_runs", [["m", "n", "k", "latency_ms"]])
    return ", ".join(columns[0])


def rename_columns(kind: str, header: Sequence[str]) -> list[str]:
    """Rename columns as in the larger tables, except where the larger name is already there."""
    plain = ["_".join(column.strip().lstrip("\ufeff").split()) for column in header]
    larger, taken = _synonyms(kind), set(plain)
    columns = []
    for column in plain:
        wanted = larger.get(column, larger.get(column.lower(), column))
        columns.append(column if wanted in taken else wanted)
        taken.add(wanted)
    return columns


@lru_cache(maxsize=16)
def _synonyms(kind: str) -> dict[str, str]:
    return {**names()["synonyms"].get(kind, {}), **names()["columns"].get(kind, {})}


def headers(folder: Path | None, only: str = "") -> list[str]:
    """Return all columns of all files of a folder, or of all that ship, in their order."""
    every = [_header(path) for _, path in paths(folder, only)] if folder else [table.header for table in shipped_tables()]
    return list(dict.fromkeys(column for header in every for column in header))


def _header(path: Path) -> list[str]:
    """Return the first line of a file as cells, or none if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            line = file.readline(HEADER_BYTES)
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except (OSError, EOFError, zlib.error, csv.Error):
        return []


def read(path: Path, most: int | None = None, what: str = "data") -> tuple[list[str], list[list[str]]]:
    """Read the header and rows of a CSV file, plain or gzipped, with short rows filled with empty cells."""
    lines = csv.reader(StringIO(read_text(path, what, most=TABLE_BYTES), newline=""))
    try:
        header = next(lines, [])
        return header, [line + [""] * (len(header) - len(line)) for line in islice(lines, most) if line]
    except csv.Error as error:
        raise Refusal(f"{what} '{path}': cannot be read as CSV ({error})", what) from None


def dicts(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Row]:
    return [dict(zip(header, row, strict=False)) for row in rows]


def _with_dated_source(row: Row) -> Row:
    """Write a run's source as the larger table does: its day tells the version, InferenceMAX's file the launch."""
    day, parts = row.get("day"), [f"silicon_concurrency={row.get('clients', '')}"]
    if day and (row.get("source") or "").startswith("InferenceMAX"):
        parts.append(f"source_file={day}.csv")
    if day:
        parts.append(f"measured={day}")
    return {**row, "silicon_data_source": "; ".join(parts)}
