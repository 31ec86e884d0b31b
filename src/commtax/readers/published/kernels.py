"""Tables of single kernels (products, prefill and decode attention on one chip), a file at a time, as columns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from commtax import catalog
from commtax.cost.compute import Kernel
from commtax.readers.published.rows import Row, chip_named, even_hash
from commtax.spec import DTYPE_BYTES, Chip, Number

Array = Any
Sizes = Mapping[str, Array]
FORMS = {"gemm": "gemm", "context_attention": "prefill", "generation_attention": "decode"}
NEEDED = {
    "gemm": ("m", "n", "k"),
    "prefill": ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"),
    "decode": ("batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"),
}
DTYPE_COLUMN = {"gemm": "gemm_dtype", "prefill": "attn_dtype", "decode": "kv_cache_dtype"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8_block": "fp8", "fp8_static": "fp8", "int8_wo": "int8", "int4_wo": "int4"}
OUT_BYTES = 2.0  # an element of what products and attention write, and of queries: bf16
NVFP4_SCALE_BYTES = 1 / 16  # of a weight: a byte of scale for 16 of them


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The rows of one file; ``wrong`` says why none of them can be used."""

    form: str
    system: str
    count: int
    chip: Chip | None = None
    text: Sizes = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    wrong: str = ""

    @property
    def kind(self) -> str:
        return "gemm" if self.form == "gemm" else f"{self.form}-attention"

    @property
    def good(self) -> Array:
        """Rows whose sizes and time are numbers above 0; a decode step may have nothing cached."""
        above = [self.sizes[c] > 0 for c in (*NEEDED[self.form], "latency_ms") if c != "step"]
        return np.all(above, axis=0) & (self.sizes["step"] >= 0)

    @property
    def dtype(self) -> Array:
        return self.column(DTYPE_COLUMN[self.form], "bfloat16")

    @property
    def stored(self) -> Array:
        """The number format of the weights, or of the cache."""
        return self.dtype if self.form == "gemm" else self.text.get("kv_cache_dtype", self.dtype)

    def column(self, name: str, default: str = "") -> Array:
        return self.text.get(name, np.full(self.count, default, dtype=object))

    def fitted(self) -> Array:
        """Rows that constants were fitted on, by a hash of what they ask."""
        keys = zip(*(self.column(c) for c in (DTYPE_COLUMN[self.form], *NEEDED[self.form])), strict=True)
        return np.fromiter((even_hash(f"{self.system}|{self.form}|{'|'.join(key)}") for key in keys), dtype=bool)

    def groups(self) -> Iterator[tuple[tuple[str, str], Array]]:
        """Rows of one number format, head size and window: their kernels differ in sizes only."""
        dims = self.sizes.get("head_dim", np.zeros(self.count))
        keys = list(zip(self.dtype, self.stored, dims, self.sizes["window_size"], strict=True))
        codes: dict[tuple[Any, ...], int] = {}
        index = np.array([codes.setdefault(key, len(codes)) for key in keys])
        for key, code in codes.items():
            if np.any(mask := (index == code) & self.good):
                yield (key[0], key[1]), mask

    def bound(self) -> Array:
        """What bounds are cut by: rows of a product, tokens of a prompt, bytes of cache that a decode kernel reads."""
        x = self.sizes
        if self.form != "decode":
            return x["m"] if self.form == "gemm" else x["isl"]
        each = np.array([DTYPE_BYTES.get(DTYPES.get(name, name), 2.0) for name in self.stored])
        return x["batch_size"] * _keys(x) * x["num_key_value_heads"] * x["head_dim"] * 2 * each

    def hints(self) -> Array:
        """What is known to be hard: windows, tensors that the cache keeps."""
        if self.form != "gemm":
            return np.where(self.sizes["window_size"] > 0, "a window of attention", "").astype(object)
        kept = self.sizes["n"] * self.sizes["k"] * 2 < (self.chip.l2_bytes if self.chip else 0.0)
        return np.where(kept, "weights stay in the chip's cache between repetitions", "").astype(object)

    def shapes(self) -> Array:
        """Sizes as one word a row, made only when it is shown."""
        names = NEEDED[self.form]
        return np.array([Shape(names, values) for values in zip(*(self.sizes[c] for c in names), strict=True)], dtype=object)


@dataclass(slots=True)
class Shape:
    """The sizes of a kernel, as words on demand."""

    names: tuple[str, ...]
    values: tuple[float, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in zip(self.names, self.values, strict=True))


def form_of(name: str) -> str:
    """The kind of kernel that a file of this name holds: ``h100_sxm_gemm.csv.gz`` holds products."""
    return next((form for tail, form in FORMS.items() if tail in name), "")


