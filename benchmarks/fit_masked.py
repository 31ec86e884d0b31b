"""Fit attention that masks whole matrices of scores: ``python benchmarks/fit_masked.py DATA_DIR``.

TensorRT-LLM's block-sparse prefill on chips without a kernel for it (H100, L40S). Fitted are rows whose hash is even, by least
squares on relative errors, weighted down where they are large; printed are the constants of ``[masked]`` in ``catalog/kernels``
and the medians of both halves. Products are priced as they are.
"""

import sys
from pathlib import Path

import numpy as np
from fitting import Array, KernelGroup, kernel_groups

from commtax import catalog
from commtax_lab.published.scoring.kernel_scores import price_kernels

SYSTEMS, TAIL, ENGINE = ("h100_sxm", "l40s"), "msa_context_module", "trtllm"
NAMES = ("t0", "head", "wp", "wh")
SCALE = 0.05


def terms_of(group: KernelGroup) -> tuple[Array, Array]:
    """Seconds of products, and what each constant is multiplied by."""
    *others, whole = group.make()
    constants = catalog.kernel_constants(catalog.engine(ENGINE), group.chip)
    products, s = price_kernels(others, group.chip, constants)[0], whole.shape
    columns = (1.0, s.tokens * s.heads, s.pairs / group.chip.memory_Bps, s.pairs * s.heads / group.chip.memory_Bps)
    return np.broadcast_to(products, len(group.seconds)), np.stack(np.broadcast_arrays(*columns), axis=1)


def fit(folder: Path, system: str) -> None:
    groups = [group for group in kernel_groups(folder, (system,), (TAIL,)) if group.words["framework"] == ENGINE]
    products, terms = (np.concatenate(parts) for parts in zip(*map(terms_of, groups), strict=True))
    measured, even = (np.concatenate([getattr(group, name) for group in groups]) for name in ("seconds", "fitted"))
    left, weights, values = (measured - products) / measured, np.ones(len(measured)), np.zeros(4)
    for _ in range(60):
        rows = terms / measured[:, None] * weights[:, None]
        values = np.maximum(np.linalg.lstsq(rows[even], (left * weights)[even], rcond=None)[0], 1e-13)
        error = (terms @ values + products) / measured - 1
        weights = (1 + (error / SCALE) ** 2) ** -0.25
    medians = [float(np.median(np.abs(error[half]))) for half in (even, ~even)]
    named = ", ".join(f"{name} = {value:.4g}" for name, value in zip(NAMES, values, strict=True))
    print(f"{system}_{TAIL}.csv.gz: {{ {named} }}  fitted {medians[0]:.1%}, tested {medians[1]:.1%}")


if __name__ == "__main__":
    for name in SYSTEMS:
        fit(Path(sys.argv[1]), name)
