"""Fit the constants of DeepEP's kernels on published tables: ``python benchmarks/fit_exchanges.py DATA_DIR [--write]``.

Fitted are rows whose hash is even: a fixed time, the rate of the link and that of one multiprocessor, each way, by engine and
family; generic ones are of all. Each constant is tried larger and smaller, by ever finer factors, for the least soft-L1 sum.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fit_experts import CHIPS, put
from fit_kernels import FOLDER

from commtax.cost.forms.modules import exchange
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.tables import read

TAILS = ("wideep_deepep_ll", "wideep_deepep_normal", "moe_a2a")
START = {"t0": 3e-5, "link_Bps": 3e11, "sm_Bps": 1.5e10}
Key = tuple[str, str, str]
Rows = list[tuple[Any, Any, Any]]  # kernel of one way, seconds, fitted
SCALE, MOST_BPS = 0.1, 9e11  # no faster than an NVLink of the fifth generation carries one way


def gather(folder: Path) -> dict[Key, Rows]:
    """Rows by family, engine and form."""
    found: dict[Key, Rows] = defaultdict(list)
    for chip, tail in product(CHIPS, TAILS):
        path = folder / "kernels_more" / f"{chip}_{tail}.csv.gz"
        if not path.exists():
            continue
        table = kernel_tables.read(path.name, *read(path))
        assert table.chip is not None
        even = table.fitted()
        for words, mask in table.groups():
            sizes = {name: column[mask] for name, column in table.sizes.items()}
            for kernel, seconds in timed(table, list(table.kind.make(words, sizes)), mask):
                found[table.chip.family, words["framework"], kernel.form].append((kernel, seconds, even[mask]))
    return found


def timed(table: kernel_tables.KernelTable, kernels: list[Any], mask: Any) -> list[tuple[Any, Any]]:
    """Kernels with their own times, where a row has one for each way."""
    columns = [table.text[c][mask].astype(float) * 1e-6 for c in table.kind.times_us] or [table.sizes["seconds"][mask]]
    return list(zip(kernels, columns, strict=True))


def errors(rows: Rows, tables: dict[str, dict[str, float]], fitted: bool) -> Any:
    out = []
    for kernel, seconds, even in rows:
        took = sum(exchange(kernel, tables[kernel.stored], 1e13, 1.0))
        out.append(np.log(took / seconds)[even == fitted])
    return np.abs(np.concatenate(out))


def loss(rows: Rows, tables: dict[str, dict[str, float]]) -> float:
    return float(np.sum(np.sqrt(1 + (errors(rows, tables, True) / SCALE) ** 2)))


def fit(rows: Rows) -> dict[str, dict[str, float]]:
    tables = {way: dict(START) for way in sorted({kernel.stored for kernel, _, _ in rows})}
    best = loss(rows, tables)
    for factor in (3.0, 1.6, 1.25, 1.1, 1.04):
        for _ in range(12):
            before = best
            for way, name, up in product(tables, START, (factor, 1 / factor)):
                tried = {**tables, way: {**tables[way], name: tables[way][name] * up}}
                if tried[way]["link_Bps"] <= MOST_BPS and (now := loss(rows, tried)) < best:
                    tables, best = tried, now
            if best >= before * (1 - 1e-4):
                break
    return {way: {n: float(f"{v:.4g}") for n, v in table.items()} for way, table in tables.items()}


def main(arguments: list[str]) -> None:
    found = gather(Path(arguments[0]))
    files: dict[tuple[str, str], Rows] = {}
    pooled: dict[tuple[str, str], Rows] = defaultdict(list)
    for (family, engine, form), rows in found.items():
        files[family, f"engine.{engine}.{form}"] = rows
        pooled["generic", f"engine.{engine}.{form}"] += rows
        pooled[family, form] += rows
        pooled["generic", form] += rows
    families, forms = {family for family, _, _ in found}, {form for _, _, form in found}
    for family, form in product(families, forms):  # a family with some of the forms has all of them
        pooled[family, form] = pooled[family, form] or pooled["generic", form]
    for (file, section), rows in {**files, **pooled}.items():
        tables = fit(rows)
        tested = np.expm1(errors(rows, tables, False))
        print(f"{file:10s} {section:34s} tested {np.median(tested):6.1%} ({np.quantile(tested, 0.9):6.1%}) {tables}", flush=True)
        if "--write" in arguments:
            path = FOLDER / f"{file}.toml"
            text = path.read_text()
            for way, values in tables.items():
                text = put(text, section, way, values)
            path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
