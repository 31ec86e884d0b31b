"""Rows that tell the time between tokens at a mean batch (ML.ENERGY): the decode step of a server that runs so many at once.

How long prompts are is the task's (``names.toml``, ``tasks``); a sequence in the middle of its answer has cached its prompt and
half of the answer. Which version of the engine ran is the table's (``steps_engine``).
"""

from dataclasses import dataclass, replace

from commtax import catalog
from commtax.readers.published.rows import Asked, Entry, Row, cell, described, names, number, whole
from commtax.readers.published.spellings import chip_named
from commtax.readers.published.weights import kept, stored
from commtax.spec import Cluster, Model
from commtax.statement import Refusal


@dataclass(frozen=True, slots=True)
class Run:
    """One decode step."""

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


def describe(row: Row) -> Entry:
    what = f"{cell(row, 'model_path')}, {cell(row, 'task')}, {cell(row, 'gpus')} GPUs, batch {cell(row, 'avg_batch_size')[:6]}"
    engine, told = _engine(row).partition("@"), cell(row, "task") in names()["tasks"]
    return replace(described(row, "steps"), kind="itl", library=engine[0], version=engine[2], what=what, sound=told)


def ask(row: Row, entry: Entry) -> Asked[Run]:
    """The median time between tokens, in seconds."""
    run = question(row)
    where = "moe" if run.model.experts else "dense"
    told = number(row, "median_itl_ms") * 1e-3
    return Asked((replace(entry, measured=told, where=where, tp=run.tp, size=run.batch),), run)


def question(row: Row) -> Run:
    model, dtype = stored(row)
    sizes = {name: whole(row, name, 1) for name in ("tp", "dp", "ep")}
    gpus = whole(row, "gpus", sizes["tp"] * sizes["dp"])
    if sizes["ep"] > 1 and sizes["tp"] * sizes["dp"] == 1:  # experts on all GPUs; the attention is cut over them as well
        sizes["tp"] = gpus
    if sizes["tp"] * sizes["dp"] != gpus:
        raise Refusal(f"{gpus} GPUs are not tp {sizes['tp']} x dp {sizes['dp']}", "tp")
    batch = max(1, round(number(row, "avg_batch_size")))
    context = round(_prompt(row) + number(row, "avg_output_len") / 2)
    return Run(model, _cluster(row, gpus), _engine(row), **sizes, batch=batch, context=context, dtype=dtype, kv_dtype=kept(row))


def _prompt(row: Row) -> int:
    """Tokens of a task's prompts."""
    task = cell(row, "task")
    known: dict[str, int] = names()["tasks"]
    if task not in known:
        raise Refusal(f"task '{task}': how long its prompts are is not known", "task")
    return known[task]


def _engine(row: Row) -> str:
    return cell(row, "engine") or str(names()["steps_engine"])


def _cluster(row: Row, gpus: int) -> Cluster:
    if not (key := chip_named(cell(row, "system"))):
        raise Refusal(f"GPU '{cell(row, 'system')}' is not in the catalogue", "system")
    each = catalog.chip(key).gpus_per_host
    hosts = -(-gpus // each)
    return catalog.cluster(f"{hosts}x{each}x{key}" if hosts > 1 else f"{each}x{key}")
