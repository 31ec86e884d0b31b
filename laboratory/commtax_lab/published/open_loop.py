"""A row of a table of open-loop runs (requests at a rate, whoever waits) as one server and the load that is offered to it.

Several replicas behind one front end share the load evenly: one of them is asked, with its share of the requests, at most
``MOST_REQUESTS`` (of runs that ship ``MOST_SHIPPED``) after a warm-up. What the source leaves open (how GPUs are split, how long
requests are), or what is not a plain server of one kind of GPU, is left out with the reason.
"""

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name
from commtax.catalog.loader import aliases, version_parts
from commtax.spec import DTYPE_BYTES, Chip, Model
from commtax.spec.stream import Lengths
from commtax.statement import Refusal
from commtax_lab.published import lengths
from commtax_lab.published.rows import PublishedFigure, Row, RowQuestion, cell, describe_row, lower_cell, names, number, whole_cell
from commtax_lab.published.spellings import model_named

MOST_REQUESTS = 12_000  # of one replica that are simulated and counted …
MOST_SHIPPED = 300  # … of runs that ship here, which are scored with everything else
WARMUP = 0.1  # … after this share more, where the run was longer
REPEATED_PROMPTS = 100  # distinct prompts of inference-perf's shared-prefix client (10 groups of 10) that the sources use
REPEATING = ("training", "sim-to-real")
FITTED_RATE = 4.0  # requests/s of those runs that vLLM 0.23 was fitted on
KEPT_UP = 0.93  # achieved over asked rate; below it requests piled up
PILED_UP = ("overload", "saturated")
BEYOND = 1.5  # times the published rate, which no run that was tuned to its limits holds
OVERLOADED, HOLDS, HOLDS_BEYOND = "overloaded", "holds_slo", f"holds_slo_at_{BEYOND:g}x"
VERDICTS = (OVERLOADED, HOLDS, HOLDS_BEYOND)
"""Kinds of entries that are yes (1) or no (0), not seconds."""
NARROW, WIDE = ("fp8", "nvfp4", "mxfp4", "int8", "int4"), ("", "bf16/fp16", "bf16", "fp16", "bfloat16", "float16")
FIGURE = re.compile(r"((?:ttft|tpot|itl|e2e|queue)_(?:mean|p50|p90|p95|p99))_ms")


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """One replica, by the catalogue's names. 0 and "" leave a setting to the engine."""

    model: str
    cluster: str
    engine: str
    chunked: bool | None = None
    in_process: bool = False  # the client calls the engine itself: no front end on the way
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    gpu_memory_utilization: float = 0.0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load offered to one replica."""

    request_rate: float
    burstiness: float  # shape of the gamma gaps: 1 Poisson, inf a constant rate
    num_requests: int  # that are counted …
    warmup: int  # … after these
    inputs: Lengths
    outputs: Lengths
    in_flight: float = math.inf  # at once, of one client
    unique_prompts: int = 0  # that come round again and again; 0: all differ
    shared_prefix: int = 0  # tokens that all prompts begin with


@dataclass(frozen=True, slots=True)
class OpenLoopRun:
    """One run: equal runs of several rows are simulated once."""

    server: ReplicaSettings
    load: OfferedLoad
    replicas: int = 1
    slo_ttft_s: float = math.inf
    slo_tpot_s: float = math.inf


def read(rows: Sequence[Row], folder: Path | None) -> list[RowQuestion[OpenLoopRun]]:
    """Read every row with its figures and the run that gives them, or the reason why it is left out."""
    return [_row_question(row, index, folder) for index, row in enumerate(rows)]


def _row_question(row: Row, index: int, folder: Path | None) -> RowQuestion[OpenLoopRun]:
    entry = replace(describe(row), row=index, id=cell(row, "id"), fitted=is_fitted(row))
    entries = tuple(figures(row, entry))
    try:
        check(row)
        run = question(row, folder)
    except ValueError as error:
        return RowQuestion(tuple(replace(one, skipped=str(error), sound=False) for one in entries), None)
    return RowQuestion(
        tuple(replace(one, tp=run.server.tp, size=run.load.request_rate, what=run_in_words(run)) for one in entries), run
    )


def figures(row: Row, entry: PublishedFigure) -> Iterator[PublishedFigure]:
    """Yield an entry for each figure that a row has, in seconds, and for each verdict on it."""
    censored = "" if lower_cell(row, "num_failed") in ("", "0") else "its times are of the requests that did not time out"
    for column in row:
        if (named := FIGURE.fullmatch(column)) and cell(row, column):
            yield _with_seconds(row, column, replace(entry, kind=named[1], skipped=censored))
    yield replace(entry, kind=OVERLOADED, measured=float(is_overloaded(row)))
    if cell(row, "slo_ttft_ms") and cell(row, "slo_tpot_ms"):
        yield replace(entry, kind=HOLDS, measured=float(keeps_limits(row)))
        yield replace(entry, kind=HOLDS_BEYOND, measured=0.0)


def _with_seconds(row: Row, column: str, entry: PublishedFigure) -> PublishedFigure:
    try:
        return replace(entry, measured=number(row, column) / 1e3)
    except ValueError as error:
        return replace(entry, skipped=str(error))


def is_overloaded(row: Row) -> bool:
    """Return whether requests piled up, by the row's word or because fewer were answered than sent."""
    if any(part in lower_cell(row, "load_regime") for part in PILED_UP):
        return True
    offered, achieved = cell(row, "scheduled_rps", "request_rate_rps"), cell(row, "achieved_rps")
    return bool(offered and achieved) and _float_or_nan(achieved) < KEPT_UP * _float_or_nan(offered)


