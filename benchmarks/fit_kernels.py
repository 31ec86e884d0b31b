"""Fit the constants of kernels on published tables: ``python benchmarks/fit_kernels.py DATA_DIR [--write]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others (``readers.published.kernels``): products with n and k of
512 and more, attention without a window and with a bf16 or fp8 cache each at its own constants. Levenberg-Marquardt on log
errors with soft-L1 weights from where the constants are. With ``--write`` the files under ``catalog/kernels`` are changed in place.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

import commtax
from commtax import catalog
from commtax.readers.published import kernels as kernel_tables
from commtax.readers.published.kernel_kinds import KINDS
from commtax.readers.published.tables import read
from commtax.spec import Chip, KernelConstants
from commtax.validate import kernels

FOLDER = Path(commtax.__file__).parent / "catalog" / "kernels"
TABLES = {  # a file of constants: the chip and the tables that it is fitted on
    "ampere": ("a100-80-sxm", "kernels/a100_sxm"),
    "hopper": ("h100-sxm", "kernels/h100_sxm"),
    "blackwell": ("b200-sxm", "kernels/b200_sxm"),
    "b300-sxm": ("b300-sxm", "kernels_more/b300_sxm"),
    "ada": ("l40s", "kernels/l40s"),
    "xe2": ("arc-pro-b60", "kernels_more/b60"),
}
FRAMEWORK = "vllm"  # where a table holds several
SCALE = 0.015
TAILS = {"gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention"}
MOST = 6000  # rows of one fit
AT_MOST_1 = re.compile(r"^e[bp]\d*$")


class Rows:
    """Rows of one file and number format that the constants of one table answer."""

    def __init__(self, path: Path, form: str, kind: str, chip: Chip) -> None:
        header, lines = read(path)
        if "framework" in header:
            lines = [line for line in lines if line[header.index("framework")] == FRAMEWORK]
        text = {c: np.array([line[i] for line in lines], dtype=object) for i, c in enumerate(header)}
        column = {"gemm": "gemm_dtype", "prefill": "kv_cache_dtype", "decode": "kv_cache_dtype"}[form]
        keep = text[column] == {"bf16": "bfloat16"}.get(kind, kind)
        if form == "gemm":
            keep &= (text["n"].astype(float) >= 512) & (text["k"].astype(float) >= 512)
        elif "window_size" in text:
            keep &= text["window_size"] == "0"
        text = {c: v[keep] for c, v in text.items()}
        table = kernel_tables.read(path.name, list(text), list(zip(*text.values(), strict=True)))
        self.records = kernels.answers(table, "")
        self.form, self.chip, self.kind = form, chip, kind
        self.numbers = table.sizes
        self.even = self.records.fitted

    def parts(self, even: bool) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        chosen = np.flatnonzero(self.even == even)
        chosen = chosen[np.linspace(0, len(chosen) - 1, min(MOST, len(chosen))).astype(int)]
        dims = self.numbers.get("head_dim", np.zeros(len(self.even)))
        groups = [chosen[dims[chosen] == d] for d in np.unique(dims[chosen])]
        return [({c: v[g] for c, v in self.numbers.items()}, self.records.measured[g]) for g in groups]

    def logs(self, constants: KernelConstants, parts: list[tuple[dict[str, np.ndarray], np.ndarray]]) -> np.ndarray:
        dtype = self.kind if self.form == "gemm" else "bf16"
        words = {"dtype": dtype, "stored": self.kind, "framework": FRAMEWORK}
        made = [(KINDS[TAILS[self.form]].make(words, x), t) for x, t in parts]
        return np.concatenate([np.log(kernels.priced(one, self.chip, constants)[0] / t) for one, t in made])


def solve(rows: Rows, constants: KernelConstants, name: str) -> tuple[dict[str, float], list[float]]:
    table = dict(constants.tables[name])
    free = [n for n, v in table.items() if v > 0]
    start = np.array([table[n] for n in free])
    high = np.array([np.log(0.999 / table[n]) if AT_MOST_1.match(n) else 3.0 for n in free])
    low = np.array([np.log(1.0 / table[n]) if n == "p" else -3.0 for n in free])
    fit, test = rows.parts(True), rows.parts(False)

    def at(z: np.ndarray) -> KernelConstants:
        moved = dict(zip(free, (start * np.exp(z)).tolist(), strict=True))
        return replace(constants, tables={**constants.tables, name: {**table, **moved}})

    z, damping = np.clip(np.zeros(len(free)), low, high), 1e-2
    r = rows.logs(at(z), fit)
    before = [float(np.median(np.abs(np.expm1(rows.logs(at(z), p))))) for p in (fit, test)]
    for _ in range(30):
        jac = np.stack([(rows.logs(at(z + 1e-3 * e), fit) - r) / 1e-3 for e in np.eye(len(z))])
        w = 1 / np.sqrt(1 + (r / SCALE) ** 2)
        a, b = (jac * w) @ jac.T, -(jac * w) @ r
        loss, done = np.sum(np.sqrt(1 + (r / SCALE) ** 2)), True
        for _ in range(7):
            tried = np.clip(z + np.clip(np.linalg.solve(a + damping * np.diag(np.diag(a) + 1e-9), b), -0.5, 0.5), low, high)
            new = rows.logs(at(tried), fit)
            if np.sum(np.sqrt(1 + (new / SCALE) ** 2)) < loss * (1 - 1e-4):
                z, r, damping, done = tried, new, damping / 3, False
                break
            damping *= 4
        if done:
            break
    after = [float(np.median(np.abs(np.expm1(rows.logs(at(z), p))))) for p in (fit, test)]
    return dict(zip(free, (start * np.exp(z)).tolist(), strict=True)), before + after


def put(path: Path, name: str, values: dict[str, float]) -> None:
    text = path.read_text()
    start = text.index(f"[{name}]\n")
    end = text.index("\n[", start)
    block = text[start:end]
    for key, value in values.items():
        block = re.sub(rf"^{key} = .*$", f"{key} = {value:.4g}", block, flags=re.M)
    path.write_text(text[:start] + block + text[end:])


def main(arguments: list[str]) -> None:
    for name, (key, tables) in TABLES.items():
        chip = catalog.chip(key)
        constants = catalog.kernel_constants(catalog.engine(kernels.ENGINE), chip)
        own = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        for form, tail in TAILS.items():
            for kind in ("bf16", "fp8", "nvfp4"):
                if kind not in own.get(form, {}) or (form == "prefill" and kind == "fp8"):
                    continue
                rows = Rows(Path(arguments[0]) / f"{tables}_{tail}.csv.gz", form, kind, chip)
                if not len(rows.records):
                    continue
                values, (f0, t0, f1, t1) = solve(rows, constants, f"{form}.{kind}")
                print(f"{name:10s} {form}.{kind:8s} fitted {f0:6.1%} -> {f1:6.1%}   tested {t0:6.1%} -> {t1:6.1%}", flush=True)
                if "--write" in arguments:
                    put(FOLDER / f"{name}.toml", f"{form}.{kind}", values)


if __name__ == "__main__":
    main(sys.argv[1:])
