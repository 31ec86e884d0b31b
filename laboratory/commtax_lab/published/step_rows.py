"""Rows that tell the time between tokens at a mean batch (ML.ENERGY): the step of a server that runs so many at once.

How long prompts are is the task's (``names.toml``, ``tasks``). Of the sequences that run at a time the long ones are more than
their share, so a sequence has cached its prompt and ``RUNNING`` of a mean answer. Each step as many prompts come as answers end,
batch / answer on average: the median step has the median of so many (Poisson). Which version of the engine ran is the table's
(``steps_engine``).
"""

from dataclasses import dataclass, replace
from math import exp

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax_lab.published.rows import PublishedFigure, Row, RowQuestion, cell, describe_row, names, number, whole_cell
from commtax_lab.published.weights import cache_dtype, stored_model

RUNNING = 0.8  # E[L^2] / (2 E[L]^2) of answers whose lengths have a standard deviation of three quarters of their mean


@dataclass(frozen=True, slots=True)
class MixedStep:
    """One step: decodes, and the prompts that came since the last."""

    model: Model
    cluster: Cluster
    engine: str
    tp: int
    dp: int
    ep: int
    batch: int  # of all replicas
    context: int
    dtype: str
    kv_dtype: str
    prompts: int = 0  # of a replica
    sampling: str = "top-p"  # as a model's generation_config.json says, which servers follow
    prompt_len: int = 1


def describe(row: Row) -> PublishedFigure:
    what = f"{cell(row, 'model_path')}, {cell(row, 'task')}, {cell(row, 'gpus')} GPUs, batch {cell(row, 'avg_batch_size')[:6]}"
    engine, sized = _engine(row).partition("@"), cell(row, "task") in names()["tasks"]
    return replace(describe_row(row, "steps"), kind="itl", library=engine[0], version=engine[2], what=what, sound=sized)


def ask(row: Row, entry: PublishedFigure) -> RowQuestion[MixedStep]:
    """Return the median time between tokens, in seconds."""
    run = question(row)
    where = "moe" if run.model.experts else "dense"
    tpot_s = number(row, "median_itl_ms") * 1e-3
    return RowQuestion((replace(entry, measured=tpot_s, where=where, tp=run.tp, size=run.batch),), run)


def question(row: Row) -> MixedStep:
    model, dtype = stored_model(row)
    sizes = {name: whole_cell(row, name, 1) for name in ("tp", "dp", "ep")}
    gpus = whole_cell(row, "gpus", sizes["tp"] * sizes["dp"])
    if sizes["ep"] > 1 and sizes["tp"] * sizes["dp"] == 1:  # experts on all GPUs; the attention is cut over them as well
        sizes["tp"] = gpus
    if sizes["tp"] * sizes["dp"] != gpus:
        raise Refusal(f"{gpus} GPUs are not tp {sizes['tp']} x dp {sizes['dp']}", "tp")
    batch = max(1, round(number(row, "avg_batch_size")))
    task, lengths = cell(row, "task"), names()["tasks"]
    if task not in lengths:
        raise Refusal(f"task '{task}': how long its prompts are is not known", "task")
    prompt, answer = lengths[task], number(row, "avg_output_len")
    return MixedStep(
        model=model,
        cluster=_cluster(row, gpus),
        engine=_engine(row),
        **sizes,
        batch=batch,
        context=round(prompt + RUNNING * answer),
        dtype=dtype,
        kv_dtype=cache_dtype(row),
        prompts=median_count(batch / sizes["dp"] / answer),
        prompt_len=prompt,
        sampling="greedy" if model.key in names()["sampled_from_all"] else "top-p",
    )


def median_count(mean: float) -> int:
    """Return the median of a Poisson distribution.

    >>> [median_count(mean) for mean in (0.1, 0.69, 0.7, 1.5, 3.0)]
    [0, 0, 1, 1, 3]
    """
    count, term = 0, exp(-mean)
    reached = term
    while reached < 0.5:
        count += 1
        term *= mean / count
        reached += term
    return count


def _engine(row: Row) -> str:
    return cell(row, "engine") or str(names()["steps_engine"])


def _cluster(row: Row, gpus: int) -> Cluster:
    if not (key := find_chip_name(cell(row, "system"))):
        raise Refusal(f"GPU '{cell(row, 'system')}' is not in the catalogue", "system")
    each = catalog.chip(key).gpus_per_host
    hosts = -(-gpus // each)
    return catalog.cluster(f"{hosts}x{each}x{key}" if hosts > 1 else f"{each}x{key}")