def keeps_limits(row: Row) -> bool:
    """Return whether 99 in 100 requests kept both limits."""
    pairs = (("ttft_p99_ms", "slo_ttft_ms"), ("tpot_p99_ms", "slo_tpot_ms"))
    return all(
        not cell(row, figure) or _float_or_nan(cell(row, figure)) <= _float_or_nan(cell(row, limit)) for figure, limit in pairs
    )


def _float_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def describe(row: Row) -> PublishedFigure:
    entry = describe_row(row, "open_loop_runs")
    return replace(entry, kind="tpot_mean", mode=entry.mode or lower_cell(row, "arrival"), hint=_hint(row))


def is_fitted(row: Row) -> bool:
    """Return whether engines' constants were fitted on a row (``benchmarks/fit_open_loop.py``).

    Half of the experiments, all stages or models of one together (an MLPerf system is one); of Qwen3-14B on vLLM 0.23 the runs at
    4 requests/s. Engines of other rows have constants from closed loops.
    """
    if lower_cell(row, "source_group") == "residency-vllm":
        return _float_or_nan(cell(row, "request_rate_rps")) == FITTED_RATE
    fitted = cell(row, "source_group") in REPEATING or _submission_engine(row)
    return bool(fitted) and (zlib.crc32(cell(row, "experiment").encode()) % 2 == 0)


def _submission_engine(row: Row) -> str:
    """Return the engine file for MLPerf submissions, where one exists, by name or by the GPUs' maker."""
    table = names()["open_loop"]
    key = table["engines"].get(lower_cell(row, "engine"), lower_cell(row, "engine"))
    maker = "amd" if key == "vllm" and lower_cell(row, "chip").startswith("mi") else key
    return str(table["submitted"].get(maker, "")) if _is_mlperf(row) else ""


def _hint(row: Row) -> str:
    """Return what the row itself says that may explain an error."""
    assumed = cell(row, "assumed_fields")
    return f"assumed: {assumed[:80]}" if assumed else "engine settings are not known" if not cell(row, "max_num_seqs") else ""


def run_in_words(run: OpenLoopRun) -> str:
    """Describe what is simulated."""
    server, load = run.server, run.load
    share = f" of one of {run.replicas} replicas" if run.replicas > 1 else ""
    counted = f"{load.num_requests:,} requests" + (f" after {load.warmup:,}" if load.warmup else "")
    return f"{server.model}, tp {server.tp}, {load.request_rate:.3g} requests/s{share}, {counted}"


