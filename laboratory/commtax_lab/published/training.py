"""A row of published training runs as a question: which model, cluster and plan it was.

Rows leave much to their source: names of models and GPUs, number formats, which FLOPs are counted, options. Of rows cut out of
pages of results, what the headings above a table say becomes cells of the row. A page's ``section`` is its headings in their
order, "26.06 NeMo Container / LoRA Performance / Model: LLAMA3_70B" or "System: DGX-H100, Precision: BF16".
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name, model_key
from commtax.catalog.hf import from_config
from commtax.cost.train_kernels import recomputed_flops, step_flops
from commtax.spec import ARITHMETIC, AXES, PARALLEL, SIZES, Chip, Cluster, Model, Plan, TrainStep
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
    names,
    number,
    read,
    whole_cell,
)

HEADED = {"model": "Model", "gpu_type": "System", "precision": "Precision"}
"""Columns whose cells a heading may hold, and the word before them there."""
NOTED = {"tokens_per_s_per_gpu": "tokens/s/GPU", "fsdp": "FSDP"}
FOOTNOTE = re.compile(r"\[\^.*?\]")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def row_of_page(row: Row) -> Row:
    """Return the row with what its headings say, or as it is without headings."""
    section = cell(row, "section")
    if not section:
        return row
    plain = {name: _figure(text or "") if name != "section" else text for name, text in row.items()}
    headed = {column: plain.get(column) or _text_after(word, section) for column, word in HEADED.items()}
    noted = [f"{name}={text}" for column, name in NOTED.items() if (text := cell(plain, column))]
    note = "; ".join([cell(plain, "note"), *noted])
    return {**plain, **headed, "source": f"{cell(plain, 'source')} {section}", "note": note}


def _figure(text: str) -> str:
    """Return a cell without footnote marks and thousands separators."""
    return THOUSANDS.sub("", FOOTNOTE.sub("", text))


def _text_after(word: str, section: str) -> str:
    """Return what follows a word and a colon, up to the next heading.

    >>> _text_after("System", "Pre-Training Performance / System: DGX-H100, Precision: BF16")
    'DGX-H100'
    """
    match = re.search(rf"\b{word}: *([^/,]+)", section)
    return match[1].strip() if match else ""


OF_THE_ROW_ABOVE = ("tokendrop", "dropless")
"""Cells of the model that only say how a mixture was trained: the model stands in the row above."""
TOKENS_PER_S = re.compile(r"tokens/s/gpu ?= ?([\d.]+)")
FIRST_LAYERS = re.compile(r"[(,]?\s*(?:proxy,? )?(?:of )?(?:(?:the )?first )?(\d+)[- _]?layers?(?: proxy| only| of)?\s*\)?")
"""A model that is cut after so many layers: "DeepSeekV3 (first 8 layers)", "8-layer proxy"."""
TERA = 1e12
NOTHING = ("n/a", "na", "none", "nan", "null", "-", "--", "?")
"""How tables write that a cell has no value …"""
COUNTED = (*SIZES, "interleave", "microbatch", "layers", "hidden", "heads", "vocab", "tflops_per_gpu", "mfu", "step_time_s")
"""… in columns of numbers: recomputation may well be none."""


def whole_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows with empty cells where a table writes that there is nothing, and with the model of the row above where the table
    leaves it out (tables cut out of pages with two values a cell).
    """
    made: list[Row] = []
    for row in map(row_of_page, rows):
        plain = {name: "" if name in COUNTED and (text or "").strip().lower() in NOTHING else text for name, text in row.items()}
        above = made[-1].get("model", "") if made and lower_cell(row, "model") in OF_THE_ROW_ABOVE else ""
        made.append({**plain, "model": above} if above else plain)
    return made


def engine_of(row: Row) -> str:
    """Return the engine that a row's source used, or that its note names where a source compares two."""
    return first_match("trainers", f"{lower_cell(row, 'source')} {lower_cell(row, 'note')}") or "megatron"


