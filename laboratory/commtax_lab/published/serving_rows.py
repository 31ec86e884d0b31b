"""A row of a table of serving runs as the question that ``commtax.simulate`` answers.

The columns are those of published end-to-end runs: engine, version, model, system, quantisation, lengths, concurrency,
sizes of the plan, mean TTFT and TPOT in milliseconds. Absent columns are taken as empty.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name
from commtax.catalog.transfer import fitted_runs
from commtax.spec import Chip, Cluster, Engine, Model
from commtax.statement import Refusal
from commtax.verbs.keywords import SimulateOptions
from commtax_lab import lab_table
from commtax_lab.published.metrics import Metric, figures
from commtax_lab.published.rows import (
    PublishedFigure,
    Row,
    RowQuestion,
    cell,
    describe_row,
    even_hash,
    lower_cell,
    mix,
    names,
    tokens,
    whole_cell,
)
from commtax_lab.published.weights import cache_dtype, stored_model

INFERENCEMAX = "InferenceMAX"
DATABASE = "db-dump"  # of InferenceMAX: runs without drafted tokens
DAILY = r"\d{4}-\d\d-\d\d\.csv"
_DAY = re.compile(r"measured=(\d{4}-\d\d)(-\d\d)?")
_DRAFTED = re.compile(r"(?<![a-z])(mtp|eagle\d?|spec-(?!none)\w+|speculative)(?![a-z])")
UNDRAFTED = ("", "none", "false", "no", "off", "0", "disabled")
DRAFT_COLUMNS = ("spec_decoding", "spec_method", "speculative", "drafts", "mtp")
SAID = "the row says that tokens were drafted"


def is_by_inferencemax(row: Row) -> bool:
    """Return whether a row is InferenceMAX's: from its daily files, its database, or analyses of one model.

    >>> [is_by_inferencemax({"silicon_data_source": s}) for s in ("db-dump/2026-04-27; config_id=6", "source_file=2026-04-01.csv")]
    [True, True]
    >>> is_by_inferencemax({"silicon_data_source": "source_file=/home/me/kimi-gap-analysis.csv"})
    False
    """
    of_one = r"[\w.-]+-gap-analysis\.csv"
    return bool(re.search(rf"(^|source_file=)({DAILY}|{DATABASE}|{of_one})", row.get("silicon_data_source") or ""))


def day_of(row: Row) -> tuple[str, str]:
    """Return the month and day of a run, or a month after all others where its source states none."""
    day = _DAY.search(row.get("silicon_data_source") or "")
    return (day[1], day[1] + (day[2] or "")) if day else ("9999", "")


def recipe_options(row: Row, is_of: Mapping[str, object], clients: int, dp: int) -> dict[str, object]:
    """Collect what the recipes that fit an InferenceMAX run say of it, later ones overriding earlier ones."""
    month, day = day_of(row)
    is_of = {**is_of, "days": day, "database": DATABASE in (row.get("silicon_data_source") or "")}
    least = {"from_clients": clients, "from_dp": dp, "since": month}
    options: dict[str, object] = {}
    for one in lab_table("published/recipes.toml")["recipe"]:
        conditions = ((value, one[key]) for key, value in is_of.items() if key in one)  # few recipes get past the first
        fits = (value in expected if isinstance(expected, list) else value == expected for value, expected in conditions)
        reached = (value >= one[key] for key, value in least.items() if key in one)
        if month <= one.get("until", "9999") and all(fits) and all(reached):
            settings = {key: value for key, value in one.items() if key not in (*is_of, *least, "until", "source")}
            options |= {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return options


def stated_drafts(row: Row) -> dict[str, object]:
    """Return the options of a run that states its drafter, draft length and yield per step, or none if any is missing.

    >>> stated_drafts({"spec_method": "mtp", "num_speculative_tokens": "3", "accepted_length": "2.82"})
    {'technique': 'mtp=3', 'accepted_length': 2.82}
    """
    method = next((cell(row, name).lower() for name in DRAFT_COLUMNS if cell(row, name)), "")
    drafts, length = cell(row, "num_speculative_tokens"), cell(row, "accepted_length")
    if method in UNDRAFTED or not drafts or not length:
        return {}
    return {"technique": f"{method}={drafts}", "accepted_length": float(length)}


def draft_rule(row: Row) -> str:
    """Return the rule that shows a row drafted without stating how many tokens were accepted, or ""."""
    if stated_drafts(row):
        return ""
    column = next((cell(row, name).lower() for name in DRAFT_COLUMNS if cell(row, name)), "")
    if column:
        return "" if column in UNDRAFTED else SAID
    named = " ".join(cell(row, name).lower().replace("_", " ") for name in ("id", "source"))
    return SAID if _DRAFTED.search(named) else ""


AnyRow = TypeVar("AnyRow", bound=Row)
PROMPTS_PER_CLIENT = 10  # requests of a benchmark for each of its clients, as such runs are made
SHORTEST = 0.8  # InferenceMAX draws lengths uniformly from this share of the stated length up to all of it
FULL_CLIENTS = 2048  # of each replica of a server that is full: more than any engine takes at once by default
UNCOUNTED = ("", "inf", "max", "saturated", "unlimited")
RATES = ("throughput", "total-rate", "input-rate", "request-rate")
_CLIENTS = re.compile(r"silicon_concurrency=(\d+)")
HABITS = ("ahead", "steps_per_decision", "batch_wait", "experts_by")
"""Of an engine, that a launch command sets."""


class SimulateArguments(SimulateOptions, total=False):
    """Arguments of ``commtax.simulate``."""

    model: Model
    cluster: Cluster


def question(row: Row) -> SimulateArguments:
    """Return the run of one row, or raise ``Refusal`` with the reason why there is none."""
    (model, dtype), sizes = stored_model(row), _sizes(row)
    workers = _workers(row) if _is_disaggregated(row) else {}
    clients = _concurrency(row, sizes["dp"])
    (inputs, outputs), spread = _lengths(row)
    cluster = _cluster(row, sizes)
    launch = {"kv_dtype": cache_dtype(row), **recipe(row, sizes), **stated_drafts(row)}
    for name in ("drafts", "spread_experts", "dp_attention"):
        launch.pop(name, None)
    engine = catalog.engine(_engine(row)).but(**{name: launch.pop(name) for name in HABITS if name in launch})
    lengths = {"input_len": max(1, round(inputs)), "output_len": max(2, round(outputs))}
    load = {"concurrency": clients, "num_prompts": PROMPTS_PER_CLIENT * clients, "spread": spread, **lengths}
    place = {"model": model, "cluster": cluster, "engine": engine, **sizes, "dtype": dtype, **launch}
    return cast(SimulateArguments, {**place, **load, **workers})


def ask(row: Row, entry: PublishedFigure) -> RowQuestion[SimulateArguments]:
    """Return all figures of a row: mean TTFT, TPOT and whole latency, tokens and requests per second."""
    run, measured = question(row), list(figures(row))
    if not measured:
        raise Refusal("no figure is given: neither TTFT, TPOT, latency nor throughput")
    sizes = _sizes(row)
    hint = "disaggregated" if _is_disaggregated(row) else ""
    entry = replace(entry, tp=sizes["tp"], size=_concurrency(row, sizes["dp"]), fitted=is_fitted(row), hint=hint)
    away, where = drafting_rule(row) or planning_rule(row), "moe" if run["model"].experts else "dense"
    entry = replace(entry, where=where, apart=away, run=measurement(row))
    return RowQuestion(tuple(_figure(row, entry, *one) for one in measured), run)


def _figure(row: Row, entry: PublishedFigure, metric: Metric, value: float) -> PublishedFigure:
    """Return one figure, of all GPUs, with a hint if it is a median. The queueing of a full server is unknown."""
    if metric.kind in ("ttft", "e2e") and not _is_counted(row):
        return replace(entry, kind=metric.kind, skipped="how many clients wait is not said")
    hint = "a median, not a mean" if metric.middle else entry.hint
    gpus = _gpus(row, metric.kind) if metric.per_gpu else 1
    return replace(entry, kind=metric.kind, measured=value * gpus, hint=hint)


def _gpus_per_server(row: Row) -> int:
    """Count the GPUs of a server, or of a worker that decodes."""
    sizes = _sizes(row)
    return sizes["tp"] * sizes["pp"] * sizes["dp"]


def _gpus(row: Row, kind: str) -> int:
    """Count the GPUs that a figure was divided by: all, or prefill workers' for input, or decode workers' for output."""
    if not _is_disaggregated(row):
        return _size(row, "num_gpus", _gpus_per_server(row))
    ahead = _size(row, "prefill_num_workers", 0) * whole_cell(row, "prefill_tp_size") * _size(row, "prefill_attention_dp_size", 1)
    decode = _size(row, "decode_num_workers", 0) * _gpus_per_server(row)
    used = {"input-rate": ahead, "throughput": decode}.get(kind, ahead + decode if ahead and decode else 0)
    if not used:
        raise Refusal("a figure of one GPU, and how many workers there are is not said")
    return used


def describe(row: Row) -> PublishedFigure:
    tp, clients = cell(row, "tp_size", "decode_tp_size"), cell(row, "clients", "batch_size", "decode_batch_size")
    lengths = f"{row.get('isl', '')} in, {row.get('osl', '')} out"
    what = f"{row.get('model_path', '')}, tp {tp or '?'}, {lengths}, {clients or '?'} clients"
    entry, source = describe_row(row, "serving_runs"), cell(row, "silicon_data_source", "source")
    # InferenceMAX names its daily files, the others are aiconfigurator's own.
    origin = INFERENCEMAX if is_by_inferencemax(row) else "aiconfigurator" if source else ""
    counted = all(cell(row, f"{part}_num_workers") not in ("", "0") for part in ("prefill", "decode"))
    untold = not (cell(row, "isl") and cell(row, "osl")) or (_is_disaggregated(row) and not counted)
    return replace(entry, kind="tpot", source=origin, mode=entry.mode or "agg", what=what, sound=not untold)


def _is_disaggregated(row: Row) -> bool:
    return row.get("mode") == "disagg"


def measurement(row: Row) -> str:
    """Identify a run's measurement, which counts once: the same times stand in several files and under several
    names of a model, rounded to hundredths of a millisecond in some. "" where a row has no two of them to be told by.
    """
    times = measured_means(row)
    if len(times) < 2:
        return ""
    where = (_chip(row).key, cell(row, "isl"), cell(row, "osl"))
    return " ".join((*where, *(f"{name} {value * 1e3:.2f}" for name, value in sorted(times.items()))))


def distinct_rows(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """Return rows with every measurement once: the first that has a question and did not draft, else the first."""
    best: dict[str, tuple[bool, int]] = {}
    keys = [_measurement_and_draft(row) for row in rows]
    for i, (key, sound) in enumerate(keys):
        if key and (key not in best or (sound and not best[key][0])):
            best[key] = (sound, i)
    return [row for i, row in enumerate(rows) if not keys[i][0] or best[keys[i][0]][1] == i]


def _measurement_and_draft(row: Row) -> tuple[str, bool]:
    """Return a row's measurement, "" where it has no question, and whether it drafted nothing."""
    try:
        question(row)
        return measurement(row), not drafting_rule(row)
    except ValueError:
        return "", False


