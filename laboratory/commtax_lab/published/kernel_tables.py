"""Tables of single kernels on one chip, a file at a time, as columns (``kernel_kinds`` says what each kind of table holds)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog.foreign_names import find_chip_name
from commtax.spec import DTYPE_BYTES, Chip
from commtax_lab.published.kernel_kinds import KINDS
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes
from commtax_lab.published.rows import Row, even_hash
from commtax_lab.published.spellings import dtype_named, engine_named

TIMES = {"latency_ms": 1e-3, "latency_us": 1e-6}
"""Columns of measured times, and their unit in seconds."""
SYSTEMS = ("system", "gpu", "device", "chip", "gpu_type", "hardware")
"""Columns that name a row's chip."""
FITTED = {
    "a100-80-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "l40s": "l40s",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "arc-pro-b60": "b60",
}
"""Chips whose tables decided constants, and what those called them: a row is the same in a file of another name."""
Texts = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The rows of one file. ``wrong`` says why none of them can be used."""

    kind: KernelKind
    system: str
    count: int
    chip: Chip | None = None
    text: Texts = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    wrong: str = ""

    @property
    def good(self) -> Array:
        """Rows whose sizes and time are numbers above 0, though a decode step may have nothing cached."""
        above = [self.sizes[c] > 0 for c in (*self.kind.needed, "seconds") if c not in self.kind.from_zero]
        finite = [self.sizes[c] < np.inf for c in (*self.kind.needed, *self.kind.from_zero)]
        return np.asarray(np.all([*above, *finite, *(self.sizes[c] >= 0 for c in self.kind.from_zero)], axis=0))

    @property
    def dtype(self) -> Array:
        return self.column(self.kind.dtype, "bfloat16")

    @property
    def stored(self) -> Array:
        """The number format of the weights, or of the cache."""
        return self.text.get(self.kind.stored, self.dtype)

    def column(self, name: str, default: str = "") -> Array:
        return self.text.get(name, np.full(self.count, default, dtype=object))

    def fitted(self) -> Array:
        """Return which rows constants were fitted on, by a hash of their sizes, none on chips without a fit."""
        if self.chip is None or self.chip.key not in FITTED:
            return np.zeros(self.count, dtype=bool)
        keys = zip(*(self.column(c) for c in self.kind.key_columns), strict=True)
        named = f"{FITTED[self.chip.key]}|{self.kind.name.removesuffix('-attention')}"
        even = np.fromiter((even_hash(f"{named}|{'|'.join(key)}") for key in keys), dtype=bool, count=self.count)
        return even if self.kind.decides is None else even & self.kind.decides(self.sizes)

    def groups(self) -> Iterator[tuple[dict[str, str], Array]]:
        """Yield rows that agree in engine, number format and whatever else their kind requires, so that only sizes differ."""
        names = ("framework", "dtype", "stored", *self.kind.alike)
        columns = [self.column("framework"), self.dtype, self.stored, *(self.column(name) for name in self.kind.alike)]
        codes: dict[tuple[str, ...], int] = {}
        index = np.array([codes.setdefault(key, len(codes)) for key in zip(*columns, strict=True)])
        for key, code in codes.items():
            if np.any(mask := (index == code) & self.good):
                yield dict(zip(names, key, strict=True)), mask

    def bound(self) -> Array:
        """Return the values that bounds are cut by."""
        each = np.array([DTYPE_BYTES.get(dtype_named(name) or name, 2.0) for name in self.stored])
        return self.kind.bound({**self.sizes, "stored_bytes": each})

    def hints(self) -> Array:
        """Return what is known to be hard: windows, tensors that the cache keeps."""
        if self.kind.hint is None or self.chip is None:
            return np.full(self.count, "", dtype=object)
        return self.kind.hint(self.sizes, self.chip)

    def shapes(self) -> Array:
        """Return sizes as one word a row, made only when shown."""
        names = tuple(dict.fromkeys((*self.kind.needed, *(c for c in self.kind.from_zero if c != "window_size"))))
        return np.array([Shape(names, values) for values in zip(*(self.sizes[c] for c in names), strict=True)], dtype=object)


@dataclass(slots=True)
class Shape:
    """The sizes of a kernel, as words on demand."""

    names: tuple[str, ...]
    values: tuple[float, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in zip(self.names, self.values, strict=True))


def kind_of(name: str) -> KernelKind | None:
    """Return the kind of kernel that a file's name tells, by the longest ending: ``h100_sxm_gemm.csv.gz`` holds products."""
    stem = _stem(name)
    tail = max((tail for tail in KINDS if f"_{stem}".endswith(f"_{tail}")), key=len, default="")
    return KINDS.get(tail)


def _stem(name: str) -> str:
    """Return a file's base name without suffixes and what collectors append."""
    last = name.rpartition("/")[2].partition(".csv")[0].partition(".txt")[0]
    return last.lower().replace("-", "_").removesuffix("_perf")


