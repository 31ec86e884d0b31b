"""Published kernel tables through the path of a bill: ``python benchmarks/parts.py DATA_DIR [KIND ...]``.

Prints, by chip and kind, the median error of what a bill would charge for each shape (no fitted pace, loads as the table states
them), and every group of shapes (chip, engine, kind, number format, class of size) whose median lies beyond 1.5 times.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from commtax_lab.published.kernel_tables import KernelTable, kind_of, tables_of_file
from commtax_lab.published.scoring.parts import UNLIKE, ShapeGroup, groups

FOLDERS = ("kernels", "kernels_more")
LEAST = 4  # rows of a group that is judged


def tables(folder: Path, kinds: list[str]) -> Iterator[KernelTable]:
    """Tables of priced chips, without exchanges, which are no kernels of a step."""
    for path in sorted(p for name in FOLDERS for p in (folder / name).glob("*.csv.gz")):
        kind = kind_of(path.name)
        if kind is None or "exchange" in kind.name or (kinds and kind.name not in kinds):
            continue
        with gzip.open(path, "rt") as file:
            header, *rows = csv.reader(file)
        yield from (table for _, table in tables_of_file(path.name, header, rows) if table.chip and not table.wrong)


def percent(errors: np.ndarray) -> float:
    return 100 * float(np.expm1(np.median(np.abs(errors))))


def by_chip(found: list[ShapeGroup]) -> Iterator[str]:
    """Experts, all others, and each kind."""
    for chip in dict.fromkeys(g.chip for g in found):
        here = [g for g in found if g.chip == chip and not g.why]
        kinds = {"all experts": [g for g in here if g.kind == "experts"], "all others": [g for g in here if g.kind != "experts"]}
        kinds |= {kind: [g for g in here if g.kind == kind] for kind in dict.fromkeys(g.kind for g in here)}
        for kind, some in kinds.items():
            if some:
                errors = np.concatenate([g.errors for g in some])
                rows, bias = len(errors), 100 * np.expm1(np.median(errors))
                yield f"{chip:12s} {kind:20s} {rows:8,d} rows  median {percent(errors):5.1f} %  bias {bias:+5.1f} %"


def main(arguments: list[str]) -> int:
    found = [g for g in groups(tables(Path(arguments[0]), arguments[1:])) if len(g.errors) >= LEAST]
    print(*by_chip(found), sep="\n")
    broken = [g for g in found if not g.obeys_law]
    for g in [*broken, *(g for g in found if g.why)]:
        times = np.exp(np.median(g.errors))
        why = UNLIKE[g.why]["why"] if g.why else ""
        print(f"{g.chip} {g.engine} {g.kind} {g.form} {g.size}: {times:.2f} times, {len(g.errors)} rows. {why}")
    judged = sum(not g.why for g in found)
    print(f"{len(broken)} of {judged} groups beyond 1.5 times; {len(found) - judged} that no engine serves so")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
