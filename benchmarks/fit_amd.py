"""Fit the constants of AMD's collectives on published tables: ``python benchmarks/fit_amd.py``.

Prints what ``catalog/libraries`` holds for the Infinity Fabric mesh: RCCL's ring on 2 to 8 MI355X (rows of 1 MiB and more; the
host's share of a launch from Python is fitted beside it and thrown away), QuickReduce on 2 and 4 MI300X and aiter's kernel on 2.
Fitted are sizes that are an even power of two; those between test them. The rows are in ``benchmarks/amd/collectives.csv``, each
with its source. A group of n GPUs has n - 1 of the seven links, so that a path's rate is a rate of the whole mesh.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fitting import Array, Constants, Descent, miss

from commtax_lab.published.collective_rows import even_power

ROWS = Path(__file__).parent / "amd" / "collectives.csv"
EVERY = "vllm/pull/19744"  # of whose four GPUs there are too few sizes to leave some out
LAUNCH_S, HOP_S = 12.5e-6, 0.16e-6  # of eight MI300X, which no group of MI355X contradicts
DESCENT = Descent(scale=0.05, rounds=400, slope=1e-5, tries=40, gain=0.0)


def table(keep: Callable[[dict[str, str]], bool]) -> tuple[Array, Array, Array, Array]:
    """Bytes, ranks, seconds and whether each was launched from Python, of the rows that are kept."""
    rows = [r for r in csv.DictReader(ROWS.open()) if keep(r) and (EVERY in r["source"] or even_power(float(r["bytes"])))]
    nbytes, ranks, took_us = (np.array([float(r[name]) for r in rows]) for name in ("bytes", "gpus", "us"))
    return nbytes, ranks, took_us * 1e-6, np.array([float(r["how"] == "eager") for r in rows])


def fit(name: str, start: Constants, seconds: Callable[[Array], Array], measured: Array) -> Array:
    """Constants that are nearest to what was measured, printed."""
    first = np.log(list(start.values()))
    found, left = DESCENT.solve(lambda z: np.log(seconds(np.exp(z)) / measured), first, -np.inf, np.inf)
    values = ", ".join(f"{key} {value:.4g}" for key, value in zip(start, np.exp(found), strict=True))
    print(f"{name}: {values}; median {miss(left):.1%}, 9 in 10 within {miss(left, 0.9):.1%}, {len(left)} rows")
    return np.exp(found)


def ring(x: Array, nbytes: Array, ranks: Array, slower: float = 1.0) -> Array:
    """Launch and hops, bytes over the group's links, and the root term."""
    sent = 2 * (ranks - 1) / ranks * nbytes
    return LAUNCH_S + HOP_S * (ranks - 1) + slower * (sent / (x[0] * (ranks - 1) / 7) + x[1] * np.sqrt(sent))


def rccl() -> None:
    """Groups of 2, 4 and 8 decide rate, root and host; the others only how much slower their rings are."""
    here = ("MI355X", "RCCL", "1", "all_reduce")
    kept = table(lambda r: (r["gpu"], r["library"], r["hosts"], r["collective"]) == here and float(r["bytes"]) >= 2**20)
    nbytes, ranks, took, eager = (column[np.isin(kept[1], (2, 4, 8))] for column in kept)
    start = {"bandwidth_Bps": 4e11, "sqrt_s": 5e-9, "host_s": 16e-6}
    found = fit("RCCL, MI355X", start, lambda x: ring(x, nbytes, ranks) + x[2] * eager, took)
    for odd in (3, 5, 6, 7):
        nbytes, ranks, took, eager = (column[kept[1] == odd] for column in kept)
        fit(f"  rings of {odd}", {"contention": 3.0}, lambda c: ring(found, nbytes, ranks, c[0]) + found[2] * eager, took)  # noqa: B023


def quick_reduce(level: str, share: float) -> None:
    """Two steps: fixed times of 2 and of 4 GPUs, the part of them that bytes run beside, the mesh's rate for what travels, and how
    much slower four GPUs move it. All sizes: an engine leaves the small ones to others, but the kernel has a time for them."""
    nbytes, ranks, took, _ = table(lambda r: r["library"] == f"quickreduce-{level}")
    four = ranks == 4

    def seconds(x: Array) -> Array:
        sent = 2 * (ranks - 1) / ranks * nbytes * share
        wire = sent / (x[1] * (ranks - 1) / 7) * np.where(four, x[2], 1.0)
        return np.asarray(np.where(four, x[3], x[0]) + np.hypot(x[4], wire))

    start = {"launch_2_s": 10e-6, "bandwidth_Bps": 3e11, "contention_4": 1.1, "launch_4_s": 12e-6, "beside_s": 8e-6}
    fit(f"QuickReduce {level}", start, seconds, took)


def aiter() -> None:
    """One step on two MI300X: a launch and one link."""
    nbytes, _, took, _ = table(lambda r: "aiter" in r["library"] and r["gpu"] == "MI300X")
    fit("aiter, 2 MI300X", {"launch_s": 9e-6, "bandwidth_Bps": 3e11}, lambda x: x[0] + nbytes / (x[1] / 7), took)


if __name__ == "__main__":
    rccl()
    for bits, name in ((16, "fp"), (8.5, "int8"), (6.5, "int6"), (4.5, "int4")):  # each 32 values share 16 bits
        quick_reduce(name, bits / 16)
    aiter()
