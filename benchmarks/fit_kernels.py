"""Fit the constants of kernels on published tables: ``python benchmarks/fit_kernels.py DATA_DIR [--engines] [--write] [FILE ...]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others: products with n and k of 512 and more, attention without
a window and with a bf16 or fp8 cache each at its own constants, from where the constants are. With ``--engines`` instead the tables
of kernels of other engines, where they differ from the family's by more than ``CLEARLY``, and of formats that only they were
measured in. With ``--write`` the files under ``catalog/kernels`` are changed in place; ``FILE``: only these (ada, hopper …).
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from fitting import CLEARLY, KERNELS, Array, Constants, Descent, miss, spread_over, write_table

from commtax import catalog
from commtax.spec import Chip, KernelConstants
from commtax_lab.published import kernel_tables
from commtax_lab.published.kernel_kinds import KINDS
from commtax_lab.published.scoring import kernel_scores
from commtax_lab.published.tables import read

TABLES = {  # a file of constants: the chip and the tables that it is fitted on
    "ampere": ("a100-80-sxm", "kernels/a100_sxm"),
    "hopper": ("h100-sxm", "kernels/h100_sxm"),
    "blackwell": ("b200-sxm", "kernels/b200_sxm"),
    "b300-sxm": ("b300-sxm", "kernels_more/b300_sxm"),
    "ada": ("l40s", "kernels/l40s"),
    "xe2": ("arc-pro-b60", "kernels_more/b60"),
}
SISTERS = {"blackwell": ("gb200", "kernels_more/gb200")}
"""A further chip that engines' tables of a family are fitted on."""
FRAMEWORK = "vllm"  # where a table holds several
TIMED = ("sglang", "trtllm")
UNTUNED = ("trtllm", "gemm.nvfp4")  # an engine's table that was timed without its tuner: no step's
ONLY_TIMED = ("fp8-block", "int4", "int8", "fp8-kv", "fp8-attention")
"""Formats that have no constants for steps, but fp8 in tiles: DeepGEMM's or Triton's products, which tables time in a graph or
with their launch beside (``gemm-eager``)."""
IN_STEPS = {"sglang": "", "vllm": "", "trtllm": "engine.trtllm."}
WRITTEN = {"bf16": "bfloat16", "fp8-block": "fp8_block", "int4": "int4_wo", "int8": "int8_wo"}
PREFILL = {"bf16": ("bf16", "bf16"), "fp8-kv": ("bf16", "fp8"), "fp8-attention": ("fp8", "fp8")}
"""Number formats of prompts' arithmetic and cache."""
LIKE = {"fp8-block": "fp8", "int4": "bf16", "int8": "bf16", "fp8-kv": "bf16", "fp8-attention": "bf16"}
"""The format that the fit of another starts at."""
TAILS = {"gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention"}
MOST = 6000  # rows of one fit
FIXED = ("tile_q", "pack")  # of a kernel's code
AT_MOST_1 = re.compile(r"^e[bp]\d*$")
HIGHEST = {"p": 12.0, "el": 12.0}
DESCENT = Descent(scale=0.015, gain=1e-4)


