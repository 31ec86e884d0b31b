"""Files of published figures: those that ship here in columns of their own, and folders in the larger tables' columns.

``benchmarks/curate.py`` chose the rows that ship; after their columns are renamed they are read as those of the larger tables.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path

from commtax.files import TABLE_BYTES, read_text
from commtax.readers.published.kernels import kind_of
from commtax.readers.published.rows import Row, names
from commtax.statement import Refusal

FOLDERED = ("collectives", "serving_runs", "inference", "training_runs", "open_loop_runs")
"""Kinds of tables that a folder holds one file of; ``kernels`` are a folder in it."""
KINDS = (*FOLDERED, "kernels", "h200")
WITHIN = {"open_loop_runs": "open_loop"}
"""Folders that a kind of table has to itself, with what its rows name beside it."""
KERNEL_FOLDERS = ("kernels", "kernels_more")
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

    def dicts(self) -> list[Row]:
        """Rows under the larger tables' names."""
        own = names()["columns"].get(self.kind, {}) if self.ships else {}
        rows = dicts([own.get(column, column) for column in self.header], self.rows)
        return [_dated(row) for row in rows] if self.ships and self.kind == "serving_runs" else rows


def shipped(only: str = "") -> Iterator[Table]:
    """Every file that ships here; our own H200 rows are the last. Kernels are in several, each with its kinds' columns."""
    for kind in KINDS:
        if only in ("", kind):
            for path in sorted(SHIPPED.glob(f"{kind}*.csv")):
                yield Table(f"published/{path.name}", kind, *read(path), ships=True)


def in_folder(folder: Path, only: str = "") -> Iterator[Table]:
    for kind, path in paths(folder, only):
        name = f"{path.parent.name}/{path.name}" if kind == "kernels" else path.name
        yield Table(name, kind, *read(path), folder=path.parent)


def paths(folder: Path, only: str = "") -> Iterator[tuple[str, Path]]:
    """The tables of a folder, each once: a plain file before a gzipped one."""
    for name in FOLDERED:
        places = (folder, folder / WITHIN[name]) if name in WITHIN else (folder,)
        files = (place / f"{name}.csv{ending}" for place in places for ending in ("", ".gz"))
        chosen = next((path for path in files if path.is_file()), None)
        if chosen and only in ("", name):
            yield name, chosen
    if only in ("", "kernels"):
        for path in (path for place in KERNEL_FOLDERS for path in sorted((folder / place).glob("*.csv*"))):
            if kind_of(path.name) and path.name.endswith((".csv", ".csv.gz")):
                yield "kernels", path


def headers(folder: Path | None, only: str = "") -> list[str]:
    """All columns of all files of a folder, or of all that ship here, in their order."""
    every = [read(path, 0)[0] for _, path in paths(folder, only)] if folder else [table.header for table in shipped()]
    return list(dict.fromkeys(column for header in every for column in header))


def read(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, plain or gzipped; short rows are filled with empty cells."""
    lines = csv.reader(StringIO(read_text(path, "data", most=TABLE_BYTES), newline=""))
    try:
        header = next(lines, [])
        return header, [line + [""] * (len(header) - len(line)) for line in islice(lines, most) if line]
    except csv.Error as error:
        raise Refusal(f"data '{path}': cannot be read as CSV ({error})", "data") from None


def dicts(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Row]:
    return [dict(zip(header, row, strict=False)) for row in rows]


def _dated(row: Row) -> Row:
    """A run's source as the larger table writes it: its day says the version, and that lengths were drawn."""
    parts = [f"silicon_concurrency={row.get('clients', '')}"]
    if row.get("day"):
        parts += [f"source_file={row['day']}.csv", f"measured={row['day']}"]
    return {**row, "silicon_data_source": "; ".join(parts)}
