"""Rows of published inference runs: static batches, batch-1 decoding, closed loops, CPU hosts over Ethernet."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name
from commtax.catalog.hf import from_config
from commtax.spec import Cluster, Model, Quant
from commtax.statement import Refusal
from commtax.verbs.keywords import ComparePlansOptions
from commtax_lab.published.metrics import metric as measured
from commtax_lab.published.rows import (
    PublishedFigure,
    Row,
    RowQuestion,
    cell,
    describe_row,
    lower_cell,
    names,
    number,
    tokens,
    whole_cell,
)
from commtax_lab.published.spellings import engine_named, model_named

GROUPS_OF_32 = Quant("groups", "int4", (1, 32), scale_bytes=2.0, ignored=("lm_head",))
CLOSED = ("closed loop", "concurrency", "clients")
"""How rows say that each client sends a request as soon as the last one is answered."""
UNITS = {"ms": 1e-3, "us": 1e-6}
LINES = {
    "decode_ms_per_token": ("compute", "host", "comm"),
    "decode_compute_ms_per_token": ("compute", "host"),
    "decode_network_transfer_ms_per_token": ("comm",),
}
"""Metrics of a step's parts, and the kinds of lines that they cover."""
CPU_CONTEXT = 64  # tokens in the cache, about: distributed-llama's runs are short and do not say


@dataclass(frozen=True, slots=True)
class InferenceRun:
    """A timed run: ``prompts`` prefill steps and ``steps`` decode steps of a batch, or the mean of a closed loop."""

    model: Model
    cluster: Cluster
    options: ComparePlansOptions
    batch: int
    input_len: int
    output_len: int = 0
    context: int = 0  # of the decode steps
    prompts: int = 0
    steps: int = 0
    served: str = ""  # a mean of a closed loop of ``batch`` clients
    lines: tuple[str, ...] = ()  # only these kinds of lines of a step
    per_second: bool = False  # tokens a second instead of seconds


def ask(row: Row, entry: PublishedFigure) -> RowQuestion[InferenceRun]:
    value = number(row, "value")
    run, hint = question(row)
    return RowQuestion((replace(entry, measured=value * _unit(row), hint=hint, fitted=_is_fitted(row)),), run)


def _unit(row: Row) -> float:
    """Return the unit of a figure: milliseconds unless the row says otherwise, or a rate of one GPU or of all."""
    unit = lower_cell(row, "unit").replace(" ", "")
    if "/s" in unit or "per_s" in cell(row, "metric"):
        return float(whole_cell(row, "tp", 1)) if "gpu" in unit else 1.0
    return 1.0 if unit in ("s", "sec", "seconds") else UNITS.get(unit, 1e-3)


def describe(row: Row) -> PublishedFigure:
    metric = cell(row, "metric") or "inference"
    where = f"{row.get('model', '')} on {row.get('gpu', '')}, tp {row.get('tp', '')}, batch {row.get('batch', '')}"
    lengths = f"{row.get('isl') or '?'} in, {row.get('osl') or '?'} out"
    figure = measured(metric)
    kind = names()["metrics"].get(metric) or (figure.kind if figure else metric.replace("_", "-"))
    what = f"{where}, {lengths}: {row.get('metric', '')}"
    entry = replace(describe_row(row, "inference"), kind=kind, tp=_tp(row), what=what)
    return replace(entry, where="cpu" if "cpu" in lower_cell(row, "gpu") else "gpu")


def _tp(row: Row) -> float:
    try:
        return whole_cell(row, "tp", 1)
    except ValueError:
        return 0


def question(row: Row) -> tuple[InferenceRun, str]:
    """Return what was timed in one row, and what may explain an error, or raise ``Refusal`` with the reason."""
    name = lower_cell(row, "framework")
    figure = measured(cell(row, "metric"))
    if figure and engine_named(name) and any(word in lower_cell(row, "batch_kind") for word in CLOSED):
        return _closed_loop(row, figure.kind)
    framework = next((one for one in FRAMEWORKS if any(part in name for part in one[0])), None)
    if framework is None:
        raise Refusal(f"framework '{row.get('framework', '')}' is not known", "framework")
    _, metrics, read_run = framework
    if (metric := cell(row, "metric")) in metrics:
        return read_run(row, metric)
    raise Refusal(f"metric '{metric}' is not known", "metric")


def _batch_one(row: Row, _: str) -> tuple[InferenceRun, str]:
    """Read a row of gpt-fast: one sequence, compiled, tokens/s over a short answer."""
    inputs, outputs = round(tokens(row, "isl", 5)), round(tokens(row, "osl", 200))
    options: ComparePlansOptions = {"tp": whole_cell(row, "tp", 1), "dtype": _dtype(row), "engine": "gpt-fast"}
    odd = "oddly low, as its source says, " if "oddly" in cell(row, "notes") else ""
    run = InferenceRun(
        _stored_model(row), _place(row), options, whole_cell(row, "batch", 1), inputs, context=inputs + outputs // 2, steps=1
    )
    return replace(run, per_second=True), f"{odd}330 W limit"