class Rows:
    """Rows of one number format and engine that the constants of one table answer, on one chip."""

    def __init__(self, path: Path, form: str, kind: str, chip: Chip, framework: str = FRAMEWORK) -> None:
        header, lines = read(path)
        if "framework" in header:
            lines = [line for line in lines if line[header.index("framework")] == framework]
        text = {c: np.array([line[i] for line in lines], dtype=object) for i, c in enumerate(header)}
        wanted = PREFILL[kind] if form == "prefill" else (kind, kind)
        columns = {"gemm": ("gemm_dtype",), "prefill": ("attn_dtype", "kv_cache_dtype"), "decode": ("kv_cache_dtype",)}[form]
        keep = np.all([text[c] == WRITTEN.get(w, w) for c, w in zip(columns, wanted, strict=False)], axis=0)
        if form == "gemm":
            keep &= (text["n"].astype(float) >= 512) & (text["k"].astype(float) >= 512)
        elif "window_size" in text:
            keep &= np.array([float(window or 0) == 0 for window in text["window_size"]], dtype=bool)
        text = {c: v[keep] for c, v in text.items()}
        table = kernel_tables.read(path.name, list(text), list(zip(*text.values(), strict=True)))
        self.records = kernel_scores.answers(table, "")
        self.form, self.chip, self.kind, self.framework = form, chip, kind, framework
        self.numbers, self.sources = table.sizes, table.column("kernel_source")
        self.even = self.records.fitted

    def parts(self, even: bool) -> list[Part]:
        """Rows that are fitted or not, apart by what a kernel's code depends on."""
        chosen = np.flatnonzero(self.even == even)
        chosen = chosen[spread_over(len(chosen), MOST)] if len(chosen) else chosen
        dims = self.numbers.get("head_dim", np.zeros(len(self.even)))
        alike = dict.fromkeys(zip(dims[chosen], self.sources[chosen], strict=True))
        groups = [(s, chosen[(dims[chosen] == d) & (self.sources[chosen] == s)]) for d, s in alike]
        return [(self, s, {c: v[g] for c, v in self.numbers.items()}, self.records.measured[g]) for s, g in groups]

    def log(self, constants: KernelConstants, source: str, x: dict[str, Array], measured: Array) -> Array:
        plain = self.kind.partition("-")[0]
        arithmetic, stored = PREFILL.get(self.kind, ("bf16", plain)) if self.form == "prefill" else ("bf16", plain)
        words = {"dtype": plain if self.form == "gemm" else arithmetic, "stored": stored, "framework": self.framework}
        words |= {"written": WRITTEN.get(self.kind, self.kind), "kernel_source": source}
        made = KINDS[TAILS[self.form]].make(words, x)
        return np.log(kernel_scores.price_kernels(made, self.chip, constants)[0] / measured)


Part = tuple[Rows, str, dict[str, Array], Array]


def logs(constants: KernelConstants, parts: list[Part]) -> Array:
    return np.concatenate([rows.log(constants, *part) for rows, *part in parts])


def median(constants: KernelConstants, parts: list[Part]) -> float:
    return miss(logs(constants, parts))


def with_table(constants: KernelConstants, name: str, table: Constants) -> KernelConstants:
    return replace(constants, tables={**constants.tables, name: table})


def solve(many: list[Rows], constants: KernelConstants, name: str) -> tuple[Constants, list[float]]:
    """A table's constants; medians of rows that are fitted and not, before and after."""
    table = dict(constants.tables[name])
    free = [n for n, v in table.items() if v > 0 and n not in FIXED]
    start = np.array([table[n] for n in free])
    high = np.log([0.999 if AT_MOST_1.match(n) else HIGHEST.get(n, 20 * table[n]) for n in free] / start)
    low = np.array([np.log(1.0 / table[n]) if n in HIGHEST else -3.0 for n in free])
    halves = [[part for rows in many for part in rows.parts(even)] for even in (True, False)]

    def at(z: Array) -> Constants:
        return dict(zip(free, (start * np.exp(z)).tolist(), strict=True))

    def medians(z: Array) -> list[float]:
        return [median(with_table(constants, name, {**table, **at(z)}), half) for half in halves]

    first = np.clip(np.zeros(len(free)), low, high)
    found, _ = DESCENT.solve(lambda z: logs(with_table(constants, name, {**table, **at(z)}), halves[0]), first, low, high)
    return at(found), medians(first) + medians(found)