def read(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> KernelTable:
    """The rows of one file under the columns of the larger tables."""
    form, system = form_of(name), re.split(r"_(?:gemm|context|generation)", name)[0]
    missing = [c for c in (*NEEDED[form], "latency_ms") if c not in header]
    chip = chip_named(system)
    if rows and (missing or not chip):
        wrong = f"column {missing[0]} is missing" if missing else f"chip '{system}' is not in the catalogue"
        return KernelTable(form, system, len(rows), wrong=wrong)
    if not rows:
        return KernelTable(form, system, 0)
    text = {column: np.array([row[i] for row in rows], dtype=object) for i, column in enumerate(header)}
    names = (*NEEDED[form], "latency_ms", "step", "window_size")
    sizes = {c: _numbers(text[c]) if c in text else np.zeros(len(rows)) for c in names}
    return KernelTable(form, system, len(rows), catalog.chip(chip), text, sizes)


def _numbers(column: Array) -> Array:
    try:
        return column.astype(float)
    except ValueError:
        return np.array([_number(x) for x in column])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def kernel(form: str, dtype: str, stored: str, x: Sizes) -> Kernel:
    """Rows of one number format, head size and window as one kernel with arrays for sizes."""
    if form == "gemm":
        size = DTYPE_BYTES[dtype] + (NVFP4_SCALE_BYTES if dtype == "nvfp4" else 0)
        return product(x["m"], x["n"], x["k"], dtype, size, size if dtype == "fp8" else 2.0)
    return attention(form, x, dtype, DTYPE_BYTES[stored])


def _keys(x: Sizes) -> Array:
    """Keys that a decode step's query sees."""
    return np.where(x["window_size"] > 0, np.minimum(x["step"] + 1, x["window_size"]), x["step"] + 1)


def _pairs(x: Sizes) -> Array:
    """Causal pairs of query and key, inside the window where there is one."""
    window, length, past = float(np.max(x["window_size"])), x["isl"], x["step"]
    if not window:
        return length * (length + 1) / 2 + length * past
    head = np.clip(np.minimum(length, window - past), 0, None)
    return head * (head + 1) / 2 + head * past + (length - head) * window


def of_several(rows: Sequence[Row]) -> Iterator[tuple[list[int], KernelTable]]:
    """Rows of several chips and kinds of kernels in one table: each kind by itself, with the places of its rows."""
    for system, form in dict.fromkeys((row["system"], row["form"]) for row in rows):
        index = [i for i, row in enumerate(rows) if (row["system"], row["form"]) == (system, form)]
        dtype = "gemm_dtype" if form == "gemm" else "attn_dtype"
        own = [{**rows[i], dtype: rows[i]["dtype"], "latency_ms": str(float(rows[i]["us"]) / 1e3)} for i in index]
        header = [name for name in own[0] if any(row[name] for row in own)]
        yield index, read(f"{system}_{form}", header, [[row[name] for name in header] for row in own])


def product(m: Number, n: Number, k: Number, dtype: str, stored: float, act: float, *, static_scales: bool = False) -> Kernel:
    """m x k times k x n: 2 m n k FLOPs; ``stored`` and ``act`` bytes an element of the weights and of the activations."""
    flops, nbytes = 2.0 * m * n * k, act * m * k + stored * n * k + OUT_BYTES * m * n
    plain = Kernel("product", "gemm", 1, flops, nbytes, m=m, n=n, k=k, dtype=dtype, weight_bytes=stored)
    return replace(plain, static_scales=static_scales)


def attention(form: str, x: Sizes, dtype: str, stored: float) -> Kernel:
    """Queries over keys and values of ``stored`` bytes an element: 4 FLOPs for each pair of query and key, and element."""
    batch, heads, kv_heads, dim = x["batch_size"], x["num_heads"], x["num_key_value_heads"], float(np.max(x["head_dim"]))
    if form == "decode":  # one query a sequence
        length = _keys(x)
        flops, nbytes = 4.0 * batch * heads * length * dim, 2.0 * batch * length * kv_heads * dim * stored
        plain = Kernel("decode attention", "decode", 1, flops, nbytes, weight_bytes=stored, batch=batch, heads=heads)
        return replace(plain, kv_heads=kv_heads, head_dim=int(dim), length=length)
    length, past = x["isl"], x["step"]
    moved = 2 * OUT_BYTES * length * heads + 2 * stored * (length + past) * kv_heads
    flops, nbytes = 4.0 * batch * heads * _pairs(x) * dim, batch * dim * moved
    plain = Kernel("prefill attention", "prefill", 1, flops, nbytes, dtype=dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    return replace(plain, head_dim=int(dim), length=length, past=past)