def _batch_run(row: Row, metric: str) -> tuple[InferenceRun, str]:
    """Read a batch that starts together: its prompt in one step, then one token a step."""
    inputs, outputs = round(tokens(row, "isl")), round(tokens(row, "osl", 1))
    prompts, steps = {"prefill_time": (1, 0), "tpot": (0, 1), "e2e_latency": (1, max(0, outputs - 1))}[metric]
    options: ComparePlansOptions = {"tp": whole_cell(row, "tp", 1), "engine": "vllm-2023", "eager": True, "dtype": _dtype(row)}
    if "NCCL" in cell(row, "notes"):
        options["library"] = "nccl"
    batch, context = whole_cell(row, "batch"), inputs + outputs // 2
    run = InferenceRun(_model(row), _place(row), options, batch, inputs, context=context, prompts=prompts, steps=steps)
    return run, "launch-bound: an engine of 2023 without graphs"


def _closed_loop(row: Row, kind: str) -> tuple[InferenceRun, str]:
    """Read means and rates of a closed loop at the row's concurrency."""
    engine = engine_named(lower_cell(row, "framework"))
    options: ComparePlansOptions = {"tp": whole_cell(row, "tp", 1), "engine": engine, "dtype": _dtype(row)}
    if _dtype(row) == "fp8" and engine == "trtllm":  # which keeps the cache as narrow
        options["kv_dtype"] = "fp8"
    inputs, outputs = round(tokens(row, "isl")), round(tokens(row, "osl"))
    run = InferenceRun(_model(row), _place(row), options, whole_cell(row, "batch"), inputs, outputs, served=kind)
    return run, "batching of prompts may wait" if kind in ("ttft", "tpot", "e2e") else ""


def _cpu(row: Row, metric: str) -> tuple[InferenceRun, str]:
    """Read a row of distributed-llama: tensor parallelism over CPU hosts, one rank each, 4-bit weights."""
    hosts = whole_cell(row, "tp", 1)
    place = _cpu_cluster(lower_cell(row, "gpu"), hosts)
    if LINES[metric] == ("comm",) and hosts == 1:
        raise Refusal("one host has no network: what is measured is the host's own copying", "tp")
    options: ComparePlansOptions = {"tp": hosts, "engine": "torch"}
    run = InferenceRun(_stored_model(row), place, options, 1, CPU_CONTEXT, context=CPU_CONTEXT, steps=1, lines=LINES[metric])
    return run, "a CPU host from its datasheet, network assumed"


FRAMEWORKS: tuple[tuple[tuple[str, ...], Collection[str], Callable[[Row, str], tuple[InferenceRun, str]]], ...] = (
    (("gpt-fast",), ("decode_tokens_per_s",), _batch_one),
    (("distributed-llama",), LINES, _cpu),
    (("vllm",), ("prefill_time", "tpot", "e2e_latency"), _batch_run),
)
"""What is in a framework's name, the metrics that its rows have, and what reads them."""


def _model(row: Row) -> Model:
    name = lower_cell(row, "model")
    if shape := names()["models"].get(name):
        return from_config(shape, name)
    model = model_named(name)
    if model is None:
        raise Refusal(f"model '{row.get('model', '')}' is not in the catalogue", "model")
    return model


def _dtype(row: Row) -> str:
    precision = lower_cell(row, "precision")
    return next((d for d in ("fp8", "int8") if d in precision), "")


def _stored_model(row: Row) -> Model:
    """Return the model, with 4-bit weights in groups of 32 where the row says so."""
    model, precision = _model(row), lower_cell(row, "precision")
    return replace(model, quant=GROUPS_OF_32) if "int4" in precision or "q40" in precision else model


def _place(row: Row) -> Cluster:
    chip = find_chip_name(cell(row, "gpu"))
    if not chip:
        raise Refusal(f"GPU '{cell(row, 'gpu')}' is not in the catalogue", "gpu")
    return catalog.cluster(f"1x{max(whole_cell(row, 'tp', 1), catalog.chip(chip).gpus_per_host)}x{chip}")


@lru_cache(maxsize=64)
def _cpu_cluster(gpu: str, hosts: int) -> Cluster:
    facts = next((facts for name, facts in names()["cpus"].items() if name in gpu), None)
    if facts is None:
        raise Refusal(f"CPU '{gpu}' is not known", "gpu")
    place = catalog.cluster(f"{hosts}x1xcpu" if hosts > 1 else "1xcpu", inter=facts["inter"])
    peaks = dict.fromkeys(place.chip.flops_per_s, facts["flops_per_s"])
    return replace(place, chip=replace(place.chip, memory_Bps=facts["memory_Bps"], flops_per_s=peaks))


def _is_fitted(row: Row) -> bool:
    """Return whether constants were fitted on a row: bf16 rows of gpt-fast, and TPOT of Llama-2-70B at batch 1 on vLLM of 2023."""
    source, model = lower_cell(row, "source_id", "source"), lower_cell(row, "model")
    if "gpt-fast" in source:
        return cell(row, "precision") == "bf16" and model in ("llama-2-7b", "llama-3.1-70b")
    return "splitwise" in source and model == "llama2-70b" and cell(row, "batch") == "1" and cell(row, "metric") == "tpot"
