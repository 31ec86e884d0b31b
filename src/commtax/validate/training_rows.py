"""A row of published training runs as a question: which model, cluster and plan it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.units import MAX_COUNT

Row = Mapping[str, str]
CHIPS = {
    "a100-80gb-sxm": "a100-80-sxm",
    "a100-80gb": "a100-80-sxm",
    "a100-40gb": "a100-40-sxm",
    "h100-80gb": "h100-sxm",
    "h100-96gb-hbm2e-500w": "h100-96-hbm2e",
    "h200-sxm": "h200-sxm",
    "b200-sxm": "b200-sxm",
}
GPUS_PER_HOST = 8


def question(row: Row) -> dict[str, Any]:
    """Arguments of ``train_bill`` for one row; a row that cannot be priced raises ValueError with the reason."""
    source, note = row["source"].lower(), row.get("note", "").lower()
    gpus, dp, pp = _whole(row, "gpus"), _whole(row, "dp", 1), _whole(row, "pp", 1)
    per_replica = _whole(row, "global_batch") // dp
    micro = _whole(row, "microbatch", 1)
    chunks = _whole(row, "interleave", 1)
    titan = "torchtitan" in source
    if titan and pp > 1:
        micro = 1  # what the row calls a microbatch is a replica's batch; its pipeline cuts it into single sequences
    words: dict[str, Any] = {
        "model": _model(row),
        "cluster": _cluster(row["gpu_type"], gpus, source),
        **{axis: _whole(row, axis, 1) for axis in ("tp", "pp", "dp", "ep", "cp")},
        "batch": per_replica,
        "micro_batch": min(micro, per_replica),
        "context": _whole(row, "seq"),
        "recompute": row.get("recompute", "none").split("+")[0].split("-")[0] or "none",
        "engine": _engine(source),
        "dtype": "fp8" if "fp8" in row.get("precision", "") else "",
    }
    if "+sp" in row.get("recompute", "").lower():
        words["sequence_parallel"] = True
    if pp > 1 and chunks > 1:
        words |= {"schedule": "interleaved", "chunks": chunks}
    elif "interleaved" in note:
        raise Refusal("the number of chunks of the interleaved schedule is not published")
    if titan and "eager" in note:
        words["eager"] = True
    if "llm-foundry" in source:
        words["eager"] = True
    if "async tp" in note or "asynctp" in note:
        words["async_axes"] = ("dp", "tp")
    if "shard_grad_op" in note:
        words["zero"] = 2
    return words


def _whole(row: Row, name: str, default: int | None = None) -> int:
    text = row.get(name, "")
    if text == "" and default is not None:
        return default
    try:
        found = int(float(text))
    except (ValueError, OverflowError):  # "1e999" is a float, and no whole number
        raise Refusal(f"{name} is not given") from None
    if not 1 <= found <= MAX_COUNT:
        raise Refusal(f"{name} is no number of anything")
    return found


def _engine(source: str) -> str:
    if "torchtitan" in source:
        return "torchtitan"
    if "llm-foundry" in source:
        return "llm-foundry"
    return "megatron-2021" if "arxiv:2104" in source or "arxiv:2205" in source else "megatron"


def _cluster(gpu: str, gpus: int, source: str) -> Any:
    name = gpu.lower().replace("_", "-")
    if name not in CHIPS:
        raise Refusal(f"GPU '{gpu}' is not in the catalogue of training runs")
    hosts = max(1, -(-gpus // GPUS_PER_HOST))
    inter = "ib-hdr" if "arxiv:2104" in source or "arxiv:2205" in source else ""  # Selene: eight HDR NICs a host
    return catalog.cluster(f"{hosts}x{min(gpus, GPUS_PER_HOST)}x{CHIPS[name]}", inter=inter)


def _model(row: Row) -> Model:
    """A bundled model by name, or a GPT of the row's shape."""
    name = row["model"].lower()
    if name in catalog.model_keys():
        return replace(catalog.model(name), max_len=_whole(row, "seq"))
    sizes = {k: _whole(row, k) for k in ("layers", "hidden", "heads", "vocab", "seq")}
    shape = {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": sizes["hidden"],
        "n_layer": sizes["layers"],
        "n_head": sizes["heads"],
        "n_inner": 4 * sizes["hidden"],
        "vocab_size": sizes["vocab"],
        "n_positions": sizes["seq"],
        "tie_word_embeddings": True,
        "torch_dtype": "float16" if row.get("precision") == "fp16" else "bfloat16",
    }
    return from_config(shape, name)
