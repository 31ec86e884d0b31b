"""Tables of single kernels on one chip, a file at a time, as columns (``kernel_kinds`` says what each kind of table holds)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commtax import catalog
from commtax.readers.published.kernel_kinds import KINDS
from commtax.readers.published.kernel_kinds.kind import DTYPES, Array, KernelKind, Sizes
from commtax.readers.published.rows import Row, chip_named, even_hash
from commtax.spec import DTYPE_BYTES, Chip

TIMES = {"latency_ms": 1e-3, "latency_us": 1e-6}
"""Columns of measured times, and their unit in seconds."""
FITTED = ("a100-80-sxm", "h100-sxm", "l40s", "b200-sxm", "b300-sxm", "gb200", "arc-pro-b60")
"""Chips whose tables decided constants."""
Texts = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The rows of one file; ``wrong`` says why none of them can be used."""

    kind: KernelKind
    system: str
    count: int
    chip: Chip | None = None
    text: Texts = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    wrong: str = ""

    @property
    def good(self) -> Array:
        """Rows whose sizes and time are numbers above 0; a decode step may have nothing cached."""
        above = [self.sizes[c] > 0 for c in (*self.kind.needed, "seconds") if c not in self.kind.from_zero]
        finite = [self.sizes[c] < np.inf for c in (*self.kind.needed, *self.kind.from_zero)]
        return np.all([*above, *finite, *(self.sizes[c] >= 0 for c in self.kind.from_zero)], axis=0)

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
        """Rows that constants were fitted on, by a hash of what they ask; of chips that nothing was fitted on, none."""
        if self.chip is None or self.chip.key not in FITTED:
            return np.zeros(self.count, dtype=bool)
        keys = zip(*(self.column(c) for c in self.kind.asked), strict=True)
        named = f"{self.system}|{self.kind.name.removesuffix('-attention')}"
        return np.fromiter((even_hash(f"{named}|{'|'.join(key)}") for key in keys), dtype=bool)

    def groups(self) -> Iterator[tuple[dict[str, str], Array]]:
        """Rows of one engine, number format and whatever else their kind must have alike: their kernels differ in sizes only."""
        names = ("framework", "dtype", "stored", *self.kind.alike)
        columns = [self.column("framework"), self.dtype, self.stored, *(self.column(name) for name in self.kind.alike)]
        codes: dict[tuple[str, ...], int] = {}
        index = np.array([codes.setdefault(key, len(codes)) for key in zip(*columns, strict=True)])
        for key, code in codes.items():
            if np.any(mask := (index == code) & self.good):
                yield dict(zip(names, key, strict=True)), mask

    def bound(self) -> Array:
        """What bounds are cut by."""
        each = np.array([DTYPE_BYTES.get(DTYPES.get(name, name), 2.0) for name in self.stored])
        return self.kind.bound({**self.sizes, "stored_bytes": each})

    def hints(self) -> Array:
        """What is known to be hard: windows, tensors that the cache keeps."""
        if self.kind.hint is None or self.chip is None:
            return np.full(self.count, "", dtype=object)
        return self.kind.hint(self.sizes, self.chip)

    def shapes(self) -> Array:
        """Sizes as one word a row, made only when it is shown."""
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
    """The kind of kernel that a file of this name holds: ``h100_sxm_gemm.csv.gz`` holds products. The longest ending tells."""
    stem = name.removesuffix(".gz").removesuffix(".csv")
    tail = max((tail for tail in KINDS if stem.endswith(f"_{tail}")), key=len, default="")
    return KINDS.get(tail)


def read(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> KernelTable:
    """The rows of one file under the columns of the larger tables."""
    kind = kind_of(name)
    assert kind is not None, name
    system = name.rpartition(f"_{kind.tail}")[0]
    times = dict.fromkeys(kind.times_us, 1e-6) or {c: unit for c, unit in TIMES.items() if c in header} or {"latency_ms": 1e-3}
    missing = [c for c in (*kind.needed, *times) if c not in header]
    chip = chip_named(system)
    if rows and (missing or not chip):
        wrong = f"column {missing[0]} is missing" if missing else f"chip '{system}' is not in the catalogue"
        return KernelTable(kind, system, len(rows), wrong=wrong)
    if not rows:
        return KernelTable(kind, system, 0)
    text = {column: np.array([row[i] for row in rows], dtype=object) for i, column in enumerate(header)}
    names = (*kind.needed, *kind.from_zero)
    sizes = {c: _numbers(text[c], c in kind.from_zero) if c in text else np.zeros(len(rows)) for c in names}
    known = catalog.chip(chip)
    took = sum((_numbers(text[c]) * unit for c, unit in times.items()), start=np.zeros(len(rows)))
    here = {name: np.full(len(rows), getattr(known, name)) for name in ("l2_bytes", "gpus_per_host")}
    return KernelTable(kind, system, len(rows), known, text, {**sizes, **here, "seconds": took})


def _numbers(column: Array, may_lack: bool = False) -> Array:
    """A column as numbers; an empty cell is 0 where a size may be: no window, nothing cached."""
    try:
        return column.astype(float)
    except ValueError:
        return np.array([_number(x or "0" if may_lack else x) for x in column])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def of_several(rows: Sequence[Row]) -> Iterator[tuple[list[int], KernelTable]]:
    """Rows of several chips and kinds of kernels in one table: each kind by itself, with the places of its rows."""
    for system, tail in dict.fromkeys((row["system"], row["form"]) for row in rows):
        index = [i for i, row in enumerate(rows) if (row["system"], row["form"]) == (system, tail)]
        dtype = KINDS[tail].dtype if tail in KINDS else ""
        formats = ({dtype: rows[i]["dtype"]} if dtype else {} for i in index)
        own: list[dict[str, Any]] = [{**f, **rows[i], "latency_us": rows[i]["us"]} for f, i in zip(formats, index, strict=True)]
        header = [name for name in own[0] if any(row[name] for row in own)]
        yield index, read(f"{system}_{tail}", header, [[row[name] for name in header] for row in own])