def measured_means(row: Row) -> dict[str, float]:
    """Return the measured means of TTFT and TPOT in seconds, where the row has them."""
    return {f"{metric.kind}_s": value for metric, value in figures(row) if metric.kind in ("ttft", "tpot")}


def _size(row: Row, name: str, default: int) -> int:
    """Return a size that a table may leave empty or write as 0."""
    return default if cell(row, name) in ("", "0") else whole_cell(row, name)


def _engine(row: Row) -> str:
    name, version = row.get("backend") or "", row.get("backend_version") or ""
    if name not in catalog.keys("engines"):
        raise Refusal(f"engine '{name}' is not known")
    source = row.get("silicon_data_source") or ""
    runtime = re.search(r"\S-runtime:(\S+)", source)
    if runtime and version and runtime[1] == version:  # of the runtime around the engine, not of the engine
        version = names()["runtimes"].get(name, {}).get(".".join(version.split(".")[:2]), "")
    if not version and (day := re.search(r"measured=(\d{4}-\d\d)", source)):
        version = _version_at(name, day[1])
    return f"{name}@{version}" if re.fullmatch(r"v?\d+(\.\w+)*", version) else name


def _version_at(name: str, date: str) -> str:
    """Return the version of an engine that was new at a date (``2025-10``), or "" where its file does not say."""
    versions = catalog.engine(name).versions
    since = {str(table.get("since", "9999")): version for version, table in versions.items()}
    return max(((day, version) for day, version in since.items() if day <= date[: len(day)]), default=("", ""))[1]