def check(row: Row) -> None:
    """Refuse what is no plain server of one kind of GPU, or is not told whole."""
    chip, note, system = lower_cell(row, "chip"), lower_cell(row, "note"), lower_cell(row, "experiment", "id")
    apart: list[str] = names()["open_loop"]["disaggregated"]
    for wrong, reason in (
        (chip == "cpu", "runs on CPUs"),
        (chip.startswith(("gaudi", "arc")), f"chip '{chip}' is no GPU of the catalogue"),
        (chip.startswith("mixed"), "several kinds of chips in one system"),
        ("power-limited" in note or "power cap" in note or "maxq" in system, "its power is capped"),
        (re.search(r"speculat|\beagle|\bmtp\b|draft", note), "speculative decoding: how many tokens are accepted is not known"),
        (re.search("|".join(("disaggregat", "one role only", *apart)), note), "disaggregated: its workers are not told"),
        (not cell(row, "tp"), "how its GPUs are split is not known (tp is empty)"),
        (not (cell(row, "input_mean_tokens") and cell(row, "output_mean_tokens")), "its lengths are not known"),
    ):
        if wrong:
            raise Refusal(reason)


def question(row: Row, folder: Path | None) -> OpenLoopRun:
    """Return the run of one row, or raise ``Refusal`` with the reason why there is none."""
    model, chip = _model(row), _chip(row)
    copies, inside = _copies(row)
    sizes = _sizes(row, model, inside)
    dtype, kv_dtype = _dtypes(row, model, chip)
    server = ReplicaSettings(
        model=f"{model.key}-fp8" if dtype == "fp8" and not model.quant else model.key,  # checkpoints that bring their scales
        cluster=f"{sizes['tp'] * sizes['pp'] * sizes['dp']}x{chip.key}",
        engine=_engine(row),
        chunked=_flag(row, "chunked_prefill"),
        in_process=_is_mlperf(row) or cell(row, "source_group") == "llmservingsim",
        **sizes,
        dtype="" if dtype == "fp8" and not model.quant else dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=whole_cell(row, "max_num_seqs", 0),
        max_num_batched_tokens=whole_cell(row, "max_num_batched_tokens", 0),
        gpu_memory_utilization=_share(row),
        kv_tokens=whole_cell(row, "kv_tokens", 0),
    )
    limits = (number(row, name) / 1e3 if cell(row, name) else math.inf for name in ("slo_ttft_ms", "slo_tpot_ms"))
    return OpenLoopRun(server, _load(row, folder, copies), copies, *limits)


def _is_mlperf(row: Row) -> bool:
    return lower_cell(row, "source_group").startswith("mlperf")


