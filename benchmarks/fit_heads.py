"""Fit what attention does with unusual heads: ``python benchmarks/fit_heads.py DATA_DIR [--write]``.

Three things that kernels of the usual heads don't tell: decode attention with keys for each query head (``decode.single``), and
with heads of 512 (``decode.512``), where a library runs another kernel on it; and the attained share at head sizes of 192 and
512, which some engines serve with kernels of their own. Fitted are rows whose hash is even, as in ``fit_kernels.py``, given all
other constants; shares are written where they improve the other rows clearly.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from fit_kernels import (
    DESCENT,
    FRAMEWORK,
    PREFILL,
    TABLES,
    TAILS,
    TIMED,
    Part,
    Rows,
    logs,
    median,
    solve,
    usual_constants,
    with_table,
)
from fitting import CLEARLY, KERNELS, write_table

from commtax import catalog
from commtax.spec import KernelConstants

SIZES = (192, 512)
SHARES = {"prefill": "ep", "decode": "eb"}
SPLIT_BY_GROUPS = ("ampere", "ada")  # FlashAttention 2
UNSPLIT = {"t0": 1e-5, "eb128": 0.85, "kl": 1e-3, "kc": 4e4, "p": 2.0, "d0": 3e4}
BY_SEQUENCE = {"t0": 1.6e-5, "tc": 9e-7, "eb512": 0.8}
LEAST = 20  # rows


class Singles(Rows):
    """Rows with as many heads of keys as of queries."""

    def parts(self, even: bool) -> list[Part]:
        found = [(part, part[2]["num_heads"] == part[2]["num_key_value_heads"]) for part in super().parts(even)]
        return [(rows, s, {c: v[k] for c, v in x.items()}, measured[k]) for (rows, s, x, measured), k in found if np.any(k)]


class Wide(Rows):
    """Rows with heads of 512."""

    def parts(self, even: bool) -> list[Part]:
        return [part for part in super().parts(even) if part[2]["head_dim"][0] == SIZES[-1]]


def fit_kernel(folder: Path, name: str, kind: str, rows_of: type[Rows], start: dict[str, float], write: bool) -> None:
    """A table of decode attention that another kernel runs."""
    (key, where), table = TABLES[name], f"decode.{kind}"
    usual = usual_constants(catalog.chip(key))
    rows = rows_of(folder / f"{where}_{TAILS['decode']}.csv.gz", "decode", "bf16", catalog.chip(key))
    values, (_, _, _, after) = solve([rows], with_table(usual, table, {**usual.tables["decode.bf16"], **start}), table)
    before = median(replace(usual, tables={n: c for n, c in usual.tables.items() if n != table}), rows.parts(False))
    print(f"{name:10s} {table:14s} tested {before:6.1%} -> {after:6.1%}", flush=True)
    if write:
        write_table(KERNELS / f"{name}.toml", f"engine.{FRAMEWORK}.{table}", values)


def places() -> Iterator[tuple[str, str, str, str]]:
    """File, chip and engine of every table of attention, and where its rows are."""
    for name, (key, where) in TABLES.items():
        yield name, key, FRAMEWORK, where
        yield from ((name, key, engine, where.replace("kernels/", "kernels_more/")) for engine in TIMED)


def fit_shares(folder: Path, write: bool) -> None:
    for name, key, engine, where in places():
        file = tomllib.loads((KERNELS / f"{name}.toml").read_text())
        constants = catalog.kernel_constants(catalog.engine(engine), catalog.chip(key), timed=True)
        for form, share in SHARES.items():
            path = folder / f"{where}_{TAILS[form]}.csv.gz"
            for kind in tuple(PREFILL) if form == "prefill" else ("bf16", "fp8"):
                section = _section(file, engine, form, kind)
                if section and path.exists():
                    rows = Rows(path, form, kind, catalog.chip(key), engine)
                    for size, value, told in better_shares(rows, constants, f"{form}.{kind}", share):
                        tested = f"tested {told[0]:6.1%} -> {told[1]:6.1%}"
                        print(f"{name:10s} {section:35s} {share}{size} = {value:.3f}  {tested}", flush=True)
                        if write and told[0] > told[1] + CLEARLY:
                            write_table(KERNELS / f"{name}.toml", section, {f"{share}{size}": value})


def _section(file: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]], engine: str, form: str, kind: str) -> str:
    """Where an engine's table stands in a file: its own, or the family's; "" where it has none."""
    if kind in file.get("engine", {}).get(engine, {}).get(form, {}):
        return f"engine.{engine}.{form}.{kind}"
    return f"{form}.{kind}" if engine == FRAMEWORK and kind in file.get(form, {}) else ""


def better_shares(
    rows: Rows, constants: KernelConstants, table: str, share: str
) -> Iterator[tuple[int, float, tuple[float, float]]]:
    """The attained share at each further head size that the rows have; medians of the other rows without and with it."""
    own = constants.tables[table]
    for size in SIZES:
        fit, test = ([part for part in rows.parts(even) if part[2]["head_dim"][0] == size] for even in (True, False))
        if sum(len(part[3]) for part in fit) < LEAST or not test:
            continue
        tried = np.exp(np.linspace(np.log(0.01), np.log(0.999), 120))
        made = [with_table(constants, table, {**own, f"{share}{size}": float(v)}) for v in tried]
        best = int(np.argmin([DESCENT.loss(logs(one, fit)) for one in made]))
        usual = with_table(constants, table, {n: v for n, v in own.items() if n != f"{share}{size}"})
        yield size, float(tried[best]), (median(usual, test), median(made[best], test))


def main(arguments: list[str]) -> None:
    folder, write = Path(arguments[0]), "--write" in arguments
    for name in SPLIT_BY_GROUPS:
        fit_kernel(folder, name, "single", Singles, UNSPLIT, write)
    fit_kernel(folder, "hopper", "512", Wide, BY_SEQUENCE, write)
    fit_shares(folder, write)


if __name__ == "__main__":
    main(sys.argv[1:])