def _sizes(row: Row) -> dict[str, int]:
    """Return tensor, data and expert parallelism. Attention-DP ranks are replicas that share their experts."""
    prefix = "decode_" if _is_disaggregated(row) else ""
    tp, dp, ep = (
        whole_cell(row, f"{prefix}tp_size"),
        _size(row, f"{prefix}attention_dp_size", 1),
        _size(row, f"{prefix}moe_ep_size", 1),
    )
    tp, dp, ep = _undo_multiplied_sizes(tp, dp, ep, row.get("id") or "") if is_by_inferencemax(row) else (tp, dp, ep)
    if dp > 1 and ep == 1:  # ranks whose experts are cut in parts hold no more of them than ranks that hold some whole
        ep = min(tp * dp, _size(row, f"{prefix}moe_tp_size", 1))
    sizes = {"tp": tp, "pp": _size(row, f"{prefix}pp_size", 1), "dp": dp, "ep": ep}
    launched = recipe(row, sizes) if dp == ep == 1 else {}
    if launched.get("dp_attention"):
        return sizes | {"tp": 1, "dp": tp, "ep": tp}
    return sizes | {"ep": tp} if launched.get("spread_experts") else sizes


def _undo_multiplied_sizes(tp: int, dp: int, ep: int, name: str) -> tuple[int, int, int]:
    """Undo sizes of a run that a table multiplied: experts lie on the same GPUs as the attention.

    Names say the sizes as they were launched. Runs without such a name were launched with as many ranks for experts as for tp.

    >>> runs = (1, 64, 8, "x_tp8_ep8_937"), (2, 2, 4, "x_cfg690"), (16, 1, 4, "x_cfg615"), (8, 1, 8, "x_tp8_ep8_1")
    >>> tuple(_undo_multiplied_sizes(*run) for run in runs)
    ((1, 8, 8), (2, 1, 2), (4, 1, 4), (8, 1, 8))
    """
    named = re.search(r"_tp(\d+)(?:_\d+)?_ep(\d+)", name)
    launched, experts = (int(named[1]), int(named[2])) if named else (min(tp, dp, ep) if dp > 1 else ep, min(tp, ep))
    if experts == 1 or tp * dp != launched * experts:
        return tp, dp, ep
    if tp > 1:
        return launched, 1, experts
    return 1, launched, ep


