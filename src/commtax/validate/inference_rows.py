"""Rows of published inference runs: static batches, batch-1 decoding, closed loops, CPU hosts over Ethernet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from commtax import catalog
from commtax.api.billing import bill
from commtax.api.serving import simulate
from commtax.catalog.hf import from_config
from commtax.catalog.models import bundled
from commtax.ledger import Bill
from commtax.spec import Cluster, Model, Quant
from commtax.validate.chip_names import chip_named
from commtax.validate.own_rows import least_s
from commtax.validate.records import Answer, Records, Row, UnpricedError, number, row_by_row, whole
from commtax.validate.splits import inference_is_fitted

MODELS = {
    "llama2-70b": "llama-2-70b",
    "llama 70b": "llama-2-70b",
    "llama 13b": "llama-2-13b",
    "llama 7b": "llama-2-7b",
    "llama 2 7b": "llama-2-7b",
    "llama 2 13b": "llama-2-13b",
    "llama 2 70b": "llama-2-70b",
    "llama 3 8b": "llama-3.1-8b",
    "mixtral-8x7b": "mixtral-8x7b",
}
GROUPS_OF_32 = Quant("groups", "int4", (1, 32), scale_bytes=2.0, ignored=("lm_head",))
SHAPES: dict[str, dict[str, Any]] = {  # public config.json figures of models that the catalogue does not hold
    "bloom-176b": {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 14336,
        "n_layer": 70,
        "n_head": 112,
        "n_inner": 57344,
        "vocab_size": 250880,
        "n_positions": 16384,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "llama 33b": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 6656,
        "num_hidden_layers": 60,
        "num_attention_heads": 52,
        "num_key_value_heads": 52,
        "intermediate_size": 17920,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    },
}
CPUS = {  # memory and arithmetic of CPU hosts from their datasheets, and the network between them
    "raspberry pi 4b": (12.8e9, 48e9, "1gbe"),  # LPDDR4-3200 on 32 bits; 4 cores x 1.5 GHz x 8
    "raspberry pi 5": (17.1e9, 154e9, "1gbe"),  # LPDDR4X-4267 on 32 bits; 4 cores x 2.4 GHz x 16
    "c3d-highcpu-30": (76e9, 1.4e12, "25gbe"),  # 15 of 90 cores of a socket with 12 channels DDR5-4800
}


@dataclass(frozen=True, slots=True)
class Predicted:
    value: float
    low: float
    high: float
    floor: float = 0.0
    hint: str = ""


def answers(rows: Sequence[Row]) -> Records:
    return row_by_row(rows, lambda index, row: [_answer(index, row)])


def _answer(index: int, row: Row) -> Answer:
    plain = Answer(
        kind=_kind(row),
        source=row.get("source_id") or row.get("source") or "",
        system=row.get("gpu") or "",
        library=row.get("framework") or "",
        version=row.get("framework_version") or "",
        mode=row.get("batch_kind") or "",
        dtype=row.get("precision") or "",
        tp=_tp(row),
        what=f"{row.get('model', '')} on {row.get('gpu', '')}, tp {row.get('tp', '')}, batch {row.get('batch', '')}, "
        f"{row.get('isl') or '?'} in, {row.get('osl') or '?'} out: {row.get('metric', '')}",
        where="cpu" if "cpu" in (row.get("gpu") or "").lower() else "gpu",
        row=index,
    )
    try:
        value = number(row, "value")
        found = predict(row)
    except ValueError as error:
        return replace(plain, skipped=str(error))
    rate = "tok" in (row.get("unit") or "") or "per_s" in (row.get("metric") or "")
    return replace(
        plain,
        measured=value if rate else value * 1e-3,
        predicted=found.value,
        low=found.low,
        high=found.high,
        floor=found.floor,
        hint=found.hint,
        fitted=inference_is_fitted(row),
    )


def _tp(row: Row) -> float:
    try:
        return whole(row, "tp", 1)
    except ValueError:
        return 0


def _kind(row: Row) -> str:
    metric = row.get("metric") or "inference"
    known = {
        "prefill_time": "prefill-step",
        "tpot": "decode-step",
        "decode_tokens_per_s": "decode-rate",
        "mean_itl": "tpot",
        "mean_ttft": "ttft",
        "output_throughput": "throughput",
        "e2e_latency": "e2e",
    }
    return known.get(metric, metric.replace("_", "-"))


def predict(row: Row) -> Predicted:
    """The published quantity of one row; ``UnpricedError`` with the reason where there is none."""
    name = (row.get("framework") or "").lower()
    if "gpt-fast" in name:
        return _batch_one(row)
    if "distributed-llama" in name:
        return _cpu(row)
    if "nim" in name or "tensorrt" in name:
        return _closed_loop(row)
    if "vllm" in name:
        return _static(row)
    raise UnpricedError(f"framework '{row.get('framework', '')}' is not known")


def _model(row: Row) -> Model:
    name = (row.get("model") or "").lower()
    if name in SHAPES:
        return from_config(SHAPES[name], name)
    found = bundled(MODELS.get(name, name.removesuffix("-instruct")))  # a table's words are no names to look up on disk or network
    if found is None:
        raise UnpricedError(f"model '{row.get('model', '')}' is not in the catalogue")
    return found


def _dtype(row: Row) -> str:
    precision = (row.get("precision") or "").lower()
    return next((d for d in ("fp8", "int8") if d in precision), "")


def _stored(row: Row) -> Model:
    """The model with 4-bit weights in groups of 32 where the row says so."""
    precision = (row.get("precision") or "").lower()
    model = _model(row)
    return replace(model, quant=GROUPS_OF_32) if "int4" in precision or "q40" in precision else model


@lru_cache(maxsize=128)
def _cluster(gpu: str, gpus: int) -> Cluster:
    chip = chip_named(gpu)
    if not chip:
        raise UnpricedError(f"GPU '{gpu}' is not in the catalogue")
    return catalog.cluster(f"1x{max(gpus, catalog.chip(chip).gpus_per_host)}x{chip}")


def _place(row: Row) -> Cluster:
    return _cluster(row.get("gpu") or "", whole(row, "tp", 1))


def _ranged(priced: Bill, floor: float, hint: str) -> Predicted:
    return Predicted(float(priced.step_s), float(priced.low_s), float(priced.high_s), floor, hint)


def _batch_one(row: Row) -> Predicted:
    """gpt-fast: one sequence, compiled, tokens/s over a short answer."""
    if row.get("metric") != "decode_tokens_per_s":
        raise UnpricedError(f"metric '{row.get('metric', '')}' is not known")
    context = whole(row, "isl", 5) + whole(row, "osl", 200) // 2
    words: dict[str, Any] = {"tp": whole(row, "tp", 1), "batch": whole(row, "batch", 1), "dtype": _dtype(row), "engine": "gpt-fast"}
    priced = bill(_stored(row), _place(row), phase="decode", context=context, **words)
    found = _ranged(priced, least_s(priced), _power_hint(row))
    return Predicted(words["batch"] / found.value, words["batch"] / found.high, words["batch"] / found.low, found.floor, found.hint)


def _power_hint(row: Row) -> str:
    return ", ".join(filter(None, ("oddly low, as its source says" if "oddly" in (row.get("notes") or "") else "", "330 W limit")))


def _static(row: Row) -> Predicted:
    """A batch that starts together: its prompt in one step, then one token a step."""
    metric, batch = row.get("metric") or "", whole(row, "batch")
    inputs, outputs = whole(row, "isl"), whole(row, "osl", 1)
    words: dict[str, Any] = {"tp": whole(row, "tp", 1), "batch": batch, "engine": "vllm-2023", "eager": True, "dtype": _dtype(row)}
    if "NCCL" in (row.get("notes") or ""):
        words["library"] = "nccl"
    model, place = _model(row), _place(row)
    prompt = bill(model, place, phase="prefill", context=inputs, **words)
    step = bill(model, place, phase="decode", context=inputs + outputs // 2, **words)
    parts = {"prefill_time": (1, 0), "tpot": (0, 1), "e2e_latency": (1, max(0, outputs - 1))}
    if metric not in parts:
        raise UnpricedError(f"metric '{metric}' is not known")
    prompts, steps = parts[metric]
    value, low, high = (
        prompts * float(getattr(prompt, n)) + steps * float(getattr(step, n)) for n in ("step_s", "low_s", "high_s")
    )
    floor = prompts * least_s(prompt) + steps * least_s(step)
    return Predicted(value, low, high, floor, "launch-bound: an engine of 2023 without graphs")


def _closed_loop(row: Row) -> Predicted:
    """Means of a closed loop at the row's concurrency."""
    metric, clients = row.get("metric") or "", whole(row, "batch")
    kv = {"dtype": "fp8", "kv_dtype": "fp8"} if _dtype(row) == "fp8" else {}
    words: dict[str, Any] = {"tp": whole(row, "tp", 1), "engine": "trtllm", "concurrency": clients, "spread": 0.0, **kv}
    found = simulate(_model(row), _place(row), input_len=whole(row, "isl"), output_len=whole(row, "osl"), **words)
    if metric in ("mean_itl", "mean_ttft"):
        name = "tpot_s" if metric == "mean_itl" else "ttft_s"
        low, high = (float(x) for x in found.range_of(name))
        return Predicted(float(getattr(found, name)), low, high, 0.0, "batching of prompts may wait")
    if metric != "output_throughput":
        raise UnpricedError(f"metric '{metric}' is not known")
    low, high = (float(x) for x in found.range_of("tokens_per_s"))
    return Predicted(float(found.tokens_per_s), low, high)


