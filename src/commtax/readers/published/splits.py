"""Which rows constants were fitted on: rules that anyone can apply to a row, so that fit and test never mix.

Libraries: sizes that are an even power of two of the tables listed under ``fitted`` in ``catalog/libraries``. Kernels and
the H200 sweep: the first byte of a SHA-256 is even. Whole steps: by model. Training: by source and size. Serving:
``serving.is_fitted``; the H200 sweep: ``sweep.is_fitted``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from commtax.catalog.libraries import library
from commtax.readers.published.rows import Row, cell, lower

TRAINING_GPUS = 64


def even_hash(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def even_hashes(keys: Iterable[str]) -> Any:
    return np.fromiter((even_hash(key) for key in keys), dtype=bool)


def even_power(nbytes: float) -> bool:
    """Whether the size is nearest to an even power of two: 512 is 2^9 and tests, 1,024 is fitted."""
    return round(float(np.log2(nbytes))) % 2 == 0


def collective_is_fitted(source: str, system: str, name: str, version: str, op: str, nbytes: float) -> bool:
    if not even_power(nbytes):
        return False
    tables = library(name).fitted
    return any(t.table in source and system in t.systems and version in t.versions and op in t.ops for t in tables)


def training_is_fitted(row: Row) -> bool:
    """llm-foundry's bf16 rows on at most 64 GPUs."""
    small = float(cell(row, "gpus") or 0) <= TRAINING_GPUS
    return small and "llm-foundry" in lower(row, "source") and cell(row, "precision").endswith("bf16")


def inference_is_fitted(row: Row) -> bool:
    """gpt-fast: Llama-2-7B and Llama-3.1-70B in bf16. vLLM of 2023: times per token of Llama-2-70B at batch 1."""
    source, model = lower(row, "source_id", "source"), lower(row, "model")
    if "gpt-fast" in source:
        return cell(row, "precision") == "bf16" and model in ("llama-2-7b", "llama-3.1-70b")
    return "splitwise" in source and model == "llama2-70b" and cell(row, "batch") == "1" and cell(row, "metric") == "tpot"
