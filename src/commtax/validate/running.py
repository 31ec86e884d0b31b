"""``check``: every row of a folder of tables (or of the table that ships here) priced, judged, and written if asked."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from commtax.files import refuse_overwriting, written
from commtax.statement import Refusal
from commtax.validate import collective_rows, inference_rows, kernel_rows, published, statistics, whole_rows
from commtax.validate.bounds import Bound, judge
from commtax.validate.records import Records, Table, dicts, joined, read

ADDED = ("kind", "measured", "predicted", "low", "high", "fitted", "skipped")
TABLES: dict[str, Callable[[Sequence[Mapping[str, str]]], Records]] = {
    "collectives": collective_rows.answers,
    "serving_runs": whole_rows.serving,
    "inference": inference_rows.answers,
    "training_runs": whole_rows.training,
}
KINDS = (*TABLES, "kernels", "h200")


@dataclass(frozen=True, slots=True)
class Report:
    records: Records
    files: Mapping[str, tuple[int, int]]  # rows, and how many of them were priced
    bounds: tuple[Bound, ...]

    @property
    def ok(self) -> bool:
        return all(bound.ok is not False for bound in self.bounds)

    @property
    def groups(self) -> list[tuple[dict[str, Any], statistics.Figures]]:
        return statistics.groups(self.records)

    @property
    def skipped(self) -> list[tuple[str, int]]:
        return statistics.skipped(self.records)

    @property
    def worst(self) -> list[statistics.Miss]:
        return statistics.worst(self.records)


def check(folder: Path | None = None, *, only: str = "", rows_to: Path | None = None) -> Report:
    """Price all rows; ``only`` one kind of table; ``rows_to`` a CSV of every input row with what was added."""
    if only and only not in KINDS:
        raise Refusal(f"only '{only}': one of {', '.join(KINDS)}", "only")
    if folder is not None and not folder.is_dir():
        raise Refusal(f"data '{folder}': no such folder", "data")
    if folder and rows_to:
        refuse_overwriting(rows_to, (path for _, path in _paths(folder, only)), "rows")
    sources = _folder(folder, only) if folder else published.tables(only)
    parts, files = [], {}
    header = _union(folder, only) if folder and rows_to else published.header()
    with Writer.to(rows_to, header) if rows_to else nullcontext() as writer:
        for table in sources:
            found = table.answer()
            files[table.name] = (len(table.rows), len(set(found.row[found.priced].tolist())))
            if writer:
                writer.write(table, found)
            parts.append(found)
    if not parts:
        raise Refusal(
            f"data '{folder}': none of {', '.join(f'{name}.csv[.gz]' for name in TABLES)} or kernels/*.csv.gz is here", "data"
        )
    records = joined(parts)
    return Report(records, files, tuple(judge(records, files)))


def _paths(folder: Path, only: str) -> Iterator[tuple[str, Path]]:
    """The tables of a folder, each once: a plain file before a gzipped one."""
    for name in TABLES:
        found = next((p for p in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if p.is_file()), None)
        if found and only in ("", name):
            yield name, found
    if only in ("", "kernels"):
        for path in sorted((folder / "kernels").glob("*.csv*")):
            if kernel_rows.form_of(path.name) and path.name.endswith((".csv", ".csv.gz")):
                yield "kernels", path


def _union(folder: Path, only: str) -> list[str]:
    """All columns of all files, in their order."""
    seen: dict[str, None] = {}
    for _, path in _paths(folder, only):
        seen |= dict.fromkeys(_header(path))
    return list(seen)


def _header(path: Path) -> list[str]:
    return _read(path, 0)[0]


def _read(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    try:
        return read(path, most)
    except csv.Error as error:
        raise Refusal(f"data '{path}': cannot be read as CSV ({error})", "data") from None


def _folder(folder: Path, only: str) -> Iterator[Table]:
    for kind, path in _paths(folder, only):
        header, rows = _read(path)
        if kind == "kernels":
            yield Table(f"kernels/{path.name}", header, rows, lambda p=path, h=header, r=rows: kernel_rows.answers(p.name, h, r))  # type: ignore[misc]
        else:
            yield Table(path.name, header, rows, lambda k=kind, h=header, r=rows: TABLES[k](dicts(h, r)))  # type: ignore[misc]


class Writer:
    """Every input row with its prediction; a serving row twice, once for each of its figures."""

    @classmethod
    @contextmanager
    def to(cls, path: Path, header: Sequence[str]) -> Iterator[Writer]:
        """A file that is there when all rows are in it."""
        with (
            written(path, "rows") as part,
            gzip.open(part, "wt", newline="") if path.suffix == ".gz" else part.open("w", newline="") as file,
        ):
            yield cls(file, header)

    def __init__(self, file: IO[str], header: Sequence[str]) -> None:
        self.columns = ["file", *(c for c in header if c not in ("file", *ADDED)), *ADDED]
        self.place = {name: i for i, name in enumerate(self.columns)}
        self.lines = csv.writer(file)
        self.lines.writerow(self.columns)

    def write(self, table: Table, found: Records) -> None:
        slots = [self.place.get(name, -1) for name in table.header]
        added = [self.place[name] for name in ADDED]
        for values in zip(found.row.tolist(), *(found.columns[name].tolist() for name in ADDED), strict=True):
            line = [""] * len(self.columns)
            line[0] = table.name
            for slot, cell in zip(slots, table.rows[values[0]], strict=False):
                if slot >= 0:
                    line[slot] = cell
            for slot, value in zip(added, values[1:], strict=True):
                line[slot] = _cell(value)
            self.lines.writerow(line)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if value == value else ""
    return str(value)