def _workers(row: Row) -> dict[str, int]:
    """Return the prefill and decode workers. Refuse a run whose table does not count them."""
    counts = {f"{part}_workers": _size(row, f"{part}_num_workers", 0) for part in ("prefill", "decode")}
    if not all(counts.values()):
        raise Refusal("disaggregated: how many workers there are is not said", "decode_num_workers")
    ranks = {"prefill_tp": whole_cell(row, "prefill_tp_size"), "prefill_dp": _size(row, "prefill_attention_dp_size", 1)}
    return {"disaggregated": True, **ranks, **counts}


def recipe(row: Row, sizes: Mapping[str, int]) -> dict[str, object]:
    """Return how InferenceMAX launched a run, as far as its scripts say, and nothing of other runs."""
    if not is_by_inferencemax(row):
        return {}
    model, dtype = stored_model(row)
    is_of: dict[str, object] = {"engine": cell(row, "backend"), "models": model.key, "chips": _chip(row).key, **sizes}
    is_of |= {"mode": row.get("mode") or "agg", "isl": tokens(row, "isl"), "osl": tokens(row, "osl")}
    is_of["weights"] = dtype or (model.quant.dtype if model.quant else "")
    return recipe_options(row, is_of, _concurrency(row, sizes["dp"]), sizes["dp"])


def drafting_rule(row: Row) -> str:
    """Return the rule by which a run drafted, or may have, so that it tells nothing of a step, or ""."""
    return "" if stated_drafts(row) else draft_rule(row) or str(recipe(row, _sizes(row)).get("drafts") or "")