def fit_engines(folder: Path, write: bool, only: list[str]) -> None:
    """Tables of engines' own kernels."""
    for name, (key, tables) in chosen(only):
        places = [(catalog.chip(key), tables.replace("kernels/", "kernels_more/"))]
        places += [(catalog.chip(chip), where) for chip, where in [SISTERS.get(name, ("", ""))] if chip]
        for form, tail in TAILS.items():
            kinds = {"gemm": ("bf16", "fp8", "nvfp4", *ONLY_TIMED[:3]), "prefill": tuple(PREFILL), "decode": ("bf16", "fp8")}[form]
            for kind, engine in product(kinds, (*TIMED, FRAMEWORK)):
                if engine == FRAMEWORK and (kind not in ONLY_TIMED or (kind == "fp8-block" and name != "ada")):
                    continue  # DeepGEMM's as SGLang has it
                many = [Rows(folder / f"{where}_{tail}.csv.gz", form, kind, chip, engine) for chip, where in places]
                if many := [rows for rows in many if len(rows.records)]:
                    _fit_engine(name, f"{form}.{kind}", engine, many, write)


def _fit_engine(name: str, table: str, engine: str, many: list[Rows], write: bool) -> None:
    """One engine's table, written where it is clearly better than the family's."""
    form, _, kind = table.partition(".")
    usual = usual_constants(many[0].chip)
    kept = usual_constants(many[0].chip, engine).tables.get(table)
    like = dict(kept or usual.tables.get(table) or usual.tables[f"{form}.{LIKE.get(kind, kind)}"])
    starts = [like]
    if form == "gemm":  # also where a product has a fixed cost and quantises beside
        starts += [{**like, "q": like["q"] or 1e-13}, {**like, "t0": 1e-5, "kl": 0.005, "kc": 1e7, "mk": 1e5, "q": 5e-13, "p": 1.6}]
        starts += [{**like, "t0": 1e-4, "kl": 1e-5, "kc": 10.0, "mk": 1e5, "q": 1e-13, "p": 6.0}]
    fits = [solve(many, with_table(usual, table, start), table) for start in starts]
    shared = fits[0][1][1]
    values, (_, _, _, own) = min(fits, key=lambda fit: fit[1][2])
    print(f"{name:10s} {engine:7s} {table:15s} tested {shared:6.1%} -> {own:6.1%}", flush=True)
    has_own = kept is not None and kept != usual.tables.get(table)
    if write and (shared > own + (0.0 if has_own else CLEARLY) or kind in ONLY_TIMED):
        path = KERNELS / f"{name}.toml"
        no_step = (engine, table) == UNTUNED or f"[timed.{engine}.{table}]" in path.read_text()
        where = IN_STEPS[engine] if kind == "fp8-block" else f"{'timed' if no_step else 'engine'}.{engine}."
        write_table(path, f"{where}{table}", {**like, **values})


def usual_constants(chip: Chip, engine: str = kernel_scores.ENGINE) -> KernelConstants:
    return catalog.kernel_constants(catalog.engine(engine), chip)


def chosen(only: list[str]) -> list[tuple[str, tuple[str, str]]]:
    return [(name, table) for name, table in TABLES.items() if name in only or not only]


def main(arguments: list[str]) -> None:
    folder, write = Path(arguments[0]), "--write" in arguments
    only = [word for word in arguments[1:] if not word.startswith("--")]
    if "--engines" in arguments:
        fit_engines(folder, write, only)
        return
    for name, (key, tables) in chosen(only):
        chip, path = catalog.chip(key), KERNELS / f"{name}.toml"
        own = tomllib.loads(path.read_text())
        for form, kind in product(TAILS, ("bf16", "fp8", "nvfp4")):
            rows = Rows(folder / f"{tables}_{TAILS[form]}.csv.gz", form, kind, chip) if kind in own.get(form, {}) else None
            if rows and len(rows.records):
                values, (f0, t0, f1, t1) = solve([rows], usual_constants(chip), f"{form}.{kind}")
                print(f"{name:10s} {form}.{kind:8s} fitted {f0:6.1%} -> {f1:6.1%}   tested {t0:6.1%} -> {t1:6.1%}", flush=True)
                if write:
                    write_table(path, f"{form}.{kind}", values)


if __name__ == "__main__":
    main(sys.argv[1:])
