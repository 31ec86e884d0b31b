"""Which rows constants were fitted on: rules that anyone can apply to a row, so that fit and test never mix.

Libraries: sizes that are an even power of two of the tables listed under ``fitted`` in ``catalog/libraries``. Kernels and
the H200 sweep: the first byte of a SHA-256 is even. Whole steps: by model. Training: by source and size. Serving:
``serving_rows.is_fitted``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from commtax.catalog.fabric import fitted_tables

STEP_MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "llama-2-13b", "qwen2.5-32b")
SHARD_MODELS = ("llama-3.1-8b", "llama-3.2-1b", "llama-2-13b")
NOT_IN_KEY = ("median_s", "samples_s", "sm_MHz")
TRAINING_GPUS = 64


def even_hash(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def even_hashes(keys: Iterable[str]) -> Any:
    return np.fromiter((even_hash(key) for key in keys), dtype=bool)


def even_power(nbytes: float) -> bool:
    """Whether the size is nearest to an even power of two: 512 is 2^9 and tests, 1,024 is fitted."""
    return round(float(np.log2(nbytes))) % 2 == 0


def collective_is_fitted(source: str, system: str, library: str, version: str, op: str, nbytes: float) -> bool:
    if not even_power(nbytes):
        return False
    return any(
        table["table"] in source and system in table["systems"] and version in table["versions"] and op in table["ops"]
        for table in fitted_tables(library)
    )


def own_is_fitted(row: Mapping[str, Any]) -> bool:
    """A row of benchmarks/h200."""
    if row["kind"] == "step":
        return row["model"] in (SHARD_MODELS if row.get("engine") == "torch" else STEP_MODELS)
    kept = {name: value for name, value in row.items() if name not in NOT_IN_KEY}
    return even_hash(json.dumps(kept, sort_keys=True))


def training_is_fitted(row: Mapping[str, str]) -> bool:
    """llm-foundry's bf16 rows on at most 64 GPUs."""
    small = float(row.get("gpus") or 0) <= TRAINING_GPUS
    return small and "llm-foundry" in (row.get("source") or "").lower() and (row.get("precision") or "").endswith("bf16")


def inference_is_fitted(row: Mapping[str, str]) -> bool:
    """gpt-fast: Llama-2-7B and Llama-3.1-70B in bf16. vLLM of 2023: times per token of Llama-2-70B at batch 1."""
    source, model = (row.get("source_id") or row.get("source") or "").lower(), (row.get("model") or "").lower()
    if "gpt-fast" in source:
        return (row.get("precision") or "") == "bf16" and model in ("llama-2-7b", "llama-3.1-70b")
    return "splitwise" in source and model == "llama2-70b" and row.get("batch") == "1" and row.get("metric") == "tpot"
