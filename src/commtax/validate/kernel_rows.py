"""Tables of single kernels (products, prefill and decode attention on one chip), a file at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commtax import catalog
from commtax.cost.compute import Kernel
from commtax.cost.kernels import peak, seconds
from commtax.spec import DTYPE_BYTES, Chip, KernelConstants
from commtax.validate.chip_names import chip_named
from commtax.validate.records import Records, of_columns
from commtax.validate.splits import even_hashes
from commtax.validate.spreads import spread

Array = Any
Columns = Mapping[str, Array]
FORMS = {"gemm": "gemm", "context_attention": "prefill", "generation_attention": "decode"}
NEEDED = {
    "gemm": ("m", "n", "k"),
    "prefill": ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"),
    "decode": ("batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"),
}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8_block": "fp8", "fp8_static": "fp8", "int8_wo": "int8", "int4_wo": "int4"}
ENGINE = "vllm"  # the tables are of the kernels that serving engines call


def form_of(name: str) -> str:
    """The kind of kernel that a file of this name holds: ``h100_sxm_gemm.csv.gz`` holds products."""
    return next((form for tail, form in FORMS.items() if tail in name), "")


def answers(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Records:
    """Every row of one file priced, or with its reason."""
    form = form_of(name)
    system = re.split(r"_(?:gemm|context|generation)", name)[0]
    words = {"kind": _kind(form), "source": f"kernels/{name}", "system": system}
    if not rows:
        return of_columns(0, **words)
    text = {column: np.array([row[i] for row in rows], dtype=object) for i, column in enumerate(header)}
    missing = [c for c in (*NEEDED[form], "latency_ms") if c not in text]
    chip = chip_named(system)
    if missing or not chip:
        reason = f"column {missing[0]} is missing" if missing else f"chip '{system}' is not in the catalogue"
        return of_columns(len(rows), skipped=reason, **words)
    return _priced(form, catalog.chip(chip), text, words, len(rows))


def _kind(form: str) -> str:
    return "gemm" if form == "gemm" else f"{form}-attention"


def _priced(form: str, chip: Chip, text: Columns, words: Mapping[str, str], count: int) -> Records:
    empty = np.full(count, "", dtype=object)
    named = [*NEEDED[form], "latency_ms", "step", "window_size"]
    numbers = {c: _numbers(text[c]) if c in text else np.zeros(count) for c in named}
    good = np.all([numbers[c] > 0 for c in (*NEEDED[form], "latency_ms") if c != "step"], axis=0) & (numbers["step"] >= 0)
    plain = {"gemm": "gemm_dtype", "prefill": "attn_dtype", "decode": "kv_cache_dtype"}[form]
    dtype = text.get(plain, np.full(count, "bfloat16", dtype=object))
    stored = dtype if form == "gemm" else text.get("kv_cache_dtype", dtype)
    groups = _groups(dtype, stored, numbers.get("head_dim", np.zeros(count)), numbers["window_size"], good)
    predicted, floor, factor = (np.full(count, np.nan) for _ in range(3))
    skipped = np.where(good, "", "a size or the time is not a number above 0").astype(object)
    constants = catalog.kernel_constants(catalog.engine(ENGINE), chip)
    for (arithmetic, kept, _, _), mask in groups:
        here = {c: v[mask] for c, v in numbers.items()}
        kinds = tuple(DTYPES.get(d, d) for d in (arithmetic, kept))
        if any(d not in DTYPE_BYTES for d in kinds):
            skipped[mask] = f"number format '{arithmetic}' is not known"
            continue
        predicted[mask], floor[mask] = _seconds(form, kinds, here, chip, constants)
        factor[mask] = spread(_kind(form), chip.family, kept if form == "decode" else arithmetic)
    keys = zip(*(text[c] for c in (plain, *NEEDED[form])), strict=True)
    return of_columns(
        count,
        **words,
        library=text.get("kernel_source", empty),
        version=text.get("version", empty),
        dtype=dtype,
        what=_what(form, numbers),
        size=numbers["m"] if form == "gemm" else numbers["isl"] if form == "prefill" else _kv_bytes(numbers, stored),
        measured=numbers["latency_ms"] * 1e-3,
        predicted=predicted,
        low=predicted / (1 + factor),
        high=predicted * (1 + factor),
        floor=floor,
        fitted=even_hashes(f"{words['system']}|{form}|{'|'.join(key)}" for key in keys),
        where=chip.family,
        skipped=skipped,
        hint=_hints(form, numbers, chip),
    )


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


def _groups(*columns: Array) -> list[tuple[tuple[Any, ...], Array]]:
    """Rows of one number format, head size and window: their kernels differ in sizes only."""
    *kinds, good = columns
    keys = list(zip(*kinds, strict=True))
    codes: dict[tuple[Any, ...], int] = {}
    index = np.array([codes.setdefault(key, len(codes)) for key in keys])
    return [(key, (index == code) & good) for key, code in codes.items() if np.any((index == code) & good)]


def _seconds(form: str, kinds: tuple[str, ...], x: Columns, chip: Chip, constants: KernelConstants) -> tuple[Array, Array]:
    kernel = {"gemm": _gemm, "prefill": _prefill, "decode": _decode}[form](kinds, x)
    fixed, moving = seconds(kernel, chip, constants)
    return fixed + moving, np.maximum(kernel.nbytes / chip.memory_Bps, kernel.flops / peak(kernel, chip, constants))


def _gemm(kinds: tuple[str, ...], x: Columns) -> Kernel:
    kind = kinds[0]
    stored = DTYPE_BYTES[kind] + (1 / 16 if kind == "nvfp4" else 0)  # a byte of scale for 16 weights
    act = stored if kind == "fp8" else 2.0
    m, n, k = x["m"], x["n"], x["k"]
    return Kernel("product", "gemm", 1, 2 * m * n * k, act * m * k + stored * n * k + 2 * m * n, m, n, k, kind, stored)


def _prefill(kinds: tuple[str, ...], x: Columns) -> Kernel:
    batch, length, past = x["batch_size"], x["isl"], x["step"]
    heads, kv_heads, dim, window = x["num_heads"], x["num_key_value_heads"], float(x["head_dim"][0]), float(x["window_size"][0])
    pairs = length * (length + 1) / 2 + length * past
    if window:
        head = np.clip(np.minimum(length, window - past), 0, None)
        pairs = head * (head + 1) / 2 + head * past + (length - head) * window
    moved = batch * length * heads * dim * 2 * 2 + batch * (length + past) * kv_heads * dim * 2 * DTYPE_BYTES[kinds[1]]
    flops = 4 * batch * heads * pairs * dim
    return Kernel(
        "prefill attention",
        "prefill",
        1,
        flops,
        moved,
        dtype=kinds[0],
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(dim),
        length=length,
        past=past,
    )


def _decode(kinds: tuple[str, ...], x: Columns) -> Kernel:
    batch, dim, window = x["batch_size"], float(x["head_dim"][0]), float(x["window_size"][0])
    length = x["step"] + 1
    length = np.minimum(length, window) if window else length
    heads, kv_heads, stored = x["num_heads"], x["num_key_value_heads"], DTYPE_BYTES[kinds[1]]
    return Kernel(
        "decode attention",
        "decode",
        1,
        4 * batch * heads * length * dim,
        batch * length * kv_heads * dim * 2 * stored,
        weight_bytes=stored,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(dim),
        length=length,
    )


def _kv_bytes(x: Columns, stored: Array) -> Array:
    """Bytes of cache that a decode kernel reads."""
    sizes = {name: DTYPE_BYTES.get(DTYPES.get(name, name), 2.0) for name in set(stored)}
    length = np.where(x["window_size"] > 0, np.minimum(x["step"] + 1, x["window_size"]), x["step"] + 1)
    each = np.array([sizes[name] for name in stored])
    return x["batch_size"] * length * x["num_key_value_heads"] * x["head_dim"] * 2 * each


def _what(form: str, x: Columns) -> Array:
    """Sizes as one word a row, made only when it is shown."""
    names = NEEDED[form]
    return np.array([Shape(names, values) for values in zip(*(x[c] for c in names), strict=True)], dtype=object)


class Shape:
    """The sizes of a kernel, as words on demand."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...], values: tuple[float, ...]) -> None:
        self.names, self.values = names, values

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in zip(self.names, self.values, strict=True))


def _hints(form: str, x: Columns, chip: Chip) -> Array:
    """What is known to be hard: windows, tiny kernels, tensors that the cache keeps."""
    if form == "gemm":
        small = (x["n"] * x["k"] * 2 < chip.l2_bytes) if chip.l2_bytes else np.zeros(len(x["m"]), dtype=bool)
        return np.where(small, "weights stay in the chip's cache between repetitions", "").astype(object)
    return np.where(x["window_size"] > 0, "a window of attention", "").astype(object)