@lru_cache(maxsize=64)
def _cpu_cluster(gpu: str, hosts: int) -> Cluster:
    known = next((v for k, v in CPUS.items() if k in gpu.lower()), None)
    if known is None:
        raise UnpricedError(f"CPU '{gpu}' is not known")
    memory, flops, link = known
    place = catalog.cluster(f"{hosts}x1xcpu" if hosts > 1 else "1xcpu", inter=link)
    peaks = dict.fromkeys(place.chip.flops_per_s, flops)
    return replace(place, chip=replace(place.chip, memory_Bps=memory, flops_per_s=peaks))


def _cpu(row: Row) -> Predicted:
    """distributed-llama: tensor parallelism over CPU hosts, one rank each, 4-bit weights."""
    place = _cpu_cluster(row.get("gpu") or "", whole(row, "tp", 1))
    words: dict[str, Any] = {"tp": whole(row, "tp", 1), "batch": 1, "engine": "torch", "context": 64}
    priced = bill(_stored(row), place, phase="decode", **words)
    metric = row.get("metric") or ""
    hint = "a CPU host from its datasheet, network assumed"
    kinds = {
        "decode_ms_per_token": ("compute", "host", "comm"),
        "decode_compute_ms_per_token": ("compute", "host"),
        "decode_network_transfer_ms_per_token": ("comm",),
    }.get(metric)
    if kinds == ("comm",) and words["tp"] == 1:
        raise UnpricedError("one host has no network: what is measured is the host's own copying")
    if kinds:
        part = Bill(tuple(x for x in priced.lines if x.kind in kinds), priced.tokens)
        return _ranged(part, least_s(priced) if "compute" in kinds else 0.0, hint)
    raise UnpricedError(f"metric '{metric}' is not known")
