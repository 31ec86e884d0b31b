"""Fit what attention does with unusual heads: ``python benchmarks/fit_heads.py DATA_DIR [--write]``.

Three things that kernels of the usual heads don't tell: decode attention with keys for each query head (``decode.single``), and
with heads of 512 (``decode.512``), where a library runs another kernel on it; and the attained share at head sizes of 192 and
512, which some engines serve with kernels of their own. Fitted are rows whose hash is even, as in ``fit_kernels.py``, given all
other constants; shares are written where they improve the other rows clearly.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from fit_kernels import CLEARLY, FOLDER, FRAMEWORK, PREFILL, SCALE, TABLES, TAILS, TIMED, Part, Rows, logs, median, put, solve

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


def own_kernels(folder: Path, write: bool) -> None:
    """Tables of decode attention that other kernels run."""
    for name in SPLIT_BY_GROUPS:
        _own_kernel(folder, name, "single", Singles, UNSPLIT, write)
    _own_kernel(folder, "hopper", "512", Wide, BY_SEQUENCE, write)


def _own_kernel(folder: Path, name: str, kind: str, rows_of: type[Rows], start: dict[str, float], write: bool) -> None:
    (key, where), table = TABLES[name], f"decode.{kind}"
    chip = catalog.chip(key)
    usual = catalog.kernel_constants(catalog.engine(FRAMEWORK), chip)
    rows = [rows_of(folder / f"{where}_{TAILS['decode']}.csv.gz", "decode", "bf16", chip)]
    begun = replace(usual, tables={**usual.tables, table: {**usual.tables["decode.bf16"], **start}})
    values, (_, _, _, after) = solve(rows, begun, table)
    before = median(replace(usual, tables={n: c for n, c in usual.tables.items() if n != table}), rows[0].parts(False))
    print(f"{name:10s} {table:14s} tested {before:6.1%} -> {after:6.1%}", flush=True)
    if write:
        put(FOLDER / f"{name}.toml", f"engine.{FRAMEWORK}.{table}", values)


def places() -> Iterator[tuple[str, str, str, str]]:
    """File, system and engine of every table of attention, and where its rows are."""
    for name, (key, where) in TABLES.items():
        yield name, key, FRAMEWORK, where
        for engine in TIMED:
            yield name, key, engine, where.replace("kernels/", "kernels_more/")


def sizes(folder: Path, write: bool) -> None:
    for name, key, engine, where in places():
        file = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        constants = catalog.kernel_constants(catalog.engine(engine), catalog.chip(key), timed=True)
        for form, share in SHARES.items():
            for kind in tuple(PREFILL) if form == "prefill" else ("bf16", "fp8"):
                section = _section(file, engine, form, kind)
                path = folder / f"{where}_{TAILS[form]}.csv.gz"
                if section and path.exists():
                    _at_sizes(
                        Rows(path, form, kind, catalog.chip(key), engine),
                        constants,
                        (name, section, f"{form}.{kind}"),
                        share,
                        write,
                    )


def _section(file: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]], engine: str, form: str, kind: str) -> str:
    """Where an engine's table stands in a file: its own, or the family's; "" where it has none."""
    if kind in file.get("engine", {}).get(engine, {}).get(form, {}):
        return f"engine.{engine}.{form}.{kind}"
    return f"{form}.{kind}" if engine == FRAMEWORK and kind in file.get(form, {}) else ""


def _at_sizes(rows: Rows, constants: KernelConstants, where: tuple[str, str, str], share: str, write: bool) -> None:
    """The attained share at each further head size that the rows have."""
    name, section, table = where
    for size in SIZES:
        fit, test = ([part for part in rows.parts(even) if part[2]["head_dim"][0] == size] for even in (True, False))
        if sum(len(part[3]) for part in fit) < LEAST or not test:
            continue
        own = constants.tables[table]
        tried = np.exp(np.linspace(np.log(0.01), np.log(0.999), 120))
        made = [replace(constants, tables={**constants.tables, table: {**own, f"{share}{size}": float(v)}}) for v in tried]
        losses = [float(np.mean(np.sqrt(1 + (logs(one, fit) / SCALE) ** 2))) for one in made]
        best = int(np.argmin(losses))
        usual = replace(constants, tables={**constants.tables, table: {n: v for n, v in own.items() if n != f"{share}{size}"}})
        before, after = median(usual, test), median(made[best], test)
        print(f"{name:10s} {section:35s} {share}{size} = {tried[best]:.3f}  tested {before:6.1%} -> {after:6.1%}", flush=True)
        if write and before > after + CLEARLY:
            _add(FOLDER / f"{name}.toml", section, f"{share}{size}", float(tried[best]))


def _add(path: Path, section: str, key: str, value: float) -> None:
    """A constant in place, or as the last of its table."""
    text = path.read_text()
    start = text.index(f"[{section}]\n")
    end = text.index("\n\n", start)
    block = re.sub(rf"\n{key} = .*", "", text[start:end])
    path.write_text(f"{text[:start]}{block}\n{key} = {value:.4g}{text[end:]}")


def main(arguments: list[str]) -> None:
    own_kernels(Path(arguments[0]), "--write" in arguments)
    sizes(Path(arguments[0]), "--write" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