def is_kernel_table(name: str, header: Sequence[str]) -> bool:
    """Return whether a file's columns are those of timed kernels. Its name or columns tell which kernels."""
    return bool(_times(header)) and _kind(name, header) is not None


def _kind(name: str, header: Sequence[str]) -> KernelKind | None:
    """Return the kind that a file's name tells if it has a time and any size, else the only one whose columns are all there."""
    named, columns = kind_of(name), set(header)
    if named and columns & set(named.needed):
        return named
    kinds = {kind.tail: kind for kind in KINDS.values() if columns.issuperset(_kind_columns(kind))}
    alike = [kind for kind in kinds.values() if len(_kind_columns(kind)) == max(len(_kind_columns(k)) for k in kinds.values())]
    return alike[0] if len(alike) == 1 else None


def _kind_columns(kind: KernelKind) -> set[str]:
    """Return the columns that distinguish a kind's tables: sizes, number formats, times."""
    return {*kind.needed, *kind.from_zero, *kind.alike, kind.dtype, kind.stored, *kind.times_us} - {
        "",
        "window_size",
        "kernel_source",
        "version",
    }


def _times(header: Sequence[str], kind: KernelKind | None = None) -> dict[str, float]:
    """Return the columns whose sum is a row's time, and their unit in seconds."""
    parts = [one.times_us for one in ((kind,) if kind else KINDS.values()) if one.times_us and set(one.times_us) <= set(header)]
    whole = {c: unit for c, unit in TIMES.items() if c in header}
    return dict.fromkeys(parts[0], 1e-6) if parts else dict(list(whole.items())[:1])


def read(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> KernelTable:
    """Read the rows of one file under the larger tables' columns. Its name tells the chip, and the engine if no column does."""
    kind = _kind(name, header) or kind_of(name)
    assert kind is not None, name
    stem = _stem(name)
    system = stem.removesuffix(kind.tail).rstrip("_") or name.rpartition("/")[0]
    times = _times(header, kind) or {"latency_ms": 1e-3}
    missing = [c for c in (*kind.needed, *times) if c not in header]
    chip = find_chip_name(system) or find_chip_name(name)
    if rows and (missing or not chip):
        wrong = f"column {missing[0]} is missing" if missing else f"chip '{system}' is not in the catalogue"
        return KernelTable(kind, system, len(rows), wrong=wrong)
    if not rows:
        return KernelTable(kind, system, 0)
    text = {column: np.array([row[i] for row in rows], dtype=object) for i, column in enumerate(header)}
    if "framework" not in text and (engine := engine_named(name)):
        text["framework"] = np.full(len(rows), engine, dtype=object)
    names = (*kind.needed, *kind.from_zero)
    sizes = {c: _numbers(text[c], c in kind.from_zero) if c in text else np.zeros(len(rows)) for c in names}
    catalogued = catalog.chip(chip)
    took = sum((_numbers(text[c]) * unit for c, unit in times.items()), start=np.zeros(len(rows)))
    here = {name: np.full(len(rows), getattr(catalogued, name)) for name in ("l2_bytes", "gpus_per_host")}
    return KernelTable(kind, system, len(rows), catalogued, text, {**sizes, **here, "seconds": took})


def _numbers(column: Array, may_lack: bool = False) -> Array:
    """Return a column as numbers. An empty cell is 0 where a size may be: no window, nothing cached."""
    try:
        return column.astype(float)
    except ValueError:
        return np.array([_number(x or "0" if may_lack else x) for x in column])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def tables_of_file(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[tuple[list[int], KernelTable]]:
    """Split a file's rows with their places by chip, as its name or a column tells."""
    where = next((header.index(column) for column in SYSTEMS if column in header), None)
    kind = _kind(name, header)
    if kind is None or where is None or not all(row[where].strip() for row in rows):
        yield list(range(len(rows))), read(name, header, rows)
        return
    for system in dict.fromkeys(row[where] for row in rows):
        index = [i for i, row in enumerate(rows) if row[where] == system]
        chip = system.replace("/", " ").replace(".", " ")
        yield index, read(f"{chip}_{kind.tail}", header, [rows[i] for i in index])


def tables_of_rows(rows: Sequence[Row]) -> Iterator[tuple[list[int], KernelTable]]:
    """Split a table of several chips and kinds of kernels by kind, with the places of the rows."""
    for system, tail in dict.fromkeys((row["system"], row["form"]) for row in rows):
        index = [i for i, row in enumerate(rows) if (row["system"], row["form"]) == (system, tail)]
        dtype = KINDS[tail].dtype if tail in KINDS else ""
        formats = ({dtype: rows[i]["dtype"]} if dtype else {} for i in index)
        cells = [{**f, **rows[i], "latency_us": rows[i]["us"]} for f, i in zip(formats, index, strict=True)]
        header = [name for name in cells[0] if any(row[name] for row in cells)]
        yield index, read(f"{system}_{tail}", header, [[row[name] for name in header] for row in cells])
