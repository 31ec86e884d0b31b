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
from numpy.typing import NDArray

from commtax_lab.published.collective_rows import even_power

ROWS = Path(__file__).parent / "amd" / "collectives.csv"
EVERY = "vllm/pull/19744"  # of whose four GPUs there are too few sizes to leave some out
LAUNCH_S, HOP_S = 12.5e-6, 0.16e-6  # of eight MI300X, which no group of MI355X contradicts
Array = NDArray[np.float64]


def table(keep: Callable[[dict[str, str]], bool]) -> tuple[Array, Array, Array, Array]:
    """Bytes, ranks, seconds and whether each was launched from Python, of the rows that are kept."""
    rows = [r for r in csv.DictReader(ROWS.open()) if keep(r) and (EVERY in r["source"] or even_power(float(r["bytes"])))]
    number = lambda name: np.array([float(r[name]) for r in rows])  # noqa: E731
    return number("bytes"), number("gpus"), number("us") * 1e-6, np.array([float(r["how"] == "eager") for r in rows])


def fitted(start: list[float], errors: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Constants (their logarithms moved by Levenberg-Marquardt, soft-L1 at 5 %) and the log errors that are left."""
    x, damping = np.log(np.array(start)), 1e-2
    left = errors(np.exp(x))
    for _ in range(400):
        slope = np.array([(errors(np.exp(x + 1e-5 * one)) - left) / 1e-5 for one in np.eye(len(x))]).T
        weight = 1 / np.sqrt(1 + (left / 0.05) ** 2)
        normal = slope.T @ (slope * weight[:, None])
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope.T @ (weight * left))
        tried = errors(np.exp(x + np.clip(step, -0.5, 0.5)))
        if np.sum(np.hypot(1, tried / 0.05)) < np.sum(np.hypot(1, left / 0.05)):
            x, left, damping = x + np.clip(step, -0.5, 0.5), tried, max(damping / 3, 1e-8)
        else:
            damping = min(damping * 4, 1e8)
    return np.exp(x), left


def told(name: str, constants: dict[str, float], left: Array) -> None:
    off = np.abs(np.expm1(left))
    values = ", ".join(f"{key} {value:.4g}" for key, value in constants.items())
    print(f"{name}: {values}; median {np.median(off):.1%}, 9 in 10 within {np.quantile(off, 0.9):.1%}, {len(off)} rows")


def ring(x: Array, nbytes: Array, ranks: Array, slower: float = 1.0) -> Array:
    """Launch and hops, bytes over the group's links, and the root term."""
    sent = 2 * (ranks - 1) / ranks * nbytes
    return LAUNCH_S + HOP_S * (ranks - 1) + slower * (sent / (x[0] * (ranks - 1) / 7) + x[1] * np.sqrt(sent))


def rccl() -> None:
    """Groups of 2, 4 and 8 decide rate, root and host; the others only how much slower their rings are."""
    here = lambda r: (r["gpu"], r["library"], r["hosts"], r["collective"]) == ("MI355X", "RCCL", "1", "all_reduce")  # noqa: E731
    nbytes, ranks, took, eager = table(lambda r: here(r) and float(r["bytes"]) >= 2**20)
    even = np.isin(ranks, (2, 4, 8))
    found, left = fitted(
        [4e11, 5e-9, 16e-6], lambda x: np.log((ring(x, nbytes[even], ranks[even]) + x[2] * eager[even]) / took[even])
    )
    told("RCCL, MI355X", dict(zip(("bandwidth_Bps", "sqrt_s", "host_s"), found, strict=True)), left)
    for odd in (3, 5, 6, 7):
        at = ranks == odd
        slower, left = fitted(
            [3.0], lambda c, at=at: np.log((ring(found, nbytes[at], ranks[at], c[0]) + found[2] * eager[at]) / took[at])
        )
        told(f"  rings of {odd}", {"contention": float(slower[0])}, left)


def quick_reduce(level: str, share: float) -> None:
    """Two steps: fixed times of 2 and of 4 GPUs, the part of them that bytes run beside, the mesh's rate for what travels, and how
    much slower four GPUs move it. All sizes: an engine leaves the small ones to others, but the kernel has a time for them."""
    nbytes, ranks, took, _ = table(lambda r: r["library"] == f"quickreduce-{level}")
    four = ranks == 4

    def errors(x: Array) -> Array:
        sent = 2 * (ranks - 1) / ranks * nbytes * share
        wire = sent / (x[1] * (ranks - 1) / 7) * np.where(four, x[2], 1.0)
        return np.asarray(np.log((np.where(four, x[3], x[0]) + np.hypot(x[4], wire)) / took))

    found, left = fitted([10e-6, 3e11, 1.1, 12e-6, 8e-6], errors)
    names = ("launch_2_s", "bandwidth_Bps", "contention_4", "launch_4_s", "beside_s")
    told(f"QuickReduce {level}", dict(zip(names, found, strict=True)), left)


def aiter() -> None:
    """One step on two MI300X: a launch and one link."""
    nbytes, _, took, _ = table(lambda r: "aiter" in r["library"] and r["gpu"] == "MI300X")
    found, left = fitted([9e-6, 3e11], lambda x: np.log((x[0] + nbytes / (x[1] / 7)) / took))
    told("aiter, 2 MI300X", dict(zip(("launch_s", "bandwidth_Bps"), found, strict=True)), left)


if __name__ == "__main__":
    rccl()
    for bits, name in ((16, "fp"), (8.5, "int8"), (6.5, "int6"), (4.5, "int4")):  # each 32 values share 16 bits
        quick_reduce(name, bits / 16)
    aiter()
