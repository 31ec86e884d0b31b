"""A row of a table of serving runs as the question that ``commtax.simulate`` answers.

The columns are those of published end-to-end runs: engine, version, model, system, quantisation, lengths, concurrency,
sizes of the plan, mean TTFT and TPOT in milliseconds. Absent columns are taken as empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from commtax import catalog
from commtax.api.serving import simulate
from commtax.catalog.models import bundled
from commtax.spec import DTYPE_BYTES, Cluster, Model, Quant
from commtax.validate.records import Row, UnpricedError

PROMPTS_PER_CLIENT = 10  # requests of a benchmark for each of its clients, as such runs are made
SHORTEST = 0.8  # InferenceMAX draws lengths uniformly from this share of the stated length up to all of it
FITTED_MODELS = ("gpt-oss-120b", "llama-3.1-70b", "llama-3.1-8b", "qwen3-235b-a22b", "qwen3-32b")
FITTED_PROMPT, FITTED_CLIENTS = 1024, (32, 128)
FP8_TILES = Quant("fp8", "fp8", (128, 128), ignored=("lm_head", "mlp.gate"))
SYSTEMS = {"b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200", "h100": "h100-sxm", "h200": "h200-sxm"}


def question(row: Row) -> dict[str, Any]:
    """Arguments of ``commtax.simulate`` for one row; raises ``UnpricedError`` with the reason where there are none."""
    apart = row.get("mode") == "disagg"
    model = _model(row)
    sizes = _sizes(row, apart)
    clients = _concurrency(row, sizes)
    low, spread = _lengths(row)
    return {
        "model": model,
        "cluster": _cluster(row, sizes),
        "engine": _engine(row),
        **sizes,
        **_dtypes(row, model),
        "concurrency": clients,
        "input_len": max(1, round(low * _whole(row, "isl"))),
        "output_len": max(2, round(low * _whole(row, "osl"))),
        "num_prompts": PROMPTS_PER_CLIENT * clients,
        "spread": spread,
        **(_workers(row, clients) if apart else {}),
    }


def ask(row: Row) -> tuple[dict[str, Any], str]:
    """The arguments of a row, and the reason why there are none: one of both is empty."""
    try:
        return question(row), ""
    except UnpricedError as error:
        return {}, str(error)


def measured(row: Row) -> dict[str, float]:
    """The measured means in seconds, where the row has them."""
    found = {"ttft_s": row.get("silicon_ttft_ms"), "tpot_s": row.get("silicon_tpot_ms")}
    return {name: float(text) / 1e3 for name, text in found.items() if text}


def _whole(row: Row, name: str, default: int | None = None) -> int:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    try:
        return int(float(text))
    except ValueError:
        raise UnpricedError(f"column {name} is {'empty' if not text else f'{text!r}, not a number'}") from None


def _model(row: Row) -> Model:
    """The bundled model; a name with the quantisation behind it is the same model, stored so."""
    name = row.get("model_path") or ""
    found = bundled(name) or bundled(re.sub(r"-(FP8|NVFP4|FP4)(-dynamic)?$", "", name, flags=re.I))
    if found is None:
        raise UnpricedError(f"model '{name}' is not in the catalogue")
    if row.get("gemm_quant_mode") == "fp8_block" and not found.quant:
        return replace(found, quant=FP8_TILES)
    return found


def _engine(row: Row) -> str:
    name, version = row.get("backend") or "", row.get("backend_version") or ""
    if name not in catalog.keys("engines"):
        raise UnpricedError(f"engine '{name}' is not known")
    source = row.get("silicon_data_source") or ""
    runtime = re.search(r"image=\S*-runtime:(\S+)", source)
    if runtime and version and runtime[1] == version:
        version = ""  # the version of the runtime around the engine, not of the engine
    if not version and (day := re.search(r"measured=(\d{4}-\d\d)", source)):
        version = catalog.version_at(name, day[1])
    return f"{name}@{version}" if re.fullmatch(r"v?\d+(\.\w+)*", version) else name


def _sizes(row: Row, apart: bool) -> dict[str, int]:
    """Tensor, data and expert parallelism. Attention-DP ranks are replicas that share their experts."""
    prefix = "decode_" if apart else ""
    tp, dp = _whole(row, f"{prefix}tp_size"), _whole(row, f"{prefix}attention_dp_size", 1)
    ep = max(1, _whole(row, f"{prefix}moe_ep_size", 1))
    named = re.search(r"_tp(\d+)(?:_\d+)?_ep(\d+)", row.get("id") or "")
    if named and max(tp, dp) == int(named[1]) * int(named[2]) > int(named[1]):
        # The table multiplied both sizes, but experts lie on the same GPUs as the attention.
        tp, dp = (int(named[1]), 1) if tp > 1 else (1, int(named[1]))
    return {"tp": tp, "pp": _whole(row, f"{prefix}pp_size", 1), "dp": dp, "ep": ep}


def _workers(row: Row, clients: int) -> dict[str, Any]:
    """Workers for prompts and for decoding, where the table says how many there are."""
    count = _whole(row, "prefill_num_workers", 0)
    found: dict[str, Any] = {"disaggregated": True, "prefill_tp": _whole(row, "prefill_tp_size")}
    return found | {"prefill_workers": count or None, "decode_workers": _whole(row, "decode_num_workers", 0) or odd_factor(clients)}


def odd_factor(number: int) -> int:
    """What is left of a number without its twos: sweeps give each worker a power of two, so 288 clients are 9 workers of 32.

    >>> odd_factor(288), odd_factor(64)
    (9, 1)
    """
    return number // (number & -number)


def _concurrency(row: Row, sizes: Mapping[str, int]) -> int:
    """Clients of the whole run: as the source says, or the batch of each attention-DP rank times their number."""
    said = re.search(r"silicon_concurrency=(\d+)", row.get("silicon_data_source") or "")
    if said:
        return int(said[1])
    if row.get("decode_batch_size"):
        return _whole(row, "decode_batch_size") * _whole(row, "decode_num_workers", 1)
    return _whole(row, "batch_size") * sizes["dp"]


def _lengths(row: Row) -> tuple[float, float]:
    """Mean length over the stated one, and the spread around it."""
    if re.search(r"source_file=\d{4}-\d\d-\d\d\.csv", row.get("silicon_data_source") or ""):
        return (1 + SHORTEST) / 2, (1 - SHORTEST) / (1 + SHORTEST)
    return 1.0, 0.0


def _cluster(row: Row, sizes: Mapping[str, int]) -> Cluster:
    name = (row.get("system") or "").lower().replace("_", "-")
    try:
        chip = catalog.chip(SYSTEMS.get(name, name))
    except ValueError as error:
        raise UnpricedError(str(error)) from None
    gpus = sizes["tp"] * sizes["pp"] * sizes["dp"]
    hosts = -(-gpus // chip.gpus_per_host)
    return catalog.cluster(f"{hosts}x{chip.gpus_per_host}x{chip.key}" if hosts > 1 else f"{chip.gpus_per_host}x{chip.key}")


def _dtypes(row: Row, model: Model) -> dict[str, str]:
    """Weights as the row says, unless the checkpoint is quantised itself and as narrow.

    TensorRT-LLM keeps KV in fp8 with its fp8 checkpoints. vLLM keeps it as the activations unless told otherwise, and its
    fp8 runs show it: requests begin to wait for the cache at half of what an fp8 cache would hold.
    """
    mode = row.get("gemm_quant_mode") or ""
    kv = "fp8" if mode in ("fp8", "fp8_static") and row.get("backend") == "trtllm" else ""
    kind = {"fp8": "fp8", "fp8_static": "fp8", "nvfp4": "nvfp4", "int8_wo": "int8", "int4_wo": "int4"}.get(mode)
    own = model.quant and not (kind and DTYPE_BYTES[kind] < DTYPE_BYTES[model.quant.dtype])
    if own or mode in ("", "bfloat16", "float16"):
        return {"dtype": "", "kv_dtype": kv}
    if kind is None:
        raise UnpricedError(f"quantisation '{mode}' is not known")
    return {"dtype": kind, "kv_dtype": kv}


def predict(row: Row) -> dict[str, float]:
    """Predicted means of one row, in seconds."""
    found = simulate(**question(row))
    return {"ttft_s": float(found.ttft_s), "tpot_s": float(found.tpot_s)}


def is_fitted(row: Row) -> bool:
    """Whether a row is of those that the engines' constants were fitted on.

    Aggregated runs of five models with prompts of at most 1,024 tokens and 1 to 8, 32 or 128 clients. All longer prompts,
    16 and 64 clients, other models, and disaggregated runs test the fit.
    """
    asked, skipped = ask(row)
    if skipped:
        return False
    short = _whole(row, "isl") <= FITTED_PROMPT and (asked["concurrency"] <= 8 or asked["concurrency"] in FITTED_CLIENTS)
    return short and asked["model"].key in FITTED_MODELS and not asked.get("disaggregated")
