"""A row of published training runs as a question: which model, cluster and plan it was."""

from dataclasses import replace
from typing import cast

from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.readers.published.rows import Asked, Entry, Row, cell, described, lower, matched, names, number, whole
from commtax.spec import PARALLEL, SIZES, Cluster, Model
from commtax.statement import Refusal
from commtax.verbs.asking import TrainBillOptions

GPUS_PER_HOST = 8
FITTED_GPUS = 64


class Run(TrainBillOptions, total=False):
    """Arguments of ``commtax.train_bill``."""

    model: Model
    cluster: Cluster


def ask(row: Row, entry: Entry) -> Asked[Run]:
    run = question(row)
    figure = replace(entry, measured=number(row, "step_time_s"), tp=whole(row, "tp", 1), size=whole(row, "seq"))
    return Asked((replace(figure, fitted=is_fitted(row), hint=_hint(row)),), run)


def describe(row: Row) -> Entry:
    plan = ", ".join(f"{axis} {row.get(axis) or 1}" for axis in ("tp", "pp", "dp"))
    where = f"{row.get('model', '')} on {row.get('gpus', '')} {cell(row, 'gpu_type')}"
    what = f"{where}, {plan}, seq {row.get('seq', '')}"
    library = cell(row, "source").split(" ")[0]
    return replace(described(row, "training_runs"), kind="training-step", library=library, mode=_mode(row), what=what)


def _mode(row: Row) -> str:
    """What sets a run apart: eager, asynchronous tensor parallelism, a pipeline, scaling by rows."""
    if "async" in lower(row, "note"):
        return "async"
    if cell(row, "pp") not in ("", "1"):
        return "pipeline"
    if "eager" in lower(row, "note"):
        return "eager"
    return "rowwise" if "rowwise" in cell(row, "precision") else "plain"


def _hint(row: Row) -> str:
    if whole(row, SIZES[-1], 1) > 1:
        return PARALLEL[SIZES[-1]].title.replace("-parallel size", " parallelism")
    if "rowwise" in cell(row, "precision"):
        return "fp8 scaled by rows"
    return "asynchronous tensor parallelism" if "async" in lower(row, "note") else "software and clocks are not said"


def question(row: Row) -> Run:
    """The step of one row; a row that cannot be priced raises ``Refusal`` with the reason."""
    source, note = lower(row, "source"), lower(row, "note")
    gpus, dp, pp = whole(row, "gpus"), whole(row, "dp", 1), whole(row, "pp", 1)
    per_replica = whole(row, "global_batch") // dp
    micro = whole(row, "microbatch", 1)
    if "torchtitan" in source and pp > 1:
        micro = 1  # what the row calls a microbatch is a replica's batch; its pipeline cuts it into single sequences
    place = {"model": _model(row), "cluster": _cluster(cell(row, "gpu_type"), gpus, source)}
    sizes = {axis: whole(row, axis, 1) for axis in SIZES}
    step = {"batch": per_replica, "micro_batch": min(micro, per_replica), "context": whole(row, "seq")}
    run = cast(Run, {**place, **sizes, **step, "engine": matched("trainers", source) or "megatron"})
    run["recompute"] = cell(row, "recompute").split("+")[0].split("-")[0] or "none"
    run["dtype"] = "fp8" if "fp8" in cell(row, "precision") else ""
    run["eager"] = ("torchtitan" in source and "eager" in note) or "llm-foundry" in source
    if "+sp" in lower(row, "recompute"):
        run["sequence_parallel"] = True
    if pp > 1 and whole(row, "interleave", 1) > 1:
        run |= {"schedule": "interleaved", "chunks": whole(row, "interleave")}
    elif "interleaved" in note:
        raise Refusal("the number of chunks of the interleaved schedule is not published", "interleave")
    if "async tp" in note or "asynctp" in note:
        run["async_axes"] = ("dp", "tp")
    if "shard_grad_op" in note:
        run["zero"] = 2
    return run


def _cluster(gpu: str, gpus: int, source: str) -> Cluster:
    chip = names()["training_chips"].get(gpu.lower().replace("_", "-"))
    if chip is None:
        raise Refusal(f"GPU '{gpu}' is not in the catalogue of training runs")
    hosts = max(1, -(-gpus // GPUS_PER_HOST))
    inter = "ib-hdr" if "arxiv:2104" in source or "arxiv:2205" in source else ""  # Selene: eight HDR NICs a host
    return catalog.cluster(f"{hosts}x{min(gpus, GPUS_PER_HOST)}x{chip}", inter=inter)


def _model(row: Row) -> Model:
    """A bundled model by name, or a GPT of the row's shape."""
    name = lower(row, "model")
    if name in catalog.keys("models"):
        return replace(catalog.model(name), max_len=whole(row, "seq"))
    layers, hidden, heads, vocab, seq = (whole(row, k) for k in ("layers", "hidden", "heads", "vocab", "seq"))
    shape = {"architectures": ["GPT2LMHeadModel"], "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": 4 * hidden}
    shape |= {"vocab_size": vocab, "n_positions": seq, "tie_word_embeddings": True}
    shape["torch_dtype"] = "float16" if row.get("precision") == "fp16" else "bfloat16"
    return from_config(shape, name)


def is_fitted(row: Row) -> bool:
    """llm-foundry's bf16 rows on at most 64 GPUs."""
    small = float(cell(row, "gpus") or 0) <= FITTED_GPUS
    return small and "llm-foundry" in lower(row, "source") and cell(row, "precision").endswith("bf16")
