"""How far ``commtax.simulate`` is off published serving runs: ``python benchmarks/serving_runs.py FILE.csv [--fitted|--unfitted]``.

Prints median and 90th percentile of the absolute error and the bias (geometric mean of predicted over measured, less 1)
by engine, model and tensor parallelism, for TPOT and TTFT, and the reasons of rows that were not priced.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from commtax.verbs.closed_loop import simulate
from commtax_lab.published.serving_rows import distinct_rows, is_fitted, measured_means, question


def read(*paths: Path) -> list[dict[str, str]]:
    """Rows of tables, each measurement once over all of them."""
    rows: list[dict[str, str]] = []
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            rows += csv.DictReader(file)
    return distinct_rows(rows)


def errors(rows: list[dict[str, str]]) -> tuple[list[dict[str, object]], Counter[str]]:
    """Log errors of every row that is priced, with what it is grouped by."""
    found, skipped = [], Counter[str]()
    for row in rows:
        try:
            asked = question(row)
            answer = simulate(**asked)
        except ValueError as error:
            skipped[str(error)] += 1
            continue
        was = measured_means(row)
        record = {
            "engine": row.get("backend"),
            "version": row.get("backend_version") or "-",
            "model": asked["model"].key,
            "kind": "moe" if asked["model"].experts else "dense",
            "mode": row.get("mode") or "agg",
            "tp": asked["tp"],
            "c": asked["concurrency"],
            "fitted": is_fitted(row),
            "row": row,
            **{name: float(np.log(getattr(answer, name) / was[name])) for name in was},
        }
        found.append(record)
    return found, skipped


def table(found: list[dict[str, object]], by: tuple[str, ...], name: str) -> None:
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for record in found:
        if name in record:
            groups[tuple(record[b] for b in by)].append(record[name])  # type: ignore[arg-type]
    for key, logs in sorted(groups.items(), key=lambda x: str(x[0])):
        off = np.abs(np.expm1(logs))
        print(
            f"{name[:-2]:5s} {' '.join(str(k) for k in key):52s} n {len(logs):4d}  median {np.median(off):6.1%}  "
            f"p90 {np.quantile(off, 0.9):6.1%}  bias {np.expm1(np.mean(logs)):+6.1%}  sigma {np.std(logs):.3f}"
        )


def main(arguments: list[str]) -> None:
    found, skipped = errors(read(Path(arguments[0])))
    priced = len(found)
    if "--unfitted" in arguments:
        found = [r for r in found if not r["fitted"]]
    if "--fitted" in arguments:
        found = [r for r in found if r["fitted"]]
    print(f"{priced} rows priced, {sum(skipped.values())} not: {dict(skipped)}; {len(found)} shown")
    views = (("kind", "mode"), ("kind", "mode", "tp"), ("kind", "mode", "c"), ("mode", "engine", "version", "model", "tp"))
    for by in views:
        for name in ("tpot_s", "ttft_s"):
            table(found, by, name)
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
