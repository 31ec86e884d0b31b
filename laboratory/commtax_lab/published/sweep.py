"""Rows of ``python -m commtax_lab.measure.study.kernels``: kernels and whole steps of one tensor-parallel rank, as JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from commtax import catalog
from commtax.runs.calibrate.measurements import SHAPES, SweepRow, kernel
from commtax_lab.published.rows import PublishedFigure, Row, RowQuestion, even_hash

ENGINE = "fused"  # the engine of the sweep, where a row names none: what it launches is in measure/study/rank_steps.py
SOURCE = "benchmarks/h200"
IN_CACHE_BYTES = 190e3  # a KV cache smaller than this stays in L2 between repetitions
LAUNCH_BOUND_S = 1e-5  # … and a kernel shorter than this is mostly its launch
STEP_MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "llama-2-13b", "qwen2.5-32b")
SHARD_MODELS = ("llama-3.1-8b", "llama-3.2-1b", "llama-2-13b")
NOT_IN_KEY = ("median_s", "samples_s", "sm_MHz")
WHAT = ("model", "tp", "batch", "length", "heads", "m", "n", "k", "mode")


def load(folder: Path) -> list[SweepRow]:
    """Read all rows of a folder's ``*.jsonl``, without headers."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines() if line.strip())
    return [row for row in map(json.loads, lines) if row.get("kind") in (*SHAPES, "step")]


def row_of_cells(row: Row) -> SweepRow:
    """Restore the row of a JSON line: numbers as numbers, empty cells left out."""
    typed = {n: int(x) if x.isdigit() else float(x) if n.endswith("_s") else x for n, x in row.items() if x != ""}
    return cast(SweepRow, typed)


def read(rows: Sequence[SweepRow], chip: str) -> list[RowQuestion[SweepRow]]:
    questions = []
    for index, row in enumerate(rows):
        kind = row["kind"]
        entry = PublishedFigure(
            kind=f"{row.get('phase')}-step" if kind == "step" else "gemm" if kind == "gemm" else f"{kind}-attention",
            source=SOURCE,
            system=chip,
            library=row.get("backend") or row.get("engine") or ENGINE,
            version=row.get("version", ""),
            mode=row.get("mode") or "graph",
            dtype=row.get("dtype", ""),
            where=catalog.chip(chip).family,
            tp=row.get("tp", 0),
            what=", ".join(f"{name} {value}" for name in WHAT if (value := row.get(name)) is not None),
            row=index,
            size=_size(row),
            fitted=is_fitted(row),
            measured=float(row["median_s"]),
            hint=_hint(row),
        )
        questions.append(RowQuestion((entry,), row))
    return questions


def is_fitted(row: SweepRow) -> bool:
    """Return whether constants were fitted on a row: whole steps by model, kernels by a hash of all but their time."""
    if row["kind"] == "step":
        return row["model"] in (SHARD_MODELS if row.get("engine") == "torch" else STEP_MODELS)
    return even_hash(json.dumps({name: value for name, value in row.items() if name not in NOT_IN_KEY}, sort_keys=True))


def _size(row: SweepRow) -> float:
    if row["kind"] == "gemm":
        return float(row["m"])
    if row["kind"] == "decode":
        return float(kernel(row).nbytes)
    return float(row["batch"] * row["length"]) if row.get("phase") == "prefill" else float(row["batch"])


def _hint(row: SweepRow) -> str:
    if row["kind"] == "decode" and _size(row) < IN_CACHE_BYTES:
        return "a cache of under 190 kB stays in L2"
    if row["kind"] == "prefill" and row.get("backend") != "cudnn":
        return "another kernel than the engine's"
    return "launch-bound" if row["median_s"] < LAUNCH_BOUND_S else ""
