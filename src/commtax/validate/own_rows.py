"""Rows of ``python -m commtax.study.kernels``: kernels and whole steps of one tensor-parallel rank, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commtax import catalog
from commtax.api.billing import StepBill, bill
from commtax.cost.compute import Kernel
from commtax.cost.kernels import seconds
from commtax.ledger import Bill
from commtax.spec import DTYPE_BYTES, Chip
from commtax.validate.records import Answer, Records, UnpricedError, of_answers
from commtax.validate.splits import own_is_fitted
from commtax.validate.spreads import spread

ENGINE = "fused"  # the engine of the sweep, where a row names none: what it launches is in commtax.study.steps
SOURCE = "benchmarks/h200"
RANGES = "fused"  # whose residuals the ranges are
Own = Mapping[str, Any]


def read(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder's ``*.jsonl``, headers left out."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines() if line.strip())
    return [row for row in map(json.loads, lines) if row.get("kind") in ("gemm", "decode", "prefill", "step")]


def answers(rows: Iterable[Own], chip: str = "h200-sxm") -> Records:
    return of_answers(_answer(index, row, chip) for index, row in enumerate(rows))


def _answer(index: int, row: Own, chip: str) -> Answer:
    kind = row.get("kind", "")
    plain = Answer(
        kind=f"{row.get('phase')}-step" if kind == "step" else "gemm" if kind == "gemm" else f"{kind}-attention",
        source=SOURCE,
        system=chip,
        library=str(row.get("backend") or row.get("engine") or ENGINE),
        version=str(row.get("version") or ""),
        mode=str(row.get("mode") or "graph"),
        dtype=str(row.get("dtype") or ""),
        where=catalog.chip(chip).family,
        tp=row.get("tp", 0),
        what=", ".join(f"{k} {row[k]}" for k in ("model", "tp", "batch", "length", "heads", "m", "n", "k", "mode") if k in row),
        row=index,
        size=_size(row),
        fitted=own_is_fitted(row),
    )
    try:
        predicted, width, floor = _step(row, chip) if kind == "step" else _kernel(row, plain.kind, catalog.chip(chip))
    except ValueError as error:
        return replace(plain, skipped=str(error))
    found = replace(plain, measured=float(row["median_s"]), predicted=predicted, floor=floor, hint=_hint(row))
    return replace(found, low=predicted / width, high=predicted * width)


def _size(row: Own) -> float:
    if row["kind"] == "gemm":
        return float(row["m"])
    if row["kind"] == "decode":
        return float(row["batch"] * row["length"] * row["kv_heads"] * row["head_dim"] * 2 * DTYPE_BYTES[row["dtype"]])
    return float(row["batch"] * row["length"]) if row["kind"] == "step" and row["phase"] == "prefill" else float(row["batch"])


def _hint(row: Own) -> str:
    if row["kind"] == "decode" and _size(row) < 190e3:
        return "a cache of under 190 kB stays in L2"
    if row["kind"] == "prefill" and row.get("backend") != "cudnn":
        return "another kernel than the engine's"
    return "launch-bound" if float(row["median_s"]) < 1e-5 else ""


def least_s(priced: StepBill) -> float:
    """The least that bytes over bandwidth and FLOPs over peak allow the kernels of one rank."""
    chip = priced.setup.cluster.chip
    fp8 = priced.setup.plan.weights_dtype == "fp8" or bool(priced.setup.model.quant)
    peaks = chip.flops_per_s
    peak = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0), peaks.get("fp8", 0.0) if fp8 else 0.0)
    lines = [x for x in priced.lines if x.kind == "compute"]
    return sum(float(x.item.count) * max(float(x.item.nbytes) / chip.memory_Bps, float(x.flops) / peak) for x in lines)


def _step(row: Own, chip: str) -> tuple[float, float, float]:
    """One rank's kernels of a whole step: no collectives, no host."""
    words = {name: row[name] for name in ("phase", "tp", "batch")} | {"context": row["length"]}
    words["engine"] = row.get("engine") or ENGINE
    priced = bill(row["model"], f"8x{chip}", dtype="" if row["dtype"] == "bf16" else row["dtype"], **words)
    mine = Bill(tuple(x for x in priced.lines if x.kind == "compute"), priced.tokens)
    return float(mine.step_s), float(mine.high_s / mine.step_s), least_s(priced)


def _kernel(row: Own, kind: str, chip: Chip) -> tuple[float, float, float]:
    kernel = {"gemm": _gemm, "decode": _decode, "prefill": _prefill}[row["kind"]](row)
    constants = catalog.kernel_constants(catalog.engine(ENGINE), chip)
    fixed, moving = seconds(kernel, chip, constants)
    least = max(kernel.nbytes / chip.memory_Bps, kernel.flops / chip.flops_per_s[kernel.dtype])
    return float(fixed + moving), 1 + spread(kind, RANGES, row["dtype"]), float(least)


def _gemm(row: Own) -> Kernel:
    m, n, k = row["m"], row["n"], row["k"]
    each = DTYPE_BYTES[row["dtype"]]
    moved = each * (m * k + n * k) + 2 * m * n
    static = row["dtype"] == "fp8" and "static" in str(row.get("mode"))
    return Kernel("product", "gemm", 1, 2.0 * m * n * k, moved, m, n, k, row["dtype"], each, static_scales=static)


def _decode(row: Own) -> Kernel:
    b, h, kv, d, s = (row[c] for c in ("batch", "heads", "kv_heads", "head_dim", "length"))
    return Kernel(
        "decode attention",
        "decode",
        1,
        4.0 * b * h * s * d,
        4.0 * b * s * kv * d,
        batch=b,
        heads=h,
        kv_heads=kv,
        head_dim=d,
        length=s,
    )


def _prefill(row: Own) -> Kernel:
    if row.get("backend") not in (None, "cudnn"):
        raise UnpricedError(f"attention of '{row['backend']}' is measured beside the engine's and has no constants")
    b, h, kv, d, s = (row[c] for c in ("batch", "heads", "kv_heads", "head_dim", "length"))
    moved = 4.0 * b * s * d * (h + kv)
    flops = 2.0 * b * h * s * (s + 1) * d
    return Kernel(
        "prefill attention", "prefill", 1, flops, moved, batch=b, heads=h, kv_heads=kv, head_dim=d, length=s, past=np.float64(0)
    )
