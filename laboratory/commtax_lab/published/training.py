"""A row of published training runs as a question: which model, cluster and plan it was."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from commtax.spec import PARALLEL, Cluster, Model, Plan
from commtax.statement import Refusal
from commtax.verbs.keywords import TrainBillOptions, TrainFitOptions
from commtax.verbs.train_fitting import train_fit
from commtax_lab.published.rows import (
    PublishedFigure,
    Row,
    RowQuestion,
    cell,
    describe_row,
    first_match,
    lower_cell,
    read,
    whole_cell,
)
from commtax_lab.published.training_rows import (
    async_of,
    cluster_of,
    dtype_of,
    engine_of,
    lora_rank_of,
    measured_s,
    model_of,
    recipe_of,
    sizes_of,
    version_of,
    whole_rows,
)

FITTED_GPUS = 64
FITTED_LAYERS = 96
SCHEDULE = re.compile(r"schedule ([\w-]+)")
SHARDED = re.compile(r"fsdp=(\d+)")


class TrainBillArguments(TrainBillOptions, total=False):
    """Arguments of ``commtax.train_bill``."""

    model: Model
    cluster: Cluster


def row_questions(rows: Sequence[Row]) -> list[RowQuestion[TrainBillArguments]]:
    """Return every row with its question, after filling in what a cell leaves to the row above."""
    return read(whole_rows(rows), describe, ask)


def ask(row: Row, entry: PublishedFigure) -> RowQuestion[TrainBillArguments]:
    run = question(row)
    plan = Plan(recompute=run["recompute"], weights_dtype=run["dtype"], lora_rank=run["lora_rank"])
    took_s = measured_s(row, run["model"], plan, run["cluster"].chip)
    figure = replace(entry, measured=took_s, tp=whole_cell(row, "tp", 1), size=whole_cell(row, "seq"))
    where = "moe" if run["model"].experts else "dense"
    return RowQuestion((replace(figure, fitted=is_fitted(row), hint=_hint(row), where=where),), run)


def describe(row: Row) -> PublishedFigure:
    plan = ", ".join(f"{axis} {row.get(axis) or 1}" for axis in ("tp", "pp", "dp"))
    where = f"{row.get('model', '')} on {row.get('gpus', '')} {cell(row, 'gpu_type')}"
    what = f"{where}, {plan}, seq {row.get('seq', '')}"
    library = cell(row, "source").split(" ")[0]
    return replace(describe_row(row, "training_runs"), kind="training-step", library=library, mode=_mode(row), what=what)


def _mode(row: Row) -> str:
    """Return what sets a run apart: eager, asynchronous tensor parallelism, a pipeline, scaling by rows."""
    if "async" in lower_cell(row, "note"):
        return "async"
    if cell(row, "pp") not in ("", "1"):
        return "pipeline"
    if "eager" in lower_cell(row, "note"):
        return "eager"
    return "rowwise" if "rowwise" in cell(row, "precision") else "plain"


def _hint(row: Row) -> str:
    if whole_cell(row, "cp", 1) > 1:
        return PARALLEL["cp"].title.replace("-parallel size", " parallelism")
    if "rowwise" in cell(row, "precision"):
        return "fp8 scaled by rows"
    return "asynchronous tensor parallelism" if "async" in lower_cell(row, "note") else "software and clocks are not said"


def question(row: Row) -> TrainBillArguments:
    """Return the step of one row, or raise ``Refusal`` with the reason why it cannot be priced."""
    source, note = lower_cell(row, "source"), lower_cell(row, "note")
    sizes, engine = sizes_of(row), engine_of(row)
    pp, per_replica = sizes["pp"], max(1, whole_cell(row, "global_batch") // sizes["dp"])
    micro = whole_cell(row, "microbatch", 1)
    if engine == "torchtitan" and pp > 1:
        micro = max(1, per_replica // pp)  # a replica's batch, which torch cuts into as many microbatches as there are stages
    model = model_of(row)
    place = {"model": model, "cluster": cluster_of(row)}
    step = {"batch": per_replica, "micro_batch": min(micro, per_replica), "context": whole_cell(row, "seq")}
    dtype = dtype_of(row, model)
    run = cast(TrainBillArguments, {**place, **sizes, **step, "engine": version_of(row, dtype), "dtype": dtype})
    run["recompute"], run["lora_rank"] = _recompute(row, dtype), lora_rank_of(row)
    run["eager"] = ("torchtitan" in source and "eager" in note) or "llm-foundry" in source
    if "+sp" in lower_cell(row, "recompute"):
        run["sequence_parallel"] = True
    if pp > 1 and (chunks := whole_cell(row, "interleave", int(first_match("unpublished_chunks", recipe_of(row)) or 1))) > 1:
        run |= {"schedule": "interleaved", "chunks": chunks}
    elif pp > 1 and (named := SCHEDULE.search(note)):
        run["schedule"] = named[1]
    elif "interleaved" in note:
        raise Refusal("the number of chunks of the interleaved schedule is not published", "interleave")
    if (beside := async_of(row, dtype)) is not None:
        run["async_axes"] = beside
        if "tp" in beside:  # only what sequence parallelism gathers and scatters can be cut into pieces
            run["sequence_parallel"] = True
    run["ep_backend"] = _dispatcher(row, sizes["ep"])
    if "shard_grad_op" in note:
        run["zero"] = 2
    elif "distributed optimizer" in note:
        run["zero"] = 1
    elif sharded := SHARDED.search(note):
        run["zero"] = 3 if int(sharded[1]) else 1
    elif kept := first_match("recipe_zero", source):
        run["zero"] = int(kept)
    if engine == "automodel" and model.experts is None and not cell(row, "recompute") and not _fits(run):
        run["recompute"] = "full"  # nothing is said of it, and without it there would have been no run
    return run


def _fits(run: TrainBillArguments) -> bool:
    options = {name: value for name, value in run.items() if name in TrainFitOptions.__annotations__}
    return train_fit(run["model"], run["cluster"], **cast(TrainFitOptions, options)).fits


def _recompute(row: Row, dtype: str) -> str:
    """Return a row's recomputation (none, selective or full, alone or with remarks), else modules that its recipe names."""
    word = lower_cell(row, "recompute").split("+")[0].split("-")[0].split("(")[0].strip()
    if word in ("selective", "full"):
        return word
    return first_match("recipe_recompute", f"{recipe_of(row)} {dtype} {cell(row, 'microbatch')}") or "none"


def _dispatcher(row: Row, ep: int) -> str:
    """Return how tokens reach experts, where a row or its recipe says so, or "" for the engine's usual way."""
    noted = "deepep" if "deepep" in lower_cell(row, "note") else ""
    if noted and ep == 1:
        raise Refusal("tokens are sent to experts by DeepEP, and over how many ranks these lie is not said", "ep")
    return (noted or first_match("recipe_dispatcher", recipe_of(row))) if ep > 1 else ""


def is_fitted(row: Row) -> bool:
    """Return whether constants were fitted on a row: llm-foundry's in bf16 on at most 64 GPUs, Megatron-Bridge's of whole models,
    torchao's, and the smaller model's of ZeRO-3 of 2021.
    """
    engine = engine_of(row)
    if lora_rank_of(row):
        return False
    if engine == "megatron-bridge" or "pytorch/ao" in lower_cell(row, "source"):
        return True
    if engine == "deepspeed-2021":
        return whole_cell(row, "layers") <= FITTED_LAYERS
    small = float(cell(row, "gpus") or 0) <= FITTED_GPUS
    return small and "llm-foundry" in lower_cell(row, "source") and cell(row, "precision").endswith("bf16")
