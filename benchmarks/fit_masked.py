"""Fit attention that masks whole matrices of scores: ``python benchmarks/fit_masked.py DATA_DIR``.

TensorRT-LLM's block-sparse prefill on chips without a kernel for it (H100, L40S). Fitted are rows whose hash is even, by least
squares on relative errors, weighted down where they are large; printed are the constants of ``[masked]`` in ``catalog/kernels``
and the medians of both halves. Products are priced as they are.
"""

import sys
from pathlib import Path

import numpy as np

from commtax import catalog
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.spellings import dtype_named
from commtax_lab.published.tables import read
from commtax_lab.scoring.kernel_scores import price_kernels

SCALE = 0.05


def fit(path: Path) -> None:
    header, lines = read(path)
    lines = [line for line in lines if line[header.index("framework")] == "trtllm"]
    table = kernel_tables.read(path.name, header, lines)
    assert table.chip is not None
    constants = catalog.kernel_constants(catalog.engine("trtllm"), table.chip)
    products, terms = np.zeros(table.count), np.zeros((table.count, 4))
    for words, mask in table.groups():
        named = {**words, **{c: dtype_named(words[c]) or words[c] for c in ("dtype", "stored")}, "written": words["dtype"]}
        *others, whole = table.kind.make(named, {name: sizes[mask] for name, sizes in table.sizes.items()})
        products[mask], s = price_kernels(others, table.chip, constants)[0], whole.shape
        columns = (1.0, s.tokens * s.heads, s.pairs / table.chip.memory_Bps, s.pairs * s.heads / table.chip.memory_Bps)
        terms[mask] = np.stack(np.broadcast_arrays(*columns), axis=1)
    measured, even = table.sizes["seconds"], table.fitted()
    left, weights, values = (measured - products) / measured, np.ones(table.count), np.zeros(4)
    for _ in range(60):
        rows = terms / measured[:, None] * weights[:, None]
        values = np.maximum(np.linalg.lstsq(rows[even], (left * weights)[even], rcond=None)[0], 1e-13)
        error = (terms @ values + products) / measured - 1
        weights = (1 + (error / SCALE) ** 2) ** -0.25
    medians = [float(np.median(np.abs(error[half]))) for half in (even, ~even)]
    named = ", ".join(f"{name} = {value:.4g}" for name, value in zip(("t0", "head", "wp", "wh"), values, strict=True))
    print(f"{path.name}: {{ {named} }}  fitted {medians[0]:.1%}, tested {medians[1]:.1%}")


if __name__ == "__main__":
    for system in ("h100_sxm", "l40s"):
        fit(Path(sys.argv[1]) / "kernels_more" / f"{system}_msa_context_module.csv.gz")
