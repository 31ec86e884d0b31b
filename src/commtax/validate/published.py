"""The table of published figures that ships here: a few hundred rows in columns of its own, a source a row.

``benchmarks/curate.py`` chose them; each file is answered by the functions that answer folders of the larger tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from commtax.validate import collective_rows, inference_rows, kernel_rows, own_rows, whole_rows
from commtax.validate.records import Records, Table, dicts, joined, of_answers, read

COLUMNS: dict[str, dict[str, str]] = {  # our names, and what the larger tables call the same
    "collectives": {
        "hosts": "nodes",
        "links": "interconnect",
        "version": "library_version",
        "collective": "op",
        "us": "time_us",
        "how": "method",
        "note": "notes",
    },
    "serving_runs": {
        "engine": "backend",
        "version": "backend_version",
        "model": "model_path",
        "input": "isl",
        "output": "osl",
        "weights": "gemm_quant_mode",
        "tp": "tp_size",
        "pp": "pp_size",
        "attention_dp": "attention_dp_size",
        "ep": "moe_ep_size",
        "ttft_ms": "silicon_ttft_ms",
        "tpot_ms": "silicon_tpot_ms",
    },
    "inference": {
        "source": "source_id",
        "engine": "framework",
        "version": "framework_version",
        "weights": "precision",
        "input": "isl",
        "output": "osl",
        "note": "notes",
        "how": "batch_kind",
    },
    "training_runs": {"gpu": "gpu_type", "chunks": "interleave", "micro_batch": "microbatch", "step_s": "step_time_s"},
    "kernels": {
        "kernel": "kernel_source",
        "batch": "batch_size",
        "length": "isl",
        "heads": "num_heads",
        "kv_heads": "num_key_value_heads",
        "kv_dtype": "kv_cache_dtype",
        "past": "step",
        "window": "window_size",
    },
    "h200": {},
}


def tables(only: str = "") -> Iterator[Table]:
    """Every file of the shipped table; our own H200 rows are the last."""
    for name in COLUMNS:
        if only not in ("", name):
            continue
        header, rows = _read(name)
        yield Table(f"published/{name}.csv", header, rows, _answer(name, header, rows))


def header() -> list[str]:
    found: dict[str, None] = {}
    for name in COLUMNS:
        found |= dict.fromkeys(_read(name)[0])
    return list(found)


def _read(name: str) -> tuple[list[str], list[list[str]]]:
    with as_file(files("commtax.validate") / "published" / f"{name}.csv") as path:
        return read(path)


def _answer(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Callable[[], Records]:
    renamed = [COLUMNS[name].get(column, column) for column in header]
    plain: dict[str, Callable[[Sequence[Mapping[str, str]]], Records]] = {
        "collectives": collective_rows.answers,
        "serving_runs": lambda found: whole_rows.serving([_dated(row) for row in found]),
        "inference": inference_rows.answers,
        "training_runs": whole_rows.training,
        "kernels": _kernels,
        "h200": lambda found: own_rows.answers([_typed(row) for row in found]),
    }
    return lambda: plain[name](dicts(renamed, rows))


def _dated(row: Mapping[str, str]) -> dict[str, str]:
    """A run's source as the larger table writes it: its day says the version, and that lengths were drawn."""
    parts = [f"silicon_concurrency={row.get('clients', '')}"]
    if row.get("day"):
        parts += [f"source_file={row['day']}.csv", f"measured={row['day']}"]
    return {**row, "silicon_data_source": "; ".join(parts)}


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    """Numbers as numbers, empty cells left out: the row as its JSON line had it."""
    out: dict[str, Any] = {}
    for name, text in row.items():
        if text != "":
            out[name] = int(text) if text.isdigit() else float(text) if name.endswith("_s") else text
    return out


def _kernels(rows: Sequence[Mapping[str, str]]) -> Records:
    """Rows of several chips and kinds of kernels, each kind by one call."""
    kinds = list(dict.fromkeys((row["system"], row["form"]) for row in rows))
    parts = []
    for system, form in kinds:
        index = [i for i, row in enumerate(rows) if (row["system"], row["form"]) == (system, form)]
        dtype = "gemm_dtype" if form == "gemm" else "attn_dtype"
        mine = [{**rows[i], dtype: rows[i]["dtype"], "latency_ms": str(float(rows[i]["us"]) / 1e3)} for i in index]
        head = [name for name in mine[0] if any(row[name] for row in mine)]
        found = kernel_rows.answers(f"{system}_{form}", head, [[row[name] for name in head] for row in mine])
        source = [row["source"] for row in mine]
        parts.append(Records({**found.columns, "row": np.array(index), "source": np.array(source, dtype=object)}))
    return joined(parts) if parts else of_answers([])
