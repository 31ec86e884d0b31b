"""A row of a table of serving runs as the question that ``commtax.simulate`` answers.

The columns are those of published end-to-end runs: engine, version, model, system, quantisation, lengths, concurrency,
sizes of the plan, mean TTFT and TPOT in milliseconds. Absent columns are taken as empty.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from commtax import catalog
from commtax.catalog.models import bundled
from commtax.readers.published.rows import Asked, Entry, Row, cell, described, lower, names, whole
from commtax.spec import DTYPE_BYTES, Cluster, Model, Quant
from commtax.statement import Refusal
from commtax.verbs.asking import RequestOptions

PROMPTS_PER_CLIENT = 10  # requests of a benchmark for each of its clients, as such runs are made
SHORTEST = 0.8  # InferenceMAX draws lengths uniformly from this share of the stated length up to all of it
FITTED_MODELS = ("gpt-oss-120b", "llama-3.1-70b", "llama-3.1-8b", "qwen3-235b-a22b", "qwen3-32b")
FITTED_PROMPT, FITTED_CLIENTS = 1024, (32, 128)
FP8_TILES = Quant("fp8", "fp8", (128, 128), ignored=("lm_head", "mlp.gate"))


class Run(RequestOptions, total=False):
    """Arguments of ``commtax.simulate``."""

    model: Model
    cluster: Cluster


def question(row: Row) -> Run:
    """The run of one row; raises ``Refusal`` with the reason where there is none."""
    model, sizes = _model(row), _sizes(row)
    clients = _concurrency(row, sizes["dp"])
    low, spread = _lengths(row)
    dtype, kv_dtype = _dtypes(row, model)
    lengths = {"input_len": max(1, round(low * whole(row, "isl"))), "output_len": max(2, round(low * whole(row, "osl")))}
    load = {"concurrency": clients, "num_prompts": PROMPTS_PER_CLIENT * clients, "spread": spread, **lengths}
    place = {"model": model, "cluster": _cluster(row, sizes), "engine": _engine(row), **sizes, "dtype": dtype, "kv_dtype": kv_dtype}
    return cast(Run, {**place, **load, **(_workers(row, clients) if _is_apart(row) else {})})


def ask(row: Row, entry: Entry) -> Asked[Run]:
    """Two figures a row: mean time to the first token, and mean time per token after it."""
    run, means, sizes = question(row), measured(row), _sizes(row)
    if not means:
        raise Refusal("neither TTFT nor TPOT is given")
    entry = replace(entry, tp=sizes["tp"], size=_concurrency(row, sizes["dp"]), fitted=is_fitted(row), hint=_hint(row))
    entry = replace(entry, where="moe" if run["model"].experts else "dense")
    return Asked(tuple(replace(entry, kind=name.removesuffix("_s"), measured=value) for name, value in means.items()), run)


def describe(row: Row) -> Entry:
    tp, clients = cell(row, "tp_size", "decode_tp_size"), cell(row, "clients", "batch_size", "decode_batch_size")
    lengths = f"{row.get('isl', '')} in, {row.get('osl', '')} out"
    what = f"{row.get('model_path', '')}, tp {tp or '?'}, {lengths}, {clients or '?'} clients"
    entry, source = described(row, "serving_runs"), cell(row, "silicon_data_source", "source")
    # InferenceMAX names its daily files, the others are aiconfigurator's own.
    origin = "InferenceMAX" if "measured=" in source else "aiconfigurator" if source else ""
    return replace(entry, kind="tpot", source=origin, mode=entry.mode or "agg", what=what)


def _hint(row: Row) -> str:
    """What the row itself says that may explain an error."""
    if _is_apart(row):
        return "disaggregated: how many workers decode is not said, tokens may be drafted"
    return "drafted tokens" if "mtp" in lower(row, "id") else ""


def _is_apart(row: Row) -> bool:
    return row.get("mode") == "disagg"


def measured(row: Row) -> dict[str, float]:
    """The measured means in seconds, where the row has them."""
    known = {"ttft_s": row.get("silicon_ttft_ms"), "tpot_s": row.get("silicon_tpot_ms")}
    return {name: float(text) / 1e3 for name, text in known.items() if text}


def _size(row: Row, name: str, default: int) -> int:
    """A size that a table may leave empty or write as 0."""
    return default if cell(row, name) in ("", "0") else whole(row, name)


def _model(row: Row) -> Model:
    """The bundled model; a name with the quantisation behind it is the same model, stored so."""
    name = row.get("model_path") or ""
    known = bundled(name) or bundled(re.sub(r"-(FP8|NVFP4|FP4)(-dynamic)?$", "", name, flags=re.I))
    if known is None:
        raise Refusal(f"model '{name}' is not in the catalogue")
    if row.get("gemm_quant_mode") == "fp8_block" and not known.quant:
        return replace(known, quant=FP8_TILES)
    return known


def _engine(row: Row) -> str:
    name, version = row.get("backend") or "", row.get("backend_version") or ""
    if name not in catalog.keys("engines"):
        raise Refusal(f"engine '{name}' is not known")
    source = row.get("silicon_data_source") or ""
    runtime = re.search(r"image=\S*-runtime:(\S+)", source)
    if runtime and version and runtime[1] == version:
        version = ""  # the version of the runtime around the engine, not of the engine
    if not version and (day := re.search(r"measured=(\d{4}-\d\d)", source)):
        version = catalog.version_at(name, day[1])
    return f"{name}@{version}" if re.fullmatch(r"v?\d+(\.\w+)*", version) else name


def _sizes(row: Row) -> dict[str, int]:
    """Tensor, data and expert parallelism. Attention-DP ranks are replicas that share their experts."""
    prefix = "decode_" if _is_apart(row) else ""
    tp, dp = whole(row, f"{prefix}tp_size"), _size(row, f"{prefix}attention_dp_size", 1)
    named = re.search(r"_tp(\d+)(?:_\d+)?_ep(\d+)", row.get("id") or "")
    if named and max(tp, dp) == int(named[1]) * int(named[2]) > int(named[1]):
        # The table multiplied both sizes, but experts lie on the same GPUs as the attention.
        tp, dp = (int(named[1]), 1) if tp > 1 else (1, int(named[1]))
    return {"tp": tp, "pp": _size(row, f"{prefix}pp_size", 1), "dp": dp, "ep": _size(row, f"{prefix}moe_ep_size", 1)}


def _workers(row: Row, clients: int) -> dict[str, int | None]:
    """Workers for prompts and for decoding, where the table says how many there are."""
    return {
        "disaggregated": True,
        "prefill_tp": whole(row, "prefill_tp_size"),
        "prefill_workers": _size(row, "prefill_num_workers", 0) or None,
        "decode_workers": _size(row, "decode_num_workers", 0) or odd_factor(clients),
    }


def odd_factor(number: int) -> int:
    """What is left of a number without its twos: sweeps give each worker a power of two, so 288 clients are 9 workers of 32.

    >>> odd_factor(288), odd_factor(64)
    (9, 1)
    """
    return number // (number & -number)


def _concurrency(row: Row, dp: int) -> int:
    """Clients of the whole run: as the source says, or the batch of each attention-DP rank times their number."""
    said = re.search(r"silicon_concurrency=(\d+)", row.get("silicon_data_source") or "")
    if said:
        return int(said[1])
    if row.get("decode_batch_size"):
        return whole(row, "decode_batch_size") * _size(row, "decode_num_workers", 1)
    return whole(row, "batch_size") * dp


def _lengths(row: Row) -> tuple[float, float]:
    """Mean length over the stated one, and the spread around it."""
    if re.search(r"source_file=\d{4}-\d\d-\d\d\.csv", row.get("silicon_data_source") or ""):
        return (1 + SHORTEST) / 2, (1 - SHORTEST) / (1 + SHORTEST)
    return 1.0, 0.0


def _cluster(row: Row, sizes: Mapping[str, int]) -> Cluster:
    name = lower(row, "system").replace("_", "-")
    chip = catalog.chip(names()["serving_chips"].get(name, name))
    hosts = -(-sizes["tp"] * sizes["pp"] * sizes["dp"] // chip.gpus_per_host)
    return catalog.cluster(f"{hosts}x{chip.gpus_per_host}x{chip.key}" if hosts > 1 else f"{chip.gpus_per_host}x{chip.key}")


def _dtypes(row: Row, model: Model) -> tuple[str, str]:
    """Weights as the row says, unless the checkpoint is quantised itself and as narrow; and the cache.

    TensorRT-LLM keeps KV in fp8 with its fp8 checkpoints. vLLM keeps it as the activations unless told otherwise, and its
    fp8 runs show it: requests begin to wait for the cache at half of what an fp8 cache would hold.
    """
    mode = row.get("gemm_quant_mode") or ""
    kv = "fp8" if mode in ("fp8", "fp8_static") and row.get("backend") == "trtllm" else ""
    kind = {"fp8": "fp8", "fp8_static": "fp8", "nvfp4": "nvfp4", "int8_wo": "int8", "int4_wo": "int4"}.get(mode)
    own = model.quant and not (kind and DTYPE_BYTES[kind] < DTYPE_BYTES[model.quant.dtype])
    if own or mode in ("", "bfloat16", "float16"):
        return "", kv
    if kind is None:
        raise Refusal(f"quantisation '{mode}' is not known", "gemm_quant_mode")
    return kind, kv


def is_fitted(row: Row) -> bool:
    """Whether a row is of those that the engines' constants were fitted on.

    Aggregated runs of five models with prompts of at most 1,024 tokens and 1 to 8, 32 or 128 clients. All longer prompts,
    16 and 64 clients, other models, and disaggregated runs test the fit.
    """
    try:
        run, clients = question(row), _concurrency(row, _sizes(row)["dp"])
    except ValueError:
        return False
    short = whole(row, "isl") <= FITTED_PROMPT and (clients <= 8 or clients in FITTED_CLIENTS)
    return short and run["model"].key in FITTED_MODELS and not _is_apart(row)
