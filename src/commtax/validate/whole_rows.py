"""Answers to rows of serving and training runs: the questions are in ``serving_rows`` and ``training_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commtax.api.billing import bill
from commtax.api.serving import Simulation, simulate
from commtax.api.train_billing import train_bill
from commtax.validate import serving_rows, training_rows
from commtax.validate.own_rows import least_s
from commtax.validate.records import Answer, Records, Row, UnpricedError, number, row_by_row
from commtax.validate.splits import training_is_fitted

PLAN = ("tp", "pp", "dp", "ep", "dtype", "kv_dtype", "engine")


def serving(rows: Sequence[Row]) -> Records:
    """Two answers a row: mean time to the first token, and mean time per token after it."""
    return row_by_row(rows, _served)


def _served(index: int, row: Row) -> list[Answer]:
    plain = Answer(
        kind="tpot",
        source=_origin(row),
        system=row.get("system") or "",
        library=row.get("backend") or "",
        version=row.get("backend_version") or "",
        mode=row.get("mode") or "agg",
        dtype=row.get("gemm_quant_mode") or row.get("precision") or "",
        row=index,
        what=_request(row),
    )
    try:
        asked = serving_rows.question(row)
        was = serving_rows.measured(row)
        if not was:
            raise UnpricedError("neither TTFT nor TPOT is given")
        found = simulate(**asked)
    except ValueError as error:
        return [replace(plain, skipped=str(error))]
    experts = bool(asked["model"].experts)
    shared = replace(
        plain,
        where="moe" if experts else "dense",
        tp=asked["tp"],
        size=asked["concurrency"],
        fitted=serving_rows.is_fitted(row),
        hint=_serving_hint(row, asked, found),
    )
    return [_figure(shared, name, was[name], found, asked) for name in ("ttft_s", "tpot_s") if name in was]


def _request(row: Row) -> str:
    tp = row.get("tp_size") or row.get("decode_tp_size") or "?"
    clients = row.get("clients") or row.get("batch_size") or row.get("decode_batch_size") or "?"
    return f"{row.get('model_path', '')}, tp {tp}, {row.get('isl', '')} in, {row.get('osl', '')} out, {clients} clients"


def _origin(row: Row) -> str:
    """Who published the run: InferenceMAX names its daily files, the others are aiconfigurator's own."""
    source = row.get("silicon_data_source") or row.get("source") or ""
    return "InferenceMAX" if "measured=" in source else "aiconfigurator" if source else ""


def _serving_hint(row: Row, asked: dict[str, Any], found: Simulation) -> str:
    if asked.get("disaggregated"):
        return "disaggregated: how many workers decode is not said, tokens may be drafted"
    if "mtp" in (row.get("id") or "").lower():
        return "drafted tokens"
    if found.running * found.setup.plan.dp < asked["concurrency"]:
        return "requests wait for the cache"
    return "launch options are not said"


def _figure(plain: Answer, name: str, measured: float, found: Simulation, asked: dict[str, Any]) -> Answer:
    low, high = found.range_of(name)
    return replace(
        plain,
        kind=name.removesuffix("_s"),
        measured=measured,
        predicted=float(getattr(found, name)),
        low=float(low),
        high=float(high),
        floor=_floor(name, found, asked),
    )


def _floor(name: str, found: Simulation, asked: dict[str, Any]) -> float:
    """Bytes over bandwidth and FLOPs over peak of the decode step, or of the request's own prompt."""
    words = {key: asked[key] for key in PLAN}
    phase, batch = ("decode", max(1, int(found.running))) if name == "tpot_s" else ("prefill", 1)
    try:
        priced = bill(asked["model"], asked["cluster"], phase=phase, batch=batch, context=asked["input_len"], **words)
    except ValueError:
        return 0.0
    return least_s(priced)


def training(rows: Sequence[Row]) -> Records:
    return row_by_row(rows, lambda index, row: [_trained(index, row)])


def _trained(index: int, row: Row) -> Answer:
    note = (row.get("note") or "").lower()
    plain = Answer(
        kind="training-step",
        source=row.get("source") or "",
        system=row.get("gpu_type") or "",
        library=(row.get("source") or "").split(" ")[0],
        mode=_training_mode(row, note),
        dtype=row.get("precision") or "",
        row=index,
        what=f"{row.get('model', '')} on {row.get('gpus', '')} {row.get('gpu_type', '')}, tp {row.get('tp') or 1}, "
        f"pp {row.get('pp') or 1}, dp {row.get('dp') or 1}, seq {row.get('seq', '')}",
    )
    try:
        asked = training_rows.question({"source": "", "gpu_type": "", "model": "", **row})
        found = train_bill(**asked)
        measured = number(row, "step_time_s")
    except ValueError as error:
        return replace(plain, skipped=str(error))
    seconds = float(found.step_s)
    floor = float(found.model_flops("causal")) / (found.num_gpus * found.peak_flops_per_s)
    return replace(
        plain,
        measured=measured,
        predicted=seconds,
        low=float(found.low_s),
        high=float(found.high_s),
        floor=floor,
        tp=asked["tp"],
        size=asked["context"],
        fitted=training_is_fitted(row),
        hint=_training_hint(row, note),
    )


def _training_mode(row: Row, note: str) -> str:
    """What sets a run apart: eager, asynchronous tensor parallelism, a pipeline, scaling by rows."""
    if "async" in note:
        return "async"
    if row.get("pp") not in (None, "", "1"):
        return "pipeline"
    if "eager" in note:
        return "eager"
    return "rowwise" if "rowwise" in (row.get("precision") or "") else "plain"


def _training_hint(row: Row, note: str) -> str:
    if float(row.get("cp") or 1) > 1:
        return "context parallelism"
    if "rowwise" in (row.get("precision") or ""):
        return "fp8 scaled by rows"
    return "asynchronous tensor parallelism" if "async" in note else "software and clocks are not said"