def planning_rule(row: Row) -> str:
    """Return the rule by which a row's batch was planned and not run (planners' jobs that name no clients), or ""."""
    unsaid = "gtl_job_id" in (row.get("silicon_data_source") or "") and not _CLIENTS.search(row["silicon_data_source"])
    return "a planner's job: its batch is the planned one, how many clients there were is not said" if unsaid else ""


def may_draft(row: Row) -> bool:
    return bool(drafting_rule(row))


def _concurrency(row: Row, dp: int) -> int:
    """Count the clients of the whole run: as stated, or the batch of each attention-DP rank times their number.

    A server without a number of clients is full: rates are of as many as its engine takes.
    """
    clients = _CLIENTS.search(row.get("silicon_data_source") or "")
    if clients:
        return int(clients[1])
    if cell(row, "concurrency") and _is_counted(row):
        return whole_cell(row, "concurrency")
    if not _is_counted(row) and any(metric.kind in RATES for metric, _ in figures(row)):
        return FULL_CLIENTS * dp
    if row.get("decode_batch_size"):
        return whole_cell(row, "decode_batch_size") * _size(row, "decode_num_workers", 1)
    return whole_cell(row, "batch_size") * dp


def _is_counted(row: Row) -> bool:
    """Return whether a row states its clients, or how many requests ran at once."""
    clients = lower_cell(row, "concurrency", "batch_size", "decode_batch_size")
    return bool(_CLIENTS.search(row.get("silicon_data_source") or "")) or clients not in UNCOUNTED


def _lengths(row: Row) -> tuple[tuple[float, float], float]:
    """Return mean lengths of inputs and outputs, and their spread: that of a uniform one as wide as a mix is."""
    means = tokens(row, "isl"), tokens(row, "osl")
    wide = min(1.0, max(_spread(mix(cell(row, name))) for name in ("isl", "osl")))
    if is_by_inferencemax(row):
        middle = (1 + SHORTEST) / 2
        return (middle * means[0], middle * means[1]), max(wide, (1 - SHORTEST) / (1 + SHORTEST))
    return means, wide


def _spread(parts: Sequence[tuple[float, float]]) -> float:
    """Return the half-width over the mean of a uniform distribution with the standard deviation of these lengths."""
    mean = sum(length * share for length, share in parts)
    return math.sqrt(3 * sum(share * (length / mean - 1) ** 2 for length, share in parts)) if parts else 0.0


def _chip(row: Row) -> Chip:
    name = cell(row, "system", "gpu", "chip", "hardware")
    if not (key := find_chip_name(name)):
        raise Refusal(f"GPU '{name}' is not in the catalogue", "system")
    return catalog.chip(key)


def _cluster(row: Row, sizes: Mapping[str, int]) -> Cluster:
    """Return the hosts of a server, or of all workers of both kinds."""
    chip = _chip(row)
    gpus = _gpus(row, "") if _is_disaggregated(row) else sizes["tp"] * sizes["pp"] * sizes["dp"]
    hosts = -(-gpus // chip.gpus_per_host)
    return catalog.cluster(f"{hosts}x{chip.gpus_per_host}x{chip.key}" if hosts > 1 else f"{chip.gpus_per_host}x{chip.key}")


def may_fit(row: Row) -> bool:
    """Return whether constants may be fitted on a row: half of the aggregated runs, by a hash of the run. Others test them."""
    try:
        run = question(row)
    except ValueError:
        return False
    engine, sizes = cast(Engine, run["engine"]), [run[name] for name in ("tp", "dp", "ep", "concurrency")]
    key = [engine.key, engine.version, run["model"].key, run["cluster"].chip.key, row.get("isl"), row.get("osl"), *sizes]
    return even_hash(" ".join(map(str, key))) and not (run.get("disaggregated") or may_draft(row) or planning_rule(row))


def is_fitted(row: Row) -> bool:
    """Return whether the engines' constants were fitted on a row's engine, version, chip and model."""
    if not may_fit(row):
        return False
    run = question(row)
    engine = cast(Engine, run["engine"])
    is_of = {"engine": engine.key, "version": engine.version, "chip": run["cluster"].chip.key, "model": run["model"].key}
    return any(all(one[name] == value for name, value in is_of.items()) for one in fitted_runs())