def sizes_of(row: Row) -> dict[str, int]:
    """Return the sizes of the axes, with uncounted replicas derived from the GPUs."""
    sizes: dict[str, int] = {axis: whole_cell(row, axis, 1) for axis in SIZES}
    if not cell(row, "dp"):
        ranks = math.prod(sizes[axis] for axis in AXES if axis != "dp")
        sizes["dp"] = max(1, whole_cell(row, "gpus") // ranks)
    return sizes


def model_of(row: Row) -> Model:
    """Return a bundled model by any spelling of its name, all of it or its first layers, or a GPT of the row's shape."""
    name = lower_cell(row, "model")
    cut = FIRST_LAYERS.search(name)
    if key := model_key(FIRST_LAYERS.sub("", name)):
        decoder = catalog.model(key)
        if cut:
            decoder = _first_layers(decoder, int(cut[1]))
        if decoder.mtp and "w/o mtp" not in name:
            decoder = _with_prediction_layers(decoder)
        return replace(decoder, max_len=max(decoder.max_len, whole_cell(row, "seq")))
    if missing := [c for c in ("layers", "hidden", "heads", "vocab") if not cell(row, c)]:
        raise Refusal(f"model '{cell(row, 'model')}' is not in the catalogue and the row leaves out {', '.join(missing)}", "model")
    layers, hidden, heads, vocab, seq = (whole_cell(row, k) for k in ("layers", "hidden", "heads", "vocab", "seq"))
    shape = {"architectures": ["GPT2LMHeadModel"], "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": 4 * hidden}
    shape |= {"vocab_size": vocab, "n_positions": seq, "tie_word_embeddings": True}
    shape["torch_dtype"] = "float16" if row.get("precision") == "fp16" else "bfloat16"
    return from_config(shape, name)


def _first_layers(model: Model, wanted: int) -> Model:
    """Return the embedding, so many layers from the first on, and the head, without layers that guess further tokens."""
    if not 1 <= wanted <= model.num_layers:
        raise Refusal(f"model '{model.key}' has {model.num_layers} layers, not {wanted}", "model")
    layers = model.layers[:wanted]
    used = sorted(set(layers))
    return replace(model, blocks=tuple(model.blocks[i] for i in used), layers=tuple(map(used.index, layers)), mtp=())


def _with_prediction_layers(model: Model) -> Model:
    """Add the layers that guess further tokens, which are trained as layers of the model."""
    first, more = len(model.blocks), len(model.mtp)
    layers = (*model.layers, *range(first, first + more))
    return replace(model, blocks=(*model.blocks, *model.mtp), layers=layers, mtp=())


def cluster_of(row: Row) -> Cluster:
    """Return the hosts of the row's GPUs with the network that its source names."""
    chip, gpus, source = chip_of(row), whole_cell(row, "gpus"), lower_cell(row, "source")
    per_host = catalog.chip(chip).gpus_per_host
    inter, _, nics = first_match("trained_links", source).partition(" ")
    hosts = f"{max(1, -(-gpus // per_host))}x{min(gpus, per_host)}x{chip}"
    return catalog.cluster(hosts, inter=inter, nics=int(nics) if nics else None)


def dtype_of(row: Row, model: Model) -> str:
    """Return the number format of the products, or "" for 16 bits, as the model is kept.

    Pages of Megatron-Bridge that name none are of fp8 scaled by tensors, and of MXFP8 where a second figure stands in brackets.
    """
    precision = lower_cell(row, "precision")
    if not precision and engine_of(row) == "megatron-bridge":
        finer = "variant 2" in lower_cell(row, "note") and "fp4" in catalog.chip(chip_of(row)).flops_per_s
        precision = "mxfp8" if finer else "fp8"
    return first_match("trained_in", precision) or ("bf16" if model.quant else "")


def chip_of(row: Row) -> str:
    gpu = cell(row, "gpu_type")
    chip = find_chip_name(gpu)
    if not chip:
        raise Refusal(f"GPU '{gpu}' is not in the catalogue of training runs", "gpu_type")
    return chip


def recipe_of(row: Row) -> str:
    """Return what names a published recipe: the source, the model and the GPU."""
    return " ".join(lower_cell(row, name) for name in ("source", "model", "gpu_type"))


def version_of(row: Row, dtype: str) -> str:
    """Return the engine, with its version where a release's recipes run differently: ``megatron-bridge@26.04``."""
    version = first_match("recipe_version", f"{recipe_of(row)} {dtype} {cell(row, 'microbatch')}")
    return f"{engine_of(row)}@{version}" if version and engine_of(row) == "megatron-bridge" else engine_of(row)


def lora_rank_of(row: Row) -> int:
    """Return the rank of a run that trains adapters alone, from its recipe, or 0 where a row does not mention LoRA."""
    text = f"{recipe_of(row)} {lower_cell(row, 'note')}"
    return int(first_match("trained_rank", text)) if re.search(r"\blora\b", text) else 0


def async_of(row: Row, dtype: str) -> tuple[str, ...] | None:
    """Return axes whose collectives run beside compute, where a row or its recipe says so, or None for the engine's way."""
    note = lower_cell(row, "note")
    if "async tp" in note or "asynctp" in note:
        return ("dp", "tp")
    recipe = first_match("recipe_overlap", f"{recipe_of(row)} {dtype} ep{cell(row, 'ep')}")
    beside = recipe.split() if recipe else list(catalog.engine(version_of(row, dtype)).trains.async_axes)
    for pattern, change in names()["patterns"]["noted_overlap"]:
        if re.search(pattern, note):
            beside = [axis for axis in beside if axis != change[1:]] + ([change[1:]] if change[0] == "+" else [])
            recipe = recipe or note
    return tuple(beside) if recipe else None


def measured_s(row: Row, model: Model, plan: Plan, chip: Chip) -> float:
    """Return the seconds of a step: as published, else from tokens, FLOPs or utilisation per second.

    A step faster than the chip's peak allows is a slip of the table, or counts what was not computed.
    """
    gpus, tokens = whole_cell(row, "gpus"), whole_cell(row, "global_batch") * whole_cell(row, "seq")
    flops, peak = tokens * counted_flops(row, model, plan) / gpus, _peak(chip, plan)
    if cell(row, "step_time_s"):
        took_s = number(row, "step_time_s")
    elif rate := TOKENS_PER_S.search(lower_cell(row, "note")):
        took_s = tokens / (gpus * float(rate[1]))
    elif cell(row, "tflops_per_gpu"):
        took_s = flops / (TERA * number(row, "tflops_per_gpu"))
    elif cell(row, "mfu"):
        share = number(row, "mfu", 1e-4, 100)
        took_s = flops / (peak * (share if share <= 1 else share / 100))
    else:
        raise Refusal("the row has neither a step's time nor tokens/s/GPU, TFLOP/s or MFU", "step_time_s")
    if flops / took_s > peak:
        raise Refusal(
            f"{flops / took_s / TERA:,.0f} TFLOP/s per GPU are more than the {peak / TERA:,.0f} of {chip.key}", "step_time_s"
        )
    return took_s


def _peak(chip: Chip, plan: Plan) -> float:
    """Return the chip's dense peak in FLOP/s for the type that the plan's matrix products run in."""
    peaks = chip.flops_per_s
    return float(peaks.get(ARITHMETIC.get(plan.weights_dtype, plan.weights_dtype)) or peaks.get("bf16") or peaks["fp16"])


def counted_flops(row: Row, model: Model, plan: Plan) -> float:
    """Return the FLOPs of a token as the row's source counts them."""
    kind = "hardware" if "hardware tflop" in lower_cell(row, "note") else first_match("counted_flops", lower_cell(row, "source"))
    seq, causal = whole_cell(row, "seq"), kind == "causal"
    engine = catalog.engine(engine_of(row))
    again = recomputed_flops(model, plan, TrainStep(1, seq), engine, causal) if kind == "hardware" else 0.0
    return float(step_flops(model, plan, seq, causal) + again)


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
