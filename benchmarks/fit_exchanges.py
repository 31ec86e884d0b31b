"""Fit and test constants of kernels that carry tokens to experts: ``python benchmarks/fit_exchanges.py DATA_DIR [--write]``.

Inside a host, on published tables: fitted are rows whose hash is even, a fixed time, one for each expert, the rates of the link
and of one multiprocessor, and the host's time, each way, by engine and family; generic ones are of all. Each constant is tried
larger and smaller, by ever finer factors, for the least soft-L1 sum. Device times (SGLang's) also give the paths of
``catalog/exchanges``. Exchanges across hosts and in a rack are held by ``tests/cost/test_experts.py``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fit_experts import CHIPS
from fitting import KERNELS, Array, Constants, Descent, kernel_groups, leave_out, miss, write_table

from commtax import catalog
from commtax.catalog import physics
from commtax.cost.layer_forms import exchange
from commtax.verbs.expecting import expect

TAILS = ("wideep_deepep_ll", "wideep_deepep_normal", "moe_a2a")
START = {"t0": 2e-5, "te": 1e-8, "link_Bps": 3e11, "sm_Bps": 1.5e10, "host": 2e-5}
HELD_BY_LINK = ("exchange_low", "exchange_low2")  # whose rate goes with the link's; in bulk it is the kernels' own
Key = tuple[str, str, str]  # chip, engine, form
Rows = list[tuple[Any, Any, Any]]  # kernel of one way, seconds, fitted
Tables = dict[str, Constants]
LOSS = Descent(scale=0.1).loss
FEWEST, RANKS = 256, 8
MOST = {"link_Bps": 9e11, "sm_Bps": physics.KERNEL["sm_Bps"].high}
"""No faster than an NVLink of the fifth generation carries one way; multiprocessors that hold no row up are as fast as may be."""


def gather(folder: Path) -> dict[Key, Rows]:
    """Rows by chip, engine and form; kernels with their own times, where a row has one for each way."""
    found: dict[Key, Rows] = defaultdict(list)
    for group in kernel_groups(folder, CHIPS, TAILS):
        columns = [group.sizes[name] for name in group.kind.times_us] or [group.seconds]
        for kernel, seconds in zip(group.make(), columns, strict=True):
            found[group.chip.key, group.words["framework"], kernel.form].append((kernel, seconds, group.fitted))
    return found


def errors(rows: Rows, tables: Tables, fitted: bool | None) -> Array:
    """Errors of the logarithm on rows that were fitted, or not, or of both kinds."""
    out = []
    for kernel, seconds, even in rows:
        took = sum(exchange(kernel, tables[kernel.stored], 1e13, 1.0))
        out.append(np.log(took / seconds)[slice(None) if fitted is None else even == fitted])
    return np.concatenate(out)


def fit(rows: Rows, host: bool = True) -> Tables:
    """Constants of each way; without ``host`` those of the device alone."""
    return {way: _fit_way(own, way, host) for way, _, own in leave_out(rows, lambda row: row[0].stored)}


def _fit_way(rows: Rows, way: str, host: bool) -> Constants:
    table = dict(START) if host else {**START, "host": 0.0}
    best = LOSS(errors(rows, {way: table}, True))
    for factor in (3.0, 1.6, 1.25, 1.1, 1.04):
        for _ in range(12):
            before = best
            for name, up in product(START, (factor, 1 / factor)):
                tried = {**table, name: table[name] * up}
                if all(tried[n] <= most for n, most in MOST.items()) and (now := LOSS(errors(rows, {way: tried}, True))) < best:
                    table, best = tried, now
            if best >= before * (1 - 1e-4):
                break
    return {n: float(f"{v:.4g}") for n, v in table.items()}


def family_of(chip: str) -> str:
    return catalog.chip(chip).family


def pool(found: dict[Key, Rows]) -> dict[tuple[str, str], Rows]:
    """Rows of each section of each file of constants."""
    pooled: dict[tuple[str, str], Rows] = defaultdict(list)
    for (chip, engine, form), rows in found.items():
        for file, section in product((family_of(chip), "generic"), (f"engine.{engine}.{form}", form)):
            pooled[file, section] += rows
    forms = {form for _, _, form in found}
    for file, form in product({file for file, _ in pooled}, forms):  # a family with some of the forms has all of them
        pooled[file, form] = pooled[file, form] or pooled["generic", form]
    return pooled


def tell(what: str, off: Array) -> None:
    print(f"{what:52s} {len(off):5d} rows  median {miss(np.abs(off)):6.1%}  nine of ten {miss(np.abs(off), 0.9):6.1%}", flush=True)


def moved(table: Constants, form: str, engine: str, of: list[str], chip: str) -> Constants:
    """Constants of some chips for another one: a rate that the link holds goes with it, what waits for other ranks as in an
    all-reduce of a few bytes, which does little else: kernels' fixed times, and bytes that a multiprocessor has under way."""
    there = np.mean([catalog.cluster(f"8x{one}").intra.bandwidth_Bps for one in of])
    ratio = catalog.cluster(f"8x{chip}").intra.bandwidth_Bps / there if form in HELD_BY_LINK else 1.0
    waits = smallest_s(engine, chip) / np.mean([smallest_s(engine, one) for one in of])
    held = {"t0": table["t0"] * waits, "te": table["te"] * waits, "sm_Bps": table["sm_Bps"] / waits}
    return {**table, **held, "link_Bps": table["link_Bps"] * ratio}


def smallest_s(engine: str, chip: str) -> float:
    """An all-reduce of the fewest bytes among the GPUs of a host by the engine's own kernels, as other tables had it."""
    host = {"gb200": "b200-sxm"}.get(chip, chip)  # whose host of eight has the same GPUs and links
    return float(expect("all-reduce", catalog.cluster(f"8x{host}"), nbytes=FEWEST, ranks=RANKS, library=engine).seconds)


def left_out(found: dict[Key, Rows], chip: str) -> Array:
    """Errors on a chip that nothing was fitted on: by its family, or by the other one where it is alone in it."""
    off = []
    for (own, engine, form), rows in found.items():
        others = [c for c, e, f in found if c != chip and (e, f) == (engine, form)]
        near = [c for c in others if family_of(c) == family_of(chip)] or others
        if own == chip and near:
            tables = fit([row for c in near for row in found[c, engine, form]])
            off.append(errors(rows, {way: moved(t, form, engine, near, chip) for way, t in tables.items()}, None))
    return np.concatenate(off)


def main(arguments: list[str]) -> None:
    found, all_off = gather(Path(arguments[0])), []
    for (file, section), rows in pool(found).items():
        tables = fit(rows)
        off = errors(rows, tables, False)
        tell(f"{file} {section}", off)
        if section.startswith("engine.") and file != "generic":
            all_off.append(off)
        if "--write" in arguments:
            write_table(KERNELS / f"{file}.toml", section, tables)
    for family, form in product(("hopper", "blackwell"), ("exchange_low", "exchange_high")):
        like = [some for (chip, *run), some in found.items() if (family_of(chip), *run) == (family, "sglang", form)]
        rows = [row for some in like for row in some]
        tables = fit(rows, host=False)
        tell(f"device alone: {family} {form}", errors(rows, tables, False))
        print(tables)
    tell("INSIDE A HOST, rows not fitted", np.concatenate(all_off))
    for chip in sorted({chip for chip, _, _ in found}):
        tell(f"INSIDE A HOST, {chip} left out", left_out(found, chip))


if __name__ == "__main__":
    main(sys.argv[1:])
