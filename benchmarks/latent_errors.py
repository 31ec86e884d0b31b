"""Errors of latent and sparse attention: ``python benchmarks/latent_errors.py DATA_DIR FILE [--left-out]``, a table in Markdown.

Rows that were not fitted, by kind, chip and engine; with ``--left-out`` also every row of a chip whose constants come from the
others of its family, or, where it is alone in it, from another family with the chip's own datasheet.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fit_latent import Job, fit_family, logs, prepared
from latent_store import FAMILIES, Store

from commtax import catalog
from commtax.catalog.kernel_constants import rescale_to_chip

MODULES = ("mla", "dsa", "msa", "dsv4_csa", "dsv4_hca")
TAILS = ["context_mla", "generation_mla", "mla_bmm", *(f"{m}_{p}_module" for m in MODULES for p in ("context", "generation"))]
ENGINES = ("trtllm", "vllm", "sglang")
DONORS = {"ampere": (("ada", ""),), "ada": (("hopper", ""), ("ampere", "trtllm")), "hopper": (("blackwell", ""),)}
"""Families that a family alone of its kind would be priced with, and the engine whose kernels a donor has: the last wins."""
CHIPS = {"ampere": "a100-80-sxm", "ada": "l40s", "hopper": "h100-sxm", "blackwell": "b200-sxm"}
"""The chip that stands for a family."""
Errors = dict[tuple[str, str], np.ndarray]


def errors(folder: Path, store: Store, system: str, both: bool) -> Errors:
    """Absolute errors by kind of table and engine: of rows not fitted, or of all."""
    found: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    for tail in TAILS:
        for engine in ENGINES:
            job = Job((tail,), engine, ())
            for even in (False, True) if both else (False,):
                if groups := prepared(folder, (system,), job, store, even, most=10**9):
                    found[tail, engine].append(np.abs(np.expm1(logs(groups, job, store))))
    return {key: np.concatenate(parts) for key, parts in found.items()}


def transferred(family: str) -> Store:
    """Constants as if a family had not been measured."""
    store = Store()
    chips = [system.replace("_", "-") for system in FAMILIES[family]]
    for key in [key for key in store.tables if key[0] == family or key[0] in chips]:
        del store.tables[key]
    for donor, engine in DONORS[family]:
        for (file, own), tables in list(store.tables.items()):
            if file == donor:
                there, here = catalog.chip(CHIPS[donor]), catalog.chip(CHIPS[family])
                moved = {name: rescale_to_chip(c, there, here) for name, c in tables.items()}
                store.tables.setdefault((family, engine or own), {}).update(moved)
    return store


def without(folder: Path, family: str, system: str) -> Store:
    """Constants of a family that one of its chips had no part in."""
    store = Store()
    for key in [key for key in store.tables if key[0] in (family, system.replace("_", "-"))]:
        del store.tables[key]
    store.tables[system.replace("_", "-"), ""] = {"host.bf16": {"slower": 1.0}}  # nor is its host known
    others = [s for s in FAMILIES[family] if s != system]
    fit_family(folder, store, family, others, False, lambda line: print(f"without {system}: {line}", flush=True))
    return store


def left_out(folder: Path) -> Iterator[tuple[str, Errors]]:
    for family, systems in FAMILIES.items():
        for system in systems:
            store = without(folder, family, system) if len(systems) > 1 else transferred(family)
            yield system, errors(folder, store, system, both=True)


def lines(system: str, found: Errors) -> Iterator[str]:
    for group, of_latents in (("latent attention", True), ("sparse, block and compressed attention", False)):
        rows = [e for (tail, _), e in found.items() if ("mla" in tail) == of_latents]
        if rows:
            every = np.concatenate(rows)
            yield f"| {system} | **{group}** | all | {np.median(every):.1%} | {np.quantile(every, 0.9):.0%} | {len(every)} |"
    for (tail, engine), e in found.items():
        yield f"| {system} | {tail} | {engine} | {np.median(e):.1%} | {np.quantile(e, 0.9):.0%} | {len(e)} |"


def main(arguments: list[str]) -> None:
    folder, out = Path(arguments[0]), Path(arguments[1])
    head = ["| chip | table | engine | median | p90 | rows |", "|---|---|---|---|---|---|"]
    text = ["Rows not fitted:", "", *head]
    for system in (s for systems in FAMILIES.values() for s in systems):
        text += lines(system, errors(folder, Store(), system, both=False))
    out.write_text("\n".join(text) + "\n")
    if "--left-out" in arguments:
        text += ["", "Chips left out:", "", *head]
        for system, found in left_out(folder):
            text += lines(system, found)
            out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