def _copies(row: Row) -> tuple[int, int]:
    """Count replicas that share the load, and data-parallel ranks inside one engine, which share experts."""
    each = whole_cell(row, "tp") * whole_cell(row, "pp", 1)
    ranks = whole_cell(row, "dp", max(1, whole_cell(row, "gpus", 1) // each))
    inside = not _is_mlperf(row) and whole_cell(row, "ep", 1) > whole_cell(row, "tp")
    return (1, ranks) if inside else (ranks, 1)


def _sizes(row: Row, model: Model, inside: int) -> dict[str, int]:
    """Return tensor, pipeline, data and expert parallelism.

    TensorRT-LLM serves latent attention whole on each GPU when experts are spread (``enable_attention_dp`` in MLPerf's
    configurations, which write it as tp): such runs have up to three times ``max_num_seqs`` requests in flight, one batch a GPU.
    """
    tp, ep = whole_cell(row, "tp"), whole_cell(row, "ep", 1)
    whole_attention = _is_mlperf(row) and ep == tp > 1 and any(a.latent for a in model.attentions)
    split = {"tp": 1, "dp": tp} if whole_attention else {"tp": tp, "dp": inside}
    return {**split, "pp": whole_cell(row, "pp", 1), "ep": ep}


def _load(row: Row, folder: Path | None, copies: int) -> OfferedLoad:
    """Return one replica's load. Dealing requests in turn gives each replica of a Poisson stream gamma gaps."""
    inputs, outputs = lengths.lengths_of_row(row, folder)
    whole_run = max(1, whole_cell(row, "num_requests") // copies)
    counted, prompts = min(whole_run, MOST_REQUESTS if folder else MOST_SHIPPED), _prompts(row)
    shared = _flag(row, "prefix_caching") is not False and cell(row, "shared_prefix_tokens")
    # A later stage of an experiment finds all prompts cached.
    seen = prompts if re.search(r"-s[1-9]\d*$", cell(row, "id")) else 0
    return OfferedLoad(
        request_rate=number(row, "request_rate_rps") / copies,
        burstiness=math.inf if lower_cell(row, "arrival") == "constant" else float(copies),
        num_requests=counted,
        warmup=max(seen, round(WARMUP * counted) if counted < whole_run else 0),
        inputs=inputs,
        outputs=outputs,
        in_flight=number(row, "max_in_flight") if cell(row, "max_in_flight") else math.inf,
        unique_prompts=prompts,
        shared_prefix=int(number(row, "shared_prefix_tokens", 0)) if shared else 0,  # where the cache may keep it
    )


def _prompts(row: Row) -> int:
    """Count the distinct prompts that repeat, 0 where none do or where nothing is cached."""
    if _flag(row, "prefix_caching") is False or _is_mlperf(row):  # MLPerf's rules forbid reuse between queries
        return 0
    prompts = whole_cell(row, "unique_prompts", REPEATED_PROMPTS if cell(row, "source_group") in REPEATING else 0)
    return prompts if prompts < whole_cell(row, "num_requests") else 0


def _flag(row: Row, name: str) -> bool | None:
    return {"true": True, "false": False}.get(lower_cell(row, name))


def _share(row: Row) -> float:
    """Return the memory share as each engine reads it: vLLM's of the whole, TensorRT-LLM's of what weights leave."""
    named = next((name for name in ("gpu_memory_utilization", "kv_free_mem_frac") if cell(row, name)), "")
    return number(row, named, most=1.0) if named else 0.0


def _model(row: Row) -> Model:
    name = cell(row, "model")
    model = model_named(name)
    if model is None:
        raise Refusal(f"model '{name}' is not in the catalogue")
    return model


def _chip(row: Row) -> Chip:
    """Return the catalogue's chip, of the memory that the system's name tells where the column does not."""
    name = lower_cell(row, "chip")
    for size in re.findall(r"(\d{2,3})gb", lower_cell(row, "experiment", "id")):
        if f"{name}-{size}gb" in aliases("chips"):
            return catalog.chip(f"{name}-{size}gb")
    if not (key := find_chip_name(name)):
        raise Refusal(f"chip '{name}' is not in the catalogue", "chip")
    return catalog.chip(key)


def _engine(row: Row) -> str:
    """Spell the engine as the catalogue does. TensorRT-LLM's version follows from that of TensorRT, which such rows name, and
    MLPerf's submissions have files of their own, by rounds."""
    table = names()["open_loop"]
    name, version = lower_cell(row, "engine"), cell(row, "engine_version")
    key = table["engines"].get(name, name)
    if submitted := _submission_engine(row):
        return f"{submitted}@{_round(row)}"
    if key not in catalog.keys("engines"):
        raise Refusal(f"engine '{name}' is not known")
    if named := re.match(r"TensorRT (\d+\.\d+)", version):
        version = table["tensorrt"].get(named[1], "")
    plain = re.match(r"\d+(\.\d+)*", version)
    return f"{key}@{plain[0]}" if plain else key


def _round(row: Row) -> str:
    """Return the round whose software a submission ran: its own, or an older one."""
    entered, version = lower_cell(row, "source_group").rpartition("v")[2], cell(row, "engine_version")
    rounds: dict[str, str] = names()["open_loop"]["software"]
    older = (its for name, its in rounds.items() if version == name or version.startswith(f"{name}."))
    return min(entered, next(older, entered), key=version_parts)


def _dtypes(row: Row, model: Model, chip: Chip) -> tuple[str, str]:
    """Return formats of weights (the row's, unless the checkpoint is as narrow) and of the cache (fp8 in MLPerf's narrow runs)."""
    named, kv = (lower_cell(row, name).partition("-")[0] for name in ("weights_dtype", "kv_dtype"))
    four = "nvfp4" if chip.vendor == "nvidia" else "mxfp4"
    kind = four if named == "fp4" else named if named in NARROW else ""
    if not kind and named not in WIDE:
        raise Refusal(f"weights in '{named}' are not known", "weights_dtype")
    cached = "fp8" if kv == "fp8" or (not kv and kind and _is_mlperf(row)) else ""
    as_stored = model.quant and not (kind and DTYPE_BYTES[kind] < DTYPE_BYTES[model.quant.dtype])
    return "" if as_stored else kind, cached
